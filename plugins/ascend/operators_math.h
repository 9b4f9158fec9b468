/* Inside plugins/ascend: functions of elements, comparisons and sums beyond operators.h, which not every installation
 * of CANN has. As npu_ops.h, but tensors of numbers are f32 and those of truth TN_BOOL. What the chip makes of a NaN
 * is not written down: comparisons are taken to be false, and operators that choose the larger to hand it on, as the
 * CPU does. */
#ifndef ASCEND_OPERATORS_MATH_H
#define ASCEND_OPERATORS_MATH_H

#include "operators.h"

typedef enum npu_need {
    NPU_TANH = 1 << 0,
    NPU_ERF = 1 << 1,
    NPU_EXP = 1 << 2,
    NPU_SQRT = 1 << 3,
    NPU_RSQRT = 1 << 4,
    NPU_RELU = 1 << 5,
    NPU_SOFTPLUS = 1 << 6,
    NPU_CLAMP = 1 << 7,
    NPU_MAXIMUM = 1 << 8,
    NPU_ABOVE = 1 << 9,
    NPU_NOT_BELOW = 1 << 10,
    NPU_BELOW = 1 << 11,
    NPU_CHOOSE = 1 << 12,
    NPU_RUNNING_SUMS = 1 << 13,
    NPU_ADD_ROWS = 1 << 14
} npu_need;

/* For supports: TN_DECLINED with the name of the first operator of needs (NPU_... or'ed) that the installation lacks.
 * [any thread] */
tn_status npu_needs(uint32_t needs, tn_error *err);

/* y may be x, and x may have any strides. */
void npu_tanh(npu_run *r, tn_tensor x, tn_tensor y);
void npu_erf(npu_run *r, tn_tensor x, tn_tensor y);
void npu_exp(npu_run *r, tn_tensor x, tn_tensor y);
void npu_sqrt(npu_run *r, tn_tensor x, tn_tensor y);
void npu_rsqrt(npu_run *r, tn_tensor x, tn_tensor y); /* 1 / sqrt(x)                         */
void npu_relu(npu_run *r, tn_tensor x, tn_tensor y);

/* log(1 + e^x), and x itself above threshold. */
void npu_softplus(npu_run *r, tn_tensor x, float threshold, tn_tensor y);

/* x within low .. high; an infinity of its side is no bound. */
void npu_clamp(npu_run *r, tn_tensor x, float low, float high, tn_tensor y);

/* The larger of both, which broadcast. */
void npu_maximum(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor y);

/* y TN_BOOL of x's shape: x > number, x >= number, x < number. */
void npu_above(npu_run *r, tn_tensor x, float number, tn_tensor y);
void npu_not_below(npu_run *r, tn_tensor x, float number, tn_tensor y);
void npu_below(npu_run *r, tn_tensor x, float number, tn_tensor y);

/* y = a where condition (TN_BOOL) is true, else b; they broadcast. */
void npu_choose(npu_run *r, tn_tensor condition, tn_tensor a, tn_tensor b, tn_tensor y);

/* y_i = x_0 + ... + x_i along dimension dim; y is not x. The order of the sums is the chip's. */
void npu_running_sums(npu_run *r, tn_tensor x, int32_t dim, tn_tensor y);

/* y = x [N,W] with row i of rows [n,W], times factor, added to row ids[i] (i32 or i64, 0 .. N-1, which repeat). y is
 * not x, all dense. The order of the sums is the chip's. */
void npu_add_rows(npu_run *r, tn_tensor x, tn_tensor ids, tn_tensor rows, float factor, tn_tensor y);

#endif
