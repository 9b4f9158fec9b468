/* CACHE_APPEND: x [B,T,K,D] goes to cache[b, slot[b,t]]; a negative slot drops its token. */
#include "eager/rows.h"

#include <inttypes.h>
#include <string.h>

typedef struct append_job {
    const tn_tensor *x, *slot, *cache;
} append_job;

static int32_t append_slot(const tn_tensor *slot, int64_t b, int64_t t)
{
    return *(const int32_t *)((const char *)slot->data +
                              (b * slot->stride[0] + t * slot->stride[1]) * (int64_t)sizeof(int32_t));
}

static void append_tokens(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const append_job *job = ctx;
    (void)thread;
    int64_t tokens = job->x->shape[1], heads = job->x->shape[2];
    size_t bytes = (size_t)job->x->shape[3] * tn_dtype_size(job->x->dtype);
    for (int64_t i = begin; i < end; i++) {
        int64_t b = i / tokens, t = i % tokens;
        int32_t slot = append_slot(job->slot, b, t);
        for (int64_t k = 0; k < heads && slot >= 0; k++)
            memcpy(rows_at3(job->cache, b, slot, k), rows_at3(job->x, b, t, k), bytes);
    }
}

static tn_status append_forward(const tn_call *call, tn_error *err)
{
    append_job job = {.x = &call->in[0], .slot = &call->in[1], .cache = &call->out[0]};
    const char *where = call->site ? call->site->path : "cache";
    int64_t batch = job.x->shape[0], tokens = job.x->shape[1], slots = job.cache->shape[1];
    if (job.x->dtype != job.cache->dtype)
        return tn_fail(err, TN_E_INTERNAL, where, "a cache of %s cannot take %s; report this defect",
                       tn_dtype_name(job.cache->dtype), tn_dtype_name(job.x->dtype));
    for (int64_t b = 0; b < batch; b++)
        for (int64_t t = 0; t < tokens; t++)
            if (append_slot(job.slot, b, t) >= slots)
                return tn_fail(err, TN_E_INTERNAL, where,
                               "token %" PRId64 " of row %" PRId64 " wants slot %" PRId32 " of a cache with %" PRId64
                               "; report this defect",
                               t, b, append_slot(job.slot, b, t), slots);
    tn_parallel_for(batch * tokens, rows_grain(job.x->shape[2] * job.x->shape[3]), append_tokens, &job);
    return TN_OK;
}

/* The other way: what the slots of its tokens have. A token that was dropped has none. */
static tn_status append_backward(const tn_call *call, tn_error *err)
{
    (void)err;
    const tn_tensor *slot = &call->in[1], *dx = &call->grads->in[0], *dcache = &call->grads->out[0];
    if (!dx->data)
        return TN_OK;
    size_t bytes = (size_t)dx->shape[3] * tn_dtype_size(dx->dtype);
    for (int64_t b = 0; b < dx->shape[0]; b++)
        for (int64_t t = 0; t < dx->shape[1]; t++)
            for (int64_t k = 0, at = append_slot(slot, b, t); k < dx->shape[2]; k++)
                if (at >= 0 && dcache->data)
                    memcpy(rows_at3(dx, b, t, k), rows_at3(dcache, b, at, k), bytes);
                else
                    memset(rows_at3(dx, b, t, k), 0, bytes);
    return TN_OK;
}

const eager_op eager_cache_append = {.op = TN_OP_CACHE_APPEND, .forward = append_forward, .backward = append_backward};
