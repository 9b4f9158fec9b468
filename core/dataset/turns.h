/* Inside core: a conversation as samples. */
#ifndef TENON_CORE_TURNS_H
#define TENON_CORE_TURNS_H

#include "dataset/messages.h"

/* A sample for each answer, or one, as the reader's options say. */
tn_status turns_read(const record_reader *reader, const messages *m, samples *to, tn_error *err);

/* A text with what of it is learnt: bytes of it, in order. They are tokens of their own: where tokens of the whole text
 * would lie across a border, it is cut there, as it is when the model answers. */
typedef struct turns_range {
    size_t begin, end;
} turns_range;

tn_status turns_add(const record_reader *reader, const char *text, size_t length, const turns_range *ranges,
                    size_t count, samples *to, tn_error *err);

#endif
