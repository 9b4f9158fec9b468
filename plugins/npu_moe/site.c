/* Reading and checking sites. */
#include "site.h"
#include <stdio.h>

/* Instructions that multiply pairs of narrow numbers: what lies between two products is rounded for them. */
#define PAIRS (TN_CPU_AVX512_BF16 | TN_CPU_AVX512_FP16 | TN_CPU_AMX_BF16)

/* Elements of an expert's matrix that stay in the first caches: what pairs would save there is not worth a rounding. */
#define SMALL_EXPERT 8192

static tn_dtype dtype_of(const tn_site *site)
{
    return (tn_dtype)site->meaning[TN_AXIS_DTYPE];
}

static const tn_tensor *param(const tn_site *site, tn_role role)
{
    return site->param[role].count > 0 ? site->param[role].tensors : NULL;
}

static void open_router(moe_site *s, const tn_site *site)
{
    router *r = &s->layer.router;
    bool scaled = site->features & TN_HAS_ROUTE_SCALE, groups = site->features & TN_HAS_GROUPS;
    *r = (router){.own = &s->own,
                  .products = &s->own,
                  .hidden = site->dim[TN_DIM_HIDDEN],
                  .experts = site->dim[TN_DIM_EXPERTS],
                  .top_k = site->dim[TN_DIM_TOP_K],
                  .groups = groups ? site->dim[TN_DIM_GROUPS] : 1,
                  .top_groups = groups ? site->dim[TN_DIM_TOP_GROUPS] : 1,
                  .score = (tn_score)site->meaning[TN_AXIS_SCORE],
                  .weight = param(site, TN_ROLE_ROUTER),
                  .bias = param(site, TN_ROLE_ROUTER_BIAS),
                  .renormalise = site->features & TN_HAS_RENORM,
                  .f32_logits = site->features & TN_HAS_F32_ROUTER,
                  .scale = scaled ? (float)site->num[TN_NUM_SCALE] : 1.0f};
    if (site->features & TN_HAS_CORRECTION_BIAS)
        r->correction = param(site, TN_ROLE_CORRECTION_BIAS);
    if (r->weight->dtype != dtype_of(site))
        r->products = &s->f32;
}

void site_open(moe_site *s, const tn_site *site, uint64_t flags)
{
    bool small = site->op != TN_OP_MOE_ROUTE && site->dim[TN_DIM_HIDDEN] * site->dim[TN_DIM_INTER] <= SMALL_EXPERT;
    product_kernels_init(&s->own, dtype_of(site), small ? flags & ~PAIRS : flags);
    product_kernels_init(&s->wide, dtype_of(site), flags & ~PAIRS);
    product_kernels_init(&s->f32, TN_F32, flags);
    gate_kernels_init(&s->gates, flags);
    moe_layer *layer = &s->layer;
    *layer = (moe_layer){.kernels = &s->own,
                         .wide = &s->wide,
                         .gates = &s->gates,
                         .act = (tn_act)site->meaning[TN_AXIS_ACT],
                         .hidden = site->dim[TN_DIM_HIDDEN],
                         .inter = site->dim[TN_DIM_INTER],
                         .experts = site->dim[TN_DIM_EXPERTS],
                         .top_k = site->dim[TN_DIM_TOP_K],
                         .layout = (tn_layout)site->meaning[TN_AXIS_LAYOUT],
                         .gate = param(site, TN_ROLE_GATE),
                         .up = param(site, TN_ROLE_UP),
                         .down = param(site, TN_ROLE_DOWN),
                         .gate_up = param(site, TN_ROLE_GATE_UP)};
    if (site->op == TN_OP_MOE_EXPERTS)
        return;
    open_router(s, site);
    if (site->op == TN_OP_MOE_BLOCK && (site->features & TN_HAS_SHARED_EXPERT)) {
        layer->shared_inter = site->dim[TN_DIM_SHARED_INTER];
        layer->shared_gate = param(site, TN_ROLE_SHARED_GATE);
        layer->shared_up = param(site, TN_ROLE_SHARED_UP);
        layer->shared_down = param(site, TN_ROLE_SHARED_DOWN);
        if (site->features & TN_HAS_SHARED_GATE)
            layer->shared_scale = param(site, TN_ROLE_SHARED_EXPERT_GATE);
    }
}

product_mlp moe_expert(const moe_layer *layer, int64_t e)
{
    const tn_tensor *both = layer->gate_up, *down = layer->down;
    int64_t inter = layer->inter, size = (int64_t)tn_dtype_size(layer->kernels->dtype);
    product_mlp mlp = {.inter = inter};
    if (e == layer->experts) {
        mlp.inter = layer->shared_inter;
        mlp.gate = (product_matrix){layer->shared_gate->data, layer->shared_gate->stride[0], 1, NULL};
        mlp.up = (product_matrix){layer->shared_up->data, layer->shared_up->stride[0], 1, NULL};
        mlp.down = (product_matrix){layer->shared_down->data, layer->shared_down->stride[0], 1, NULL};
    } else if (layer->layout == TN_LAYOUT_EXPERT_LIST) {
        mlp.gate = (product_matrix){layer->gate[e].data, layer->gate[e].stride[0], 1, NULL};
        mlp.up = (product_matrix){layer->up[e].data, layer->up[e].stride[0], 1, NULL};
        mlp.down = (product_matrix){down[e].data, down[e].stride[0], 1, NULL};
    } else {
        const char *first = (const char *)both->data + e * both->stride[0] * size;
        const char *last = (const char *)down->data + e * down->stride[0] * size;
        bool io = layer->layout == TN_LAYOUT_STACKED_IO; /* rows of products are columns of the tensors */
        int64_t row = io ? 1 : both->stride[1], k = io ? both->stride[1] : 1;
        mlp.gate = (product_matrix){first, row, k, NULL};
        mlp.up = (product_matrix){first + inter * row * size, row, k, NULL};
        mlp.down = (product_matrix){last, io ? 1 : down->stride[1], io ? down->stride[1] : 1, NULL};
    }
    return mlp;
}

/* ---- checks ------------------------------------------------------------------------------------------------- */

static tn_status declined(const tn_site *site, const char *name, const char *format, int64_t has, int64_t takes,
                          tn_error *err)
{
    char text[160];
    snprintf(text, sizeof text, format, (long long)has, (long long)takes);
    return tn_fail(err, TN_DECLINED, site->path, "%s: %s", name, text);
}

static tn_status check_dtype(const tn_site *site, const char *name, const tn_tensor *t, bool or_f32, tn_error *err)
{
    if (t->dtype == dtype_of(site) || (or_f32 && t->dtype == TN_F32))
        return TN_OK;
    return tn_fail(err, TN_DECLINED, site->path, "%s is %s, activations are %s", name, tn_dtype_name(t->dtype),
                   tn_dtype_name(dtype_of(site)));
}

/* A parameter of count tensors with this shape (three dims, or two with depth 0), dense along the last one. */
static tn_status check(const tn_site *site, tn_role role, const char *name, int64_t count, int64_t depth, int64_t rows,
                       int64_t columns, tn_error *err)
{
    const tn_param *p = &site->param[role];
    int32_t ndim = depth ? 3 : 2;
    if (p->count != count)
        return declined(site, name, "%lld tensors, kernel takes %lld", p->count, count, err);
    for (int64_t i = 0; i < count; i++) {
        const tn_tensor *t = &p->tensors[i];
        tn_status s = check_dtype(site, name, t, role == TN_ROLE_ROUTER, err);
        if (s)
            return s;
        if (t->ndim != ndim || t->shape[ndim - 1] != columns || t->shape[ndim - 2] != rows ||
            (depth && t->shape[0] != depth) || (t->stride[ndim - 1] != 1 && columns > 1))
            return declined(site, name, "a tensor is not a dense matrix [%lld, %lld]", rows, columns, err);
    }
    return TN_OK;
}

static tn_status check_experts(const tn_site *site, tn_error *err)
{
    int64_t hidden = site->dim[TN_DIM_HIDDEN], inter = site->dim[TN_DIM_INTER], experts = site->dim[TN_DIM_EXPERTS];
    int32_t layout = site->meaning[TN_AXIS_LAYOUT];
    tn_status s = TN_OK;
    if (inter < 1)
        return declined(site, "inter", "site has %lld, kernel takes at least %lld", inter, 1, err);
    if (layout == TN_LAYOUT_EXPERT_LIST) {
        s = check(site, TN_ROLE_GATE, "gate", experts, 0, inter, hidden, err);
        if (!s)
            s = check(site, TN_ROLE_UP, "up", experts, 0, inter, hidden, err);
        return s ? s : check(site, TN_ROLE_DOWN, "down", experts, 0, hidden, inter, err);
    }
    bool io = layout == TN_LAYOUT_STACKED_IO;
    s = check(site, TN_ROLE_GATE_UP, "gate_up", 1, experts, io ? hidden : 2 * inter, io ? 2 * inter : hidden, err);
    return s ? s : check(site, TN_ROLE_DOWN, "down", 1, experts, io ? inter : hidden, io ? hidden : inter, err);
}

/* One number per expert, of any float type. */
static tn_status check_vector(const tn_site *site, tn_role role, const char *name, tn_error *err)
{
    const tn_param *p = &site->param[role];
    if (p->count != 1)
        return declined(site, name, "%lld tensors, kernel takes %lld", p->count, 1, err);
    const tn_tensor *t = p->tensors;
    if (t->dtype != TN_F32 && t->dtype != TN_BF16 && t->dtype != TN_F16)
        return tn_fail(err, TN_DECLINED, site->path, "%s is %s, kernel takes f32, bf16 and f16", name,
                       tn_dtype_name(t->dtype));
    int64_t experts = site->dim[TN_DIM_EXPERTS], n = t->ndim ? t->shape[t->ndim - 1] : 0;
    if (n != experts || tn_tensor_count(t) != n || (t->stride[t->ndim - 1] != 1 && n > 1))
        return declined(site, name, "%lld numbers, there are %lld experts", tn_tensor_count(t), experts, err);
    return TN_OK;
}

static tn_status check_groups(const tn_site *site, tn_error *err)
{
    int64_t experts = site->dim[TN_DIM_EXPERTS], groups = site->dim[TN_DIM_GROUPS], top = site->dim[TN_DIM_TOP_GROUPS];
    if (groups < 1 || experts % groups)
        return declined(site, "groups", "%lld do not divide %lld experts", groups, experts, err);
    if (top < 1 || top > groups)
        return declined(site, "top_groups", "site has %lld of %lld groups", top, groups, err);
    if (site->dim[TN_DIM_TOP_K] > top * (experts / groups))
        return declined(site, "top_k", "%lld, of %lld experts in the best groups", site->dim[TN_DIM_TOP_K],
                        top * (experts / groups), err);
    return TN_OK;
}

static tn_status check_router(const tn_site *site, tn_error *err)
{
    tn_status s = check(site, TN_ROLE_ROUTER, "router", 1, 0, site->dim[TN_DIM_EXPERTS], site->dim[TN_DIM_HIDDEN], err);
    if (!s && site->param[TN_ROLE_ROUTER_BIAS].count)
        s = check_vector(site, TN_ROLE_ROUTER_BIAS, "router bias", err);
    if (!s && (site->features & TN_HAS_CORRECTION_BIAS))
        s = check_vector(site, TN_ROLE_CORRECTION_BIAS, "correction bias", err);
    return !s && (site->features & TN_HAS_GROUPS) ? check_groups(site, err) : s;
}

static tn_status check_shared(const tn_site *site, tn_error *err)
{
    int64_t hidden = site->dim[TN_DIM_HIDDEN], shared = site->dim[TN_DIM_SHARED_INTER];
    if (shared < 1)
        return declined(site, "shared_inter", "site has %lld, kernel takes at least %lld", shared, 1, err);
    tn_status s = check(site, TN_ROLE_SHARED_GATE, "shared gate", 1, 0, shared, hidden, err);
    if (!s)
        s = check(site, TN_ROLE_SHARED_UP, "shared up", 1, 0, shared, hidden, err);
    if (!s)
        s = check(site, TN_ROLE_SHARED_DOWN, "shared down", 1, 0, hidden, shared, err);
    if (!s && (site->features & TN_HAS_SHARED_GATE))
        s = check(site, TN_ROLE_SHARED_EXPERT_GATE, "shared expert gate", 1, 0, 1, hidden, err);
    return s;
}

tn_status site_check(const tn_site *site, tn_error *err)
{
    int64_t hidden = site->dim[TN_DIM_HIDDEN], experts = site->dim[TN_DIM_EXPERTS], k = site->dim[TN_DIM_TOP_K];
    if (hidden < 1)
        return declined(site, "hidden", "site has %lld, kernel takes at least %lld", hidden, 1, err);
    if (k < 1 || k > experts)
        return declined(site, "top_k", "%lld of %lld experts", k, experts, err);
    tn_status s = TN_OK;
    if (site->op != TN_OP_MOE_ROUTE)
        s = check_experts(site, err);
    if (!s && site->op != TN_OP_MOE_EXPERTS)
        s = check_router(site, err);
    if (!s && site->op == TN_OP_MOE_BLOCK && (site->features & TN_HAS_SHARED_EXPERT))
        s = check_shared(site, err);
    return s;
}

/* ---- GROUPED_MATMUL ------------------------------------------------------------------------------------------- */

static bool is_list(tn_layout layout)
{
    return layout == TN_LAYOUT_EXPERT_LIST || layout == TN_LAYOUT_LIST_IO;
}

gmm_layer site_gmm(const product_kernels *kernels, const tn_site *site)
{
    const tn_param *p = &site->param[TN_ROLE_WEIGHT];
    tn_layout layout = (tn_layout)site->meaning[TN_AXIS_LAYOUT];
    bool list = is_list(layout);
    gmm_layer layer = {.kernels = kernels, .weights = p->tensors, .list = list};
    layer.io = layout == TN_LAYOUT_STACKED_IO || layout == TN_LAYOUT_LIST_IO;
    const int64_t *matrix = p->tensors->shape + !list;
    layer.groups = list ? p->count : p->tensors->shape[0];
    layer.in = matrix[layer.io ? 0 : 1];
    layer.out = matrix[layer.io ? 1 : 0];
    return layer;
}

/* Dimensions that the site does not name are those of its weights. */
tn_status site_check_gmm(const tn_site *site, tn_error *err)
{
    const tn_param *p = &site->param[TN_ROLE_WEIGHT];
    bool list = is_list((tn_layout)site->meaning[TN_AXIS_LAYOUT]);
    if (p->count < 1 || (!list && p->count != 1))
        return declined(site, "weight", "%lld tensors, kernel takes %lld", p->count, 1, err);
    const tn_tensor *first = p->tensors;
    if (first->ndim != (list ? 2 : 3))
        return declined(site, "weight", "a tensor has %lld dimensions, kernel takes %lld", first->ndim, list ? 2 : 3,
                        err);
    product_kernels none = {.dtype = dtype_of(site)};
    gmm_layer layer = site_gmm(&none, site);
    const int64_t has[] = {site->dim[TN_DIM_EXPERTS], site->dim[TN_DIM_HIDDEN], site->dim[TN_DIM_OUT]};
    const int64_t is[] = {layer.groups, layer.in, layer.out};
    static const char *const names[] = {"experts", "hidden", "out"};
    for (int i = 0; i < 3; i++)
        if (has[i] && has[i] != is[i])
            return declined(site, names[i], "site has %lld, its weight %lld", has[i], is[i], err);
    if (layer.in < 1 || layer.out < 1 || layer.groups < 1)
        return declined(site, "weight", "a matrix is [%lld, %lld]; kernel takes matrices with elements", layer.out,
                        layer.in, err);
    return check(site, TN_ROLE_WEIGHT, "weight", p->count, list ? 0 : layer.groups, first->shape[list ? 0 : 1],
                 first->shape[list ? 1 : 2], err);
}
