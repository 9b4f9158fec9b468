/* Inside plugins/ascend: what one call of an operation does, as a function that is gone through to add up its scratch
 * and then performed; and what these functions share. */
#ifndef ASCEND_OPERATORS_H
#define ASCEND_OPERATORS_H

#include "eager.h"

size_t npu_measure(npu_body *body, const tn_call *call);
tn_status npu_perform(npu_body *body, const tn_call *call, tn_error *err);

/* The bytes of a tensor that no operation computes, with the tensor's strides: a shadow, or fetched into *owned, which
 * the caller frees. NULL after a failure. */
const void *npu_host_copy(npu_run *r, const tn_tensor *t, void **owned);

/* To the device; the host's memory may be reused at once. no_memory: there was none for it on the host. */
void npu_put(npu_run *r, void *device, const void *host, size_t bytes);
void npu_no_memory(npu_run *r);

/* Views. part: elements first, first + step, ... of the last dimension. rows: [rows, width]; false where the rows do
 * not follow one stride. */
tn_tensor npu_part(tn_tensor t, int64_t first, int64_t step, int64_t count);
bool npu_rows(const tn_tensor *t, tn_tensor *rows);

/* The single tensor of a role, or NULL; and whether the device reads its type. */
const tn_tensor *npu_param(const tn_site *site, tn_role role);
tn_status npu_supports_param(const tn_site *site, tn_role role, tn_error *err);

/* For supports: TN_DECLINED with the name of the first of these operators, with spaces between, that the installation
 * lacks. NULL: none is needed. [any thread] */
tn_status npu_needs(const char *operators, tn_error *err);

/* y = x / sqrt(mean(x^2) + eps) gamma, one rounding; y is not x. gamma [W] of x's type. */
void npu_rms(npu_run *r, tn_tensor x, tn_tensor gamma, double eps, tn_tensor y);

#endif
