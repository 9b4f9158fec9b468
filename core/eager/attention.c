/* ATTENTION: softmax(scale q k^T) v over the cached positions that a query sees, grouped query heads, no mask in
 * memory.
 *
 * The work is cut into items: one batch row, one key/value head, one tile of queries. An item's rows are the tile's
 * queries times the G query heads of its key/value head. Keys are taken in blocks; those that no query of the tile sees
 * are left out, neighbours are joined to spans. The scores of a row against all its spans lie in scratch together.
 * Probabilities are rounded to the model's type; their product with v is summed in f32 and rounded once. */
#include "eager/attention.h"

#include "eager/gemm.h"
#include "eager/rows.h"
#include "eager/vec.h"

#define KEY_BLOCK 128
#define MAX_ROWS 128                      /* rows of an item                                         */
#define MAX_SCORES (INT64_C(1) << 20)     /* floats of an item's scores, as far as whole rows allow  */
#define WORTH_A_THREAD (INT64_C(1) << 17) /* multiplications                                     */
#define FEW_ROWS 4                        /* up to here plain dot products beat a product of matrices */

/* Keys first .. first + count, of which some are seen. clean: all of them are in use, so they may be read in place. */
typedef struct attention_span {
    int64_t first, count;
    bool clean;
} attention_span;

/* A thread's memory. */
typedef struct attention_work {
    char *q;         /* [rows, d] in type                                                          */
    float *scores;   /* [rows, columns]                                                            */
    char *p;         /* [rows, columns] in type; the scores themselves where that is f32           */
    char *block;     /* [KEY_BLOCK, max(d, dv)] in type: keys or values that cannot be used in place */
    float *o, *part; /* [rows, dv]                                                               */
    attention_span *spans;
    int32_t *index;        /* kv_index of the spans' keys, one after the other                          */
    int32_t *chosen;       /* the same for one query, -1 where a key was not chosen                      */
    int64_t span_count, n; /* n: keys of all spans                                               */
    gemm_context *gemm;
} attention_work;

void attention_shape(const tn_call *call, attention_job *job)
{
    const tn_site *site = call->site;
    *job = (attention_job){.q = &call->in[0],
                           .k = &call->in[1],
                           .v = &call->in[2],
                           .q_index = &call->in[3],
                           .kv_index = &call->in[4],
                           .o = &call->out[0]};
    job->chosen = site->features & TN_HAS_CHOSEN_KEYS ? &call->in[5] : NULL;
    job->sinks = site->features & TN_HAS_SINKS ? rows_param(site, TN_ROLE_SINKS) : NULL;
    job->slopes = site->features & TN_HAS_ALIBI ? rows_param(site, TN_ROLE_DECAY) : NULL;
    job->rule.dtype = job->q->dtype;
    job->rule.seen = seen_of(site);
    job->rule.softcap = site->features & TN_HAS_SOFTCAP ? (float)site->num[TN_NUM_SOFTCAP] : 0.0f;
    job->rule.scale = (float)site->num[TN_NUM_SCALE];
    job->rule.has_sink = job->sinks != NULL;
    job->rule.slopes = job->slopes ? job->slopes->dtype : TN_DTYPE_NONE;
    job->rule.alpha = (float)site->num[TN_NUM_ALPHA];
    job->batch = job->q->shape[0];
    job->tokens = job->q->shape[1];
    job->heads = job->q->shape[2];
    job->d = job->q->shape[3];
    job->keys = job->k->shape[1];
    job->kv_heads = job->k->shape[2];
    job->dv = job->v->shape[3];
    job->group = job->kv_heads > 0 ? job->heads / job->kv_heads : 0;
    job->type = gemm_type(job->q->dtype, job->k->dtype);
    job->blocks = (job->keys + KEY_BLOCK - 1) / KEY_BLOCK;
    job->columns = job->blocks * KEY_BLOCK;
    int64_t rows = job->columns > 0 && MAX_SCORES / job->columns < MAX_ROWS ? MAX_SCORES / job->columns : MAX_ROWS;
    job->tile = job->group > 0 && rows > job->group ? rows / job->group : 1;
    if (job->tile > job->tokens)
        job->tile = job->tokens > 0 ? job->tokens : 1;
    job->tiles = (job->tokens + job->tile - 1) / job->tile;
    job->rows = job->tile * job->group;
}

/* Lays a thread's memory out for items of this many rows and scores; returns its size. */
static size_t attention_layout(const attention_job *job, size_t rows, size_t scores, char *base, attention_work *work)
{
    size_t columns = (size_t)job->columns, size = tn_dtype_size(job->type);
    size_t d = (size_t)job->d, dv = (size_t)job->dv;
    const size_t sizes[] = {
        rows * d * size,
        scores * sizeof(float),
        job->type == TN_F32 ? 0 : scores * size,
        KEY_BLOCK * (d > dv ? d : dv) * size,
        rows * dv * sizeof(float),
        rows * dv * sizeof(float),
        (size_t)job->blocks * sizeof(attention_span),
        columns * sizeof(int32_t),
        job->chosen ? columns * sizeof(int32_t) : 0,
    };
    char *at[sizeof sizes / sizeof *sizes];
    size_t used = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        at[i] = base ? base + used : NULL;
        used += rows_align(sizes[i]);
    }
    *work = (attention_work){.q = at[0],
                             .scores = (float *)(void *)at[1],
                             .p = job->type == TN_F32 ? at[1] : at[2],
                             .block = at[3],
                             .o = (float *)(void *)at[4],
                             .part = (float *)(void *)at[5],
                             .spans = (attention_span *)(void *)at[6],
                             .index = (int32_t *)(void *)at[7],
                             .chosen = (int32_t *)(void *)at[8]};
    return used;
}

size_t attention_scratch(const tn_call *call)
{
    attention_job job;
    attention_work work;
    attention_shape(call, &job);
    /* A call with fewer keys has items of more rows, and perhaps more scores: what is enough for these keys is enough
     * for fewer, since a session's memory is sized once. */
    tn_call first = *call;
    attention_job few;
    first.in[1].shape[1] = first.in[2].shape[1] = job.keys > 0;
    attention_shape(&first, &few);
    int64_t scores = few.rows * job.columns < MAX_SCORES ? few.rows * job.columns : MAX_SCORES;
    if (scores < job.rows * job.columns)
        scores = job.rows * job.columns;
    return attention_layout(&job, (size_t)few.rows, (size_t)scores, NULL, &work) * (size_t)tn_thread_count();
}

/* Finds the spans of keys at positions between lowest and highest. */
static void attention_find_spans(const attention_job *job, attention_work *work, int64_t b, int32_t lowest,
                                 int32_t highest)
{
    bool joins = job->type == job->q->dtype; /* else every block passes through work->block     */
    work->span_count = work->n = 0;
    for (int64_t first = 0; first < job->keys; first += KEY_BLOCK) {
        attention_span span = {first, job->keys - first < KEY_BLOCK ? job->keys - first : KEY_BLOCK, true};
        bool seen = false;
        for (int64_t s = 0; s < span.count; s++) {
            int32_t kv = attention_index(job->kv_index, b, first + s);
            work->index[work->n + s] = kv;
            span.clean &= kv >= 0;
            seen |= kv >= lowest && kv <= highest;
        }
        if (!seen)
            continue;
        work->n += span.count;
        attention_span *last = work->span_count ? &work->spans[work->span_count - 1] : NULL;
        if (joins && last && last->clean && span.clean && last->first + last->count == first)
            last->count += span.count;
        else
            work->spans[work->span_count++] = span;
    }
}

/* A span's keys or values of one head, in the products' type: in place where they are that already. Rows of unused
 * slots become zeros, so that what lies there cannot reach a result through 0 * NaN. */
static const char *attention_load(const attention_job *job, const attention_work *work, const tn_tensor *t, int64_t b,
                                  int64_t head, const attention_span *span, const int32_t *index, int64_t *stride)
{
    if (span->clean && t->dtype == job->type) {
        *stride = t->stride[1];
        return rows_at3(t, b, span->first, head);
    }
    size_t bytes = (size_t)t->shape[3] * tn_dtype_size(job->type);
    for (int64_t s = 0; s < span->count; s++) {
        char *to = work->block + (size_t)s * bytes;
        if (index[s] < 0)
            memset(to, 0, bytes);
        else if (t->dtype == job->type)
            memcpy(to, rows_at3(t, b, span->first + s, head), bytes);
        else
            convert_to_f32(rows_at3(t, b, span->first + s, head), t->dtype, (float *)(void *)to, t->shape[3]);
    }
    *stride = t->shape[3];
    return work->block;
}

/* scores[rows, count] = q keys^T. */
static void attention_dots(const attention_job *job, const attention_work *work, const char *keys, int64_t stride,
                           int64_t rows, int64_t count, float *scores)
{
    size_t size = tn_dtype_size(job->type);
    if (rows > FEW_ROWS) {
        gemm_shape shape = {.type = job->type,
                            .w_type = job->type,
                            .form = GEMM_NT,
                            .m = rows,
                            .n = count,
                            .k = job->d,
                            .lda = job->d,
                            .ldw = stride,
                            .ldc = job->columns};
        gemm_run(work->gemm, &shape, work->q, keys, scores, NULL);
        return;
    }
    float q[VEC_CHUNK];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < job->d; i += VEC_CHUNK) {
            int64_t n = job->d - i < VEC_CHUNK ? job->d - i : VEC_CHUNK;
            convert_to_f32(work->q + (size_t)(r * job->d + i) * size, job->type, q, n);
            for (int64_t s = 0; s < count; s++) {
                const char *key = keys + (size_t)(s * stride + i) * size;
                float dot =
                    job->type == TN_F32 ? vec_dot(q, (const float *)(const void *)key, n) : vec_dot_bf16(q, key, n);
                float *score = &scores[r * job->columns + s];
                *score = i ? *score + dot : dot;
            }
        }
}

/* o[rows, dv] += p values, with p in scores (rounded) and in work->p. */
static void attention_mix(const attention_job *job, attention_work *work, const char *values, int64_t stride,
                          int64_t rows, int64_t count, int64_t column)
{
    size_t size = tn_dtype_size(job->type);
    if (rows > FEW_ROWS) {
        gemm_shape shape = {.type = job->type,
                            .w_type = job->type,
                            .form = GEMM_NN,
                            .m = rows,
                            .n = job->dv,
                            .k = count,
                            .lda = job->columns,
                            .ldw = stride,
                            .ldc = job->dv};
        gemm_run(work->gemm, &shape, work->p + (size_t)column * size, values, work->part, NULL);
        vec_add(work->o, work->part, rows * job->dv);
        return;
    }
    for (int64_t s = 0; s < count; s++)
        for (int64_t r = 0; r < rows; r++) {
            float p = work->scores[r * job->columns + column + s];
            const char *value = values + (size_t)(s * stride) * size;
            if (p == 0.0f)
                continue;
            if (job->type == TN_F32)
                vec_add_scaled(work->o + r * job->dv, (const float *)(const void *)value, p, job->dv);
            else
                vec_add_scaled_bf16(work->o + r * job->dv, value, p, job->dv);
        }
}

/* Rounds a row of probabilities; for products of matrices also into their type. */
static void attention_store(const attention_job *job, attention_work *work, int64_t row, int64_t rows)
{
    float *scores = work->scores + row * job->columns;
    if (job->type == TN_F32 || rows <= FEW_ROWS)
        vec_round(scores, work->n, job->rule.dtype);
    else
        convert_from_f32(scores, job->type, work->p + (size_t)(row * job->columns) * tn_dtype_size(job->type), work->n);
}

static void attention_queries(const attention_job *job, attention_work *work, int64_t b, int64_t kv_head, int64_t first,
                              int64_t rows)
{
    size_t bytes = (size_t)job->d * tn_dtype_size(job->type);
    int32_t low = INT32_MAX, high = -1;
    for (int64_t r = 0; r < rows; r++) {
        int64_t t = first + r / job->group, head = kv_head * job->group + r % job->group;
        int32_t position = attention_index(job->q_index, b, t);
        int32_t from = seen_low(&job->rule.seen, position), to_position = seen_high(&job->rule.seen, position);
        low = from < low ? from : low;
        high = to_position > high ? to_position : high;
        char *to = work->q + (size_t)r * bytes;
        if (job->q->dtype == job->type)
            memcpy(to, rows_at3(job->q, b, t, head), bytes);
        else
            convert_to_f32(rows_at3(job->q, b, t, head), job->q->dtype, (float *)(void *)to, job->d);
    }
    attention_find_spans(job, work, b, low, high);
}

/* The positions of the spans' keys as query t sees them. */
static const int32_t *attention_seen(const attention_job *job, const attention_work *work, int64_t b, int64_t t)
{
    int64_t column = 0;
    if (!job->chosen)
        return work->index;
    for (int64_t i = 0; i < work->span_count; i++)
        for (int64_t s = 0; s < work->spans[i].count; s++, column++)
            work->chosen[column] = attention_is_chosen(job, b, t, work->spans[i].first + s) ? work->index[column] : -1;
    return work->chosen;
}

static void attention_item(const attention_job *job, attention_work *work, int64_t b, int64_t kv_head, int64_t tile)
{
    int64_t first = tile * job->tile, tokens = job->tokens - first < job->tile ? job->tokens - first : job->tile;
    int64_t rows = tokens * job->group, column = 0, stride;
    attention_queries(job, work, b, kv_head, first, rows);
    for (int64_t i = 0; i < work->span_count; column += work->spans[i++].count) {
        const attention_span *span = &work->spans[i];
        const char *keys = attention_load(job, work, job->k, b, kv_head, span, work->index + column, &stride);
        attention_dots(job, work, keys, stride, rows, span->count, work->scores + column);
    }
    for (int64_t r = 0; r < rows; r++) {
        attention_head head = attention_head_of(job, kv_head * job->group + r % job->group);
        int64_t t = first + r / job->group;
        attention_softmax(&job->rule, work->scores + r * job->columns, attention_seen(job, work, b, t), work->n,
                          attention_index(job->q_index, b, t), head);
        attention_store(job, work, r, rows);
    }
    memset(work->o, 0, (size_t)(rows * job->dv) * sizeof(float));
    column = 0;
    for (int64_t i = 0; i < work->span_count; column += work->spans[i++].count) {
        const attention_span *span = &work->spans[i];
        const char *values = attention_load(job, work, job->v, b, kv_head, span, work->index + column, &stride);
        attention_mix(job, work, values, stride, rows, span->count, column);
    }
    for (int64_t r = 0; r < rows; r++)
        convert_from_f32(work->o + r * job->dv, job->o->dtype,
                         rows_at3(job->o, b, first + r / job->group, kv_head * job->group + r % job->group), job->dv);
}

static void attention_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const attention_job *job = ctx;
    attention_work work;
    attention_layout(job, (size_t)job->rows, (size_t)(job->rows * job->columns),
                     job->scratch + (size_t)thread * job->thread_bytes, &work);
    work.gemm = gemm_acquire();
    for (int64_t item = begin; item < end; item++) {
        /* Later tiles of a prompt see more keys: taking them from both ends alternately evens the threads' shares. */
        int64_t i = item % job->tiles, tile = i % 2 ? job->tiles - 1 - i / 2 : i / 2;
        int64_t head = item / job->tiles % job->kv_heads, b = item / job->tiles / job->kv_heads;
        attention_item(job, &work, b, head, tile);
    }
    gemm_release(work.gemm);
}

tn_status attention_check(const tn_call *call, const attention_job *job, tn_error *err)
{
    if (job->kv_heads <= 0 || job->heads % job->kv_heads || job->q->dtype != job->k->dtype ||
        job->q->dtype != job->v->dtype)
        return tn_fail(err, TN_E_INTERNAL, call->site->path,
                       "attention heads or types do not fit each other; report this defect");
    return TN_OK;
}

tn_status attention_forward(const tn_call *call, tn_error *err)
{
    attention_job job;
    attention_work work;
    attention_shape(call, &job);
    tn_status status = attention_check(call, &job, err);
    if (status != TN_OK)
        return status;
    job.scratch = call->scratch;
    job.thread_bytes = attention_layout(&job, (size_t)job.rows, (size_t)(job.rows * job.columns), NULL, &work);
    int64_t cost = job.rows * job.columns * (job.d + job.dv) + 1;
    tn_parallel_for(job.batch * job.kv_heads * job.tiles, (WORTH_A_THREAD + cost - 1) / cost, attention_items, &job);
    return TN_OK;
}
