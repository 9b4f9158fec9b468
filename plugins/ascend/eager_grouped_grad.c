/* Gradients of GROUPED_MATMUL: dx = g w by rows, dw = g^T x of the group's rows, both transposed where the matrix is
 * [in,out]. The numbers of rows stay on the device. */
#include "eager_grad.h"
#include "eager_grouped.h"
#include "queue.h"

enum { LANES = 16 }; /* equal columns of ones: a single one could be taken for no transposed matrix     */

tn_layout grouped_turned(tn_layout layout)
{
    switch (layout) {
    case TN_LAYOUT_EXPERT_LIST:
        return TN_LAYOUT_LIST_IO;
    case TN_LAYOUT_LIST_IO:
        return TN_LAYOUT_EXPERT_LIST;
    case TN_LAYOUT_STACKED_OI:
        return TN_LAYOUT_STACKED_IO;
    default:
        return TN_LAYOUT_STACKED_OI;
    }
}

/* ---- matrices ----------------------------------------------------------------------------------------------- */

/* room: [m,n] */
static void by_group(npu_run *r, grouped *g, bool list, const tn_tensor *a, const tn_tensor *b, const tn_tensor *room,
                     const tn_param *to)
{
    const int64_t *counts = grouped_counts(r, g, a->shape[0]);
    for (int64_t i = 0, at = 0; i < g->groups && r->status == TN_OK; at += counts[i++]) {
        tn_tensor x = npu_narrow(*a, 0, at, counts[i]), w = npu_narrow(*b, 0, at, counts[i]);
        if (counts[i] > 0)
            npu_matmul(r, npu_transposed(x), w, *room);
        else
            npu_fill(r, *room, 0);
        npu_copy(r, *room, list ? to->tensors[i] : npu_member(to->tensors, i));
    }
}

void grouped_grad(npu_run *r, grouped *g, bool list, const tn_tensor *a, const tn_tensor *b, const tn_param *to)
{
    int64_t m = a->shape[1], n = b->shape[1];
    size_t before = r->used;
    bool taken = g->groups >= 2 && g->groups <= NPU_STACK_MOST && m <= NPU_WIDTH_MOST && n <= NPU_WIDTH_MOST;
    tn_tensor stack = npu_take_3d(r, a->dtype, taken && list ? g->groups : 0, m, n);
    tn_tensor room = npu_take_2d(r, a->dtype, m, n);
    r->used = before; /* what comes later may use it                                                   */
    if (r->measuring || r->status != TN_OK || to->count == 0 || !to->tensors->data)
        return;
    if (!taken || (!list && !ascend_is_dense(to->tensors))) {
        by_group(r, g, list, a, b, &room, to);
        return;
    }
    tn_tensor y = list ? stack : *to->tensors;
    npu_fill(r, y, 0); /* what a group without rows leaves of its matrix is not documented            */
    npu_grouped_matmul(r, NPU_OF_SUMS, npu_transposed(*a), b, 1, *g->counts, y);
    for (int64_t i = 0; i < g->groups && list; i++)
        npu_copy(r, npu_member(&stack, i), to->tensors[i]);
}

void grouped_sums(npu_run *r, grouped *g, const tn_tensor *b, const tn_tensor *to)
{
    size_t before = r->used;
    tn_tensor ones = npu_take_2d(r, b->dtype, b->shape[0], LANES);
    tn_tensor sums = npu_take_3d(r, b->dtype, g->groups, LANES, b->shape[1]);
    if (to && to->data)
        npu_fill(r, ones, 1);
    grouped_grad(r, g, false, &ones, b, &(tn_param){&sums, to && to->data ? 1 : 0});
    tn_tensor first =
        npu_view(sums.data, sums.dtype, 2, (int64_t[]){sums.shape[0], sums.shape[2]}, (int64_t[]){sums.stride[0], 1});
    grad_store(r, &first, to);
    r->used = before;
}

/* ---- the operation ------------------------------------------------------------------------------------------- */

/* The tensor, or dense memory with a copy of it. */
static tn_tensor dense(npu_run *r, const tn_tensor *t, const tn_tensor *like)
{
    tn_tensor room = npu_take_like(r, like->dtype, *like);
    if (t->data && ascend_is_dense(t))
        return *t;
    if (t->data)
        npu_copy(r, *t, room);
    return room;
}

static void grouped_matmul(npu_run *r)
{
    const tn_call *call = r->call;
    const tn_tensor *in = call->in, *to = &call->grads->in[0];
    const tn_param *param = &call->site->param[TN_ROLE_WEIGHT];
    tn_layout layout = (tn_layout)call->site->meaning[TN_AXIS_LAYOUT];
    bool list = grouped_is_list(layout), oi = grouped_is_oi(layout);
    int64_t out = param->tensors->shape[(list ? 0 : 1) + (oi ? 0 : 1)];
    tn_tensor like = tn_tensor_dense(NULL, in[0].dtype, 2, (int64_t[]){in[0].shape[0], out});
    tn_tensor x = dense(r, &in[0], &in[0]), g = dense(r, &call->grads->out[0], &like);
    tn_tensor counts = dense(r, &in[1], &in[1]), dx = npu_take_like(r, x.dtype, in[0]);
    grouped job = {.path = call->site->path, .counts = &counts, .groups = counts.shape[0]};
    job.computed = counts.data != in[1].data;
    if (!r->measuring) {
        const int64_t *known = r->queue->shadow(r->queue, in[1].data, (size_t)job.groups * sizeof *known);
        if (known && !job.computed) /* what the operator would make something of is looked at          */
            grouped_counts(r, &job, x.shape[0]);
    }
    grouped_grad(r, &job, list, oi ? &g : &x, oi ? &x : &g, &call->grads->param[TN_ROLE_WEIGHT]);
    if (to->data) {
        grouped_product(r, &job, param, grouped_turned(layout), &g, &dx);
        npu_copy(r, dx, *to);
    }
    grouped_end(&job);
}

const ascend_gradient ascend_grouped_matmul_grad = {.op = TN_OP_GROUPED_MATMUL, .body = grouped_matmul};
