/* Grouped products for programs: checks what they pass, and performs it as the one operation of a made-up site. */
#include "base/tensor.h"
#include "call/direct.h"
#include "eager/eager.h"

#include <tenon/tenon.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define WHERE "grouped_matmul" /* what messages about no tensor in particular are about             */

/* What forward and backward are both given. */
typedef struct grouped_args {
    const tn_tensor *x, *w;
    int64_t w_count;
    tn_layout layout;
    const int64_t *counts;
    int64_t groups;
} grouped_args;

/* What the tensors must agree on. */
typedef struct grouped_shape {
    int64_t rows, in, out, groups;
    tn_layout layout;
    tn_dtype dtype;
} grouped_shape;

static bool is_list(tn_layout layout)
{
    return layout == TN_LAYOUT_EXPERT_LIST || layout == TN_LAYOUT_LIST_IO;
}

/* A matrix, or a stack of them, that can be read. */
static tn_status check_tensor(const char *name, const tn_tensor *t, int32_t ndim, tn_error *err)
{
    tn_status status = tensor_check(t, name, err);
    if (status != TN_OK)
        return status;
    if (t->ndim != ndim)
        return tn_fail(err, TN_E_USAGE, name, "has %d dimensions; pass a tensor of %d", (int)t->ndim, (int)ndim);
    if (!tensor_is_float(t->dtype))
        return tn_fail(err, TN_E_USAGE, name, "is of type %s; grouped products take f32, bf16 and f16",
                       tn_dtype_name(t->dtype));
    if (tn_tensor_count(t) == 0)
        return TN_OK;
    if (!t->data)
        return tn_fail(err, TN_E_USAGE, name, "has no data; pass a tensor in memory of the host");
    if (t->shape[ndim - 1] > 1 && t->stride[ndim - 1] != 1)
        return tn_fail(err, TN_E_USAGE, name, "has stride %" PRId64 " along its last dimension; make it dense there",
                       t->stride[ndim - 1]);
    return TN_OK;
}

/* Rows that do not overlap: those of matrices, and of all that is written. */
static tn_status check_rows(const char *name, const tn_tensor *t, tn_error *err)
{
    int64_t extent = t->shape[t->ndim - 1];
    for (int32_t i = t->ndim - 2; i >= 0; i--) {
        if (t->shape[i] > 1 && t->stride[i] < extent)
            return tn_fail(err, TN_E_USAGE, name,
                           "has stride %" PRId64 " along dimension %d, where %" PRId64
                           " elements lie; pass a tensor whose rows do not overlap",
                           t->stride[i], (int)i, extent);
        extent = t->shape[i] > 1 ? (t->shape[i] - 1) * t->stride[i] + extent : extent;
    }
    return TN_OK;
}

static tn_status check_shape(const char *name, const tn_tensor *t, const int64_t *shape, tn_dtype dtype, tn_error *err)
{
    char has[128], wants[128];
    if (memcmp(t->shape, shape, (size_t)t->ndim * sizeof *shape) != 0) {
        tensor_shape_text(t->ndim, t->shape, has, sizeof has);
        tensor_shape_text(t->ndim, shape, wants, sizeof wants);
        return tn_fail(err, TN_E_USAGE, name, "has shape %s; %s is wanted here", has, wants);
    }
    if (t->dtype != dtype)
        return tn_fail(err, TN_E_USAGE, name, "is of type %s; %s is wanted here", tn_dtype_name(t->dtype),
                       tn_dtype_name(dtype));
    return TN_OK;
}

/* The weights, or their gradients: of one shape and type, which the first one has. */
static tn_status check_weights(const char *name, const tn_tensor *w, int64_t count, const grouped_shape *s,
                               const tn_tensor *like, tn_error *err)
{
    for (int64_t i = 0; i < count; i++) {
        char one[64];
        snprintf(one, sizeof one, is_list(s->layout) ? "%s[%" PRId64 "]" : "%s", name, i);
        tn_status status = check_tensor(one, &w[i], is_list(s->layout) ? 2 : 3, err);
        if (status == TN_OK)
            status = check_rows(one, &w[i], err);
        if (status == TN_OK && (i > 0 || like != w))
            status = check_shape(one, &w[i], like->shape, like->dtype, err);
        if (status != TN_OK)
            return status;
    }
    return TN_OK;
}

static tn_status check_groups(const grouped_args *g, tn_error *err)
{
    if (g->layout < TN_LAYOUT_EXPERT_LIST || g->layout > TN_LAYOUT_LIST_IO)
        return tn_fail(err, TN_E_USAGE, WHERE, "layout %s (%d) is none of stacked_oi, stacked_io, expert_list, list_io",
                       tn_axis_value_name(TN_AXIS_LAYOUT, (int32_t)g->layout), (int)g->layout);
    if (g->groups < 1 || !g->counts)
        return tn_fail(err, TN_E_USAGE, WHERE, "%" PRId64 " groups%s; pass the rows of at least one", g->groups,
                       g->counts ? "" : " without counts");
    if (is_list(g->layout) ? g->w_count != g->groups : g->w_count != 1)
        return tn_fail(err, TN_E_USAGE, "w", "is %" PRId64 " tensors for %" PRId64 " groups; pass %s", g->w_count,
                       g->groups, is_list(g->layout) ? "a matrix for each" : "one stack of matrices");
    if (!g->w)
        return tn_fail(err, TN_E_USAGE, is_list(g->layout) ? "w[0]" : "w", "is NULL; pass a tensor");
    return TN_OK;
}

/* Checks what forward and backward have in common; fills s. */
static tn_status check_product(const grouped_args *g, grouped_shape *s, tn_error *err)
{
    tn_status status = check_groups(g, err);
    *s = (grouped_shape){.groups = g->groups, .layout = g->layout};
    if (status == TN_OK)
        status = check_tensor("x", g->x, 2, err);
    if (status == TN_OK)
        status = check_weights("w", g->w, g->w_count, s, g->w, err);
    if (status != TN_OK)
        return status;
    bool oi = g->layout == TN_LAYOUT_STACKED_OI || g->layout == TN_LAYOUT_EXPERT_LIST;
    const int64_t *matrix = g->w->shape + (is_list(g->layout) ? 0 : 1);
    s->rows = g->x->shape[0];
    s->in = g->x->shape[1];
    s->out = matrix[oi ? 0 : 1];
    s->dtype = g->x->dtype;
    if (!is_list(g->layout) && g->w->shape[0] != g->groups)
        return tn_fail(err, TN_E_USAGE, "w",
                       "is a stack of %" PRId64 " matrices for %" PRId64 " groups; pass a matrix for each",
                       g->w->shape[0], g->groups);
    if (matrix[oi ? 1 : 0] != s->in)
        return tn_fail(err, TN_E_USAGE, "w",
                       "takes %" PRId64 " inputs with layout %s, and x has %" PRId64
                       "; pass weights for x, or the layout that they have",
                       matrix[oi ? 1 : 0], tn_axis_value_name(TN_AXIS_LAYOUT, (int32_t)g->layout), s->in);
    return grouped_starts(g->counts, g->groups, s->rows, NULL, "counts", err);
}

static tn_status check_written(const char *name, const tn_tensor *t, const grouped_shape *s, int64_t width,
                               tn_error *err)
{
    tn_status status = check_tensor(name, t, 2, err);
    if (status == TN_OK)
        status = check_shape(name, t, (int64_t[]){s->rows, width}, s->dtype, err);
    return status == TN_OK ? check_rows(name, t, err) : status;
}

static tn_site make_site(const grouped_args *g, const grouped_shape *s)
{
    tn_site site = {
        .size = sizeof site, .op = TN_OP_GROUPED_MATMUL, .path = WHERE, .class_name = "function", .model_type = ""};
    site.meaning[TN_AXIS_DTYPE] = (int32_t)s->dtype;
    site.meaning[TN_AXIS_WEIGHT] = (int32_t)g->w->dtype;
    site.meaning[TN_AXIS_LAYOUT] = (int32_t)s->layout;
    site.dim[TN_DIM_HIDDEN] = s->in;
    site.dim[TN_DIM_OUT] = s->out;
    site.dim[TN_DIM_EXPERTS] = s->groups;
    site.param[TN_ROLE_WEIGHT] = (tn_param){g->w, g->w_count};
    return site;
}

static tn_call make_call(const grouped_args *g, const tn_site *site)
{
    tn_call call = {.size = sizeof call, .op = TN_OP_GROUPED_MATMUL, .site = site, .in_count = 2, .out_count = 1};
    call.in[0] = *g->x;
    call.in[1] = tn_tensor_dense((void *)(uintptr_t)g->counts, TN_I64, 1, &g->groups);
    return call;
}

tn_status tn_grouped_matmul(const tn_tensor *x, const tn_tensor *w, int64_t w_count, tn_layout layout,
                            const int64_t *counts, int64_t groups, const tn_tensor *y, const char *kernel,
                            tn_error *err)
{
    const grouped_args args = {x, w, w_count, layout, counts, groups};
    grouped_shape shape;
    tn_status status = check_product(&args, &shape, err);
    if (status == TN_OK)
        status = check_written("y", y, &shape, shape.out, err);
    if (status != TN_OK)
        return status;
    tn_site site = make_site(&args, &shape);
    tn_call call = make_call(&args, &site);
    call.out[0] = *y;
    return direct_perform(&call, kernel, err);
}

tn_status tn_grouped_matmul_backward(const tn_tensor *x, const tn_tensor *w, int64_t w_count, tn_layout layout,
                                     const int64_t *counts, int64_t groups, const tn_tensor *grad_y,
                                     const tn_tensor *grad_x, const tn_tensor *grad_w, const char *kernel,
                                     tn_error *err)
{
    const grouped_args args = {x, w, w_count, layout, counts, groups};
    grouped_shape shape;
    tn_status status = check_product(&args, &shape, err);
    if (status == TN_OK)
        status = check_tensor("grad_y", grad_y, 2, err);
    if (status == TN_OK)
        status = check_shape("grad_y", grad_y, (int64_t[]){shape.rows, shape.out}, shape.dtype, err);
    if (status == TN_OK && grad_x)
        status = check_written("grad_x", grad_x, &shape, shape.in, err);
    if (status == TN_OK && grad_w)
        status = check_weights("grad_w", grad_w, w_count, &shape, w, err);
    if (status != TN_OK)
        return status;
    tn_site site = make_site(&args, &shape);
    tn_call call = make_call(&args, &site);
    tn_grads grads = {.size = sizeof grads};
    grads.out[0] = *grad_y;
    if (grad_x)
        grads.in[0] = *grad_x;
    if (grad_w)
        grads.param[TN_ROLE_WEIGHT] = (tn_param){grad_w, w_count};
    call.grads = &grads;
    return direct_perform(&call, kernel, err);
}
