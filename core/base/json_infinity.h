/* Inside core: infinity in the JSON that Python writes. JSON has none, nor has jansson. */
#ifndef TENON_CORE_JSON_INFINITY_H
#define TENON_CORE_JSON_INFINITY_H

#include <tenon/error.h>

#include <stddef.h>

/* In place of Infinity outside of strings, a number near the largest of a double, of as many characters. */
void json_infinity_spell(char *text, size_t size);

/* The JSON of a text, which is changed so; path: for messages. NULL with an error. Owned. */
struct json_t;
struct json_t *json_infinity_load(const char *path, char *text, size_t size, tn_error *err);

/* What "Infinity" or "-Infinity" stands for then; 0: word is another, or NULL. */
double json_infinity(const char *word);

#endif
