/* Inside core/checkpoint: reading JSON as it comes, without a tree. Headers of safetensors files have tens of thousands
 * of small objects; a tree of them takes a hundred allocations for what is four numbers and a name. */
#ifndef TENON_CORE_SCAN_H
#define TENON_CORE_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct scan {
    const char *text, *at, *end;
} scan;

/* Every function skips white space first and returns false, with at where the text stops being right, when it finds
 * something else. */
bool scan_mark(scan *s, char mark); /* one of {}[]:, */
bool scan_end(scan *s);             /* nothing but white space is left */

/* A string, decoded into out[size] with a NUL behind it; refused when it does not fit, holds a NUL or is not valid
 * UTF-8. Decoded it is never longer than its text without the quotes. */
bool scan_string(scan *s, char *out, size_t size);

/* A whole number of int64_t: no fraction, no exponent. */
bool scan_i64(scan *s, int64_t *out);

/* Any value. Strings and numbers in it are checked like the others. */
bool scan_value(scan *s);

/* What comes next, without taking it; 0 at the end. */
char scan_peek(scan *s);

#endif
