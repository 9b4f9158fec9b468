/* Steps that compositions are made of: one operation by the device, or by a kernel, with its scratch. */
#include "run/compose.h"

#include "run/guest.h"
#include "run/observe.h"
#include "run/planning.h"

tn_status run_step(arena *a, const graph_binding *bound, const tn_call *call, size_t scratch_bytes,
                   tn_status (*step)(const tn_call *, tn_error *), tn_error *err)
{
    size_t mark = arena_mark(a);
    tn_call with_scratch = *call;
    with_scratch.queue = a->device->queue;
    tn_status status = TN_OK;
    if (!bound && a->device->guest)
        status = planning_judge_device(a->device, call, scratch_bytes, err);
    if (status == TN_OK && scratch_bytes > 0)
        status = arena_take(a, scratch_bytes, &with_scratch.scratch, err);
    if (status == TN_OK && !a->measuring)
        status = a->observer ? observe_step(a, bound, &with_scratch, step, err)
                             : guest_step(a->device, bound, &with_scratch, step, err);
    arena_release(a, mark);
    return status;
}

tn_call run_make_call(tn_op op, const tn_site *site, run_tensors in, run_tensors out)
{
    tn_call call = {.size = sizeof call, .op = op, .site = site, .in_count = in.count, .out_count = out.count};
    for (int32_t i = 0; i < in.count; i++)
        call.in[i] = *in.at[i];
    for (int32_t i = 0; i < out.count; i++)
        call.out[i] = *out.at[i];
    return call;
}

tn_tensor compose_take_as(composer *c, tn_dtype dtype, int64_t rows, int64_t width)
{
    tn_tensor t = tn_tensor_dense(NULL, dtype, 2, (int64_t[]){rows, width});
    if (c->status == TN_OK)
        c->status = arena_take(c->arena, (size_t)(rows * width) * tn_dtype_size(dtype), &t.data, c->err);
    return t;
}

tn_tensor compose_take(composer *c, int64_t rows, int64_t width)
{
    return compose_take_as(c, c->call->in[0].dtype, rows, width);
}

void compose_eagerly(composer *c, tn_op op, const tn_site *site, run_tensors in, run_tensors out)
{
    const tn_call call = run_make_call(op, site, in, out);
    if (c->status == TN_OK)
        c->status = run_step(c->arena, NULL, &call, device_scratch(c->device, &call), c->device->ops->eager, c->err);
}

void compose_add(composer *c, const tn_tensor *a, const tn_tensor *b, const tn_tensor *out)
{
    compose_eagerly(c, TN_OP_ADD, c->call->site, RUN_TENSORS(a, b), RUN_TENSORS(out));
}

void compose_backward_step(composer *c, const tn_call *call)
{
    const device *d = c->device;
    if (c->status == TN_OK && !d->ops->backward)
        c->status = tn_fail(c->err, TN_DECLINED, call->site->path, "device %s has no gradients", d->ops->name);
    else if (c->status == TN_OK)
        c->status = run_step(c->arena, NULL, call, device_backward_scratch(d, call), d->ops->backward, c->err);
}
