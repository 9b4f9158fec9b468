/* Gradients of a run: its calls from the last one to the first, each of which gives the gradients of what it read from
 * those of what it wrote. What several calls read gets a sum: of activations rounded to their type each time, of
 * parameters in f32. */
#include "run/tape.h"

#include "base/convert.h"
#include "base/tensor.h"
#include "op/op.h"
#include "run/strips.h"

/* How a call's gradient of an input gets to its place. */
typedef enum arrival {
    ARRIVAL_NONE,    /* nobody wants it                                                             */
    ARRIVAL_DIRECT,  /* nothing has come there yet: the call writes it there                        */
    ARRIVAL_ADDED,   /* it is added to what later calls gave                                        */
    ARRIVAL_INSTEAD, /* the call wrote its result over this input, whose gradient lies where the result's did */
    ARRIVAL_SUM      /* the input is a parameter                                                    */
} arrival;

typedef struct backward {
    tape *t;
    const tape_call *entry;
    const op_row *row;
    tn_call call;
    tn_grads grads;
    arrival how[TN_CALL_TENSORS];
    tn_tensor place[TN_CALL_TENSORS]; /* of in                                                       */
    tn_error *err;
} backward;

/* Has a row one element alone, which stands for all? Its gradient is the sum, and one element, too. */
static bool is_spread(const tn_tensor *t)
{
    return t->ndim > 0 && t->shape[t->ndim - 1] > 1 && t->stride[t->ndim - 1] == 0;
}

static tn_tensor without_spread(const tn_tensor *t)
{
    tn_tensor one = *t;
    if (is_spread(t))
        one.shape[t->ndim - 1] = 1;
    return one;
}

static bool repeats(const tn_tensor *t)
{
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] > 1 && t->stride[i] == 0)
            return true;
    return false;
}

/* to += what, where elements of to stand for several of what: one after the other. */
static void add_repeated(const tn_tensor *to, const tn_tensor *what)
{
    strips s = strips_of(to);
    size_t to_size = tn_dtype_size(to->dtype), size = tn_dtype_size(what->dtype);
    for (int64_t i = 0; i < s.count * s.width; i++) {
        char *at = (char *)to->data + (strips_at(&s, i / s.width) + i % s.width) * (int64_t)to_size;
        float a, b;
        convert_to_f32(at, to->dtype, &a, 1);
        convert_to_f32((const char *)what->data + (size_t)i * size, what->dtype, &b, 1);
        a += b;
        convert_from_f32(&a, to->dtype, at, 1);
    }
}

/* A step between the contracts. */
static tn_status step(const backward *b, tn_op op, run_tensors in, run_tensors out)
{
    const tn_call call = run_make_call(op, NULL, in, out);
    return run_eager_call(b->t->arena->device, b->t->arena, &call, b->err);
}

/* What take_like gave, added to a view like it. */
static tn_status add(const backward *b, const tn_tensor *view, const tn_tensor *what)
{
    const tn_tensor one = without_spread(view), *to = is_spread(what) ? &one : view;
    if (!repeats(to) && !is_spread(what))
        return step(b, TN_OP_ADD, RUN_TENSORS(to, what), RUN_TENSORS(to));
    add_repeated(to, what);
    return TN_OK;
}

/* A dense tensor of x's shape and type, or one that is spread as x is. */
static tn_status take_like(backward *b, const tn_tensor *x, tn_tensor *out)
{
    const tn_tensor one = without_spread(x);
    *out = tn_tensor_dense(NULL, x->dtype, x->ndim, one.shape);
    tn_status status =
        arena_take(b->t->arena, (size_t)tn_tensor_count(out) * tn_dtype_size(out->dtype), &out->data, b->err);
    if (is_spread(x)) {
        out->shape[x->ndim - 1] = x->shape[x->ndim - 1];
        out->stride[x->ndim - 1] = 0;
    }
    return status;
}

/* Where f32 sums of a parameter lie, as a view like t. */
static tn_tensor sums_of(const tape *t, const tn_tensor *x)
{
    tn_tensor sums = *x;
    sums.dtype = TN_F32;
    sums.data = t->sums.find(t->sums.ctx, x);
    return sums;
}

/* Was the input, or a part of it, given to the call as an earlier input, too? */
static bool is_given_twice(const tn_call *call, int32_t input)
{
    for (int32_t i = 0; i < input; i++)
        if (tape_overlap(&call->in[i], &call->in[input]))
            return true;
    return false;
}

static arrival arrives(backward *b, int32_t i)
{
    const tn_call *call = &b->entry->call;
    const tn_tensor *x = &call->in[i];
    if (!x->data || !op_input_has_gradient(b->row, i, x->dtype))
        return ARRIVAL_NONE;
    if (!tape_holds(b->t, x)) {
        b->place[i] = sums_of(b->t, x);
        return b->place[i].data ? ARRIVAL_SUM : ARRIVAL_NONE;
    }
    b->place[i] = tape_place(b->t, x);
    for (int32_t j = 0; j < call->out_count; j++)
        if (call->out[j].data == x->data)
            return ARRIVAL_INSTEAD;
    bool adds = repeats(x) || is_given_twice(call, i) || tape_is_touched(b->t, &b->place[i]);
    return adds ? ARRIVAL_ADDED : ARRIVAL_DIRECT;
}

/* What is known of the results. False: nothing has come, so nothing goes on. */
static bool look_at_results(backward *b)
{
    const tn_call *call = &b->entry->call;
    bool any = false;
    for (int32_t i = 0; i < call->out_count; i++) {
        b->grads.out[i] = call->out[i];
        b->grads.out[i].data = NULL;
        if (!call->out[i].data || !tensor_is_float(call->out[i].dtype) || !tape_holds(b->t, &call->out[i]))
            continue;
        tn_tensor g = tape_place(b->t, &call->out[i]);
        if (tape_is_touched(b->t, &g)) {
            b->grads.out[i] = g;
            any = true;
        }
    }
    return any;
}

static tn_status prepare_inputs(backward *b)
{
    tn_status status = TN_OK;
    for (int32_t i = 0; i < b->call.in_count && status == TN_OK; i++) {
        b->call.in[i] = b->entry->read[i];
        b->how[i] = arrives(b, i);
        if (b->how[i] == ARRIVAL_DIRECT)
            b->grads.in[i] = b->place[i];
        else if (b->how[i] != ARRIVAL_NONE)
            status = take_like(b, &b->call.in[i], &b->grads.in[i]);
    }
    return status;
}

/* Gradients of a parameter's tensors in memory of their own, one behind the other. */
static tn_status prepare_param(backward *b, tn_role role)
{
    const tn_param *p = &b->call.site->param[role];
    bool wanted = false;
    for (int64_t k = 0; k < p->count && !wanted; k++)
        wanted = sums_of(b->t, &p->tensors[k]).data;
    if (!wanted || !op_param_has_gradient(b->row, role, p->tensors->dtype))
        return TN_OK;
    void *memory;
    tn_status status = arena_take(b->t->arena, (size_t)p->count * sizeof(tn_tensor), &memory, b->err);
    tn_tensor *made = memory;
    for (int64_t k = 0; k < p->count && status == TN_OK; k++)
        status = take_like(b, &p->tensors[k], &made[k]);
    if (status == TN_OK)
        b->grads.param[role] = (tn_param){made, p->count};
    return status;
}

static tn_status prepare_params(backward *b)
{
    tn_status status = TN_OK;
    for (int role = 0; b->call.site && role < TN_ROLE_MAX && status == TN_OK; role++)
        status = prepare_param(b, (tn_role)role);
    return status;
}

static tn_status deliver_inputs(backward *b)
{
    tn_status status = TN_OK;
    for (int32_t i = 0; i < b->call.in_count && status == TN_OK; i++) {
        if (b->how[i] == ARRIVAL_ADDED || b->how[i] == ARRIVAL_SUM)
            status = add(b, &b->place[i], &b->grads.in[i]);
        else if (b->how[i] == ARRIVAL_INSTEAD)
            status = step(b, TN_OP_COPY, RUN_TENSORS(&b->grads.in[i]), RUN_TENSORS(&b->place[i]));
        if (b->how[i] != ARRIVAL_NONE && b->how[i] != ARRIVAL_SUM)
            tape_touch(b->t, &b->place[i]);
    }
    return status;
}

static tn_status deliver_params(backward *b)
{
    tn_status status = TN_OK;
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t k = 0; k < b->grads.param[role].count && status == TN_OK; k++) {
            tn_tensor sums = sums_of(b->t, &b->call.site->param[role].tensors[k]);
            if (sums.data)
                status = add(b, &sums, &b->grads.param[role].tensors[k]);
        }
    return status;
}

/* What the call wrote was something else before: its gradient is used up, except where an input's lies there now. */
static void clear_results(backward *b)
{
    const tn_call *call = &b->entry->call;
    for (int32_t i = 0; i < call->out_count; i++) {
        bool kept = !b->grads.out[i].data;
        for (int32_t j = 0; j < call->in_count && !kept; j++)
            kept = b->how[j] == ARRIVAL_INSTEAD && call->in[j].data == call->out[i].data;
        if (!kept)
            tape_clear(b->t, &b->grads.out[i]);
    }
}

/* Rows of a table, each as often as its token came: a table of a whole vocabulary is not made for it. */
static void embedding_backward(backward *b)
{
    enum { BLOCK = 1024 };
    const tn_site *site = b->call.site;
    const tn_tensor *ids = &b->call.in[0], *dy = &b->grads.out[0];
    tn_tensor table = sums_of(b->t, site->param[TN_ROLE_WEIGHT].tensors);
    tn_dtype type = site->param[TN_ROLE_WEIGHT].tensors->dtype;
    float scale = (float)site->num[TN_NUM_SCALE], row[BLOCK], rounded;
    if (!table.data) /* quantised, among others                                                       */
        return;
    convert_from_f32(&scale, type, &rounded, 1);
    convert_to_f32(&rounded, type, &scale, 1);
    for (int64_t t = 0; t < ids->shape[0]; t++) {
        int64_t id = ((const int64_t *)ids->data)[t];
        id = site->features & TN_HAS_PARTIAL && id >= table.shape[0] ? 0 : id;
        if (ids->data == b->t->tokens && id == b->t->padding)
            continue;
        const char *from = (const char *)dy->data + (size_t)(t * dy->stride[0]) * tn_dtype_size(dy->dtype);
        float *to = (float *)table.data + id * table.stride[0];
        for (int64_t i = 0; i < table.shape[1]; i += BLOCK) {
            int64_t n = table.shape[1] - i < BLOCK ? table.shape[1] - i : BLOCK;
            convert_to_f32(from + (size_t)i * tn_dtype_size(dy->dtype), dy->dtype, row, n);
            for (int64_t k = 0; k < n; k++)
                to[i + k] += scale != 0.0f ? row[k] * scale : row[k];
        }
    }
}

static tn_status perform(backward *b)
{
    const graph_site *site = b->entry->site;
    const device *d = b->t->arena->device;
    return site ? run_site_backward(d, b->t->arena, site, &b->call, b->err)
                : run_eager_backward(d, b->t->arena, &b->call, b->err);
}

static tn_status call_backward(tape *t, const tape_call *entry, tn_error *err)
{
    backward b = {.t = t, .entry = entry, .row = op_find(entry->call.op), .call = entry->call, .err = err};
    b.grads.size = sizeof b.grads;
    b.call.grads = &b.grads;
    size_t mark = arena_mark(t->arena);
    tn_status status = TN_OK;
    if (!look_at_results(&b))
        return TN_OK;
    if (entry->call.op == TN_OP_EMBEDDING) {
        embedding_backward(&b);
    } else {
        status = prepare_inputs(&b);
        if (status == TN_OK)
            status = prepare_params(&b);
        if (status == TN_OK)
            status = perform(&b);
        if (status == TN_OK)
            status = deliver_inputs(&b);
        if (status == TN_OK)
            status = deliver_params(&b);
    }
    if (status == TN_OK)
        clear_results(&b);
    arena_release(t->arena, mark);
    return status;
}

tn_status tape_backward(tape *t, size_t count, size_t mark, tn_error *err)
{
    tn_status status = TN_OK;
    while (t->count > count && status == TN_OK) {
        status = call_backward(t, &t->calls[--t->count], err);
        if (t->high > t->calls[t->count].mark + TAPE_MUCH) { /* what came later has no gradient any more */
            tape_forget(t, t->calls[t->count].mark);
            t->high = t->calls[t->count].mark;
        }
    }
    arena_release(t->arena, mark);
    return status;
}
