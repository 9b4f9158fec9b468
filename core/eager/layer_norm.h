/* Inside core/eager: what LAYER_NORM and its gradients share. */
#ifndef TENON_CORE_EAGER_LAYER_NORM_H
#define TENON_CORE_EAGER_LAYER_NORM_H

#include "eager/rows.h"

/* Of one row: n = (x - mean) scale. */
typedef struct layer_norm_row {
    float mean, scale;
} layer_norm_row;

layer_norm_row layer_norm_statistics(const tn_tensor *x, int64_t row, float eps);

/* Forward, beside backward in layer_norm_grad.c, where the operation is put together. */
tn_status layer_norm_forward(const tn_call *call, tn_error *err);

#endif
