/* Inside core/quantize: writing the values of tensors. */
#ifndef TENON_CORE_QUANTIZE_VALUES_H
#define TENON_CORE_QUANTIZE_VALUES_H

#include "base/output.h"
#include "quantize/importance.h"

/* Sums of squares: of what values are off by, and of values; then both weighed by importance, 0 without any. */
enum { QUANTIZE_SUMS = 4 };

/* Where to and how far. progress as in tn_quantize_options. */
typedef struct quantize_values {
    const shards *set;
    const float *factors;         /* the plan's                                                             */
    const importance *importance; /* or NULL                                                                */
    output *out;
    int (*progress)(void *ctx, const char *what, int64_t done, int64_t total);
    void *ctx;
    int64_t done, total;        /* values                                                                          */
    double sums[QUANTIZE_SUMS]; /* of the last tensor                                                       */
    int64_t unreached;          /* matrices of its stack without importance                                 */
    tn_error *err;
} quantize_values;

/* All of a tensor, and what keeps the next one aligned. */
tn_status quantize_values_write(quantize_values *v, const quantize_tensor *t);

#endif
