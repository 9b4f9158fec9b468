/* Steps on elements: ADD, GLU, ACT, SCALE, COPY, ROW_SCALE and SOFTCAP. */
#include "operators_rows.h"

/* ---- ADD and COPY ----------------------------------------------------------------------------------------- */

static void add(npu_run *r)
{
    npu_add(r, &r->call->in[0], &r->call->in[1], 1, &r->call->out[0]);
}

static tn_status add_forward(const tn_call *call, tn_error *err)
{
    return npu_perform(add, call, err);
}

static void copy(npu_run *r)
{
    npu_copy(r, &r->call->in[0], &r->call->out[0]);
}

static tn_status copy_forward(const tn_call *call, tn_error *err)
{
    return npu_perform(copy, call, err);
}

/* ---- activations ------------------------------------------------------------------------------------------ */

/* What sigmoids can be composed to; nothing that is used gives an error function. */
static tn_status act_supports(const tn_site *site, tn_error *err)
{
    tn_act act = (tn_act)site->meaning[TN_AXIS_ACT];
    if (act == TN_ACT_SILU || act == TN_ACT_SIGMOID || act == TN_ACT_LINEAR || act == TN_ACT_GELU_TANH ||
        act == TN_ACT_QUICK_GELU)
        return TN_OK;
    return tn_fail(
        err, TN_DECLINED, "npu",
        "act: %s is not there yet, the npu device takes silu, gelu_pytorch_tanh, quick_gelu, sigmoid, linear",
        tn_axis_value_name(TN_AXIS_ACT, act));
}

static tn_status glu_supports(const tn_site *site, tn_error *err)
{
    if (site->features & TN_HAS_SPARSITY)
        return tn_fail(err, TN_DECLINED, "npu", "%s is not there yet", tn_feature_name(TN_HAS_SPARSITY));
    return act_supports(site, err);
}

/* x in f32, in scratch. */
static tn_tensor wide_copy(npu_run *r, const tn_tensor *x)
{
    tn_tensor wide = npu_take_like(r, TN_F32, x);
    npu_copy(r, x, &wide);
    return wide;
}

/* x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)) in f32, since (1 + tanh(u)) / 2 = sigmoid(2 u). */
static void gelu_tanh(npu_run *r, const tn_tensor *x, const tn_tensor *y)
{
    tn_tensor wide = wide_copy(r, x), t = npu_take_like(r, TN_F32, x), cube = npu_take_like(r, TN_F32, x);
    npu_multiply(r, &wide, &wide, &t);
    npu_multiply(r, &t, &wide, &cube);
    npu_add(r, &wide, &cube, 0.044715f, &t);
    npu_multiply_number(r, &t, 2 * 0.7978845608028654f, &t);
    npu_sigmoid(r, &t, &t);
    npu_multiply(r, &wide, &t, &t);
    npu_copy(r, &t, y);
}

/* rnd(x rnd(sigmoid(rnd(1.702 x)))) */
static void quick_gelu(npu_run *r, const tn_tensor *x, const tn_tensor *y)
{
    tn_tensor wide = wide_copy(r, x), t = npu_take_like(r, x->dtype, x);
    npu_multiply_number(r, &wide, 1.702f, &wide);
    npu_copy(r, &wide, &t);
    npu_sigmoid(r, &t, &t);
    npu_multiply(r, x, &t, y);
}

static void activate(npu_run *r, const tn_tensor *x, const tn_tensor *y)
{
    switch (r->call->site->meaning[TN_AXIS_ACT]) {
    case TN_ACT_SILU:
        npu_silu(r, x, y);
        break;
    case TN_ACT_SIGMOID:
        npu_sigmoid(r, x, y);
        break;
    case TN_ACT_GELU_TANH:
        gelu_tanh(r, x, y);
        break;
    case TN_ACT_QUICK_GELU:
        quick_gelu(r, x, y);
        break;
    default:
        npu_copy(r, x, y);
        break;
    }
}

static void act(npu_run *r)
{
    activate(r, &r->call->in[0], &r->call->out[0]);
}

static size_t act_scratch(const tn_call *call)
{
    return npu_measure(act, call);
}

static tn_status act_forward(const tn_call *call, tn_error *err)
{
    return npu_perform(act, call, err);
}

/* Dimensions of stride 0, along which a tensor repeats itself, have one element then: operators broadcast them. */
static void fold(tn_tensor *t, const tn_tensor *like)
{
    for (int32_t i = 0; i < t->ndim; i++)
        if (like->stride[i] == 0)
            t->shape[i] = t->stride[i] = 1;
}

/* rnd(rnd(act(gate)) up). A gate may be one value for all features of a token. */
static void glu(npu_run *r)
{
    const tn_tensor *up = &r->call->in[1];
    tn_tensor gate = r->call->in[0], acted = npu_take_like(r, gate.dtype, &gate);
    fold(&acted, &gate);
    fold(&gate, &r->call->in[0]);
    activate(r, &gate, &acted);
    npu_multiply(r, &acted, up, &r->call->out[0]);
}

static size_t glu_scratch(const tn_call *call)
{
    return npu_measure(glu, call);
}

static tn_status glu_forward(const tn_call *call, tn_error *err)
{
    return npu_perform(glu, call, err);
}

/* ---- factors ---------------------------------------------------------------------------------------------- */

/* x in f32: itself, or a copy. */
static tn_tensor widened(npu_run *r, const tn_tensor *x)
{
    return x->dtype == TN_F32 ? *x : wide_copy(r, x);
}

/* In f32 with one rounding: whether the operator rounds the number to x's type first is not documented. */
static void scale(npu_run *r)
{
    const tn_tensor *x = &r->call->in[0], *y = &r->call->out[0];
    tn_tensor wide = widened(r, x), result = x->dtype == TN_F32 ? *y : wide;
    npu_multiply_number(r, &wide, (float)r->call->site->num[TN_NUM_SCALE], &result);
    if (x->dtype != TN_F32)
        npu_copy(r, &result, y);
}

static size_t scale_scratch(const tn_call *call)
{
    return npu_measure(scale, call);
}

static tn_status scale_forward(const tn_call *call, tn_error *err)
{
    return npu_perform(scale, call, err);
}

static void row_scale(npu_run *r)
{
    const tn_tensor *x = &r->call->in[0], *s = &r->call->in[1], *y = &r->call->out[0];
    tn_tensor wide = widened(r, x), result = x->dtype == TN_F32 ? *y : wide;
    tn_tensor factors = tn_tensor_dense(s->data, TN_F32, 2, (int64_t[]){s->shape[0], 1});
    factors.stride[0] = s->stride[0];
    npu_multiply(r, &wide, &factors, &result);
    if (x->dtype != TN_F32)
        npu_copy(r, &result, y);
}

static size_t row_scale_scratch(const tn_call *call)
{
    return npu_measure(row_scale, call);
}

static tn_status row_scale_forward(const tn_call *call, tn_error *err)
{
    return npu_perform(row_scale, call, err);
}

/* c tanh(x / c), rounded at each step; tanh(u) = 2 sigmoid(2 u) - 1. */
static void softcap(npu_run *r)
{
    const tn_tensor *x = &r->call->in[0], *y = &r->call->out[0];
    float cap = (float)r->call->site->num[TN_NUM_SOFTCAP];
    tn_tensor wide = wide_copy(r, x), narrow = npu_take_like(r, x->dtype, x);
    tn_tensor factor = npu_take(r, TN_F32, 1, &(int64_t){1});
    npu_fill(r, &factor, cap);
    npu_divide(r, &wide, &factor, &wide);
    npu_copy(r, &wide, &narrow);
    npu_copy(r, &narrow, &wide);
    npu_multiply_number(r, &wide, 2, &wide);
    npu_sigmoid(r, &wide, &wide);
    npu_multiply_number(r, &wide, 2, &wide);
    npu_add_number(r, &wide, -1, &wide);
    npu_copy(r, &wide, &narrow);
    npu_copy(r, &narrow, &wide);
    npu_multiply_number(r, &wide, cap, &wide);
    npu_copy(r, &wide, y);
}

static size_t softcap_scratch(const tn_call *call)
{
    return npu_measure(softcap, call);
}

static tn_status softcap_forward(const tn_call *call, tn_error *err)
{
    return npu_perform(softcap, call, err);
}

const ascend_operation ascend_add = {.op = TN_OP_ADD, .forward = add_forward};
const ascend_operation ascend_copy = {.op = TN_OP_COPY, .forward = copy_forward};
const ascend_operation ascend_act = {
    .op = TN_OP_ACT, .supports = act_supports, .scratch = act_scratch, .forward = act_forward};
const ascend_operation ascend_glu = {
    .op = TN_OP_GLU, .supports = glu_supports, .scratch = glu_scratch, .forward = glu_forward};
const ascend_operation ascend_scale = {.op = TN_OP_SCALE, .scratch = scale_scratch, .forward = scale_forward};
const ascend_operation ascend_row_scale = {
    .op = TN_OP_ROW_SCALE, .scratch = row_scale_scratch, .forward = row_scale_forward};
const ascend_operation ascend_softcap = {.op = TN_OP_SOFTCAP, .scratch = softcap_scratch, .forward = softcap_forward};
