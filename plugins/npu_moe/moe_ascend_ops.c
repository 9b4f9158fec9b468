/* Operators for mixtures of experts. */
#include "moe_ascend.h"

/* What the arguments of a grouped product say (the vendor's names: splitItem, groupType, groupListType, actType). */
enum { ONE_RESULT = 3, GROUPS_OF_ROWS = 0, GROUPS_OF_SUMS = 2, LIST_OF_COUNTS = 1, NO_ACTIVATION = 0 };

/* Version 5 where there is one. */
static void grouped(npu_run *r, tn_tensor x, aclTensor *const *weights, int64_t count, int64_t type, tn_tensor counts,
                    tn_tensor y, ascend_step *s)
{
    const ascend_api *api = r->api;
    aclTensor *rows = ascend_tensor(s, &x), *result = ascend_tensor(s, &y), *groups = ascend_tensor(s, &counts);
    aclTensorList *in = ascend_list(s, &rows, 1), *w = ascend_list(s, weights, count),
                  *out = ascend_list(s, &result, 1);
    if (api->aclnnGroupedMatmulV5 && api->aclnnGroupedMatmulV5GetWorkspaceSize)
        npu_end(r, s,
                api->aclnnGroupedMatmulV5GetWorkspaceSize(in, w, NULL, NULL, NULL, NULL, NULL, NULL, groups, NULL, NULL,
                                                          NULL, ONE_RESULT, type, LIST_OF_COUNTS, NO_ACTIVATION, NULL,
                                                          out, NULL, NULL, &s->bytes, &s->executor),
                api->aclnnGroupedMatmulV5);
    else
        npu_end(r, s,
                api->aclnnGroupedMatmulV4GetWorkspaceSize(in, w, NULL, NULL, NULL, NULL, NULL, NULL, groups, NULL, NULL,
                                                          NULL, ONE_RESULT, type, LIST_OF_COUNTS, NO_ACTIVATION, out,
                                                          NULL, NULL, &s->bytes, &s->executor),
                api->aclnnGroupedMatmulV4);
}

void moe_ascend_product(npu_run *r, tn_tensor x, const tn_param *weights, bool turned, tn_tensor counts, tn_tensor y)
{
    ascend_step s;
    aclTensor *list[MOE_ASCEND_LIST];
    if (!npu_begin(r, &s, "aclnnGroupedMatmul", &y))
        return;
    for (int64_t i = 0; i < weights->count; i++) {
        tn_tensor w = turned ? npu_transposed(weights->tensors[i]) : weights->tensors[i];
        list[i] = ascend_tensor(&s, &w);
    }
    grouped(r, x, list, weights->count, GROUPS_OF_ROWS, counts, y, &s);
}

/* What a group without rows leaves of its matrix is not documented: it is zero before. */
void moe_ascend_outer(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor counts, tn_tensor y)
{
    ascend_step s;
    npu_zero(r, y);
    if (!npu_begin(r, &s, "aclnnGroupedMatmul", &y))
        return;
    aclTensor *right = ascend_tensor(&s, &b);
    grouped(r, npu_transposed(a), &right, 1, GROUPS_OF_SUMS, counts, y, &s);
}

void moe_ascend_permute_grad(npu_run *r, tn_tensor dsorted, tn_tensor places, int64_t top_k, tn_tensor dx)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnMoeTokenPermuteGrad", &dx))
        return;
    aclTensor *up = ascend_tensor(&s, &dsorted), *from = ascend_tensor(&s, &places), *to = ascend_tensor(&s, &dx);
    npu_end(r, &s, s.api->aclnnMoeTokenPermuteGradGetWorkspaceSize(up, from, top_k, false, to, &s.bytes, &s.executor),
            s.api->aclnnMoeTokenPermuteGrad);
}

void moe_ascend_unpermute_grad(npu_run *r, tn_tensor sorted, tn_tensor dy, tn_tensor places, tn_tensor weights,
                               tn_tensor dsorted, tn_tensor dweights)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnMoeTokenUnpermuteGrad", &dsorted))
        return;
    aclTensor *rows = ascend_tensor(&s, &sorted), *up = ascend_tensor(&s, &dy), *from = ascend_tensor(&s, &places),
              *w = ascend_tensor(&s, &weights), *to = ascend_tensor(&s, &dsorted), *dw = ascend_tensor(&s, &dweights);
    npu_end(r, &s,
            s.api->aclnnMoeTokenUnpermuteGradGetWorkspaceSize(rows, up, from, w, false, NULL, to, dw, &s.bytes,
                                                              &s.executor),
            s.api->aclnnMoeTokenUnpermuteGrad);
}

void moe_ascend_count(npu_run *r, tn_tensor ids, tn_tensor counts)
{
    ascend_step s;
    int64_t slots = tn_tensor_count(&ids);
    tn_tensor flat = tn_tensor_dense(ids.data, ids.dtype, 1, &slots);
    if (!npu_begin(r, &s, "aclnnBincount", &counts))
        return;
    aclTensor *in = ascend_tensor(&s, &flat), *out = ascend_tensor(&s, &counts);
    npu_end(r, &s, s.api->aclnnBincountGetWorkspaceSize(in, NULL, counts.shape[0], out, &s.bytes, &s.executor),
            s.api->aclnnBincount);
}
