/* What the program printed as JSON. What is not there fails the test. */
#ifndef TEST_PRINTED_H
#define TEST_PRINTED_H

#include "process.h"

#include <jansson.h>
#include <stdint.h>

/* A text; what a program that ended with this status printed. Until the test ends. */
json_t *printed_text(const char *text);
json_t *printed_json(const process_result *r, int status);

/* Members of an object. */
const char *printed_string(const json_t *object, const char *key);
double printed_number(const json_t *object, const char *key);
int64_t printed_count(const json_t *object, const char *key);

#endif
