/* Inside core/quantize: writing the values of tensors. */
#ifndef TENON_CORE_QUANTIZE_VALUES_H
#define TENON_CORE_QUANTIZE_VALUES_H

#include "base/output.h"
#include "quantize/quantize.h"

/* Where to and how far. progress as in tn_quantize_options. */
typedef struct quantize_values {
    const shards *set;
    const float *factors; /* the plan's                                                                     */
    output *out;
    int (*progress)(void *ctx, const char *what, int64_t done, int64_t total);
    void *ctx;
    int64_t done, total; /* values                                                                          */
    double sums[2];      /* of the last tensor: squares of what its values are off by, and of them          */
    tn_error *err;
} quantize_values;

/* All of a tensor, and what keeps the next one aligned. */
tn_status quantize_values_write(quantize_values *v, const quantize_tensor *t);

#endif
