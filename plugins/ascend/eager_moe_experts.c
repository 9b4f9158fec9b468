/* MOE_EXPERTS on the NPU: slots (a token's k choices) sorted by expert with aclnnMoeTokenPermute, grouped products, the
 * activation, and aclnnMoeTokenUnpermute, which weighs and adds up.
 *
 * Rounded as core/eager does but for one thing: an output times its weight is not rounded before the sum, which is in
 * f32 in the order of the slots in both. Counts of rows per expert are made on the device. An id that names no expert
 * is an error of core/eager and goes unnoticed here. */
#include "eager_moe_experts.h"

#include "activations.h"
#include "operators.h"

#define MOST_CHOICES 512

typedef struct experts_work {
    tn_tensor x, ids, weights;            /* dense [T,H], [T,k], [T,k]                            */
    tn_tensor counts;                     /* [E] i64                                              */
    tn_tensor wide, factors, scaled_wide; /* scaled: f32 [T,1,H], [T,k,1], [T,k,H]                */
    tn_tensor scaled;                     /* scaled: [T,k,H]                                      */
    tn_tensor rows, order;                /* [slots,H] by expert, and where a slot's row is, i32  */
    tn_tensor both;                       /* gate and up [slots,2I], or one behind the other      */
    tn_tensor bias, sorted_bias, order_2; /* [slots, of 2I and H the larger]                      */
    tn_tensor activated, hidden;          /* [slots,I]: act(gate), and times up                   */
    tn_tensor out, biased;                /* [slots,H]                                            */
    tn_tensor ones;                       /* [slots,1] f32                                        */
    tn_tensor y;                          /* [T,H]                                                */
} experts_work;

experts_job experts_shape(const tn_call *call)
{
    const tn_site *site = call->site;
    experts_job job = {.site = site, .x = &call->in[0], .weights = &call->in[1], .experts = &call->in[2]};
    job.y = &call->out[0];
    job.layout = (tn_layout)site->meaning[TN_AXIS_LAYOUT];
    job.act = (tn_act)site->meaning[TN_AXIS_ACT];
    job.list = job.layout == TN_LAYOUT_EXPERT_LIST;
    job.oi = grouped_is_oi(job.layout);
    job.pairs = job.layout == TN_LAYOUT_PAIRS_IO;
    job.scaled = site->features & TN_HAS_INPUT_SCALE;
    if (site->features & TN_HAS_BIAS) {
        job.gate_up_bias = npu_param(site, TN_ROLE_GATE_UP_BIAS);
        job.down_bias = npu_param(site, TN_ROLE_DOWN_BIAS);
    }
    const tn_tensor *first = npu_param(site, job.list ? TN_ROLE_GATE : TN_ROLE_GATE_UP);
    job.dtype = job.x->dtype;
    job.tokens = job.x->shape[0];
    job.hidden = job.x->shape[1];
    job.top_k = job.experts->shape[1];
    job.slots = job.tokens * job.top_k;
    job.expert_count = job.list ? site->param[TN_ROLE_GATE].count : first->shape[0];
    job.inter = job.list ? first->shape[0] : first->shape[job.oi ? 1 : 2] / 2;
    return job;
}

static void bias_take(npu_run *r, const experts_job *job, experts_work *w)
{
    int64_t slots = job->gate_up_bias || job->down_bias ? job->slots : 0;
    int64_t width = 2 * job->inter > job->hidden ? 2 * job->inter : job->hidden;
    w->bias = npu_take_2d(r, job->dtype, slots, width);
    w->sorted_bias = npu_take_2d(r, job->dtype, slots, width);
    w->order_2 = npu_take(r, TN_I32, 1, (int64_t[]){slots});
    w->biased = npu_take_2d(r, job->dtype, slots, width);
}

static void scaled_take(npu_run *r, const experts_job *job, experts_work *w)
{
    int64_t t = job->scaled ? job->tokens : 0, k = job->top_k, h = job->hidden;
    w->wide = npu_take_3d(r, TN_F32, t, 1, h);
    w->factors = npu_take_3d(r, TN_F32, t, k, 1);
    w->scaled_wide = npu_take_3d(r, TN_F32, t, k, h);
    w->scaled = npu_take_3d(r, job->dtype, t, k, h);
    w->ones = npu_take_2d(r, TN_F32, t, k);
}

static void experts_take(npu_run *r, const experts_job *job, experts_work *w)
{
    int64_t s = job->slots, h = job->hidden, i = job->inter;
    w->x = npu_take(r, job->dtype, 2, job->x->shape);
    w->ids = npu_take(r, TN_I32, 2, job->experts->shape);
    w->weights = npu_take(r, job->weights->dtype, 2, job->weights->shape);
    w->counts = npu_take(r, TN_I64, 1, (int64_t[]){job->expert_count});
    scaled_take(r, job, w);
    w->rows = npu_take_2d(r, job->dtype, s, h);
    w->order = npu_take(r, TN_I32, 1, (int64_t[]){s});
    w->both = npu_take_2d(r, job->dtype, s, 2 * i);
    bias_take(r, job, w);
    w->activated = npu_take_2d(r, job->dtype, s, i);
    w->hidden = npu_take_2d(r, job->dtype, s, i);
    w->out = npu_take_2d(r, job->dtype, s, h);
    w->y = npu_take(r, job->dtype, 2, job->y->shape);
}

/* ---- sorting ------------------------------------------------------------------------------------------------ */

/* Itself where it is dense, or a copy. */
static tn_tensor dense(npu_run *r, const tn_tensor *t, const tn_tensor *room)
{
    if (ascend_is_dense(t))
        return *t;
    npu_copy(r, *t, *room);
    return *room;
}

/* The inputs of slots whose weights are factors of them: rnd(weight x). */
static tn_tensor scaled_inputs(npu_run *r, const experts_job *job, const tn_tensor *x, const tn_tensor *weights,
                               const experts_work *w)
{
    tn_tensor rows = npu_view(x->data, x->dtype, 3, w->wide.shape, NULL);
    tn_tensor factors = npu_view(weights->data, weights->dtype, 3, w->factors.shape, NULL);
    npu_copy(r, rows, w->wide);
    npu_copy(r, factors, w->factors);
    npu_multiply(r, w->wide, w->factors, job->dtype == TN_F32 ? w->scaled : w->scaled_wide);
    if (job->dtype != TN_F32)
        npu_copy(r, w->scaled_wide, w->scaled);
    return npu_as_rows(&w->scaled, job->slots, job->hidden);
}

/* ---- activations --------------------------------------------------------------------------------------------- */

/* w->hidden = rnd(rnd(act(gate)) up), of [slots,I] with any strides. */
static void activate(npu_run *r, const experts_job *job, const tn_tensor *gate, const tn_tensor *up,
                     const experts_work *w)
{
    if (job->act == TN_ACT_CLAMPED_SWIGLU) {
        npu_clamped_swiglu(r, job->site, gate, up, &w->hidden);
        return;
    }
    if (job->act != TN_ACT_LINEAR) {
        npu_activate(r, job->act, *gate, w->activated);
        gate = &w->activated;
    }
    npu_multiply(r, *gate, *up, w->hidden);
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */

/* Of a table [E,width] each slot's row, in the order of the sorted slots. */
static tn_tensor sorted_bias(npu_run *r, const experts_job *job, const tn_tensor *table, const tn_tensor *ids,
                             const experts_work *w)
{
    int64_t width = table->shape[1];
    tn_tensor picked = npu_as_rows(&w->bias, job->slots, width),
              sorted = npu_as_rows(&w->sorted_bias, job->slots, width);
    npu_gather(r, *table, *ids, picked);
    npu_permute(r, picked, *ids, sorted, w->order_2);
    return sorted;
}

/* Gate and up of lists that lie apart: [slots,I] each. */
static void gate_and_up_apart(npu_run *r, const experts_job *job, grouped *g, const tn_tensor *bias,
                              const experts_work *w, tn_tensor *gate, tn_tensor *up)
{
    const tn_param *param = job->site->param;
    int64_t inter = job->inter, half = job->slots * inter * (int64_t)tn_dtype_size(job->dtype);
    tn_tensor first = npu_as_rows(&w->both, job->slots, inter), second = first;
    second.data = (char *)first.data + half;
    grouped_product(r, g, &param[TN_ROLE_GATE], job->layout, &w->rows, &first);
    grouped_product(r, g, &param[TN_ROLE_UP], job->layout, &w->rows, &second);
    *gate = first;
    *up = second;
    if (!job->gate_up_bias)
        return;
    tn_tensor gate_bias = npu_part(*bias, 0, 1, inter), up_bias = npu_part(*bias, inter, 1, inter);
    *gate = *up = npu_as_rows(&w->biased, job->slots, inter);
    up->data = (char *)gate->data + half;
    npu_add(r, first, gate_bias, 1, *gate);
    npu_add(r, second, up_bias, 1, *up);
}

/* Gate and up of the sorted slots, with their biases: by one product of stacks, and of lists that lie like one. */
static void gate_and_up(npu_run *r, const experts_job *job, grouped *g, const tn_tensor *ids, const experts_work *w,
                        tn_tensor *gate, tn_tensor *up)
{
    const tn_param *param = job->site->param;
    int64_t inter = job->inter, step = job->pairs ? 2 : 1;
    tn_tensor bias = {0}, both = w->both, stack;
    const tn_param of_list = {&stack, 1};
    if (job->gate_up_bias)
        bias = sorted_bias(r, job, job->gate_up_bias, ids, w);
    if (job->list && !npu_stack(param[TN_ROLE_GATE].tensors, param[TN_ROLE_UP].tensors, g->groups, &stack)) {
        gate_and_up_apart(r, job, g, &bias, w, gate, up);
        return;
    }
    grouped_product(r, g, job->list ? &of_list : &param[TN_ROLE_GATE_UP],
                    job->list ? TN_LAYOUT_STACKED_OI : job->layout, &w->rows, &w->both);
    if (job->gate_up_bias) {
        both = npu_as_rows(&w->biased, job->slots, 2 * inter);
        npu_add(r, w->both, bias, 1, both);
    }
    *gate = npu_part(both, 0, step, inter);
    *up = npu_part(both, job->pairs ? 1 : inter, step, inter);
}

static void experts_run(npu_run *r, const experts_job *job, grouped *g, experts_work *w)
{
    tn_tensor x = dense(r, job->x, &w->x), ids = dense(r, job->experts, &w->ids);
    tn_tensor weights = dense(r, job->weights, &w->weights), gate, up;
    tn_tensor flat = npu_as_rows(&ids, job->slots, 0);
    npu_count(r, ids, w->counts);
    if (job->scaled) {
        tn_tensor rows = scaled_inputs(r, job, &x, &weights, w);
        npu_permute(r, rows, flat, w->rows, w->order);
        npu_fill(r, w->ones, 1);
        weights = w->ones;
    } else {
        npu_permute(r, x, ids, w->rows, w->order);
    }
    gate_and_up(r, job, g, &flat, w, &gate, &up);
    activate(r, job, &gate, &up, w);
    grouped_product(r, g, &job->site->param[TN_ROLE_DOWN], job->layout, &w->hidden, &w->out);
    tn_tensor out = w->out;
    if (job->down_bias) {
        tn_tensor bias = sorted_bias(r, job, job->down_bias, &flat, w);
        out = npu_as_rows(&w->biased, job->slots, job->hidden);
        npu_add(r, w->out, bias, 1, out);
    }
    const tn_tensor *y = ascend_is_dense(job->y) ? job->y : &w->y;
    npu_unpermute(r, out, w->order, weights, *y);
    if (y != job->y)
        npu_copy(r, *y, *job->y);
}

static void experts(npu_run *r)
{
    experts_job job = experts_shape(r->call);
    experts_work w;
    experts_take(r, &job, &w);
    if (r->measuring) { /* what counts and activations take comes last there, too                    */
        npu_count(r, w.ids, w.counts);
        activate(r, &job, &w.activated, &w.activated, &w);
        return;
    }
    grouped g = {.path = job.site->path, .counts = &w.counts, .groups = job.expert_count, .computed = true};
    experts_run(r, &job, &g, &w);
    grouped_end(&g);
}

/* ---- what is taken ---------------------------------------------------------------------------------------------- */

static bool params_are_of(const tn_site *site, tn_dtype dtype)
{
    static const tn_role roles[] = {TN_ROLE_GATE,    TN_ROLE_UP,           TN_ROLE_DOWN,
                                    TN_ROLE_GATE_UP, TN_ROLE_GATE_UP_BIAS, TN_ROLE_DOWN_BIAS};
    for (size_t r = 0; r < sizeof roles / sizeof *roles; r++)
        for (int64_t i = 0; i < site->param[roles[r]].count; i++)
            if (site->param[roles[r]].tensors[i].dtype != dtype)
                return false;
    return true;
}

static tn_status experts_supports(const tn_site *site, tn_error *err)
{
    tn_dtype dtype = (tn_dtype)site->meaning[TN_AXIS_DTYPE];
    if (site->features & (TN_HAS_SCALES | TN_HAS_ZERO_POINTS))
        return tn_fail(err, TN_DECLINED, "npu", "experts with quantised weights; see --dequantise");
    if (!params_are_of(site, dtype))
        return tn_fail(err, TN_DECLINED, "npu", "experts of %s whose weights or biases have another type",
                       tn_dtype_name(dtype));
    if (site->dim[TN_DIM_TOP_K] > MOST_CHOICES)
        return tn_fail(err, TN_DECLINED, "npu", "%lld experts for each token; aclnnMoeTokenUnpermute adds up %d",
                       (long long)site->dim[TN_DIM_TOP_K], MOST_CHOICES);
    return npu_act_supports((tn_act)site->meaning[TN_AXIS_ACT], true, err);
}

const ascend_operation ascend_moe_experts = {.op = TN_OP_MOE_EXPERTS, .supports = experts_supports, .body = experts};
