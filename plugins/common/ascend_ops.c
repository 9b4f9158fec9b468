/* Operators of an Ascend device on views of tensors. */
#include "ascend_ops.h"

#include <string.h>
#include <tenon/kernel.h>

/* ---- what plan asks ------------------------------------------------------------------------------------- */

static bool is_served(const char *soc)
{
    ascend_chip chip = ascend_chip_of(soc);
    return chip == ASCEND_910B || chip == ASCEND_910_93;
}

const ascend_api *ascend_ops_here(const tn_site *site, tn_error *err)
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

tn_status ascend_ops_need(const tn_site *site, const ascend_need *needs, size_t count, tn_error *err)
{
    for (size_t i = 0; i < count; i++)
        if (!needs[i].here)
            return tn_fail(err, TN_DECLINED, site->path, "the installation of CANN has no %s", needs[i].name);
    return TN_OK;
}

tn_status ascend_ops_limit(const tn_site *site, const char *what, int64_t value, int64_t most, tn_error *err)
{
    if (value <= most)
        return TN_OK;
    return tn_fail(err, TN_DECLINED, site->path, "%s: site has %lld, kernel takes up to %lld", what, (long long)value,
                   (long long)most);
}

/* ---- a kernel's work ------------------------------------------------------------------------------------ */

ascend_ops ascend_ops_on(tn_queue *queue, void *scratch, size_t bytes, tn_error *err)
{
    ascend_ops o = {.queue = queue, .err = err, .scratch = scratch, .bytes = bytes};
    if (!queue || queue->magic != ASCEND_QUEUE || queue->size < sizeof *queue)
        o.status = tn_fail(err, TN_E_INTERNAL, "npu",
                           "the queue is not one of this device; the plugins in use were "
                           "built at different times");
    else
        o.api = queue->api;
    return o;
}

ascend_ops ascend_ops_of(const tn_call *call, tn_error *err)
{
    return ascend_ops_on(call->queue, call->scratch,
                         call->grads ? call->plan->backward_scratch_bytes : call->plan->scratch_bytes, err);
}

size_t ascend_ops_bytes(tn_dtype dtype, int64_t count)
{
    return (tn_dtype_bytes(dtype, count) + 63) & ~(size_t)63;
}

tn_tensor ascend_ops_room(ascend_ops *o, tn_dtype dtype, int32_t ndim, const int64_t *shape)
{
    tn_tensor t = tn_tensor_dense(NULL, dtype, ndim, shape);
    size_t bytes = ascend_ops_bytes(dtype, tn_tensor_count(&t));
    if (o->status == TN_OK && bytes > o->bytes - o->used)
        o->status = tn_fail(o->err, TN_E_INTERNAL, "npu",
                            "a kernel needs more scratch than the %zu bytes that it "
                            "asked for; report this defect",
                            o->bytes);
    if (o->status != TN_OK)
        return t;
    t.data = o->scratch + o->used;
    o->used += bytes;
    return t;
}

tn_tensor ascend_ops_room_like(ascend_ops *o, tn_dtype dtype, tn_tensor like)
{
    return ascend_ops_room(o, dtype, like.ndim, like.shape);
}

tn_tensor ascend_ops_room_2d(ascend_ops *o, tn_dtype dtype, int64_t rows, int64_t columns)
{
    return ascend_ops_room(o, dtype, 2, (const int64_t[]){rows, columns});
}

/* ---- views ---------------------------------------------------------------------------------------------- */

tn_tensor ascend_ops_narrow(tn_tensor t, int32_t dim, int64_t first, int64_t count)
{
    if (t.data)
        t.data = (char *)t.data + first * t.stride[dim] * (int64_t)tn_dtype_size(t.dtype);
    t.shape[dim] = count;
    return t;
}

tn_tensor ascend_ops_transposed(tn_tensor t)
{
    int32_t a = t.ndim - 2, b = t.ndim - 1;
    int64_t shape = t.shape[a], stride = t.stride[a];
    t.shape[a] = t.shape[b];
    t.stride[a] = t.stride[b];
    t.shape[b] = shape;
    t.stride[b] = stride;
    return t;
}

tn_tensor ascend_ops_rows(tn_tensor t)
{
    int64_t width = t.shape[t.ndim - 1], count = 1;
    for (int32_t i = 0; i < t.ndim - 1; i++)
        count *= t.shape[i];
    return tn_tensor_dense(t.data, t.dtype, 2, (const int64_t[]){count, width});
}

/* ---- operators ------------------------------------------------------------------------------------------ */

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

void ascend_ops_copy(ascend_ops *o, tn_tensor from, tn_tensor to)
{
    ascend_step s;
    if (!begin(o, &s, "aclnnInplaceCopy"))
        return;
    aclTensor *target = ascend_tensor(&s, &to), *source = ascend_tensor(&s, &from);
    end(o, &s, s.api->aclnnInplaceCopyGetWorkspaceSize(target, source, &s.bytes, &s.executor), s.api->aclnnInplaceCopy);
}

void ascend_ops_cast(ascend_ops *o, tn_tensor from, tn_tensor to)
{
    ascend_step s;
    if (!begin(o, &s, "aclnnCast"))
        return;
    aclTensor *source = ascend_tensor(&s, &from), *target = ascend_tensor(&s, &to);
    end(o, &s, s.api->aclnnCastGetWorkspaceSize(source, ascend_dtype(to.dtype), target, &s.bytes, &s.executor),
        s.api->aclnnCast);
}

void ascend_ops_fill(ascend_ops *o, float value, tn_tensor to)
{
    ascend_step s;
    if (!begin(o, &s, "aclnnInplaceFillScalar"))
        return;
    aclTensor *target = ascend_tensor(&s, &to);
    end(o, &s, s.api->aclnnInplaceFillScalarGetWorkspaceSize(target, ascend_f32(&s, value), &s.bytes, &s.executor),
        s.api->aclnnInplaceFillScalar);
}

void ascend_ops_zero(ascend_ops *o, tn_tensor to)
{
    ascend_step s;
    if (!begin(o, &s, "aclnnInplaceZero"))
        return;
    aclTensor *target = ascend_tensor(&s, &to);
    end(o, &s, s.api->aclnnInplaceZeroGetWorkspaceSize(target, &s.bytes, &s.executor), s.api->aclnnInplaceZero);
}

void ascend_ops_add(ascend_ops *o, tn_tensor a, tn_tensor b, tn_tensor out)
{
    ascend_step s;
    if (!begin(o, &s, "aclnnAdd"))
        return;
    aclTensor *x = ascend_tensor(&s, &a), *y = ascend_tensor(&s, &b), *sum = ascend_tensor(&s, &out);
    end(o, &s, s.api->aclnnAddGetWorkspaceSize(x, y, ascend_f32(&s, 1), sum, &s.bytes, &s.executor), s.api->aclnnAdd);
}

void ascend_ops_adds(ascend_ops *o, tn_tensor a, float b, tn_tensor out)
{
    ascend_step s;
    if (!begin(o, &s, "aclnnAdds"))
        return;
    aclTensor *x = ascend_tensor(&s, &a), *sum = ascend_tensor(&s, &out);
    aclScalar *term = ascend_f32(&s, b), *factor = ascend_f32(&s, 1);
    end(o, &s, s.api->aclnnAddsGetWorkspaceSize(x, term, factor, sum, &s.bytes, &s.executor), s.api->aclnnAdds);
}

void ascend_ops_mul(ascend_ops *o, tn_tensor a, tn_tensor b, tn_tensor out)
{
    ascend_step s;
    if (!begin(o, &s, "aclnnMul"))
        return;
    aclTensor *x = ascend_tensor(&s, &a), *y = ascend_tensor(&s, &b), *product = ascend_tensor(&s, &out);
    end(o, &s, s.api->aclnnMulGetWorkspaceSize(x, y, product, &s.bytes, &s.executor), s.api->aclnnMul);
}

void ascend_ops_muls(ascend_ops *o, tn_tensor a, float b, tn_tensor out)
{
    ascend_step s;
    if (!begin(o, &s, "aclnnMuls"))
        return;
    aclTensor *x = ascend_tensor(&s, &a), *product = ascend_tensor(&s, &out);
    end(o, &s, s.api->aclnnMulsGetWorkspaceSize(x, ascend_f32(&s, b), product, &s.bytes, &s.executor),
        s.api->aclnnMuls);
}

void ascend_ops_div(ascend_ops *o, tn_tensor a, tn_tensor b, tn_tensor out)
{
    ascend_step s;
    if (!begin(o, &s, "aclnnDiv"))
        return;
    aclTensor *x = ascend_tensor(&s, &a), *y = ascend_tensor(&s, &b), *ratio = ascend_tensor(&s, &out);
    end(o, &s, s.api->aclnnDivGetWorkspaceSize(x, y, ratio, &s.bytes, &s.executor), s.api->aclnnDiv);
}

void ascend_ops_sigmoid(ascend_ops *o, tn_tensor a, tn_tensor out)
{
    ascend_step s;
    if (!begin(o, &s, "aclnnSigmoid"))
        return;
    aclTensor *x = ascend_tensor(&s, &a), *y = ascend_tensor(&s, &out);
    end(o, &s, s.api->aclnnSigmoidGetWorkspaceSize(x, y, &s.bytes, &s.executor), s.api->aclnnSigmoid);
}

void ascend_ops_softmax(ascend_ops *o, tn_tensor a, tn_tensor out)
{
    ascend_step s;
    if (!begin(o, &s, "aclnnSoftmax"))
        return;
    aclTensor *x = ascend_tensor(&s, &a), *y = ascend_tensor(&s, &out);
    end(o, &s, s.api->aclnnSoftmaxGetWorkspaceSize(x, -1, y, &s.bytes, &s.executor), s.api->aclnnSoftmax);
}

void ascend_ops_sum(ascend_ops *o, tn_tensor a, int32_t dim, bool keep, tn_tensor out)
{
    ascend_step s;
    const int64_t dims[] = {dim};
    if (!begin(o, &s, "aclnnReduceSum"))
        return;
    aclTensor *x = ascend_tensor(&s, &a), *sum = ascend_tensor(&s, &out);
    end(o, &s,
        s.api->aclnnReduceSumGetWorkspaceSize(x, ascend_ints(&s, dims, 1), keep, ascend_dtype(out.dtype), sum, &s.bytes,
                                              &s.executor),
        s.api->aclnnReduceSum);
}

void ascend_ops_join(ascend_ops *o, tn_tensor a, tn_tensor b, tn_tensor out)
{
    ascend_step s;
    if (!begin(o, &s, "aclnnCat"))
        return;
    aclTensor *parts[] = {ascend_tensor(&s, &a), ascend_tensor(&s, &b)}, *whole = ascend_tensor(&s, &out);
    aclTensorList *list = ascend_list(&s, parts, 2);
    end(o, &s, s.api->aclnnCatGetWorkspaceSize(list, out.ndim - 1, whole, &s.bytes, &s.executor), s.api->aclnnCat);
}

void ascend_ops_matmul(ascend_ops *o, tn_tensor a, tn_tensor b, tn_tensor out)
{
    enum { KEEP_TYPES = 0 }; /* f32 stays f32 in the cube unit                                          */
    ascend_step s;
    if (!begin(o, &s, "aclnnMatmul"))
        return;
    aclTensor *x = ascend_tensor(&s, &a), *y = ascend_tensor(&s, &b), *product = ascend_tensor(&s, &out);
    end(o, &s, s.api->aclnnMatmulGetWorkspaceSize(x, y, product, KEEP_TYPES, &s.bytes, &s.executor),
        s.api->aclnnMatmul);
}

void ascend_ops_swiglu(ascend_ops *o, tn_tensor x, tn_tensor out)
{
    ascend_step s;
    if (!begin(o, &s, "aclnnSwiGlu"))
        return;
    aclTensor *in = ascend_tensor(&s, &x), *y = ascend_tensor(&s, &out);
    end(o, &s, s.api->aclnnSwiGluGetWorkspaceSize(in, -1, y, &s.bytes, &s.executor), s.api->aclnnSwiGlu);
}

void ascend_ops_swiglu_grad(ascend_ops *o, tn_tensor dy, tn_tensor x, tn_tensor dx)
{
    ascend_step s;
    if (!begin(o, &s, "aclnnSwiGluGrad"))
        return;
    aclTensor *up = ascend_tensor(&s, &dy), *in = ascend_tensor(&s, &x), *to = ascend_tensor(&s, &dx);
    end(o, &s, s.api->aclnnSwiGluGradGetWorkspaceSize(up, in, -1, to, &s.bytes, &s.executor), s.api->aclnnSwiGluGrad);
}

/* ---- tensors of calls ----------------------------------------------------------------------------------- */

tn_tensor ascend_ops_dense(ascend_ops *o, tn_tensor t)
{
    if (ascend_is_dense(&t)) /* dimensions of one element may have had any stride                        */
        return tn_tensor_dense(t.data, t.dtype, t.ndim, t.shape);
    tn_tensor dense = ascend_ops_room_like(o, t.dtype, t);
    ascend_ops_copy(o, t, dense);
    return dense;
}

tn_tensor ascend_ops_wide(ascend_ops *o, tn_tensor t)
{
    tn_tensor wide = ascend_ops_room_like(o, TN_F32, t);
    if (t.dtype == TN_F32)
        ascend_ops_copy(o, t, wide);
    else
        ascend_ops_cast(o, t, wide);
    return wide;
}

void ascend_ops_store(ascend_ops *o, tn_tensor from, tn_tensor to)
{
    if (!to.data)
        return;
    tn_tensor at = from;
    size_t before = o->used;
    if (from.dtype != to.dtype) {
        at = ascend_is_dense(&to) ? to : ascend_ops_room_like(o, to.dtype, to);
        ascend_ops_cast(o, from, at);
    }
    if (at.data != to.data)
        ascend_ops_copy(o, at, to);
    o->used = before; /* the queue keeps the order                                                      */
}

tn_tensor ascend_ops_target(ascend_ops *o, tn_tensor to, const tn_tensor *inputs, int count)
{
    bool apart = !ascend_is_dense(&to);
    for (int i = 0; i < count; i++)
        apart |= inputs[i].data == to.data;
    return apart ? ascend_ops_room_like(o, to.dtype, to) : tn_tensor_dense(to.data, to.dtype, to.ndim, to.shape);
}

void ascend_ops_settle(ascend_ops *o, tn_tensor target, tn_tensor to)
{
    if (target.data != to.data)
        ascend_ops_copy(o, target, to);
}
