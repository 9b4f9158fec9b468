/* Values that a family writes as bare text: which are strings, the tool's schema tells. */
#ifndef TENON_SERVE_SPLITTER_VALUE_H
#define TENON_SERVE_SPLITTER_VALUE_H

#include "splitter_text.h"

#include <jansson.h>

/* Adds the JSON text of the value of argument key of a function of a request. false: no memory. */
bool splitter_value_add(splitter_text *out, const json_t *function, const char *key, size_t key_length,
                        const char *value, size_t length);

#endif
