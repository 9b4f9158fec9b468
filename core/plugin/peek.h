/* Inside core/plugin: reading what a plugin points to, which may be nothing. */
#ifndef TENON_CORE_PEEK_H
#define TENON_CORE_PEEK_H

#include <stdbool.h>
#include <stddef.h>

/* Copies bytes; false: there is no such memory. */
bool peek_copy(void *to, const void *from, size_t bytes);

/* Copies a text with its NUL. false: no memory there, or it is longer than size - 1 bytes. */
bool peek_text(char *to, size_t size, const char *from);

/* Can a function be there: is it memory, and where that belongs to a library, is it code of it? */
bool peek_is_code(const void *function);

#endif
