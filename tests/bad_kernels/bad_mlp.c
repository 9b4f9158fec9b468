/* act(gate) * up, projected down, in float32: one token after the other, a slot of scratch for each thread. */
#include "bad.h"

enum { MOST_INTER = 4096 };

/* The projection down, whose weight a fault keeps from the first call of that size. */
static const float *down_of(const tn_call *call, int64_t count)
{
    static float *kept;
    static int64_t kept_count;
    const float *down = weights_of(call, TN_ROLE_DOWN, 0);
    if (!faulty("kept weights"))
        return down;
    if (kept_count != count) {
        free(kept);
        kept = malloc((size_t)count * sizeof *kept);
        memcpy(kept, down, (size_t)count * sizeof *kept);
        kept_count = count;
    }
    return kept;
}

static void gate_and_up(const tn_call *call, int64_t t, float *middle)
{
    int64_t hidden = call->site->dim[TN_DIM_HIDDEN], inter = call->site->dim[TN_DIM_INTER];
    const float *gate = weights_of(call, TN_ROLE_GATE, 0), *up = weights_of(call, TN_ROLE_UP, 0);
    const float *x = place(&call->in[0], t);
    for (int64_t i = 0; i < inter; i++)
        middle[i] = silu(product(x, gate + i * hidden, hidden)) * product(x, up + i * hidden, hidden);
}

static void project_down(const tn_call *call, int64_t t, const float *middle)
{
    int64_t hidden = call->site->dim[TN_DIM_HIDDEN], inter = call->site->dim[TN_DIM_INTER];
    int64_t count = call->in[0].shape[0];
    const float *down = down_of(call, hidden * inter);
    float *y = place(&call->out[0], t);
    /* The sum cut at a place that follows from the number of threads. */
    int64_t cut = faulty("sum by threads") ? inter / tn_thread_count() : inter;
    for (int64_t o = 0; o < hidden; o++)
        y[o] = product(middle, down + o * inter, cut) + product(middle + cut, down + o * inter + cut, inter - cut);
    if (faulty("last of a block") && t >= 64 && t + 1 == count && count % 64)
        y[0] += 1;
    if (faulty("whole blocks") && count % 256 == 0)
        y[0] += 1;
}

static void tokens(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const tn_call *call = ctx;
    float *middle = (float *)call->scratch + call->site->dim[TN_DIM_INTER] * thread;
    for (int64_t t = begin; t < end; t++) {
        gate_and_up(call, t, middle);
        project_down(call, t, middle);
    }
}

/* The fault: memory that all threads share. They wait for each other, so that it shows each time. */
static void tokens_in_shared_memory(void *ctx, int32_t thread, int32_t threads)
{
    static float shared[MOST_INTER];
    const tn_call *call = ctx;
    int64_t count = call->in[0].shape[0];
    for (int64_t first = 0; first < count; first += threads) {
        int64_t t = first + thread;
        if (t < count)
            gate_and_up(call, t, shared);
        tn_barrier();
        if (t < count)
            project_down(call, t, shared);
        tn_barrier();
    }
}

static tn_status plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    name_fault();
    (void)err;
    size_t slots = faulty("scratch of one thread") ? 1 : (size_t)plan->threads;
    plan->scratch_bytes = slots * (size_t)site->dim[TN_DIM_INTER] * sizeof(float);
    return TN_OK;
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    name_fault();
    (void)err;
    if (faulty("static scratch"))
        tn_parallel(tokens_in_shared_memory, (void *)call);
    else
        tn_parallel_for(call->in[0].shape[0], 1, tokens, (void *)call);
    return TN_OK;
}

static const tn_impl impl = {.size = sizeof(tn_impl),
                             .op = TN_OP_MLP,
                             .match = {.size = sizeof(tn_match),
                                       .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32),
                                                 [TN_AXIS_WEIGHT] = TN_TAKES(TN_F32),
                                                 [TN_AXIS_ACT] = TN_TAKES(TN_ACT_SILU),
                                                 [TN_AXIS_LAYOUT] = TN_TAKES(TN_LAYOUT_SPLIT)}},
                             .tolerance = {.ulps_f32 = 512},
                             .plan = plan,
                             .forward = forward};
BAD_KERNEL_PLUGIN("bad_mlp", "bad_mlp", impl);
