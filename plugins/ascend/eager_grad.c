/* The table of gradients, and what all of them share. */
#include "eager_grad.h"
#include "queue.h"

static const ascend_gradient *const table[] = {
    &ascend_linear_grad,     &ascend_rms_norm_grad,    &ascend_add_rms_norm_grad,
    &ascend_layer_norm_grad, &ascend_rope_grad,        &ascend_glu_grad,
    &ascend_act_grad,        &ascend_softcap_grad,     &ascend_grouped_matmul_grad,
    &ascend_moe_route_grad,  &ascend_moe_experts_grad, &ascend_attention_grad,
    &ascend_add_grad,        &ascend_scale_grad,       &ascend_row_scale_grad,
    &ascend_embedding_grad,
};

static const ascend_gradient *find(tn_op op)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i]->op == op)
            return table[i];
    return NULL;
}

/* ---- what all gradients share ------------------------------------------------------------------------------- */

const tn_tensor *grad_param(const npu_run *r, tn_role role)
{
    const tn_param *p = &r->call->grads->param[role];
    return p->count > 0 && p->tensors->data ? p->tensors : NULL;
}

tn_tensor grad_wide(npu_run *r, const tn_tensor *x, const tn_tensor *like)
{
    tn_tensor wide = npu_take_like(r, TN_F32, *like);
    if (x->data)
        npu_copy(r, *x, wide);
    else
        npu_fill(r, wide, 0);
    return wide;
}

void grad_round(npu_run *r, const tn_tensor *x, tn_dtype dtype)
{
    if (dtype == TN_F32)
        return;
    tn_tensor narrow = npu_take_like(r, dtype, *x);
    npu_copy(r, *x, narrow);
    npu_copy(r, narrow, *x);
}

void grad_store(npu_run *r, const tn_tensor *from, const tn_tensor *to)
{
    if (to && to->data)
        npu_copy(r, *from, *to);
}

/* The divisor of count that is nearest to its root from below. */
static int64_t part_of(int64_t count)
{
    int64_t part = 1;
    for (int64_t i = 2; i * i <= count; i++)
        if (count % i == 0)
            part = i;
    return part;
}

void grad_sums(npu_run *r, const tn_tensor *x, const tn_tensor *y)
{
    int64_t width = x->shape[x->ndim - 1], part = part_of(width), rows = width > 0 ? tn_tensor_count(x) / width : 0;
    size_t before = r->used;
    tn_tensor parts = npu_take_2d(r, TN_F32, rows * part, 1);
    r->used = before;
    if (part == 1) {
        npu_sums(r, *x, *y);
        return;
    }
    tn_tensor pieces = npu_view(x->data, TN_F32, 2, (int64_t[]){rows * part, width / part}, NULL);
    npu_sums(r, pieces, parts);
    pieces = npu_view(parts.data, TN_F32, 2, (int64_t[]){rows, part}, NULL);
    tn_tensor sums = npu_view(y->data, TN_F32, 2, (int64_t[]){rows, 1}, NULL);
    npu_sums(r, pieces, sums);
}

void grad_sum_rows(npu_run *r, const tn_tensor *x, const tn_tensor *to)
{
    int64_t width = x->shape[x->ndim - 1], count = width > 0 ? tn_tensor_count(x) / width : 0;
    int64_t part = part_of(count), each = count / (part > 0 ? part : 1);
    size_t before = r->used;
    tn_tensor parts = npu_take_3d(r, TN_F32, part, width, 1);
    tn_tensor sums = npu_take_2d(r, TN_F32, width, 1);
    r->used = before;
    if (!to || !to->data)
        return;
    tn_tensor pieces =
        npu_view(x->data, TN_F32, 3, (int64_t[]){part, width, each}, (int64_t[]){each * width, 1, width});
    npu_sums(r, pieces, parts);
    tn_tensor turned = npu_view(parts.data, TN_F32, 2, (int64_t[]){width, part}, (int64_t[]){1, width});
    npu_sums(r, turned, sums);
    sums.ndim = 1;
    npu_copy(r, sums, *to);
}

/* ---- calls ---------------------------------------------------------------------------------------------------- */

/* Does something for each gradient that is wanted. */
typedef void visitor(npu_run *r, const tn_tensor *t);

static void visit(npu_run *r, visitor *each)
{
    const tn_grads *grads = r->call->grads;
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        if (grads->in[i].data && tn_tensor_count(&grads->in[i]) > 0)
            each(r, &grads->in[i]);
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < grads->param[role].count; i++)
            if (grads->param[role].tensors[i].data)
                each(r, &grads->param[role].tensors[i]);
}

static void forget(npu_run *r, const tn_tensor *t)
{
    npu_shadow_drop_tensor(npu_of(r->queue), t);
    npu_cache_forget(npu_of(r->queue), t->data);
}

/* A dimension of stride 0 is written once. */
static void clear(npu_run *r, const tn_tensor *t)
{
    npu_fill(r, npu_folded(t), 0);
}

static void clear_all(npu_run *r)
{
    visit(r, clear);
}

static bool has_upstream(const tn_grads *grads)
{
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        if (grads->out[i].data)
            return true;
    return false;
}

/* Gradients are taken of what forward takes; sums of products are f32's, which chips for inference do not have. */
static tn_status check(const ascend_gradient *gradient, const tn_call *call, tn_error *err)
{
    if (!gradient)
        return tn_fail(err, TN_DECLINED, "npu", "the gradients of %s are not there yet", tn_op_name(call->op));
    if (ascend_chip_of(npu_soc()) == ASCEND_310P)
        return tn_fail(err, TN_DECLINED, "npu", "%s has no products of f32, which gradients are made of", npu_soc());
    tn_site site = *call->site;
    site.op = call->op;
    tn_status status = eager_supports(&site, err);
    if (status == TN_OK && gradient->needs)
        status = npu_needs(gradient->needs, err);
    return status == TN_OK && gradient->declines ? gradient->declines(call, err) : status;
}

size_t eager_backward_scratch(const tn_call *call)
{
    const ascend_gradient *gradient = find(call->op);
    return check(gradient, call, NULL) == TN_OK ? npu_measure(gradient->body, call) : 0;
}

tn_status eager_backward(const tn_call *call, tn_error *err)
{
    const ascend_gradient *gradient = find(call->op);
    tn_status status = check(gradient, call, err);
    if (status != TN_OK)
        return status;
    npu_run r = {.call = call, .queue = call->queue, .err = err};
    visit(&r, forget);
    if (!has_upstream(call->grads) || tn_tensor_count(&call->in[0]) == 0)
        return npu_perform(clear_all, call, err);
    if (call->scratch)
        npu_shadow_drop(npu_of(call->queue), call->scratch, npu_measure(gradient->body, call));
    return npu_perform(gradient->body, call, err);
}
