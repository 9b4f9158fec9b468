/* Gradients of GLU, ACT and SOFTCAP. */
#include "eager_activation_grad.h"
#include "operators.h"
#include "scalar.h"

#include <math.h>

/* ---- sparsity: act is applied to relu(gate - cut), cut = mean + z deviation of a token's gates ------------------ */

typedef struct sparse_gate {
    tn_tensor arg;                 /* [..,I] f32: what act is applied to                            */
    tn_tensor centred;             /* [..,I] gate - mean                                            */
    tn_tensor deviation, fraction; /* [..,1]                                                        */
    float z;
} sparse_gate;

/* centred loses the mean of its rows, which is added to mean. */
static void centre(npu_run *r, const tn_tensor *centred, const tn_tensor *mean)
{
    tn_tensor more = npu_take_column(r, *centred);
    grad_sums(r, centred, &more);
    npu_multiply_number(r, more, 1 / (float)centred->shape[centred->ndim - 1], more);
    npu_add(r, *centred, more, -1, *centred);
    npu_add(r, *mean, more, 1, *mean);
}

/* Mean, deviation, their product with z, cut and the difference are rounded each. */
static sparse_gate sparse_of(npu_run *r, const tn_tensor *gate, tn_dtype dtype)
{
    float width = (float)gate->shape[gate->ndim - 1];
    sparse_gate s = {.z = scalar_round((float)r->call->site->num[TN_NUM_SPARSITY], dtype)};
    tn_tensor mean = npu_take_column(r, *gate), cut = npu_take_column(r, *gate);
    s.arg = npu_take_like(r, TN_F32, *gate);
    s.centred = npu_take_like(r, TN_F32, *gate);
    s.deviation = npu_take_column(r, *gate);
    npu_copy(r, *gate, s.centred);
    npu_fill(r, mean, 0);
    centre(r, &s.centred, &mean);
    centre(r, &s.centred, &mean);
    npu_multiply(r, s.centred, s.centred, s.arg);
    grad_sums(r, &s.arg, &s.deviation);
    npu_multiply_number(r, s.deviation, 1 / width, s.deviation);
    npu_sqrt(r, s.deviation, s.deviation);
    npu_copy(r, s.deviation, cut);
    grad_round(r, &cut, dtype);
    npu_multiply_number(r, cut, s.z, cut);
    grad_round(r, &cut, dtype);
    grad_round(r, &mean, dtype);
    npu_add(r, cut, mean, 1, cut);
    grad_round(r, &cut, dtype);
    npu_add(r, *gate, cut, -1, s.arg);
    grad_round(r, &s.arg, dtype);
    npu_relu(r, s.arg, s.arg);
    return s;
}

/* h, the gradient of act's argument, becomes that of the gate: with h that of relu's argument and its mean m
 * h - m (1 + z (gate - mean) / deviation). */
static void through_sparsity(npu_run *r, const sparse_gate *s, const tn_tensor *h)
{
    const float least = 1e-20f; /* without a deviation nothing is left of gate - mean                    */
    tn_tensor mean = npu_take_column(r, *h), share = npu_take_column(r, *h), room = npu_take_like(r, TN_F32, *h);
    grad_close(r, &s->arg, h);
    grad_sums(r, h, &mean);
    npu_multiply_number(r, mean, 1 / (float)h->shape[h->ndim - 1], mean);
    npu_multiply_number(r, mean, s->z, share);
    npu_clamp(r, s->deviation, least, INFINITY, s->deviation);
    npu_divide(r, share, s->deviation, share);
    npu_multiply(r, s->centred, share, room);
    npu_add(r, room, mean, 1, room);
    npu_add(r, *h, room, -1, *h);
}

/* ---- GLU ---------------------------------------------------------------------------------------------------- */

/* A gate may be one value for all features of a token: its gradient is the sum over them, rounded before the derivative
 * comes in. */
static void glu(npu_run *r)
{
    const tn_call *call = r->call;
    const tn_grads *grads = call->grads;
    tn_dtype dtype = call->in[0].dtype;
    bool sparse = call->site->features & TN_HAS_SPARSITY;
    tn_tensor once = npu_folded(&call->in[0]), gate = grad_wide(r, &once, &once);
    tn_tensor up = grad_wide(r, &call->in[1], &call->in[1]), g = grad_wide(r, &grads->out[0], &call->in[1]);
    tn_tensor dup = npu_take_like(r, TN_F32, up), dgate = npu_take_like(r, TN_F32, up);
    sparse_gate s = {.arg = gate};
    if (sparse)
        s = sparse_of(r, &gate, dtype);
    glu_terms terms = glu_grad_terms(r, call->site, dtype, &s.arg, &up);
    npu_multiply(r, g, terms.value, dup);
    npu_multiply(r, g, terms.up, dgate);
    grad_round(r, &dgate, dtype);
    if (gate.shape[gate.ndim - 1] != up.shape[up.ndim - 1]) {
        tn_tensor sum = npu_take_column(r, up);
        grad_sums(r, &dgate, &sum);
        grad_round(r, &sum, dtype);
        dgate = sum;
    }
    npu_multiply(r, dgate, terms.slope, dgate);
    if (sparse) {
        grad_round(r, &dgate, dtype);
        through_sparsity(r, &s, &dgate);
    }
    tn_tensor to = npu_folded(&grads->in[0]);
    grad_store(r, &dgate, grads->in[0].data ? &to : NULL);
    grad_store(r, &dup, &grads->in[1]);
}

static tn_status glu_declines(const tn_call *call, tn_error *err)
{
    tn_status status = TN_OK;
    if (call->site->features & TN_HAS_SPARSITY)
        status = npu_needs("aclnnSqrt aclnnRelu aclnnClamp aclnnGeScalar aclnnSWhere", err);
    return status == TN_OK ? act_grad_declines((tn_act)call->site->meaning[TN_AXIS_ACT], err) : status;
}

const ascend_gradient ascend_glu_grad = {.op = TN_OP_GLU, .body = glu, .declines = glu_declines};

/* ---- ACT and SOFTCAP ---------------------------------------------------------------------------------------- */

static void act(npu_run *r)
{
    const tn_call *call = r->call;
    tn_tensor x = grad_wide(r, &call->in[0], &call->in[0]), g = grad_wide(r, &call->grads->out[0], &call->in[0]);
    tn_tensor value, slope;
    act_grad(r, (tn_act)call->site->meaning[TN_AXIS_ACT], &x, &value, &slope);
    npu_multiply(r, g, slope, g);
    grad_store(r, &g, &call->grads->in[0]);
}

static tn_status act_declines(const tn_call *call, tn_error *err)
{
    return act_grad_declines((tn_act)call->site->meaning[TN_AXIS_ACT], err);
}

const ascend_gradient ascend_act_grad = {.op = TN_OP_ACT, .body = act, .declines = act_declines};

/* dx = g (1 - tanh(x / c)^2) = 4 g s (1 - s), s = sigmoid(2 x / c), of x / c rounded as forward does. */
static void softcap(npu_run *r)
{
    const tn_call *call = r->call;
    tn_tensor x = grad_wide(r, &call->in[0], &call->in[0]), g = grad_wide(r, &call->grads->out[0], &call->in[0]);
    tn_tensor value, slope;
    npu_divide_by(r, x, (float)call->site->num[TN_NUM_SOFTCAP], x);
    grad_round(r, &x, call->in[0].dtype);
    npu_multiply_number(r, x, 2, x);
    act_grad(r, TN_ACT_SIGMOID, &x, &value, &slope);
    npu_multiply(r, g, slope, g);
    npu_multiply_number(r, g, 4, g);
    grad_store(r, &g, &call->grads->in[0]);
}

const ascend_gradient ascend_softcap_grad = {.op = TN_OP_SOFTCAP, .body = softcap};
