/* Steps on elements: ADD, COPY, ACT, SCALE, ROW_SCALE, CLAMP and SOFTCAP. */
#include "activations.h"
#include "operators.h"

/* ---- ADD and COPY ----------------------------------------------------------------------------------------- */

static void add(npu_run *r)
{
    npu_add(r, r->call->in[0], r->call->in[1], 1, r->call->out[0]);
}

static void copy(npu_run *r)
{
    npu_copy(r, r->call->in[0], r->call->out[0]);
}

/* ---- ACT ---------------------------------------------------------------------------------------------------- */

static tn_status act_supports(const tn_site *site, tn_error *err)
{
    return npu_act_supports((tn_act)site->meaning[TN_AXIS_ACT], false, err);
}

static void act(npu_run *r)
{
    npu_activate(r, (tn_act)r->call->site->meaning[TN_AXIS_ACT], r->call->in[0], r->call->out[0]);
}

/* ---- factors and bounds ----------------------------------------------------------------------------------------- */

/* In f32 with one rounding: whether the operator rounds the number to x's type first is not documented. */
static void scale(npu_run *r)
{
    const tn_tensor *x = &r->call->in[0], *y = &r->call->out[0];
    tn_tensor wide = npu_widened(r, *x), result = x->dtype == TN_F32 ? *y : wide;
    npu_multiply_number(r, wide, (float)r->call->site->num[TN_NUM_SCALE], result);
    if (x->dtype != TN_F32)
        npu_copy(r, result, *y);
}

static void row_scale(npu_run *r)
{
    const tn_tensor *x = &r->call->in[0], *s = &r->call->in[1], *y = &r->call->out[0];
    tn_tensor wide = npu_widened(r, *x), result = x->dtype == TN_F32 ? *y : wide;
    tn_tensor factors = tn_tensor_dense(s->data, TN_F32, 2, (int64_t[]){s->shape[0], 1});
    factors.stride[0] = s->stride[0];
    npu_multiply(r, wide, factors, result);
    if (x->dtype != TN_F32)
        npu_copy(r, result, *y);
}

static void clamp(npu_run *r)
{
    const tn_tensor *x = &r->call->in[0], *y = &r->call->out[0];
    tn_tensor wide = npu_widened(r, *x), result = x->dtype == TN_F32 ? *y : wide;
    const tn_site *site = r->call->site;
    float limit = (float)site->num[TN_NUM_LIMIT];
    npu_clamp(r, wide, site->features & TN_HAS_STEP_LIMITS ? (float)site->num[TN_NUM_LEAST] : -limit, limit, result);
    if (x->dtype != TN_F32)
        npu_copy(r, result, *y);
}

/* ---- SOFTCAP ------------------------------------------------------------------------------------------------ */

/* x becomes its hyperbolic tangent: 2 sigmoid(2 x) - 1 where the operator is not there, which is rough where x is next
 * to nothing. */
static void tanh_of(npu_run *r, const tn_tensor *x)
{
    if (npu_needs("aclnnTanh", NULL) == TN_OK) {
        npu_tanh(r, *x, *x);
        return;
    }
    npu_multiply_number(r, *x, 2, *x);
    npu_sigmoid(r, *x, *x);
    npu_multiply_number(r, *x, 2, *x);
    npu_add_number(r, *x, -1, *x);
}

/* c tanh(x / c), rounded at each step. */
static void softcap(npu_run *r)
{
    const tn_tensor *x = &r->call->in[0], *y = &r->call->out[0];
    float cap = (float)r->call->site->num[TN_NUM_SOFTCAP];
    tn_tensor wide = npu_wide_copy(r, *x), narrow = npu_take_like(r, x->dtype, *x);
    npu_divide_by(r, wide, cap, wide);
    npu_round(r, wide, narrow);
    tanh_of(r, &wide);
    npu_round(r, wide, narrow);
    npu_multiply_number(r, wide, cap, wide);
    npu_copy(r, wide, *y);
}

const ascend_operation ascend_add = {.op = TN_OP_ADD, .body = add};
const ascend_operation ascend_copy = {.op = TN_OP_COPY, .body = copy};
const ascend_operation ascend_act = {.op = TN_OP_ACT, .supports = act_supports, .body = act};
const ascend_operation ascend_scale = {.op = TN_OP_SCALE, .body = scale};
const ascend_operation ascend_row_scale = {.op = TN_OP_ROW_SCALE, .body = row_scale};
const ascend_operation ascend_clamp = {.op = TN_OP_CLAMP, .needs = "aclnnClamp", .body = clamp};
const ascend_operation ascend_softcap = {.op = TN_OP_SOFTCAP, .body = softcap};
