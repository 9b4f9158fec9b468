/* A JSON schema checked by the plain reading of its keywords, to judge what masks let through. */
#ifndef TEST_VALIDATE_H
#define TEST_VALIDATE_H

#include <jansson.h>
#include <stdbool.h>

/* Is the value what the node of the schema `root` allows? */
bool validate(const json_t *root, const json_t *node, const json_t *value);

/* Does the expression match, somewhere or as a whole? By PCRE2. */
bool validate_pattern(const char *pattern, const char *text, bool whole);

#endif
