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

/* To the device; the host's memory may be reused at once. no_memory: there is none for it on the host. */
void npu_put(npu_run *r, void *device, const void *host, size_t bytes);
/* A copy of one type whose places change from token to token: dense tensors go without an operator. */
void npu_move(npu_run *r, tn_tensor x, tn_tensor y);
/* Where the device has this mask, or these constants, which are kept until others come: the same as for the layer
 * before in most models, and in the same place from token to token. NULL: it is too large for that, or r failed. */
void *npu_mask_of(npu_run *r, const void *mask, size_t bytes);
/* The mask of queries at positions q [T], none of which is negative, and keys at k [S] (i32, inputs of the model), as
 * TN_BOOL [T,S] that the device makes: true where a key is none (below 0), behind its query, or window (0: any number)
 * or more in front of it. Kept until something is uploaded. Takes scratch; NULL: not there, or r failed. */
void *npu_mask_made(npu_run *r, tn_tensor q, tn_tensor k, int64_t window);
/* 0, 1, 2, ... in out, f32 and dense, or where such a mask is that out is then. */
void npu_put_numbers(npu_run *r, tn_tensor *out);
void npu_no_memory(npu_run *r);

/* Views. part: elements first, first + step, ... of the last dimension. rows: [rows, width]; false where the rows do
 * not follow one stride. */
tn_tensor npu_part(tn_tensor t, int64_t first, int64_t step, int64_t count);
bool npu_rows(const tn_tensor *t, tn_tensor *rows);
/* Element index of the first dimension, without that. */
tn_tensor npu_member(const tn_tensor *t, int64_t index);
/* Of batch rows of tokens, [B,T,...]: so many rows and tokens from the first ones on. */
tn_tensor npu_tokens(const tn_tensor *t, int64_t row, int64_t rows, int64_t first, int64_t count);
/* A dense tensor's elements as rows of so many; width 0: in one dimension. */
tn_tensor npu_as_rows(const tn_tensor *t, int64_t rows, int64_t width);
/* Dimensions of stride 0, along which a tensor repeats itself, have one element then. */
tn_tensor npu_folded(const tn_tensor *t);

/* The single tensor of a role, or NULL; and whether the device reads its type. */
const tn_tensor *npu_param(const tn_site *site, tn_role role);
tn_status npu_supports_param(const tn_site *site, tn_role role, tn_error *err);
tn_status npu_supports_weights(const tn_site *site, tn_error *err); /* TN_ROLE_WEIGHT and TN_ROLE_BIAS      */

/* For supports: TN_DECLINED with the name of the first of these operators, with spaces between, that the installation
 * lacks. NULL: none is needed. [any thread] */
tn_status npu_needs(const char *operators, tn_error *err);

/* y = x / sqrt(mean(x^2) + eps) gamma, one rounding; y is not x. gamma [W] of x's type. */
void npu_rms(npu_run *r, tn_tensor x, tn_tensor gamma, double eps, tn_tensor y);
/* y = x / number; f32. */
void npu_divide_by(npu_run *r, tn_tensor x, float number, tn_tensor y);
/* wide, f32, as narrow's type holds it: by way of narrow, of the same shape, whose contents are lost. Nothing where
 * that is f32. */
void npu_round(npu_run *r, tn_tensor wide, tn_tensor narrow);
/* Itself, or a dense copy of that type: products do not mix types. */
tn_tensor npu_in_type(npu_run *r, tn_dtype type, const tn_tensor *t);

#endif
