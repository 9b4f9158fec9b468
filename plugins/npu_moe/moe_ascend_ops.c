/* Operators for mixtures of experts. */
#include "moe_ascend.h"

/* What the arguments of a grouped product say (the vendor's names: splitItem, groupType, groupListType, actType). */
enum { ONE_RESULT = 3, GROUPS_OF_ROWS = 0, GROUPS_OF_SUMS = 2, LIST_OF_COUNTS = 1, NO_ACTIVATION = 0 };

static bool begin(ascend_ops *o, ascend_step *s, const char *name)
{
    if (o->status == TN_OK)
        ascend_begin(s, o->queue, name);
    return o->status == TN_OK;
}

static void end(ascend_ops *o, ascend_step *s, aclnnStatus first, aclnn_second *second)
{
    o->status = ascend_run(s, first, second, o->err);
}

/* Version 5 where there is one. */
static void grouped(ascend_ops *o, tn_tensor x, aclTensor *const *weights, int64_t count, int64_t type,
                    tn_tensor counts, tn_tensor y, ascend_step *s)
{
    const ascend_api *api = o->api;
    aclTensor *rows = ascend_tensor(s, &x), *result = ascend_tensor(s, &y), *groups = ascend_tensor(s, &counts);
    aclTensorList *in = ascend_list(s, &rows, 1), *w = ascend_list(s, weights, count),
                  *out = ascend_list(s, &result, 1);
    if (api->aclnnGroupedMatmulV5 && api->aclnnGroupedMatmulV5GetWorkspaceSize)
        end(o, s,
            api->aclnnGroupedMatmulV5GetWorkspaceSize(in, w, NULL, NULL, NULL, NULL, NULL, NULL, groups, NULL, NULL,
                                                      NULL, ONE_RESULT, type, LIST_OF_COUNTS, NO_ACTIVATION, NULL, out,
                                                      NULL, NULL, &s->bytes, &s->executor),
            api->aclnnGroupedMatmulV5);
    else
        end(o, s,
            api->aclnnGroupedMatmulV4GetWorkspaceSize(in, w, NULL, NULL, NULL, NULL, NULL, NULL, groups, NULL, NULL,
                                                      NULL, ONE_RESULT, type, LIST_OF_COUNTS, NO_ACTIVATION, out, NULL,
                                                      NULL, &s->bytes, &s->executor),
            api->aclnnGroupedMatmulV4);
}

void moe_ascend_product(ascend_ops *o, tn_tensor x, const tn_param *weights, bool turned, tn_tensor counts, tn_tensor y)
{
    ascend_step s;
    aclTensor *list[MOE_ASCEND_LIST];
    if (!begin(o, &s, "aclnnGroupedMatmul"))
        return;
    for (int64_t i = 0; i < weights->count; i++) {
        tn_tensor w = turned ? ascend_ops_transposed(weights->tensors[i]) : weights->tensors[i];
        list[i] = ascend_tensor(&s, &w);
    }
    grouped(o, x, list, weights->count, GROUPS_OF_ROWS, counts, y, &s);
}

/* What a group without rows leaves of its matrix is not documented: it is zero before. */
void moe_ascend_outer(ascend_ops *o, tn_tensor a, tn_tensor b, tn_tensor counts, tn_tensor y)
{
    ascend_step s;
    ascend_ops_zero(o, y);
    if (!begin(o, &s, "aclnnGroupedMatmul"))
        return;
    aclTensor *right = ascend_tensor(&s, &b);
    grouped(o, ascend_ops_transposed(a), &right, 1, GROUPS_OF_SUMS, counts, y, &s);
}

void moe_ascend_permute(ascend_ops *o, tn_tensor x, tn_tensor experts, tn_tensor sorted, tn_tensor places)
{
    enum { ALL = 0 };
    ascend_step s;
    if (!begin(o, &s, "aclnnMoeTokenPermute"))
        return;
    aclTensor *in = ascend_tensor(&s, &x), *ids = ascend_tensor(&s, &experts), *out = ascend_tensor(&s, &sorted),
              *to = ascend_tensor(&s, &places);
    end(o, &s, s.api->aclnnMoeTokenPermuteGetWorkspaceSize(in, ids, ALL, false, out, to, &s.bytes, &s.executor),
        s.api->aclnnMoeTokenPermute);
}

void moe_ascend_permute_grad(ascend_ops *o, tn_tensor dsorted, tn_tensor places, int64_t top_k, tn_tensor dx)
{
    ascend_step s;
    if (!begin(o, &s, "aclnnMoeTokenPermuteGrad"))
        return;
    aclTensor *up = ascend_tensor(&s, &dsorted), *from = ascend_tensor(&s, &places), *to = ascend_tensor(&s, &dx);
    end(o, &s, s.api->aclnnMoeTokenPermuteGradGetWorkspaceSize(up, from, top_k, false, to, &s.bytes, &s.executor),
        s.api->aclnnMoeTokenPermuteGrad);
}

void moe_ascend_unpermute(ascend_ops *o, tn_tensor sorted, tn_tensor places, tn_tensor weights, tn_tensor y)
{
    ascend_step s;
    if (!begin(o, &s, "aclnnMoeTokenUnpermute"))
        return;
    aclTensor *rows = ascend_tensor(&s, &sorted), *from = ascend_tensor(&s, &places), *w = ascend_tensor(&s, &weights),
              *out = ascend_tensor(&s, &y);
    end(o, &s, s.api->aclnnMoeTokenUnpermuteGetWorkspaceSize(rows, from, w, false, NULL, out, &s.bytes, &s.executor),
        s.api->aclnnMoeTokenUnpermute);
}

void moe_ascend_unpermute_grad(ascend_ops *o, tn_tensor sorted, tn_tensor dy, tn_tensor places, tn_tensor weights,
                               tn_tensor dsorted, tn_tensor dweights)
{
    ascend_step s;
    if (!begin(o, &s, "aclnnMoeTokenUnpermuteGrad"))
        return;
    aclTensor *rows = ascend_tensor(&s, &sorted), *up = ascend_tensor(&s, &dy), *from = ascend_tensor(&s, &places),
              *w = ascend_tensor(&s, &weights), *to = ascend_tensor(&s, &dsorted), *dw = ascend_tensor(&s, &dweights);
    end(o, &s,
        s.api->aclnnMoeTokenUnpermuteGradGetWorkspaceSize(rows, up, from, w, false, NULL, to, dw, &s.bytes,
                                                          &s.executor),
        s.api->aclnnMoeTokenUnpermuteGrad);
}

void moe_ascend_count(ascend_ops *o, tn_tensor ids, tn_tensor counts)
{
    ascend_step s;
    int64_t slots = tn_tensor_count(&ids);
    tn_tensor flat = tn_tensor_dense(ids.data, ids.dtype, 1, &slots);
    if (!begin(o, &s, "aclnnBincount"))
        return;
    aclTensor *in = ascend_tensor(&s, &flat), *out = ascend_tensor(&s, &counts);
    end(o, &s, s.api->aclnnBincountGetWorkspaceSize(in, NULL, counts.shape[0], out, &s.bytes, &s.executor),
        s.api->aclnnBincount);
}

void moe_ascend_top_k(ascend_ops *o, tn_tensor x, tn_tensor values, tn_tensor indices)
{
    enum { LAST = -1 };
    ascend_step s;
    if (!begin(o, &s, "aclnnTopk"))
        return;
    aclTensor *in = ascend_tensor(&s, &x), *best = ascend_tensor(&s, &values), *at = ascend_tensor(&s, &indices);
    end(o, &s, s.api->aclnnTopkGetWorkspaceSize(in, values.shape[1], LAST, true, true, best, at, &s.bytes, &s.executor),
        s.api->aclnnTopk);
}
