/* Operators on rows, and views. */
#include "operators_rows.h"

#include "queue.h"

tn_tensor npu_view(const void *data, tn_dtype dtype, int32_t ndim, const int64_t *shape, const int64_t *stride)
{
    tn_tensor t = tn_tensor_dense((void *)(uintptr_t)data, dtype, ndim, shape);
    for (int32_t i = 0; stride && i < ndim; i++)
        t.stride[i] = stride[i];
    return t;
}

void npu_sums(npu_run *r, tn_tensor x, tn_tensor y)
{
    npu_sum(r, x, x.ndim - 1, true, y);
}

/* The types as they are, see npu_matmul. */
enum { KEEP_TYPES = 0 };

void npu_batch_matmul(npu_run *r, tn_tensor x, tn_tensor w, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnBatchMatMul", &y))
        return;
    aclTensor *left = ascend_tensor(&s, &x), *right = ascend_tensor(&s, &w), *product = ascend_tensor(&s, &y);
    npu_end(r, &s, s.api->aclnnBatchMatMulGetWorkspaceSize(left, right, product, KEEP_TYPES, &s.bytes, &s.executor),
            s.api->aclnnBatchMatMul);
}

void npu_count(npu_run *r, tn_tensor x, tn_tensor bins)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnHistc", &bins))
        return;
    aclTensor *from = ascend_tensor(&s, &x), *to = ascend_tensor(&s, &bins);
    /* Each number lies in the middle of its bin, wherever rounding puts the edges. */
    aclScalar *low = ascend_f32(&s, -0.5f), *high = ascend_f32(&s, (float)bins.shape[0] - 0.5f);
    npu_end(r, &s, s.api->aclnnHistcGetWorkspaceSize(from, bins.shape[0], low, high, to, &s.bytes, &s.executor),
            s.api->aclnnHistc);
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
