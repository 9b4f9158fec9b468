/* CACHE_APPEND: x [B,T,K,D] goes to cache[b, slot[b,t]]; a negative slot drops its token. Tokens whose slots follow one
 * another are copied together, and batch rows too where they have the same slots; single tokens by an operator. */
#include "operators.h"
#include "queue.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct append_job {
    const tn_tensor *x, *slot, *cache;
    const int32_t *slots; /* on the host, with slot's strides                                        */
} append_job;

static int32_t slot_at(const append_job *job, int64_t b, int64_t t)
{
    return job->slots[b * job->slot->stride[0] + t * job->slot->stride[1]];
}

static tn_status check_slots(const append_job *job, const char *where, tn_error *err)
{
    for (int64_t b = 0; b < job->x->shape[0]; b++)
        for (int64_t t = 0; t < job->x->shape[1]; t++)
            if (slot_at(job, b, t) >= job->cache->shape[1])
                return tn_fail(err, TN_E_INTERNAL, where,
                               "token %" PRId64 " of row %" PRId64 " wants slot %" PRId32 " of a cache with %" PRId64
                               "; report this defect",
                               t, b, slot_at(job, b, t), job->cache->shape[1]);
    return TN_OK;
}

/* rows batch rows from row on, which have the same slots. */
static void append_rows(npu_run *r, const append_job *job, int64_t row, int64_t rows)
{
    int64_t tokens = job->x->shape[1];
    for (int64_t t = 0, n = 1; t < tokens; t += n, n = 1) {
        int32_t slot = slot_at(job, row, t);
        if (slot < 0)
            continue;
        while (t + n < tokens && slot_at(job, row, t + n) == slot + n)
            n++;
        tn_tensor from = npu_tokens(job->x, row, rows, t, n), to = npu_tokens(job->cache, row, rows, slot, n);
        npu_move(r, from, to);
        for (int64_t b = row; b < row + rows; b++)
            npu_cache_appended(npu_of(r->queue), job->cache, b, slot + n);
    }
}

/* A token for each row, none of which is padding, and everything side by side? */
static bool is_decode(const npu_run *r, const append_job *job)
{
    tn_tensor row = npu_tokens(job->cache, 0, 1, 0, job->cache->shape[1]);
    bool decode = npu_of(r->queue)->graphs && job->x->shape[1] == 1 && ascend_is_dense(job->x) &&
                  ascend_is_dense(&row) && ascend_has("aclnnInplaceScatterUpdate");
    for (int64_t b = 0; b < job->x->shape[0]; b++)
        decode &= slot_at(job, b, 0) >= 0;
    return decode;
}

/* Where the slots on the device say, so that it is the same call for every token, which a graph may have. */
static void append_decoded(npu_run *r, const append_job *job)
{
    int64_t rows = job->x->shape[0], step = ascend_is_dense(job->cache) ? rows : 1;
    for (int64_t b = 0; b < rows; b += step) {
        tn_tensor slots = npu_narrow(*job->slot, 0, b, step);
        npu_scatter(r, npu_narrow(*job->cache, 0, b, step), npu_view(slots.data, TN_I32, 1, &step, slots.stride),
                    npu_narrow(*job->x, 0, b, step));
    }
    for (int64_t b = 0; b < rows; b++)
        npu_cache_appended(npu_of(r->queue), job->cache, b, slot_at(job, b, 0) + 1);
}

static bool same_slots(const append_job *job, int64_t a, int64_t b)
{
    for (int64_t t = 0; t < job->x->shape[1]; t++)
        if (slot_at(job, a, t) != slot_at(job, b, t))
            return false;
    return true;
}

static void append_copied(npu_run *r, const append_job *job)
{
    for (int64_t b = 0, n = 1; b < job->x->shape[0] && r->status == TN_OK; b += n, n = 1) {
        while (b + n < job->x->shape[0] && same_slots(job, b, b + n))
            n++;
        append_rows(r, job, b, n);
    }
}

static void append(npu_run *r)
{
    append_job job = {.x = &r->call->in[0], .slot = &r->call->in[1], .cache = &r->call->out[0]};
    const char *where = r->call->site ? r->call->site->path : "cache";
    void *owned = NULL;
    if (r->measuring || tn_tensor_count(job.x) == 0)
        return;
    if (job.x->dtype != job.cache->dtype) {
        r->status = tn_fail(r->err, TN_E_INTERNAL, where, "a cache of %s cannot take %s; report this defect",
                            tn_dtype_name(job.cache->dtype), tn_dtype_name(job.x->dtype));
        return;
    }
    job.slots = npu_host_copy(r, job.slot, &owned);
    if (r->status == TN_OK)
        r->status = check_slots(&job, where, r->err);
    if (r->status == TN_OK && is_decode(r, &job))
        append_decoded(r, &job);
    else
        append_copied(r, &job);
    free(owned);
}

const ascend_operation ascend_cache_append = {.op = TN_OP_CACHE_APPEND, .body = append};
