/* Bytes that grow: what is held back, and arguments that are put together. */
#ifndef TENON_SERVE_SPLITTER_TEXT_H
#define TENON_SERVE_SPLITTER_TEXT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct splitter_text {
    char *bytes; /* NULL: nothing was ever added; not ended by a NUL                                     */
    size_t length, room;
} splitter_text;

/* false: no memory, and nothing was added. */
bool splitter_text_add(splitter_text *t, const char *bytes, size_t length);

/* The bytes as a string of JSON, with its quotes. They are UTF-8. */
bool splitter_text_add_string(splitter_text *t, const char *bytes, size_t length);

void splitter_text_drop(splitter_text *t, size_t length); /* its first bytes                              */
void splitter_text_free(splitter_text *t);                /* empty again                                  */

static inline bool splitter_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

#endif
