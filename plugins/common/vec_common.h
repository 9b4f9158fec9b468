/* What the forms of vec_avx512.h have in common, whatever a vec is. For them alone, which have typedef'd it. */
#ifndef TENON_COMMON_VEC_COMMON_H
#define TENON_COMMON_VEC_COMMON_H

#include <tenon/kernel.h>

#define VEC_INLINE static inline __attribute__((always_inline))
#define VEC_OUTLINE __attribute__((noinline, unused)) static /* what is rare, or calls memcpy in any case */

VEC_INLINE vec vec_add(vec a, vec b)
{
    return a + b;
}

VEC_INLINE vec vec_sub(vec a, vec b)
{
    return a - b;
}

VEC_INLINE vec vec_mul(vec a, vec b)
{
    return a * b;
}

VEC_INLINE vec vec_div(vec a, vec b)
{
    return a / b;
}

/* 2 VEC_LANES consecutive elements. bf16: a holds those with even index, b those with odd index, which are one shift
 * and one mask away from memory. Other types: a holds the first half, b the second. */
#define PACK (2 * VEC_LANES)

typedef struct pack {
    vec a, b;
} pack;

#endif
