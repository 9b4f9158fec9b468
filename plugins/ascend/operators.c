/* Runs: scratch, views, the host's copies; and the operators, one function each. */
#include "operators.h"
#include "queue.h"
#include "scratch.h"

#include <stdlib.h>

/* ---- runs ------------------------------------------------------------------------------------------------- */

size_t npu_measure(npu_body *body, const tn_call *call)
{
    npu_run r = {.call = call, .measuring = true};
    body(&r);
    return r.used > r.most ? r.used : r.most;
}

tn_status npu_perform(npu_body *body, const tn_call *call, tn_error *err)
{
    npu_run r = {.call = call, .queue = call->queue, .err = err};
    body(&r);
    return r.status;
}

/* Is there anything to do? */
static bool goes_on(const npu_run *r, const tn_tensor *y)
{
    return !r->measuring && r->status == TN_OK && tn_tensor_count(y) > 0;
}

bool npu_begin(npu_run *r, ascend_step *s, const char *name, const tn_tensor *y)
{
    if (!goes_on(r, y))
        return false;
    ascend_begin(s, r->queue, name);
    return true;
}

tn_tensor npu_take(npu_run *r, tn_dtype dtype, int32_t ndim, const int64_t *shape)
{
    tn_tensor t = tn_tensor_dense(NULL, dtype, ndim, shape);
    size_t at = scratch_take(&r->used, (size_t)tn_tensor_count(&t) * tn_dtype_size(dtype));
    r->most = r->used > r->most ? r->used : r->most;
    if (!r->measuring)
        t.data = (char *)r->call->scratch + at;
    return t;
}

tn_tensor npu_take_like(npu_run *r, tn_dtype dtype, const tn_tensor *like)
{
    return npu_take(r, dtype, like->ndim, like->shape);
}

/* Elements from a tensor's first to behind its last one. */
static size_t reach_of(const tn_tensor *t)
{
    int64_t reach = 1;
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->shape[i] == 0)
            return 0;
        reach += (t->shape[i] - 1) * t->stride[i];
    }
    return (size_t)reach;
}

const void *npu_host_copy(npu_run *r, const tn_tensor *t, void **owned)
{
    size_t bytes = reach_of(t) * tn_dtype_size(t->dtype);
    *owned = NULL;
    if (r->status != TN_OK)
        return NULL;
    const void *shadow = r->queue->shadow(r->queue, t->data, bytes);
    if (shadow)
        return shadow;
    *owned = malloc(bytes > 0 ? bytes : 1);
    r->status = *owned ? npu_download(r->queue, *owned, t->data, bytes, r->err)
                       : tn_fail(r->err, TN_E_MEMORY, "npu", "out of memory");
    return r->status == TN_OK ? *owned : NULL;
}

/* ---- views ------------------------------------------------------------------------------------------------ */

tn_tensor npu_part(const tn_tensor *t, int64_t first, int64_t step, int64_t count)
{
    tn_tensor part = *t;
    int32_t last = t->ndim - 1;
    part.shape[last] = count;
    part.stride[last] = step * t->stride[last];
    if (t->data)
        part.data = (char *)t->data + (size_t)(first * t->stride[last]) * tn_dtype_size(t->dtype);
    return part;
}

bool npu_rows(const tn_tensor *t, tn_tensor *rows)
{
    int64_t stride = -1, count = 1, width = t->ndim > 0 ? t->shape[t->ndim - 1] : 1;
    for (int32_t i = t->ndim - 2; i >= 0; i--) {
        if (t->shape[i] == 1)
            continue;
        if (stride >= 0 && t->stride[i] != stride * count)
            return false;
        stride = stride < 0 ? t->stride[i] : stride;
        count *= t->shape[i];
    }
    *rows = tn_tensor_dense(t->data, t->dtype, 2, (int64_t[]){count, width});
    if (stride >= 0)
        rows->stride[0] = stride;
    return true;
}

/* ---- parameters ------------------------------------------------------------------------------------------- */

const tn_tensor *npu_param(const tn_site *site, tn_role role)
{
    return site->param[role].count > 0 ? site->param[role].tensors : NULL;
}

tn_status npu_supports_param(const tn_site *site, tn_role role, tn_error *err)
{
    const tn_param *p = &site->param[role];
    for (int64_t i = 0; i < p->count; i++) {
        tn_dtype dtype = p->tensors[i].dtype;
        if (dtype != TN_F32 && dtype != TN_BF16 && dtype != TN_F16)
            return tn_fail(err, TN_DECLINED, "npu", "weight: %s is not there yet, the npu device takes f32, bf16, f16",
                           tn_dtype_name(dtype));
    }
    if (site->features & (TN_HAS_SCALES | TN_HAS_ZERO_POINTS))
        return tn_fail(err, TN_DECLINED, "npu", "quantised weights are not there yet");
    return TN_OK;
}

/* ---- operators -------------------------------------------------------------------------------------------- */

static void cast(npu_run *r, const tn_tensor *x, const tn_tensor *y)
{
    ascend_step s;
    ascend_begin(&s, r->queue, "aclnnCast");
    aclTensor *from = ascend_tensor(&s, x), *to = ascend_tensor(&s, y);
    aclnnStatus first = s.api->aclnnCastGetWorkspaceSize(from, ascend_dtype(y->dtype), to, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnCast, r->err);
}

void npu_copy(npu_run *r, const tn_tensor *x, const tn_tensor *y)
{
    if (!goes_on(r, y))
        return;
    if (x->dtype != y->dtype) {
        cast(r, x, y);
        return;
    }
    ascend_step s;
    ascend_begin(&s, r->queue, "aclnnInplaceCopy");
    aclTensor *from = ascend_tensor(&s, x), *to = ascend_tensor(&s, y);
    aclnnStatus first = s.api->aclnnInplaceCopyGetWorkspaceSize(to, from, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnInplaceCopy, r->err);
}

void npu_fill(npu_run *r, const tn_tensor *y, float value)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnInplaceFillScalar", y))
        return;
    aclTensor *to = ascend_tensor(&s, y);
    aclScalar *number = ascend_f32(&s, value);
    aclnnStatus first = s.api->aclnnInplaceFillScalarGetWorkspaceSize(to, number, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnInplaceFillScalar, r->err);
}

void npu_add(npu_run *r, const tn_tensor *a, const tn_tensor *b, float factor, const tn_tensor *y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnAdd", y))
        return;
    aclTensor *one = ascend_tensor(&s, a), *other = ascend_tensor(&s, b), *sum = ascend_tensor(&s, y);
    aclScalar *alpha = ascend_f32(&s, factor);
    aclnnStatus first = s.api->aclnnAddGetWorkspaceSize(one, other, alpha, sum, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnAdd, r->err);
}

void npu_multiply(npu_run *r, const tn_tensor *a, const tn_tensor *b, const tn_tensor *y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnMul", y))
        return;
    aclTensor *one = ascend_tensor(&s, a), *other = ascend_tensor(&s, b), *product = ascend_tensor(&s, y);
    aclnnStatus first = s.api->aclnnMulGetWorkspaceSize(one, other, product, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnMul, r->err);
}

void npu_add_number(npu_run *r, const tn_tensor *x, float number, const tn_tensor *y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnAdds", y))
        return;
    aclTensor *from = ascend_tensor(&s, x), *sum = ascend_tensor(&s, y);
    aclScalar *other = ascend_f32(&s, number), *alpha = ascend_f32(&s, 1);
    aclnnStatus first = s.api->aclnnAddsGetWorkspaceSize(from, other, alpha, sum, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnAdds, r->err);
}

void npu_multiply_number(npu_run *r, const tn_tensor *x, float number, const tn_tensor *y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnMuls", y))
        return;
    aclTensor *from = ascend_tensor(&s, x), *product = ascend_tensor(&s, y);
    aclScalar *other = ascend_f32(&s, number);
    aclnnStatus first = s.api->aclnnMulsGetWorkspaceSize(from, other, product, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnMuls, r->err);
}

void npu_silu(npu_run *r, const tn_tensor *x, const tn_tensor *y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnSilu", y))
        return;
    aclTensor *from = ascend_tensor(&s, x), *to = ascend_tensor(&s, y);
    aclnnStatus first = s.api->aclnnSiluGetWorkspaceSize(from, to, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnSilu, r->err);
}

void npu_sigmoid(npu_run *r, const tn_tensor *x, const tn_tensor *y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnSigmoid", y))
        return;
    aclTensor *from = ascend_tensor(&s, x), *to = ascend_tensor(&s, y);
    aclnnStatus first = s.api->aclnnSigmoidGetWorkspaceSize(from, to, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnSigmoid, r->err);
}

/* 0: the types as they are. The other settings of the last argument lower the precision of f32 products. */
enum { KEEP_TYPES = 0 };

void npu_matmul(npu_run *r, const tn_tensor *a, const tn_tensor *b, const tn_tensor *y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnMatmul", y))
        return;
    aclTensor *left = ascend_tensor(&s, a), *right = ascend_tensor(&s, b), *product = ascend_tensor(&s, y);
    aclnnStatus first = s.api->aclnnMatmulGetWorkspaceSize(left, right, product, KEEP_TYPES, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnMatmul, r->err);
}

void npu_gather(npu_run *r, const tn_tensor *table, const tn_tensor *ids, const tn_tensor *y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnIndexSelect", y))
        return;
    aclTensor *from = ascend_tensor(&s, table), *index = ascend_tensor(&s, ids), *to = ascend_tensor(&s, y);
    aclnnStatus first = s.api->aclnnIndexSelectGetWorkspaceSize(from, 0, index, to, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnIndexSelect, r->err);
}

void npu_rms(npu_run *r, const tn_tensor *x, const tn_tensor *gamma, double eps, const tn_tensor *y)
{
    tn_tensor shape = *x;
    if (shape.ndim > 0)
        shape.shape[shape.ndim - 1] = 1;
    tn_tensor rstd = npu_take_like(r, TN_F32, &shape); /* the operator wants to tell it               */
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnRmsNorm", y))
        return;
    aclTensor *from = ascend_tensor(&s, x), *weight = ascend_tensor(&s, gamma), *to = ascend_tensor(&s, y),
              *scale = ascend_tensor(&s, &rstd);
    aclnnStatus first = s.api->aclnnRmsNormGetWorkspaceSize(from, weight, eps, to, scale, &s.bytes, &s.executor);
    r->status = ascend_run(&s, first, s.api->aclnnRmsNorm, r->err);
}
