/* Loops over f32 arrays that several operations share. */
#include "eager/vec.h"

#define LANES 16
#define WIDE_LANES 8 /* of double                                                                */

CLONES float vec_max(const float *x, int64_t n)
{
    float lane[LANES], best;
    uint32_t nan = 0;
    for (int l = 0; l < LANES; l++)
        lane[l] = x[0];
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
            nan |= x[i + l] != x[i + l];
        }
    best = x[0];
    for (int l = 0; l < LANES; l++)
        best = lane[l] > best ? lane[l] : best;
    for (; i < n; i++) {
        best = x[i] > best ? x[i] : best;
        nan |= x[i] != x[i];
    }
    return nan ? tn_f32_from_bits(0x7fc00000u) : best;
}

CLONES float vec_exp_sum(float *x, int64_t n, float max)
{
    float lane[LANES] = {0}, sum = 0.0f;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            x[i + l] = vec_exp(x[i + l] - max);
            lane[l] += x[i + l];
        }
    for (; i < n; i++) {
        x[i] = vec_exp(x[i] - max);
        sum += x[i];
    }
    for (int l = 0; l < LANES; l++)
        sum += lane[l];
    return sum;
}

CLONES void vec_scale(float *x, int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= factor;
}

CLONES static void scale_bf16(float *x, int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = tn_bf16_to_f32(tn_f32_to_bf16(tn_bf16_to_f32(tn_f32_to_bf16(x[i])) * factor));
}

CLONES static void scale_f16(float *x, int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = tn_f16_to_f32(tn_f32_to_f16(tn_f16_to_f32(tn_f32_to_f16(x[i])) * factor));
}

void vec_round_scale(float *x, int64_t n, float factor, tn_dtype dtype)
{
    if (dtype == TN_BF16)
        scale_bf16(x, n, factor);
    else if (dtype == TN_F16)
        scale_f16(x, n, factor);
    else
        vec_scale(x, n, factor);
}

CLONES void vec_div(float *x, int64_t n, float divisor)
{
    for (int64_t i = 0; i < n; i++)
        x[i] /= divisor;
}

CLONES void vec_add(float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
}

CLONES void vec_mul(float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= y[i];
}

CLONES void vec_add_scaled(float *x, const float *y, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i] * factor;
}

CLONES float vec_dot(const float *x, const float *y, int64_t n)
{
    float lane[LANES] = {0}, sum = 0.0f;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += x[i + l] * y[i + l];
    for (; i < n; i++)
        sum += x[i] * y[i];
    for (int l = 0; l < LANES; l++)
        sum += lane[l];
    return sum;
}

CLONES float vec_dot_bf16(const float *x, const void *y, int64_t n)
{
    float lane[LANES] = {0}, sum = 0.0f;
    const uint16_t *h = y;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += x[i + l] * tn_bf16_to_f32(h[i + l]);
    for (; i < n; i++)
        sum += x[i] * tn_bf16_to_f32(h[i]);
    for (int l = 0; l < LANES; l++)
        sum += lane[l];
    return sum;
}

CLONES void vec_add_scaled_bf16(float *x, const void *y, float factor, int64_t n)
{
    const uint16_t *h = y;
    for (int64_t i = 0; i < n; i++)
        x[i] += tn_bf16_to_f32(h[i]) * factor;
}

CLONES double vec_sum_wide(const float *x, int64_t n)
{
    double lane[WIDE_LANES] = {0}, sum = 0.0;
    int64_t i = 0;
    for (; i + WIDE_LANES <= n; i += WIDE_LANES)
        for (int l = 0; l < WIDE_LANES; l++)
            lane[l] += (double)x[i + l];
    for (; i < n; i++)
        sum += (double)x[i];
    for (int l = 0; l < WIDE_LANES; l++)
        sum += lane[l];
    return sum;
}

CLONES double vec_dot_wide(const float *x, const float *y, int64_t n)
{
    double lane[WIDE_LANES] = {0}, sum = 0.0;
    int64_t i = 0;
    for (; i + WIDE_LANES <= n; i += WIDE_LANES)
        for (int l = 0; l < WIDE_LANES; l++)
            lane[l] += (double)x[i + l] * (double)y[i + l];
    for (; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    for (int l = 0; l < WIDE_LANES; l++)
        sum += lane[l];
    return sum;
}

CLONES double vec_spread_wide(const float *x, double center, int64_t n)
{
    double lane[WIDE_LANES] = {0}, sum = 0.0;
    int64_t i = 0;
    for (; i + WIDE_LANES <= n; i += WIDE_LANES)
        for (int l = 0; l < WIDE_LANES; l++)
            lane[l] += ((double)x[i + l] - center) * ((double)x[i + l] - center);
    for (; i < n; i++)
        sum += ((double)x[i] - center) * ((double)x[i] - center);
    for (int l = 0; l < WIDE_LANES; l++)
        sum += lane[l];
    return sum;
}

CLONES static void round_bf16(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = tn_bf16_to_f32(tn_f32_to_bf16(x[i]));
}

CLONES static void round_f16(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = tn_f16_to_f32(tn_f32_to_f16(x[i]));
}

void vec_round(float *x, int64_t n, tn_dtype dtype)
{
    if (dtype == TN_BF16)
        round_bf16(x, n);
    else if (dtype == TN_F16)
        round_f16(x, n);
}
