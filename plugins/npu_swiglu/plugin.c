/* npu_fused_swiglu: which MLPs it takes on the CPU, their weights as the products want them, and its list of devices.
 */
#define TN_ABI_NEEDED 3 /* TN_SAME_BITS */
#include "swiglu.h"

#include <math.h>

static const tn_tensor *tensor_of(const tn_site *site, tn_role role)
{
    return site->param[role].count == 1 ? site->param[role].tensors : NULL;
}

static product_matrix rows_of(const tn_tensor *weight, const tn_tensor *bias, int64_t first)
{
    int64_t size = (int64_t)tn_dtype_size(weight->dtype);
    const char *data = (const char *)weight->data + first * weight->stride[0] * size;
    return (product_matrix){data, weight->stride[0], 1, bias ? (const char *)bias->data + first * size : NULL};
}

static product_mlp mlp_of(const tn_site *site)
{
    int64_t inter = site->dim[TN_DIM_INTER];
    product_mlp mlp = {.inter = inter};
    if (site->meaning[TN_AXIS_LAYOUT] == TN_LAYOUT_SPLIT) {
        mlp.gate = rows_of(tensor_of(site, TN_ROLE_GATE), tensor_of(site, TN_ROLE_GATE_BIAS), 0);
        mlp.up = rows_of(tensor_of(site, TN_ROLE_UP), tensor_of(site, TN_ROLE_UP_BIAS), 0);
    } else {
        bool up_first = site->meaning[TN_AXIS_LAYOUT] == TN_LAYOUT_UP_GATE;
        const tn_tensor *both = tensor_of(site, TN_ROLE_GATE_UP), *bias = tensor_of(site, TN_ROLE_GATE_UP_BIAS);
        mlp.gate = rows_of(both, bias, up_first ? inter : 0);
        mlp.up = rows_of(both, bias, up_first ? 0 : inter);
    }
    mlp.down = rows_of(tensor_of(site, TN_ROLE_DOWN), tensor_of(site, TN_ROLE_DOWN_BIAS), 0);
    return mlp;
}

/* plan->user[0]: the instruction sets that scratch was sized for. */
static swiglu_layer layer_of(const tn_site *site, const tn_plan *plan)
{
    swiglu_layer layer = {.mlp = mlp_of(site),
                          .act = (tn_act)site->meaning[TN_AXIS_ACT],
                          .up_first = site->meaning[TN_AXIS_LAYOUT] == TN_LAYOUT_UP_GATE,
                          .sparse = site->features & TN_HAS_SPARSITY,
                          .quantile = (float)site->num[TN_NUM_SPARSITY],
                          .hidden = site->dim[TN_DIM_HIDDEN],
                          .max_tokens = plan->max_tokens,
                          .threads = plan->threads};
    swiglu_layer_init(&layer, (tn_dtype)site->meaning[TN_AXIS_DTYPE], plan->user[0]);
    return layer;
}

static tn_status swiglu_plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)err;
    plan->user[0] = tn_cpu_flags();
    swiglu_layer layer = layer_of(site, plan);
    plan->scratch_bytes = swiglu_scratch_size(&layer);
    plan->backward_scratch_bytes = swiglu_backward_scratch_size(&layer);
    return TN_OK;
}

static tn_status swiglu_call(const tn_call *call, tn_error *err)
{
    (void)err;
    swiglu_layer layer = layer_of(call->site, call->plan);
    swiglu_forward(&layer, &call->in[0], &call->out[0], call->scratch);
    return TN_OK;
}

static const tn_tensor *gradient_of(const tn_grads *grads, tn_role role)
{
    return grads->param[role].count == 1 ? grads->param[role].tensors : NULL;
}

static tn_status swiglu_gradients_call(const tn_call *call, tn_error *err)
{
    (void)err;
    const tn_grads *grads = call->grads;
    swiglu_layer layer = layer_of(call->site, call->plan);
    const swiglu_gradients to = {.dy = &grads->out[0],
                                 .dx = &grads->in[0],
                                 .gate = gradient_of(grads, TN_ROLE_GATE),
                                 .up = gradient_of(grads, TN_ROLE_UP),
                                 .gate_up = gradient_of(grads, TN_ROLE_GATE_UP),
                                 .down = gradient_of(grads, TN_ROLE_DOWN),
                                 .gate_bias = gradient_of(grads, TN_ROLE_GATE_BIAS),
                                 .up_bias = gradient_of(grads, TN_ROLE_UP_BIAS),
                                 .gate_up_bias = gradient_of(grads, TN_ROLE_GATE_UP_BIAS),
                                 .down_bias = gradient_of(grads, TN_ROLE_DOWN_BIAS)};
    swiglu_backward(&layer, &call->in[0], &to, call->scratch);
    return TN_OK;
}

enum {
    DTYPES = TN_TAKES(TN_F32) | TN_TAKES(TN_BF16) | TN_TAKES(TN_F16),
    ACTS = TN_TAKES(TN_ACT_SILU) | TN_TAKES(TN_ACT_GELU_TANH) | TN_TAKES(TN_ACT_GELU),
    LAYOUTS = TN_TAKES(TN_LAYOUT_SPLIT) | TN_TAKES(TN_LAYOUT_GATE_UP) | TN_TAKES(TN_LAYOUT_UP_GATE),
};

/* Sparse layers have an entry of their own because they have tolerances of their own: README.md derives both. */
#define IMPL(has, wide, narrow, gradient)                                                                              \
    {                                                                                                                  \
        .size = sizeof(tn_impl), .op = TN_OP_MLP,                                                                      \
        .match = {.size = sizeof(tn_match),                                                                            \
                  .takes = {[TN_AXIS_DTYPE] = DTYPES, [TN_AXIS_ACT] = ACTS, [TN_AXIS_LAYOUT] = LAYOUTS},               \
                  .features = has},                                                                                    \
        .tolerance = {.ulps_f32 = wide, .ulps_bf16 = narrow, .ulps_f16 = narrow}, .plan = swiglu_plan,                 \
        .forward = swiglu_call, .traits = TN_SAME_BITS, .backward = swiglu_gradients_call, .gradient_tolerance = {     \
            .ulps_f32 = wide,                                                                                          \
            .ulps_bf16 = gradient,                                                                                     \
            .ulps_f16 = gradient                                                                                       \
        }                                                                                                              \
    }
static const tn_impl impls[] = {
    IMPL(TN_HAS_BIAS, 256, 8, 16),
    IMPL(TN_HAS_BIAS | TN_HAS_SPARSITY, 1024, 32, 64),
};

static const tn_kernel kernels[] = {
    {
        .size = sizeof(tn_kernel),
        .id = "npu_fused_swiglu",
        .version = "1.0.0",
        .summary = "gated MLP in one pass: gate and up together, SiLU or GELU on their sums",
        .device = "cpu",
        .impls = impls,
        .impl_count = sizeof(impls) / sizeof(impls[0]),
    },
    {
        .size = sizeof(tn_kernel),
        .id = "npu_fused_swiglu",
        .version = "1.0.0",
        .summary = "gated MLP by aclnnMatmul and aclnnSwiGlu",
        .device = "npu",
        .impls = swiglu_ascend_impls,
        .impl_count = SWIGLU_ASCEND_IMPLS,
    },
};

TN_PLUGIN("npu_swiglu", "1.0.0", .kernels = kernels, .kernel_count = sizeof(kernels) / sizeof(kernels[0]));
