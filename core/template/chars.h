/* Inside core: characters of UTF-8 text as Python's str has them. */
#ifndef TENON_CORE_CHARS_H
#define TENON_CORE_CHARS_H

#include "template/sandbox.h"

struct string;

/* The character that begins at *at, which then is behind it; and the one that ends there, which then is before it.
 * There is one. A byte that begins none counts as one. Texts are walked through by these alone, and each is a step, so
 * that whatever looks at every character pays for it. */
int32_t chars_next(sandbox *s, const char *data, size_t size, size_t *at);
int32_t chars_before(sandbox *s, const char *data, size_t *at);

size_t chars_write(int32_t code, char out[4]);
size_t chars_count(sandbox *s, const char *data, size_t size);

/* Where the index-th character of a text begins, in bytes; and which one begins at a byte. */
size_t chars_offset(sandbox *s, const struct string *text, size_t index);
size_t chars_index(sandbox *s, const struct string *text, size_t offset);

/* Where a text stands in data first, or last; NULL: nowhere. What is looked at is paid for, too: long texts that begin
 * alike everywhere take as many steps as they take time. */
const char *chars_find(sandbox *s, const char *data, size_t size, const struct string *what);
const char *chars_find_last(sandbox *s, const char *data, size_t size, const struct string *what);

/* What str.isspace, isalpha and so on ask of a character. */
bool chars_is_space(int32_t code);
bool chars_is_alpha(int32_t code);
bool chars_is_decimal(int32_t code);
bool chars_is_digit(int32_t code); /* decimal, or a digit of another form: a superscript */
bool chars_is_numeric(int32_t code);
bool chars_is_upper(int32_t code);
bool chars_is_lower(int32_t code);
bool chars_is_printable(int32_t code);
bool chars_is_word(int32_t code); /* \w of regular expressions */

/* Other cases, up to three characters; the number of them. */
typedef enum chars_case { CHARS_LOWER, CHARS_UPPER, CHARS_TITLE } chars_case;
size_t chars_to(sandbox *s, chars_case how, int32_t code, int32_t out[3]);

#endif
