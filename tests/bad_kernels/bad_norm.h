/* An RMS norm in float32 that is right, but for the fault that BAD_KERNEL names: of a kernel for the CPU, and of a
 * device of its own. */
#ifndef BAD_NORM_H
#define BAD_NORM_H

#include <signal.h>

#include "bad_habits.h"

#include <fenv.h>

static float scale_of(const tn_call *call, const float *x, int64_t n)
{
    float part[64] = {0}, sum = 0;
    for (int64_t i = 0; i < n; i++)
        part[i % 64] += x[i] * x[i];
    for (int i = 0; i < 64; i++)
        sum += part[i];
    if (faulty("capped sum"))
        sum = fminf(sum, 1000);
    if (faulty("no zero row") && sum == 0)
        return NAN;
    if (faulty("squares of 16 bits") && sum > 65504)
        sum = INFINITY;
    float eps = faulty("eps") ? 1e-3f : (float)call->site->num[TN_NUM_EPS];
    return 1.0f / sqrtf(sum / (float)n + eps);
}

static void flush_denormals(void)
{
#if defined(__x86_64__)
    fenv_t env;
    fegetenv(&env);
    env.__mxcsr |= 0x8000;
    fesetenv(&env);
#endif
}

/* The weights of this call; with the fault, those of the first call of that width. */
static const float *norm_weights(const tn_call *call, int64_t n)
{
    enum { MOST = 4096 };
    static float kept[MOST];
    static int64_t width;
    const float *w = call->site->param[TN_ROLE_WEIGHT].tensors[0].data;
    if (!faulty("first weights") || n > MOST)
        return w;
    if (width != n)
        memcpy(kept, w, (size_t)n * sizeof *w);
    width = n;
    return kept;
}

static int64_t count_of(const tn_call *call)
{
    return tn_tensor_count(&call->in[0]) / call->site->dim[TN_DIM_WIDTH];
}

/* The sum in as many parts as there are threads. */
static float split_scale(const tn_call *call, const float *x, int64_t n, float scale)
{
    int32_t parts = tn_thread_count();
    float sum = 0;
    if (parts == 1)
        return scale;
    for (int32_t p = 0; p < parts; p++) {
        float part = 0;
        for (int64_t i = p; i < n; i += parts)
            part += x[i] * x[i];
        sum += part;
    }
    return 1.0f / sqrtf(sum / (float)n + (float)call->site->num[TN_NUM_EPS]);
}

/* Faults of one row among many. */
static float wrong_row(const tn_call *call, int64_t r, int64_t n, int32_t thread, float scale)
{
    if ((faulty("many rows") && r >= 132) || (faulty("256 rows") && r >= 256) || (faulty("300 rows") && r >= 300) ||
        (faulty("511 rows") && r >= 511) || (faulty("odd rows") && r > 0 && r % 2 == 0 && r + 1 == count_of(call)))
        scale *= 1.001f;
    if (faulty("sums by threads"))
        scale = split_scale(call, place(&call->in[0], r), n, scale);
    if (faulty("block") && r >= 64 && r % 64 == 0)
        scale = scale_of(call, place(&call->in[0], r - 1), n) * 1.01f;
    if (faulty("thread number"))
        scale *= 1 + 0x1p-22f * (float)thread;
    return scale;
}

typedef struct {
    const tn_call *call;
    const float *weights;
} norm_work;

static void rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const norm_work *work = ctx;
    const tn_call *call = work->call;
    const tn_tensor *x = &call->in[0], *y = &call->out[0];
    int64_t n = x->shape[x->ndim - 1];
    const float *w = work->weights;
    if (faulty("control of a worker") && thread)
        flush_denormals();
    keep_of_worker(thread);
    for (int64_t r = begin; r < end; r++) {
        const float *from = place(x, r);
        float *to = place(y, r), scale = scale_of(call, from, n);
        if (faulty("inaccurate"))
            scale *= 1.001f;
        if (faulty("threads"))
            scale *= 1 + 0x1p-22f * (float)tn_thread_count();
        if (faulty("alignment") && (uintptr_t)from % 16)
            scale *= 1 + 0x1p-22f;
        scale = wrong_row(call, r, n, thread, scale);
        take_for_granted(call, from, w, n);
        float factor = habit_of_row(call, r, count_of(call), from, n);
        for (int64_t i = 0; i < n; i++)
            to[i] = factor == 0 ? 0 : factor * from[i] * scale * w[i];
    }
}

/* Faults that write where nothing is to be written. */
static void stray_writes(const tn_call *call, int64_t count)
{
    const tn_tensor *x = &call->in[0], *y = &call->out[0];
    int64_t n = x->shape[x->ndim - 1];
    float *last = place(y, count - 1) + n;
    if (faulty("beside"))
        last[0] = 1;
    if (faulty("gap") && y->stride[y->ndim - 2] > n)
        place(y, 0)[n] = 1;
    if (faulty("input") && x->data != y->data)
        ((float *)x->data)[0] = 1;
    if (faulty("weight"))
        ((float *)call->site->param[TN_ROLE_WEIGHT].tensors[0].data)[0] = 1;
    if (faulty("scratch"))
        ((char *)call->scratch)[call->plan->scratch_bytes] = 1;
    if (faulty("NaN"))
        place(y, 0)[0] = NAN;
    if (faulty("crash"))
        raise(SIGSEGV);
}

/* A slot of scratch for each thread, where plan asked for one. */
static void use_scratch(void *ctx, int32_t thread, int32_t threads)
{
    const tn_call *call = ctx;
    (void)threads;
    memset((char *)call->scratch + 64 * (size_t)thread, 0, 64);
}

static void wait_alone(void *ctx, int32_t thread, int32_t threads)
{
    (void)ctx;
    (void)threads;
    if (thread == 0)
        tn_barrier();
}

/* Faults of the whole call. */
static void misbehave(const tn_call *call, int64_t count)
{
    static int calls;
    if (faulty("scratch of one thread"))
        tn_parallel(use_scratch, (void *)call);
    if (faulty("barrier in a branch"))
        tn_parallel(wait_alone, NULL);
    if (faulty("exit"))
        exit(0);
    if (faulty("no tokens") && count == 0)
        raise(SIGFPE); /* as a division by the number of rows does                                */
    static int64_t before;
    if (faulty("rows of the call before")) {
        if (before > 0 && before < count)
            memset(place(&call->out[0], count - 1), 0, sizeof(float));
        before = count;
    }
    if (faulty("second call") && count && calls++ % 3 == 2)
        place(&call->out[0], 0)[0] *= 1 + 0x1p-22f;
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    name_fault();
    const tn_tensor *x = &call->in[0];
    int64_t n = x->shape[x->ndim - 1], count = tn_tensor_count(x) / n;
    norm_work work = {.call = call, .weights = norm_weights(call, n)};
    if (faulty("error"))
        return tn_fail(err, TN_E_INPUT, NULL, "no reason");
    if (faulty("control"))
        flush_denormals();
    tn_parallel_for(count, 1, rows, &work);
    if (count) {
        stray_writes(call, count);
        keep_something(call, place(&call->out[0], 0));
    }
    lose_something(count);
    keep_behind();
    misbehave(call, count);
    return TN_OK;
}

/* dx = scale (g - n mean(g n)) with g = dy w, n = x scale; dw = sum over rows of dy n. */
static tn_status backward(const tn_call *call, tn_error *err)
{
    name_fault();
    (void)err;
    const tn_tensor *x = &call->in[0], *weight = &call->site->param[TN_ROLE_WEIGHT].tensors[0];
    int64_t n = x->shape[x->ndim - 1], count = tn_tensor_count(x) / n;
    const float *w = weight->data;
    const tn_param *want = &call->grads->param[TN_ROLE_WEIGHT];
    double *sum = call->scratch;
    const tn_tensor *up = &call->grads->out[0];
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t r = 0; r < count; r++) {
        const float *from = place(x, r), *dy = up->data ? place(up, r) : NULL;
        if (faulty("absent upstream"))
            sum[0] += *(const volatile float *)up->data * 0.0;
        float *dx = call->grads->in[0].data ? place(&call->grads->in[0], r) : NULL;
        double scale = scale_of(call, from, n), mean = 0;
        for (int64_t i = 0; i < n; i++) {
            double d = dy ? dy[i] : 0;
            mean += d * w[i] * from[i] * scale / (double)n;
            sum[i] += d * from[i] * scale;
        }
        if (faulty("gradient"))
            mean = 0;
        for (int64_t i = 0; dx && i < n; i++)
            dx[i] = (faulty("adds up") ? dx[i] : 0) +
                    (float)(scale * ((double)(dy ? dy[i] : 0) * w[i] - mean * from[i] * scale));
    }
    if (faulty("unwanted"))
        ((float *)want->tensors[0].data)[0] = 0;
    for (int64_t i = 0; want->count && i < n && !faulty("no weight gradient"); i++)
        ((float *)want->tensors[0].data)[i] = (float)sum[i];
    return TN_OK;
}

static tn_status plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    name_fault();
    (void)err;
    if (faulty("number of a plan"))
        eps_of_plan = site->num[TN_NUM_EPS];
    if (faulty("a block with each plan"))
        plan->user[0] = (uintptr_t)calloc(1, 4096);
    plan->scratch_bytes = 64;
    plan->backward_scratch_bytes = (size_t)site->dim[TN_DIM_WIDTH] * sizeof(double);
    return TN_OK;
}

static const tn_impl norm_impls[] = {
    {.size = sizeof(tn_impl),
     .op = TN_OP_RMS_NORM,
     .match = {.size = sizeof(tn_match),
               .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32), [TN_AXIS_NORM] = TN_TAKES(TN_NORM_W)}},
     .tolerance = {.ulps_f32 = 1024},
     .plan = plan,
     .forward = forward,
     .backward = backward},
};

#endif
