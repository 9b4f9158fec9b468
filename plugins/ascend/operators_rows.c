/* Operators on rows: of scores, and of tokens sorted by expert. */
#include "operators_rows.h"

#include "queue.h"

tn_tensor npu_view(const void *data, tn_dtype dtype, int32_t ndim, const int64_t *shape, const int64_t *stride)
{
    tn_tensor t = tn_tensor_dense((void *)(uintptr_t)data, dtype, ndim, shape);
    for (int32_t i = 0; stride && i < ndim; i++)
        t.stride[i] = stride[i];
    return t;
}

void npu_divide(npu_run *r, const tn_tensor *a, const tn_tensor *b, const tn_tensor *y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnDiv", y))
        return;
    aclTensor *from = ascend_tensor(&s, a), *by = ascend_tensor(&s, b), *to = ascend_tensor(&s, y);
    aclnnStatus first = s.api->aclnnDivGetWorkspaceSize(from, by, to, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnDiv, r->err);
}

void npu_softmax(npu_run *r, const tn_tensor *x, const tn_tensor *y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnSoftmax", y))
        return;
    aclTensor *from = ascend_tensor(&s, x), *to = ascend_tensor(&s, y);
    aclnnStatus first = s.api->aclnnSoftmaxGetWorkspaceSize(from, x->ndim - 1, to, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnSoftmax, r->err);
}

void npu_sums(npu_run *r, const tn_tensor *x, const tn_tensor *y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnReduceSum", y))
        return;
    const int64_t last = x->ndim - 1;
    aclTensor *from = ascend_tensor(&s, x), *to = ascend_tensor(&s, y);
    aclIntArray *dims = ascend_ints(&s, &last, 1);
    aclnnStatus first =
        s.api->aclnnReduceSumGetWorkspaceSize(from, dims, true, ascend_dtype(y->dtype), to, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnReduceSum, r->err);
}

void npu_join(npu_run *r, const tn_tensor *a, const tn_tensor *b, const tn_tensor *y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnCat", y))
        return;
    aclTensor *parts[] = {ascend_tensor(&s, a), ascend_tensor(&s, b)}, *to = ascend_tensor(&s, y);
    aclTensorList *list = ascend_list(&s, parts, 2);
    aclnnStatus first = s.api->aclnnCatGetWorkspaceSize(list, y->ndim - 1, to, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnCat, r->err);
}

void npu_largest(npu_run *r, const tn_tensor *x, int64_t k, const tn_tensor *values, const tn_tensor *places)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnTopk", values))
        return;
    aclTensor *from = ascend_tensor(&s, x), *to = ascend_tensor(&s, values), *at = ascend_tensor(&s, places);
    aclnnStatus first =
        s.api->aclnnTopkGetWorkspaceSize(from, k, x->ndim - 1, true, true, to, at, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnTopk, r->err);
}

/* The types as they are, see npu_matmul. */
enum { KEEP_TYPES = 0 };

void npu_batch_matmul(npu_run *r, const tn_tensor *x, const tn_tensor *w, const tn_tensor *y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnBatchMatMul", y))
        return;
    aclTensor *left = ascend_tensor(&s, x), *right = ascend_tensor(&s, w), *product = ascend_tensor(&s, y);
    aclnnStatus first =
        s.api->aclnnBatchMatMulGetWorkspaceSize(left, right, product, KEEP_TYPES, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnBatchMatMul, r->err);
}

void npu_permute(npu_run *r, const tn_tensor *tokens, const tn_tensor *ids, const tn_tensor *rows,
                 const tn_tensor *order)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnMoeTokenPermute", rows))
        return;
    aclTensor *from = ascend_tensor(&s, tokens), *index = ascend_tensor(&s, ids);
    aclTensor *to = ascend_tensor(&s, rows), *at = ascend_tensor(&s, order);
    aclnnStatus first =
        s.api->aclnnMoeTokenPermuteGetWorkspaceSize(from, index, 0, false, to, at, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnMoeTokenPermute, r->err);
}

void npu_unpermute(npu_run *r, const tn_tensor *rows, const tn_tensor *order, const tn_tensor *weights,
                   const tn_tensor *y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnMoeTokenUnpermute", y))
        return;
    aclTensor *from = ascend_tensor(&s, rows), *at = ascend_tensor(&s, order);
    aclTensor *factors = ascend_tensor(&s, weights), *to = ascend_tensor(&s, y);
    aclnnStatus first =
        s.api->aclnnMoeTokenUnpermuteGetWorkspaceSize(from, at, factors, false, NULL, to, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnMoeTokenUnpermute, r->err);
}

void npu_count(npu_run *r, const tn_tensor *x, const tn_tensor *bins)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnHistc", bins))
        return;
    aclTensor *from = ascend_tensor(&s, x), *to = ascend_tensor(&s, bins);
    /* Each number lies in the middle of its bin, wherever rounding puts the edges. */
    aclScalar *low = ascend_f32(&s, -0.5f), *high = ascend_f32(&s, (float)bins->shape[0] - 0.5f);
    aclnnStatus first = s.api->aclnnHistcGetWorkspaceSize(from, bins->shape[0], low, high, to, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnHistc, r->err);
}

void npu_put(npu_run *r, void *device, const void *host, size_t bytes)
{
    if (!r->measuring && r->status == TN_OK)
        r->status = npu_upload(r->queue, device, host, bytes, r->err);
}

void npu_no_memory(npu_run *r)
{
    if (r->status == TN_OK)
        r->status = tn_fail(r->err, TN_E_MEMORY, "npu", "out of memory on the host; free some memory");
}
