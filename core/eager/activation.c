/* Activation functions. In bf16 and f16 an activation is computed in f32 and rounded once, except for those that
 * transformers composes of several operations, which round at each. */
#include "eager/vec.h"

#include <math.h>

#define SQRT_2_OVER_PI 0.7978845608028654f

CLONES static void act_silu(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] / (1.0f + vec_exp(-x[i]));
}

CLONES static void act_sigmoid(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = 1.0f / (1.0f + vec_exp(-x[i]));
}

CLONES static void act_tanh(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = vec_tanh(x[i]);
}

CLONES static void act_gelu_tanh(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float inner = SQRT_2_OVER_PI * (x[i] + 0.044715f * (x[i] * x[i] * x[i]));
        x[i] = 0.5f * x[i] * (1.0f + vec_tanh(inner));
    }
}

static void act_gelu(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] * 0.5f * (1.0f + erff(x[i] * 0.70710678118654752f));
}

static void act_mish(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] * tanhf(x[i] > 20.0f ? x[i] : log1pf(expf(x[i])));
}

/* The comparisons let a NaN through. */
CLONES static void act_relu(float *x, int64_t n, float top)
{
    for (int64_t i = 0; i < n; i++) {
        float y = x[i] < 0.0f ? 0.0f : x[i];
        x[i] = y > top ? top : y;
    }
}

/* x * sigmoid(1.702 x), three roundings. */
static void act_quick_gelu(tn_dtype dtype, float *x, int64_t n)
{
    float gate[VEC_CHUNK];
    for (int64_t i = 0; i < n; i++)
        gate[i] = 1.702f * x[i];
    vec_round(gate, n, dtype);
    act_sigmoid(gate, n);
    vec_round(gate, n, dtype);
    vec_mul(x, gate, n);
}

void vec_gelu_new_tanh(tn_dtype dtype, const float *x, float *t, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        t[i] = x[i] * x[i] * x[i];
    vec_round(t, n, dtype);
    vec_scale_rounded(t, n, 0.044715f, dtype);
    vec_add_rounded(t, x, n, dtype);
    vec_scale_rounded(t, n, SQRT_2_OVER_PI, dtype);
    act_tanh(t, n);
    vec_round(t, n, dtype);
}

/* 0.5 x (1 + t), rounded after every operation. */
static void act_gelu_new(tn_dtype dtype, float *x, int64_t n)
{
    float t[VEC_CHUNK];
    vec_gelu_new_tanh(dtype, x, t, n);
    for (int64_t i = 0; i < n; i++)
        t[i] += 1.0f;
    vec_round(t, n, dtype);
    vec_scale_rounded(x, n, 0.5f, dtype);
    vec_mul(x, t, n);
}

CLONES static void act_hard_swish(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float gate = x[i] + 3.0f < 0.0f ? 0.0f : x[i] + 3.0f;
        x[i] = x[i] * (gate > 6.0f ? 6.0f : gate) / 6.0f;
    }
}

CLONES static void act_leaky_relu(float slope, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] < 0.0f ? x[i] * slope : x[i];
}

static void act_gelu_10(float *x, int64_t n)
{
    act_gelu(x, n);
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] > 10.0f ? 10.0f : x[i];
}

void vec_laplace_inner(tn_dtype dtype, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] -= VEC_LAPLACE_MEAN;
    vec_round(x, n, dtype);
    vec_div(x, n, VEC_LAPLACE_WIDTH);
    vec_round(x, n, dtype);
}

/* The distribution function of a normal distribution, rounded after every operation. */
static void act_laplace(tn_dtype dtype, float *x, int64_t n)
{
    vec_laplace_inner(dtype, x, n);
    for (int64_t i = 0; i < n; i++)
        x[i] = erff(x[i]);
    vec_round(x, n, dtype);
    for (int64_t i = 0; i < n; i++)
        x[i] += 1.0f;
    vec_round(x, n, dtype);
    vec_scale_rounded(x, n, 0.5f, dtype);
}

static void act_sqrt_softplus(tn_dtype dtype, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] > 20.0f ? x[i] : log1pf(expf(x[i]));
    vec_round(x, n, dtype);
    for (int64_t i = 0; i < n; i++)
        x[i] = sqrtf(x[i]);
}

static void act_chunk(tn_act act, float slope, tn_dtype dtype, float *x, int64_t n)
{
    static void (*const plain[])(float *x, int64_t n) = {[TN_ACT_SILU] = act_silu,
                                                         [TN_ACT_GELU_TANH] = act_gelu_tanh,
                                                         [TN_ACT_GELU] = act_gelu,
                                                         [TN_ACT_SIGMOID] = act_sigmoid,
                                                         [TN_ACT_TANH] = act_tanh,
                                                         [TN_ACT_MISH] = act_mish,
                                                         [TN_ACT_HARD_SWISH] = act_hard_swish,
                                                         [TN_ACT_GELU_10] = act_gelu_10};
    if ((size_t)act < sizeof plain / sizeof *plain && plain[act])
        plain[act](x, n);
    else if (act == TN_ACT_RELU || act == TN_ACT_RELU2 || act == TN_ACT_RELU6)
        act_relu(x, n, act == TN_ACT_RELU6 ? 6.0f : INFINITY);
    else if (act == TN_ACT_LEAKY_RELU || act == TN_ACT_PRELU)
        act_leaky_relu(act == TN_ACT_PRELU ? slope : VEC_LEAK, x, n);
    else if (act == TN_ACT_QUICK_GELU)
        act_quick_gelu(dtype, x, n);
    else if (act == TN_ACT_GELU_NEW)
        act_gelu_new(dtype, x, n);
    else if (act == TN_ACT_LAPLACE)
        act_laplace(dtype, x, n);
    else if (act == TN_ACT_SQRT_SOFTPLUS)
        act_sqrt_softplus(dtype, x, n);
    if (act == TN_ACT_RELU2)
        vec_mul(x, x, n);
    vec_round(x, n, dtype);
}

void vec_act(tn_act act, tn_dtype dtype, float *x, int64_t n)
{
    vec_act_by(act, 0.0f, dtype, x, n);
}

void vec_act_by(tn_act act, float slope, tn_dtype dtype, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += VEC_CHUNK)
        act_chunk(act, slope, dtype, x + i, n - i < VEC_CHUNK ? n - i : VEC_CHUNK);
}
