/* Running plugin code in a child process first. The program around the library may have threads, signal handlers and
 * half-written files: the child resets every handler, writes nowhere, and leaves by _exit only. */
#include "device/guard.h"

#include "base/clock.h"
#include "device/device.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the child tells through shared memory: the exit status may be taken by a program that ignores SIGCHLD or
 * waits for all its children. */
typedef struct guard_note {
    volatile int returned, exited;
    volatile int value;
} guard_note;

/* Runs first of all exit handlers, so that neither the program's own handlers nor its unwritten streams are touched. */
static void leave_at_exit(int status, void *arg)
{
    guard_note *note = arg;
    note->value = status;
    note->exited = 1;
    _exit(status & 0xff);
}

static void child_signals(void)
{
    struct sigaction plain = {.sa_handler = SIG_DFL};
    for (int s = 1; s <= SIGRTMAX; s++)
        sigaction(s, &plain, NULL); /* fails for SIGKILL, SIGSTOP and those of the C library */
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
}

static void child_limits(double seconds)
{
    rlim_t cpu = (rlim_t)ceil(seconds) + 1;
    setrlimit(RLIMIT_CPU, &(struct rlimit){.rlim_cur = cpu, .rlim_max = cpu + 1});
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    prctl(PR_SET_DUMPABLE, 0); /* RLIMIT_CORE does not hold for a core that is piped to a program */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static _Noreturn void child_main(int (*body)(void *), void *ctx, double seconds, guard_note *note)
{
    child_signals();
    setpgid(0, 0); /* so that what it starts can be killed with it */
    child_limits(seconds);
    int nowhere = open("/dev/null", O_RDWR);
    if (nowhere >= 0) {
        dup2(nowhere, STDIN_FILENO);
        dup2(nowhere, STDOUT_FILENO);
        dup2(nowhere, STDERR_FILENO);
        if (nowhere > STDERR_FILENO)
            close(nowhere);
    }
    on_exit(leave_at_exit, note);
    threads_serial(true);
    int value = body(ctx);
    note->value = value;
    note->returned = 1;
    _exit(value == 0 ? 0 : 1);
}

/* Waits for the child's end without reaping it; the pipe's end wakes it, the clock is what counts: a child may close
 * every descriptor. 1: ended; 0: still runs at the deadline; -1: someone else took its status. */
static int wait_until(pid_t pid, int pipe_end, double deadline)
{
    bool hung_up = false;
    for (;;) {
        siginfo_t info = {.si_pid = 0};
        int got = waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT);
        if (got == 0 && info.si_pid == pid)
            return 1;
        if (got < 0 && errno != EINTR)
            return -1;
        double left = deadline - clock_seconds();
        if (left <= 0)
            return 0;
        int ms = left > 60 ? 60000 : (int)(left * 1e3) + 1;
        struct pollfd p = {.fd = hung_up ? -1 : pipe_end, .events = POLLIN};
        if (poll(&p, 1, hung_up && ms > 2 ? 2 : ms) > 0)
            hung_up = true;
    }
}

static guard_result parent_main(pid_t pid, int pipe_end, double seconds, const guard_note *note)
{
    int status = 0;
    struct rusage usage = {0};
    int waited = wait_until(pid, pipe_end, clock_seconds() + seconds);
    if (waited >= 0) {
        /* What it started goes with it. Not reaped yet, the number cannot belong to anyone else. */
        kill(-pid, SIGKILL);
        kill(pid, SIGKILL);
        pid_t got;
        do
            got = wait4(pid, &status, 0, &usage);
        while (got < 0 && errno == EINTR);
        if (got < 0 && waited > 0)
            waited = -1;
    }
    guard_result result = {.end = GUARD_LOST};
    result.cpu_seconds = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                         1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    if (note->returned) {
        result.end = GUARD_RETURNED;
        result.value = note->value;
    } else if (waited == 0) {
        result.end = GUARD_TIMEOUT;
    } else if (note->exited) {
        result.end = GUARD_EXITED;
        result.value = note->value;
    } else if (waited > 0) {
        result.end = WIFSIGNALED(status) ? GUARD_SIGNALLED : GUARD_EXITED;
        result.value = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
    }
    return result;
}

guard_result guard_run_long(int (*body)(void *ctx), void *ctx, double seconds)
{
    guard_result result = {.end = GUARD_FAILED};
    int ends[2] = {-1, -1};
    guard_note *note = mmap(NULL, sizeof *note, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (note == MAP_FAILED || pipe2(ends, O_CLOEXEC) != 0) {
        result.value = errno;
        goto done;
    }
    /* No handler of the program may run in the child. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = fork();
    if (pid == 0)
        child_main(body, ctx, seconds, note);
    int fork_errno = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(ends[1]);
    ends[1] = -1;
    if (pid < 0)
        result.value = fork_errno;
    else
        result = parent_main(pid, ends[0], seconds, note);
done:
    if (ends[0] >= 0)
        close(ends[0]);
    if (ends[1] >= 0)
        close(ends[1]);
    if (note != MAP_FAILED)
        munmap(note, sizeof *note);
    return result;
}

static void describe_signal(int s, double seconds, char *reason, size_t size)
{
    const char *name = sigabbrev_np(s);
    if (s == SIGXCPU)
        snprintf(reason, size, "used more than %g s of processor time", seconds);
    else if (name)
        snprintf(reason, size, "crashed with SIG%s", name);
    else
        snprintf(reason, size, "crashed with signal %d", s);
}

void guard_describe(const guard_result *result, double seconds, char *reason, size_t reason_size)
{
    switch (result->end) {
    case GUARD_RETURNED:
        snprintf(reason, reason_size, "returned %d", result->value);
        break;
    case GUARD_EXITED:
        snprintf(reason, reason_size, "called exit(%d)", result->value);
        break;
    case GUARD_SIGNALLED:
        describe_signal(result->value, seconds, reason, reason_size);
        break;
    case GUARD_TIMEOUT:
        snprintf(reason, reason_size, "did not finish within %g s", seconds);
        break;
    case GUARD_LOST:
        snprintf(reason, reason_size, "ended early (its exit status was taken by another part of this program)");
        break;
    case GUARD_FAILED:
        snprintf(reason, reason_size, "could not be tried: no child process: %s", strerror(result->value));
        break;
    }
}

tn_status guard_run(int (*body)(void *ctx), void *ctx, double seconds, char *reason, size_t reason_size)
{
    guard_result result = guard_run_long(body, ctx, seconds);
    if (reason_size > 0)
        reason[0] = '\0';
    if (result.end == GUARD_RETURNED && result.value == 0)
        return TN_OK;
    guard_describe(&result, seconds, reason, reason_size);
    return result.end == GUARD_FAILED ? TN_E_INTERNAL : TN_E_KERNEL;
}
