/* TN_ACT_XIELU, with the roundings of its modeling file:
 *
 *     x > 0:  rnd(rnd(rnd(A x) x) + rnd(B x))
 *     else:   rnd(rnd(rnd(rnd(e^min(x, E) - 1) - x) N) + rnd(B x)) */
#include "eager/vec.h"

#include <math.h>

vec_xielu vec_xielu_of(const tn_site *site)
{
    return (vec_xielu){(float)site->num[TN_NUM_ALPHA], (float)site->num[TN_NUM_ALPHA_N], (float)site->num[TN_NUM_BETA],
                       (float)site->num[TN_NUM_EPS]};
}

/* The comparisons let a NaN through. */
static float below(const vec_xielu *p, float x)
{
    return x > p->eps ? p->eps : x;
}

void vec_xielu_act(const vec_xielu *p, tn_dtype dtype, float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float v = x[i], y;
        if (v > 0.0f)
            y = vec_round1(vec_round1(p->alpha_p * v, dtype) * v, dtype);
        else
            y = vec_round1(vec_round1(vec_round1(expm1f(below(p, v)), dtype) - v, dtype) * p->alpha_n, dtype);
        x[i] = vec_round1(y + vec_round1(p->beta * v, dtype), dtype);
    }
}

/* Above 0 2 A x + B, each factor's share rounded; else N (e^x - 1) + B, without e^x where it is cut. */
void vec_xielu_grad(const vec_xielu *p, tn_dtype dtype, const float *x, float *g, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float v = x[i], dy = g[i], line = vec_round1(dy * p->beta, dtype), dx;
        if (v > 0.0f) {
            float outer = vec_round1(dy * vec_round1(p->alpha_p * v, dtype), dtype);
            float inner = vec_round1(vec_round1(dy * v, dtype) * p->alpha_p, dtype);
            dx = vec_round1(outer + inner, dtype);
        } else {
            float u = vec_round1(dy * p->alpha_n, dtype);
            float e = v > p->eps ? 0.0f : vec_round1(u * (vec_round1(expm1f(v), dtype) + 1.0f), dtype);
            dx = vec_round1(e - u, dtype);
        }
        g[i] = vec_round1(dx + line, dtype);
    }
}
