/* CHOOSE_KEYS: of the keys that a query sees, those with the largest sum_n w_n max(0, q_n k), in f32. Of equals, of
 * which torch.topk may take any, the earlier position; a sum that is not a number counts as the smallest. The best so
 * far are a heap whose root is the one to go next. */
#include "eager/attention.h"
#include "eager/vec.h"

#include <math.h>

/* A key's score, and where it lies. */
typedef struct key_score {
    float score;
    int32_t position, slot;
} key_score;

typedef struct choose_job {
    const tn_tensor *q, *k, *w, *q_index, *kv_index, *chosen;
    int64_t tokens, keys, heads, d, most; /* most: keys of a query                                  */
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
                      .most = call->site->dim[TN_DIM_TOP_K]};
    job.most = job.most < job.keys ? job.most : job.keys;
    size_t floats = (size_t)(job.heads * job.d + job.heads + job.d) * sizeof(float);
    job.thread_bytes = rows_align(floats) + rows_align((size_t)job.most * sizeof(key_score));
    return job;
}

static bool is_worse(const key_score *a, const key_score *b)
{
    return a->score < b->score || (a->score == b->score && a->position > b->position);
}

/* Puts key at place at, above which the heap is in order, or below what is worse there. */
static void sink(key_score *heap, int64_t count, int64_t at, key_score key)
{
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && is_worse(&heap[child + 1], &heap[child]);
        if (!is_worse(&heap[child], &key))
            break;
        heap[at] = heap[child];
    }
    heap[at] = key;
}

/* The heap of at most most keys, in order once it is full, after one more was seen; returns how many it has. */
static int64_t offer(key_score *heap, int64_t count, int64_t most, key_score key)
{
    if (count == most && is_worse(&heap[0], &key))
        sink(heap, count, 0, key);
    if (count == most)
        return count;
    heap[count++] = key;
    for (int64_t i = count == most ? most / 2 : 0; i-- > 0;)
        sink(heap, most, i, heap[i]);
    return count;
}

static float score_of(const choose_job *job, const float *q, const float *w, const float *k)
{
    float sum = 0.0f;
    for (int64_t n = 0; n < job->heads; n++) {
        float dot = vec_dot(q + n * job->d, k, job->d);
        sum += w[n] * (dot < 0.0f ? 0.0f : dot); /* the comparison lets a NaN through               */
    }
    return isnan(sum) ? -INFINITY : sum;
}

static void choose_tokens(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const choose_job *job = ctx;
    float *q = (float *)(void *)(job->scratch + (size_t)thread * job->thread_bytes), *w = q + job->heads * job->d;
    float *k = w + job->heads;
    size_t floats = (size_t)(job->heads * job->d + job->heads + job->d) * sizeof(float);
    key_score *best = (key_score *)(void *)((char *)q + rows_align(floats));
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
            count = offer(best, count, job->most, (key_score){score_of(job, q, w, k), at, (int32_t)s});
        }
        for (int64_t i = 0; i < count; i++)
            out[best[i].slot] = 1;
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
