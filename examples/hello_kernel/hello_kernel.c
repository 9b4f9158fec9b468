/* A complete kernel in one file: RMS norm on the CPU, y = rnd(rnd(x / sqrt(mean(x^2) + eps)) * w), for f32 and bf16. */
#include <math.h>
#include <string.h>
#include <tenon/half.h>
#include <tenon/kernel.h>

/* Element i of a row, which may lie at any address. */
static float get(const void *row, int64_t i, tn_dtype dtype)
{
    float value;
    uint16_t half;
    if (dtype == TN_BF16) {
        memcpy(&half, (const char *)row + 2 * i, sizeof half);
        return tn_bf16_to_f32(half);
    }
    memcpy(&value, (const char *)row + 4 * i, sizeof value);
    return value;
}

static void set(void *row, int64_t i, tn_dtype dtype, float value)
{
    uint16_t half = tn_f32_to_bf16(value);
    if (dtype == TN_BF16)
        memcpy((char *)row + 2 * i, &half, sizeof half);
    else
        memcpy((char *)row + 4 * i, &value, sizeof value);
}

/* Row r, counted over all leading dimensions, whose strides are arbitrary. */
static void *row_of(const tn_tensor *t, int64_t r)
{
    int64_t offset = 0;
    for (int32_t d = t->ndim - 2; d >= 0; r /= t->shape[d--])
        offset += r % t->shape[d] * t->stride[d];
    return (char *)t->data + offset * (int64_t)tn_dtype_size(t->dtype);
}

static void rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    (void)thread;
    const tn_call *call = ctx;
    int64_t n = call->site->dim[TN_DIM_WIDTH];
    tn_dtype dtype = call->in[0].dtype;
    for (int64_t r = begin; r < end; r++) {
        void *x = row_of(&call->in[0], r), *y = row_of(&call->out[0], r);
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += (double)get(x, i, dtype) * get(x, i, dtype);
        float scale = 1.0f / sqrtf((float)(sum / (double)n) + (float)call->site->num[TN_NUM_EPS]);
        for (int64_t i = 0; i < n; i++) {
            set(y, i, dtype, get(x, i, dtype) * scale);
            set(y, i, dtype, get(y, i, dtype) * get(call->site->param[TN_ROLE_WEIGHT].tensors->data, i, dtype));
        }
    }
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    (void)err;
    tn_parallel_for(tn_tensor_count(&call->in[0]) / call->site->dim[TN_DIM_WIDTH], 16, rows, (void *)call);
    return TN_OK;
}

/* Tolerance: eager's 16 sums of n/16 squares in f32 are off by at most n/32 + 8 units, four roundings come after; in
 * bf16 each of the two roundings may go the other way, two units each. */
static const tn_dim_rule dims[] = {{.dim = TN_DIM_WIDTH, .min = 1, .max = 4096}};
static const tn_impl impl = {
    .size = sizeof(tn_impl),
    .op = TN_OP_RMS_NORM,
    .match = {.size = sizeof(tn_match),
              .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32) | TN_TAKES(TN_BF16), [TN_AXIS_NORM] = TN_TAKES(TN_NORM_W)},
              .dims = dims,
              .dim_count = 1},
    .tolerance = {.ulps_f32 = 140, .ulps_bf16 = 4},
    .forward = forward,
};
static const tn_kernel kernel = {.size = sizeof(tn_kernel),
                                 .id = "example_fused_rmsnorm",
                                 .version = "1.0.0",
                                 .summary = "RMS norm in plain C",
                                 .device = "cpu",
                                 .impls = &impl,
                                 .impl_count = 1};
TN_PLUGIN("hello_kernel", "1.0.0", .kernels = &kernel, .kernel_count = 1);
