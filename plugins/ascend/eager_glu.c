/* GLU: rnd(rnd(act(gate)) up). A gate may be one value for all features of a token. With sparsity act is applied to
 * relu(gate - cut), cut = mean + z deviation of the token's gates. */
#include "activations.h"
#include "operators.h"
#include "scalar.h"

static tn_status glu_supports(const tn_site *site, tn_error *err)
{
    bool sparse = site->features & TN_HAS_SPARSITY;
    tn_status status = npu_act_supports((tn_act)site->meaning[TN_AXIS_ACT], !sparse, err);
    return status == TN_OK && sparse ? npu_needs("aclnnSqrt aclnnRelu", err) : status;
}

static tn_tensor row_means(npu_run *r, const tn_tensor *x)
{
    tn_tensor mean = npu_take_column(r, *x);
    npu_sums(r, *x, mean);
    npu_divide_by(r, mean, (float)x->shape[x->ndim - 1], mean);
    return mean;
}

/* Mean, deviation, z, their product, cut and the difference are rounded each. The mean is taken again of what is
 * centred, since sums in f32 are not exact. */
static tn_tensor sparse_gate(npu_run *r, const tn_tensor *gate)
{
    float z = scalar_round((float)r->call->site->num[TN_NUM_SPARSITY], gate->dtype);
    tn_tensor wide = npu_wide_copy(r, *gate), centred = npu_take_like(r, TN_F32, *gate);
    tn_tensor mean = row_means(r, &wide);
    npu_add(r, wide, mean, -1, centred);
    tn_tensor rest = row_means(r, &centred);
    npu_add(r, mean, rest, 1, mean);
    npu_add(r, centred, rest, -1, centred);
    npu_multiply(r, centred, centred, centred);
    tn_tensor above = row_means(r, &centred), narrow = npu_take_like(r, gate->dtype, mean);
    npu_sqrt(r, above, above);
    npu_round(r, above, narrow);
    npu_multiply_number(r, above, z, above);
    npu_round(r, above, narrow);
    npu_round(r, mean, narrow);
    npu_add(r, mean, above, 1, mean);
    npu_round(r, mean, narrow);
    npu_add(r, wide, mean, -1, wide);
    npu_relu(r, wide, wide); /* what is above zero is rounded to what is not below it               */
    if (gate->dtype == TN_F32)
        return wide;
    tn_tensor result = npu_take_like(r, gate->dtype, *gate);
    npu_copy(r, wide, result);
    return result;
}

static void glu(npu_run *r)
{
    const tn_site *site = r->call->site;
    const tn_tensor *up = &r->call->in[1], *y = &r->call->out[0];
    tn_act act = (tn_act)site->meaning[TN_AXIS_ACT];
    tn_tensor gate = npu_folded(&r->call->in[0]); /* operators broadcast it                                */
    if (act == TN_ACT_CLAMPED_SWIGLU) {
        npu_clamped_swiglu(r, site, &gate, up, y);
        return;
    }
    if (site->features & TN_HAS_SPARSITY)
        gate = sparse_gate(r, &gate);
    tn_tensor acted = npu_take_like(r, gate.dtype, gate);
    npu_activate(r, act, gate, acted);
    npu_multiply(r, acted, *up, *y);
}

const ascend_operation ascend_glu = {.op = TN_OP_GLU, .supports = glu_supports, .body = glu};
