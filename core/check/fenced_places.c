/* What a call in a child reads and writes, and where it lies. */
#include "check/fenced.h"
#include "check/layout.h"
#include "op/op.h"

#include <stdlib.h>
#include <string.h>

static void add_place(fenced_run *run, fenced_kind kind, tn_tensor *tensors, int64_t count, const tn_tensor *from,
                      int same)
{
    run->places[run->place_count++] = (fenced_place){kind, tensors, count, from, same, {0}};
}

/* The place of the output whose memory input i has, too; -1: none. */
static int shared(const fenced_run *run, int i)
{
    const tn_call *call = &run->in->call;
    return i < run->in_place && call->in[i].dtype == call->out[i].dtype ? i : -1;
}

/* What the kernel writes comes first: place i is output i then. */
static void list_forward(fenced_run *run)
{
    for (int i = 0; i < run->call.out_count; i++)
        add_place(run, FENCED_OUTPUT, &run->call.out[i], 1, NULL, -1);
    for (int i = 0; i < run->call.in_count; i++)
        add_place(run, FENCED_INPUT, &run->call.in[i], 1, &run->in->call.in[i], shared(run, i));
}

static tn_status copy_params(fenced_run *run, tn_error *err)
{
    int64_t total = 0;
    for (int role = 0; role < TN_ROLE_MAX; role++)
        total += run->grads.param[role].count;
    run->params = calloc((size_t)total + 1, sizeof *run->params);
    if (!run->params)
        return tn_fail(err, TN_E_MEMORY, NULL, "no memory to check a kernel with; free some memory");
    tn_tensor *next = run->params;
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        tn_param *p = &run->grads.param[role];
        if (p->count > 0)
            memcpy(next, p->tensors, (size_t)p->count * sizeof *next);
        p->tensors = next;
        next += p->count;
    }
    return TN_OK;
}

/* Place i is the gradient of input i where in-place matters: the inputs of those operations come first. What
 * backward does not read has no data. */
static tn_status list_backward(fenced_run *run, tn_error *err)
{
    run->grads = run->wanted->grads;
    run->call.grads = &run->grads;
    run->call.out_count = 0;
    tn_status status = copy_params(run, err);
    if (status != TN_OK)
        return status;
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        if (run->grads.in[i].dtype != TN_DTYPE_NONE)
            add_place(run, FENCED_GRADIENT, &run->grads.in[i], 1, NULL, -1);
    tn_tensor *next = run->params;
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        if (run->grads.param[role].count > 0)
            add_place(run, FENCED_GRADIENT, next, run->grads.param[role].count, NULL, -1);
        next += run->grads.param[role].count;
    }
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        if (run->grads.out[i].data)
            add_place(run, FENCED_UPSTREAM, &run->grads.out[i], 1, &run->wanted->grads.out[i], shared(run, i));
    for (int i = 0; i < run->call.in_count; i++)
        if (op_find(run->call.op)->in[i].unread)
            run->call.in[i].data = NULL;
        else
            add_place(run, FENCED_INPUT, &run->call.in[i], 1, &run->in->call.in[i], -1);
    return TN_OK;
}

tn_status fenced_open_place(const fenced_run *run, fenced_place *p, fence *f, fence_spares *spares, tn_error *err)
{
    size_t bytes = 0, at = 0, element = tn_dtype_size(p->tensors->dtype);
    for (int64_t i = 0; i < p->count; i++) {
        layout b = layout_set(&p->tensors[i], run->padded);
        bytes += layout_bytes(&b, p->tensors[i].dtype);
    }
    size_t off = run->off ? element : 0;
    tn_status status = spares ? fence_open_spare(spares, f, bytes, element, off, run->side, err)
                              : fence_open(f, bytes, element, off, run->side, true, err);
    if (status != TN_OK)
        return status;
    fence_fill(f, FENCE_ONES);
    for (int64_t i = 0; i < p->count; i++) {
        layout b = layout_set(&p->tensors[i], run->padded);
        p->tensors[i].data = f->data + at;
        at += layout_bytes(&b, p->tensors[i].dtype);
        layout_fill_gaps(&b, &p->tensors[i]);
        if (p->from)
            layout_copy(&b, &p->from[i], &p->tensors[i]);
    }
    return TN_OK;
}

tn_status fenced_open_run(fenced_run *run, tn_error *err)
{
    tn_status status = TN_OK;
    run->call = run->in->call;
    if (run->wanted)
        status = list_backward(run, err);
    else
        list_forward(run);
    for (size_t i = 0; status == TN_OK && i < run->place_count; i++)
        if (!run->places[i].from)
            status = fenced_open_place(run, &run->places[i], &run->places[i].fence, NULL, err);
    return status;
}

void fenced_close_run(fenced_run *run)
{
    for (size_t i = 0; i < run->place_count; i++)
        fence_close(&run->places[i].fence);
    free(run->params);
    run->params = NULL;
    run->place_count = 0;
}
