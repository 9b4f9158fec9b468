/* cpu_linear: which linear layers it takes, and their weights as the products want them. */
#define TN_ABI_NEEDED 3 /* TN_SAME_BITS */
#include "linear.h"

static const tn_tensor *tensor_of(const tn_site *site, tn_role role)
{
    return site->param[role].count == 1 ? site->param[role].tensors : NULL;
}

/* plan->user[0]: the instruction sets that scratch was sized for. */
static linear_layer layer_of(const tn_site *site, const tn_plan *plan)
{
    const tn_tensor *weight = tensor_of(site, TN_ROLE_WEIGHT), *bias = tensor_of(site, TN_ROLE_BIAS);
    linear_layer layer = {.weight = {weight->data, weight->stride[0], 1, bias ? bias->data : NULL},
                          .in = site->dim[TN_DIM_HIDDEN],
                          .out = site->dim[TN_DIM_OUT],
                          .max_tokens = plan->max_tokens,
                          .threads = plan->threads};
    product_kernels_init(&layer.kernels, (tn_dtype)site->meaning[TN_AXIS_DTYPE], plan->user[0]);
    return layer;
}

static tn_status linear_plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)err;
    plan->user[0] = tn_cpu_flags();
    linear_layer layer = layer_of(site, plan);
    plan->scratch_bytes = linear_scratch_size(&layer);
    plan->backward_scratch_bytes = linear_backward_scratch_size(&layer);
    return TN_OK;
}

static tn_status linear_call(const tn_call *call, tn_error *err)
{
    (void)err;
    linear_layer layer = layer_of(call->site, call->plan);
    linear_forward(&layer, &call->in[0], &call->out[0], call->scratch);
    return TN_OK;
}

static const tn_tensor *gradient_of(const tn_grads *grads, tn_role role)
{
    return grads->param[role].count == 1 ? grads->param[role].tensors : NULL;
}

static tn_status linear_gradients_call(const tn_call *call, tn_error *err)
{
    const tn_grads *grads = call->grads;
    linear_layer layer = layer_of(call->site, call->plan);
    const linear_gradients to = {.dy = &grads->out[0],
                                 .dx = &grads->in[0],
                                 .weight = gradient_of(grads, TN_ROLE_WEIGHT),
                                 .bias = gradient_of(grads, TN_ROLE_BIAS)};
    return linear_backward(&layer, &call->in[0], &to, call->scratch, call->site->path, err);
}

enum { DTYPES = TN_TAKES(TN_F32) | TN_TAKES(TN_BF16) | TN_TAKES(TN_F16) };

/* Errors are told by a row's largest element: of fewer all may have cancelled. */
static const tn_dim_rule dims[] = {{.dim = TN_DIM_OUT, .min = 4}};

/* README.md derives the tolerance. */
static const tn_impl impls[] = {{
    .size = sizeof(tn_impl),
    .op = TN_OP_LINEAR,
    .match = {.size = sizeof(tn_match),
              .takes = {[TN_AXIS_DTYPE] = DTYPES},
              .features = TN_HAS_BIAS,
              .dims = dims,
              .dim_count = 1},
    .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 3, .ulps_f16 = 3},
    .plan = linear_plan,
    .forward = linear_call,
    .traits = TN_SAME_BITS,
    .backward = linear_gradients_call,
    .gradient_tolerance = {.ulps_f32 = 256, .ulps_bf16 = 3, .ulps_f16 = 3},
}};

static const tn_kernel kernels[] = {{
    .size = sizeof(tn_kernel),
    .id = "cpu_linear",
    .version = "1.0.0",
    .summary = "linear layers on weights as they lie, from one token to thousands",
    .device = "cpu",
    .impls = impls,
    .impl_count = sizeof(impls) / sizeof(impls[0]),
}};

TN_PLUGIN("cpu_linear", "1.0.0", .kernels = kernels, .kernel_count = 1);
