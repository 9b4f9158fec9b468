/* Activation functions. Those that transformers composes of several operations are rounded at each, the others are in
 * f32 with one rounding. */
#include "activations.h"

#include "operators.h"
#include "scalar.h"

#include <math.h>

#define SQRT_2_OVER_PI 0.7978845608028654f

tn_status npu_act_supports(tn_act act, bool pairs, tn_error *err)
{
    static const char *const needs[] = {[TN_ACT_GELU] = "aclnnErf",
                                        [TN_ACT_RELU] = "aclnnRelu",
                                        [TN_ACT_RELU2] = "aclnnRelu",
                                        [TN_ACT_RELU6] = "aclnnClamp",
                                        [TN_ACT_GELU_NEW] = "aclnnTanh",
                                        [TN_ACT_TANH] = "aclnnTanh",
                                        [TN_ACT_MISH] = "aclnnTanh aclnnSoftplus",
                                        [TN_ACT_CLAMPED_SWIGLU] = "aclnnClamp",
                                        [TN_ACT_HARD_SWISH] = "aclnnClamp",
                                        [TN_ACT_LEAKY_RELU] = "aclnnClamp",
                                        [TN_ACT_LAPLACE] = "aclnnErf",
                                        [TN_ACT_GELU_10] = "aclnnErf aclnnClamp",
                                        [TN_ACT_XIELU] = "aclnnTanh aclnnClamp aclnnGtScalar aclnnSWhere",
                                        [TN_ACT_PRELU] = "aclnnClamp"};
    bool later = act > TN_ACT_GELU_10 && act != TN_ACT_XIELU && act != TN_ACT_PRELU;
    if (act < TN_ACT_SILU || later || (act == TN_ACT_CLAMPED_SWIGLU && !pairs))
        return tn_fail(err, TN_DECLINED, "npu", "act: %s is not there yet", tn_axis_value_name(TN_AXIS_ACT, act));
    return (size_t)act < sizeof needs / sizeof *needs ? npu_needs(needs[act], err) : TN_OK;
}

/* ---- one rounding ------------------------------------------------------------------------------------------- */

/* x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)) in f32, since (1 + tanh(u)) / 2 = sigmoid(2 u). */
static void gelu_tanh(npu_run *r, tn_tensor x, tn_tensor y)
{
    tn_tensor wide = npu_wide_copy(r, x), t = npu_take_like(r, TN_F32, x), cube = npu_take_like(r, TN_F32, x);
    npu_multiply(r, wide, wide, t);
    npu_multiply(r, t, wide, cube);
    npu_add(r, wide, cube, 0.044715f, t);
    npu_multiply_number(r, t, 2 * SQRT_2_OVER_PI, t);
    npu_sigmoid(r, t, t);
    npu_multiply(r, wide, t, t);
    npu_copy(r, t, y);
}

/* x / 2 (1 + erf(x / sqrt(2))) */
static void gelu_erf(npu_run *r, tn_tensor x, tn_tensor y)
{
    tn_tensor wide = npu_wide_copy(r, x), t = npu_take_like(r, TN_F32, x);
    npu_multiply_number(r, wide, 0.70710678118654752f, t);
    npu_erf(r, t, t);
    npu_add_number(r, t, 1, t);
    npu_multiply_number(r, wide, 0.5f, wide);
    npu_multiply(r, wide, t, t);
    npu_copy(r, t, y);
}

static void gelu_10(npu_run *r, tn_tensor x, tn_tensor y)
{
    gelu_erf(r, x, y);
    tn_tensor wide = npu_wide_copy(r, y);
    npu_clamp(r, wide, -INFINITY, 10, wide);
    npu_copy(r, wide, y);
}

/* x tanh(log(1 + e^x)) */
static void mish(npu_run *r, tn_tensor x, tn_tensor y)
{
    tn_tensor wide = npu_wide_copy(r, x), t = npu_take_like(r, TN_F32, x);
    npu_softplus(r, wide, 20, t);
    npu_tanh(r, t, t);
    npu_multiply(r, wide, t, t);
    npu_copy(r, t, y);
}

/* x min(max(x + 3, 0), 6) / 6 */
static void hard_swish(npu_run *r, tn_tensor x, tn_tensor y)
{
    tn_tensor wide = npu_wide_copy(r, x), t = npu_take_like(r, TN_F32, x);
    npu_add_number(r, wide, 3, t);
    npu_clamp(r, t, 0, 6, t);
    npu_multiply(r, wide, t, t);
    npu_multiply_number(r, t, 1.0f / 6, t);
    npu_copy(r, t, y);
}

/* What is above 0, and a share of what is below. */
static void leaky_relu(npu_run *r, float slope, tn_tensor x, tn_tensor y)
{
    tn_tensor wide = npu_wide_copy(r, x), t = npu_take_like(r, TN_F32, x);
    npu_clamp(r, wide, -INFINITY, 0, t);
    npu_clamp(r, wide, 0, INFINITY, wide);
    npu_add(r, wide, t, slope, t);
    npu_copy(r, t, y);
}

static void of_f32(npu_run *r, tn_act act, tn_tensor x, tn_tensor y)
{
    tn_tensor wide = npu_wide_copy(r, x);
    if (act == TN_ACT_TANH)
        npu_tanh(r, wide, wide);
    else if (act == TN_ACT_RELU6)
        npu_clamp(r, wide, 0, 6, wide);
    else
        npu_relu(r, wide, wide);
    if (act == TN_ACT_RELU2)
        npu_multiply(r, wide, wide, wide);
    npu_copy(r, wide, y);
}

/* ---- a rounding at each step -------------------------------------------------------------------------------- */

/* t = rnd(sigmoid(rnd(factor x))), x in f32. */
static void steep_sigmoid(npu_run *r, tn_tensor x, float factor, tn_tensor t)
{
    npu_multiply_number(r, x, factor, x);
    npu_copy(r, x, t);
    npu_sigmoid(r, t, t);
}

/* rnd(x rnd(sigmoid(rnd(1.702 x)))) */
static void quick_gelu(npu_run *r, tn_tensor x, tn_tensor y)
{
    tn_tensor wide = npu_wide_copy(r, x), t = npu_take_like(r, x.dtype, x);
    steep_sigmoid(r, wide, 1.702f, t);
    npu_multiply(r, x, t, y);
}

/* x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) */
static void gelu_new(npu_run *r, tn_tensor x, tn_tensor y)
{
    tn_tensor wide = npu_wide_copy(r, x), t = npu_take_like(r, TN_F32, x), narrow = npu_take_like(r, x.dtype, x);
    npu_multiply(r, wide, wide, t);
    npu_multiply(r, t, wide, t);
    npu_round(r, t, narrow);
    npu_multiply_number(r, t, 0.044715f, t);
    npu_round(r, t, narrow);
    npu_add(r, wide, t, 1, t);
    npu_round(r, t, narrow);
    npu_multiply_number(r, t, SQRT_2_OVER_PI, t);
    npu_round(r, t, narrow);
    npu_tanh(r, t, t);
    npu_round(r, t, narrow);
    npu_add_number(r, t, 1, t);
    npu_round(r, t, narrow);
    npu_multiply_number(r, wide, 0.5f, wide);
    npu_round(r, wide, narrow);
    npu_multiply(r, wide, t, t);
    npu_copy(r, t, y);
}

/* (1 + erf((x - 0.707107) / 0.39894257)) / 2 */
static void laplace(npu_run *r, tn_tensor x, tn_tensor y)
{
    tn_tensor t = npu_wide_copy(r, x), narrow = npu_take_like(r, x.dtype, x);
    npu_add_number(r, t, -0.707107f, t);
    npu_round(r, t, narrow);
    npu_multiply_number(r, t, 1 / 0.39894257f, t);
    npu_round(r, t, narrow);
    npu_erf(r, t, t);
    npu_round(r, t, narrow);
    npu_add_number(r, t, 1, t);
    npu_round(r, t, narrow);
    npu_multiply_number(r, t, 0.5f, t);
    npu_copy(r, t, y);
}

/* t = rnd(t number) */
static void times(npu_run *r, tn_tensor t, float number, tn_tensor narrow)
{
    npu_multiply_number(r, t, number, t);
    npu_round(r, t, narrow);
}

/* x > 0: A x x + B x, else N (e^min(x, E) - 1 - x) + B x; e^u - 1 = 2 h / (1 - h) with h = tanh(u / 2), which is as
 * good near 0, where x is taken away from it. */
static void xielu(npu_run *r, tn_tensor x, tn_tensor y)
{
    const double *num = r->call->site->num;
    tn_tensor wide = npu_wide_copy(r, x), above = npu_take_like(r, TN_F32, x), below = npu_take_like(r, TN_F32, x);
    tn_tensor t = npu_take_like(r, TN_F32, x), narrow = npu_take_like(r, x.dtype, x);
    tn_tensor positive = npu_take_like(r, TN_BOOL, x);
    npu_copy(r, wide, above);
    times(r, above, (float)num[TN_NUM_ALPHA], narrow);
    npu_multiply(r, above, wide, above);
    npu_round(r, above, narrow);
    npu_clamp(r, wide, -INFINITY, (float)num[TN_NUM_EPS], t);
    npu_multiply_number(r, t, 0.5f, t);
    npu_tanh(r, t, t);
    npu_multiply_number(r, t, -1, below);
    npu_add_number(r, below, 1, below);
    npu_divide(r, t, below, below);
    times(r, below, 2, narrow);
    npu_add(r, below, wide, -1, below);
    npu_round(r, below, narrow);
    times(r, below, (float)num[TN_NUM_ALPHA_N], narrow);
    npu_above(r, wide, 0, positive);
    npu_choose(r, positive, above, below, t);
    times(r, wide, (float)num[TN_NUM_BETA], narrow);
    npu_add(r, t, wide, 1, t);
    npu_copy(r, t, y);
}

void npu_activate(npu_run *r, tn_act act, tn_tensor x, tn_tensor y)
{
    switch (act) {
    case TN_ACT_SILU:
        npu_silu(r, x, y);
        break;
    case TN_ACT_SIGMOID:
        npu_sigmoid(r, x, y);
        break;
    case TN_ACT_GELU:
        gelu_erf(r, x, y);
        break;
    case TN_ACT_GELU_TANH:
        gelu_tanh(r, x, y);
        break;
    case TN_ACT_GELU_NEW:
        gelu_new(r, x, y);
        break;
    case TN_ACT_QUICK_GELU:
        quick_gelu(r, x, y);
        break;
    case TN_ACT_MISH:
        mish(r, x, y);
        break;
    case TN_ACT_HARD_SWISH:
        hard_swish(r, x, y);
        break;
    case TN_ACT_LEAKY_RELU:
        leaky_relu(r, 0.01f, x, y);
        break;
    case TN_ACT_PRELU:
        leaky_relu(r, (float)r->call->site->num[TN_NUM_ALPHA], x, y);
        break;
    case TN_ACT_LAPLACE:
        laplace(r, x, y);
        break;
    case TN_ACT_GELU_10:
        gelu_10(r, x, y);
        break;
    case TN_ACT_XIELU:
        xielu(r, x, y);
        break;
    case TN_ACT_TANH:
    case TN_ACT_RELU:
    case TN_ACT_RELU2:
    case TN_ACT_RELU6:
        of_f32(r, act, x, y);
        break;
    default:
        npu_copy(r, x, y);
        break;
    }
}

/* p = rnd(rnd(U + 1) rnd(G s)), s = rnd(sigmoid(rnd(A G))), G = min(gate, L), U = up within -L .. L, L rounded. */
void npu_clamped_swiglu(npu_run *r, const tn_site *site, const tn_tensor *gate, const tn_tensor *up, const tn_tensor *y)
{
    float limit = scalar_round((float)site->num[TN_NUM_LIMIT], gate->dtype);
    tn_tensor g = npu_wide_copy(r, *gate), u = npu_wide_copy(r, *up), t = npu_take_like(r, TN_F32, *gate);
    tn_tensor s = npu_take_like(r, gate->dtype, *gate), narrow = npu_take_like(r, up->dtype, *up);
    npu_clamp(r, g, -INFINITY, limit, g);
    npu_clamp(r, u, -limit, limit, u);
    npu_copy(r, g, t);
    steep_sigmoid(r, t, (float)site->num[TN_NUM_ALPHA], s);
    npu_multiply(r, g, s, g);
    npu_round(r, g, s);
    npu_add_number(r, u, 1, u);
    npu_round(r, u, narrow);
    npu_multiply(r, g, u, u);
    npu_copy(r, u, *y);
}
