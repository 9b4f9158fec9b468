/* cpu_attention, AVX-512. */
#include "attention_avx512.h"

#define VEC_ROWS 6
#define VEC_GROUPS 4
#define VEC_SUMS 16

INLINE vec vec_exp2(vec a)
{
    return exp2_by(attention_exp2_fine, 7, a);
}

INLINE void attention_transpose(vec v[VEC_LANES])
{
    __m512i w[VEC_LANES];
    for (int i = 0; i < VEC_LANES; i++)
        w[i] = _mm512_castps_si512(v[i]);
    transpose_16x16(w);
    for (int i = 0; i < VEC_LANES; i++)
        v[i] = _mm512_castsi512_ps(w[i]);
}

/* The sum of each of 16 vectors. */
INLINE vec attention_sums(const vec v[VEC_LANES])
{
    __m512 a[8], b[4], c[2];
    for (int i = 0; i < 8; i++)
        a[i] = _mm512_add_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]), _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 4; i++) {
        __m512d x = _mm512_castps_pd(a[2 * i]), y = _mm512_castps_pd(a[2 * i + 1]);
        b[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    for (int i = 0; i < 2; i++)
        c[i] = _mm512_add_ps(_mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x88),
                             _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(c[0], c[1], 0x88), _mm512_shuffle_f32x4(c[0], c[1], 0xdd));
}

#include "attention_vec.h"
#include "attention_grad_vec.h"

void attention_init_avx512(attention_kernels *kernels)
{
    attention_init_vec(kernels);
}

void attention_grad_init_avx512(attention_grad_kernels *kernels)
{
    attention_grad_init_vec(kernels);
}
