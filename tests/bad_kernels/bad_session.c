/* An RMS norm whose rows go through memory that all calls share, which it declares, behind a lock; with the fault "no
 * lock" it says so and has none. */
#include "bad.h"

#include <pthread.h>

enum { MOST = 4096 };

static tn_status forward(const tn_call *call, tn_error *err)
{
    name_fault();
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static volatile float shared[MOST];
    const tn_tensor *x = &call->in[0];
    int64_t n = x->shape[x->ndim - 1], count = tn_tensor_count(x) / n;
    const float *w = weights_of(call, TN_ROLE_WEIGHT, 0);
    bool locks = !faulty("no lock");
    (void)err;
    for (int64_t r = 0; r < count; r++) {
        const float *from = place(x, r);
        float *to = place(&call->out[0], r), scale = product(from, from, n) / (float)n;
        scale = 1 / sqrtf(scale + (float)call->site->num[TN_NUM_EPS]);
        if (locks)
            pthread_mutex_lock(&lock);
        for (int64_t i = 0; i < n; i++)
            shared[i] = from[i] * scale * w[i];
        for (int64_t i = 0; i < n; i++)
            to[i] = shared[i];
        if (locks)
            pthread_mutex_unlock(&lock);
    }
    return TN_OK;
}

static tn_status plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    name_fault();
    (void)plan;
    return site->dim[TN_DIM_WIDTH] <= MOST ? TN_OK : tn_fail(err, TN_DECLINED, NULL, "too wide");
}

static const tn_impl impl = {
    .size = sizeof(tn_impl),
    .op = TN_OP_RMS_NORM,
    .match = {.size = sizeof(tn_match),
              .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32), [TN_AXIS_NORM] = TN_TAKES(TN_NORM_W)}},
    .tolerance = {.ulps_f32 = 1024},
    .plan = plan,
    .forward = forward,
    .traits = TN_KEEPS_STATE,
};

BAD_KERNEL_PLUGIN("bad_session", "bad_session", impl);
