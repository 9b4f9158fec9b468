/* An RMS norm that computes the right numbers and behaves badly as BAD_GUEST says: "WHAT in WHERE" changes something of
 * the process ("chdir in plan"), and a few words stand for themselves (the ends of forward below). "late" is forward
 * after many calls, more than any check makes. Without the variable it is a good kernel (tests/cli/test_cli_guest.c).
 */
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tenon/kernel.h>
#include <unistd.h>

enum { LATE = 400, MANY_ROWS = 132 };

static pid_t home; /* the process that opened this: a child that calls it is another                 */

__attribute__((constructor)) static void remember_process(void)
{
    home = getpid();
}

static const char *fault(void)
{
    const char *text = getenv("BAD_GUEST");
    return text ? text : "";
}

static bool faulty(const char *name)
{
    return !strcmp(fault(), name);
}

static void flush_denormals(void)
{
#if defined(__x86_64__)
    unsigned control;
    __asm__ volatile("stmxcsr %0" : "=m"(control));
    control |= 0x8040;
    __asm__ volatile("ldmxcsr %0" : : "m"(control));
#endif
}

static void ignore(int number)
{
    (void)number;
}

static void leave(void)
{
    _exit(0);
}

/* The functions that end a process. */
static void end(const char *what)
{
    if (!strncmp(what, "exit ", 5))
        exit(0);
    if (!strncmp(what, "_exit ", 6))
        _exit(0);
    if (!strncmp(what, "_Exit ", 6))
        _Exit(0);
    if (!strncmp(what, "quick_exit ", 11))
        quick_exit(0);
    if (!strncmp(what, "pthread_exit ", 13))
        pthread_exit(NULL);
    if (!strncmp(what, "abort ", 6))
        abort();
    if (!strncmp(what, "SIGKILL ", 8))
        raise(SIGKILL);
    if (!strncmp(what, "exec ", 5))
        execl("/bin/true", "true", NULL);
    if (!strncmp(what, "a handler ", 10))
        atexit(leave);
}

static void change(const char *what)
{
    sigset_t interrupt;
    cpu_set_t one;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    if (!strncmp(what, "flush ", 6))
        flush_denormals();
    else if (!strncmp(what, "chdir ", 6))
        (void)!chdir("/");
    else if (!strncmp(what, "mask ", 5))
        pthread_sigmask(SIG_BLOCK, &interrupt, NULL);
    else if (!strncmp(what, "umask ", 6))
        umask(0);
    else if (!strncmp(what, "close ", 6))
        close(STDOUT_FILENO);
    else if (!strncmp(what, "replace ", 8))
        dup2(STDERR_FILENO, STDOUT_FILENO);
    else if (!strncmp(what, "nonblock ", 9))
        fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) ^ O_NONBLOCK);
    else if (!strncmp(what, "alarm ", 6))
        alarm(3600);
    else if (!strncmp(what, "handler ", 8))
        signal(SIGINT, ignore);
    else if (!strncmp(what, "pin ", 4))
        sched_setaffinity(0, sizeof one, &one);
    else if (!strncmp(what, "locale ", 7))
        setlocale(LC_ALL, "C.UTF-8");
    else if (!strncmp(what, "wait ", 5))
        usleep(10000);
}

static void misbehave(const char *where)
{
    const char *in = strstr(fault(), " in ");
    if (in && !strcmp(in + 4, where))
        change(fault()), end(fault());
    if (in && !strncmp(in, " in the program's ", 18) && !strcmp(in + 18, where) && getpid() == home)
        end(fault());
}

static void in_worker(void *ctx, int32_t thread, int32_t threads)
{
    (void)ctx;
    (void)threads;
    if (thread > 0)
        misbehave("worker");
}

/* Row r, counted over all leading dimensions, whose strides are arbitrary. */
static float *place(const tn_tensor *t, int64_t r)
{
    float *at = t->data;
    for (int32_t d = t->ndim - 2; d >= 0; r /= t->shape[d--])
        at += r % t->shape[d] * t->stride[d];
    return at;
}

static void norm_row(const float *x, float *y, const float *w, int64_t n, double eps, float wrong)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    float scale = (float)(1 / sqrt(sum / (double)n + eps));
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * scale * w[i] * wrong;
}

/* How it ends with these many rows; the words that stand for themselves. */
static tn_status end_of(int64_t rows, bool late, tn_error *err)
{
    if (faulty("declines many rows") && rows > MANY_ROWS)
        return TN_DECLINED;
    if ((faulty("77 for many rows") && rows > MANY_ROWS) || (faulty("77 late") && late))
        return (tn_status)77;
    if (faulty("declines late") && late)
        return tn_fail(err, TN_DECLINED, NULL, "had enough");
    if (faulty("cancels late") && late)
        return TN_E_CANCELLED;
    return TN_OK;
}

/* "wrong with 37 tokens", or "wrong with 7 over blocks of 8" where there are some of them. */
static bool is_wrong_with(int64_t tokens)
{
    int number, block;
    if (sscanf(fault(), "wrong with %d over blocks of %d", &number, &block) == 2)
        return tokens > 4 * block && tokens % block == number;
    return sscanf(fault(), "wrong with %d tokens", &number) == 1 && tokens == number;
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    static atomic_int calls;
    const tn_tensor *x = &call->in[0];
    int64_t n = x->shape[x->ndim - 1], rows = tn_tensor_count(x) / n;
    float *w = call->site->param[TN_ROLE_WEIGHT].tensors[0].data;
    int before = atomic_fetch_add(&calls, 1);
    bool late = before >= LATE;
    if (faulty("drift") || (faulty("drift late") && late))
        w[0] *= 1.00001f;
    if (faulty("packed") && call->packed)
        *(float *)call->packed += 1;
    bool wrong = (faulty("wrong late") && late) || is_wrong_with(x->shape[x->ndim == 4]);
    if (faulty("races")) /* as a race would, but always in the same calls */
        wrong = call->plan->threads > 1 && before % 3 == 1;
    for (int64_t r = 0; r < rows; r++)
        norm_row(place(x, r), place(&call->out[0], r), w, n, call->site->num[TN_NUM_EPS], wrong ? 1.5f : 1);
    misbehave("forward");
    if (late)
        misbehave("late");
    tn_parallel(in_worker, NULL);
    return end_of(rows, late, err);
}

static tn_status plan(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->packed_bytes = 64;
    misbehave("plan");
    return faulty("77 of plan") ? (tn_status)77 : TN_OK;
}

static tn_status pack(const tn_site *site, const tn_plan *plan, void *packed, tn_queue *queue, tn_error *err)
{
    (void)site;
    (void)queue;
    (void)err;
    memset(packed, 0, plan->packed_bytes);
    misbehave("pack");
    return TN_OK;
}

static tn_status available(tn_error *err)
{
    (void)err;
    misbehave("available");
    return TN_OK;
}

static const tn_impl impls[] = {
    {.size = sizeof(tn_impl),
     .op = TN_OP_RMS_NORM,
     .match = {.size = sizeof(tn_match),
               .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32), [TN_AXIS_NORM] = TN_TAKES(TN_NORM_W)}},
     .tolerance = {.ulps_f32 = 1024},
     .plan = plan,
     .pack = pack,
     .forward = forward,
     .traits = TN_KEEPS_STATE}, /* it counts its calls */
};

static const tn_kernel kernels[] = {
    {.size = sizeof(tn_kernel),
     .id = "npu_bad_guest",
     .version = "1.0.0",
     .summary = "RMS norm with bad manners",
     .device = "cpu",
     .available = available,
     .impls = impls,
     .impl_count = 1},
};

TN_PLUGIN("bad_guest", "1.0.0", .kernels = kernels, .kernel_count = 1);
