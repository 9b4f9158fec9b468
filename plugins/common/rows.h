/* Rows of strided tensors: [..., W] tensors of one shape, walked together as runs of rows that lie at constant steps.
 */
#ifndef TENON_COMMON_ROWS_H
#define TENON_COMMON_ROWS_H

#include <tenon/kernel.h>

#define ROWS_TENSORS 6

/* The leading dimensions, outermost first, merged where all tensors allow it. */
typedef struct rows {
    int32_t ndim, tensors;
    int64_t count, width;
    int64_t shape[TN_MAX_DIMS];
    ptrdiff_t step[ROWS_TENSORS][TN_MAX_DIMS]; /* bytes                                          */
    char *data[ROWS_TENSORS];
} rows;

static inline rows rows_of(const tn_tensor *const *tensors, int32_t count)
{
    rows r = {.ndim = 0, .tensors = count, .count = 1};
    const tn_tensor *first = tensors[0];
    r.width = first->shape[first->ndim - 1];
    for (int32_t d = 0; d < first->ndim - 1; d++) {
        if (first->shape[d] == 1)
            continue;
        /* This dimension continues the one before when stepping there is stepping through all of this one. */
        bool merges = r.ndim > 0;
        for (int32_t t = 0; t < count; t++) {
            ptrdiff_t step = (ptrdiff_t)(tensors[t]->stride[d] * (int64_t)tn_dtype_size(tensors[t]->dtype));
            r.step[t][r.ndim] = step;
            merges = merges && r.step[t][r.ndim - 1] == step * first->shape[d];
        }
        r.count *= first->shape[d];
        if (merges) {
            r.shape[r.ndim - 1] *= first->shape[d];
            for (int32_t t = 0; t < count; t++)
                r.step[t][r.ndim - 1] = r.step[t][r.ndim];
        } else {
            r.shape[r.ndim++] = first->shape[d];
        }
    }
    if (r.ndim == 0)
        r.shape[r.ndim++] = 1;
    for (int32_t t = 0; t < count; t++)
        r.data[t] = tensors[t]->data;
    return r;
}

/* Where rows row, row + 1, ... begin in each tensor, and how many follow at the innermost steps (at most end - row). */
static inline int64_t rows_run(const rows *r, int64_t row, int64_t end, char **at)
{
    int64_t inner = r->shape[r->ndim - 1], rest = row, run = inner - row % inner;
    for (int32_t t = 0; t < r->tensors; t++)
        at[t] = r->data[t];
    for (int32_t d = r->ndim - 1; d >= 0; d--) {
        int64_t i = rest % r->shape[d];
        rest /= r->shape[d];
        for (int32_t t = 0; t < r->tensors; t++)
            at[t] += i * r->step[t][d];
    }
    return run < end - row ? run : end - row;
}

#endif
