/* Inside core: tensors of a trial as dense blocks with gaps between them. */
#ifndef TENON_CORE_LAYOUT_H
#define TENON_CORE_LAYOUT_H

#include <tenon/tensor.h>

#include <stdbool.h>

/* A tensor as a sequence of dense blocks: the dimension that strides is that of tokens. */
typedef struct layout {
    int64_t count, length, step;
} layout;

/* Sets the strides. padded: rows lie apart, as in a view of a wider tensor. */
layout layout_set(tn_tensor *t, bool padded);

size_t layout_bytes(const layout *b, tn_dtype dtype);

/* From a dense tensor into the blocks. */
void layout_copy(const layout *b, const tn_tensor *from, const tn_tensor *to);

/* Fills what lies between the blocks with a number in every floating type, so that reading it shows in the results;
 * and tells whether it is still there. */
void layout_fill_gaps(const layout *b, const tn_tensor *t);
bool layout_gaps_intact(const layout *b, const tn_tensor *t);

#endif
