/* Inside core: composing text. */
#ifndef TENON_CORE_TEXT_H
#define TENON_CORE_TEXT_H

#include <tenon/error.h>

#include <stdbool.h>
#include <stddef.h>

/* snprintf for texts that may be cut short; returns the length written. */
size_t text_cut(char *out, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Copies a name from outside so that it can be shown: control characters, what changes the direction of writing and
 * bytes that are not UTF-8 become \xNN. What fits is copied whole characters at a time; returns the length written. */
size_t text_escape(char *out, size_t size, const char *in);

/* What a hexadecimal digit stands for; -1: it is none. */
int text_hex(char digit);

/* Is it UTF-8 without a NUL in it? */
bool text_is_clean(const char *text, size_t length);

/* A text that grows. When memory runs out it stays as it is and failed is set. Release data with free(). */
typedef struct text {
    char *data;
    size_t length, capacity;
    bool failed;
} text;

void text_add(text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_add_n(text *t, const char *data, size_t length);

/* "..." with the escapes of JSON, which are also those of DOT's quoted strings for the characters that names have.
 * What text_escape escapes is \uNNNN here; bytes that are not UTF-8 become U+FFFD. */
void text_add_quoted(text *t, const char *string);

/* Texts of its own, in order. */
typedef struct text_list {
    char **items;
    size_t count;
} text_list;

bool text_list_add(text_list *list, const char *string); /* a copy; false: no memory             */
void text_list_clear(text_list *list);

#endif
