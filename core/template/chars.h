/* Inside core: characters of UTF-8 text as Python's str has them. */
#ifndef TENON_CORE_CHARS_H
#define TENON_CORE_CHARS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct string;

/* Bytes of the character at data, which has `left` bytes; a byte that begins none counts as one. */
size_t chars_length(const char *data, size_t left);
int32_t chars_read(const char *data, size_t left);
size_t chars_write(int32_t code, char out[4]);
size_t chars_count(const char *data, size_t size);

/* Where the index-th character of a text begins, in bytes; and which one begins at a byte. */
size_t chars_offset(const struct string *text, size_t index);
size_t chars_index(const struct string *text, size_t offset);

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
size_t chars_to(chars_case how, int32_t code, int32_t out[3]);

#endif
