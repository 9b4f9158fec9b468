/* Inside core: conversions between f32, bf16 and f16. */
#ifndef TENON_CORE_CONVERT_H
#define TENON_CORE_CONVERT_H

#include <stdbool.h>
#include <tenon/tensor.h>

/* n elements between f32 and a dtype of f32, bf16, f16 (to nearest, ties to even), at any address. */
void convert_to_f32(const void *src, tn_dtype dtype, float *dst, int64_t n);
void convert_from_f32(const float *src, tn_dtype dtype, void *dst, int64_t n);

/* Is there a NaN or an infinity among n elements of f32, bf16 or f16, at any address? */
bool convert_has_unfinite(const void *src, tn_dtype dtype, int64_t n);

/* Is there a NaN or plus infinity? Minus infinity excludes a token where a model means it. */
bool convert_has_broken_logit(const float *logits, int64_t n);

#endif
