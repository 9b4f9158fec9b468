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

pieces pieces_of(const graph_site *site, const tn_call *call, bool taped)
{
    const tn_tensor *x = &call->in[0];
    int64_t allowed = graph_is_wide(&site->site) && !taped ? GRAPH_WIDE_TRIED : graph_most_tokens(&site->site);
    if (op_tokens(call) <= allowed || call->op == TN_OP_ATTENTION)
        return (pieces){.call = call, .all = 1, .most = 1};
    int axis = x->ndim > 2 && x->shape[0] == 1 ? 1 : 0;
    int64_t inside = x->ndim > 2 && axis == 0 ? x->shape[1] : 1;
    return (pieces){.call = call, .axis = axis, .all = x->shape[axis], .most = inside < allowed ? allowed / inside : 1};
}

bool pieces_next(pieces *p, tn_call *piece)
{
    int64_t begin = p->begin, count = p->all - begin < p->most ? p->all - begin : p->most;
    if (count <= 0)
        return false;
    p->begin += count;
    *piece = *p->call;
    for (int32_t i = 0; count < p->all && i < piece->in_count; i++)
        cut(&piece->in[i], p->axis, p->all, begin, count);
    for (int32_t i = 0; count < p->all && i < piece->out_count; i++)
        cut(&piece->out[i], p->axis, p->all, begin, count);
    return true;
}
