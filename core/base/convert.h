/* Inside core: conversions between f32, bf16 and f16. */
#ifndef TENON_CORE_CONVERT_H
#define TENON_CORE_CONVERT_H

#include <tenon/tensor.h>

/* n elements between f32 and a dtype of f32, bf16, f16 (to nearest, ties to even), at any address. */
void convert_to_f32(const void *src, tn_dtype dtype, float *dst, int64_t n);
void convert_from_f32(const float *src, tn_dtype dtype, void *dst, int64_t n);

#endif
