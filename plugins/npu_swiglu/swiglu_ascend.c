/* npu_fused_swiglu on an Ascend device: products by aclnnMatmul, gate and up side by side, aclnnSwiGlu on the pair, and
 * the gradients by aclnnSwiGluGrad. Weights are used where they lie, as transposed views. */
#include "swiglu.h"

#include "npu_ops.h"

/* A weight, its bias, and their gradients, each without data where there is none. */
typedef struct layer_matrix {
    tn_tensor weight, bias, dweight, dbias;
} layer_matrix;

/* both: gate and up as one matrix, gates first, where they are one weight (fused) or lie like one (in_a_row); otherwise
 * gate and up. */
typedef struct layer {
    layer_matrix gate, up, both, down;
    bool fused, in_a_row;
    tn_dtype dtype;
    int64_t hidden, inter;
} layer;

static tn_tensor first_of(const tn_param *params, tn_role role)
{
    return params && params[role].count == 1 ? *params[role].tensors : (tn_tensor){0};
}

static layer_matrix matrix_of(const tn_call *call, tn_role weight, tn_role bias)
{
    const tn_param *own = call->site->param, *grads = call->grads ? call->grads->param : NULL;
    return (layer_matrix){first_of(own, weight), first_of(own, bias), first_of(grads, weight), first_of(grads, bias)};
}

static tn_tensor rows_from(tn_tensor t, int64_t first, int64_t count)
{
    return t.data ? npu_narrow(t, 0, first, count) : t;
}

static layer_matrix rows_of(layer_matrix m, int64_t first, int64_t count)
{
    return (layer_matrix){rows_from(m.weight, first, count), rows_from(m.bias, first, count),
                          rows_from(m.dweight, first, count), rows_from(m.dbias, first, count)};
}

static layer layer_of(const tn_call *call)
{
    const tn_site *site = call->site;
    int32_t layout = site->meaning[TN_AXIS_LAYOUT];
    layer l = {.fused = layout == TN_LAYOUT_GATE_UP,
               .dtype = (tn_dtype)site->meaning[TN_AXIS_DTYPE],
               .hidden = site->dim[TN_DIM_HIDDEN],
               .inter = site->dim[TN_DIM_INTER]};
    l.down = matrix_of(call, TN_ROLE_DOWN, TN_ROLE_DOWN_BIAS);
    if (layout == TN_LAYOUT_SPLIT) {
        l.gate = matrix_of(call, TN_ROLE_GATE, TN_ROLE_GATE_BIAS);
        l.up = matrix_of(call, TN_ROLE_UP, TN_ROLE_UP_BIAS);
        l.in_a_row = npu_in_a_row(&l.gate.weight, &l.up.weight, &l.both.weight) && !l.gate.bias.data && !l.up.bias.data;
        return l;
    }
    l.both = matrix_of(call, TN_ROLE_GATE_UP, TN_ROLE_GATE_UP_BIAS);
    l.gate = rows_of(l.both, l.fused ? 0 : l.inter, l.inter);
    l.up = rows_of(l.both, l.fused ? l.inter : 0, l.inter);
    return l;
}

/* ---- scratch -------------------------------------------------------------------------------------------- */

static tn_status plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    if (!npu_here(site, err))
        return TN_DECLINED;
    tn_dtype dtype = (tn_dtype)site->meaning[TN_AXIS_DTYPE];
    int64_t tokens = plan->max_tokens, hidden = site->dim[TN_DIM_HIDDEN], inter = site->dim[TN_DIM_INTER];
    size_t in = npu_bytes(dtype, tokens * hidden), mid = npu_bytes(dtype, tokens * inter);
    size_t most = hidden > inter ? in : mid;
    bool biased = site->features & TN_HAS_BIAS;
    /* features(): the pair and what it is made of. Then p; y before its bias, and where it has gaps. */
    size_t features = 4 * mid + 2 * most + (biased ? 4 * mid : 0) + npu_bytes(dtype, 2 * inter);
    plan->scratch_bytes = features + mid + 2 * in + 1024;
    /* x and g without gaps, the pair's gradients and p's, two of x, and one of a weight on its way to where it goes. */
    plan->backward_scratch_bytes = features + 8 * mid + 6 * in + npu_bytes(dtype, 2 * inter * hidden) +
                                   npu_bytes(dtype, hidden) + 4 * npu_bytes(TN_F32, 2 * inter + hidden) + 4096;
    return TN_OK;
}

/* ---- forward -------------------------------------------------------------------------------------------- */

/* x [T,in] to rnd(x weight^T), at once into product, then rnd(that + bias); dense. */
static tn_tensor linear_to(npu_run *r, tn_tensor x, const layer_matrix *m, tn_tensor product)
{
    npu_matmul(r, x, npu_transposed(m->weight), product);
    if (!m->bias.data)
        return product;
    tn_tensor sum = npu_take_like(r, x.dtype, product);
    npu_add(r, product, m->bias, 1, sum);
    return sum;
}

static tn_tensor linear(npu_run *r, tn_tensor x, const layer_matrix *m)
{
    return linear_to(r, x, m, npu_take_2d(r, x.dtype, x.shape[0], m->weight.shape[0]));
}

/* [T,2I]: gates, then ups. Of one token both products are written where they belong. */
static tn_tensor features(npu_run *r, const layer *l, tn_tensor x)
{
    if (l->fused || l->in_a_row)
        return linear(r, x, &l->both);
    tn_tensor pair = npu_take_2d(r, l->dtype, x.shape[0], 2 * l->inter);
    size_t before = r->used;
    if (x.shape[0] == 1 && !l->gate.bias.data && !l->up.bias.data) {
        linear_to(r, x, &l->gate, npu_narrow(pair, 1, 0, l->inter));
        linear_to(r, x, &l->up, npu_narrow(pair, 1, l->inter, l->inter));
        return pair;
    }
    tn_tensor gate = linear(r, x, &l->gate), up = linear(r, x, &l->up);
    npu_join(r, gate, up, pair);
    r->used = before;
    return pair;
}

static tn_tensor hidden_of(npu_run *r, const layer *l, tn_tensor pair)
{
    tn_tensor p = npu_take_2d(r, l->dtype, pair.shape[0], l->inter);
    npu_swiglu(r, pair, p);
    return p;
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    npu_run r = npu_run_of(call, err);
    tn_tensor x = call->in[0], y = call->out[0];
    if (r.status != TN_OK || x.shape[0] == 0)
        return r.status;
    layer l = layer_of(call);
    tn_tensor p = hidden_of(&r, &l, features(&r, &l, x));
    if (l.down.bias.data || !ascend_is_dense(&y))
        npu_copy(&r, linear(&r, p, &l.down), y);
    else
        npu_matmul(&r, p, npu_transposed(l.down.weight), npu_target(&r, y, NULL, 0));
    return r.status;
}

/* ---- backward ------------------------------------------------------------------------------------------- */

/* The gradients of a weight, g^T x, and of its bias, where they are wanted. */
static void grad_of_matrix(npu_run *r, tn_tensor g, tn_tensor x, const layer_matrix *m)
{
    size_t before = r->used;
    if (m->dweight.data) {
        tn_tensor to = npu_target(r, m->dweight, NULL, 0);
        npu_matmul(r, npu_transposed(g), x, to);
        npu_settle(r, to, m->dweight);
    }
    r->used = before;
    if (m->dbias.data) { /* a sum over tokens, in f32 whatever the operator does in narrow types         */
        tn_tensor sum = npu_take(r, TN_F32, 1, &g.shape[1]);
        npu_sum(r, g, 0, false, sum);
        npu_store(r, sum, m->dbias);
    }
    r->used = before;
}

/* dx = rnd(rnd(dgate Wg) + rnd(dup Wu)), or of one product. */
static void grad_of_x(npu_run *r, const layer *l, tn_tensor dpair, tn_tensor dx)
{
    int64_t tokens = dpair.shape[0];
    tn_tensor part[2], to = npu_target(r, dx, NULL, 0);
    if (l->fused) {
        npu_matmul(r, dpair, l->both.weight, to);
    } else {
        for (int i = 0; i < 2; i++) {
            part[i] = npu_take_2d(r, l->dtype, tokens, l->hidden);
            npu_matmul(r, npu_narrow(dpair, 1, i * l->inter, l->inter), i ? l->up.weight : l->gate.weight, part[i]);
        }
        npu_add(r, part[0], part[1], 1, to);
    }
    npu_settle(r, to, dx);
}

static tn_status backward(const tn_call *call, tn_error *err)
{
    npu_run r = npu_run_of(call, err);
    const tn_grads *grads = call->grads;
    layer l = layer_of(call);
    tn_tensor x = call->in[0], dx = grads->in[0];
    if (r.status != TN_OK)
        return r.status;
    if (x.shape[0] == 0 || !grads->out[0].data) {
        npu_clear_all(&r, grads);
        return r.status;
    }
    x = npu_dense(&r, x);
    tn_tensor g = npu_dense(&r, grads->out[0]);
    tn_tensor pair = features(&r, &l, x), p = hidden_of(&r, &l, pair);
    tn_tensor dp = npu_take_like(&r, l.dtype, p), dpair = npu_take_like(&r, l.dtype, pair);
    npu_matmul(&r, g, l.down.weight, dp);
    npu_swiglu_grad(&r, dp, pair, dpair);
    grad_of_matrix(&r, g, p, &l.down);
    if (l.fused) {
        grad_of_matrix(&r, dpair, x, &l.both);
    } else {
        grad_of_matrix(&r, npu_narrow(dpair, 1, 0, l.inter), x, &l.gate);
        grad_of_matrix(&r, npu_narrow(dpair, 1, l.inter, l.inter), x, &l.up);
    }
    if (dx.data)
        grad_of_x(&r, &l, dpair, dx);
    return r.status;
}

enum {
    DTYPES = TN_TAKES(TN_F32) | TN_TAKES(TN_BF16) | TN_TAKES(TN_F16),
    LAYOUTS = TN_TAKES(TN_LAYOUT_SPLIT) | TN_TAKES(TN_LAYOUT_GATE_UP) | TN_TAKES(TN_LAYOUT_UP_GATE),
};

/* README.md derives the tolerances; biases, which are added to rounded products, have their own. */
#define IMPL(has, narrow, gradient)                                                                                    \
    {                                                                                                                  \
        .size = sizeof(tn_impl), .op = TN_OP_MLP,                                                                      \
        .match =                                                                                                       \
            {.size = sizeof(tn_match),                                                                                 \
             .takes = {[TN_AXIS_DTYPE] = DTYPES, [TN_AXIS_ACT] = TN_TAKES(TN_ACT_SILU), [TN_AXIS_LAYOUT] = LAYOUTS},   \
             .features = has},                                                                                         \
        .tolerance = {.ulps_f32 = 256, .ulps_bf16 = narrow, .ulps_f16 = narrow},                                       \
        .gradient_tolerance = {.ulps_f32 = 256, .ulps_bf16 = gradient, .ulps_f16 = gradient}, .plan = plan,            \
        .forward = forward, .backward = backward                                                                       \
    }
const tn_impl swiglu_ascend_impls[SWIGLU_ASCEND_IMPLS] = {IMPL(0, 9.3, 16), IMPL(TN_HAS_BIAS, 15.6, 24)};
