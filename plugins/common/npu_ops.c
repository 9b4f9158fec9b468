/* Operators of an Ascend device on views of tensors. */
#include "npu_call.h"
#include "scratch.h"

#include <tenon/kernel.h>

#include <math.h>

/* ---- what plan asks ------------------------------------------------------------------------------------- */

const ascend_api *npu_here(const tn_site *site, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    const ascend_api *api = ascend_load(&why);
    if (!api) {
        tn_fail(err, TN_DECLINED, site->path, "%s", why.message);
        return NULL;
    }
    const char *soc = api->aclrtGetSocName();
    ascend_chip chip = soc ? ascend_chip_of(soc) : ASCEND_910B;
    if (chip != ASCEND_910B && chip != ASCEND_910_93) {
        tn_fail(err, TN_DECLINED, site->path,
                "unit is %s, kernel takes Ascend910B1 and later of its family, and "
                "Ascend910_93",
                soc);
        return NULL;
    }
    return api;
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
    r->status = npu_flush(r->queue, r->err);
    if (r->status != TN_OK)
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

tn_tensor npu_take_column(npu_run *r, tn_tensor like)
{
    if (like.ndim > 0)
        like.shape[like.ndim - 1] = 1;
    return npu_take_like(r, TN_F32, like);
}

tn_tensor npu_take_2d(npu_run *r, tn_dtype dtype, int64_t rows, int64_t columns)
{
    return npu_take(r, dtype, 2, (const int64_t[]){rows, columns});
}

tn_tensor npu_take_3d(npu_run *r, tn_dtype dtype, int64_t a, int64_t b, int64_t c)
{
    return npu_take(r, dtype, 3, (const int64_t[]){a, b, c});
}

/* ---- views ---------------------------------------------------------------------------------------------- */

tn_tensor npu_view(const void *data, tn_dtype dtype, int32_t ndim, const int64_t *shape, const int64_t *stride)
{
    tn_tensor t = tn_tensor_dense((void *)(uintptr_t)data, dtype, ndim, shape);
    for (int32_t i = 0; stride && i < ndim; i++)
        t.stride[i] = stride[i];
    return t;
}

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

bool npu_side_by_side(const tn_tensor *a, const tn_tensor *b, tn_tensor *both)
{
    bool follows = a->data ? b->data == (char *)a->data + tn_dtype_bytes(a->dtype, tn_tensor_count(a)) : !b->data;
    *both = *a;
    both->shape[2] += b->shape[2];
    return follows && a->dtype == b->dtype && a->shape[0] * a->shape[1] == 1 && b->shape[0] * b->shape[1] == 1 &&
           ascend_is_dense(a) && ascend_is_dense(b);
}

bool npu_in_a_row(const tn_tensor *a, const tn_tensor *b, tn_tensor *both)
{
    *both = *a;
    both->shape[0] += b->shape[0];
    return a->data && b->data == (char *)a->data + tn_dtype_bytes(a->dtype, tn_tensor_count(a)) &&
           a->dtype == b->dtype && a->shape[1] == b->shape[1] && ascend_is_dense(a) && ascend_is_dense(b);
}

bool npu_stack(const tn_tensor *a, const tn_tensor *b, int64_t count, tn_tensor *stack)
{
    const tn_tensor *lists[] = {a, b};
    int64_t each = b ? 2 : 1;
    bool stacked = count > 1 && a->data;
    for (int64_t i = 0; i < count * each && stacked; i++) {
        const tn_tensor *t = &lists[i % each][i / each];
        stacked = t->data == (char *)a->data + (size_t)i * tn_dtype_bytes(a->dtype, tn_tensor_count(a)) &&
                  t->dtype == a->dtype && t->shape[0] == a->shape[0] && t->shape[1] == a->shape[1] &&
                  ascend_is_dense(t);
    }
    if (stacked)
        *stack = npu_view(a->data, a->dtype, 3, (int64_t[]){count, each * a->shape[0], a->shape[1]}, NULL);
    return stacked;
}

/* ---- operators ------------------------------------------------------------------------------------------ */

void npu_copy(npu_run *r, tn_tensor x, tn_tensor y)
{
    if (x.dtype == y.dtype)
        CALL(r, y, aclnnInplaceCopy, TENSOR(y), TENSOR(x));
    else
        CALL(r, y, aclnnCast, TENSOR(x), ascend_dtype(y.dtype), TENSOR(y));
}

void npu_fill(npu_run *r, tn_tensor y, float value)
{
    CALL(r, y, aclnnInplaceFillScalar, TENSOR(y), NUMBER(value));
}

void npu_zero(npu_run *r, tn_tensor y)
{
    CALL(r, y, aclnnInplaceZero, TENSOR(y));
}

void npu_add_number(npu_run *r, tn_tensor x, float number, tn_tensor y)
{
    CALL(r, y, aclnnAdds, TENSOR(x), NUMBER(number), NUMBER(1), TENSOR(y));
}

#define OF_ONE(function, operator)                                                                                     \
    void function(npu_run *r, tn_tensor x, tn_tensor y)                                                                \
    {                                                                                                                  \
        CALL(r, y, operator, TENSOR(x), TENSOR(y));                                                                    \
    }
#define OF_TWO(function, operator)                                                                                     \
    void function(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor y)                                                   \
    {                                                                                                                  \
        CALL(r, y, operator, TENSOR(a), TENSOR(b), TENSOR(y));                                                         \
    }
#define OF_NUMBER(function, operator)                                                                                  \
    void function(npu_run *r, tn_tensor x, float number, tn_tensor y)                                                  \
    {                                                                                                                  \
        CALL(r, y, operator, TENSOR(x), NUMBER(number), TENSOR(y));                                                    \
    }

OF_TWO(npu_multiply, aclnnMul)
OF_TWO(npu_divide, aclnnDiv)
OF_NUMBER(npu_multiply_number, aclnnMuls)
OF_NUMBER(npu_above, aclnnGtScalar)
OF_NUMBER(npu_not_below, aclnnGeScalar)
OF_NUMBER(npu_below, aclnnLtScalar)
OF_ONE(npu_silu, aclnnSilu)
OF_ONE(npu_sigmoid, aclnnSigmoid)
OF_ONE(npu_tanh, aclnnTanh)
OF_ONE(npu_erf, aclnnErf)
OF_ONE(npu_exp, aclnnExp)
OF_ONE(npu_sqrt, aclnnSqrt)
OF_ONE(npu_rsqrt, aclnnRsqrt)
OF_ONE(npu_relu, aclnnRelu)

void npu_softplus(npu_run *r, tn_tensor x, float threshold, tn_tensor y)
{
    CALL(r, y, aclnnSoftplus, TENSOR(x), NUMBER(1), NUMBER(threshold), TENSOR(y));
}

void npu_clamp(npu_run *r, tn_tensor x, float low, float high, tn_tensor y)
{
    CALL(r, y, aclnnClamp, TENSOR(x), low == -INFINITY ? NULL : NUMBER(low), high == INFINITY ? NULL : NUMBER(high),
         TENSOR(y));
}

void npu_choose(npu_run *r, tn_tensor condition, tn_tensor a, tn_tensor b, tn_tensor y)
{
    CALL(r, y, aclnnSWhere, TENSOR(condition), TENSOR(a), TENSOR(b), TENSOR(y));
}

void npu_batch_matmul(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor y)
{
    CALL(r, y, aclnnBatchMatMul, TENSOR(a), TENSOR(b), TENSOR(y), KEEP_TYPES);
}

void npu_softmax(npu_run *r, tn_tensor x, tn_tensor y)
{
    CALL(r, y, aclnnSoftmax, TENSOR(x), x.ndim - 1, TENSOR(y));
}

void npu_join(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor y)
{
    const tn_tensor parts[] = {a, b};
    CALL(r, y, aclnnCat, list_of(&s, parts, 2), y.ndim - 1, TENSOR(y));
}

void npu_sum(npu_run *r, tn_tensor x, int32_t dim, bool keep, tn_tensor y)
{
    CALL(r, y, aclnnReduceSum, TENSOR(x), ascend_ints(&s, &(const int64_t){dim}, 1), keep, ascend_dtype(y.dtype),
         TENSOR(y));
}

void npu_sums(npu_run *r, tn_tensor x, tn_tensor y)
{
    npu_sum(r, x, x.ndim - 1, true, y);
}

void npu_gather(npu_run *r, tn_tensor table, tn_tensor ids, tn_tensor y)
{
    CALL(r, y, aclnnIndexSelect, TENSOR(table), 0, TENSOR(ids), TENSOR(y));
}

/* The axis of a cache's slots, behind its rows and one dimension of nothing: as the vendor's document has it. */
enum { SLOTS = 2 };

void npu_scatter(npu_run *r, tn_tensor to, tn_tensor places, tn_tensor rows)
{
    int64_t count = to.shape[0], width = to.shape[2] * to.shape[3];
    tn_tensor slots = npu_view(to.data, to.dtype, 4, (int64_t[]){count, 1, to.shape[1], width}, NULL);
    tn_tensor each = npu_view(rows.data, rows.dtype, 4, (int64_t[]){count, 1, 1, width}, NULL);
    CALL(r, slots, aclnnInplaceScatterUpdate, TENSOR(slots), TENSOR(places), TENSOR(each), SLOTS);
}

void npu_add_rows(npu_run *r, tn_tensor x, tn_tensor ids, tn_tensor rows, float factor, tn_tensor y)
{
    CALL(r, y, aclnnIndexAdd, TENSOR(x), 0, TENSOR(ids), TENSOR(rows), NUMBER(factor), TENSOR(y));
}

void npu_largest(npu_run *r, tn_tensor x, int64_t k, tn_tensor values, tn_tensor places)
{
    CALL(r, values, aclnnTopk, TENSOR(x), k, x.ndim - 1, true, true, TENSOR(values), TENSOR(places));
}

void npu_count(npu_run *r, tn_tensor ids, tn_tensor counts)
{
    int64_t slots = tn_tensor_count(&ids), most = counts.shape[0];
    size_t before = r->used;
    tn_tensor numbers = npu_take(r, TN_F32, 1, &slots), bins = npu_take(r, TN_F32, 1, &most);
    npu_copy(r, tn_tensor_dense(ids.data, ids.dtype, 1, &slots), numbers);
    /* Each number lies in the middle of its bin, wherever rounding puts the edges. */
    CALL(r, bins, aclnnHistc, TENSOR(numbers), most, NUMBER(-0.5f), NUMBER((float)most - 0.5f), TENSOR(bins));
    npu_copy(r, bins, counts);
    r->used = before;
}

void npu_rms_norm(npu_run *r, tn_tensor x, tn_tensor gamma, double eps, tn_tensor y, tn_tensor rstd)
{
    CALL(r, y, aclnnRmsNorm, TENSOR(x), TENSOR(gamma), eps, TENSOR(y), TENSOR(rstd));
}

void npu_rms_norm_grad(npu_run *r, tn_tensor dy, tn_tensor x, tn_tensor rstd, tn_tensor gamma, tn_tensor dx,
                       tn_tensor dgamma)
{
    CALL(r, dx, aclnnRmsNormGrad, TENSOR(dy), TENSOR(x), TENSOR(rstd), TENSOR(gamma), TENSOR(dx), TENSOR(dgamma));
}

void npu_rotate(npu_run *r, tn_tensor x, tn_tensor cos, tn_tensor sin, int64_t mode, tn_tensor y)
{
    if (r->api && r->api->aclnnRotaryPositionEmbeddingV2)
        CALL(r, y, aclnnRotaryPositionEmbeddingV2, TENSOR(x), TENSOR(cos), TENSOR(sin), mode, NULL, TENSOR(y));
    else
        CALL(r, y, aclnnRotaryPositionEmbedding, TENSOR(x), TENSOR(cos), TENSOR(sin), mode, TENSOR(y));
}

void npu_swiglu(npu_run *r, tn_tensor x, tn_tensor y)
{
    CALL(r, y, aclnnSwiGlu, TENSOR(x), x.ndim - 1, TENSOR(y));
}

void npu_swiglu_grad(npu_run *r, tn_tensor dy, tn_tensor x, tn_tensor dx)
{
    CALL(r, dx, aclnnSwiGluGrad, TENSOR(dy), TENSOR(x), x.ndim - 1, TENSOR(dx));
}

/* ---- mixtures of experts ---------------------------------------------------------------------------------- */

void npu_permute(npu_run *r, tn_tensor tokens, tn_tensor ids, tn_tensor rows, tn_tensor order)
{
    CALL(r, rows, aclnnMoeTokenPermute, TENSOR(tokens), TENSOR(ids), 0, false, TENSOR(rows), TENSOR(order));
}

void npu_permute_grad(npu_run *r, tn_tensor drows, tn_tensor order, int64_t k, tn_tensor dtokens)
{
    CALL(r, dtokens, aclnnMoeTokenPermuteGrad, TENSOR(drows), TENSOR(order), k, false, TENSOR(dtokens));
}

void npu_unpermute(npu_run *r, tn_tensor rows, tn_tensor order, tn_tensor weights, tn_tensor y)
{
    CALL(r, y, aclnnMoeTokenUnpermute, TENSOR(rows), TENSOR(order), TENSOR(weights), false, NULL, TENSOR(y));
}

void npu_unpermute_grad(npu_run *r, tn_tensor rows, tn_tensor dy, tn_tensor order, tn_tensor weights, tn_tensor drows,
                        tn_tensor dweights)
{
    tn_tensor to = drows, to_weights = dweights;
    size_t before = r->used;
    const tn_dtype types[] = {rows.dtype, dy.dtype, TN_I32, weights.dtype, drows.dtype, dweights.dtype};
    if (!ascend_takes("aclnnMoeTokenUnpermuteGrad", types, 6)) { /* in f32 it takes all                  */
        rows = npu_widened(r, rows);
        dy = npu_widened(r, dy);
        weights = npu_widened(r, weights);
        to = drows.dtype == TN_F32 ? drows : npu_take_like(r, TN_F32, drows);
        to_weights = dweights.dtype == TN_F32 ? dweights : npu_take_like(r, TN_F32, dweights);
    }
    CALL(r, to, aclnnMoeTokenUnpermuteGrad, TENSOR(rows), TENSOR(dy), TENSOR(order), TENSOR(weights), false, NULL,
         TENSOR(to), TENSOR(to_weights));
    npu_settle(r, to, drows);
    npu_settle(r, to_weights, dweights);
    r->used = before;
}

/* What the arguments of a grouped product say (the vendor's names: splitItem, groupListType, actType). */
enum { ONE_RESULT = 3, LIST_OF_COUNTS = 1, NO_ACTIVATION = 0 };

/* The arguments up to actType, which both versions have: what belongs to quantised numbers is not there. */
#define GROUPED                                                                                                        \
    list_of(&s, &x, 1), list_of(&s, weights, count), NULL, NULL, NULL, NULL, NULL, NULL, TENSOR(counts), NULL, NULL,   \
        NULL, ONE_RESULT, (int64_t)groups, LIST_OF_COUNTS, NO_ACTIVATION

void npu_grouped_matmul(npu_run *r, npu_groups groups, tn_tensor x, const tn_tensor *weights, int64_t count,
                        tn_tensor counts, tn_tensor y)
{
    if (r->api && r->api->aclnnGroupedMatmulV5)
        CALL(r, y, aclnnGroupedMatmulV5, GROUPED, NULL, list_of(&s, &y, 1), NULL, NULL);
    else
        CALL(r, y, aclnnGroupedMatmulV4, GROUPED, list_of(&s, &y, 1), NULL, NULL);
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

void npu_clear(npu_run *r, tn_tensor to)
{
    size_t before = r->used;
    if (!to.data || tn_tensor_count(&to) == 0)
        return;
    tn_tensor zeros = npu_target(r, to, NULL, 0);
    npu_zero(r, zeros);
    npu_settle(r, zeros, to);
    r->used = before;
}

void npu_clear_all(npu_run *r, const tn_grads *grads)
{
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        npu_clear(r, grads->in[i]);
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < grads->param[role].count; i++)
            npu_clear(r, grads->param[role].tensors[i]);
}

void npu_settle(npu_run *r, tn_tensor target, tn_tensor to)
{
    if (target.data != to.data)
        npu_copy(r, target, to);
}
