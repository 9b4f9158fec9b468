/* The kernel npu_fused_rmsnorm on an Ascend device: aclnnRmsNorm, which computes in f32 and rounds once,
 * aclnnAddRmsNorm, which rounds where eager does, and aclnnRmsNormGrad. The gated norm rounds where eager does: rows of
 * a gated delta rule, which it follows, may be next to nothing beside the state that they were read from, and what is
 * made of their rounding by another than transformers' was seen to be up to twice as far from f32. Backward works on
 * f32 copies, so that each result is rounded once. */
#include "rmsnorm.h"

#include "npu_ops.h"

/* How many rows a call has is not known to plan: heads are rows as well. What does not fit scratch is done in parts.
 * Rows of a token that scratch is for: those of forward, which need the 4 bytes of rstd only, and elements of rows that
 * go through scratch. */
enum { PLAIN_ROWS = 128, COPIED_ELEMENTS = 2048 };

/* Tensors of a call that are walked together, the first of which is there. */
enum { PART_MOST = 6 };
typedef struct norm_part {
    tn_tensor t[PART_MOST];
    int count;
} norm_part;

static int64_t rows_of(const tn_tensor *t)
{
    int64_t width = t->shape[t->ndim - 1];
    return width > 0 ? tn_tensor_count(t) / width : 0;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t copied_rows(const tn_site *site, int64_t tokens)
{
    int64_t rows = COPIED_ELEMENTS / site->dim[TN_DIM_WIDTH];
    return tokens * (rows < 1 ? 1 : least(rows, PLAIN_ROWS));
}

/* ---- scratch -------------------------------------------------------------------------------------------- */

/* f32 rows of the width: results apart and in gaps of forward; of a gated one; of backward. */
enum { FORWARD_ROWS = 1, GATED_ROWS = 2, BACKWARD_ROWS = 11 };

static size_t rows_bytes(const tn_site *site, int64_t rows, int64_t each)
{
    enum { TENSORS = 16, ALIGNMENT = 64 };
    return (size_t)rows * ((size_t)(each * site->dim[TN_DIM_WIDTH]) + 1) * sizeof(float) +
           (size_t)(TENSORS * ALIGNMENT);
}

static bool is_gated(const tn_site *site)
{
    return site->meaning[TN_AXIS_NORM] == TN_NORM_W_GATED;
}

static tn_dtype dtype_of(const tn_site *site)
{
    return (tn_dtype)site->meaning[TN_AXIS_DTYPE];
}

/* Rows that fit, of so many f32 rows each. */
static int64_t rows_that_fit(const npu_run *r, const tn_site *site, int64_t each)
{
    size_t fixed = rows_bytes(site, 0, each), one = rows_bytes(site, 1, each) - fixed;
    size_t room = r->bytes - r->used;
    return room > fixed ? (int64_t)((room - fixed) / one) : 0;
}

/* ---- weights -------------------------------------------------------------------------------------------- */

/* The factor of each element in f32 at work[1]; work[0]: room for a step before. */
static tn_tensor make_factor(npu_run *r, const tn_site *site, tn_tensor work[2])
{
    const tn_param *p = &site->param[TN_ROLE_WEIGHT];
    int32_t norm = site->meaning[TN_AXIS_NORM];
    if (norm == TN_NORM_NO_WEIGHT) {
        npu_fill(r, work[1], 1);
        return work[1];
    }
    tn_tensor w = *p->tensors, wide = norm == TN_NORM_1_PLUS_W ? work[0] : work[1];
    if (w.dtype == TN_F32)
        wide = w;
    else
        npu_copy(r, w, wide);
    if (norm != TN_NORM_1_PLUS_W)
        return wide;
    npu_add_number(r, wide, 1, work[1]);
    return work[1];
}

/* Forward takes the site's weight where the operator does what the norm says; what else it needs is packed. */
static bool is_packed(const tn_site *site)
{
    int32_t norm = site->meaning[TN_AXIS_NORM];
    return norm == TN_NORM_NO_WEIGHT || norm == TN_NORM_1_PLUS_W || (is_gated(site) && dtype_of(site) != TN_F32);
}

/* Two rows: the second is the factor; f32, but ones, which are exact, in the type of the activations. Those come before
 * the weight of a gated norm. */
static void packed_rows(const tn_site *site, void *packed, tn_tensor work[2])
{
    int64_t width = site->dim[TN_DIM_WIDTH];
    bool ones = site->meaning[TN_AXIS_NORM] == TN_NORM_NO_WEIGHT || is_gated(site);
    for (int i = 0; i < 2; i++)
        work[i] = tn_tensor_dense((char *)packed + (size_t)i * npu_bytes(TN_F32, width), ones ? dtype_of(site) : TN_F32,
                                  1, &width);
}

static tn_status pack(const tn_site *site, const tn_plan *plan, void *packed, tn_queue *queue, tn_error *err)
{
    tn_tensor work[2];
    if (plan->packed_bytes == 0)
        return TN_OK;
    npu_run r = npu_run_on(queue, NULL, 0, err);
    packed_rows(site, packed, work);
    if (is_gated(site))
        npu_fill(&r, work[1], 1);
    else
        make_factor(&r, site, work);
    return r.status;
}

static tn_tensor packed_factor(const tn_call *call)
{
    tn_tensor work[2];
    if (!is_packed(call->site))
        return *call->site->param[TN_ROLE_WEIGHT].tensors;
    packed_rows(call->site, (void *)(uintptr_t)call->packed, work);
    return work[1];
}

/* ---- plan ----------------------------------------------------------------------------------------------- */

static tn_status plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    int64_t width = site->dim[TN_DIM_WIDTH];
    if (!npu_here(site, err))
        return TN_DECLINED;
    int64_t copied = copied_rows(site, plan->max_tokens);
    plan->scratch_bytes = rows_bytes(site, copied, is_gated(site) ? GATED_ROWS : FORWARD_ROWS);
    if (!is_gated(site))
        plan->scratch_bytes += rows_bytes(site, PLAIN_ROWS * plan->max_tokens, 0);
    /* The factor, and two sums that take turns. */
    plan->backward_scratch_bytes = rows_bytes(site, copied, BACKWARD_ROWS) + 5 * npu_bytes(TN_F32, width);
    plan->packed_bytes = is_packed(site) ? 2 * npu_bytes(TN_F32, width) : 0;
    return TN_OK;
}

/* ---- parts ---------------------------------------------------------------------------------------------- */

typedef struct norm_work {
    npu_run r;
    const tn_call *call;
    tn_tensor factor;
    int64_t most;     /* rows of a part                                                             */
    tn_tensor sum[2]; /* backward: of the weight's gradient, in f32; sum[at] holds it              */
    int at, parts;
} norm_work;

typedef void part_fn(norm_work *w, const norm_part *p);

/* Calls body for parts of at most w->most rows. */
static void divide(norm_work *w, const norm_part *p, part_fn *body)
{
    int32_t dim = 0;
    if (w->r.status != TN_OK)
        return;
    while (dim < p->t[0].ndim - 1 && p->t[0].shape[dim] == 1)
        dim++;
    if (rows_of(&p->t[0]) <= w->most || dim == p->t[0].ndim - 1) {
        size_t before = w->r.used;
        body(w, p);
        w->r.used = before;
        return;
    }
    int64_t all = p->t[0].shape[dim], rest = rows_of(&p->t[0]) / all;
    /* As many of this dimension as fit, or one at a time. */
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): there are more rows than most
    int64_t step = w->most / rest > 0 ? w->most / rest : 1;
    for (int64_t first = 0; first < all; first += step) {
        norm_part piece = *p;
        for (int i = 0; i < p->count; i++)
            piece.t[i] = npu_narrow(p->t[i], dim, first, least(step, all - first));
        divide(w, &piece, body);
    }
}

/* A vector is one row. */
static norm_part part_of(const tn_tensor *const *list, int count)
{
    norm_part p = {.count = count};
    for (int i = 0; i < count; i++) {
        p.t[i] = *list[i];
        if (list[0]->ndim == 1) {
            p.t[i].ndim = 2;
            p.t[i].shape[1] = list[i]->shape[0];
            p.t[i].stride[1] = 1;
            p.t[i].shape[0] = 1;
            p.t[i].stride[0] = list[i]->shape[0];
        }
    }
    return p;
}

/* ---- forward -------------------------------------------------------------------------------------------- */

static void rms_norm(norm_work *w, tn_tensor x, tn_tensor factor, tn_tensor y, tn_tensor rstd)
{
    npu_rms_norm(&w->r, x, factor, w->call->site->num[TN_NUM_EPS], y, rstd);
}

/* In bf16 a norm that rounds before its weight is exact in one call of aclnnAddRmsNorm; elsewhere there is nothing to
 * round, or too much (npu_norm). */
static bool rounds_first(const tn_site *site)
{
    return site->meaning[TN_AXIS_NORM] == TN_NORM_W && dtype_of(site) == TN_BF16;
}

/* x, y. The operator takes gaps in both; a result in the memory of its input goes through scratch. */
static void plain_part(norm_work *w, const norm_part *p)
{
    npu_run *r = &w->r;
    tn_tensor x = p->t[0], y = p->t[1];
    size_t before = r->used;
    if (rounds_first(w->call->site) && npu_norm(r, x, w->factor, w->call->site->num[TN_NUM_EPS], y))
        return;
    r->used = before;
    tn_tensor rstd = npu_take_column(r, x);
    tn_tensor to = x.data == y.data ? npu_take_like(r, y.dtype, y) : y;
    rms_norm(w, x, w->factor, to, rstd);
    npu_settle(r, to, y);
}

/* Does one operator do all of it? That rounds before the weight, and takes tensors without gaps of one type; and it
 * may write the sum where h or r was. */
static bool is_one_call(const norm_work *w, const norm_part *p)
{
    bool one = w->call->site->meaning[TN_AXIS_NORM] == TN_NORM_W && w->factor.dtype == p->t[0].dtype;
    for (int i = 0; i < p->count; i++)
        one &= ascend_is_dense(&p->t[i]);
    return one && p->t[3].data != p->t[0].data && p->t[3].data != p->t[1].data;
}

/* h, r, sum, y: the sum is rounded before it is normalised, as in eager. */
static void add_part(norm_work *w, const norm_part *p)
{
    npu_run *r = &w->r;
    tn_tensor sum = p->t[2];
    if (is_one_call(w, p)) {
        npu_add_rms_norm(r, p->t[0], p->t[1], w->factor, w->call->site->num[TN_NUM_EPS], p->t[3],
                         npu_take_column(r, sum), sum);
        return;
    }
    npu_add(r, p->t[0], p->t[1], 1, sum);
    plain_part(w, &(norm_part){.t = {sum, p->t[3]}, .count = 2});
}

/* x, gate, y: rnd(rnd(rnd(n) w) silu(gate)), the gate in f32. */
static void gated_part(norm_work *w, const norm_part *p)
{
    npu_run *r = &w->r;
    tn_tensor x = p->t[0], n = npu_take_like(r, x.dtype, x), gate = npu_take_like(r, TN_F32, x);
    bool narrow = x.dtype != TN_F32;
    rms_norm(w, x, w->factor, n, npu_take_column(r, x));
    if (narrow) {
        npu_multiply(r, n, *w->call->site->param[TN_ROLE_WEIGHT].tensors, n);
        npu_copy(r, p->t[1], gate);
    }
    npu_silu(r, narrow ? gate : p->t[1], gate);
    npu_multiply(r, n, gate, narrow ? gate : p->t[2]);
    npu_settle(r, narrow ? gate : p->t[2], p->t[2]);
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    const tn_tensor *in = call->in, *out = call->out;
    const tn_tensor *plain[] = {&in[0], &out[0]}, *gated[] = {&in[0], &in[1], &out[0]};
    const tn_tensor *add[] = {&in[0], &in[1], &out[0], &out[1]};
    norm_work w = {.r = npu_run_of(call, err), .call = call};
    if (w.r.status != TN_OK || rows_of(&in[0]) == 0)
        return w.r.status;
    w.factor = packed_factor(call);
    if (is_gated(call->site)) {
        w.most = rows_that_fit(&w.r, call->site, GATED_ROWS);
        norm_part p = part_of(gated, 3);
        divide(&w, &p, gated_part);
        return w.r.status;
    }
    bool adds = call->op == TN_OP_ADD_RMS_NORM;
    bool copies = adds || in[0].data == out[0].data || rounds_first(call->site);
    w.most = rows_that_fit(&w.r, call->site, copies ? FORWARD_ROWS : 0);
    norm_part p = adds ? part_of(add, 4) : part_of(plain, 2);
    divide(&w, &p, adds ? add_part : plain_part);
    return w.r.status;
}

/* ---- backward ------------------------------------------------------------------------------------------- */

static tn_tensor upstream(npu_run *r, tn_tensor dy, tn_tensor like)
{
    if (dy.data)
        return npu_flat(npu_wide_copy(r, dy));
    tn_tensor zeros = npu_take_like(r, TN_F32, like);
    npu_zero(r, zeros);
    return zeros;
}

/* Adds a part's gradient of the weight to that of the parts before. */
static void add_to_sum(norm_work *w, tn_tensor part)
{
    if (w->parts++ == 0) {
        npu_copy(&w->r, part, w->sum[w->at]);
        return;
    }
    npu_add(&w->r, w->sum[w->at], part, 1, w->sum[!w->at]);
    w->at = !w->at;
}

static void store_rows(npu_run *r, tn_tensor rows, tn_tensor to)
{
    npu_store(r, tn_tensor_dense(rows.data, rows.dtype, to.ndim, to.shape), to);
}

/* The gradient of the norm, in f32, from that of its result. */
static tn_tensor grad_of_norm(norm_work *w, tn_tensor dy, tn_tensor x, tn_tensor rstd)
{
    tn_tensor dx = npu_take_like(&w->r, TN_F32, x);
    tn_tensor dfactor = npu_take(&w->r, TN_F32, 1, &x.shape[1]);
    rstd.ndim = 1; /* here without the dimension of one element                                         */
    rstd.stride[0] = 1;
    npu_rms_norm_grad(&w->r, dy, x, rstd, w->factor, dx, dfactor);
    add_to_sum(w, dfactor);
    return dx;
}

/* x, dy, dx */
static void plain_grad_part(norm_work *w, const norm_part *p)
{
    npu_run *r = &w->r;
    tn_tensor x = npu_flat(npu_wide_copy(r, p->t[0])), dy = upstream(r, p->t[1], x);
    tn_tensor y = npu_take_like(r, TN_F32, x), rstd = npu_take_column(r, x);
    rms_norm(w, x, w->factor, y, rstd);
    store_rows(r, grad_of_norm(w, dy, x, rstd), p->t[2]);
}

/* h, r, dsum, dy, dh, dr */
static void add_grad_part(norm_work *w, const norm_part *p)
{
    npu_run *r = &w->r;
    tn_tensor sum = npu_take_like(r, p->t[0].dtype, p->t[0]);
    npu_add(r, p->t[0], p->t[1], 1, sum);
    tn_tensor x = npu_flat(npu_wide_copy(r, sum)), dy = upstream(r, p->t[3], x);
    tn_tensor y = npu_take_like(r, TN_F32, x), rstd = npu_take_column(r, x);
    rms_norm(w, x, w->factor, y, rstd);
    tn_tensor dx = grad_of_norm(w, dy, x, rstd);
    if (p->t[2].data) {
        tn_tensor both = npu_take_like(r, TN_F32, dx);
        npu_add(r, dx, npu_flat(npu_wide_copy(r, p->t[2])), 1, both);
        dx = both;
    }
    store_rows(r, dx, p->t[4]);
    store_rows(r, dx, p->t[5]);
}

/* x, gate, dy, dx, dgate: the gradient of silu(gate) * t, then that of the norm t. */
static void gated_grad_part(norm_work *w, const norm_part *p)
{
    npu_run *r = &w->r;
    tn_tensor x = npu_flat(npu_wide_copy(r, p->t[0])), gate = npu_flat(npu_wide_copy(r, p->t[1]));
    tn_tensor dy = upstream(r, p->t[2], x), t = npu_take_like(r, TN_F32, x), rstd = npu_take_column(r, x);
    int64_t width = x.shape[1];
    tn_tensor both = npu_take_2d(r, TN_F32, x.shape[0], 2 * width);
    tn_tensor dboth = npu_take_like(r, TN_F32, both);
    rms_norm(w, x, w->factor, t, rstd);
    npu_join(r, gate, t, both);
    npu_swiglu_grad(r, dy, both, dboth);
    npu_copy(r, npu_narrow(dboth, 1, 0, width), gate);
    npu_copy(r, npu_narrow(dboth, 1, width, width), t);
    store_rows(r, gate, p->t[4]);
    store_rows(r, grad_of_norm(w, t, x, rstd), p->t[3]);
}

/* The weight's gradient where it is wanted; without rows it is one of zeros. */
static void store_sum(norm_work *w)
{
    const tn_param *weight = &w->call->grads->param[TN_ROLE_WEIGHT];
    if (!weight->count || !weight->tensors->data)
        return;
    if (w->parts == 0)
        npu_zero(&w->r, w->sum[w->at]);
    npu_store(&w->r, w->sum[w->at], *weight->tensors);
}

static tn_status backward(const tn_call *call, tn_error *err)
{
    const tn_tensor *in = call->in, *up = call->grads->out, *to = call->grads->in;
    const tn_tensor *plain[] = {&in[0], &up[0], &to[0]}, *gated[] = {&in[0], &in[1], &up[0], &to[0], &to[1]};
    const tn_tensor *add[] = {&in[0], &in[1], &up[0], &up[1], &to[0], &to[1]};
    norm_work w = {.r = npu_run_of(call, err), .call = call};
    int64_t width = call->site->dim[TN_DIM_WIDTH];
    tn_tensor work[2];
    for (int i = 0; i < 2; i++) {
        work[i] = npu_take(&w.r, TN_F32, 1, &width);
        w.sum[i] = npu_take(&w.r, TN_F32, 1, &width);
    }
    w.factor = make_factor(&w.r, call->site, work);
    w.most = rows_that_fit(&w.r, call->site, BACKWARD_ROWS);
    norm_part p = call->op == TN_OP_ADD_RMS_NORM ? part_of(add, 6)
                  : is_gated(call->site)         ? part_of(gated, 5)
                                                 : part_of(plain, 3);
    if (w.r.status == TN_OK && rows_of(&in[0]) > 0)
        divide(&w, &p,
               call->op == TN_OP_ADD_RMS_NORM ? add_grad_part
               : is_gated(call->site)         ? gated_grad_part
                                              : plain_grad_part);
    store_sum(&w);
    return w.r.status;
}

#define DTYPES (TN_TAKES(TN_F32) | TN_TAKES(TN_BF16) | TN_TAKES(TN_F16))
#define PLAIN_NORMS                                                                                                    \
    (TN_TAKES(TN_NORM_W) | TN_TAKES(TN_NORM_1_PLUS_W) | TN_TAKES(TN_NORM_W_F32) | TN_TAKES(TN_NORM_NO_WEIGHT))

/* Tolerances: the CPU's, since each result is rounded as often; README.md derives them. */
#define IMPL(number, norms, narrow)                                                                                    \
    {                                                                                                                  \
        .size = sizeof(tn_impl), .op = number,                                                                         \
        .match = {.size = sizeof(tn_match), .takes = {[TN_AXIS_DTYPE] = DTYPES, [TN_AXIS_NORM] = norms}},              \
        .tolerance = {.ulps_f32 = 8, .ulps_bf16 = narrow, .ulps_f16 = narrow},                                         \
        .gradient_tolerance = {.ulps_f32 = 64, .ulps_bf16 = 8, .ulps_f16 = 8}, .plan = plan, .pack = pack,             \
        .forward = forward, .backward = backward                                                                       \
    }
const tn_impl rmsnorm_ascend_impls[RMSNORM_ASCEND_IMPLS] = {
    IMPL(TN_OP_RMS_NORM, PLAIN_NORMS, 3.1),
    IMPL(TN_OP_RMS_NORM, TN_TAKES(TN_NORM_W_GATED), 4.1),
    IMPL(TN_OP_ADD_RMS_NORM, PLAIN_NORMS, 3.1),
};
