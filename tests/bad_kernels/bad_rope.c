/* The rotation of halves in float32, in place or not. */
#include "bad.h"

static void rotate(const tn_call *call, int which, int64_t b, int64_t t)
{
    const tn_tensor *from = &call->in[which], *to = &call->out[which], *c = &call->in[2], *s = &call->in[3];
    int64_t half = from->shape[3] / 2, row = c->shape[0] > 1 && !faulty("one row of tables") ? b : 0;
    const float *cosine = (const float *)c->data + row * c->stride[0] + t * c->stride[1];
    const float *sine = (const float *)s->data + row * s->stride[0] + t * s->stride[1];
    for (int64_t head = 0; head < from->shape[2]; head++) {
        const float *x = (const float *)from->data + b * from->stride[0] + t * from->stride[1] + head * from->stride[2];
        float *y = (float *)to->data + b * to->stride[0] + t * to->stride[1] + head * to->stride[2];
        for (int64_t i = 0; i < half; i++) {
            float co = cosine[i], si = sine[i], x1 = x[i], x2 = x[i + half];
            if (faulty("tables of length one"))
                si = copysignf(sqrtf(fmaxf(0, 1 - co * co)), si);
            y[i] = x1 * co - x2 * si;
            y[i + half] = x2 * cosine[i + half] + x1 * (faulty("tables of length one") ? si : sine[i + half]);
        }
    }
}

static void tokens(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const tn_call *call = ctx;
    int64_t count = call->in[0].shape[1];
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        for (int which = 0; which < 2; which++)
            rotate(call, which, i / count, i % count);
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    name_fault();
    static int64_t most;
    int64_t count = call->in[0].shape[0] * call->in[0].shape[1], whole = count;
    (void)err;
    /* The number of tokens of the call before, once there was a larger one. */
    if (faulty("tokens of the call before")) {
        count = most > 0 && most < count ? most : count;
        most = whole;
    }
    if (faulty("first 300"))
        count = count < 300 ? count : 300;
    tn_parallel_for(count, 1, tokens, (void *)call);
    return TN_OK;
}

static const tn_impl impl = {
    .size = sizeof(tn_impl),
    .op = TN_OP_ROPE,
    .match = {.size = sizeof(tn_match),
              .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32), [TN_AXIS_ROPE] = TN_TAKES(TN_ROPE_HALF)}},
    .tolerance = {.ulps_f32 = 16},
    .forward = forward};
BAD_KERNEL_PLUGIN("bad_rope", "bad_rope", impl);
