/* What the variants with vectors of 16 share. */
#ifndef CPU_ATTENTION_AVX512_H
#define CPU_ATTENTION_AVX512_H

#include "attention_exp2.h"
#include "product_avx512.h"

/* 2^a by a polynomial with terms coefficients; NaN passes max as its second operand. */
INLINE __m512 exp2_by(const float *coefficient, int terms, __m512 a)
{
    __m512 x = _mm512_max_ps(_mm512_set1_ps(-200.0f), a);
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(coefficient[0]);
    for (int i = 1; i < terms; i++)
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(coefficient[i]));
    return _mm512_scalef_ps(p, n);
}

#endif
