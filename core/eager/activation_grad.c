/* Derivatives of the activation functions. As forward: in bf16 and f16 a derivative times the upstream gradient is
 * computed in f32 and rounded once, except for the functions that transformers composes of several operations, where
 * each operation's gradient is rounded. */
#include "eager/vec.h"

#include <math.h>

#define SQRT_2_OVER_PI 0.7978845608028654f

/* s (1 + x (1 - s)), s = sigmoid(x). Where the exponential overflows s is 0, and so is the derivative. */
CLONES static void grad_silu(const float *x, float *g, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float s = 1.0f / (1.0f + vec_exp(-x[i]));
        g[i] = g[i] * (s * (1.0f + x[i] * (1.0f - s)));
    }
}

/* s (1 - s) and 1 - t^2 of the function's rounded value, which is what automatic differentiation keeps. */
CLONES static void grad_from_sigmoid(const float *s, float *g, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        g[i] = g[i] * (1.0f - s[i]) * s[i];
}

CLONES static void grad_from_tanh(const float *t, float *g, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        g[i] = g[i] * (1.0f - t[i] * t[i]);
}

static void grad_of_value(tn_act act, tn_dtype dtype, const float *x, float *g, int64_t n)
{
    float y[VEC_CHUNK];
    memcpy(y, x, (size_t)n * sizeof *y);
    vec_act(act, dtype, y, n);
    if (act == TN_ACT_SIGMOID)
        grad_from_sigmoid(y, g, n);
    else
        grad_from_tanh(y, g, n);
}

/* 0.5 (1 + t) + 0.5 x (1 - t^2) u', t = tanh(u), u = sqrt(2/pi) (x + 0.044715 x^3). */
CLONES static void grad_gelu_tanh(const float *x, float *g, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float x2 = x[i] * x[i], t = vec_tanh(SQRT_2_OVER_PI * (x[i] + 0.044715f * (x2 * x[i])));
        float slope = SQRT_2_OVER_PI * (1.0f + 3.0f * 0.044715f * x2);
        /* Far out 1 - t^2 is 0 while x^3 may be infinite. */
        float inner = t * t < 1.0f ? 0.5f * x[i] * (1.0f - t * t) * slope : 0.0f;
        g[i] = g[i] * (0.5f * (1.0f + t) + inner);
    }
}

/* The normal distribution function, and x times its density. */
static void grad_gelu(const float *x, float *g, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float below = 0.5f * (1.0f + erff(x[i] * 0.70710678118654752f));
        float density = 0.39894228040143268f * expf(-0.5f * x[i] * x[i]);
        g[i] = g[i] * (below + (density > 0.0f ? x[i] * density : 0.0f));
    }
}

/* t + x s (1 - t^2), t = tanh(softplus(x)), s = sigmoid(x). */
static void grad_mish(const float *x, float *g, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float t = tanhf(x[i] > 20.0f ? x[i] : log1pf(expf(x[i]))), s = 1.0f / (1.0f + expf(-x[i]));
        float rest = s * (1.0f - t * t);
        g[i] = g[i] * (t + (rest != 0.0f ? x[i] * rest : 0.0f));
    }
}

/* Passes between 0 and top, both excluded; a NaN passes, as it does forward. */
CLONES static void grad_relu(const float *x, float *g, int64_t n, float top)
{
    for (int64_t i = 0; i < n; i++)
        g[i] = x[i] <= 0.0f || x[i] >= top ? 0.0f : g[i];
}

CLONES static void grad_relu2(const float *x, float *g, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        g[i] = x[i] <= 0.0f ? 0.0f : g[i] * (2.0f * x[i]);
}

/* y = x s, s = sigmoid(z), z = 1.702 x: dx = g s + 1.702 (g x) s (1 - s). */
static void grad_quick_gelu(tn_dtype dtype, const float *x, float *g, int64_t n)
{
    float s[VEC_CHUNK], ds[VEC_CHUNK];
    for (int64_t i = 0; i < n; i++) {
        s[i] = 1.702f * x[i];
        ds[i] = g[i] * x[i];
    }
    vec_round(s, n, dtype);
    vec_act(TN_ACT_SIGMOID, dtype, s, n);
    vec_round(ds, n, dtype);
    grad_from_sigmoid(s, ds, n);
    vec_round(ds, n, dtype);
    vec_scale_rounded(ds, n, 1.702f, dtype);
    vec_mul_rounded(g, s, n, dtype);
    vec_add(g, ds, n);
}

/* y = (0.5 x)(1 + t): dx = 0.5 g (1 + t) + v + 0.044715 v (3 x^2), v = sqrt(2/pi) (1 - t^2) (g 0.5 x). */
static void grad_gelu_new(tn_dtype dtype, const float *x, float *g, int64_t n)
{
    float t[VEC_CHUNK], v[VEC_CHUNK], cube[VEC_CHUNK];
    vec_gelu_new_tanh(dtype, x, t, n); /* as forward rounds it */
    for (int64_t i = 0; i < n; i++)
        v[i] = 0.5f * x[i];
    vec_round(v, n, dtype);
    vec_mul_rounded(v, g, n, dtype);
    grad_from_tanh(t, v, n);
    vec_round(v, n, dtype);
    vec_scale_rounded(v, n, SQRT_2_OVER_PI, dtype);
    for (int64_t i = 0; i < n; i++) {
        cube[i] = x[i] * x[i];
        t[i] += 1.0f;
    }
    vec_round(t, n, dtype);
    vec_mul_rounded(g, t, n, dtype);
    vec_round_scale(cube, n, 3.0f, dtype);
    memcpy(t, v, (size_t)n * sizeof *t);
    vec_scale_rounded(t, n, 0.044715f, dtype);
    vec_mul_rounded(cube, t, n, dtype);
    vec_add_rounded(v, cube, n, dtype);
    vec_scale_rounded(g, n, 0.5f, dtype);
    vec_add(g, v, n);
}

/* A third of x and one half within -3 .. 3, which is the slope of the parabola. */
CLONES static void grad_hard_swish(const float *x, float *g, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float inside = g[i] * (x[i] / 3.0f + 0.5f);
        g[i] = x[i] <= -3.0f ? 0.0f : x[i] < 3.0f ? inside : g[i];
    }
}

CLONES static void grad_leaky_relu(float slope, const float *x, float *g, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        g[i] = x[i] > 0.0f ? g[i] : g[i] * slope;
}

/* Where gelu, as it is rounded, is beyond 10 nothing comes back. */
static void grad_gelu_10(tn_dtype dtype, const float *x, float *g, int64_t n)
{
    float y[VEC_CHUNK];
    memcpy(y, x, (size_t)n * sizeof *y);
    vec_act(TN_ACT_GELU, dtype, y, n);
    grad_gelu(x, g, n);
    for (int64_t i = 0; i < n; i++)
        g[i] = y[i] > 10.0f ? 0.0f : g[i];
}

/* y = 0.5 (1 + erf(z)), z = (x - mean) / width: dx = (g 0.5) 2/sqrt(pi) e^(-z^2) / width. */
static void grad_laplace(tn_dtype dtype, const float *x, float *g, int64_t n)
{
    float z[VEC_CHUNK];
    memcpy(z, x, (size_t)n * sizeof *z);
    vec_laplace_inner(dtype, z, n);
    vec_scale_rounded(g, n, 0.5f, dtype);
    for (int64_t i = 0; i < n; i++)
        z[i] *= z[i];
    vec_round(z, n, dtype);
    for (int64_t i = 0; i < n; i++)
        z[i] = expf(-z[i]);
    vec_round(z, n, dtype);
    vec_scale_rounded(z, n, 1.1283791670955126f, dtype);
    vec_mul_rounded(g, z, n, dtype);
    vec_div(g, n, VEC_LAPLACE_WIDTH);
}

/* y = sqrt(p), p = softplus(x): dx = rnd(g / rnd(2 y)) sigmoid(x); 0 where p is, as it is nearby. */
static void grad_sqrt_softplus(tn_dtype dtype, const float *x, float *g, int64_t n)
{
    float y[VEC_CHUNK];
    memcpy(y, x, (size_t)n * sizeof *y);
    vec_act(TN_ACT_SQRT_SOFTPLUS, dtype, y, n);
    vec_scale_rounded(y, n, 2.0f, dtype);
    for (int64_t i = 0; i < n; i++)
        g[i] = y[i] == 0.0f ? 0.0f : g[i] / y[i];
    vec_round(g, n, dtype);
    for (int64_t i = 0; i < n; i++)
        g[i] = x[i] > 20.0f ? g[i] : g[i] / (1.0f + expf(-x[i]));
}

static void grad_chunk(tn_act act, float slope, tn_dtype dtype, const float *x, float *g, int64_t n)
{
    static void (*const plain[])(const float *x, float *g, int64_t n) = {
        [TN_ACT_SILU] = grad_silu,   [TN_ACT_GELU_TANH] = grad_gelu_tanh, [TN_ACT_GELU] = grad_gelu,
        [TN_ACT_RELU2] = grad_relu2, [TN_ACT_MISH] = grad_mish,           [TN_ACT_HARD_SWISH] = grad_hard_swish};
    if ((size_t)act < sizeof plain / sizeof *plain && plain[act])
        plain[act](x, g, n);
    else if (act == TN_ACT_RELU || act == TN_ACT_RELU6)
        grad_relu(x, g, n, act == TN_ACT_RELU6 ? 6.0f : INFINITY);
    else if (act == TN_ACT_LEAKY_RELU || act == TN_ACT_PRELU)
        grad_leaky_relu(act == TN_ACT_PRELU ? slope : VEC_LEAK, x, g, n);
    else if (act == TN_ACT_QUICK_GELU)
        grad_quick_gelu(dtype, x, g, n);
    else if (act == TN_ACT_GELU_NEW)
        grad_gelu_new(dtype, x, g, n);
    else if (act == TN_ACT_SIGMOID || act == TN_ACT_TANH)
        grad_of_value(act, dtype, x, g, n);
    else if (act == TN_ACT_GELU_10)
        grad_gelu_10(dtype, x, g, n);
    else if (act == TN_ACT_LAPLACE)
        grad_laplace(dtype, x, g, n);
    else if (act == TN_ACT_SQRT_SOFTPLUS)
        grad_sqrt_softplus(dtype, x, g, n);
    vec_round(g, n, dtype);
}

void vec_act_grad(tn_act act, tn_dtype dtype, const float *x, float *g, int64_t n)
{
    vec_act_grad_by(act, 0.0f, dtype, x, g, n);
}

void vec_act_grad_by(tn_act act, float slope, tn_dtype dtype, const float *x, float *g, int64_t n)
{
    for (int64_t i = 0; i < n; i += VEC_CHUNK)
        grad_chunk(act, slope, dtype, x + i, g + i, n - i < VEC_CHUNK ? n - i : VEC_CHUNK);
}

void vec_glu_grad(tn_act act, float slope, tn_dtype dtype, float *gate, float *up, const float *dp, int64_t n)
{
    float a[VEC_CHUNK];
    memcpy(a, gate, (size_t)n * sizeof *a);
    vec_act_by(act, slope, dtype, a, n);
    vec_mul_rounded(up, dp, n, dtype);
    vec_act_grad_by(act, slope, dtype, gate, up, n);
    vec_mul_rounded(a, dp, n, dtype);
    memcpy(gate, up, (size_t)n * sizeof *gate);
    memcpy(up, a, (size_t)n * sizeof *up);
}
