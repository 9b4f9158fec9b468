/* Gradients of ATTENTION. With z the scores, P = softmax(z), o = rnd(P) v and g = dL/do:
 *
 *     dP = g v^T,  dz = P (dP - sum_s dP P),  dv = rnd(P)^T g,  dq = ds k,  dk = ds^T q,
 *
 * ds = dz on its way back through softcap and scale. A sink's gradient is minus the sum of p_sink (sum_s dP P) over the
 * queries of its head. Scores are rounded as forward rounds them; the rest is f32, as are all products. A batch row is
 * taken in blocks of queries, which add to the gradients of its keys and values in their order, so that scores fit into
 * a bounded scratch. */
#include "eager_attention.h"
#include "eager_grad.h"
#include "operators.h"

#include <stdlib.h>

#define MOST_SCRATCH ((size_t)64 << 20) /* bytes of a block, unless a single query needs more           */

typedef struct grad_job {
    attention_job shape;
    const tn_tensor *g, *dq, *dk, *dv, *dsinks; /* shape.sinks and dsinks may be NULL              */
} grad_job;

/* A batch row's, f32: [K,S,D], [K,S,Dv]; and of all rows [N,1,1]. */
typedef struct grad_row {
    tn_tensor k, v, dk, dv, sinks, dsinks;
    tn_tensor places, unused, zero; /* [1,S,1] f32 and TN_BOOL, [1]                                 */
} grad_row;

/* A block's t queries, f32: N heads, c columns: the keys, and a sink. */
typedef struct grad_block {
    int64_t row, first, count;
    tn_tensor q, g, dq;    /* [N,t,D], [N,t,Dv], [N,t,D]                                            */
    tn_tensor z, p;        /* [N,t,c]: scores, probabilities                                       */
    tn_tensor slope;       /* [N,t,S]: of the softcap                                              */
    tn_tensor keys;        /* [N,t,S]: probabilities without the sink's                            */
    tn_tensor dp, room;    /* [N,t,S]                                                              */
    tn_tensor narrow;      /* [N,t,S] in the model's type                                          */
    tn_tensor inner, sink; /* [N,t,1]                                                              */
    tn_tensor mask, sees;  /* [1,t,S], [1,t,1]                                                     */
    tn_tensor part;        /* [K,S, of D and Dv the larger]                                        */
    tn_tensor sum;         /* [N,1,1]                                                              */
} grad_block;

static grad_job grad_shape(const npu_run *r)
{
    const tn_grads *grads = r->call->grads;
    return (grad_job){.shape = attention_shape(r->call),
                      .g = &grads->out[0],
                      .dq = &grads->in[0],
                      .dk = &grads->in[1],
                      .dv = &grads->in[2],
                      .dsinks = grad_param(r, TN_ROLE_SINKS)};
}

static grad_block block_take(npu_run *r, const grad_job *job, int64_t t)
{
    int64_t n = job->shape.heads, s = job->shape.keys, c = s + (job->shape.sinks ? 1 : 0);
    int64_t width = job->shape.d > job->shape.dv ? job->shape.d : job->shape.dv;
    grad_block b = {
        .count = t, .q = npu_take_3d(r, TN_F32, n, t, job->shape.d), .g = npu_take_3d(r, TN_F32, n, t, job->shape.dv)};
    b.dq = npu_take_3d(r, TN_F32, n, t, job->shape.d);
    b.z = npu_take_3d(r, TN_F32, n, t, c);
    b.p = npu_take_3d(r, TN_F32, n, t, c);
    b.slope = npu_take_3d(r, TN_F32, job->shape.softcap != 0 ? n : 0, t, s);
    b.keys = npu_take_3d(r, TN_F32, n, t, s);
    b.dp = npu_take_3d(r, TN_F32, n, t, s);
    b.room = npu_take_3d(r, TN_F32, n, t, s);
    b.narrow = npu_take_3d(r, job->shape.dtype, job->shape.dtype == TN_F32 ? 0 : n, t, s);
    b.inner = npu_take_3d(r, TN_F32, n, t, 1);
    b.sink = npu_take_3d(r, TN_F32, n, t, 1);
    b.mask = npu_take_3d(r, TN_F32, 1, t, s);
    b.sees = npu_take_3d(r, TN_F32, 1, t, 1);
    b.part = npu_take_3d(r, TN_F32, job->shape.kv_heads, s, width);
    b.sum = npu_take_3d(r, TN_F32, n, 1, 1);
    return b;
}

static grad_row row_take(npu_run *r, const grad_job *job)
{
    int64_t n = job->shape.kv_heads, s = job->shape.keys;
    grad_row row = {.k = npu_take_3d(r, TN_F32, n, s, job->shape.d), .v = npu_take_3d(r, TN_F32, n, s, job->shape.dv)};
    row.dk = npu_take_3d(r, TN_F32, n, s, job->shape.d);
    row.dv = npu_take_3d(r, TN_F32, n, s, job->shape.dv);
    row.sinks = npu_take_3d(r, TN_F32, job->shape.heads, 1, 1);
    row.dsinks = npu_take_3d(r, TN_F32, job->shape.heads, 1, 1);
    row.places = npu_take_3d(r, TN_F32, 1, s, 1);
    row.unused = npu_take(r, TN_BOOL, 3, row.places.shape);
    row.zero = npu_take(r, TN_F32, 1, (int64_t[]){1});
    return row;
}

/* Queries of a block, such that it fits into the scratch; at least one. */
static int64_t block_fit(const grad_job *job)
{
    int64_t low = 1, high = job->shape.tokens > 1 ? job->shape.tokens : 1;
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        npu_run r = {.measuring = true};
        block_take(&r, job, middle);
        if (r.used <= MOST_SCRATCH)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* ---- views -------------------------------------------------------------------------------------------------- */

/* Dense [N,t,x] as [K,G t,x]. */
static tn_tensor by_group(const grad_job *job, const tn_tensor *t)
{
    return npu_view(t->data, TN_F32, 3, (int64_t[]){job->shape.kv_heads, job->shape.group * t->shape[1], t->shape[2]},
                    NULL);
}

/* ---- probabilities ------------------------------------------------------------------------------------------ */

/* c tanh(z / c), rounded at each step, tanh(x) = 2 sigmoid(2 x) - 1; slope is 1 - tanh^2. */
static void through_softcap(npu_run *r, const grad_job *job, const grad_block *b, const tn_tensor *z)
{
    npu_multiply_number(r, *z, 1 / job->shape.softcap, *z);
    npu_round(r, *z, b->narrow);
    npu_multiply_number(r, *z, 2, *z);
    npu_sigmoid(r, *z, *z);
    npu_multiply_number(r, *z, 2, *z);
    npu_add_number(r, *z, -1, *z);
    npu_round(r, *z, b->narrow);
    npu_multiply(r, *z, *z, b->slope);
    npu_multiply_number(r, b->slope, -1, b->slope);
    npu_add_number(r, b->slope, 1, b->slope);
    npu_multiply_number(r, *z, job->shape.softcap, *z);
    npu_round(r, *z, b->narrow);
}

/* Uploads the block's mask; does somebody see nothing? */
static bool upload_mask(npu_run *r, const grad_job *job, const grad_block *b, const int32_t *q, const int32_t *k)
{
    bool blind = false;
    float *mask = calloc((size_t)((job->shape.keys + 1) * b->count), sizeof *mask), *sees = NULL;
    if (!mask) {
        npu_no_memory(r);
        return false;
    }
    sees = mask + job->shape.keys * b->count;
    blind = mask_fill(&job->shape.rule, q, b->count, k, job->shape.keys, mask, sees);
    npu_put(r, b->mask.data, mask, (size_t)(job->shape.keys * b->count) * sizeof *mask);
    npu_put(r, b->sees.data, sees, (size_t)b->count * sizeof *sees);
    free(mask);
    return blind;
}

/* b->keys: P; b->sink: that of the sink. */
static void probabilities(npu_run *r, const grad_job *job, const grad_row *row, const grad_block *b, bool blind)
{
    tn_tensor z = npu_view(b->room.data, TN_F32, 3, b->room.shape, NULL), transposed = npu_transposed(row->k);
    tn_tensor q = by_group(job, &b->q), products = by_group(job, &z), keys = npu_part(b->p, 0, 1, job->shape.keys);
    npu_batch_matmul(r, q, transposed, products);
    npu_round(r, z, b->narrow);
    npu_multiply_number(r, z, job->shape.scale, z);
    npu_round(r, z, b->narrow);
    if (job->shape.softcap != 0)
        through_softcap(r, job, b, &z);
    if (!job->shape.sinks) {
        npu_add(r, z, b->mask, 1, b->z);
        npu_softmax(r, b->z, b->p);
    } else {
        npu_add(r, z, b->mask, 1, b->dp);
        npu_fill(r, b->sink, 0);
        npu_add(r, b->sink, row->sinks, 1, b->sink);
        npu_join(r, b->dp, b->sink, b->z);
        npu_softmax(r, b->z, b->p);
        tn_tensor last = npu_part(b->p, job->shape.keys, 1, 1);
        npu_copy(r, last, b->sink);
    }
    npu_copy(r, keys, b->keys);
    if (!blind)
        return;
    npu_multiply(r, b->keys, b->sees, b->keys);
    if (job->shape.sinks)
        npu_multiply(r, b->sink, b->sees, b->sink);
}

/* ---- gradients ---------------------------------------------------------------------------------------------- */

/* sum [K,S,x] += a^T w, a [N,t,S], w [N,t,x]. */
static void accumulate(npu_run *r, const grad_job *job, const grad_block *b, const tn_tensor *a, const tn_tensor *w,
                       const tn_tensor *sum)
{
    tn_tensor left = by_group(job, a), transposed = npu_transposed(left), right = by_group(job, w);
    tn_tensor part = npu_view(b->part.data, TN_F32, 3, sum->shape, NULL);
    npu_batch_matmul(r, transposed, right, part);
    npu_add(r, *sum, part, 1, *sum);
}

/* b->dp: from dP to ds; and the sinks' gradient. */
static void scores_grad(npu_run *r, const grad_job *job, const grad_row *row, const grad_block *b)
{
    npu_multiply(r, b->dp, b->keys, b->room);
    npu_sums(r, b->room, b->inner);
    npu_add(r, b->dp, b->inner, -1, b->dp);
    npu_multiply(r, b->dp, b->keys, b->dp);
    if (job->shape.softcap != 0)
        npu_multiply(r, b->dp, b->slope, b->dp);
    npu_multiply_number(r, b->dp, job->shape.scale, b->dp);
    if (!job->shape.sinks)
        return;
    tn_tensor flat = npu_view(b->sink.data, TN_F32, 3, (int64_t[]){job->shape.heads, 1, b->count}, NULL);
    npu_multiply(r, b->sink, b->inner, b->sink);
    npu_sums(r, flat, b->sum);
    npu_add(r, row->dsinks, b->sum, -1, row->dsinks);
}

static void block_run(npu_run *r, const grad_job *job, const grad_row *row, const grad_block *b, const int32_t *q,
                      const int32_t *k)
{
    tn_tensor from = attention_by_head(job->shape.q, b->row, b->first, b->count),
              g = attention_by_head(job->g, b->row, b->first, b->count);
    tn_tensor up = by_group(job, &b->g), values = npu_transposed(row->v), dp = by_group(job, &b->dp);
    tn_tensor dq = by_group(job, &b->dq);
    bool blind = upload_mask(r, job, b, q, k);
    npu_copy(r, from, b->q);
    npu_copy(r, g, b->g);
    probabilities(r, job, row, b, blind);
    npu_batch_matmul(r, up, values, dp);
    scores_grad(r, job, row, b);
    npu_round(r, b->keys, b->narrow);
    accumulate(r, job, b, &b->keys, &b->g, &row->dv);
    accumulate(r, job, b, &b->dp, &b->q, &row->dk);
    if (!job->dq->data)
        return;
    npu_batch_matmul(r, dp, row->k, dq);
    tn_tensor there = attention_by_head(job->dq, b->row, b->first, b->count);
    npu_copy(r, b->dq, there);
}

/* What lies in slots of a cache that are not used, which have no position, may be anything: zeros take its place. */
static void clear_unused(npu_run *r, const grad_job *job, const grad_row *row, const int32_t *k)
{
    bool any = false;
    float *places = malloc((size_t)job->shape.keys * sizeof *places);
    if (!places) {
        npu_no_memory(r);
        return;
    }
    for (int64_t i = 0; i < job->shape.keys; i++) {
        places[i] = k[i] < 0 ? -1 : 1;
        any |= k[i] < 0;
    }
    if (any) {
        npu_put(r, row->places.data, places, (size_t)job->shape.keys * sizeof *places);
        npu_below(r, row->places, 0, row->unused);
        npu_fill(r, row->zero, 0);
        npu_choose(r, row->unused, row->zero, row->k, row->k);
        npu_choose(r, row->unused, row->zero, row->v, row->v);
    }
    free(places);
}

/* A batch row, whose positions and those of its keys are q and k. */
static void row_run(npu_run *r, const grad_job *job, const grad_row *row, int64_t at, const int32_t *q,
                    const int32_t *k)
{
    size_t before = r->used;
    int64_t step = block_fit(job);
    tn_tensor keys = attention_by_head(job->shape.k, at, 0, job->shape.keys),
              values = attention_by_head(job->shape.v, at, 0, job->shape.keys);
    npu_copy(r, keys, row->k);
    npu_copy(r, values, row->v);
    clear_unused(r, job, row, k);
    npu_fill(r, row->dk, 0);
    npu_fill(r, row->dv, 0);
    for (int64_t t = 0; t < job->shape.tokens && r->status == TN_OK; t += step) {
        r->used = before;
        grad_block b = block_take(r, job, job->shape.tokens - t < step ? job->shape.tokens - t : step);
        b.row = at;
        b.first = t;
        block_run(r, job, row, &b, q + t, k);
    }
    tn_tensor dk = attention_by_head(job->dk, at, 0, job->shape.keys),
              dv = attention_by_head(job->dv, at, 0, job->shape.keys);
    if (job->dk->data)
        npu_copy(r, row->dk, dk);
    if (job->dv->data)
        npu_copy(r, row->dv, dv);
    r->used = before;
}

static void rows_run(npu_run *r, const grad_job *job, const grad_row *row)
{
    int32_t *q = attention_positions(r, &r->call->in[3]), *k = attention_positions(r, &r->call->in[4]);
    if (job->shape.sinks) {
        tn_tensor sinks = npu_view(job->shape.sinks->data, job->shape.sinks->dtype, 3, row->sinks.shape, NULL);
        npu_copy(r, sinks, row->sinks);
        npu_fill(r, row->dsinks, 0);
    }
    for (int64_t b = 0; b < job->shape.batch && r->status == TN_OK; b++)
        row_run(r, job, row, b, q + b * job->shape.q_step, k + b * job->shape.kv_step);
    if (job->dsinks) {
        tn_tensor sums = npu_view(row->dsinks.data, TN_F32, 1, &job->shape.heads, NULL);
        npu_copy(r, sums, *job->dsinks);
    }
    free(q);
    free(k);
}

static void attention(npu_run *r)
{
    grad_job job = grad_shape(r);
    if (!attention_fits(r, &job.shape))
        return;
    grad_row row = row_take(r, &job);
    if (r->measuring) {
        block_take(r, &job, block_fit(&job));
    } else if (job.shape.keys == 0) { /* everybody sees nothing */
        if (job.dq->data)
            npu_fill(r, *job.dq, 0);
        if (job.dsinks)
            npu_fill(r, *job.dsinks, 0);
    } else {
        rows_run(r, &job, &row);
    }
}

static tn_status attention_declines(const tn_call *call, tn_error *err)
{
    bool leans = call->site->features & TN_HAS_ALIBI;
    if (!leans && !(call->site->features & TN_HAS_CHOSEN_KEYS))
        return TN_OK;
    return tn_fail(err, TN_DECLINED, "npu", "the gradients of attention %s are not there yet",
                   leans ? "with ALiBi" : "to chosen keys");
}

const ascend_gradient ascend_attention_grad = {
    .op = TN_OP_ATTENTION, .body = attention, .needs = "aclnnLtScalar aclnnSWhere", .declines = attention_declines};
