/* From the states of a text's tokens to its vector. Sums are formed in double and rounded to f32, whose result any
 * order of f32 sums is near. */
#include "embed/pipeline.h"

#include <math.h>
#include <string.h>

/* ---- pooling ----------------------------------------------------------------------------------- */

static void take_max(const pipeline *p, const float *states, int64_t tokens, int64_t first, float *out)
{
    for (int64_t i = 0; i < p->hidden; i++) {
        float max = states[first * p->hidden + i];
        for (int64_t t = first + 1; t < tokens; t++) {
            float x = states[t * p->hidden + i];
            max = x > max || x != x ? x : max; /* a NaN stays                                      */
        }
        out[i] = max;
    }
}

/* The sum over tokens, each counted once or by its place, over a number. */
static void take_sum(const pipeline *p, const float *states, int64_t tokens, int64_t first, bool by_place, double over,
                     float *out)
{
    for (int64_t i = 0; i < p->hidden; i++) {
        double sum = 0;
        for (int64_t t = first; t < tokens; t++)
            sum += (by_place ? (double)(t + 1) : 1) * (double)states[t * p->hidden + i];
        out[i] = (float)(sum / over);
    }
}

static void pool(const pipeline *p, const float *states, int64_t tokens, int64_t first, float *out)
{
    int64_t count = tokens - first;
    double places = (double)(first + 1 + tokens) * (double)count / 2;
    size_t bytes = (size_t)p->hidden * sizeof *out;
    for (uint32_t kind = TN_POOLING_CLS; kind <= TN_POOLING_LAST; kind *= 2) {
        if (!(p->pooling & kind))
            continue;
        if (kind == TN_POOLING_CLS)
            memcpy(out, states, bytes);
        else if (kind == TN_POOLING_LAST)
            memcpy(out, states + (tokens - 1) * p->hidden, bytes);
        else if (kind == TN_POOLING_MAX)
            take_max(p, states, tokens, first, out);
        else
            take_sum(p, states, tokens, first, kind == TN_POOLING_WEIGHTED_MEAN,
                     kind == TN_POOLING_MEAN            ? (double)count
                     : kind == TN_POOLING_MEAN_SQRT_LEN ? sqrt((double)count)
                                                        : places,
                     out);
        out += p->hidden;
    }
}

/* ---- steps ------------------------------------------------------------------------------------- */

static float act(pipeline_act kind, float x)
{
    switch (kind) {
    case PIPELINE_TANH:
        return tanhf(x);
    case PIPELINE_RELU:
        return x < 0 ? 0 : x;
    case PIPELINE_GELU:
        return 0.5f * x * (1 + erff(x * 0.70710678f));
    case PIPELINE_SILU:
        return x / (1 + expf(-x));
    case PIPELINE_SIGMOID:
        return 1 / (1 + expf(-x));
    default:
        return x;
    }
}

/* A matrix and its vector, rows in turns. */
typedef struct dense_job {
    const pipeline_step *s;
    const float *x;
    float *y;
} dense_job;

static void dense_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const dense_job *job = ctx;
    const pipeline_step *s = job->s;
    (void)thread;
    for (int64_t row = begin; row < end; row++) {
        const float *w = s->weight + row * s->in;
        double sum = s->bias ? (double)s->bias[row] : 0;
        for (int64_t i = 0; i < s->in; i++)
            sum += (double)w[i] * (double)job->x[i];
        job->y[row] = act(s->act, (float)sum);
    }
}

/* As torch.nn.functional.normalize: a vector shorter than 1e-12 is divided by that. */
static void normalise(const float *x, int64_t n, float *y)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    double length = sqrt(sum) < 1e-12 ? 1e-12 : sqrt(sum);
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)((double)x[i] / length);
}

void pipeline_run(const pipeline *p, const float *states, int64_t tokens, int64_t first, float *work, float *out)
{
    float *now = work, *next = work + p->widest;
    pool(p, states, tokens, first, now);
    for (int32_t i = 0; i < p->step_count; i++) {
        const pipeline_step *s = &p->step[i];
        dense_job job = {s, now, next};
        if (s->normalise)
            normalise(now, s->in, next);
        else
            tn_parallel_for(s->out, 1 + (1 << 16) / s->in, dense_rows, &job);
        next = now;
        now = job.y;
    }
    memcpy(out, now, (size_t)p->width * sizeof *out);
}
