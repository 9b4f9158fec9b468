/* Cutting calls: every tensor that has a place for each token is cut where the tokens are. */
#include "run/pieces.h"

#include "op/op.h"

/* Places begin .. begin + count of dimension axis, where the tensor has as many as there are tokens. */
static void cut(tn_tensor *t, int axis, int64_t all, int64_t begin, int64_t count)
{
    if (t->ndim <= axis || t->shape[axis] != all)
        return;
    t->shape[axis] = count;
    if (t->data)
        t->data = (char *)t->data + (size_t)(begin * t->stride[axis]) * tn_dtype_size(t->dtype);
}

tn_status pieces_site_call(const device *device, arena *a, const graph_site *site, const tn_call *call, tn_error *err)
{
    int64_t allowed = graph_most_tokens(&site->site);
    if (op_tokens(call) <= allowed || call->op == TN_OP_ATTENTION)
        return run_site_call(device, a, site, call, err);
    const tn_tensor *x = &call->in[0];
    int axis = x->ndim > 2 && x->shape[0] == 1 ? 1 : 0;
    int64_t all = x->shape[axis], inside = x->ndim > 2 && axis == 0 ? x->shape[1] : 1;
    int64_t most = inside < allowed ? allowed / inside : 1;
    tn_status status = TN_OK;
    for (int64_t begin = 0; begin < all && status == TN_OK; begin += most) {
        int64_t count = all - begin < most ? all - begin : most;
        tn_call piece = *call;
        for (int32_t i = 0; i < call->in_count; i++)
            cut(&piece.in[i], axis, all, begin, count);
        for (int32_t i = 0; i < call->out_count; i++)
            cut(&piece.out[i], axis, all, begin, count);
        status = run_site_call(device, a, site, &piece, err);
    }
    return status;
}
