/* LINEAR: y = x weight^T + bias, and its gradients: dx = g weight, dweight = g^T x, dbias the sum of g over tokens. */
#include "eager/product.h"
#include "eager/rows.h"
#include "eager/sums.h"
#include "eager/vec.h"

#include "base/blocks.h"

static tn_status linear_no_weight(const tn_call *call, tn_error *err)
{
    return tn_fail(err, TN_E_INTERNAL, call->site->path, "a linear layer without its weight; report this defect");
}

/* Its weight, if that is quantised; NULL: it is not. */
static const weight *linear_quantised(const tn_call *call, weight *w)
{
    const tn_tensor *t = rows_param(call->site, TN_ROLE_WEIGHT);
    if (!t || !blocks_is_quantised(t->dtype))
        return NULL;
    *w = weight_of(call->site, TN_ROLE_WEIGHT, 0);
    return w;
}

static product linear_product(const tn_call *call, weight *w)
{
    return (product){.form = GEMM_NT,
                     .a = &call->in[0],
                     .w = rows_param(call->site, TN_ROLE_WEIGHT),
                     .quantised = linear_quantised(call, w),
                     .bias = rows_param(call->site, TN_ROLE_BIAS),
                     .y = &call->out[0]};
}

static size_t linear_scratch(const tn_call *call)
{
    weight w;
    product p = linear_product(call, &w);
    return p.w ? product_scratch(&p) : 0;
}

static tn_status linear_forward(const tn_call *call, tn_error *err)
{
    weight w;
    product p = linear_product(call, &w);
    return p.w ? product_run(&p, call->scratch, call->site->path, err) : linear_no_weight(call, err);
}

/* The upstream gradient's shape: that of x with another width. Its data and strides may not be given yet. */
static tn_tensor linear_upstream(const tn_call *call)
{
    tn_tensor g = call->grads->out[0];
    if (g.data)
        return g;
    const tn_tensor *x = &call->in[0];
    int64_t shape[TN_MAX_DIMS];
    for (int32_t i = 0; i < x->ndim; i++)
        shape[i] = x->shape[i];
    shape[x->ndim - 1] = rows_param(call->site, TN_ROLE_WEIGHT)->shape[0];
    return tn_tensor_dense(NULL, x->dtype, x->ndim, shape);
}

static size_t linear_backward_scratch(const tn_call *call)
{
    const tn_tensor *w = rows_param(call->site, TN_ROLE_WEIGHT);
    if (!w)
        return 0;
    tn_tensor g = linear_upstream(call);
    /* Which gradients are wanted may be unknown yet, and so may be their addresses. */
    weight codes;
    product dx = {.form = GEMM_NN, .a = &g, .w = w, .quantised = linear_quantised(call, &codes)};
    product dw = {.form = GEMM_TN, .a = &g, .w = &call->in[0]};
    sums db = sums_shape(rows_count(&g), rows_width(&g));
    size_t sizes[] = {product_scratch(&dx), product_scratch(&dw), sums_bytes(&db)}, most = 0;
    for (int i = 0; i < 3; i++)
        most = sizes[i] > most ? sizes[i] : most;
    return most;
}

static tn_status linear_backward(const tn_call *call, tn_error *err)
{
    const tn_tensor *w = rows_param(call->site, TN_ROLE_WEIGHT), *g = &call->grads->out[0];
    const tn_param *param = call->grads->param;
    if (!w)
        return linear_no_weight(call, err);
    const tn_tensor *dx = call->grads->in[0].data ? &call->grads->in[0] : NULL;
    const tn_tensor *dw = param[TN_ROLE_WEIGHT].count > 0 ? param[TN_ROLE_WEIGHT].tensors : NULL;
    const tn_tensor *db = param[TN_ROLE_BIAS].count > 0 ? param[TN_ROLE_BIAS].tensors : NULL;
    tn_status status = TN_OK;
    if (!g->data) {
        const tn_tensor *all[] = {dx, dw, db};
        for (int i = 0; i < 3; i++)
            if (all[i])
                rows_clear(all[i]);
        return TN_OK;
    }
    if (dw) {
        product p = {.form = GEMM_TN, .a = g, .w = &call->in[0], .y = dw};
        status = product_run(&p, call->scratch, call->site->path, err);
    }
    if (db)
        sums_of_rows(g, call->scratch, db);
    if (dx && status == TN_OK) {
        weight codes;
        product p = {.form = GEMM_NN, .a = g, .w = w, .quantised = linear_quantised(call, &codes), .y = dx};
        status = product_run(&p, call->scratch, call->site->path, err);
    }
    return status;
}

const eager_op eager_linear = {.op = TN_OP_LINEAR,
                               .scratch = linear_scratch,
                               .forward = linear_forward,
                               .backward_scratch = linear_backward_scratch,
                               .backward = linear_backward};
