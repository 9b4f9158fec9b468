/* Steps of models with several residual streams x [S,T,A] (Gemma 3n): STREAM_MIX, STREAM_ADD, STREAM_MEAN, and
 * RMS_MATCH, which gives rows the size of others. Every step that transformers rounds is rounded. */
#include "eager/rows.h"
#include "eager/vec.h"

#include <inttypes.h>
#include <math.h>

enum { STREAMS_MAX = 16 };

typedef struct stream_job {
    tn_op op;
    const tn_tensor *x, *d, *factor, *y; /* d: what is added; factor: coefficients of each token */
    tn_dtype dtype;
    int64_t streams, tokens, width;
} stream_job;

/* A piece of a token's row in every stream. */
typedef struct stream_piece {
    float x[STREAMS_MAX][VEC_CHUNK], d[VEC_CHUNK], y[VEC_CHUNK];
} stream_piece;

static void piece_store(const stream_job *job, int64_t row, int64_t at, float *y, int64_t n)
{
    convert_from_f32(y, job->y->dtype, rows_at(job->y, row) + (size_t)at * tn_dtype_size(job->y->dtype), n);
}

static void piece_load(const tn_tensor *t, int64_t row, int64_t at, float *x, int64_t n)
{
    convert_to_f32(rows_at(t, row) + (size_t)at * tn_dtype_size(t->dtype), t->dtype, x, n);
}

/* y_j = rnd(sum_i c[j,i] x_i) + x_j */
static void piece_mix(const stream_job *job, const stream_piece *p, const float *c, int64_t j, float *y, int64_t n)
{
    memset(y, 0, (size_t)n * sizeof *y);
    for (int64_t i = 0; i < job->streams; i++)
        for (int64_t k = 0; k < n; k++)
            // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): piece_run has loaded all streams
            y[k] += c[j * job->streams + i] * p->x[i][k];
    vec_round(y, n, job->dtype);
    for (int64_t k = 0; k < n; k++)
        // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): all streams are loaded
        y[k] += p->x[j][k];
}

/* y_j = x_j + rnd(d (1 + c_j)) */
static void piece_add(const stream_job *job, const stream_piece *p, const float *c, int64_t j, float *y, int64_t n)
{
    // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): adding comes with factors
    float factor = vec_round1(c[j] + 1.0f, job->dtype);
    for (int64_t k = 0; k < n; k++)
        y[k] = p->d[k] * factor;
    vec_round(y, n, job->dtype);
    for (int64_t k = 0; k < n; k++)
        // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): all streams are loaded
        y[k] += p->x[j][k];
}

static void piece_mean(const stream_job *job, const stream_piece *p, float *y, int64_t n)
{
    memset(y, 0, (size_t)n * sizeof *y);
    for (int64_t i = 0; i < job->streams; i++)
        for (int64_t k = 0; k < n; k++)
            y[k] += p->x[i][k];
    for (int64_t k = 0; k < n; k++)
        y[k] /= (float)job->streams;
}

/* All streams are read before one is written, so that y may be x. */
static void piece_run(const stream_job *job, stream_piece *p, const float *c, int64_t t, int64_t at, int64_t n)
{
    for (int64_t i = 0; i < job->streams; i++)
        piece_load(job->x, i * job->tokens + t, at, p->x[i], n);
    if (job->op == TN_OP_STREAM_ADD)
        piece_load(job->d, t, at, p->d, n);
    if (job->op == TN_OP_STREAM_MEAN) {
        piece_mean(job, p, p->y, n);
        piece_store(job, t, at, p->y, n);
        return;
    }
    for (int64_t j = 0; j < job->streams; j++) {
        (job->op == TN_OP_STREAM_MIX ? piece_mix : piece_add)(job, p, c, j, p->y, n);
        piece_store(job, j * job->tokens + t, at, p->y, n);
    }
}

static void stream_tokens(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const stream_job *job = ctx;
    (void)thread;
    stream_piece p;
    float c[STREAMS_MAX * STREAMS_MAX];
    for (int64_t t = begin; t < end; t++) {
        if (job->factor)
            piece_load(job->factor, t, 0, c, rows_width(job->factor));
        for (int64_t at = 0; at < job->width; at += VEC_CHUNK)
            piece_run(job, &p, c, t, at, job->width - at < VEC_CHUNK ? job->width - at : VEC_CHUNK);
    }
}

static tn_status stream_forward(const tn_call *call, tn_error *err)
{
    const tn_tensor *x = &call->in[0];
    bool add = call->op == TN_OP_STREAM_ADD;
    stream_job job = {.op = call->op, .x = x, .y = &call->out[0], .dtype = x->dtype};
    job.streams = x->shape[0];
    job.tokens = x->shape[1];
    job.width = x->shape[2];
    job.d = add ? &call->in[1] : NULL;
    job.factor = call->op == TN_OP_STREAM_MEAN ? NULL : &call->in[add ? 2 : 1];
    int64_t each = add ? 1 : job.streams;
    if (job.streams < 1 || job.streams > STREAMS_MAX || (job.factor && rows_width(job.factor) != job.streams * each))
        return tn_fail(err, TN_E_INTERNAL, call->site->path, "%" PRId64 " streams; report this defect", job.streams);
    tn_parallel_for(job.tokens, rows_grain(job.streams * job.width), stream_tokens, &job);
    return TN_OK;
}

/* ---- RMS_MATCH -------------------------------------------------------------------------------------------------- */

typedef struct match_job {
    const tn_tensor *x, *like, *y, *grads; /* of gradients y is dy, and where they go                */
    tn_dtype dtype;
    float least;
    int64_t width;
} match_job;

/* The root of the mean of a row's squares, which counts at least that much. */
static float row_size(const match_job *job, const tn_tensor *t, int64_t row, float least)
{
    float x[VEC_CHUNK];
    double sum = 0;
    for (int64_t at = 0; at < job->width; at += VEC_CHUNK) {
        int64_t n = job->width - at < VEC_CHUNK ? job->width - at : VEC_CHUNK;
        piece_load(t, row, at, x, n);
        for (int64_t k = 0; k < n; k++)
            x[k] *= x[k];
        vec_round(x, n, job->dtype);
        sum += vec_sum_wide(x, n);
    }
    float mean = vec_round1((float)(sum / (double)job->width), job->dtype);
    return vec_round1(sqrtf(mean < least ? least : mean), job->dtype);
}

static void match_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const match_job *job = ctx;
    (void)thread;
    float x[VEC_CHUNK];
    for (int64_t row = begin; row < end; row++) {
        float wanted = row_size(job, job->like, row, 0), size = row_size(job, job->x, row, job->least);
        for (int64_t at = 0; at < job->width; at += VEC_CHUNK) {
            int64_t n = job->width - at < VEC_CHUNK ? job->width - at : VEC_CHUNK;
            piece_load(job->x, row, at, x, n);
            vec_scale_rounded(x, n, wanted, job->dtype);
            for (int64_t k = 0; k < n; k++)
                x[k] /= size;
            convert_from_f32(x, job->y->dtype, rows_at(job->y, row) + (size_t)at * tn_dtype_size(job->y->dtype), n);
        }
    }
}

static tn_status match_forward(const tn_call *call, tn_error *err)
{
    (void)err;
    const tn_tensor *x = &call->in[0];
    match_job job = {.x = x, .like = &call->in[1], .y = &call->out[0], .dtype = x->dtype, .width = rows_width(x)};
    job.least = vec_round1((float)call->site->num[TN_NUM_EPS], x->dtype);
    tn_parallel_for(rows_count(x), rows_grain(job.width), match_rows, &job);
    return TN_OK;
}

/* ---- gradients ----------------------------------------------------------------------------------------------------
 */

/* Rows of a token in all streams, as one call has them. */
typedef struct stream_rows {
    int64_t streams, tokens, width;
    const tn_call *call;
} stream_rows;

static float stream_element(const tn_tensor *t, int64_t row, int64_t i)
{
    float x = 0;
    if (t->data)
        piece_load(t, row, i, &x, 1);
    return x;
}

static void stream_put(const tn_tensor *t, int64_t row, int64_t i, float x)
{
    if (t->data)
        convert_from_f32(&x, t->dtype, rows_at(t, row) + (size_t)i * tn_dtype_size(t->dtype), 1);
}

/* dx_i = dy_i + sum_j c[j,i] dy_j, dc[j,i] = dy_j x_i */
static void mix_backward(const stream_rows *s, int64_t t)
{
    const tn_tensor *x = &s->call->in[0], *c = &s->call->in[1], *dy = &s->call->grads->out[0];
    float all[STREAMS_MAX * STREAMS_MAX], g[STREAMS_MAX], sum[STREAMS_MAX * STREAMS_MAX] = {0};
    piece_load(c, t, 0, all, s->streams * s->streams);
    for (int64_t k = 0; k < s->width; k++) {
        for (int64_t j = 0; j < s->streams; j++)
            g[j] = stream_element(dy, j * s->tokens + t, k);
        for (int64_t i = 0; i < s->streams; i++) {
            float to = g[i], from = stream_element(x, i * s->tokens + t, k);
            for (int64_t j = 0; j < s->streams; j++) {
                to += all[j * s->streams + i] * g[j];
                sum[j * s->streams + i] += g[j] * from;
            }
            stream_put(&s->call->grads->in[0], i * s->tokens + t, k, to);
        }
    }
    for (int64_t i = 0; i < s->streams * s->streams; i++)
        stream_put(&s->call->grads->in[1], t, i, sum[i]);
}

/* dx_j = dy_j, dd = sum_j (1 + c_j) dy_j, dc_j = dy_j d */
static void stream_add_backward(const stream_rows *s, int64_t t)
{
    const tn_tensor *d = &s->call->in[1], *c = &s->call->in[2], *dy = &s->call->grads->out[0];
    float all[STREAMS_MAX], sum[STREAMS_MAX] = {0};
    piece_load(c, t, 0, all, s->streams);
    for (int64_t k = 0; k < s->width; k++) {
        float to = 0, from = stream_element(d, t, k);
        for (int64_t j = 0; j < s->streams; j++) {
            float g = stream_element(dy, j * s->tokens + t, k);
            to += (1 + all[j]) * g;
            sum[j] += g * from;
            stream_put(&s->call->grads->in[0], j * s->tokens + t, k, g);
        }
        stream_put(&s->call->grads->in[1], t, k, to);
    }
    for (int64_t j = 0; j < s->streams; j++)
        stream_put(&s->call->grads->in[2], t, j, sum[j]);
}

static void mean_backward(const stream_rows *s, int64_t t)
{
    for (int64_t k = 0; k < s->width; k++)
        for (int64_t j = 0; j < s->streams; j++)
            stream_put(&s->call->grads->in[0], j * s->tokens + t, k,
                       stream_element(&s->call->grads->out[0], t, k) / (float)s->streams);
}

static void stream_backward_tokens(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const stream_rows *s = ctx;
    (void)thread;
    for (int64_t t = begin; t < end; t++)
        if (s->call->op == TN_OP_STREAM_MIX)
            mix_backward(s, t);
        else if (s->call->op == TN_OP_STREAM_ADD)
            stream_add_backward(s, t);
        else
            mean_backward(s, t);
}

static tn_status stream_backward(const tn_call *call, tn_error *err)
{
    (void)err;
    const tn_tensor *x = &call->in[0];
    stream_rows s = {x->shape[0], x->shape[1], x->shape[2], call};
    tn_parallel_for(s.tokens, rows_grain(s.streams * s.width), stream_backward_tokens, &s);
    return TN_OK;
}

/* y = x w / s, w and s the sizes of like and x: dx = (dy - x (dy x) / (n s^2)) w / s, where s is x's own and not the
 * least; dlike = like (dy x) / (n w s). */
static void match_backward_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const match_job *job = ctx;
    const tn_tensor *dy = job->y, *grads = job->grads;
    (void)thread;
    for (int64_t row = begin; row < end; row++) {
        float wanted = row_size(job, job->like, row, 0), size = row_size(job, job->x, row, job->least);
        bool own = size > row_size(job, job->x, row, 0) ? false : true;
        double dot = 0;
        for (int64_t k = 0; k < job->width; k++)
            dot += (double)stream_element(dy, row, k) * stream_element(job->x, row, k);
        float mean = (float)(dot / (double)job->width);
        for (int64_t k = 0; k < job->width; k++) {
            float g = stream_element(dy, row, k), x = stream_element(job->x, row, k);
            float like = stream_element(job->like, row, k);
            stream_put(&grads[0], row, k, (own ? g - x * mean / (size * size) : g) * wanted / size);
            stream_put(&grads[1], row, k, wanted > 0 ? like * mean / (wanted * size) : 0);
        }
    }
}

static tn_status match_backward(const tn_call *call, tn_error *err)
{
    (void)err;
    const tn_tensor *x = &call->in[0];
    match_job job = {.x = x,
                     .like = &call->in[1],
                     .y = &call->grads->out[0],
                     .dtype = x->dtype,
                     .width = rows_width(x),
                     .grads = call->grads->in};
    job.least = vec_round1((float)call->site->num[TN_NUM_EPS], x->dtype);
    tn_parallel_for(rows_count(x), rows_grain(job.width), match_backward_rows, &job);
    return TN_OK;
}

const eager_op eager_stream_mix = {.op = TN_OP_STREAM_MIX, .forward = stream_forward, .backward = stream_backward};
const eager_op eager_stream_add = {.op = TN_OP_STREAM_ADD, .forward = stream_forward, .backward = stream_backward};
const eager_op eager_stream_mean = {.op = TN_OP_STREAM_MEAN, .forward = stream_forward, .backward = stream_backward};
const eager_op eager_rms_match = {.op = TN_OP_RMS_MATCH, .forward = match_forward, .backward = match_backward};
