/* Operators of an Ascend device on views of tensors. */
#include "npu_ops.h"
#include "scratch.h"

#include <tenon/kernel.h>

/* ---- what plan asks ------------------------------------------------------------------------------------- */

static bool is_served(const char *soc)
{
    ascend_chip chip = ascend_chip_of(soc);
    return chip == ASCEND_910B || chip == ASCEND_910_93;
}

const ascend_api *npu_here(const tn_site *site, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    const ascend_api *api = ascend_load(&why);
    if (!api) {
        tn_fail(err, TN_DECLINED, site->path, "%s", why.message);
        return NULL;
    }
    const char *soc = api->aclrtGetSocName();
    if (soc && !is_served(soc)) {
        tn_fail(err, TN_DECLINED, site->path,
                "unit is %s, kernel takes Ascend910B1 and later of its family, and "
                "Ascend910_93",
                soc);
        return NULL;
    }
    return api;
}

tn_status npu_need_all(const tn_site *site, const ascend_need *needs, size_t count, tn_error *err)
{
    for (size_t i = 0; i < count; i++)
        if (!needs[i].here)
            return tn_fail(err, TN_DECLINED, site->path, "the installation of CANN has no %s", needs[i].name);
    return TN_OK;
}

tn_status npu_limit(const tn_site *site, const char *what, int64_t value, int64_t most, tn_error *err)
{
    if (value <= most)
        return TN_OK;
    return tn_fail(err, TN_DECLINED, site->path, "%s: site has %lld, kernel takes up to %lld", what, (long long)value,
                   (long long)most);
}

/* ---- a run ---------------------------------------------------------------------------------------------- */

npu_run npu_run_on(tn_queue *queue, void *scratch, size_t bytes, tn_error *err)
{
    npu_run r = {.queue = queue, .err = err, .scratch = scratch, .bytes = bytes};
    if (!queue || queue->magic != ASCEND_QUEUE || queue->size < sizeof *queue)
        r.status = tn_fail(err, TN_E_INTERNAL, "npu",
                           "the queue is not one of this device; the plugins in use were built at different times");
    else
        r.api = queue->api;
    return r;
}

npu_run npu_run_of(const tn_call *call, tn_error *err)
{
    size_t bytes = call->grads ? call->plan->backward_scratch_bytes : call->plan->scratch_bytes;
    npu_run r = npu_run_on(call->queue, call->scratch, bytes, err);
    r.call = call;
    return r;
}

bool npu_begin(npu_run *r, ascend_step *s, const char *name, const tn_tensor *y)
{
    if (r->measuring || r->status != TN_OK || tn_tensor_count(y) == 0)
        return false;
    ascend_begin(s, r->queue, name);
    return true;
}

void npu_end(npu_run *r, ascend_step *s, aclnnStatus first, aclnn_second *second)
{
    r->status = ascend_run(s, first, second, r->err);
}

size_t npu_bytes(tn_dtype dtype, int64_t count)
{
    size_t end = 0;
    scratch_take(&end, tn_dtype_bytes(dtype, count));
    return end;
}

tn_tensor npu_take(npu_run *r, tn_dtype dtype, int32_t ndim, const int64_t *shape)
{
    tn_tensor t = tn_tensor_dense(NULL, dtype, ndim, shape);
    size_t bytes = npu_bytes(dtype, tn_tensor_count(&t));
    if (!r->measuring && r->status == TN_OK && bytes > r->bytes - r->used)
        r->status =
            tn_fail(r->err, TN_E_INTERNAL, "npu",
                    "a kernel needs more scratch than the %zu bytes that it asked for; report this defect", r->bytes);
    if (r->status != TN_OK)
        return t;
    if (!r->measuring)
        t.data = r->scratch + r->used;
    r->used += bytes;
    r->most = r->used > r->most ? r->used : r->most;
    return t;
}

tn_tensor npu_take_like(npu_run *r, tn_dtype dtype, tn_tensor like)
{
    return npu_take(r, dtype, like.ndim, like.shape);
}

tn_tensor npu_take_2d(npu_run *r, tn_dtype dtype, int64_t rows, int64_t columns)
{
    return npu_take(r, dtype, 2, (const int64_t[]){rows, columns});
}

/* ---- views ---------------------------------------------------------------------------------------------- */

tn_tensor npu_narrow(tn_tensor t, int32_t dim, int64_t first, int64_t count)
{
    if (t.data)
        t.data = (char *)t.data + first * t.stride[dim] * (int64_t)tn_dtype_size(t.dtype);
    t.shape[dim] = count;
    return t;
}

tn_tensor npu_transposed(tn_tensor t)
{
    int32_t a = t.ndim - 2, b = t.ndim - 1;
    int64_t shape = t.shape[a], stride = t.stride[a];
    t.shape[a] = t.shape[b];
    t.stride[a] = t.stride[b];
    t.shape[b] = shape;
    t.stride[b] = stride;
    return t;
}

tn_tensor npu_flat(tn_tensor t)
{
    int64_t width = t.shape[t.ndim - 1], count = 1;
    for (int32_t i = 0; i < t.ndim - 1; i++)
        count *= t.shape[i];
    return tn_tensor_dense(t.data, t.dtype, 2, (const int64_t[]){count, width});
}

/* ---- operators ------------------------------------------------------------------------------------------ */

static void cast(npu_run *r, tn_tensor x, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnCast", &y))
        return;
    aclTensor *from = ascend_tensor(&s, &x), *to = ascend_tensor(&s, &y);
    npu_end(r, &s, s.api->aclnnCastGetWorkspaceSize(from, ascend_dtype(y.dtype), to, &s.bytes, &s.executor),
            s.api->aclnnCast);
}

void npu_copy(npu_run *r, tn_tensor x, tn_tensor y)
{
    if (x.dtype != y.dtype) {
        cast(r, x, y);
        return;
    }
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnInplaceCopy", &y))
        return;
    aclTensor *from = ascend_tensor(&s, &x), *to = ascend_tensor(&s, &y);
    npu_end(r, &s, s.api->aclnnInplaceCopyGetWorkspaceSize(to, from, &s.bytes, &s.executor), s.api->aclnnInplaceCopy);
}

void npu_fill(npu_run *r, tn_tensor y, float value)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnInplaceFillScalar", &y))
        return;
    aclTensor *to = ascend_tensor(&s, &y);
    aclScalar *number = ascend_f32(&s, value);
    npu_end(r, &s, s.api->aclnnInplaceFillScalarGetWorkspaceSize(to, number, &s.bytes, &s.executor),
            s.api->aclnnInplaceFillScalar);
}

void npu_zero(npu_run *r, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnInplaceZero", &y))
        return;
    aclTensor *to = ascend_tensor(&s, &y);
    npu_end(r, &s, s.api->aclnnInplaceZeroGetWorkspaceSize(to, &s.bytes, &s.executor), s.api->aclnnInplaceZero);
}

void npu_add(npu_run *r, tn_tensor a, tn_tensor b, float factor, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnAdd", &y))
        return;
    aclTensor *one = ascend_tensor(&s, &a), *other = ascend_tensor(&s, &b), *sum = ascend_tensor(&s, &y);
    aclScalar *alpha = ascend_f32(&s, factor);
    npu_end(r, &s, s.api->aclnnAddGetWorkspaceSize(one, other, alpha, sum, &s.bytes, &s.executor), s.api->aclnnAdd);
}

void npu_multiply(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnMul", &y))
        return;
    aclTensor *one = ascend_tensor(&s, &a), *other = ascend_tensor(&s, &b), *product = ascend_tensor(&s, &y);
    npu_end(r, &s, s.api->aclnnMulGetWorkspaceSize(one, other, product, &s.bytes, &s.executor), s.api->aclnnMul);
}

void npu_divide(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnDiv", &y))
        return;
    aclTensor *from = ascend_tensor(&s, &a), *by = ascend_tensor(&s, &b), *to = ascend_tensor(&s, &y);
    npu_end(r, &s, s.api->aclnnDivGetWorkspaceSize(from, by, to, &s.bytes, &s.executor), s.api->aclnnDiv);
}

void npu_add_number(npu_run *r, tn_tensor x, float number, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnAdds", &y))
        return;
    aclTensor *from = ascend_tensor(&s, &x), *sum = ascend_tensor(&s, &y);
    aclScalar *other = ascend_f32(&s, number), *alpha = ascend_f32(&s, 1);
    npu_end(r, &s, s.api->aclnnAddsGetWorkspaceSize(from, other, alpha, sum, &s.bytes, &s.executor), s.api->aclnnAdds);
}

void npu_multiply_number(npu_run *r, tn_tensor x, float number, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnMuls", &y))
        return;
    aclTensor *from = ascend_tensor(&s, &x), *product = ascend_tensor(&s, &y);
    aclScalar *other = ascend_f32(&s, number);
    npu_end(r, &s, s.api->aclnnMulsGetWorkspaceSize(from, other, product, &s.bytes, &s.executor), s.api->aclnnMuls);
}

void npu_sigmoid(npu_run *r, tn_tensor x, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnSigmoid", &y))
        return;
    aclTensor *from = ascend_tensor(&s, &x), *to = ascend_tensor(&s, &y);
    npu_end(r, &s, s.api->aclnnSigmoidGetWorkspaceSize(from, to, &s.bytes, &s.executor), s.api->aclnnSigmoid);
}

/* The types as they are. The other settings of that argument lower the precision of f32 products. */
enum { KEEP_TYPES = 0 };

void npu_matmul(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnMatmul", &y))
        return;
    aclTensor *left = ascend_tensor(&s, &a), *right = ascend_tensor(&s, &b), *product = ascend_tensor(&s, &y);
    npu_end(r, &s, s.api->aclnnMatmulGetWorkspaceSize(left, right, product, KEEP_TYPES, &s.bytes, &s.executor),
            s.api->aclnnMatmul);
}

void npu_softmax(npu_run *r, tn_tensor x, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnSoftmax", &y))
        return;
    aclTensor *from = ascend_tensor(&s, &x), *to = ascend_tensor(&s, &y);
    npu_end(r, &s, s.api->aclnnSoftmaxGetWorkspaceSize(from, x.ndim - 1, to, &s.bytes, &s.executor),
            s.api->aclnnSoftmax);
}

void npu_join(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnCat", &y))
        return;
    aclTensor *parts[] = {ascend_tensor(&s, &a), ascend_tensor(&s, &b)}, *to = ascend_tensor(&s, &y);
    aclTensorList *list = ascend_list(&s, parts, 2);
    npu_end(r, &s, s.api->aclnnCatGetWorkspaceSize(list, y.ndim - 1, to, &s.bytes, &s.executor), s.api->aclnnCat);
}

void npu_sum(npu_run *r, tn_tensor x, int32_t dim, bool keep, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnReduceSum", &y))
        return;
    aclTensor *from = ascend_tensor(&s, &x), *to = ascend_tensor(&s, &y);
    aclIntArray *dims = ascend_ints(&s, &(const int64_t){dim}, 1);
    npu_end(r, &s,
            s.api->aclnnReduceSumGetWorkspaceSize(from, dims, keep, ascend_dtype(y.dtype), to, &s.bytes, &s.executor),
            s.api->aclnnReduceSum);
}

void npu_largest(npu_run *r, tn_tensor x, int64_t k, tn_tensor values, tn_tensor places)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnTopk", &values))
        return;
    aclTensor *from = ascend_tensor(&s, &x), *to = ascend_tensor(&s, &values), *at = ascend_tensor(&s, &places);
    npu_end(r, &s, s.api->aclnnTopkGetWorkspaceSize(from, k, x.ndim - 1, true, true, to, at, &s.bytes, &s.executor),
            s.api->aclnnTopk);
}

void npu_swiglu(npu_run *r, tn_tensor x, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnSwiGlu", &y))
        return;
    aclTensor *from = ascend_tensor(&s, &x), *to = ascend_tensor(&s, &y);
    npu_end(r, &s, s.api->aclnnSwiGluGetWorkspaceSize(from, x.ndim - 1, to, &s.bytes, &s.executor), s.api->aclnnSwiGlu);
}

void npu_swiglu_grad(npu_run *r, tn_tensor dy, tn_tensor x, tn_tensor dx)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnSwiGluGrad", &dx))
        return;
    aclTensor *up = ascend_tensor(&s, &dy), *from = ascend_tensor(&s, &x), *to = ascend_tensor(&s, &dx);
    npu_end(r, &s, s.api->aclnnSwiGluGradGetWorkspaceSize(up, from, x.ndim - 1, to, &s.bytes, &s.executor),
            s.api->aclnnSwiGluGrad);
}

void npu_permute(npu_run *r, tn_tensor tokens, tn_tensor ids, tn_tensor rows, tn_tensor order)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnMoeTokenPermute", &rows))
        return;
    aclTensor *from = ascend_tensor(&s, &tokens), *index = ascend_tensor(&s, &ids);
    aclTensor *to = ascend_tensor(&s, &rows), *at = ascend_tensor(&s, &order);
    npu_end(r, &s, s.api->aclnnMoeTokenPermuteGetWorkspaceSize(from, index, 0, false, to, at, &s.bytes, &s.executor),
            s.api->aclnnMoeTokenPermute);
}

void npu_unpermute(npu_run *r, tn_tensor rows, tn_tensor order, tn_tensor weights, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnMoeTokenUnpermute", &y))
        return;
    aclTensor *from = ascend_tensor(&s, &rows), *at = ascend_tensor(&s, &order);
    aclTensor *factors = ascend_tensor(&s, &weights), *to = ascend_tensor(&s, &y);
    npu_end(r, &s,
            s.api->aclnnMoeTokenUnpermuteGetWorkspaceSize(from, at, factors, false, NULL, to, &s.bytes, &s.executor),
            s.api->aclnnMoeTokenUnpermute);
}

/* ---- tensors of calls ----------------------------------------------------------------------------------- */

tn_tensor npu_dense(npu_run *r, tn_tensor t)
{
    if (ascend_is_dense(&t)) /* dimensions of one element may have had any stride                        */
        return tn_tensor_dense(t.data, t.dtype, t.ndim, t.shape);
    tn_tensor dense = npu_take_like(r, t.dtype, t);
    npu_copy(r, t, dense);
    return dense;
}

tn_tensor npu_wide_copy(npu_run *r, tn_tensor t)
{
    tn_tensor wide = npu_take_like(r, TN_F32, t);
    npu_copy(r, t, wide);
    return wide;
}

tn_tensor npu_widened(npu_run *r, tn_tensor t)
{
    return t.dtype == TN_F32 ? t : npu_wide_copy(r, t);
}

void npu_store(npu_run *r, tn_tensor from, tn_tensor to)
{
    if (!to.data)
        return;
    tn_tensor at = from;
    size_t before = r->used;
    if (from.dtype != to.dtype) {
        at = ascend_is_dense(&to) ? to : npu_take_like(r, to.dtype, to);
        npu_copy(r, from, at);
    }
    if (at.data != to.data)
        npu_copy(r, at, to);
    r->used = before; /* the queue keeps the order                                                      */
}

tn_tensor npu_target(npu_run *r, tn_tensor to, const tn_tensor *inputs, int count)
{
    bool apart = !ascend_is_dense(&to);
    for (int i = 0; i < count; i++)
        apart |= inputs[i].data == to.data;
    return apart ? npu_take_like(r, to.dtype, to) : tn_tensor_dense(to.data, to.dtype, to.ndim, to.shape);
}

void npu_settle(npu_run *r, tn_tensor target, tn_tensor to)
{
    if (target.data != to.data)
        npu_copy(r, target, to);
}
