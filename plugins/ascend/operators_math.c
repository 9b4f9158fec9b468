/* Functions of elements, comparisons and sums, one function for each of the vendor's operators. */
#include "operators_math.h"

#include <math.h>

/* ---- what an installation lacks --------------------------------------------------------------------------- */

tn_status npu_needs(uint32_t needs, tn_error *err)
{
    const ascend_api *api = ascend_load(err);
    if (!api)
        return TN_DECLINED;
    const struct {
        npu_need need;
        ascend_need it;
    } operators[] = {
        {NPU_TANH, ASCEND_NEED(api, aclnnTanh)},
        {NPU_ERF, ASCEND_NEED(api, aclnnErf)},
        {NPU_EXP, ASCEND_NEED(api, aclnnExp)},
        {NPU_SQRT, ASCEND_NEED(api, aclnnSqrt)},
        {NPU_RSQRT, ASCEND_NEED(api, aclnnRsqrt)},
        {NPU_RELU, ASCEND_NEED(api, aclnnRelu)},
        {NPU_SOFTPLUS, ASCEND_NEED(api, aclnnSoftplus)},
        {NPU_CLAMP, ASCEND_NEED(api, aclnnClamp)},
        {NPU_MAXIMUM, ASCEND_NEED(api, aclnnMaximum)},
        {NPU_ABOVE, ASCEND_NEED(api, aclnnGtScalar)},
        {NPU_NOT_BELOW, ASCEND_NEED(api, aclnnGeScalar)},
        {NPU_BELOW, ASCEND_NEED(api, aclnnLtScalar)},
        {NPU_CHOOSE, ASCEND_NEED(api, aclnnSWhere)},
        {NPU_RUNNING_SUMS, ASCEND_NEED(api, aclnnCumsum)},
        {NPU_ADD_ROWS, ASCEND_NEED(api, aclnnIndexAdd)},
    };
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if ((needs & operators[i].need) && !operators[i].it.here)
            return tn_fail(err, TN_DECLINED, "npu", "the installation of CANN has no %s", operators[i].it.name);
    return TN_OK;
}

/* ---- functions -------------------------------------------------------------------------------------------- */

typedef aclnnStatus of_one(const aclTensor *x, aclTensor *y, uint64_t *bytes, aclOpExecutor **executor);

/* A step that was begun, whose operator takes one tensor and gives another. */
static void perform_of_one(npu_run *r, ascend_step *s, of_one *first, aclnn_second *second, tn_tensor x, tn_tensor y)
{
    aclTensor *from = ascend_tensor(s, &x), *to = ascend_tensor(s, &y);
    r->status = ascend_run(s, first(from, to, &s->bytes, &s->executor), second, r->err);
}

void npu_tanh(npu_run *r, tn_tensor x, tn_tensor y)
{
    ascend_step s;
    if (npu_begin(r, &s, "aclnnTanh", &y))
        perform_of_one(r, &s, s.api->aclnnTanhGetWorkspaceSize, s.api->aclnnTanh, x, y);
}

void npu_erf(npu_run *r, tn_tensor x, tn_tensor y)
{
    ascend_step s;
    if (npu_begin(r, &s, "aclnnErf", &y))
        perform_of_one(r, &s, s.api->aclnnErfGetWorkspaceSize, s.api->aclnnErf, x, y);
}

void npu_exp(npu_run *r, tn_tensor x, tn_tensor y)
{
    ascend_step s;
    if (npu_begin(r, &s, "aclnnExp", &y))
        perform_of_one(r, &s, s.api->aclnnExpGetWorkspaceSize, s.api->aclnnExp, x, y);
}

void npu_sqrt(npu_run *r, tn_tensor x, tn_tensor y)
{
    ascend_step s;
    if (npu_begin(r, &s, "aclnnSqrt", &y))
        perform_of_one(r, &s, s.api->aclnnSqrtGetWorkspaceSize, s.api->aclnnSqrt, x, y);
}

void npu_rsqrt(npu_run *r, tn_tensor x, tn_tensor y)
{
    ascend_step s;
    if (npu_begin(r, &s, "aclnnRsqrt", &y))
        perform_of_one(r, &s, s.api->aclnnRsqrtGetWorkspaceSize, s.api->aclnnRsqrt, x, y);
}

void npu_relu(npu_run *r, tn_tensor x, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnRelu", &y)) /* its first phase has another type than those above               */
        return;
    aclTensor *from = ascend_tensor(&s, &x), *to = ascend_tensor(&s, &y);
    npu_end(r, &s, s.api->aclnnReluGetWorkspaceSize(from, to, &s.bytes, &s.executor), s.api->aclnnRelu);
}

void npu_softplus(npu_run *r, tn_tensor x, float threshold, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnSoftplus", &y))
        return;
    aclTensor *from = ascend_tensor(&s, &x), *to = ascend_tensor(&s, &y);
    aclScalar *beta = ascend_f32(&s, 1), *above = ascend_f32(&s, threshold);
    npu_end(r, &s, s.api->aclnnSoftplusGetWorkspaceSize(from, beta, above, to, &s.bytes, &s.executor),
            s.api->aclnnSoftplus);
}

void npu_clamp(npu_run *r, tn_tensor x, float low, float high, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnClamp", &y))
        return;
    aclTensor *from = ascend_tensor(&s, &x), *to = ascend_tensor(&s, &y);
    aclScalar *least = low == -INFINITY ? NULL : ascend_f32(&s, low);
    aclScalar *most = high == INFINITY ? NULL : ascend_f32(&s, high);
    npu_end(r, &s, s.api->aclnnClampGetWorkspaceSize(from, least, most, to, &s.bytes, &s.executor), s.api->aclnnClamp);
}

void npu_maximum(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnMaximum", &y))
        return;
    aclTensor *one = ascend_tensor(&s, &a), *other = ascend_tensor(&s, &b), *to = ascend_tensor(&s, &y);
    npu_end(r, &s, s.api->aclnnMaximumGetWorkspaceSize(one, other, to, &s.bytes, &s.executor), s.api->aclnnMaximum);
}

/* ---- comparisons ------------------------------------------------------------------------------------------ */

typedef aclnnStatus of_number(const aclTensor *x, const aclScalar *number, aclTensor *y, uint64_t *bytes,
                              aclOpExecutor **executor);

static void compare(npu_run *r, ascend_step *s, of_number *first, aclnn_second *second, tn_tensor x, float number,
                    tn_tensor y)
{
    aclTensor *from = ascend_tensor(s, &x), *to = ascend_tensor(s, &y);
    aclScalar *other = ascend_f32(s, number);
    r->status = ascend_run(s, first(from, other, to, &s->bytes, &s->executor), second, r->err);
}

void npu_above(npu_run *r, tn_tensor x, float number, tn_tensor y)
{
    ascend_step s;
    if (npu_begin(r, &s, "aclnnGtScalar", &y))
        compare(r, &s, s.api->aclnnGtScalarGetWorkspaceSize, s.api->aclnnGtScalar, x, number, y);
}

void npu_not_below(npu_run *r, tn_tensor x, float number, tn_tensor y)
{
    ascend_step s;
    if (npu_begin(r, &s, "aclnnGeScalar", &y))
        compare(r, &s, s.api->aclnnGeScalarGetWorkspaceSize, s.api->aclnnGeScalar, x, number, y);
}

void npu_below(npu_run *r, tn_tensor x, float number, tn_tensor y)
{
    ascend_step s;
    if (npu_begin(r, &s, "aclnnLtScalar", &y))
        compare(r, &s, s.api->aclnnLtScalarGetWorkspaceSize, s.api->aclnnLtScalar, x, number, y);
}

void npu_choose(npu_run *r, tn_tensor condition, tn_tensor a, tn_tensor b, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnSWhere", &y))
        return;
    aclTensor *truth = ascend_tensor(&s, &condition), *one = ascend_tensor(&s, &a), *other = ascend_tensor(&s, &b);
    aclTensor *to = ascend_tensor(&s, &y);
    npu_end(r, &s, s.api->aclnnSWhereGetWorkspaceSize(truth, one, other, to, &s.bytes, &s.executor),
            s.api->aclnnSWhere);
}

/* ---- sums ------------------------------------------------------------------------------------------------- */

void npu_running_sums(npu_run *r, tn_tensor x, int32_t dim, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnCumsum", &y))
        return;
    aclTensor *from = ascend_tensor(&s, &x), *to = ascend_tensor(&s, &y);
    npu_end(r, &s, s.api->aclnnCumsumGetWorkspaceSize(from, dim, ascend_dtype(y.dtype), to, &s.bytes, &s.executor),
            s.api->aclnnCumsum);
}

void npu_add_rows(npu_run *r, tn_tensor x, tn_tensor ids, tn_tensor rows, float factor, tn_tensor y)
{
    ascend_step s;
    if (!npu_begin(r, &s, "aclnnIndexAdd", &y))
        return;
    aclTensor *from = ascend_tensor(&s, &x), *index = ascend_tensor(&s, &ids), *added = ascend_tensor(&s, &rows);
    aclTensor *to = ascend_tensor(&s, &y);
    aclScalar *alpha = ascend_f32(&s, factor);
    npu_end(r, &s, s.api->aclnnIndexAddGetWorkspaceSize(from, 0, index, added, alpha, to, &s.bytes, &s.executor),
            s.api->aclnnIndexAdd);
}
