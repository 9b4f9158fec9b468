/* Vectors of one float, for plain C references of what is written over vectors: see vec_avx512.h. */
#ifndef TENON_COMMON_VEC_SCALAR_H
#define TENON_COMMON_VEC_SCALAR_H

#include "scalar.h"

#define VEC_LANES 1
typedef float vec;

#include "vec_common.h"

VEC_INLINE vec vec_set(float value)
{
    return value;
}

/* Rounded twice. */
VEC_INLINE vec vec_fma(vec a, vec b, vec c)
{
    return a * b + c;
}

VEC_INLINE float vec_sum(vec a)
{
    return a;
}

VEC_INLINE vec vec_load(const char *p, tn_dtype dtype)
{
    return scalar_load(p, 0, dtype);
}

VEC_INLINE void vec_store(char *p, tn_dtype dtype, vec a)
{
    scalar_store(p, 0, dtype, a);
}

#endif
