/* Gradients of LINEAR: dx = g w, dw = g^T x, db the sum of g over its rows. */
#include "eager_grad.h"

/* The upstream gradient's rows, as a matrix: its shape follows from x and the weight. */
static tn_tensor upstream(npu_run *r, const tn_tensor *x, int64_t width)
{
    const tn_tensor *g = &r->call->grads->out[0];
    tn_tensor rows = tn_tensor_dense(NULL, x->dtype, 2, (int64_t[]){x->shape[0], width});
    tn_tensor copy = npu_take_like(r, x->dtype, rows); /* for rows that do not follow one stride */
    if (!g->data || npu_rows(g, &rows))
        return rows;
    tn_tensor like = tn_tensor_dense(copy.data, g->dtype, g->ndim, g->shape);
    npu_copy(r, *g, like);
    return copy;
}

static void linear(npu_run *r)
{
    const tn_call *call = r->call;
    const tn_tensor *w = npu_param(call->site, TN_ROLE_WEIGHT), *to = &call->grads->in[0];
    const tn_tensor *dw = grad_param(r, TN_ROLE_WEIGHT), *db = grad_param(r, TN_ROLE_BIAS);
    tn_tensor x;
    if (!w || !npu_rows(&call->in[0], &x)) {
        r->status = tn_fail(r->err, TN_E_INTERNAL, call->site->path,
                            "a linear layer without its weight, or whose rows do not follow one stride");
        return;
    }
    tn_dtype type = x.dtype == w->dtype ? x.dtype : TN_F32;
    tn_tensor given = upstream(r, &x, w->shape[0]), g = npu_in_type(r, type, &given), turned = npu_transposed(g);
    tn_tensor from = npu_in_type(r, type, &x), matrix = npu_in_type(r, type, w);
    tn_tensor product = npu_take_like(r, type, *w), dx = npu_take_like(r, type, x);
    tn_tensor wide = npu_take_like(r, TN_F32, given);
    if (dw) {
        npu_matmul(r, turned, from, product);
        npu_copy(r, product, *dw);
    }
    if (db)
        npu_copy(r, given, wide);
    grad_sum_rows(r, &wide, db);
    if (!to->data)
        return;
    npu_matmul(r, g, matrix, dx);
    dx = npu_view(dx.data, type, call->in[0].ndim, call->in[0].shape, NULL);
    npu_copy(r, dx, *to);
}

const ascend_gradient ascend_linear_grad = {.op = TN_OP_LINEAR, .body = linear};
