/* Operators of aclnn as lines of a composition. */
#include "compose.h"

#include "queue.h"

#include <stdlib.h>
#include <string.h>

/* cubeMathType: products keep the types of their factors. */
enum { KEEP_TYPES = 0 };

tn_tensor compose_view(const void *data, tn_dtype dtype, int32_t ndim, const int64_t *shape, const int64_t *stride)
{
    tn_tensor t = tn_tensor_dense((void *)(uintptr_t)data, dtype, ndim, shape);
    for (int32_t i = 0; stride && i < ndim; i++)
        t.stride[i] = stride[i];
    return t;
}

tn_tensor compose_take(char *base, size_t *used, tn_dtype dtype, int32_t ndim, const int64_t *shape)
{
    tn_tensor t = tn_tensor_dense(base ? base + *used : NULL, dtype, ndim, shape);
    *used += ((size_t)tn_tensor_count(&t) * tn_dtype_size(dtype) + 63) / 64 * 64;
    return t;
}

bool compose_dense(const tn_tensor *t)
{
    int64_t step = 1;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->stride[i] != step)
            return false;
        step *= t->shape[i];
    }
    return true;
}

/* Is there something to do? Begins the step if so. */
static bool begin(compose *c, ascend_step *s, const char *name, const tn_tensor *out)
{
    if (c->status != TN_OK || tn_tensor_count(out) == 0)
        return false;
    ascend_begin(s, c->queue, name);
    return true;
}

static void end(compose *c, ascend_step *s, aclnnStatus first, aclnn_second *second)
{
    c->status = ascend_run(s, first, second, c->err);
}

void compose_add(compose *c, const tn_tensor *a, const tn_tensor *b, float factor_of_b, const tn_tensor *out)
{
    ascend_step s;
    if (!begin(c, &s, "aclnnAdd", out))
        return;
    aclTensor *x = ascend_tensor(&s, a), *y = ascend_tensor(&s, b), *sum = ascend_tensor(&s, out);
    aclScalar *alpha = ascend_f32(&s, factor_of_b);
    end(c, &s, s.api->aclnnAddGetWorkspaceSize(x, y, alpha, sum, &s.bytes, &s.executor), s.api->aclnnAdd);
}

void compose_mul(compose *c, const tn_tensor *a, const tn_tensor *b, const tn_tensor *out)
{
    ascend_step s;
    if (!begin(c, &s, "aclnnMul", out))
        return;
    aclTensor *x = ascend_tensor(&s, a), *y = ascend_tensor(&s, b), *product = ascend_tensor(&s, out);
    end(c, &s, s.api->aclnnMulGetWorkspaceSize(x, y, product, &s.bytes, &s.executor), s.api->aclnnMul);
}

void compose_div(compose *c, const tn_tensor *a, const tn_tensor *b, const tn_tensor *out)
{
    ascend_step s;
    if (!begin(c, &s, "aclnnDiv", out))
        return;
    aclTensor *x = ascend_tensor(&s, a), *y = ascend_tensor(&s, b), *ratio = ascend_tensor(&s, out);
    end(c, &s, s.api->aclnnDivGetWorkspaceSize(x, y, ratio, &s.bytes, &s.executor), s.api->aclnnDiv);
}

void compose_scale(compose *c, const tn_tensor *x, float factor, const tn_tensor *out)
{
    ascend_step s;
    if (!begin(c, &s, "aclnnMuls", out))
        return;
    aclTensor *from = ascend_tensor(&s, x), *to = ascend_tensor(&s, out);
    aclScalar *scalar = ascend_f32(&s, factor);
    end(c, &s, s.api->aclnnMulsGetWorkspaceSize(from, scalar, to, &s.bytes, &s.executor), s.api->aclnnMuls);
}

void compose_shift(compose *c, const tn_tensor *x, float term, const tn_tensor *out)
{
    ascend_step s;
    if (!begin(c, &s, "aclnnAdds", out))
        return;
    aclTensor *from = ascend_tensor(&s, x), *to = ascend_tensor(&s, out);
    aclScalar *scalar = ascend_f32(&s, term), *one = ascend_f32(&s, 1);
    end(c, &s, s.api->aclnnAddsGetWorkspaceSize(from, scalar, one, to, &s.bytes, &s.executor), s.api->aclnnAdds);
}

void compose_sigmoid(compose *c, const tn_tensor *x, const tn_tensor *out)
{
    ascend_step s;
    if (!begin(c, &s, "aclnnSigmoid", out))
        return;
    aclTensor *from = ascend_tensor(&s, x), *to = ascend_tensor(&s, out);
    end(c, &s, s.api->aclnnSigmoidGetWorkspaceSize(from, to, &s.bytes, &s.executor), s.api->aclnnSigmoid);
}

void compose_silu(compose *c, const tn_tensor *x, const tn_tensor *out)
{
    ascend_step s;
    if (!begin(c, &s, "aclnnSilu", out))
        return;
    aclTensor *from = ascend_tensor(&s, x), *to = ascend_tensor(&s, out);
    end(c, &s, s.api->aclnnSiluGetWorkspaceSize(from, to, &s.bytes, &s.executor), s.api->aclnnSilu);
}

void compose_cast(compose *c, const tn_tensor *x, const tn_tensor *out)
{
    ascend_step s;
    if (!begin(c, &s, "aclnnCast", out))
        return;
    aclTensor *from = ascend_tensor(&s, x), *to = ascend_tensor(&s, out);
    end(c, &s, s.api->aclnnCastGetWorkspaceSize(from, ascend_dtype(out->dtype), to, &s.bytes, &s.executor),
        s.api->aclnnCast);
}

void compose_copy(compose *c, const tn_tensor *x, const tn_tensor *out)
{
    ascend_step s;
    if (!begin(c, &s, "aclnnInplaceCopy", out))
        return;
    aclTensor *from = ascend_tensor(&s, x), *to = ascend_tensor(&s, out);
    end(c, &s, s.api->aclnnInplaceCopyGetWorkspaceSize(to, from, &s.bytes, &s.executor), s.api->aclnnInplaceCopy);
}

void compose_zero(compose *c, const tn_tensor *out)
{
    ascend_step s;
    if (!begin(c, &s, "aclnnInplaceZero", out))
        return;
    aclTensor *to = ascend_tensor(&s, out);
    end(c, &s, s.api->aclnnInplaceZeroGetWorkspaceSize(to, &s.bytes, &s.executor), s.api->aclnnInplaceZero);
}

void compose_fill(compose *c, float value, const tn_tensor *out)
{
    ascend_step s;
    if (!begin(c, &s, "aclnnInplaceFillScalar", out))
        return;
    aclTensor *to = ascend_tensor(&s, out);
    aclScalar *scalar = ascend_f32(&s, value);
    end(c, &s, s.api->aclnnInplaceFillScalarGetWorkspaceSize(to, scalar, &s.bytes, &s.executor),
        s.api->aclnnInplaceFillScalar);
}

void compose_store(compose *c, const tn_tensor *x, const tn_tensor *room, const tn_tensor *out)
{
    if (x->dtype == out->dtype) {
        compose_copy(c, x, out);
    } else if (compose_dense(out)) {
        compose_cast(c, x, out);
    } else {
        compose_cast(c, x, room);
        compose_copy(c, room, out);
    }
}

void compose_softmax(compose *c, const tn_tensor *x, const tn_tensor *out)
{
    ascend_step s;
    if (!begin(c, &s, "aclnnSoftmax", out))
        return;
    aclTensor *from = ascend_tensor(&s, x), *to = ascend_tensor(&s, out);
    end(c, &s, s.api->aclnnSoftmaxGetWorkspaceSize(from, -1, to, &s.bytes, &s.executor), s.api->aclnnSoftmax);
}

void compose_sums(compose *c, const tn_tensor *x, const tn_tensor *out)
{
    ascend_step s;
    if (!begin(c, &s, "aclnnReduceSum", out))
        return;
    const int64_t last = x->ndim - 1;
    aclTensor *from = ascend_tensor(&s, x), *to = ascend_tensor(&s, out);
    aclIntArray *dims = ascend_ints(&s, &last, 1);
    end(c, &s,
        s.api->aclnnReduceSumGetWorkspaceSize(from, dims, true, ascend_dtype(out->dtype), to, &s.bytes, &s.executor),
        s.api->aclnnReduceSum);
}

void compose_join(compose *c, const tn_tensor *a, const tn_tensor *b, const tn_tensor *out)
{
    ascend_step s;
    if (!begin(c, &s, "aclnnCat", out))
        return;
    aclTensor *parts[] = {ascend_tensor(&s, a), ascend_tensor(&s, b)}, *to = ascend_tensor(&s, out);
    aclTensorList *list = ascend_list(&s, parts, 2);
    end(c, &s, s.api->aclnnCatGetWorkspaceSize(list, out->ndim - 1, to, &s.bytes, &s.executor), s.api->aclnnCat);
}

void compose_largest(compose *c, const tn_tensor *x, int64_t k, const tn_tensor *values, const tn_tensor *places)
{
    ascend_step s;
    if (!begin(c, &s, "aclnnTopk", values))
        return;
    aclTensor *from = ascend_tensor(&s, x), *to = ascend_tensor(&s, values), *at = ascend_tensor(&s, places);
    end(c, &s, s.api->aclnnTopkGetWorkspaceSize(from, k, x->ndim - 1, true, true, to, at, &s.bytes, &s.executor),
        s.api->aclnnTopk);
}

void compose_rows(compose *c, const tn_tensor *table, const tn_tensor *index, const tn_tensor *out)
{
    ascend_step s;
    if (!begin(c, &s, "aclnnIndexSelect", out))
        return;
    aclTensor *from = ascend_tensor(&s, table), *at = ascend_tensor(&s, index), *to = ascend_tensor(&s, out);
    end(c, &s, s.api->aclnnIndexSelectGetWorkspaceSize(from, 0, at, to, &s.bytes, &s.executor),
        s.api->aclnnIndexSelect);
}

void compose_product(compose *c, const tn_tensor *a, const tn_tensor *b, const tn_tensor *out)
{
    ascend_step s;
    bool batch = out->ndim == 3;
    if (!begin(c, &s, batch ? "aclnnBatchMatMul" : "aclnnMatmul", out))
        return;
    aclTensor *x = ascend_tensor(&s, a), *y = ascend_tensor(&s, b), *to = ascend_tensor(&s, out);
    if (batch)
        end(c, &s, s.api->aclnnBatchMatMulGetWorkspaceSize(x, y, to, KEEP_TYPES, &s.bytes, &s.executor),
            s.api->aclnnBatchMatMul);
    else
        end(c, &s, s.api->aclnnMatmulGetWorkspaceSize(x, y, to, KEEP_TYPES, &s.bytes, &s.executor), s.api->aclnnMatmul);
}

void compose_upload(compose *c, void *device, const void *host, size_t bytes)
{
    if (c->status == TN_OK)
        c->status = npu_upload(c->queue, device, host, bytes, c->err);
}

void *compose_fetch(compose *c, const void *device, size_t bytes, bool remembered)
{
    void *copy = c->status == TN_OK ? malloc(bytes ? bytes : 1) : NULL;
    const void *known = copy && remembered ? c->queue->shadow(c->queue, device, bytes) : NULL;
    if (!copy)
        compose_no_memory(c);
    else if (known)
        memcpy(copy, known, bytes);
    else
        c->status = npu_download(c->queue, copy, device, bytes, c->err);
    if (c->status == TN_OK)
        return copy;
    free(copy);
    return NULL;
}

void compose_no_memory(compose *c)
{
    if (c->status == TN_OK)
        c->status = tn_fail(c->err, TN_E_MEMORY, "npu", "out of memory on the host; free some memory");
}
