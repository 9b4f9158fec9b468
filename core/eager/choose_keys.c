/* CHOOSE_KEYS: of the keys that a query sees, those with the largest sum_n w_n max(0, q_n k), in f32; of equals the
 * earlier position. */
#include "eager/attention.h"
#include "eager/vec.h"

#include <math.h>
#include <stdlib.h>

/* A key's score, and where it lies. */
typedef struct key_score {
    float score;
    int32_t position, slot;
} key_score;

typedef struct choose_job {
    const tn_tensor *q, *k, *w, *q_index, *kv_index, *chosen;
    int64_t tokens, keys, heads, d, top_k;
    char *scratch;
    size_t thread_bytes;
} choose_job;

static choose_job choose_make(const tn_call *call)
{
    const tn_tensor *in = call->in;
    choose_job job = {.q = &in[0],
                      .k = &in[1],
                      .w = &in[2],
                      .q_index = &in[3],
                      .kv_index = &in[4],
                      .chosen = &call->out[0],
                      .tokens = in[0].shape[1],
                      .keys = in[1].shape[1],
                      .heads = in[0].shape[2],
                      .d = in[0].shape[3],
                      .top_k = call->site->dim[TN_DIM_TOP_K]};
    size_t floats = (size_t)(job.heads * job.d + job.heads + job.d) * sizeof(float);
    job.thread_bytes = rows_align(floats) + rows_align((size_t)job.keys * sizeof(key_score));
    return job;
}

/* Larger scores first; a NaN behind all others, so that the order is one. */
static int by_score(const void *a, const void *b)
{
    const key_score *x = a, *y = b;
    float s = isnan(x->score) ? -INFINITY : x->score, t = isnan(y->score) ? -INFINITY : y->score;
    return s > t ? -1 : s < t ? 1 : (x->position > y->position) - (x->position < y->position);
}

static float score_of(const choose_job *job, const float *q, const float *w, const float *k)
{
    float sum = 0.0f;
    for (int64_t n = 0; n < job->heads; n++) {
        float dot = vec_dot(q + n * job->d, k, job->d);
        sum += w[n] * (dot > 0.0f ? dot : 0.0f);
    }
    return sum;
}

static void choose_tokens(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const choose_job *job = ctx;
    float *q = (float *)(void *)(job->scratch + (size_t)thread * job->thread_bytes), *w = q + job->heads * job->d;
    float *k = w + job->heads;
    size_t floats = (size_t)(job->heads * job->d + job->heads + job->d) * sizeof(float);
    key_score *seen = (key_score *)(void *)((char *)q + rows_align(floats));
    for (int64_t item = begin; item < end; item++) {
        int64_t b = item / job->tokens, t = item % job->tokens, count = 0;
        int32_t *out = (int32_t *)job->chosen->data + b * job->chosen->stride[0] + t * job->chosen->stride[1];
        int32_t position = attention_index(job->q_index, b, t);
        for (int64_t n = 0; n < job->heads; n++)
            convert_to_f32(rows_at3(job->q, b, t, n), job->q->dtype, q + n * job->d, job->d);
        convert_to_f32((const char *)job->w->data +
                           (size_t)(b * job->w->stride[0] + t * job->w->stride[1]) * tn_dtype_size(job->w->dtype),
                       job->w->dtype, w, job->heads);
        memset(out, 0, (size_t)job->keys * sizeof *out);
        for (int64_t s = 0; s < job->keys; s++) {
            int32_t at = attention_index(job->kv_index, b, s);
            if (at < 0 || at > position)
                continue;
            convert_to_f32(rows_at3(job->k, b, s, 0), job->k->dtype, k, job->d);
            seen[count++] = (key_score){score_of(job, q, w, k), at, (int32_t)s};
        }
        if (count > job->top_k)
            qsort(seen, (size_t)count, sizeof *seen, by_score);
        for (int64_t i = 0; i < count && i < job->top_k; i++)
            out[seen[i].slot] = 1;
    }
}

static size_t choose_scratch(const tn_call *call)
{
    return choose_make(call).thread_bytes * (size_t)tn_thread_count();
}

static tn_status choose_forward(const tn_call *call, tn_error *err)
{
    choose_job job = choose_make(call);
    (void)err;
    job.scratch = call->scratch;
    tn_parallel_for(job.q->shape[0] * job.tokens, 1, choose_tokens, &job);
    return TN_OK;
}

const eager_op eager_choose_keys = {.op = TN_OP_CHOOSE_KEYS, .scratch = choose_scratch, .forward = choose_forward};
