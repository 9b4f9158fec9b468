/* Inside core: small questions about tensors. */
#ifndef TENON_CORE_TENSOR_H
#define TENON_CORE_TENSOR_H

#include <tenon/tensor.h>

#include <stdbool.h>

/* A type that operations compute with: f32, bf16 or f16. */
bool tensor_is_float(tn_dtype dtype);

/* Is it a tensor that can be: its shape, its strides, and its type where it has data? Otherwise TN_E_USAGE. */
tn_status tensor_check(const tn_tensor *tensor, const char *name, tn_error *err);

/* "[3,40]"; cut short where it does not fit. */
void tensor_shape_text(int32_t ndim, const int64_t *shape, char *text, size_t size);

/* Dense, of such a type? */
bool tensor_is_plain(const tn_tensor *tensor);

/* Elements side by side along the last dimension. */
bool tensor_is_dense_last(const tn_tensor *tensor);

/* Where a row lies: the elements along the last dimension, counted in the order of the other dimensions. */
const char *tensor_row(const tn_tensor *tensor, int64_t row);

/* Bytes of a dense tensor of this type and shape, up to the next multiple of 64; SIZE_MAX: more than there can be. */
size_t tensor_padded_bytes(const tn_tensor *tensor);

#endif
