/* ATTENTION: softmax(scale q k^T) v over the cached positions that a query sees, grouped query heads, no mask in
 * memory.
 *
 * The work is cut into items: one batch row, one key/value head, one tile of queries. An item's rows are the tile's
 * queries times the G query heads of its key/value head. Its scores against all keys lie in scratch, block of keys
 * by block; blocks that no query of the tile sees are left out. Roundings as in transformers: rnd(rnd(q k^T) * scale),
 * softcap in three, softmax in f32 and rounded, the product with v in f32 and rounded once. */
#include "eager/gemm.h"
#include "eager/rows.h"
#include "eager/vec.h"

#include <math.h>

#define KEY_BLOCK 256
#define MAX_ROWS 128                  /* rows of an item                                             */
#define MAX_SCORES (INT64_C(1) << 20) /* floats of an item's scores, where one row leaves a choice */
#define FEW_ROWS 4                    /* up to here plain dot products beat sgemm                    */

typedef struct attention_job {
    const tn_tensor *q, *k, *v, *q_index, *kv_index, *o, *sinks;
    int64_t batch, tokens, keys, heads, kv_heads, group, d, dv, window;
    float scale, softcap;
    int64_t tile, tiles, rows, blocks;
    char *scratch;
    size_t thread_bytes;
} attention_job;

/* A thread's memory. */
typedef struct attention_work {
    float *q;         /* [rows, d]                                                                  */
    float *scores;    /* [rows, visible blocks * KEY_BLOCK]                                         */
    float *block;     /* [KEY_BLOCK, max(d, dv)]: keys or values in f32                             */
    float *o;         /* [rows, dv]                                                                 */
    int32_t *visible; /* numbers of the visible blocks                                           */
    int32_t *index;   /* kv_index of their keys, one after the other                             */
    int64_t visible_count;
    gemm_context *gemm;
} attention_work;

static void attention_shape(const tn_call *call, attention_job *job)
{
    const tn_site *site = call->site;
    *job = (attention_job){.q = &call->in[0],
                           .k = &call->in[1],
                           .v = &call->in[2],
                           .q_index = &call->in[3],
                           .kv_index = &call->in[4],
                           .o = &call->out[0]};
    job->sinks = site->features & TN_HAS_SINKS ? rows_param(site, TN_ROLE_SINKS) : NULL;
    job->batch = job->q->shape[0];
    job->tokens = job->q->shape[1];
    job->heads = job->q->shape[2];
    job->d = job->q->shape[3];
    job->keys = job->k->shape[1];
    job->kv_heads = job->k->shape[2];
    job->dv = job->v->shape[3];
    job->group = job->kv_heads > 0 ? job->heads / job->kv_heads : 0;
    job->window = site->features & TN_HAS_WINDOW ? site->dim[TN_DIM_WINDOW] : 0;
    job->softcap = site->features & TN_HAS_SOFTCAP ? (float)site->num[TN_NUM_SOFTCAP] : 0.0f;
    job->scale = (float)site->num[TN_NUM_SCALE];
    job->blocks = (job->keys + KEY_BLOCK - 1) / KEY_BLOCK;
    int64_t rows = job->keys > 0 ? MAX_SCORES / (job->blocks * KEY_BLOCK) : MAX_ROWS;
    rows = rows > MAX_ROWS ? MAX_ROWS : rows;
    job->tile = job->group > 0 && rows > job->group ? rows / job->group : 1;
    if (job->tile > job->tokens)
        job->tile = job->tokens > 0 ? job->tokens : 1;
    job->tiles = (job->tokens + job->tile - 1) / job->tile;
    job->rows = job->tile * job->group;
}

/* Lays a thread's memory out; returns its size. */
static size_t attention_layout(const attention_job *job, char *base, attention_work *work)
{
    size_t rows = (size_t)job->rows, width = (size_t)(job->d > job->dv ? job->d : job->dv);
    size_t sizes[6] = {
        rows * (size_t)job->d * sizeof(float), rows * (size_t)job->blocks * KEY_BLOCK * sizeof(float),
        KEY_BLOCK * width * sizeof(float),     rows * (size_t)job->dv * sizeof(float),
        (size_t)job->blocks * sizeof(int32_t), (size_t)job->blocks * KEY_BLOCK * sizeof(int32_t),
    };
    size_t at[6], used = 0;
    for (int i = 0; i < 6; i++) {
        at[i] = used;
        used += rows_align(sizes[i]);
    }
    if (work) {
        work->q = (float *)(void *)(base + at[0]);
        work->scores = (float *)(void *)(base + at[1]);
        work->block = (float *)(void *)(base + at[2]);
        work->o = (float *)(void *)(base + at[3]);
        work->visible = (int32_t *)(void *)(base + at[4]);
        work->index = (int32_t *)(void *)(base + at[5]);
    }
    return used;
}

static size_t attention_scratch(const tn_call *call)
{
    attention_job job;
    attention_shape(call, &job);
    return attention_layout(&job, NULL, NULL) * (size_t)tn_thread_count();
}

static int32_t index_at(const tn_tensor *t, int64_t b, int64_t i)
{
    return ((const int32_t *)t->data)[b * t->stride[0] + i * t->stride[1]];
}

static int64_t block_keys(const attention_job *job, int64_t block)
{
    int64_t left = job->keys - block * KEY_BLOCK;
    return left < KEY_BLOCK ? left : KEY_BLOCK;
}

/* Which blocks hold a key that some query between low and high may see, and the indices of their keys. */
static void attention_find_blocks(const attention_job *job, attention_work *work, int64_t b, int32_t low, int32_t high)
{
    int32_t *index = work->index;
    work->visible_count = 0;
    for (int64_t block = 0; block < job->blocks; block++) {
        bool seen = false;
        int64_t count = block_keys(job, block);
        for (int64_t s = 0; s < count; s++) {
            int32_t kv = index_at(job->kv_index, b, block * KEY_BLOCK + s);
            index[s] = kv;
            seen |= kv >= 0 && kv <= high && (job->window <= 0 || (int64_t)low - kv < job->window);
        }
        if (!seen)
            continue;
        work->visible[work->visible_count++] = (int32_t)block;
        index += count;
    }
}

/* A block of keys or values of one head as f32 rows: in place where they are that already. Rows of unused slots are
 * zero, so that what lies there cannot reach a result through 0 * NaN. */
static const float *attention_load(const attention_job *job, const tn_tensor *t, int64_t b, int64_t head, int64_t block,
                                   const int32_t *index, float *buffer, int64_t *stride)
{
    int64_t count = block_keys(job, block), first = block * KEY_BLOCK, width = t->shape[3];
    bool clean = t->dtype == TN_F32;
    for (int64_t s = 0; s < count && clean; s++)
        clean = index[s] >= 0;
    if (clean) {
        *stride = t->stride[1];
        return (const float *)(const void *)rows_at3(t, b, first, head);
    }
    for (int64_t s = 0; s < count; s++)
        if (index[s] >= 0)
            convert_to_f32(rows_at3(t, b, first + s, head), t->dtype, buffer + s * width, width);
        else
            memset(buffer + s * width, 0, (size_t)width * sizeof *buffer);
    *stride = width;
    return buffer;
}

/* scores[rows, count] = q keys^T. */
static void attention_dots(const attention_job *job, attention_work *work, const float *keys, int64_t stride,
                           int64_t rows, int64_t count, float *scores, int64_t ld)
{
    if (rows > FEW_ROWS) {
        gemm_shape shape = {.type = TN_F32,
                            .w_type = TN_F32,
                            .form = GEMM_NT,
                            .m = rows,
                            .n = count,
                            .k = job->d,
                            .lda = job->d,
                            .ldw = stride,
                            .ldc = ld};
        gemm_f32(work->gemm, &shape, work->q, keys, scores, false);
        return;
    }
    for (int64_t s = 0; s < count; s++)
        for (int64_t r = 0; r < rows; r++)
            scores[r * ld + s] = vec_dot(work->q + r * job->d, keys + s * stride, job->d);
}

/* o[rows, dv] += p values. */
static void attention_mix(const attention_job *job, attention_work *work, const float *values, int64_t stride,
                          int64_t rows, int64_t count, const float *p, int64_t ld)
{
    if (rows > FEW_ROWS) {
        gemm_shape shape = {.type = TN_F32,
                            .w_type = TN_F32,
                            .form = GEMM_NN,
                            .m = rows,
                            .n = job->dv,
                            .k = count,
                            .lda = ld,
                            .ldw = stride,
                            .ldc = job->dv};
        gemm_f32(work->gemm, &shape, p, values, work->o, true);
        return;
    }
    for (int64_t s = 0; s < count; s++)
        for (int64_t r = 0; r < rows; r++)
            if (p[r * ld + s] != 0.0f)
                vec_add_scaled(work->o + r * job->dv, values + s * stride, p[r * ld + s], job->dv);
}

/* rnd(rnd(q k^T) * scale), then the softcap, of n scores. */
static void attention_round(const attention_job *job, float *scores, int64_t n)
{
    tn_dtype dtype = job->q->dtype;
    vec_round(scores, n, dtype);
    vec_scale(scores, n, job->scale);
    vec_round(scores, n, dtype);
    if (job->softcap == 0.0f)
        return;
    vec_div(scores, n, job->softcap);
    vec_round(scores, n, dtype);
    vec_act(TN_ACT_TANH, dtype, scores, n);
    vec_scale(scores, n, job->softcap);
    vec_round(scores, n, dtype);
}

/* Scores of keys that query q does not see become -inf. Does it see any? */
EAGER_CLONES static bool attention_mask(float *scores, const int32_t *index, int64_t n, int32_t q, int64_t window)
{
    /* kv > q - window, without leaving 32 bits: q >= kv >= 0 then holds too. */
    int32_t lowest = window > q ? 0 : (int32_t)(q - window + 1), any = 0;
    for (int64_t i = 0; i < n; i++) {
        bool sees = index[i] >= lowest && index[i] <= q;
        scores[i] = sees ? scores[i] : -INFINITY;
        any |= sees;
    }
    return any;
}

/* One row of scores becomes probabilities in the model's type; a row that sees nothing becomes zeros. */
static void attention_softmax(const attention_job *job, const attention_work *work, float *scores, int64_t n, int64_t b,
                              int64_t t, int64_t head)
{
    int64_t window = job->window > 0 ? job->window : INT64_C(1) << 32;
    if (!attention_mask(scores, work->index, n, index_at(job->q_index, b, t), window)) {
        memset(scores, 0, (size_t)n * sizeof *scores);
        return;
    }
    float max = vec_max(scores, n), sink = 0.0f;
    if (job->sinks) {
        const tn_tensor *sinks = job->sinks;
        convert_to_f32((const char *)sinks->data + (size_t)head * tn_dtype_size(sinks->dtype), sinks->dtype, &sink, 1);
        max = sink > max ? sink : max;
    }
    /* All visible scores at -inf leave -inf - -inf: NaN, as in transformers. */
    float sum = vec_exp_sum(scores, n, max);
    if (job->sinks)
        sum += vec_exp(sink - max);
    vec_div(scores, n, sum);
    vec_round(scores, n, job->q->dtype);
}

static void attention_item(const attention_job *job, attention_work *work, int64_t b, int64_t kv_head, int64_t tile)
{
    int64_t first = tile * job->tile, tokens = job->tokens - first < job->tile ? job->tokens - first : job->tile;
    int64_t rows = tokens * job->group, ld = job->blocks * KEY_BLOCK, stride;
    int32_t low = INT32_MAX, high = -1;
    for (int64_t t = 0; t < tokens; t++) {
        int32_t q = index_at(job->q_index, b, first + t);
        low = q < low ? q : low;
        high = q > high ? q : high;
        for (int64_t g = 0; g < job->group; g++)
            convert_to_f32(rows_at3(job->q, b, first + t, kv_head * job->group + g), job->q->dtype,
                           work->q + (t * job->group + g) * job->d, job->d);
    }
    attention_find_blocks(job, work, b, low, high);
    int64_t n = 0;
    for (int64_t i = 0; i < work->visible_count; i++) {
        int64_t count = block_keys(job, work->visible[i]);
        const float *keys =
            attention_load(job, job->k, b, kv_head, work->visible[i], work->index + n, work->block, &stride);
        attention_dots(job, work, keys, stride, rows, count, work->scores + n, ld);
        n += count;
    }
    for (int64_t r = 0; r < rows; r++) {
        attention_round(job, work->scores + r * ld, n);
        attention_softmax(job, work, work->scores + r * ld, n, b, first + r / job->group,
                          kv_head * job->group + r % job->group);
    }
    memset(work->o, 0, (size_t)(rows * job->dv) * sizeof(float));
    n = 0;
    for (int64_t i = 0; i < work->visible_count; i++) {
        int64_t count = block_keys(job, work->visible[i]);
        const float *values =
            attention_load(job, job->v, b, kv_head, work->visible[i], work->index + n, work->block, &stride);
        attention_mix(job, work, values, stride, rows, count, work->scores + n, ld);
        n += count;
    }
    for (int64_t r = 0; r < rows; r++)
        convert_from_f32(work->o + r * job->dv, job->o->dtype,
                         rows_at3(job->o, b, first + r / job->group, kv_head * job->group + r % job->group), job->dv);
}

static void attention_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const attention_job *job = ctx;
    attention_work work;
    attention_layout(job, job->scratch + (size_t)thread * job->thread_bytes, &work);
    work.gemm = gemm_acquire();
    for (int64_t item = begin; item < end; item++) {
        /* Later tiles of a prompt see more keys: taking them from both ends alternately evens the threads' shares. */
        int64_t i = item % job->tiles, tile = i % 2 ? job->tiles - 1 - i / 2 : i / 2;
        int64_t head = item / job->tiles % job->kv_heads, b = item / job->tiles / job->kv_heads;
        attention_item(job, &work, b, head, tile);
    }
    gemm_release(work.gemm);
}

static tn_status attention_forward(const tn_call *call, tn_error *err)
{
    attention_job job;
    attention_shape(call, &job);
    if (job.kv_heads <= 0 || job.heads % job.kv_heads)
        return tn_fail(err, TN_E_INTERNAL, call->site->path, "attention heads do not divide; report this defect");
    job.scratch = call->scratch;
    job.thread_bytes = attention_layout(&job, NULL, NULL);
    tn_parallel_for(job.batch * job.kv_heads * job.tiles, 1, attention_items, &job);
    return TN_OK;
}

const eager_op eager_attention = {.op = TN_OP_ATTENTION, .scratch = attention_scratch, .forward = attention_forward};
