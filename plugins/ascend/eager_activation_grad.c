/* Activation functions with their derivatives. Where a function has become flat, far from zero, its derivative is that
 * of a nearer place, so that no power overflows. */
#include "eager_activation_grad.h"
#include "operators.h"
#include "scalar.h"

#include <math.h>

#define FLAT 32.0f /* beyond this the functions are x, 0 or 1, and their derivatives 1 or 0               */
#define SQRT_2_OVER_PI 0.7978845608028654f
#define CUBE 0.044715f

tn_status act_grad_declines(tn_act act, tn_error *err)
{
    switch (act) {
    case TN_ACT_SILU:
    case TN_ACT_QUICK_GELU:
    case TN_ACT_SIGMOID:
    case TN_ACT_LINEAR:
        return TN_OK;
    case TN_ACT_GELU_TANH:
    case TN_ACT_GELU_NEW:
        return npu_needs("aclnnTanh aclnnClamp", err);
    case TN_ACT_GELU:
        return npu_needs("aclnnErf aclnnExp aclnnClamp", err);
    case TN_ACT_RELU:
    case TN_ACT_RELU2:
        return npu_needs("aclnnRelu aclnnGeScalar aclnnSWhere", err);
    case TN_ACT_RELU6:
        return npu_needs("aclnnClamp aclnnGeScalar aclnnSWhere", err);
    case TN_ACT_TANH:
        return npu_needs("aclnnTanh", err);
    case TN_ACT_MISH:
        return npu_needs("aclnnTanh aclnnSoftplus aclnnClamp", err);
    case TN_ACT_CLAMPED_SWIGLU:
        return npu_needs("aclnnClamp aclnnGeScalar aclnnSWhere", err);
    default:
        break;
    }
    return tn_fail(err, TN_DECLINED, "npu", "act: the gradients of %s are not there yet",
                   tn_axis_value_name(TN_AXIS_ACT, (int32_t)act));
}

/* y = a - x */
static void less(npu_run *r, float a, const tn_tensor *x, const tn_tensor *y)
{
    npu_multiply_number(r, *x, -1, *y);
    npu_add_number(r, *y, a, *y);
}

void grad_close(npu_run *r, const tn_tensor *x, const tn_tensor *y)
{
    tn_tensor closed = npu_take_like(r, TN_BOOL, *x), negative = npu_take_like(r, TN_F32, *x);
    tn_tensor zero = npu_take(r, TN_F32, 1, (int64_t[]){1});
    npu_fill(r, zero, 0);
    npu_multiply_number(r, *x, -1, negative);
    npu_not_below(r, negative, 0, closed);
    npu_choose(r, closed, zero, *y, *y);
}

/* x s and s + factor x s (1 - s), s = sigmoid(factor x). */
static void steep_silu(npu_run *r, float factor, const tn_tensor *x, const tn_tensor *value, const tn_tensor *slope)
{
    tn_tensor s = npu_take_like(r, TN_F32, *x);
    npu_multiply_number(r, *x, factor, s);
    npu_sigmoid(r, s, s);
    npu_multiply(r, *x, s, *value);
    less(r, 1, &s, slope);
    npu_multiply(r, *slope, *value, *slope);
    npu_add(r, s, *slope, factor, *slope);
}

/* x h and h + 2 x h (1 - h) u', h = (1 + tanh(u)) / 2, u = sqrt(2/pi) (x + 0.044715 x^3). */
static void gelu_tanh(npu_run *r, const tn_tensor *x, const tn_tensor *value, const tn_tensor *slope)
{
    tn_tensor c = npu_take_like(r, TN_F32, *x), u = npu_take_like(r, TN_F32, *x), h = npu_take_like(r, TN_F32, *x);
    npu_clamp(r, *x, -FLAT, FLAT, c);
    npu_multiply(r, c, c, h);
    npu_multiply_number(r, h, 3 * CUBE, *slope);
    npu_add_number(r, *slope, 1, *slope);
    npu_multiply(r, h, c, u);
    npu_add(r, c, u, CUBE, u);
    npu_multiply_number(r, u, SQRT_2_OVER_PI, u);
    npu_tanh(r, u, h);
    npu_multiply(r, *slope, c, *slope);
    npu_multiply_number(r, *slope, SQRT_2_OVER_PI / 2, *slope);
    npu_multiply(r, h, h, u);
    less(r, 1, &u, &u);
    npu_multiply(r, *slope, u, *slope);
    npu_add_number(r, h, 1, h);
    npu_multiply_number(r, h, 0.5f, h);
    npu_multiply(r, *x, h, *value);
    npu_add(r, *slope, h, 1, *slope);
}

/* x h and h + x density(x), h the normal distribution function. */
static void gelu(npu_run *r, const tn_tensor *x, const tn_tensor *value, const tn_tensor *slope)
{
    tn_tensor c = npu_take_like(r, TN_F32, *x), h = npu_take_like(r, TN_F32, *x);
    npu_clamp(r, *x, -FLAT, FLAT, c);
    npu_multiply(r, c, c, *slope);
    npu_multiply_number(r, *slope, -0.5f, *slope);
    npu_exp(r, *slope, *slope);
    npu_multiply_number(r, *slope, 0.39894228040143268f, *slope);
    npu_multiply(r, *slope, c, *slope);
    npu_multiply_number(r, c, 0.70710678118654752f, c);
    npu_erf(r, c, h);
    npu_add_number(r, h, 1, h);
    npu_multiply_number(r, h, 0.5f, h);
    npu_multiply(r, *x, h, *value);
    npu_add(r, *slope, h, 1, *slope);
}

/* relu(x), and 1 or 0. */
static void relu(npu_run *r, const tn_tensor *x, const tn_tensor *value, const tn_tensor *slope)
{
    npu_relu(r, *x, *value);
    npu_fill(r, *slope, 1);
    grad_close(r, x, slope);
}

static void relu6(npu_run *r, const tn_tensor *x, const tn_tensor *value, const tn_tensor *slope)
{
    tn_tensor room = npu_take_like(r, TN_F32, *x);
    npu_fill(r, *slope, 1);
    grad_close(r, x, slope);
    less(r, 6, x, &room);
    grad_close(r, &room, slope);
    npu_clamp(r, *x, 0, 6, *value);
}

/* x t and t + x s (1 - t^2), t = tanh(softplus(x)), s = sigmoid(x). */
static void mish(npu_run *r, const tn_tensor *x, const tn_tensor *value, const tn_tensor *slope)
{
    tn_tensor c = npu_take_like(r, TN_F32, *x), t = npu_take_like(r, TN_F32, *x);
    npu_clamp(r, *x, -4 * FLAT, 4 * FLAT, c);
    npu_softplus(r, c, 20, t);
    npu_tanh(r, t, t);
    npu_sigmoid(r, c, *slope);
    npu_multiply(r, *slope, c, *slope);
    npu_multiply(r, t, t, c);
    less(r, 1, &c, &c);
    npu_multiply(r, *slope, c, *slope);
    npu_add(r, *slope, t, 1, *slope);
    npu_multiply(r, *x, t, *value);
}

/* s and s (1 - s), or t and 1 - t^2. */
static void curve(npu_run *r, tn_act act, const tn_tensor *x, const tn_tensor *value, const tn_tensor *slope)
{
    if (act == TN_ACT_SIGMOID) {
        npu_sigmoid(r, *x, *value);
        less(r, 1, value, slope);
        npu_multiply(r, *slope, *value, *slope);
    } else {
        npu_tanh(r, *x, *value);
        npu_multiply(r, *value, *value, *slope);
        less(r, 1, slope, slope);
    }
}

void act_grad(npu_run *r, tn_act act, const tn_tensor *x, tn_tensor *value, tn_tensor *slope)
{
    *value = npu_take_like(r, TN_F32, *x);
    *slope = npu_take_like(r, TN_F32, *x);
    switch (act) {
    case TN_ACT_SILU:
        steep_silu(r, 1, x, value, slope);
        break;
    case TN_ACT_QUICK_GELU:
        steep_silu(r, 1.702f, x, value, slope);
        break;
    case TN_ACT_GELU_TANH:
    case TN_ACT_GELU_NEW:
        gelu_tanh(r, x, value, slope);
        break;
    case TN_ACT_GELU:
        gelu(r, x, value, slope);
        break;
    case TN_ACT_RELU:
    case TN_ACT_RELU2:
        relu(r, x, value, slope);
        if (act == TN_ACT_RELU2) {
            npu_multiply_number(r, *value, 2, *slope);
            npu_multiply(r, *value, *value, *value);
        }
        break;
    case TN_ACT_RELU6:
        relu6(r, x, value, slope);
        break;
    case TN_ACT_MISH:
        mish(r, x, value, slope);
        break;
    case TN_ACT_SIGMOID:
    case TN_ACT_TANH:
        curve(r, act, x, value, slope);
        break;
    default: /* TN_ACT_LINEAR; others are declined */
        npu_copy(r, *x, *value);
        npu_fill(r, *slope, 1);
        break;
    }
}

/* ---- gates -------------------------------------------------------------------------------------------------- */

/* 1, or 0 where x is beyond the limit. */
static tn_tensor within(npu_run *r, float limit, bool below, const tn_tensor *x)
{
    tn_tensor open = npu_take_like(r, TN_F32, *x), out = npu_take_like(r, TN_BOOL, *x);
    tn_tensor zero = npu_take(r, TN_F32, 1, (int64_t[]){1});
    npu_fill(r, zero, 0);
    npu_fill(r, open, 1);
    npu_above(r, *x, limit, out);
    npu_choose(r, out, zero, open, open);
    npu_below(r, *x, -limit, out);
    if (below)
        npu_choose(r, out, zero, open, open);
    return open;
}

/* value = rnd(G s), slope = s + A G s (1 - s), up = rnd(U + 1), G = min(gate, L), U = clamp(up, -L, L), s = sigmoid(A
 * G); both closed beyond the limits. */
static glu_terms clamped_terms(npu_run *r, const tn_site *site, tn_dtype dtype, const tn_tensor *gate,
                               const tn_tensor *up)
{
    float limit = scalar_round((float)site->num[TN_NUM_LIMIT], dtype);
    tn_tensor g = npu_take_like(r, TN_F32, *gate), open = within(r, limit, false, gate);
    glu_terms terms = {.value = npu_take_like(r, TN_F32, *gate),
                       .slope = npu_take_like(r, TN_F32, *gate),
                       .up = npu_take_like(r, TN_F32, *up),
                       .open = within(r, limit, true, up)};
    npu_clamp(r, *gate, -INFINITY, limit, g);
    npu_clamp(r, *up, -limit, limit, terms.up);
    steep_silu(r, (float)site->num[TN_NUM_ALPHA], &g, &terms.value, &terms.slope);
    npu_multiply(r, terms.slope, open, terms.slope);
    npu_add_number(r, terms.up, 1, terms.up);
    grad_round(r, &terms.up, dtype);
    grad_round(r, &terms.value, dtype);
    return terms;
}

glu_terms glu_grad_terms(npu_run *r, const tn_site *site, tn_dtype dtype, const tn_tensor *gate, const tn_tensor *up)
{
    tn_act act = (tn_act)site->meaning[TN_AXIS_ACT];
    if (act == TN_ACT_CLAMPED_SWIGLU)
        return clamped_terms(r, site, dtype, gate, up);
    glu_terms terms = {.up = *up};
    act_grad(r, act, gate, &terms.value, &terms.slope);
    grad_round(r, &terms.value, dtype);
    return terms;
}
