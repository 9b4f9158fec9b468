/* How much work a call is: what kernels are measured by, and time limits derived from. */
#include "op/op.h"

/* How much of a parameter with experts one token uses. */
static double share_of(const op_param *param, const tn_site *site)
{
    double experts = (double)site->dim[TN_DIM_EXPERTS];
    if (param->use == OP_USE_ALL || experts < 1)
        return 1;
    return (param->use == OP_USE_TOP_K ? (double)site->dim[TN_DIM_TOP_K] : 1) / experts;
}

double op_operations(const tn_call *call)
{
    const op_row *row = op_find(call->op);
    const tn_site *site = call->site;
    double used = 0;
    if (!row || row->operations)
        return row ? row->operations(call) : 0;
    for (int i = 0; i < OP_PARAMS && row->param[i].shape; i++) {
        const op_param *p = &row->param[i];
        if (!op_is_there(&p->when, site))
            continue;
        tn_tensor t = op_param_tensor(p, site);
        if (t.ndim > 1)
            used += (double)tn_tensor_count(&t) * (double)op_param_count(p, site) * share_of(p, site);
    }
    return 2 * used * (double)op_tokens(call);
}

double op_bytes(const tn_call *call)
{
    const op_row *row = op_find(call->op);
    const tn_site *site = call->site;
    double bytes = 0, tokens = (double)op_tokens(call);
    for (int i = 0; i < call->in_count; i++)
        bytes += (double)tn_dtype_bytes(call->in[i].dtype, tn_tensor_count(&call->in[i]));
    if (call->op == TN_OP_CACHE_APPEND) /* of the cache, no more than what is put there */
        return 2 * bytes;
    for (int i = 0; i < call->out_count; i++)
        bytes += (double)tn_dtype_bytes(call->out[i].dtype, tn_tensor_count(&call->out[i]));
    for (int i = 0; row && i < OP_PARAMS && row->param[i].shape; i++) {
        const op_param *p = &row->param[i];
        const tn_param *has = &site->param[p->role];
        if (!op_is_there(&p->when, site) || has->count < 1)
            continue;
        tn_tensor t = op_param_tensor(p, site);
        double share = tokens * share_of(p, site), count = (double)op_param_count(p, site);
        bytes += (double)tn_dtype_bytes(has->tensors[0].dtype, tn_tensor_count(&t)) * count *
                 (p->use == OP_USE_ALL || share > 1 ? 1 : share);
    }
    return bytes;
}
