/* Telling an observer of calls. All of it happens behind the second look at the clock, so what an event costs is in no
 * event. */
#include "run/observe.h"

#include "base/clock.h"
#include "op/op.h"
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

tn_status observe_step(const arena *a, const graph_binding *bound, const tn_call *call,
                       tn_status (*step)(const tn_call *, tn_error *), tn_error *err)
{
    double begin = clock_seconds();
    tn_status status = guest_step(a->device, bound, call, step, err);
    if (status == TN_OK) /* what is only lined up has not been done */
        status = device_sync(a->device, err);
    double end = clock_seconds();
    if (status != TN_OK)
        return status;
    const tn_event event = {.size = sizeof event,
                            .op = call->op,
                            .kernel = bound ? bound->id : NULL,
                            .path = call->site ? call->site->path : NULL,
                            .dtype = dtype_of(call),
                            .tokens = tokens_of(call),
                            .begin = begin,
                            .end = end,
                            .operations = op_operations(call),
                            .bytes = op_bytes(call)};
    a->observer->see(a->observer->ctx, &event);
    return TN_OK;
}
