/* An honest RMS norm in float32, from which each plugin of this folder departs in one point. */
#ifndef HONEST_H
#define HONEST_H

#include <math.h>
#include <tenon/kernel.h>

static inline void honest_row(const float *x, const float *w, float eps, float *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    float scale = 1.0f / sqrtf((float)(sum / (double)n) + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * scale * w[i];
}

/* Row r, counted over all leading dimensions, whose strides are arbitrary. */
static inline float *honest_place(const tn_tensor *t, int64_t r)
{
    float *at = t->data;
    for (int32_t d = t->ndim - 2; d >= 0; r /= t->shape[d--])
        at += r % t->shape[d] * t->stride[d];
    return at;
}

static inline tn_status honest_forward(const tn_call *call, tn_error *err)
{
    (void)err;
    const tn_tensor *x = &call->in[0];
    int64_t n = x->shape[x->ndim - 1], rows = tn_tensor_count(x) / n;
    for (int64_t r = 0; r < rows; r++)
        honest_row(honest_place(x, r), call->site->param[TN_ROLE_WEIGHT].tensors[0].data,
                   (float)call->site->num[TN_NUM_EPS], honest_place(&call->out[0], r), n);
    return TN_OK;
}

#define HONEST_MATCH                                                                                                   \
    {                                                                                                                  \
        .size = sizeof(tn_match), .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32), [TN_AXIS_NORM] = TN_TAKES(TN_NORM_W)}, \
    }

/* An impl whose forward is fn. */
#define HONEST_IMPL(fn)                                                                                                \
    {                                                                                                                  \
        .size = sizeof(tn_impl), .op = TN_OP_RMS_NORM, .match = HONEST_MATCH, .tolerance = {.ulps_f32 = 64},           \
        .forward = fn,                                                                                                 \
    }

/* A kernel of one impl, wherever it runs; and with a function that says whether it does. */
#define HONEST_KERNEL(name, list) HONEST_KERNEL_IF(name, list, NULL)
#define HONEST_KERNEL_IF(name, list, fn)                                                                               \
    {                                                                                                                  \
        .size = sizeof(tn_kernel), .id = name, .version = "1.0.0", .summary = "RMS norm", .device = "cpu",             \
        .available = fn, .impls = list, .impl_count = 1,                                                               \
    }

/* A plugin of one such kernel, whose forward is fn. */
#define HONEST_PLUGIN(name, id, fn) HONEST_PLUGIN_IF(name, id, fn, NULL)
#define HONEST_PLUGIN_IF(name, id, fn, condition)                                                                      \
    static const tn_impl impls[] = {HONEST_IMPL(fn)};                                                                  \
    static const tn_kernel kernels[] = {HONEST_KERNEL_IF(id, impls, condition)};                                       \
    TN_PLUGIN(name, "1.0.0", .kernels = kernels, .kernel_count = 1)

#endif
