/* A plugin as an author wrote it against the 1.0 headers. The binary beside it is never rebuilt from later headers: it
 * stands for all plugins that are out there, and every later host of this major version loads it. */
#include <tenon/kernel.h>

/* y = rnd(rnd(n) * w); in float32 both roundings are those of the operations. */
static tn_status forward(const tn_call *call, tn_error *err)
{
    const tn_tensor *x = &call->in[0];
    const float *w = call->site->param[TN_ROLE_WEIGHT].tensors[0].data;
    int64_t n = x->shape[x->ndim - 1], rows = tn_tensor_count(x) / n;
    (void)err;
    for (int64_t r = 0; r < rows; r++) {
        const float *from = (const float *)x->data + r * n;
        float *to = (float *)call->out[0].data + r * n, sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += from[i] * from[i];
        float scale = 1.0f / __builtin_sqrtf(sum / (float)n + (float)call->site->num[TN_NUM_EPS]);
        for (int64_t i = 0; i < n; i++)
            to[i] = from[i] * scale * w[i];
    }
    return TN_OK;
}

static tn_status available(tn_error *err)
{
    return tn_dtype_size(TN_F32) == 4 ? TN_OK : tn_fail(err, TN_DECLINED, NULL, "float32 is not four bytes");
}

static const tn_dim_rule dims[] = {{TN_DIM_WIDTH, 2, 65536, 2}};

static const tn_impl impls[] = {{
    .size = sizeof(tn_impl),
    .op = TN_OP_RMS_NORM,
    .match = {.size = sizeof(tn_match),
              .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32), [TN_AXIS_NORM] = TN_TAKES(TN_NORM_W)},
              .dims = dims,
              .dim_count = 1,
              .class_glob = "*RMSNorm"},
    .tolerance = {.ulps_f32 = 64},
    .forward = forward,
}};

static const tn_kernel kernels[] = {{.size = sizeof(tn_kernel),
                                     .id = "abi_1_0_rms_norm",
                                     .version = "1.0.0",
                                     .summary = "RMS norm of a plugin from the days of ABI 1.0",
                                     .device = TN_DEVICE_CPU,
                                     .priority = -1,
                                     .available = available,
                                     .impls = impls,
                                     .impl_count = 1}};

TN_PLUGIN("abi_1_0", "1.0.0", .kernels = kernels, .kernel_count = 1);
