/* A residual sum and its RMS norm, in float32. */
#include "bad.h"

#include <signal.h>

static void rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const tn_call *call = ctx;
    int64_t n = call->site->dim[TN_DIM_WIDTH];
    const float *w = weights_of(call, TN_ROLE_WEIGHT, 0);
    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const float *h = place(&call->in[0], r), *add = place(&call->in[1], r);
        float *sum = place(&call->out[0], r), *y = place(&call->out[1], r), square = 0;
        for (int64_t i = 0; i < n; i++)
            sum[i] = h[i] + add[i];
        square = product(sum, sum, n);
        if (faulty("capped sum"))
            square = fminf(square, 1000);
        float mean = square / (float)n, eps = (float)call->site->num[TN_NUM_EPS];
        if (faulty("no eps"))
            eps = 0;
        if (faulty("large eps"))
            eps = 1e-3f;
        float scale = 1 / sqrtf(mean + eps);
        for (int64_t i = 0; i < n; i++)
            y[i] = sum[i] * scale * w[i];
    }
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    name_fault();
    int64_t n = call->site->dim[TN_DIM_WIDTH], count = tn_tensor_count(&call->in[0]) / n;
    (void)err;
    /* Rows in pairs; the last of an odd number is left out. */
    int64_t done = faulty("odd rows") && count > 1 ? count / 2 * 2 : count;
    if (faulty("256 rows") && done > 256)
        done = 256;
    if (faulty("511 rows") && done > 511)
        done = 511;
    tn_parallel_for(done, 1, rows, (void *)call);
    /* Rows of each thread, as a plan for the next call would want them. */
    if (faulty("division by rows") && (count == 0 ? raise(SIGFPE) : tn_thread_count() / count > count))
        return TN_E_INTERNAL; /* raised, because not every processor stops there by itself             */
    return TN_OK;
}

static const tn_impl impl = {
    .size = sizeof(tn_impl),
    .op = TN_OP_ADD_RMS_NORM,
    .match = {.size = sizeof(tn_match),
              .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32), [TN_AXIS_NORM] = TN_TAKES(TN_NORM_W)}},
    .tolerance = {.ulps_f32 = 512},
    .forward = forward};
BAD_KERNEL_PLUGIN("bad_add_norm", "bad_add_norm", impl);
