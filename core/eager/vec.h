/* Inside core/eager: element types, rounding and the few functions of mathematics that every operation needs, written
 * so that the compiler can turn loops over them into vector instructions. */
#ifndef TENON_CORE_EAGER_VEC_H
#define TENON_CORE_EAGER_VEC_H

#include "base/clones.h"
#include "eager/eager.h"

/* Elements that a loop keeps on its stack at once. */
#define VEC_CHUNK 512

/* x rounded to dtype, as an f32. */
static inline float vec_round1(float x, tn_dtype dtype)
{
    if (dtype == TN_BF16)
        return tn_bf16_to_f32(tn_f32_to_bf16(x));
    if (dtype == TN_F16)
        return tn_f16_to_f32(tn_f32_to_f16(x));
    return x;
}

/* e^x within 1 ulp: x = n ln2 + r, a polynomial for e^r, and 2^n in two steps so that neither overflows early. */
static inline float vec_exp(float x)
{
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    float shifted = x * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: the integer n ends up in the low bits */
    float n = shifted - 12582912.0f;
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    uint32_t i = tn_f32_bits(shifted) - 0x4b400000u; /* n, two's complement                             */
    uint32_t half = (uint32_t)((int32_t)i >> 1);
    return p * tn_f32_from_bits((half + 127u) << 23) * tn_f32_from_bits((i - half + 127u) << 23);
}

/* tanh x within 2 ulp. */
static inline float vec_tanh(float x)
{
    float a = tn_f32_from_bits(tn_f32_bits(x) & 0x7fffffffu), x2 = x * x;
    float large = 1.0f - 2.0f / (vec_exp(2.0f * a) + 1.0f);
    float p = -5.70498872745e-3f;
    p = p * x2 + 2.06390887954e-2f;
    p = p * x2 - 5.37397155531e-2f;
    p = p * x2 + 1.33314422036e-1f;
    p = p * x2 - 3.33332819422e-1f;
    float small = p * x2 * a + a;
    return tn_f32_from_bits(tn_f32_bits(a < 0.625f ? small : large) | (tn_f32_bits(x) & 0x80000000u));
}

/* convert.c: rounds n values to dtype in place. */
void vec_round(float *x, int64_t n, tn_dtype dtype);

/* activation.c: x[i] = act(x[i]) with the roundings of a model of dtype, the last one included. */
void vec_act(tn_act act, tn_dtype dtype, float *x, int64_t n);

/* The same with the slope of TN_ACT_PRELU. */
void vec_act_by(tn_act act, float slope, tn_dtype dtype, float *x, int64_t n);

/* activation.c: t[i] = tanh(sqrt(2/pi) (x[i] + 0.044715 x[i]^3)), rounded after every operation. */
void vec_gelu_new_tanh(tn_dtype dtype, const float *x, float *t, int64_t n);

/* The slope of TN_ACT_LEAKY_RELU below 0; mean and, times sqrt(2), deviation of TN_ACT_LAPLACE. */
#define VEC_LEAK 0.01f
#define VEC_LAPLACE_MEAN 0.707107f
#define VEC_LAPLACE_WIDTH 0.39894257f

/* activation.c: x[i] = (x[i] - mean) / width, rounded after both. */
void vec_laplace_inner(tn_dtype dtype, float *x, int64_t n);

/* activation_grad.c: g[i] times the derivative of act at x[i], with the roundings of automatic differentiation in
 * dtype, the last one included. x holds numbers of dtype. */
void vec_act_grad(tn_act act, tn_dtype dtype, const float *x, float *g, int64_t n);
void vec_act_grad_by(tn_act act, float slope, tn_dtype dtype, const float *x, float *g, int64_t n); /* as vec_act_by */

/* activation_grad.c: gradients of p = rnd(rnd(act(gate)) up), in place: gate becomes dL/dgate and up dL/dup, given
 * dp = dL/dp; rounded. slope: vec_act_by's. n <= VEC_CHUNK. */
void vec_glu_grad(tn_act act, float slope, tn_dtype dtype, float *gate, float *up, const float *dp, int64_t n);

/* clamped_swiglu.c: TN_ACT_CLAMPED_SWIGLU: gate becomes p, up is spoilt; and its gradients, in place as those of
 * vec_glu_grad. n <= VEC_CHUNK. */
typedef struct vec_clamp {
    float limit, alpha;
} vec_clamp;
void vec_clamped_swiglu(const vec_clamp *clamp, tn_dtype dtype, float *gate, float *up, int64_t n);
void vec_clamped_swiglu_grad(const vec_clamp *clamp, tn_dtype dtype, float *gate, float *up, const float *dp,
                             int64_t n);

/* xielu.c: TN_ACT_XIELU of a site, and g[i] times its derivative at x[i], as vec_act_grad. */
typedef struct vec_xielu {
    float alpha_p, alpha_n, beta, eps;
} vec_xielu;
vec_xielu vec_xielu_of(const tn_site *site);
void vec_xielu_act(const vec_xielu *p, tn_dtype dtype, float *x, int64_t n);
void vec_xielu_grad(const vec_xielu *p, tn_dtype dtype, const float *x, float *g, int64_t n);

/* vec.c: largest value; NaN if there is one. n > 0. */
float vec_max(const float *x, int64_t n);

/* vec.c: x[i] = e^(x[i] - max), all in f32; returns their sum. */
float vec_exp_sum(float *x, int64_t n, float max);

/* vec.c: x *= factor; x /= divisor; x += y; x *= y; x += y * factor; the sum of x * y. */
void vec_scale(float *x, int64_t n, float factor);
void vec_div(float *x, int64_t n, float divisor);
void vec_add(float *x, const float *y, int64_t n);
void vec_mul(float *x, const float *y, int64_t n);
void vec_add_scaled(float *x, const float *y, float factor, int64_t n);
float vec_dot(const float *x, const float *y, int64_t n);

/* Operations of a model of dtype: the result is rounded. */
static inline void vec_scale_rounded(float *x, int64_t n, float factor, tn_dtype dtype)
{
    vec_scale(x, n, factor);
    vec_round(x, n, dtype);
}
static inline void vec_add_rounded(float *x, const float *y, int64_t n, tn_dtype dtype)
{
    vec_add(x, y, n);
    vec_round(x, n, dtype);
}
static inline void vec_mul_rounded(float *x, const float *y, int64_t n, tn_dtype dtype)
{
    vec_mul(x, y, n);
    vec_round(x, n, dtype);
}

/* vec.c: sums in double: of x; of x y; of (x - center)^2. */
double vec_sum_wide(const float *x, int64_t n);
double vec_dot_wide(const float *x, const float *y, int64_t n);
double vec_spread_wide(const float *x, double center, int64_t n);

/* vec.c: vec_add_scaled and vec_dot with y in bf16. */
void vec_add_scaled_bf16(float *x, const void *y, float factor, int64_t n);
float vec_dot_bf16(const float *x, const void *y, int64_t n);

/* vec.c: x = rnd(rnd(x) * factor). */
void vec_round_scale(float *x, int64_t n, float factor, tn_dtype dtype);

#endif
