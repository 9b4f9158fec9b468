/* CHOOSE_KEYS on the NPU: sum_n w_n max(0, q_n k) in f32 as two products, and the last of the best by aclnnTopk. What
 * is above that is chosen; of what equals it, which aclnnTopk may order as it likes, those at the earliest positions,
 * which are added in their places, since no operator scatters. What a query does not see is below everything, and what
 * is not a number just above that. A batch row is taken in blocks of queries, whose elements f32 counts exactly. */
#include "eager_attention.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* Elements of the scores of all heads, and numbers that f32 holds; unless a single query needs more. */
enum { MOST_SCORES = 1 << 24 };

typedef struct choose_job {
    const tn_tensor *q, *k, *w, *chosen;
    int64_t tokens, keys, heads, d, most; /* most: keys of a query                                  */
} choose_job;

/* A block's t queries, S keys. */
typedef struct choose_work {
    tn_tensor q, w;                 /* [t,N,D], [t,1,N] f32                                         */
    tn_tensor dots, scores;         /* [t N,S], [t,S] f32                                           */
    tn_tensor best, places;         /* [t,most] f32, i64                                            */
    tn_tensor apart, order;         /* [t,S] f32: from the last of the best; by position            */
    tn_tensor positions;            /* [1,S] f32, negative                                          */
    tn_tensor rows, ranks;          /* [t,1], [1,most] f32: 0, 1, ...                                */
    tn_tensor count;                /* [t,1] f32: of keys above the last of the best                 */
    tn_tensor slots, taken;         /* [t,most] f32, TN_BOOL                                        */
    tn_tensor ones, ids;            /* [t most,1] f32, [t most] i32                                  */
    tn_tensor chosen;               /* [t S,1] f32                                                  */
    tn_tensor hidden, above, below; /* [t,S] TN_BOOL                                                */
    tn_tensor none, lowest, beyond; /* [1] f32: 0, and what is below all scores                     */
} choose_work;

static choose_job choose_shape(const tn_call *call)
{
    const tn_tensor *in = call->in;
    int64_t most = call->site->dim[TN_DIM_TOP_K], keys = in[1].shape[1];
    return (choose_job){.q = &in[0],
                        .k = &in[1],
                        .w = &in[2],
                        .chosen = &call->out[0],
                        .tokens = in[0].shape[1],
                        .keys = keys,
                        .heads = in[0].shape[2],
                        .d = in[0].shape[3],
                        .most = most < keys ? most : keys};
}

static choose_work choose_take(npu_run *r, const choose_job *job, int64_t t)
{
    int64_t s = job->keys, n = job->heads, most = job->most;
    choose_work w = {.q = npu_take_3d(r, TN_F32, t, n, job->d), .w = npu_take_3d(r, TN_F32, t, 1, n)};
    w.dots = npu_take_2d(r, TN_F32, t * n, s);
    w.scores = npu_take_2d(r, TN_F32, t, s);
    w.best = npu_take_2d(r, TN_F32, t, most);
    w.places = npu_take_2d(r, TN_I64, t, most);
    w.apart = npu_take_like(r, TN_F32, w.scores);
    w.order = npu_take_like(r, TN_F32, w.scores);
    w.positions = npu_take_2d(r, TN_F32, 1, s);
    w.rows = npu_take_2d(r, TN_F32, t, 1);
    w.ranks = npu_take_2d(r, TN_F32, 1, most);
    w.count = npu_take_2d(r, TN_F32, t, 1);
    w.slots = npu_take_2d(r, TN_F32, t, most);
    w.taken = npu_take_2d(r, TN_BOOL, t, most);
    w.ones = npu_take_2d(r, TN_F32, t * most, 1);
    w.ids = npu_take(r, TN_I32, 1, (int64_t[]){t * most});
    w.chosen = npu_take_2d(r, TN_F32, t * s, 1);
    w.hidden = npu_take_2d(r, TN_BOOL, t, s);
    w.above = npu_take_2d(r, TN_BOOL, t, s);
    w.below = npu_take_2d(r, TN_BOOL, t, s);
    w.none = npu_take(r, TN_F32, 1, (int64_t[]){1});
    w.lowest = npu_take_like(r, TN_F32, w.none);
    w.beyond = npu_take_like(r, TN_F32, w.none);
    return w;
}

static int64_t choose_step(const choose_job *job)
{
    int64_t each = job->keys * job->heads, step = each > 0 ? MOST_SCORES / each : 1;
    step = step < job->tokens ? step : job->tokens;
    return step > 0 ? step : 1;
}

/* What queries at positions q do not see of the keys at k. */
static void hide(npu_run *r, const choose_job *job, const int32_t *q, const int32_t *k, tn_tensor *hidden)
{
    static const mask_rule rule = {0};
    size_t bytes = (size_t)(hidden->shape[0] * job->keys);
    bool *mask = malloc(bytes);
    if (!mask) {
        npu_no_memory(r);
        return;
    }
    mask_hide(&rule, q, hidden->shape[0], k, job->keys, mask);
    void *kept = npu_mask_of(r, mask, bytes);
    if (kept)
        hidden->data = kept;
    else
        npu_put(r, hidden->data, mask, bytes);
    free(mask);
}

/* scores, where hidden beyond all. */
static void find_scores(npu_run *r, const choose_job *job, int64_t row, int64_t first, const choose_work *w,
                        tn_tensor keys)
{
    int64_t t = w->q.shape[0];
    tn_tensor q = npu_tokens(job->q, row, 1, first, t), by = npu_tokens(job->w, row, 1, first, t);
    tn_tensor dots = npu_view(w->dots.data, TN_F32, 3, (int64_t[]){t, job->heads, job->keys}, NULL);
    tn_tensor sums = npu_view(w->scores.data, TN_F32, 3, (int64_t[]){t, 1, job->keys}, NULL);
    npu_copy(r, npu_view(q.data, q.dtype, 3, w->q.shape, (int64_t[]){q.stride[1], q.stride[2], 1}), w->q);
    npu_copy(r, npu_view(by.data, by.dtype, 3, w->w.shape, (int64_t[]){by.stride[1], by.stride[1], 1}), w->w);
    npu_matmul(r, npu_flat(w->q), npu_transposed(keys), w->dots);
    npu_clamp(r, w->dots, 0, INFINITY, w->dots);
    npu_batch_matmul(r, w->w, dots, sums);
    npu_not_below(r, w->scores, -FLT_MAX, w->above);
    npu_choose(r, w->above, w->scores, w->lowest, w->scores);
    npu_choose(r, w->hidden, w->beyond, w->scores, w->scores);
}

/* chosen: 1 for the best of each query; positions: those of the keys on the device. */
static void mark_best(npu_run *r, const choose_job *job, choose_work *w, tn_tensor positions)
{
    tn_tensor marks = npu_view(w->order.data, TN_F32, 2, w->chosen.shape, NULL);
    npu_largest(r, w->scores, job->most, w->best, w->places);
    npu_add(r, w->scores, npu_part(w->best, job->most - 1, 1, 1), -1, w->apart);
    npu_above(r, w->apart, 0, w->above);
    npu_below(r, w->apart, 0, w->below);
    npu_copy(r, npu_view(positions.data, TN_I32, 2, w->positions.shape, (int64_t[]){job->keys, positions.stride[0]}),
             w->positions);
    npu_multiply_number(r, w->positions, -1, w->positions);
    npu_choose(r, w->above, w->beyond, w->positions, w->order);
    npu_choose(r, w->below, w->beyond, w->order, w->order);
    npu_largest(r, w->order, job->most, w->best, w->places);
    npu_copy(r, w->above, w->order); /* 1 or 0                                                      */
    npu_sums(r, w->order, w->count);
    npu_put_numbers(r, &w->ranks);
    npu_add(r, w->ranks, w->count, 1, w->slots);
    npu_add_number(r, w->slots, -(float)job->most, w->slots);
    npu_below(r, w->slots, 0, w->taken);
    npu_copy(r, w->taken, npu_view(w->ones.data, TN_F32, 2, w->slots.shape, NULL));
    npu_put_numbers(r, &w->rows);
    npu_copy(r, w->places, w->slots);
    npu_add(r, w->slots, w->rows, (float)job->keys, w->slots);
    npu_copy(r, npu_view(w->slots.data, TN_F32, 1, w->ids.shape, NULL), w->ids);
    npu_add_rows(r, marks, w->ids, w->ones, 1, w->chosen);
}

/* Queries first .. first + t of a batch row; q and k: their positions and those of its keys. */
static void choose_block(npu_run *r, const choose_job *job, int64_t row, int64_t first, int64_t t, tn_tensor keys,
                         const int32_t *q, const int32_t *k)
{
    tn_tensor to = npu_tokens(job->chosen, row, 1, first, t);
    choose_work w = choose_take(r, job, t);
    npu_fill(r, w.none, 0);
    npu_fill(r, w.lowest, -FLT_MAX);
    npu_fill(r, w.beyond, -INFINITY);
    hide(r, job, q, k, &w.hidden); /* at once used: what comes next may take its place                */
    if (job->most < job->keys) {
        find_scores(r, job, row, first, &w, keys);
        mark_best(r, job, &w, npu_member(&r->call->in[4], row));
    } else {
        npu_fill(r, w.scores, 0);
        npu_choose(r, w.hidden, w.beyond, w.scores, w.scores);
        npu_fill(r, w.chosen, 1);
    }
    npu_below(r, w.scores, -FLT_MAX, w.below);
    npu_choose(r, w.below, w.none, npu_view(w.chosen.data, TN_F32, 2, w.scores.shape, NULL), w.scores);
    npu_copy(r, w.scores, npu_view(to.data, TN_I32, 2, w.scores.shape, (int64_t[]){to.stride[1], 1}));
}

static void choose(npu_run *r)
{
    choose_job job = choose_shape(r->call);
    const tn_tensor *in = r->call->in;
    int64_t step = choose_step(&job);
    tn_tensor keys = npu_take_2d(r, TN_F32, job.keys, job.d);
    size_t before = r->used;
    if (r->measuring) {
        choose_take(r, &job, step);
        return;
    }
    int32_t *q = attention_positions(r, &in[3]), *k = attention_positions(r, &in[4]);
    for (int64_t b = 0; b < job.q->shape[0] && r->status == TN_OK; b++) {
        tn_tensor own = npu_tokens(job.k, b, 1, 0, job.keys);
        npu_copy(r, npu_view(own.data, own.dtype, 2, keys.shape, (int64_t[]){own.stride[1], 1}), keys);
        for (int64_t t = 0; t < job.tokens && r->status == TN_OK; t += step) {
            int64_t count = job.tokens - t < step ? job.tokens - t : step;
            r->used = before; /* the block before is done with it                                   */
            choose_block(r, &job, b, t, count, keys, q + b * in[3].stride[0] + t, k + b * in[4].stride[0]);
        }
    }
    free(q);
    free(k);
}

const ascend_operation ascend_choose_keys = {.op = TN_OP_CHOOSE_KEYS,
                                             .body = choose,
                                             .needs =
                                                 "aclnnClamp aclnnGeScalar aclnnGtScalar aclnnLtScalar aclnnSWhere "
                                                 "aclnnIndexAdd"};
