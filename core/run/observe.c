/* Telling an observer of calls. All of it happens behind the second look at the clock, so what an event costs, which
 * for attention may be some milliseconds, is in no event. */
#include "run/observe.h"

#include "base/clock.h"
#include "op/op.h"
#include "op/seen.h"
#include "run/guest.h"

/* Of what goes in, unless that is numbers of tokens. */
static tn_dtype dtype_of(const tn_call *call)
{
    tn_dtype in = call->in[0].dtype;
    return in == TN_F32 || in == TN_BF16 || in == TN_F16 || call->out_count < 1 ? in : call->out[0].dtype;
}

/* A list of ids has no width. */
static int64_t tokens_of(const tn_call *call)
{
    return call->in_count > 0 && call->in[0].ndim == 1 ? call->in[0].shape[0] : op_tokens(call);
}

static int64_t count_between(const int32_t *index, int64_t stride, int64_t keys, int64_t low, int64_t high)
{
    int64_t count = 0;
    for (int64_t s = 0; s < keys; s++)
        count += index[s * stride] >= low && index[s * stride] <= high;
    return count;
}

/* The part of an ATTENTION's pairs of query and key that no mask hides. */
static double seen_part(const tn_call *call)
{
    const tn_tensor *q = &call->in[3], *kv = &call->in[4];
    const seen_rule rule = seen_of(call->site);
    int64_t batch = q->shape[0], tokens = q->shape[1], keys = kv->shape[1], seen = 0;
    for (int64_t b = 0; b < batch; b++) {
        const int32_t *query = (const int32_t *)q->data + b * q->stride[0];
        const int32_t *index = (const int32_t *)kv->data + b * kv->stride[0];
        for (int64_t t = 0; t < tokens; t++) {
            int32_t at = query[t * q->stride[1]], high = seen_high(&rule, at);
            seen += high < 0 ? 0 : count_between(index, kv->stride[1], keys, seen_low(&rule, at), high);
        }
    }
    return seen > 0 ? (double)seen / ((double)batch * (double)tokens * (double)keys) : 0;
}

/* By the table of operations, which counts every pair of an attention; here those that must be computed. */
static double operations_of(const device *device, const tn_call *call)
{
    bool readable =
        device->ops->host_memory && call->op == TN_OP_ATTENTION && call->site && call->in[3].data && call->in[4].data;
    return op_operations(call) * (readable ? seen_part(call) : 1);
}

tn_status observe_step(const arena *a, const graph_binding *bound, const tn_call *call,
                       tn_status (*step)(const tn_call *, tn_error *), tn_error *err)
{
    double begin = clock_seconds();
    tn_status status = guest_step(a->device, bound, call, step, err);
    if (status == TN_OK) /* what is only lined up has not been done */
        status = device_sync(a->device, err);
    double end = clock_seconds();
    if (status == TN_OK && a->observer->look)
        status = a->observer->look(a->observer->ctx, call, err);
    if (status != TN_OK || !a->observer->see)
        return status;
    const tn_event event = {.size = sizeof event,
                            .op = call->op,
                            .kernel = bound ? bound->id : NULL,
                            .path = call->site ? call->site->path : NULL,
                            .dtype = dtype_of(call),
                            .tokens = tokens_of(call),
                            .begin = begin,
                            .end = end,
                            .operations = operations_of(a->device, call),
                            .bytes = op_bytes(call)};
    a->observer->see(a->observer->ctx, &event);
    return TN_OK;
}
