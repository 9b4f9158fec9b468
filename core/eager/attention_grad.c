/* Gradients of ATTENTION. With z the scores, P = softmax(z), o = rnd(P) v and g = dL/do:
 *
 *     dP = g v^T,  dz = P (dP - sum_s dP P),  dv = rnd(P)^T g,  dq = ds k,  dk = ds^T q,
 *
 * ds = dz on its way back through softcap and scale; slopes are constants. A sink's gradient is minus the sum of p_sink
 * (sum_s dP P) over the queries of its head.
 *
 * The work is cut into items: one batch row and one key/value head. An item's keys and values are turned into f32 once;
 * its query heads follow one another, in tiles of queries, and add to the same dk and dv: no sum is divided between
 * threads but that of a sink over batch rows, which is formed at the end in their order. All products are f32's. */
#include "eager/attention.h"
#include "eager/gemm.h"
#include "eager/vec.h"

#define TILE_ROWS 128                  /* queries of a tile                                        */
#define TILE_SCORES (INT64_C(1) << 20) /* floats of its scores                                     */

typedef struct grad_job {
    attention_job shape;
    const tn_tensor *g, *dq, *dk, *dv; /* data NULL: zeros; not wanted                             */
    float *dsinks;                     /* [batch, heads]; NULL: not wanted                         */
    int64_t rows;                      /* queries of a tile                                        */
    char *threads;
    size_t thread_bytes;
} grad_job;

/* A thread's memory, all f32 but the index. */
typedef struct grad_work {
    float *k, *v, *dk, *dv;        /* [keys, d], [keys, dv]                                         */
    float *part;                   /* [keys, max(d, dv)]                                            */
    float *q, *g, *dq;             /* [rows, d], [rows, dv], [rows, d]                              */
    float *products, *p, *dscores; /* [rows, keys]                                                 */
    int32_t *index, *chosen;       /* [keys]: kv_index; the same for one query                       */
    gemm_context *gemm;
} grad_work;

static size_t grad_layout(const grad_job *job, char *base, grad_work *work)
{
    const attention_job *s = &job->shape;
    size_t keys = (size_t)s->keys, rows = (size_t)job->rows, d = (size_t)s->d, dv = (size_t)s->dv;
    const size_t sizes[] = {
        keys * d,    keys * dv,   keys * d,    keys * dv, keys * (d > dv ? d : dv), rows * d, rows * dv, rows * d,
        rows * keys, rows * keys, rows * keys, keys,      s->chosen ? keys : 0};
    float *at[sizeof sizes / sizeof *sizes];
    size_t used = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        at[i] = base ? (float *)(void *)(base + used) : NULL;
        used += rows_align(sizes[i] * sizeof(float));
    }
    *work = (grad_work){.k = at[0],
                        .v = at[1],
                        .dk = at[2],
                        .dv = at[3],
                        .part = at[4],
                        .q = at[5],
                        .g = at[6],
                        .dq = at[7],
                        .products = at[8],
                        .p = at[9],
                        .dscores = at[10],
                        .index = (int32_t *)(void *)at[11],
                        .chosen = (int32_t *)(void *)at[12]};
    return used;
}

static void grad_shape(const tn_call *call, grad_job *job)
{
    *job = (grad_job){
        .g = &call->grads->out[0], .dq = &call->grads->in[0], .dk = &call->grads->in[1], .dv = &call->grads->in[2]};
    attention_shape(call, &job->shape);
    int64_t keys = job->shape.keys > 0 ? job->shape.keys : 1, rows = TILE_SCORES / keys;
    rows = rows < 1 ? 1 : rows < TILE_ROWS ? rows : TILE_ROWS;
    job->rows = rows < job->shape.tokens ? rows : job->shape.tokens;
}

static size_t grad_sink_bytes(const grad_job *job)
{
    return job->shape.sinks ? rows_align((size_t)(job->shape.batch * job->shape.heads) * sizeof(float)) : 0;
}

static size_t attention_backward_scratch(const tn_call *call)
{
    grad_job job;
    grad_work work;
    grad_shape(call, &job);
    return grad_sink_bytes(&job) + grad_layout(&job, NULL, &work) * (size_t)tn_thread_count();
}

/* Rows first .. of one head as f32; zeros where there are no data, and where index says that a slot is not used. */
static void grad_load(const tn_tensor *t, int64_t b, int64_t first, int64_t head, int64_t rows, int64_t width,
                      const int32_t *index, float *to)
{
    for (int64_t i = 0; i < rows; i++, to += width) {
        if (!t->data || (index && index[i] < 0))
            memset(to, 0, (size_t)width * sizeof *to);
        else
            convert_to_f32(rows_at3(t, b, first + i, head), t->dtype, to, width);
    }
}

static void grad_store(const tn_tensor *t, int64_t b, int64_t first, int64_t head, int64_t rows, const float *from)
{
    for (int64_t i = 0; t->data && i < rows; i++)
        convert_from_f32(from + i * t->shape[3], t->dtype, rows_at3(t, b, first + i, head), t->shape[3]);
}

/* sum [keys, width] += a^T w over the rows of a tile. */
static void accumulate(const grad_job *job, const grad_work *work, const float *a, const float *w, int64_t rows,
                       int64_t width, float *sum)
{
    gemm_dense(work->gemm, GEMM_TN, job->shape.keys, width, rows, a, w, work->part);
    vec_add(sum, work->part, job->shape.keys * width);
}

/* One query: p [keys] holds the products and gets rnd(P); dscores [keys] holds dP and gets ds. Returns the sink's share
 * of the gradient. */
static float grad_query(const grad_job *job, const grad_work *work, int64_t row, const int32_t *index, int32_t position,
                        attention_head head)
{
    const attention_scores *rule = &job->shape.rule;
    int64_t keys = job->shape.keys;
    const float *products = work->products + row * keys;
    float *p = work->p + row * keys, *dscores = work->dscores + row * keys;
    memcpy(p, products, (size_t)keys * sizeof *p);
    float dropped = attention_softmax(rule, p, index, keys, position, head);
    vec_round(dscores, keys, rule->dtype);
    float inner = (float)vec_dot_wide(dscores, p, keys);
    for (int64_t i = 0; i < keys; i++)
        dscores[i] = p[i] == 0.0f ? 0.0f : p[i] * (dscores[i] - inner);
    attention_scores_grad(rule, products, dscores, keys);
    vec_round(p, keys, rule->dtype);
    return -dropped * inner;
}

/* The positions of the keys as query t sees them. */
static const int32_t *grad_seen(const grad_job *job, const grad_work *work, int64_t b, int64_t t)
{
    const attention_job *s = &job->shape;
    for (int64_t i = 0; s->chosen && i < s->keys; i++)
        work->chosen[i] = attention_is_chosen(s, b, t, i) ? work->index[i] : -1;
    return s->chosen ? work->chosen : work->index;
}

/* Queries first .. of one head. Returns their share of the sink's gradient. */
static double grad_tile(const grad_job *job, const grad_work *work, int64_t b, int64_t head, int64_t first,
                        int64_t rows)
{
    const attention_job *s = &job->shape;
    double dsink = 0.0;
    const attention_head own = attention_head_of(s, head);
    grad_load(s->q, b, first, head, rows, s->d, NULL, work->q);
    grad_load(job->g, b, first, head, rows, s->dv, NULL, work->g);
    gemm_dense(work->gemm, GEMM_NT, rows, s->keys, s->d, work->q, work->k, work->products);
    gemm_dense(work->gemm, GEMM_NT, rows, s->keys, s->dv, work->g, work->v, work->dscores);
    for (int64_t r = 0; r < rows; r++)
        dsink += (double)grad_query(job, work, r, grad_seen(job, work, b, first + r),
                                    attention_index(s->q_index, b, first + r), own);
    accumulate(job, work, work->p, work->g, rows, s->dv, work->dv);
    accumulate(job, work, work->dscores, work->q, rows, s->d, work->dk);
    gemm_dense(work->gemm, GEMM_NN, rows, s->d, s->keys, work->dscores, work->k, work->dq);
    grad_store(job->dq, b, first, head, rows, work->dq);
    return dsink;
}

static void grad_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const grad_job *job = ctx;
    const attention_job *s = &job->shape;
    grad_work work;
    grad_layout(job, job->threads + (size_t)thread * job->thread_bytes, &work);
    work.gemm = gemm_acquire();
    for (int64_t item = begin; item < end; item++) {
        int64_t b = item / s->kv_heads, kv_head = item % s->kv_heads;
        for (int64_t i = 0; i < s->keys; i++)
            work.index[i] = attention_index(s->kv_index, b, i);
        grad_load(s->k, b, 0, kv_head, s->keys, s->d, work.index, work.k);
        grad_load(s->v, b, 0, kv_head, s->keys, s->dv, work.index, work.v);
        if (s->keys > 0) {
            memset(work.dk, 0, (size_t)(s->keys * s->d) * sizeof(float));
            memset(work.dv, 0, (size_t)(s->keys * s->dv) * sizeof(float));
        }
        for (int64_t head = kv_head * s->group; head < (kv_head + 1) * s->group; head++) {
            double dsink = 0.0;
            for (int64_t first = 0; first < s->tokens; first += job->rows)
                dsink += grad_tile(job, &work, b, head, first,
                                   s->tokens - first < job->rows ? s->tokens - first : job->rows);
            if (job->dsinks)
                job->dsinks[b * s->heads + head] = (float)dsink;
        }
        grad_store(job->dk, b, 0, kv_head, s->keys, work.dk);
        grad_store(job->dv, b, 0, kv_head, s->keys, work.dv);
    }
    gemm_release(work.gemm);
}

static tn_status attention_backward(const tn_call *call, tn_error *err)
{
    grad_job job;
    grad_work work;
    grad_shape(call, &job);
    const attention_job *s = &job.shape;
    const tn_param *sinks = &call->grads->param[TN_ROLE_SINKS];
    tn_status status = attention_check(call, s, err);
    if (status != TN_OK)
        return status;
    bool wants_sinks = s->sinks && sinks->count > 0;
    job.dsinks = wants_sinks ? call->scratch : NULL;
    job.threads = (char *)call->scratch + grad_sink_bytes(&job);
    job.thread_bytes = grad_layout(&job, NULL, &work);
    tn_parallel_for(s->batch * s->kv_heads, 1, grad_items, &job);
    for (int64_t head = 0; wants_sinks && head < s->heads; head++) {
        double sum = 0.0;
        for (int64_t b = 0; b < s->batch; b++)
            sum += (double)job.dsinks[b * s->heads + head];
        float total = (float)sum;
        const tn_tensor *to = sinks->tensors;
        convert_from_f32(&total, to->dtype, (char *)to->data + (size_t)head * tn_dtype_size(to->dtype), 1);
    }
    return TN_OK;
}

const eager_op eager_attention = {.op = TN_OP_ATTENTION,
                                  .scratch = attention_scratch,
                                  .forward = attention_forward,
                                  .backward_scratch = attention_backward_scratch,
                                  .backward = attention_backward};
