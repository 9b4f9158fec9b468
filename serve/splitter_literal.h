/* Values as Python writes them, or as a family does whose strings stand between marks of its own: as JSON. */
#ifndef TENON_SERVE_SPLITTER_LITERAL_H
#define TENON_SERVE_SPLITTER_LITERAL_H

#include "splitter_text.h"

typedef enum splitter_literal_form {
    LITERAL_VALUE,
    LITERAL_ARGUMENTS, /* key=value, key=value                                                            */
    LITERAL_OBJECT     /* {key: value}, where keys need no quotes                                             */
} splitter_literal_form;

/* Adds the JSON text of all of text, of arguments as one object. quote: what stands around a string, beside the quotes
 * of Python; or NULL. false: it is no such text, and nothing was added; or no memory, which *memory tells. */
bool splitter_literal_add(splitter_text *out, splitter_literal_form form, const char *text, size_t length,
                          const char *quote, bool *memory);

#endif
