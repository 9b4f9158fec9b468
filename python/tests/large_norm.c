/* An RMS norm in float32 that is right but for calls of 551 to 7999 tokens, which no check of a first use has: what
 * TENON_LARGE names, "forward" or "backward", is wrong there. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/kernel.h>

static int is_wrong(const char *way, int64_t rows)
{
    const char *named = getenv("TENON_LARGE");
    return rows > 550 && rows < 8000 && named && !strcmp(named, way);
}

static float *row_of(const tn_tensor *t, int64_t r)
{
    int64_t offset = 0;
    for (int32_t d = t->ndim - 2; d >= 0; r /= t->shape[d--])
        offset += r % t->shape[d] * t->stride[d];
    return (float *)t->data + offset;
}

static double scale_of(const tn_call *call, const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return 1 / sqrt(sum / (double)n + call->site->num[TN_NUM_EPS]);
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    int64_t n = call->site->dim[TN_DIM_WIDTH], rows = tn_tensor_count(&call->in[0]) / n;
    const float *w = call->site->param[TN_ROLE_WEIGHT].tensors[0].data;
    (void)err;
    for (int64_t r = 0; r < rows; r++) {
        const float *x = row_of(&call->in[0], r);
        float *y = row_of(&call->out[0], r);
        double scale = scale_of(call, x, n) * (is_wrong("forward", rows) ? 1.1 : 1);
        for (int64_t i = 0; i < n; i++)
            y[i] = (float)(x[i] * scale * w[i]);
    }
    return TN_OK;
}

/* dx = scale (g - x scale mean(g x scale)) with g = dy w; dw = sum over rows of dy x scale. */
static tn_status backward(const tn_call *call, tn_error *err)
{
    int64_t n = call->site->dim[TN_DIM_WIDTH], rows = tn_tensor_count(&call->in[0]) / n;
    const float *w = call->site->param[TN_ROLE_WEIGHT].tensors[0].data;
    const tn_param *want = &call->grads->param[TN_ROLE_WEIGHT];
    const tn_tensor *up = &call->grads->out[0], *down = &call->grads->in[0];
    double *sum = call->scratch;
    (void)err;
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t r = 0; r < rows; r++) {
        const float *x = row_of(&call->in[0], r), *dy = up->data ? row_of(up, r) : NULL;
        float *dx = down->data ? row_of(down, r) : NULL;
        double scale = scale_of(call, x, n), mean = 0;
        for (int64_t i = 0; dy && i < n; i++) {
            mean += dy[i] * w[i] * x[i] * scale / (double)n;
            sum[i] += dy[i] * x[i] * scale;
        }
        if (is_wrong("backward", rows))
            mean = 0;
        for (int64_t i = 0; dx && i < n; i++)
            dx[i] = (float)(scale * ((dy ? dy[i] : 0) * (double)w[i] - mean * x[i] * scale));
    }
    for (int64_t i = 0; want->count && i < n; i++)
        ((float *)want->tensors[0].data)[i] = (float)sum[i];
    return TN_OK;
}

static tn_status plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)err;
    plan->backward_scratch_bytes = (size_t)site->dim[TN_DIM_WIDTH] * sizeof(double);
    return TN_OK;
}

static const tn_impl impl = {
    .size = sizeof(tn_impl),
    .op = TN_OP_RMS_NORM,
    .match = {.size = sizeof(tn_match),
              .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32), [TN_AXIS_NORM] = TN_TAKES(TN_NORM_W)}},
    .tolerance = {.ulps_f32 = 1024},
    .plan = plan,
    .forward = forward,
    .backward = backward,
};
static const tn_kernel kernel = {.size = sizeof(tn_kernel),
                                 .id = "large_rmsnorm",
                                 .version = "1.0.0",
                                 .summary = "RMS norm that is wrong in large calls",
                                 .device = "cpu",
                                 .impls = &impl,
                                 .impl_count = 1,
                                 .priority = 100};
TN_PLUGIN("large_norm", "1.0.0", .kernels = &kernel, .kernel_count = 1);
