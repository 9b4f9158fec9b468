/* GATED_DELTA_RULE: linear attention whose state M [dk,dv] of a value head forgets by e^g and is corrected by each
 * token towards v at its key:
 *
 *     M = e^g M,  d = beta (v - M^T k),  M = M + k d^T,  o = M^T q.
 *
 * A few tokens are taken one by one. More of them in chunks, within which what the tokens write depends on each other
 * by a triangular system; with c_i the sum of g up to token i, M what was before the chunk and R the rows d_i:
 *
 *     d_i = beta_i (v_i - e^{c_i} M^T k_i - sum_{j<i} e^{c_i - c_j} (k_i k_j) d_j),
 *     o_i = e^{c_i} M^T q_i + sum_{j<=i} e^{c_i - c_j} (q_i k_j) d_j,   M = e^{c_n} M + sum_j e^{c_n - c_j} k_j d_j^T.
 *
 * Where each channel of a key forgets at its own rate, e^g is a factor for each row of M, and tokens are always taken
 * one by one.
 *
 * The sums c are kept in double, so that a difference of large ones is as good as the g between them. */
#include "eager/delta_rule.h"

#include "eager/gemm.h"

#include <math.h>

/* Tokens of a chunk; calls with fewer tokens than FEW take them one by one. */
enum { CHUNK = 64, FEW = 16 };

/* ---- what delta_rule_forward and backward read
 * ------------------------------------------------------------------------------ */

delta_job delta_rule_job(const tn_call *call)
{
    const tn_tensor *v = &call->in[0], *k = &call->in[3];
    return (delta_job){.v = v,
                       .state = &call->in[1],
                       .q = &call->in[2],
                       .k = k,
                       .a = &call->in[4],
                       .b = &call->in[5],
                       .index = &call->in[6],
                       .rate = rows_param(call->site, TN_ROLE_DECAY),
                       .bias = rows_param(call->site, TN_ROLE_BIAS),
                       .dtype = v->dtype,
                       .rows = v->shape[0],
                       .tokens = v->shape[1],
                       .qk_heads = k->shape[2],
                       .v_heads = v->shape[2],
                       .group = v->shape[2] / k->shape[2],
                       .dk = k->shape[3],
                       .dv = v->shape[3],
                       .rates = call->site->features & TN_HAS_CHANNEL_DECAY ? k->shape[3] : 1};
}

static float *take_floats(char *base, size_t *used, int64_t count)
{
    return (float *)(void *)rows_take(base, used, (size_t)count * sizeof(float));
}

void delta_rule_place(const delta_job *job, int64_t n, char *base, size_t *used, delta_tokens *tokens)
{
    *tokens = (delta_tokens){.q = take_floats(base, used, n * job->dk),
                             .k = take_floats(base, used, n * job->dk),
                             .v = take_floats(base, used, n * job->dv),
                             .g = take_floats(base, used, n * job->rates),
                             .beta = take_floats(base, used, n),
                             .slope = take_floats(base, used, n * job->rates)};
}

int64_t delta_rule_real(const delta_job *job, int64_t row, int32_t *real)
{
    const int32_t *index = (const int32_t *)job->index->data + row * job->index->stride[0];
    int64_t count = 0;
    for (int64_t t = 0; t < job->tokens; t++)
        if (index[t] >= 0)
            real[count++] = (int32_t)t;
    return count;
}

/* 1 / sqrt(sum x^2 + eps) */
static float inverse_norm(const float *x, int64_t n)
{
    return 1.0f / sqrtf((float)vec_dot_wide(x, x, n) + 1e-6f);
}

float delta_rule_query_scale(const delta_job *job)
{
    return 1.0f / sqrtf((float)job->dk);
}

size_t delta_rule_at(const tn_tensor *t, int64_t row, int64_t token, int64_t head, int64_t channel)
{
    int64_t inner = t->ndim > 3 ? head * t->stride[2] + channel : head;
    return (size_t)(row * t->stride[0] + token * t->stride[1] + inner) * tn_dtype_size(t->dtype);
}

static float element(const tn_tensor *t, int64_t row, int64_t token, int64_t head, int64_t channel)
{
    float value;
    convert_to_f32((const char *)t->data + delta_rule_at(t, row, token, head, channel), t->dtype, &value, 1);
    return value;
}

static float param(const tn_tensor *t, int64_t head, int64_t channel)
{
    int64_t at = t->ndim > 1 ? head * t->stride[0] + channel : head;
    float value;
    convert_to_f32((const char *)t->data + (size_t)at * tn_dtype_size(t->dtype), t->dtype, &value, 1);
    return value;
}

/* g = -e^rate softplus(a + bias), no further down than what e^g makes 0 of; beta = rnd(sigmoid(b)). */
static void load_gates(const delta_job *job, int64_t row, int64_t head, int64_t token, delta_tokens *to, int64_t at)
{
    const float floor = -1e4f;
    float rate = expf(param(job->rate, head, 0));
    for (int64_t c = 0; c < job->rates; c++) {
        float x = element(job->a, row, token, head, c) + param(job->bias, head, c);
        float g = -(rate * (x > 20.0f ? x : log1pf(expf(x))));
        to->g[at * job->rates + c] = g < floor ? floor : g;
        to->slope[at * job->rates + c] = -rate / (1.0f + expf(-x));
    }
    to->beta[at] = element(job->b, row, token, head, 0);
    vec_act(TN_ACT_SIGMOID, job->dtype, &to->beta[at], 1);
}

void delta_rule_load(const delta_job *job, int64_t row, int64_t head, const int32_t *real, int64_t n, delta_tokens *to)
{
    int64_t qk_head = head / job->group;
    float scale = delta_rule_query_scale(job);
    for (int64_t i = 0; i < n; i++) {
        float *q = to->q + i * job->dk, *k = to->k + i * job->dk;
        convert_to_f32(rows_at3(job->q, row, real[i], qk_head), job->dtype, q, job->dk);
        convert_to_f32(rows_at3(job->k, row, real[i], qk_head), job->dtype, k, job->dk);
        convert_to_f32(rows_at3(job->v, row, real[i], head), job->dtype, to->v + i * job->dv, job->dv);
        vec_scale(q, job->dk, inverse_norm(q, job->dk));
        vec_scale(q, job->dk, scale);
        vec_scale(k, job->dk, inverse_norm(k, job->dk));
        load_gates(job, row, head, real[i], to, i);
    }
}

void delta_rule_forget(const delta_job *job, const float *g, float *m)
{
    for (int64_t j = 0; j < job->rates; j++)
        vec_scale(m + j * job->dv, job->rates > 1 ? job->dv : job->dk * job->dv, expf(g[j]));
}

void delta_rule_load_state(const tn_tensor *t, int64_t row, int64_t head, float *m)
{
    for (int64_t i = 0; i < t->shape[2]; i++)
        memcpy(m + i * t->shape[3], rows_at3(t, row, head, i), (size_t)t->shape[3] * sizeof *m);
}

void delta_rule_store_state(const tn_tensor *t, int64_t row, int64_t head, const float *m)
{
    for (int64_t i = 0; i < t->shape[2]; i++)
        memcpy(rows_at3(t, row, head, i), m + i * t->shape[3], (size_t)t->shape[3] * sizeof *m);
}

void delta_rule_clear_padding(const delta_job *job, const tn_tensor *t, int64_t row, int64_t head)
{
    const int32_t *index = (const int32_t *)job->index->data + row * job->index->stride[0];
    for (int64_t token = 0; token < job->tokens; token++)
        if (index[token] < 0)
            memset(rows_at3(t, row, token, head), 0, (size_t)t->shape[3] * tn_dtype_size(t->dtype));
}

/* ---- delta_rule_forward
 * ----------------------------------------------------------------------------------------------------- */

typedef struct forward_job {
    delta_job delta;
    const tn_tensor *o, *next;
    char *scratch;
    size_t thread_bytes;
} forward_job;

typedef struct forward_work {
    delta_tokens tokens; /* [CHUNK]                                                                */
    float *m, *part;     /* [dk, dv]                                                               */
    float *o, *seen;     /* [CHUNK, dv]: results; what the state holds at the keys                  */
    float *kk, *qk;      /* [CHUNK, CHUNK]                                                         */
    int32_t *real;       /* [tokens]                                                               */
    gemm_context *gemm;
} forward_work;

static size_t forward_layout(const delta_job *job, char *base, forward_work *work)
{
    size_t used = 0;
    delta_rule_place(job, CHUNK, base, &used, &work->tokens);
    work->m = take_floats(base, &used, job->dk * job->dv);
    work->part = take_floats(base, &used, job->dk * job->dv);
    work->o = take_floats(base, &used, CHUNK * job->dv);
    work->seen = take_floats(base, &used, CHUNK * job->dv);
    work->kk = take_floats(base, &used, CHUNK * CHUNK);
    work->qk = take_floats(base, &used, CHUNK * CHUNK);
    work->real = (int32_t *)(void *)rows_take(base, &used, (size_t)job->tokens * sizeof(int32_t));
    return used;
}

static void one_by_one(const delta_job *job, forward_work *work, int64_t n)
{
    const delta_tokens *t = &work->tokens;
    int64_t dk = job->dk, dv = job->dv;
    for (int64_t i = 0; i < n; i++) {
        const float *q = t->q + i * dk, *k = t->k + i * dk;
        float *d = t->v + i * dv, *o = work->o + i * dv;
        memset(work->seen, 0, (size_t)dv * sizeof(float));
        memset(o, 0, (size_t)dv * sizeof(float));
        delta_rule_forget(job, t->g + i * job->rates, work->m);
        for (int64_t j = 0; j < dk; j++)
            vec_add_scaled(work->seen, work->m + j * dv, k[j], dv);
        vec_add_scaled(d, work->seen, -1.0f, dv);
        vec_scale(d, dv, t->beta[i]);
        for (int64_t j = 0; j < dk; j++) {
            vec_add_scaled(work->m + j * dv, d, k[j], dv);
            vec_add_scaled(o, work->m + j * dv, q[j], dv);
        }
    }
}

/* The rows d_i in the place of v, from the first to the last; qk gets the factors of o. */
static void solve_chunk(const delta_job *job, forward_work *work, const double *sum, int64_t n)
{
    const delta_tokens *t = &work->tokens;
    int64_t dv = job->dv;
    for (int64_t i = 0; i < n; i++) {
        float *d = t->v + i * dv, *qk = work->qk + i * n, decay = (float)exp(sum[i]);
        vec_add_scaled(d, work->seen + i * dv, -decay, dv);
        for (int64_t j = 0; j < n; j++) {
            float between = j <= i ? (float)exp(sum[i] - sum[j]) : 0.0f;
            qk[j] = j <= i ? qk[j] * between : 0.0f;
            if (j < i)
                vec_add_scaled(d, t->v + j * dv, -(work->kk[i * n + j] * between), dv);
        }
        vec_scale(d, dv, t->beta[i]);
        vec_scale(work->o + i * dv, dv, decay);
    }
}

static void whole_chunk(const delta_job *job, forward_work *work, int64_t n)
{
    const delta_tokens *t = &work->tokens;
    int64_t dk = job->dk, dv = job->dv;
    double sum[CHUNK], all = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum[i] = all += (double)t->g[i];
    gemm_dense(work->gemm, GEMM_NT, n, n, dk, t->k, t->k, work->kk);
    gemm_dense(work->gemm, GEMM_NT, n, n, dk, t->q, t->k, work->qk);
    gemm_dense(work->gemm, GEMM_NN, n, dv, dk, t->k, work->m, work->seen);
    gemm_dense(work->gemm, GEMM_NN, n, dv, dk, t->q, work->m, work->o);
    solve_chunk(job, work, sum, n);
    gemm_dense(work->gemm, GEMM_NN, n, dv, n, work->qk, t->v, work->seen);
    vec_add(work->o, work->seen, n * dv);
    for (int64_t i = 0; i < n; i++)
        vec_scale(t->k + i * dk, dk, (float)exp(all - sum[i]));
    gemm_dense(work->gemm, GEMM_TN, dk, dv, n, t->k, t->v, work->part);
    vec_scale(work->m, dk * dv, (float)exp(all));
    vec_add(work->m, work->part, dk * dv);
}

/* A chunk of one head is read before its results are written, which may lie in the place of v. */
static void forward_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const forward_job *job = ctx;
    const delta_job *delta = &job->delta;
    forward_work work;
    forward_layout(delta, job->scratch + (size_t)thread * job->thread_bytes, &work);
    work.gemm = gemm_acquire();
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item / delta->v_heads, head = item % delta->v_heads;
        int64_t count = delta_rule_real(delta, row, work.real);
        delta_rule_load_state(delta->state, row, head, work.m);
        delta_rule_clear_padding(delta, job->o, row, head);
        for (int64_t first = 0; first < count; first += CHUNK) {
            int64_t n = count - first < CHUNK ? count - first : CHUNK;
            delta_rule_load(delta, row, head, work.real + first, n, &work.tokens);
            if (delta->tokens < FEW || delta->rates > 1)
                one_by_one(delta, &work, n);
            else
                whole_chunk(delta, &work, n);
            for (int64_t i = 0; i < n; i++)
                convert_from_f32(work.o + i * delta->dv, job->o->dtype,
                                 rows_at3(job->o, row, work.real[first + i], head), delta->dv);
        }
        delta_rule_store_state(job->next, row, head, work.m);
    }
    gemm_release(work.gemm);
}

size_t delta_rule_scratch(const tn_call *call)
{
    delta_job job = delta_rule_job(call);
    forward_work work;
    return forward_layout(&job, NULL, &work) * (size_t)tn_thread_count();
}

tn_status delta_rule_forward(const tn_call *call, tn_error *err)
{
    forward_work work;
    forward_job job = {
        .delta = delta_rule_job(call), .o = &call->out[0], .next = &call->out[1], .scratch = call->scratch};
    (void)err;
    job.thread_bytes = forward_layout(&job.delta, NULL, &work);
    tn_parallel_for(job.delta.rows * job.delta.v_heads, 1, forward_items, &job);
    return TN_OK;
}
