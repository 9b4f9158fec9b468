/* Inside core/text: a text on its way to ids: its pieces. */
#ifndef TENON_CORE_TEXT_SPANS_H
#define TENON_CORE_TEXT_SPANS_H

#include "text/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct span {
    size_t start, end;
    int64_t id; /* of an added token; -1: text, which may be empty                                */
} span;

typedef struct pieces {
    buffer text;
    span *spans;
    size_t count, capacity;
    size_t origin; /* text before here comes from the first character of the input              */
} pieces;

bool buffer_add_piece(pieces *p, size_t start, size_t end, int64_t id);
/* Appends text as a piece of its own. */
bool buffer_append_piece(pieces *p, const char *text, size_t length, int64_t id);
void buffer_free_pieces(pieces *p);

#endif
