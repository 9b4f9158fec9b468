/* Keys and values of a cache some slots of which are not used. */
#include "eager_unused.h"

#include "queue.h"

static bool any_unused(const mask_span *span, const int32_t *k, int64_t zero_from)
{
    for (int64_t s = span->first; s < span->end && s < zero_from; s++)
        if (k[s] < 0)
            return true;
    return false;
}

/* The used slots of the span, to the same slots of a tensor of zeros. */
static void copy_used(npu_run *r, const tn_tensor *from, int64_t row, const mask_span *span, const int32_t *k,
                      const tn_tensor *to)
{
    for (int64_t s = span->first, n = 1; s < span->end; s += n, n = 1) {
        while (s + n < span->end && (k[s + n] < 0) == (k[s] < 0))
            n++;
        if (k[s] >= 0)
            npu_copy(r, npu_tokens(from, row, 1, s, n), npu_tokens(to, 0, 1, s, n));
    }
}

used_slots used_slots_of(npu_run *r, const tn_tensor *t, int64_t row, const mask_span *span, const int32_t *k)
{
    used_slots u = {.t = *t};
    if (r->status != TN_OK || !any_unused(span, k, npu_cache_zero_from(npu_of(r->queue), t, row)))
        return u;
    const int64_t shape[] = {1, t->shape[1], t->shape[2], t->shape[3]};
    tn_tensor copy = tn_tensor_dense(NULL, t->dtype, 4, shape);
    u.bytes = tn_dtype_bytes(t->dtype, tn_tensor_count(&copy));
    r->status = npu_alloc(r->queue, u.bytes, &u.memory, r->err);
    copy.data = u.memory;
    copy_used(r, t, row, span, k, &copy);
    copy.stride[0] = 0;
    u.t = copy;
    return u;
}

void used_slots_end(npu_run *r, const used_slots *u)
{
    npu_free(r->queue, u->memory, u->bytes);
}
