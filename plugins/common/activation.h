/* The activations of gated MLPs and their slopes, the plain way: in double. */
#ifndef ACTIVATION_H
#define ACTIVATION_H

#include <math.h>
#include <tenon/kernel.h>

/* x over 1 + e^-v, v being x itself or, since (1 + tanh(u)) / 2 is 1 / (1 + e^-2u), 2 sqrt(2/pi) (x + 0.044715 x^3); or
 * x times the normal distribution function. Minus infinity gives NaN, as in eager. Other activations than these
 * (TN_ACT_SILU, TN_ACT_GELU_TANH, TN_ACT_GELU) are linear. */
static inline double activation(tn_act act, double x)
{
    if (act == TN_ACT_SILU)
        return x / (1 + exp(-x));
    if (act == TN_ACT_GELU_TANH)
        return x / (1 + exp(-1.5957691216057307118 * x * (1 + 0.044715 * x * x)));
    if (act == TN_ACT_GELU)
        return 0.5 * x * erfc(-0.70710678118654752440 * x);
    return x;
}

/* Far out the slopes of gelu are 1 and 0, infinity included. */
static inline double activation_slope(tn_act act, double x)
{
    if (act == TN_ACT_SILU) {
        double s = 1 / (1 + exp(-x));
        return s * (1 + x * (1 - s));
    }
    double c = x > 40 ? 40 : x < -40 ? -40 : x;
    if (act == TN_ACT_GELU_TANH) {
        double e = exp(-1.5957691216057307118 * c * (1 + 0.044715 * c * c)), s = 1 / (1 + e);
        return s + (s > 0 ? c * (1.5957691216057307118 * (1 + 0.134145 * c * c)) * s * s * e : 0);
    }
    if (act == TN_ACT_GELU)
        return 0.5 * erfc(-0.70710678118654752440 * c) + 0.39894228040143267794 * c * exp(-0.5 * c * c);
    return 1;
}

#endif
