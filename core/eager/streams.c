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
    const tn_tensor *x, *like, *y;
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

const eager_op eager_stream_mix = {.op = TN_OP_STREAM_MIX, .forward = stream_forward};
const eager_op eager_stream_add = {.op = TN_OP_STREAM_ADD, .forward = stream_forward};
const eager_op eager_stream_mean = {.op = TN_OP_STREAM_MEAN, .forward = stream_forward};
const eager_op eager_rms_match = {.op = TN_OP_RMS_MATCH, .forward = match_forward};
