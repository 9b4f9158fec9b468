/* ATTENTION on the NPU: softmax(scale q k^T + mask) v, with the roundings of core/eager: products are rounded to the
 * model's type, and so are they times scale, each step of the softcap, and the probabilities, which are f32 before.
 *
 * A batch row is taken in blocks of queries, so that their scores fit into a bounded scratch. The queries of all heads
 * of a key head are rows of one product with its keys, which are read where they are. The mask is made on the host from
 * the positions, for the keys between the first and the last that some query of the block sees, and as many around
 * these as make whole steps; layers that see the same share it. A single query that sees all of these needs none. What
 * lies in a key's place in between that nobody sees takes part with weight 0, so it has to be a number: unused slots
 * that are not known to hold zeros are left out by a copy.
 *
 * In 16 bits one fused operator does all of it where it can, but for softcaps, sinks and larger scales, and for
 * queries that see nothing; what it rounds on the way is its own.
 *
 * With ALiBi what a key's position adds to its score is made on the device, and products are f32, since they are
 * rounded with it. Keys that were not chosen are masked by the device, which alone knows them.
 *
 * With sinks core/eager rounds scores after their maximum is taken away. That is left out here: it moves a probability
 * by no more than a rounding of its exponent. */
#include "eager_attention.h"
#include "eager_unused.h"

#include <stdlib.h>
#include <string.h>

#define MOST_SCRATCH ((size_t)64 << 20) /* bytes, unless a single query needs more                     */
#define FAR_AWAY 1e30f                  /* from all scores; much less than what a mask takes away      */

/* Queries first .. first + count of one batch row, and the keys that they see. */
typedef struct attention_part {
    int64_t row, first, count;
    mask_span span;
    bool blind; /* some query sees nothing                                                         */
} attention_part;

/* Memory of a part: N heads, t queries, s keys, c columns: the keys, and a sink. */
typedef struct attention_work {
    tn_tensor q;            /* [N,t,D]                                                             */
    tn_tensor raw;          /* [N,t,c] in the model's type; f32: has no memory                     */
    tn_tensor now, other;   /* [N,t,c] f32: scores, and room for the next step                     */
    tn_tensor mask, sees;   /* [1,t,s], [1,t,1] f32, one after the other                           */
    tn_tensor sinks, drain; /* [N,1,1], [N,t,1] f32                                                */
    tn_tensor zeros;        /* [1,t,1] f32                                                         */
    tn_tensor o;            /* [N,t,Dv]                                                            */
    tn_tensor k;            /* [K,s,D] f32, for products that are not rounded                      */
    tn_tensor places, lean; /* [1,1,s], [N,1,s] f32: ALiBi                                          */
    tn_tensor narrow;       /* [N,1,s] of 16 bits                                                  */
    tn_tensor given, far;   /* [1,t,s] TN_BOOL, f32: chosen keys                                   */
    tn_tensor some;         /* [1,t,1] f32: whether there are any                                  */
} attention_work;

attention_job attention_shape(const tn_call *call)
{
    const tn_site *site = call->site;
    attention_job job = {.q = &call->in[0], .k = &call->in[1], .v = &call->in[2], .o = &call->out[0]};
    job.sinks = site->features & TN_HAS_SINKS ? site->param[TN_ROLE_SINKS].tensors : NULL;
    job.slopes = site->features & TN_HAS_ALIBI ? site->param[TN_ROLE_DECAY].tensors : NULL;
    job.alpha = (float)site->num[TN_NUM_ALPHA];
    job.chosen = site->features & TN_HAS_CHOSEN_KEYS ? &call->in[5] : NULL;
    job.dtype = job.q->dtype;
    job.batch = job.q->shape[0];
    job.tokens = job.q->shape[1];
    job.heads = job.q->shape[2];
    job.d = job.q->shape[3];
    job.keys = job.k->shape[1];
    job.kv_heads = job.k->shape[2];
    job.group = job.kv_heads > 0 ? job.heads / job.kv_heads : 0;
    job.dv = job.v->shape[3];
    job.scale = (float)site->num[TN_NUM_SCALE];
    job.softcap = site->features & TN_HAS_SOFTCAP ? (float)site->num[TN_NUM_SOFTCAP] : 0;
    job.rule.window = site->features & TN_HAS_WINDOW ? site->dim[TN_DIM_WINDOW] : 0;
    job.rule.chunk = site->features & TN_HAS_CHUNK ? site->dim[TN_DIM_CHUNK] : 0;
    job.rule.both_sides = site->features & TN_HAS_BOTH_SIDES;
    job.q_step = call->in[3].stride[0];
    job.kv_step = call->in[4].stride[0];
    return job;
}

bool attention_fits(npu_run *r, const attention_job *job)
{
    if (job->kv_heads > 0 && job->heads % job->kv_heads == 0 && job->k->dtype == job->dtype &&
        job->v->dtype == job->dtype)
        return true;
    r->status = tn_fail(r->err, TN_E_INTERNAL, r->call->site->path,
                        "attention heads or types do not fit each other; report this defect");
    return false;
}

/* Are products rounded with what positions add to them? */
static bool products_are_wide(const attention_job *job)
{
    return job->slopes && job->softcap == 0 && job->dtype != TN_F32;
}

/* Takes the memory of t queries and s keys. */
static attention_work attention_take(npu_run *r, const attention_job *job, int64_t t, int64_t s)
{
    int64_t n = job->heads, c = s + (job->sinks ? 1 : 0), leaning = job->slopes ? n : 0, choosing = job->chosen ? 1 : 0;
    bool wide = products_are_wide(job);
    attention_work w = {0};
    w.q = npu_take_3d(r, wide ? TN_F32 : job->dtype, n, t, job->d);
    w.k = npu_take_3d(r, TN_F32, wide ? job->kv_heads : 0, s, job->d);
    w.places = npu_take_3d(r, TN_F32, job->slopes ? 1 : 0, 1, s);
    w.lean = npu_take_3d(r, TN_F32, leaning, 1, s);
    w.narrow = npu_take_3d(r, TN_F16, leaning, 1, s);
    w.given = npu_take_3d(r, TN_BOOL, choosing, t, s);
    w.far = npu_take_3d(r, TN_F32, choosing, t, s);
    w.some = npu_take_3d(r, TN_F32, choosing, t, 1);
    w.now = npu_take_3d(r, TN_F32, n, t, c);
    w.other = npu_take_3d(r, TN_F32, n, t, c);
    if (job->dtype != TN_F32)
        w.raw = npu_take_3d(r, job->dtype, n, t, c);
    w.mask = npu_take_3d(r, TN_F32, 1, t, s);
    w.sees = npu_take_3d(r, TN_F32, 1, t, 1);
    w.sinks = npu_take_3d(r, TN_F32, n, 1, 1);
    w.drain = npu_take_3d(r, TN_F32, n, t, 1);
    w.zeros = npu_take_3d(r, TN_F32, 1, t, 1);
    w.o = npu_take_3d(r, job->dtype, n, t, job->dv);
    return w;
}

static size_t attention_bytes(const attention_job *job, int64_t t, int64_t s)
{
    npu_run r = {.measuring = true};
    attention_take(&r, job, t, s);
    return r.used;
}

/* Queries of a part, such that it fits into so many bytes; at least one. */
static int64_t attention_fit(const attention_job *job, int64_t keys, size_t bytes)
{
    int64_t low = 1, high = job->tokens > 1 ? job->tokens : 1;
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (attention_bytes(job, middle, keys) <= bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* ---- steps on scores ------------------------------------------------------------------------------------ */

static void step_done(attention_work *w)
{
    tn_tensor done = w->other;
    w->other = w->now;
    w->now = done;
}

static void scores_scale(npu_run *r, attention_work *w, float factor)
{
    npu_multiply_number(r, w->now, factor, w->other);
    step_done(w);
}

/* cap tanh(x / cap), tanh(x) = 2 sigmoid(2 x) - 1, which is off by 1e-7 at most. */
static void scores_softcap(npu_run *r, const attention_job *job, attention_work *w)
{
    scores_scale(r, w, 1 / job->softcap);
    npu_round(r, w->now, w->raw);
    scores_scale(r, w, 2);
    npu_sigmoid(r, w->now, w->other);
    step_done(w);
    scores_scale(r, w, 2);
    npu_add_number(r, w->now, -1, w->other);
    step_done(w);
    npu_round(r, w->now, w->raw);
    scores_scale(r, w, job->softcap);
    npu_round(r, w->now, w->raw);
}

/* wide as a type holds it. */
static void lean_round(npu_run *r, const attention_work *w, tn_dtype dtype, tn_tensor wide)
{
    npu_round(r, wide, npu_view(w->narrow.data, dtype, 3, wide.shape, NULL));
}

/* scores = rnd(scores factor + alpha rnd(m p)), p the key's position in the type of the head's slope m. */
static void scores_lean(npu_run *r, const attention_job *job, const attention_part *part, float factor,
                        attention_work *w)
{
    int64_t keys = w->places.shape[2];
    tn_tensor at = npu_narrow(npu_member(&r->call->in[4], part->row), 0, part->span.first, keys);
    tn_tensor slopes = npu_view(job->slopes->data, job->slopes->dtype, 3, w->sinks.shape, NULL);
    npu_copy(r, npu_view(at.data, TN_I32, 3, w->places.shape, (int64_t[]){keys, keys, at.stride[0]}), w->places);
    lean_round(r, w, job->slopes->dtype, w->places);
    npu_multiply(r, w->places, slopes, w->lean);
    lean_round(r, w, job->slopes->dtype, w->lean);
    lean_round(r, w, job->dtype, w->lean);
    if (job->alpha != 1)
        npu_multiply_number(r, w->lean, job->alpha, w->lean);
    npu_add(r, w->lean, w->now, factor, w->other);
    step_done(w);
    npu_round(r, w->now, w->raw);
}

/* The same tensor with so many columns, dense. */
static tn_tensor with_columns(const tn_tensor *t, int64_t columns)
{
    return npu_view(t->data, t->dtype, 3, (int64_t[]){t->shape[0], t->shape[1], columns}, NULL);
}

/* Puts the column of the sinks behind the scores. */
static void sinks_join(npu_run *r, const attention_job *job, attention_work *w)
{
    tn_tensor sinks = npu_view(job->sinks->data, job->sinks->dtype, 3, w->sinks.shape, NULL);
    npu_copy(r, sinks, w->sinks);
    npu_fill(r, w->zeros, 0);
    npu_add(r, w->zeros, w->sinks, 1, w->drain);
    w->other = with_columns(&w->other, w->now.shape[2] + 1);
    npu_join(r, w->now, w->drain, w->other);
    step_done(w);
    w->other = with_columns(&w->other, w->now.shape[2]);
}

/* Takes it away from the probabilities. */
static void sinks_drop(npu_run *r, attention_work *w)
{
    int64_t columns = w->now.shape[2] - 1;
    tn_tensor keys = w->now;
    keys.shape[2] = columns;
    w->other = with_columns(&w->other, columns);
    npu_copy(r, keys, w->other);
    step_done(w);
    w->other = with_columns(&w->other, columns);
}

/* Products become probabilities in the model's type, which are returned. */
static tn_tensor attention_softmax(npu_run *r, const attention_job *job, const attention_part *part, attention_work *w)
{
    if (job->dtype != TN_F32 && !products_are_wide(job))
        npu_copy(r, w->raw, w->now);
    if (!job->slopes || job->softcap != 0) {
        scores_scale(r, w, job->scale);
        npu_round(r, w->now, w->raw);
    }
    if (job->softcap != 0)
        scores_softcap(r, job, w);
    if (job->slopes)
        scores_lean(r, job, part, job->softcap != 0 ? 1 : job->scale, w);
    if (part->span.masked) {
        npu_add(r, w->now, w->mask, 1, w->other);
        step_done(w);
    }
    if (job->sinks)
        sinks_join(r, job, w);
    npu_softmax(r, w->now, w->other);
    step_done(w);
    if (job->sinks)
        sinks_drop(r, w);
    if (part->blind) {
        npu_multiply(r, w->now, w->sees, w->other);
        step_done(w);
    }
    if (job->dtype == TN_F32)
        return w->now;
    npu_copy(r, w->now, w->raw);
    return w->raw;
}

/* ---- parts ---------------------------------------------------------------------------------------------- */

tn_tensor attention_by_head(const tn_tensor *t, int64_t row, int64_t first, int64_t count)
{
    tn_tensor heads = npu_tokens(t, row, 1, first, count);
    return npu_view(heads.data, t->dtype, 3, (int64_t[]){t->shape[2], count, t->shape[3]},
                    (int64_t[]){t->stride[2], t->stride[1], 1});
}

static tn_tensor of_part(const tn_tensor *t, const attention_part *part)
{
    return attention_by_head(t, part->row, part->first, part->count);
}

/* [N,t,x] as [K, G t, x]: the rows of a key head. Heads of one query follow each other like its group's rows. */
static tn_tensor by_group(const tn_tensor *t, const attention_job *job)
{
    int64_t step = t->shape[1] == 1 ? t->stride[0] : t->stride[1];
    return npu_view(t->data, t->dtype, 3, (int64_t[]){job->kv_heads, job->group * t->shape[1], t->shape[2]},
                    (int64_t[]){t->stride[0] * job->group, step, 1});
}

/* The part's queries, as rows of key heads: copied only where no view of them is that. */
static tn_tensor attention_queries(npu_run *r, const attention_job *job, const attention_part *part,
                                   const attention_work *w)
{
    tn_tensor q = of_part(job->q, part);
    if (!products_are_wide(job) && (job->group == 1 || part->count == 1))
        return by_group(&q, job);
    npu_copy(r, q, w->q);
    return by_group(&w->q, job);
}

/* From and to multiples of 128 keys, so that shapes and addresses stay the same for as many tokens, and what is kept
 * for them is found again. */
static void span_in_steps(mask_span *span, int64_t keys)
{
    enum { STEP = 128 };
    int64_t first = span->first / STEP * STEP, end = (span->end + STEP - 1) / STEP * STEP;
    end = end < keys ? end : keys;
    if (span->end == 0 || (first == span->first && end == span->end))
        return;
    *span = (mask_span){.first = first, .end = end, .masked = true};
}

/* Uploads the part's mask, unless it is that of the layer before, and finds out who sees nothing. */
static void attention_mask(npu_run *r, const attention_job *job, attention_part *part, const int32_t *q,
                           const int32_t *k, attention_work *w)
{
    int64_t keys = part->span.end - part->span.first, behind = (float *)w->sees.data - (float *)w->mask.data;
    float *mask = calloc((size_t)(behind + part->count), sizeof *mask);
    if (!mask) {
        npu_no_memory(r);
        return;
    }
    part->blind = mask_fill(&job->rule, q, part->count, k + part->span.first, keys, mask, mask + behind);
    void *kept = npu_mask_of(r, mask, (size_t)(behind + part->count) * sizeof *mask);
    if (kept) {
        w->mask.data = kept;
        w->sees.data = (float *)kept + behind;
    } else {
        npu_put(r, w->mask.data, mask, (size_t)(behind + part->count) * sizeof *mask);
    }
    free(mask);
}

/* Takes the keys away that the part's queries were not given: the mask, and who sees nothing then, are the device's. */
static void attention_choose(npu_run *r, const attention_job *job, attention_part *part, attention_work *w)
{
    int64_t keys = part->span.end - part->span.first;
    tn_tensor given =
        npu_narrow(npu_tokens(job->chosen, part->row, 1, part->first, part->count), 2, part->span.first, keys);
    tn_tensor seen = npu_view(w->other.data, TN_F32, 3, w->far.shape, NULL);
    npu_copy(r, given, w->given); /* any number but 0                                              */
    npu_copy(r, w->given, w->far);
    npu_add_number(r, w->far, -1, w->far);
    npu_multiply_number(r, w->far, FAR_AWAY, w->far);
    if (part->span.masked)
        npu_add(r, w->far, w->mask, 1, w->far);
    npu_add_number(r, w->far, 1, seen);
    npu_clamp(r, seen, 0, 1, seen);
    npu_sums(r, seen, w->some);
    npu_clamp(r, w->some, 0, 1, w->some);
    if (part->blind)
        npu_multiply(r, w->some, w->sees, w->some);
    w->mask = w->far;
    w->sees = w->some;
    part->span.masked = part->blind = true;
}

/* Scores of rows of that size are about 1 with the usual scale, 1 / sqrt(D). Where a model's are larger, rounding them
 * to 16 bits, as transformers does, changes probabilities by more than all other roundings, and the fused operator,
 * which keeps them in f32, is far from both. */
static bool scores_are_small(const attention_job *job)
{
    return (double)job->scale * (double)job->scale * (double)job->d < 1.5;
}

/* Where the part's mask is on the device, made there or uploaded; NULL: some query sees nothing, or r failed. */
static void *hidden_of(npu_run *r, const attention_job *job, const attention_part *part, const int32_t *q,
                       const int32_t *k)
{
    int64_t keys = part->span.end - part->span.first;
    bool *hidden = malloc((size_t)(part->count * keys));
    void *there = NULL;
    if (hidden && !mask_hide(&job->rule, q, part->count, k + part->span.first, keys, hidden)) {
        tn_tensor at = npu_member(&r->call->in[3], part->row), of = npu_member(&r->call->in[4], part->row);
        if (!job->rule.both_sides && job->rule.chunk == 0)
            there = npu_mask_made(r, npu_narrow(at, 0, part->first, part->count),
                                  npu_narrow(of, 0, part->span.first, keys), job->rule.window);
        if (!there)
            there = npu_mask_of(r, hidden, (size_t)(part->count * keys));
    }
    free(hidden);
    return there;
}

/* The part in one call, where the operator takes it; false: it does not, or some query sees nothing. */
static bool attention_fused(npu_run *r, const attention_job *job, const attention_part *part, const int32_t *q,
                            const int32_t *k)
{
    const mask_span *span = &part->span;
    int64_t keys = span->end - span->first, shape[] = {part->count, keys};
    tn_tensor query = npu_tokens(job->q, part->row, 1, part->first, part->count);
    tn_tensor key = npu_tokens(job->k, part->row, 1, span->first, keys);
    tn_tensor value = npu_tokens(job->v, part->row, 1, span->first, keys);
    tn_tensor o = npu_tokens(job->o, part->row, 1, part->first, part->count);
    if (job->softcap != 0 || job->sinks || job->slopes || job->chosen || !scores_are_small(job) ||
        !ascend_is_dense(&o) || !npu_attends(&query, &key, &value))
        return false;
    void *kept = span->masked ? hidden_of(r, job, part, q, k) : NULL;
    if (span->masked && !kept)
        return r->status != TN_OK;
    tn_tensor mask = npu_view(kept, TN_BOOL, 2, shape, NULL);
    npu_attend(r, query, key, value, span->masked ? &mask : NULL, (double)job->scale, o);
    return true;
}

/* q and k: the positions of the part's queries and of the batch row's keys. */
static void attention_part_run(npu_run *r, const attention_job *job, attention_part *part, const int32_t *q,
                               const int32_t *k)
{
    const mask_span *span = &part->span;
    int64_t keys = span->end - span->first;
    tn_tensor o = of_part(job->o, part);
    if (keys == 0) {
        npu_fill(r, o, 0);
        return;
    }
    if (attention_fused(r, job, part, q, k))
        return;
    r->used = 0; /* the part before is done with it before this one begins                        */
    attention_work w = attention_take(r, job, part->count, keys);
    w.now = with_columns(&w.now, keys);
    w.other = with_columns(&w.other, keys);
    w.raw = job->dtype == TN_F32 ? w.now : with_columns(&w.raw, keys);
    if (span->masked)
        attention_mask(r, job, part, q, k, &w);
    if (job->chosen)
        attention_choose(r, job, part, &w);
    tn_tensor key = attention_by_head(job->k, part->row, span->first, keys);
    bool wide = products_are_wide(job);
    if (wide) {
        npu_copy(r, key, w.k);
        key = w.k;
    }
    tn_tensor value = attention_by_head(job->v, part->row, span->first, keys);
    tn_tensor query = attention_queries(r, job, part, &w), products = by_group(wide ? &w.now : &w.raw, job);
    npu_batch_matmul(r, query, npu_transposed(key), products);
    tn_tensor p = attention_softmax(r, job, part, &w), rows = by_group(&p, job);
    tn_tensor there = by_group(&o, job), sums = by_group(&w.o, job);
    bool direct = part->count == 1 && ascend_is_dense(&there); /* the results' own places              */
    npu_batch_matmul(r, rows, value, direct ? there : sums);
    if (!direct)
        npu_copy(r, w.o, o);
}

/* All queries of a batch row, whose positions and those of its keys are q and k. */
static void attention_row(npu_run *r, const attention_job *whole, int64_t row, const int32_t *q, const int32_t *k)
{
    attention_job of_row = *whole, *job = &of_row;
    mask_span all = mask_find(&job->rule, q, job->tokens, k, job->keys);
    span_in_steps(&all, job->keys);
    used_slots keys = used_slots_of(r, whole->k, row, &all, k), values = used_slots_of(r, whole->v, row, &all, k);
    job->k = &keys.t;
    job->v = &values.t;
    int64_t step = attention_fit(job, all.end - all.first, job->scratch_bytes);
    for (int64_t t = 0; t < job->tokens && r->status == TN_OK; t += step) {
        attention_part part = {.row = row, .first = t, .count = job->tokens - t < step ? job->tokens - t : step};
        part.span = mask_find(&job->rule, q + t, part.count, k, job->keys);
        span_in_steps(&part.span, job->keys);
        attention_part_run(r, job, &part, q + t, k);
    }
    used_slots_end(r, &keys);
    used_slots_end(r, &values);
}

int32_t *attention_positions(npu_run *r, const tn_tensor *t)
{
    void *owned = NULL;
    const void *known = npu_host_copy(r, t, &owned);
    if (!known || owned)
        return owned;
    size_t bytes = (size_t)((t->shape[0] - 1) * t->stride[0] + t->shape[1]) * sizeof(int32_t);
    owned = malloc(bytes);
    if (owned)
        memcpy(owned, known, bytes);
    else
        npu_no_memory(r);
    return owned;
}

static void attention(npu_run *r)
{
    attention_job job = attention_shape(r->call);
    int64_t part = attention_fit(&job, job.keys, MOST_SCRATCH);
    job.scratch_bytes = attention_bytes(&job, part, job.keys);
    if (r->measuring) {
        attention_take(r, &job, part, job.keys);
        return;
    }
    if (!attention_fits(r, &job))
        return;
    int32_t *q = attention_positions(r, &r->call->in[3]);
    int32_t *k = job.keys > 0 ? attention_positions(r, &r->call->in[4]) : NULL;
    for (int64_t b = 0; b < job.batch && r->status == TN_OK; b++)
        attention_row(r, &job, b, q + b * job.q_step, k ? k + b * job.kv_step : NULL);
    free(q);
    free(k);
}

static tn_status attention_supports(const tn_site *site, tn_error *err)
{
    return site->features & TN_HAS_CHOSEN_KEYS ? npu_needs("aclnnClamp", err) : TN_OK;
}

const ascend_operation ascend_attention = {.op = TN_OP_ATTENTION, .supports = attention_supports, .body = attention};
