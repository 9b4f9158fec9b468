/* Reading sites. */
#include "site.h"

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
                  .weight = site->param[TN_ROLE_ROUTER].tensors,
                  .bias = param(site, TN_ROLE_ROUTER_BIAS),
                  .renormalise = site->features & TN_HAS_RENORM,
                  .f32_logits = site->features & TN_HAS_F32_ROUTER,
                  .scale = scaled ? (float)site->num[TN_NUM_SCALE] : 1.0f};
    float eps = (float)site->num[TN_NUM_EPS];
    bool adds = r->score == TN_SCORE_SIGMOID;
    r->added = !adds ? 0.0f : eps > 0 ? eps : 1e-20f;
    r->least = adds ? 0.0f : eps;
    if (site->features & TN_HAS_EXPERT_SCALE)
        r->factors = param(site, TN_ROLE_EXPERT_SCALE);
    if (site->features & TN_HAS_CORRECTION_BIAS)
        r->correction = param(site, TN_ROLE_CORRECTION_BIAS);
    if (r->weight->dtype != dtype_of(site))
        r->products = &s->f32;
}

void site_open(moe_site *s, const tn_site *site, uint64_t flags)
{
    bool small = site->op != TN_OP_MOE_ROUTE && site->dim[TN_DIM_HIDDEN] * site->dim[TN_DIM_INTER] <= SMALL_EXPERT;
    product_kernels_init(&s->own, dtype_of(site), small ? flags & ~PAIRS : flags);
    product_kernels_init(&s->f32, TN_F32, flags);
    gate_kernels_init(&s->gates, flags);
    moe_layer *layer = &s->layer;
    *layer = (moe_layer){.kernels = &s->own,
                         .gates = &s->gates,
                         .act = (tn_act)site->meaning[TN_AXIS_ACT],
                         .hidden = site->dim[TN_DIM_HIDDEN],
                         .inter = site->dim[TN_DIM_INTER],
                         .experts = site->dim[TN_DIM_EXPERTS],
                         .top_k = site->dim[TN_DIM_TOP_K],
                         .scaled = site->features & TN_HAS_INPUT_SCALE,
                         .layout = (tn_layout)site->meaning[TN_AXIS_LAYOUT],
                         .gate = param(site, TN_ROLE_GATE),
                         .up = param(site, TN_ROLE_UP),
                         .down = param(site, TN_ROLE_DOWN),
                         .gate_up = param(site, TN_ROLE_GATE_UP),
                         .limit = (float)site->num[TN_NUM_LIMIT],
                         .alpha = (float)site->num[TN_NUM_ALPHA]};
    if (site->features & TN_HAS_BIAS) {
        layer->gate_up_bias = param(site, TN_ROLE_GATE_UP_BIAS);
        layer->down_bias = param(site, TN_ROLE_DOWN_BIAS);
    }
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
        bool io = layer->layout != TN_LAYOUT_STACKED_OI; /* rows of products are columns of the tensors */
        int64_t row = io ? 1 : both->stride[1], k = io ? both->stride[1] : 1;
        mlp.gate = (product_matrix){first, row, k, NULL};
        mlp.up = (product_matrix){first + inter * row * size, row, k, NULL};
        mlp.down = (product_matrix){last, io ? 1 : down->stride[1], io ? down->stride[1] : 1, NULL};
    }
    if (e < layer->experts && layer->layout == TN_LAYOUT_PAIRS_IO) /* gate has the rows of both */
        mlp.up = (product_matrix){NULL, 0, 0, NULL};
    if (e < layer->experts && layer->gate_up_bias) {
        const tn_tensor *bias = layer->gate_up_bias;
        mlp.gate.bias = (const char *)bias->data + e * bias->stride[0] * size;
        mlp.up.bias = (const char *)mlp.gate.bias + inter * size;
        mlp.down.bias = (const char *)layer->down_bias->data + e * layer->down_bias->stride[0] * size;
    }
    return mlp;
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
