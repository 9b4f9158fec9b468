/* Gradients of MOE_EXPERTS, given g = dL/dy and z = expert(x), what a slot's weight w multiplies:
 *
 *     dL/dw = g . z                       dz = rnd(w g)
 *     dL/ddown = dz^T p                   dp = rnd(dz down)       p = rnd(rnd(act(gate)) up)
 *     dgate, dup: as those of GLU         dL/dgate matrix = dgate^T x, dL/dup matrix = dup^T x
 *     dL/dx = sum over a token's slots, in their order, of rnd(dgate gate + dup up)
 *
 * Biases have the sums of what their outputs have. Where a weight is a factor of the input, x stands for rnd(w x), dz
 * = g, and its gradient d goes on as dL/dx += rnd(w d), dL/dw = d . x. Experts are computed again, on slots sorted by
 * expert as forward sorts them; the numbers of rows stay on the device. Experts in lists have two products in the sum
 * for x, each of which is rounded, as automatic differentiation does; core/eager rounds their sum alone. */
#include "eager_activation_grad.h"
#include "eager_moe_experts.h"

/* Rows of slots are sorted by expert. */
typedef struct experts_work {
    tn_tensor ids, flat;          /* [T,k], [slots] i32                                              */
    tn_tensor order, counts;      /* [slots] i32: where a slot's row is; [E] i64                     */
    tn_tensor rows, inputs;       /* [slots,H]: of x; and what experts get                           */
    tn_tensor weights;            /* [slots,1] f32                                                   */
    tn_tensor dout;               /* [slots,H]: g                                                    */
    tn_tensor dz;                 /* [slots,H]                                                       */
    tn_tensor gate, up;           /* [slots,I] f32                                                   */
    glu_terms terms;              /* [slots,I] f32                                                   */
    tn_tensor p;                  /* [slots,I]                                                       */
    tn_tensor dboth, dgate, dup;  /* [slots,2I], and views of it; lists: two of [slots,I]            */
    tn_tensor first, second, out; /* room: [slots,2I], [slots,I], [slots,H]                          */
} experts_work;

/* A dense copy. */
static tn_tensor copied(npu_run *r, const tn_tensor *t, tn_dtype dtype)
{
    tn_tensor copy = npu_take_like(r, dtype, *t);
    npu_copy(r, *t, copy);
    return copy;
}

/* y = a b in f32, rounded to y's type; b may broadcast. */
static void product(npu_run *r, const tn_tensor *a, const tn_tensor *b, const tn_tensor *y)
{
    size_t before = r->used;
    tn_tensor wide = npu_take_like(r, TN_F32, *a);
    npu_copy(r, *a, wide);
    npu_multiply(r, wide, *b, wide);
    npu_copy(r, wide, *y);
    r->used = before;
}

/* ---- sorting ------------------------------------------------------------------------------------------------ */

/* The rows of x and of g, and the weights, by expert. */
static void sort(npu_run *r, const experts_job *job, experts_work *w)
{
    const tn_call *call = r->call;
    tn_tensor x = copied(r, &call->in[0], job->dtype), g = npu_take_like(r, job->dtype, call->in[0]);
    tn_tensor weights = copied(r, &call->in[1], TN_F32), slots = npu_as_rows(&weights, job->slots, 1);
    w->ids = copied(r, &call->in[2], TN_I32);
    w->flat = npu_as_rows(&w->ids, job->slots, 0);
    w->counts = npu_take(r, TN_I64, 1, &job->expert_count);
    npu_count(r, w->ids, w->counts);
    w->order = npu_take(r, TN_I32, 1, &job->slots);
    w->rows = npu_take_2d(r, job->dtype, job->slots, job->hidden);
    w->dout = npu_take_2d(r, job->dtype, job->slots, job->hidden);
    w->weights = npu_take_2d(r, TN_F32, job->slots, 1);
    npu_copy(r, call->grads->out[0], g);
    npu_permute(r, x, w->ids, w->rows, w->order);
    npu_permute(r, g, w->ids, w->dout, w->order);
    npu_permute(r, slots, w->flat, w->weights, w->order);
    w->inputs = w->rows;
    w->dz = npu_take_2d(r, job->dtype, job->slots, job->hidden);
    if (job->scaled) {
        w->inputs = npu_take_2d(r, job->dtype, job->slots, job->hidden);
        product(r, &w->rows, &w->weights, &w->inputs);
        npu_copy(r, w->dout, w->dz);
    } else {
        product(r, &w->dout, &w->weights, &w->dz);
    }
}

/* ---- experts ------------------------------------------------------------------------------------------------ */

/* x += each slot's row of a table [E,width], width columns of which begin at first; x [slots,width] is dense. */
static void add_bias(npu_run *r, const experts_job *job, const experts_work *w, const tn_tensor *table, int64_t first,
                     const tn_tensor *x)
{
    size_t before = r->used;
    int64_t width = x->shape[1];
    tn_tensor part = npu_part(*table, first, 1, width), dense = copied(r, &part, job->dtype);
    tn_tensor picked = npu_take_like(r, job->dtype, *x), sorted = npu_take_like(r, job->dtype, *x);
    tn_tensor order = npu_take(r, TN_I32, 1, &job->slots);
    npu_gather(r, dense, w->flat, picked);
    npu_permute(r, picked, w->flat, sorted, order);
    npu_add(r, *x, sorted, 1, *x);
    r->used = before;
}

/* gate, up, and what the activation makes of them. */
static void activate(npu_run *r, const experts_job *job, grouped *g, experts_work *w)
{
    const tn_param *param = job->site->param;
    int64_t inter = job->inter, step = job->pairs ? 2 : 1;
    w->first = npu_take_2d(r, job->dtype, job->slots, job->list ? inter : 2 * inter);
    w->second = npu_take_2d(r, job->dtype, job->list ? job->slots : 0, inter);
    w->gate = npu_take_2d(r, TN_F32, job->slots, inter);
    w->up = npu_take_2d(r, TN_F32, job->slots, inter);
    w->p = npu_take_2d(r, job->dtype, job->slots, inter);
    grouped_product(r, g, &param[job->list ? TN_ROLE_GATE : TN_ROLE_GATE_UP], job->layout, &w->inputs, &w->first);
    if (job->list)
        grouped_product(r, g, &param[TN_ROLE_UP], job->layout, &w->inputs, &w->second);
    if (job->gate_up_bias) {
        add_bias(r, job, w, job->gate_up_bias, 0, &w->first);
        if (job->list)
            add_bias(r, job, w, job->gate_up_bias, inter, &w->second);
    }
    tn_tensor gate = job->list ? w->first : npu_part(w->first, 0, step, inter);
    tn_tensor up = job->list ? w->second : npu_part(w->first, job->pairs ? 1 : inter, step, inter);
    npu_copy(r, gate, w->gate);
    npu_copy(r, up, w->up);
    w->terms = glu_grad_terms(r, job->site, job->dtype, &w->gate, &w->up);
    product(r, &w->terms.value, &w->terms.up, &w->p);
}

/* The gradients of weights from the dot product of each slot's two rows, which is in sorted order. */
static void weights_grad(npu_run *r, const experts_job *job, const experts_work *w, const tn_tensor *a,
                         const tn_tensor *b)
{
    const tn_tensor *to = &r->call->grads->in[1];
    size_t before = r->used;
    tn_tensor one = npu_take_like(r, TN_F32, *a), other = npu_take_like(r, TN_F32, *b);
    tn_tensor sums = npu_take_2d(r, TN_F32, job->slots, 1), by_slot = npu_take_2d(r, TN_F32, job->slots, 1);
    r->used = before;
    if (!to->data)
        return;
    npu_copy(r, *a, one);
    npu_copy(r, *b, other);
    npu_multiply(r, one, other, one);
    npu_sums(r, one, sums);
    npu_gather(r, sums, w->order, by_slot);
    tn_tensor result = npu_as_rows(&by_slot, job->tokens, job->top_k);
    npu_copy(r, result, *to);
}

/* Of weights that are factors of results: the results again. */
static void through_results(npu_run *r, const experts_job *job, grouped *g, const experts_work *w)
{
    bool wanted = !job->scaled && r->call->grads->in[1].data;
    size_t before = r->used;
    tn_tensor z = npu_take_2d(r, job->dtype, job->slots, job->hidden);
    if (wanted)
        grouped_product(r, g, &job->site->param[TN_ROLE_DOWN], job->layout, &w->p, &z);
    if (job->down_bias && (wanted || r->measuring))
        add_bias(r, job, w, job->down_bias, 0, &z);
    if (wanted || r->measuring)
        weights_grad(r, job, w, &z, &w->dout);
    r->used = before;
}

/* dgate and dup. */
static void through_activation(npu_run *r, const experts_job *job, grouped *g, experts_work *w)
{
    int64_t inter = job->inter, step = job->pairs ? 2 : 1;
    w->dboth = npu_take_2d(r, job->dtype, job->slots, 2 * inter);
    w->dgate = job->list ? npu_as_rows(&w->dboth, job->slots, inter) : npu_part(w->dboth, 0, step, inter);
    w->dup = job->list ? w->dgate : npu_part(w->dboth, job->pairs ? 1 : inter, step, inter);
    if (job->list && !r->measuring)
        w->dup.data = (char *)w->dgate.data + job->slots * inter * (int64_t)tn_dtype_size(job->dtype);
    tn_tensor dp = npu_take_2d(r, job->dtype, job->slots, inter), wide = npu_take_2d(r, TN_F32, job->slots, inter);
    tn_tensor d = npu_take_2d(r, TN_F32, job->slots, inter);
    grouped_product(r, g, &job->site->param[TN_ROLE_DOWN], grouped_turned(job->layout), &w->dz, &dp);
    npu_copy(r, dp, wide);
    npu_multiply(r, w->terms.up, wide, d);
    grad_round(r, &d, job->dtype);
    npu_multiply(r, d, w->terms.slope, d);
    npu_copy(r, d, w->dgate);
    npu_multiply(r, w->terms.value, wide, d);
    if (w->terms.open.ndim > 0)
        npu_multiply(r, d, w->terms.open, d);
    npu_copy(r, d, w->dup);
}

/* ---- parameters --------------------------------------------------------------------------------------------- */

static void matrix_grad(npu_run *r, const experts_job *job, grouped *g, tn_role role, const tn_tensor *dout,
                        const tn_tensor *in)
{
    grouped_grad(r, g, job->list, job->oi ? dout : in, job->oi ? in : dout, &r->call->grads->param[role]);
}

static void param_grads(npu_run *r, const experts_job *job, grouped *g, const experts_work *w)
{
    const tn_tensor *gate_up_bias = grad_param(r, TN_ROLE_GATE_UP_BIAS);
    matrix_grad(r, job, g, TN_ROLE_DOWN, &w->dz, &w->p);
    if (job->down_bias)
        grouped_sums(r, g, &w->dz, grad_param(r, TN_ROLE_DOWN_BIAS));
    if (!job->list) {
        matrix_grad(r, job, g, TN_ROLE_GATE_UP, &w->dboth, &w->inputs);
        if (job->gate_up_bias)
            grouped_sums(r, g, &w->dboth, gate_up_bias);
        return;
    }
    matrix_grad(r, job, g, TN_ROLE_GATE, &w->dgate, &w->inputs);
    matrix_grad(r, job, g, TN_ROLE_UP, &w->dup, &w->inputs);
    for (int i = 0; i < 2 && job->gate_up_bias; i++) {
        tn_tensor half = {0};
        if (gate_up_bias)
            half = npu_part(*gate_up_bias, i * job->inter, 1, job->inter);
        grouped_sums(r, g, i ? &w->dup : &w->dgate, gate_up_bias ? &half : NULL);
    }
}

/* ---- the input ---------------------------------------------------------------------------------------------- */

/* The gradient of what experts get, by slot, and from there to x and, where they are factors of it, to weights. */
static void input_grad(npu_run *r, const experts_job *job, grouped *g, const experts_work *w)
{
    const tn_param *param = job->site->param;
    const tn_tensor *dx = &r->call->grads->in[0];
    tn_layout turned = grouped_turned(job->layout);
    tn_tensor d = npu_take_2d(r, job->dtype, job->slots, job->hidden),
              more = npu_take_2d(r, job->dtype, job->slots, job->hidden);
    tn_tensor ones = npu_take_2d(r, TN_F32, job->tokens, job->top_k),
              y = npu_take_2d(r, job->dtype, job->tokens, job->hidden);
    grouped_product(r, g, &param[job->list ? TN_ROLE_GATE : TN_ROLE_GATE_UP], turned, job->list ? &w->dgate : &w->dboth,
                    &d);
    if (job->list) {
        grouped_product(r, g, &param[TN_ROLE_UP], turned, &w->dup, &more);
        npu_add(r, d, more, 1, d);
    }
    if (job->scaled) {
        weights_grad(r, job, w, &d, &w->rows);
        product(r, &d, &w->weights, &d);
    }
    if (!dx->data)
        return;
    npu_fill(r, ones, 1);
    npu_unpermute(r, d, w->order, ones, y);
    npu_copy(r, y, *dx);
}

static void experts(npu_run *r)
{
    experts_job job = experts_shape(r->call);
    experts_work w = {0};
    grouped g = {.path = job.site->path, .groups = job.expert_count, .counts = &w.counts, .computed = true};
    sort(r, &job, &w);
    activate(r, &job, &g, &w);
    through_results(r, &job, &g, &w);
    through_activation(r, &job, &g, &w);
    param_grads(r, &job, &g, &w);
    if (r->measuring || r->call->grads->in[0].data || (job.scaled && r->call->grads->in[1].data))
        input_grad(r, &job, &g, &w);
    grouped_end(&g);
}

static tn_status experts_declines(const tn_call *call, tn_error *err)
{
    return act_grad_declines((tn_act)call->site->meaning[TN_AXIS_ACT], err);
}

const ascend_gradient ascend_moe_experts_grad = {
    .op = TN_OP_MOE_EXPERTS, .body = experts, .declines = experts_declines};
