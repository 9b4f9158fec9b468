/* An RMS norm that is right and has threads of its own: OpenMP's, or such as wait for work for ever, where BAD_KERNEL
 * says so. */
#include "bad.h"

#include <pthread.h>
#include <semaphore.h>

typedef struct {
    const tn_call *call;
    int64_t n, begin, end;
} piece;

static void norm_row(const tn_call *call, int64_t r, int64_t n)
{
    const float *x = place(&call->in[0], r), *w = weights_of(call, TN_ROLE_WEIGHT, 0);
    float *y = place(&call->out[0], r);
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    float scale = 1.0f / sqrtf((float)(sum / (double)n) + (float)call->site->num[TN_NUM_EPS]);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * scale * w[i];
}

static void norm_rows(const piece *p)
{
    for (int64_t r = p->begin; r < p->end; r++)
        norm_row(p->call, r, p->n);
}

/* ---- a thread that lives on ------------------------------------------------------------------------------- */

static sem_t asked, done;
static const piece *work;

static void *serve(void *unused)
{
    for (;;) {
        sem_wait(&asked);
        norm_rows(work);
        if (faulty("a thread of its own that writes too far"))
            ((volatile float *)work->call->out[0].data)[work->end * work->n] = 1;
        sem_post(&done);
    }
    return unused;
}

/* One call after the other. */
static void by_own_thread(const piece *p)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int started;
    pthread_t thread;
    pthread_mutex_lock(&lock);
    if (!started) {
        sem_init(&asked, 0, 0);
        sem_init(&done, 0, 0);
        started = pthread_create(&thread, NULL, serve, NULL) == 0;
    }
    work = p;
    sem_post(&asked);
    sem_wait(&done);
    pthread_mutex_unlock(&lock);
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    name_fault();
    (void)err;
    const tn_tensor *x = &call->in[0];
    int64_t n = x->shape[x->ndim - 1], rows = tn_tensor_count(x) / n;
    piece all = {call, n, 0, rows};
    if (faulty("a thread of its own") || faulty("a thread of its own that writes too far")) {
        by_own_thread(&all);
        return TN_OK;
    }
#pragma omp parallel for
    for (int64_t r = 0; r < rows; r++)
        norm_row(call, r, n);
    return TN_OK;
}

static const tn_impl impls[] = {
    {.size = sizeof(tn_impl),
     .op = TN_OP_RMS_NORM,
     .match = {.size = sizeof(tn_match),
               .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32), [TN_AXIS_NORM] = TN_TAKES(TN_NORM_W)}},
     .tolerance = {.ulps_f32 = 64},
     .forward = forward,
     .traits = TN_KEEPS_STATE},
};

BAD_KERNEL_PLUGIN("threads_kernel", "test_threads", impls[0]);
