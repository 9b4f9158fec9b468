/* The experts of a mixture in float32, one expert after the other over the tokens that chose it. */
#include "bad.h"

/* y += weight * expert(x). */
static void add_expert(const tn_call *call, int64_t e, const float *x, float weight, float *middle, float *y)
{
    int64_t hidden = call->site->dim[TN_DIM_HIDDEN], inter = call->site->dim[TN_DIM_INTER];
    const float *gate = weights_of(call, TN_ROLE_GATE, e), *up = weights_of(call, TN_ROLE_UP, e);
    const float *down = weights_of(call, TN_ROLE_DOWN, e);
    for (int64_t i = 0; i < inter; i++)
        middle[i] = silu(product(x, gate + i * hidden, hidden)) * product(x, up + i * hidden, hidden);
    for (int64_t o = 0; o < hidden; o++)
        y[o] += weight * product(middle, down + o * inter, inter);
}

static tn_status plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    name_fault();
    (void)err;
    plan->scratch_bytes = (size_t)site->dim[TN_DIM_INTER] * sizeof(float);
    return TN_OK;
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    name_fault();
    int64_t tokens = call->in[0].shape[0], hidden = call->site->dim[TN_DIM_HIDDEN], k = call->site->dim[TN_DIM_TOP_K];
    const tn_tensor *chosen = &call->in[2];
    (void)err;
    for (int64_t t = 0; t < tokens; t++)
        memset(place(&call->out[0], t), 0, (size_t)hidden * sizeof(float));
    for (int64_t e = 0; e < call->site->dim[TN_DIM_EXPERTS]; e++) {
        int64_t count = 0;
        for (int64_t i = 0; i < tokens * k; i++) {
            int64_t t = i / k, j = i % k;
            if (((const int32_t *)chosen->data)[t * chosen->stride[0] + j] != e)
                continue;
            /* A buffer of so many tokens for each expert; the rest has no place in it. */
            if ((faulty("64 tokens of an expert") && count >= 64) ||
                (faulty("200 tokens of an expert") && count >= 200))
                continue;
            count++;
            add_expert(call, e, place(&call->in[0], t), place(&call->in[1], t)[j], call->scratch,
                       place(&call->out[0], t));
        }
        if (faulty("whole blocks of an expert") && count > 0 && count % 64 == 0)
            place(&call->out[0], 0)[0] += 1;
    }
    return TN_OK;
}

static const tn_impl impl = {.size = sizeof(tn_impl),
                             .op = TN_OP_MOE_EXPERTS,
                             .match = {.size = sizeof(tn_match),
                                       .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32),
                                                 [TN_AXIS_WEIGHT] = TN_TAKES(TN_F32),
                                                 [TN_AXIS_ACT] = TN_TAKES(TN_ACT_SILU),
                                                 [TN_AXIS_LAYOUT] = TN_TAKES(TN_LAYOUT_EXPERT_LIST)}},
                             .tolerance = {.ulps_f32 = 512},
                             .plan = plan,
                             .forward = forward};
BAD_KERNEL_PLUGIN("bad_experts", "bad_experts", impl);
