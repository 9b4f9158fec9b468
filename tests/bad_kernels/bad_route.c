/* The router of a mixture, softmax and the k largest, in float32. */
#include "bad.h"

enum { MOST_EXPERTS = 512 };

static void tokens(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const tn_call *call = ctx;
    const tn_site *site = call->site;
    int64_t hidden = site->dim[TN_DIM_HIDDEN], experts = site->dim[TN_DIM_EXPERTS], k = site->dim[TN_DIM_TOP_K];
    const float *router = weights_of(call, TN_ROLE_ROUTER, 0);
    const float *bias = site->param[TN_ROLE_ROUTER_BIAS].count ? weights_of(call, TN_ROLE_ROUTER_BIAS, 0) : NULL;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        float score[MOST_EXPERTS], largest = -INFINITY, all = 0, chosen = 0;
        float *weight = place(&call->out[0], t);
        int32_t *expert = (int32_t *)call->out[1].data + t * call->out[1].stride[0];
        for (int64_t e = 0; e < experts; e++)
            score[e] = product(place(&call->in[0], t), router + e * hidden, hidden) + (bias ? bias[e] : 0);
        for (int64_t e = 0; e < experts; e++)
            largest = fmaxf(largest, score[e]);
        for (int64_t e = 0; e < experts; e++)
            all += score[e] = expf(score[e] - largest);
        for (int64_t j = 0; j < k; j++) {
            int32_t best = 0;
            for (int32_t e = 1; e < experts; e++)
                best = score[e] > score[best] ? e : best;
            /* The next best is what is less: of two that tie the other is never found. */
            for (int64_t e = 0; faulty("less than the best") && e < experts; e++)
                if (e != best && score[e] == score[best])
                    score[e] = -1;
            expert[j] = best;
            chosen += weight[j] = score[best] / all;
            score[best] = -1;
            if (faulty("ties twice") && j > 0 && weight[j] == weight[j - 1])
                expert[j] = expert[j - 1];
        }
        for (int64_t j = 0; j < k && site->features & TN_HAS_RENORM; j++)
            weight[j] /= chosen;
        if (faulty("many tokens") && t >= 300)
            weight[0] *= 1.01f;
    }
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    name_fault();
    if (call->site->dim[TN_DIM_EXPERTS] > MOST_EXPERTS)
        return tn_fail(err, TN_E_KERNEL, call->site->path, "%d experts at most", MOST_EXPERTS);
    tn_parallel_for(call->in[0].shape[0], 1, tokens, (void *)call);
    return TN_OK;
}

static const tn_impl impl = {.size = sizeof(tn_impl),
                             .op = TN_OP_MOE_ROUTE,
                             .match = {.size = sizeof(tn_match),
                                       .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32),
                                                 [TN_AXIS_WEIGHT] = TN_TAKES(TN_F32),
                                                 [TN_AXIS_SCORE] = TN_TAKES(TN_SCORE_SOFTMAX)},
                                       .features = TN_HAS_RENORM},
                             .tolerance = {.ulps_f32 = 1024},
                             .forward = forward};
BAD_KERNEL_PLUGIN("bad_route", "bad_route", impl);
