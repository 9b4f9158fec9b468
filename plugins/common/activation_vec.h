/* The activations of activation.h for kernels that are written once for every instruction set: include vec_avx2.h or
 * vec_avx512.h first. Values are good to 5 units of the last place, slopes to 7 of the larger of their two terms. */
#ifndef ACTIVATION_VEC_H
#define ACTIVATION_VEC_H

#include <float.h>

typedef struct vec_curve {
    vec value, slope;
} vec_curve;

/* 1 / (1 + e^-v) times x, and its slope in x when v grows by dv. Where e^-v is infinite the quotient is 0. */
VEC_INLINE vec_curve vec_logistic(vec x, vec minus_v_exp, vec dv)
{
    vec one = vec_set(1.0f), e = minus_v_exp, s = vec_div(one, vec_add(one, e));
    vec rest = vec_mul(vec_min(vec_set(FLT_MAX), e), s); /* 1 - s, without cancellation */
    return (vec_curve){vec_div(x, vec_add(one, e)), vec_mul(s, vec_fma(vec_mul(x, dv), rest, one))};
}

/* Beyond +-11 the results are x and 0 to the last place; keeping within spares infinities in what follows. */
VEC_INLINE vec vec_within(vec x, float limit)
{
    return vec_max(vec_set(-limit), vec_min(vec_set(limit), x));
}

/* e^-v, v = 2 sqrt(2/pi) (x + 0.044715 x^3) in two parts, since the exponential turns the last places of v into the
 * first ones of its result: v = x (a + b x^2), with what each rounding took away. */
VEC_INLINE vec vec_gelu_tanh_exp(vec x)
{
    const vec a = vec_set(0x1.988454p+0f), b = vec_set(0x1.2444f2p-4f);
    vec square = vec_mul(x, x), square_rest = vec_fma(x, x, vec_sub(vec_set(0.0f), square));
    vec cubic = vec_mul(b, square), cubic_rest = vec_fma(b, square, vec_sub(vec_set(0.0f), cubic));
    cubic_rest = vec_fma(b, square_rest, vec_fma(vec_set(0x1.49b16ap-29f), square, cubic_rest));
    vec sum = vec_add(a, cubic), grown = vec_sub(sum, a);
    vec sum_rest = vec_add(vec_sub(a, vec_sub(sum, grown)), vec_sub(cubic, grown));
    sum_rest = vec_add(vec_add(sum_rest, vec_set(-0x1.857936p-25f)), cubic_rest);
    vec v = vec_mul(x, sum), v_rest = vec_fma(x, sum_rest, vec_fma(x, sum, vec_sub(vec_set(0.0f), v)));
    vec e = vec_exp(vec_sub(vec_set(0.0f), v));
    return vec_fnma(vec_min(vec_set(FLT_MAX), e), v_rest, e);
}

/* The normal distribution function of x and its density, from one exponential. Below 0 it is e^(-x^2/2) times a
 * function that only falls from 1/2 to 0.03: 1 / (a + 2.5) times a polynomial in a / (a + 2.5), a = |x|, fitted to
 * 2e-8. */
typedef struct vec_normal {
    vec below, density;
} vec_normal;

VEC_INLINE vec_normal vec_normal_of(vec x)
{
    static const float coefficient[] = {-0x1.4608d4p-4f, 0x1.1daa26p-2f, -0x1.3fae0ap-2f, 0x1.18ada8p-3f,
                                        -0x1.31cb6ap-3f, 0x1.ca2296p-5f, 0x1.2ae322p-2f,  0x1.5b5a86p-3f,
                                        -0x1.3e4ef4p+0f, 1.25f};
    vec a = vec_abs(x), half = vec_set(0.5f);
    vec square = vec_mul(a, a), rest = vec_fma(a, a, vec_sub(vec_set(0.0f), square));
    vec e = vec_exp(vec_mul(vec_set(-0.5f), square));
    e = vec_fnma(e, vec_mul(half, rest), e);
    vec inverse = vec_div(vec_set(1.0f), vec_add(a, vec_set(2.5f))), t = vec_mul(a, inverse);
    vec p = vec_set(coefficient[0]);
    for (int i = 1; i < 10; i++)
        p = vec_fma(p, t, vec_set(coefficient[i]));
    vec tail = vec_mul(vec_mul(e, inverse), p);
    return (vec_normal){vec_where_negative(x, tail, vec_sub(vec_set(1.0f), tail)), vec_mul(e, vec_set(0x1.988454p-2f))};
}

VEC_INLINE vec vec_activation(tn_act act, vec x)
{
    vec one = vec_set(1.0f), zero = vec_set(0.0f);
    if (act == TN_ACT_SILU)
        return vec_div(x, vec_add(one, vec_exp(vec_sub(zero, x))));
    if (act == TN_ACT_GELU_TANH)
        return vec_div(x, vec_add(one, vec_gelu_tanh_exp(vec_within(x, 11.0f))));
    if (act == TN_ACT_GELU)
        return vec_mul(x, vec_normal_of(vec_within(x, 14.5f)).below);
    return x;
}

VEC_INLINE vec_curve vec_activation_curve(tn_act act, vec x)
{
    vec one = vec_set(1.0f), zero = vec_set(0.0f);
    if (act == TN_ACT_SILU)
        return vec_logistic(x, vec_exp(vec_sub(zero, x)), one);
    if (act == TN_ACT_GELU_TANH) {
        vec c = vec_within(x, 11.0f), dv = vec_fma(vec_mul(c, c), vec_set(0x1.b6676cp-3f), vec_set(0x1.988454p+0f));
        vec e = vec_gelu_tanh_exp(c);
        return (vec_curve){vec_div(x, vec_add(one, e)), vec_logistic(c, e, dv).slope};
    }
    if (act == TN_ACT_GELU) {
        vec c = vec_within(x, 14.5f);
        vec_normal n = vec_normal_of(c);
        return (vec_curve){vec_mul(x, n.below), vec_fma(c, n.density, n.below)};
    }
    return (vec_curve){x, one};
}

#endif
