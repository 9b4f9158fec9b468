/* cpu_attention on the CPU: which attention it takes. */
#define TN_ABI_NEEDED 3 /* TN_SAME_BITS */
#include "attention_grad.h"

#include <math.h>

static tn_status attention_plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    const double scale = site->num[TN_NUM_SCALE], cap = site->num[TN_NUM_SOFTCAP];
    if (!(scale > 0) || !isfinite(scale))
        return tn_fail(err, TN_DECLINED, site->path, "scale: %g, which must be a positive number", scale);
    if (site->features & TN_HAS_SOFTCAP && !(cap > 0 && isfinite(cap)))
        return tn_fail(err, TN_DECLINED, site->path, "softcap: %g, which must be a positive number", cap);
    if (site->dim[TN_DIM_Q_HEADS] % site->dim[TN_DIM_KV_HEADS])
        return tn_fail(err, TN_DECLINED, site->path, "q_heads: %lld, which is no multiple of %lld kv_heads",
                       (long long)site->dim[TN_DIM_Q_HEADS], (long long)site->dim[TN_DIM_KV_HEADS]);
    plan->user[0] = tn_cpu_flags();
    attention_layer layer = attention_layer_of(site, plan);
    plan->scratch_bytes = attention_scratch(&layer);
    plan->backward_scratch_bytes = attention_backward_scratch(&layer);
    return TN_OK;
}

static tn_status attention_call(const tn_call *call, tn_error *err)
{
    (void)err;
    attention_layer layer = attention_layer_of(call->site, call->plan);
    attention_forward(&layer, call);
    return TN_OK;
}

static tn_status attention_gradients_call(const tn_call *call, tn_error *err)
{
    (void)err;
    attention_layer layer = attention_layer_of(call->site, call->plan);
    attention_backward(&layer, call);
    return TN_OK;
}

static const tn_dim_rule dims[] = {{.dim = TN_DIM_HEAD, .min = 1, .max = ATTENTION_LONGEST},
                                   {.dim = TN_DIM_HEAD_V, .max = ATTENTION_LONGEST},
                                   {.dim = TN_DIM_Q_HEADS, .min = 1},
                                   {.dim = TN_DIM_KV_HEADS, .min = 1}};

enum {
    DTYPES = TN_TAKES(TN_F32) | TN_TAKES(TN_BF16) | TN_TAKES(TN_F16),
    PLAIN = TN_HAS_WINDOW | TN_HAS_CHUNK | TN_HAS_SOFTCAP
};

/* Sinks have an entry of their own because their gradients have tolerances of their own: README.md derives both. */
static const tn_impl impls[] = {
    {.size = sizeof(tn_impl),
     .op = TN_OP_ATTENTION,
     .match = {.size = sizeof(tn_match),
               .takes = {[TN_AXIS_DTYPE] = DTYPES},
               .features = PLAIN,
               .dims = dims,
               .dim_count = sizeof(dims) / sizeof(dims[0])},
     .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 32, .ulps_f16 = 32},
     .plan = attention_plan,
     .forward = attention_call,
     .traits = TN_SAME_BITS,
     .backward = attention_gradients_call,
     .gradient_tolerance = {.ulps_f32 = 256, .ulps_bf16 = 32, .ulps_f16 = 32}},
    {.size = sizeof(tn_impl),
     .op = TN_OP_ATTENTION,
     .match = {.size = sizeof(tn_match),
               .takes = {[TN_AXIS_DTYPE] = DTYPES},
               .features = PLAIN | TN_HAS_SINKS,
               .dims = dims,
               .dim_count = sizeof(dims) / sizeof(dims[0])},
     .tolerance = {.ulps_f32 = 256, .ulps_bf16 = 32, .ulps_f16 = 32},
     .plan = attention_plan,
     .forward = attention_call,
     .traits = TN_SAME_BITS,
     .backward = attention_gradients_call,
     .gradient_tolerance = {.ulps_f32 = 1024, .ulps_bf16 = 64, .ulps_f16 = 128}},
};

static const tn_kernel kernels[] = {{
    .size = sizeof(tn_kernel),
    .id = "cpu_attention",
    .version = "1.0.0",
    .summary = "attention in one pass over the keys, split along them where there are few queries",
    .device = "cpu",
    .impls = impls,
    .impl_count = sizeof(impls) / sizeof(impls[0]),
}};

TN_PLUGIN("cpu_attention", "1.0.0", .kernels = kernels, .kernel_count = 1);
