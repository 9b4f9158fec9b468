/* Inside core/text: bytes that grow, and arrays. */
#ifndef TENON_CORE_TEXT_BUFFER_H
#define TENON_CORE_TEXT_BUFFER_H

#include <tenon/error.h>

#include "text/doc.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct buffer {
    char *data; /* NULL while empty; not terminated                                             */
    size_t size, capacity;
    size_t limit; /* largest size, 0: the one of all buffers                                    */
    bool full;    /* the limit was in the way                                                   */
} buffer;

bool buffer_reserve(buffer *b, size_t extra);
/* The error for a buffer that could not grow: its limit, or memory. */
tn_status buffer_failed(const buffer *b, place at, tn_error *err);
/* What a step may make of a text of length bytes: 64 times as much, or 64 MB where that is more. */
size_t buffer_bound(size_t length);
bool buffer_add(buffer *b, const char *text, size_t length);
void buffer_free(buffer *b);

/* Grows an array of elements of the given size to hold at least need of them. Returns the new array or NULL, in which
 * case the old one still stands. */
void *buffer_grow(void *array, size_t *capacity, size_t need, size_t element);

#endif
