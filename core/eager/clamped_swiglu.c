/* TN_ACT_CLAMPED_SWIGLU, an activation of gate and up together, with the roundings of its modeling file:
 *
 *     G = min(gate, L), U = clamp(up, -L, L), s = rnd(sigmoid(rnd(A G))), a = rnd(G s), p = rnd(rnd(U + 1) a)
 *
 * Where gate or up is cut off no gradient comes back to it. L is rounded to the model's dtype, A is not. */
#include "eager/vec.h"

/* Comparisons let a NaN through. */
CLONES static void clamp_pair(float *gate, float *up, int64_t n, float limit)
{
    for (int64_t i = 0; i < n; i++) {
        gate[i] = gate[i] > limit ? limit : gate[i];
        up[i] = up[i] > limit ? limit : up[i];
        up[i] = up[i] < -limit ? -limit : up[i];
    }
}

/* s from the clamped gate. */
static void sigmoid_of(tn_dtype dtype, float alpha, const float *gate, float *s, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        s[i] = gate[i] * alpha;
    vec_round(s, n, dtype);
    vec_act(TN_ACT_SIGMOID, dtype, s, n);
}

void vec_clamped_swiglu(const vec_clamp *clamp, tn_dtype dtype, float *gate, float *up, int64_t n)
{
    float s[VEC_CHUNK];
    clamp_pair(gate, up, n, vec_round1(clamp->limit, dtype));
    sigmoid_of(dtype, clamp->alpha, gate, s, n);
    vec_mul_rounded(gate, s, n, dtype);
    for (int64_t i = 0; i < n; i++)
        up[i] += 1.0f;
    vec_round(up, n, dtype);
    vec_mul_rounded(gate, up, n, dtype);
}

/* dU = rnd(dp a); da = rnd(dp (U + 1)); dG = rnd(da s) + rnd(A rnd(ds s (1 - s))), ds = rnd(da G). */
void vec_clamped_swiglu_grad(const vec_clamp *clamp, tn_dtype dtype, float *gate, float *up, const float *dp, int64_t n)
{
    float s[VEC_CHUNK], a[VEC_CHUNK], g[VEC_CHUNK], u[VEC_CHUNK], limit = vec_round1(clamp->limit, dtype);
    memcpy(g, gate, (size_t)n * sizeof *g);
    memcpy(u, up, (size_t)n * sizeof *u);
    clamp_pair(g, u, n, limit);
    sigmoid_of(dtype, clamp->alpha, g, s, n);
    for (int64_t i = 0; i < n; i++) {
        a[i] = g[i] * s[i];
        u[i] += 1.0f;
    }
    vec_round(a, n, dtype);
    vec_round(u, n, dtype);
    vec_mul_rounded(a, dp, n, dtype); /* dU */
    vec_mul_rounded(u, dp, n, dtype); /* da */
    vec_mul_rounded(g, u, n, dtype);  /* ds */
    for (int64_t i = 0; i < n; i++)
        g[i] = g[i] * s[i] * (1.0f - s[i]);
    vec_round(g, n, dtype);
    vec_scale_rounded(g, n, clamp->alpha, dtype);
    vec_mul_rounded(u, s, n, dtype);
    vec_add_rounded(g, u, n, dtype);
    for (int64_t i = 0; i < n; i++) {
        gate[i] = gate[i] > limit ? 0.0f : g[i];
        up[i] = up[i] > limit || up[i] < -limit ? 0.0f : a[i];
    }
}
