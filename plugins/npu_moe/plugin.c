/* npu_fused_moe on the CPU: which experts and blocks it takes, and their weights as moe.c wants them. */
#include "moe.h"

product_mlp moe_expert(const moe_layer *layer, int64_t e)
{
    const tn_tensor *both = layer->gate_up, *down = layer->down;
    int64_t inter = layer->inter, size = (int64_t)tn_dtype_size(layer->dtype);
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

static moe_layer layer_of(const tn_site *site)
{
    moe_layer layer = {.dtype = (tn_dtype)site->meaning[TN_AXIS_DTYPE],
                       .act = (tn_act)site->meaning[TN_AXIS_ACT],
                       .hidden = site->dim[TN_DIM_HIDDEN],
                       .inter = site->dim[TN_DIM_INTER],
                       .experts = site->dim[TN_DIM_EXPERTS],
                       .top_k = site->dim[TN_DIM_TOP_K],
                       .layout = (tn_layout)site->meaning[TN_AXIS_LAYOUT],
                       .gate = site->param[TN_ROLE_GATE].tensors,
                       .up = site->param[TN_ROLE_UP].tensors,
                       .down = site->param[TN_ROLE_DOWN].tensors,
                       .gate_up = site->param[TN_ROLE_GATE_UP].tensors};
    if (site->op == TN_OP_MOE_EXPERTS)
        return layer;
    layer.router = site->param[TN_ROLE_ROUTER].tensors;
    layer.renormalise = site->features & TN_HAS_RENORM;
    layer.f32_weights = site->features & TN_HAS_F32_ROUTING;
    if (site->features & TN_HAS_SHARED_EXPERT) {
        layer.shared_inter = site->dim[TN_DIM_SHARED_INTER];
        layer.shared_gate = site->param[TN_ROLE_SHARED_GATE].tensors;
        layer.shared_up = site->param[TN_ROLE_SHARED_UP].tensors;
        layer.shared_down = site->param[TN_ROLE_SHARED_DOWN].tensors;
        if (site->features & TN_HAS_SHARED_GATE)
            layer.shared_scale = site->param[TN_ROLE_SHARED_EXPERT_GATE].tensors;
    }
    return layer;
}

/* A parameter of count tensors with this shape (three dims, or two with depth 0), dense along the last one. */
static tn_status check(const tn_site *site, tn_role role, const char *name, int64_t count, int64_t depth, int64_t rows,
                       int64_t columns, tn_error *err)
{
    const tn_param *p = &site->param[role];
    int32_t ndim = depth ? 3 : 2, dtype = site->meaning[TN_AXIS_DTYPE];
    if (p->count != count)
        return tn_fail(err, TN_DECLINED, site->path, "%s: %lld tensors, kernel takes %lld", name, (long long)p->count,
                       (long long)count);
    for (int64_t i = 0; i < count; i++) {
        const tn_tensor *t = &p->tensors[i];
        if ((int32_t)t->dtype != dtype)
            return tn_fail(err, TN_DECLINED, site->path, "%s is %s, activations are %s", name, tn_dtype_name(t->dtype),
                           tn_dtype_name((tn_dtype)dtype));
        if (t->ndim != ndim || t->shape[ndim - 1] != columns || t->shape[ndim - 2] != rows ||
            (depth && t->shape[0] != depth) || t->stride[ndim - 1] != 1)
            return tn_fail(err, TN_DECLINED, site->path, "%s: a tensor is not a dense matrix [%lld, %lld]", name,
                           (long long)rows, (long long)columns);
    }
    return TN_OK;
}

static tn_status check_experts(const tn_site *site, tn_error *err)
{
    int64_t hidden = site->dim[TN_DIM_HIDDEN], inter = site->dim[TN_DIM_INTER], experts = site->dim[TN_DIM_EXPERTS];
    int32_t layout = site->meaning[TN_AXIS_LAYOUT];
    tn_status s = TN_OK;
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

static tn_status check_block(const tn_site *site, tn_error *err)
{
    int64_t hidden = site->dim[TN_DIM_HIDDEN], shared = site->dim[TN_DIM_SHARED_INTER];
    tn_status s = check(site, TN_ROLE_ROUTER, "router", 1, 0, site->dim[TN_DIM_EXPERTS], hidden, err);
    if (!s && site->param[TN_ROLE_ROUTER_BIAS].count)
        s = tn_fail(err, TN_DECLINED, site->path, "the router has a bias; kernel takes routers without");
    if (s || !(site->features & TN_HAS_SHARED_EXPERT))
        return s;
    if (shared < 1)
        return tn_fail(err, TN_DECLINED, site->path, "shared_inter: site has %lld, kernel takes 1 and more",
                       (long long)shared);
    s = check(site, TN_ROLE_SHARED_GATE, "shared gate", 1, 0, shared, hidden, err);
    if (!s)
        s = check(site, TN_ROLE_SHARED_UP, "shared up", 1, 0, shared, hidden, err);
    if (!s)
        s = check(site, TN_ROLE_SHARED_DOWN, "shared down", 1, 0, hidden, shared, err);
    if (!s && (site->features & TN_HAS_SHARED_GATE))
        s = check(site, TN_ROLE_SHARED_EXPERT_GATE, "shared expert gate", 1, 0, 1, hidden, err);
    return s;
}

/* plan->user[0]: the instruction sets that scratch was sized for. */
static tn_status moe_plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    if (site->dim[TN_DIM_TOP_K] > site->dim[TN_DIM_EXPERTS])
        return tn_fail(err, TN_DECLINED, site->path, "top_k %lld of %lld experts", (long long)site->dim[TN_DIM_TOP_K],
                       (long long)site->dim[TN_DIM_EXPERTS]);
    tn_status s = check_experts(site, err);
    if (!s && site->op == TN_OP_MOE_BLOCK)
        s = check_block(site, err);
    if (s)
        return s;
    plan->user[0] = tn_cpu_flags();
    product_kernels kernels;
    product_kernels_init(&kernels, (tn_dtype)site->meaning[TN_AXIS_DTYPE], plan->user[0]);
    moe_layer layer = layer_of(site);
    plan->scratch_bytes = moe_scratch_size(&kernels, &layer, plan->max_tokens, plan->threads);
    return TN_OK;
}

static tn_status moe_call(const tn_call *call, tn_error *err)
{
    product_kernels kernels;
    product_kernels_init(&kernels, (tn_dtype)call->site->meaning[TN_AXIS_DTYPE], call->plan->user[0]);
    moe_layer layer = layer_of(call->site);
    bool routed = call->op == TN_OP_MOE_EXPERTS;
    if (routed)
        layer.f32_weights = call->in[1].dtype == TN_F32;
    return moe_forward(&kernels, &layer, call->plan->max_tokens, call->plan->threads, &call->in[0],
                       routed ? &call->in[1] : NULL, routed ? &call->in[2] : NULL, &call->out[0], call->scratch,
                       call->site->path, err);
}

static const tn_dim_rule dims[] = {
    {TN_DIM_HIDDEN, 1, 0, 1}, {TN_DIM_INTER, 1, 0, 1}, {TN_DIM_EXPERTS, 1, 65536, 1}, {TN_DIM_TOP_K, 1, 256, 1}};

#define TAKES_DTYPES (TN_TAKES(TN_F32) | TN_TAKES(TN_BF16) | TN_TAKES(TN_F16))
#define TAKES_LAYOUTS                                                                                                  \
    (TN_TAKES(TN_LAYOUT_EXPERT_LIST) | TN_TAKES(TN_LAYOUT_STACKED_OI) | TN_TAKES(TN_LAYOUT_STACKED_IO))

static const tn_impl impls[] = {
    {.size = sizeof(tn_impl),
     .op = TN_OP_MOE_BLOCK,
     .match = {.size = sizeof(tn_match),
               .takes = {[TN_AXIS_DTYPE] = TAKES_DTYPES,
                         [TN_AXIS_ACT] = TN_TAKES(TN_ACT_SILU),
                         [TN_AXIS_SCORE] = TN_TAKES(TN_SCORE_SOFTMAX),
                         [TN_AXIS_LAYOUT] = TAKES_LAYOUTS},
               .features = TN_HAS_RENORM | TN_HAS_SHARED_EXPERT | TN_HAS_SHARED_GATE | TN_HAS_F32_ROUTING,
               .dims = dims,
               .dim_count = sizeof(dims) / sizeof(dims[0])},
     .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 8, .ulps_f16 = 8},
     .plan = moe_plan,
     .forward = moe_call},
    {.size = sizeof(tn_impl),
     .op = TN_OP_MOE_EXPERTS,
     .match =
         {.size = sizeof(tn_match),
          .takes =
              {[TN_AXIS_DTYPE] = TAKES_DTYPES, [TN_AXIS_ACT] = TN_TAKES(TN_ACT_SILU), [TN_AXIS_LAYOUT] = TAKES_LAYOUTS},
          .features = TN_HAS_F32_ROUTING,
          .dims = dims,
          .dim_count = sizeof(dims) / sizeof(dims[0])},
     .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 8, .ulps_f16 = 8},
     .plan = moe_plan,
     .forward = moe_call},
};

static const tn_kernel kernels[] = {{
    .size = sizeof(tn_kernel),
    .id = "npu_fused_moe",
    .version = "1.0.0",
    .summary = "mixture of experts: tokens grouped by expert, all experts in one parallel section",
    .device = TN_DEVICE_CPU,
    .impls = impls,
    .impl_count = sizeof(impls) / sizeof(impls[0]),
}};

TN_PLUGIN("npu_moe", "1.0.0", .kernels = kernels, .kernel_count = 1);
