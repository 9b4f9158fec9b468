/* Running plugin code in a child process first. The program around the library may have threads, signal handlers and
 * half-written files: the child resets every handler, writes nowhere, and leaves by _exit only.
 *
 * Between the program and the child stands a warden, a process of a few lines that outlives the child: it keeps the
 * time, takes the exit status, which the program's own handlers might take otherwise, and becomes the parent of
 * whatever the child leaves behind, so that it can end that too. */
#include "device/guard.h"

#include "base/clock.h"
#include "device/device.h"
#include "device/openmp.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the child and the warden tell through shared memory. */
typedef struct guard_note {
    volatile int started;                 /* the warden runs, or the child without one           */
    volatile int returned, exited, value; /* by the child                                        */
    volatile int ended, late, status;     /* by who waits: waited for, killed at the limit       */
    volatile int fork_errno;
    volatile double cpu_seconds;
} guard_note;

typedef struct guard_job {
    int (*body)(void *);
    void *ctx;
    double seconds;
    const volatile size_t *at; /* the question it is at; NULL: one limit for all                  */
    bool (*go_on)(void *);     /* or NULL: it does                                               */
    bool warden;
    guard_note *note;
    int pipe_end;
} guard_job;

/* fork without the handlers that libraries registered for it; fork where the C library has no such thing. */
static pid_t plain_fork(void)
{
#if defined(__GLIBC__) && defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 34)
    return _Fork();
#endif
#endif
    return fork();
}

/* ---- the limit -------------------------------------------------------------------------------------------------- */

/* Whoever waits looks at the clock every LOOK seconds. More than HELD_UP between two looks were nobody's: the machine
 * stood still, or had no processor even for that. */
static const double LOOK = 0.1, HELD_UP = 1;

typedef struct guard_limit {
    double seconds, deadline, looked;
    const volatile size_t *at;
    size_t seen;
} guard_limit;

static guard_limit limit_start(const guard_job *job, double slack)
{
    double seconds = job->seconds + slack, now = clock_seconds();
    return (guard_limit){seconds, now + seconds, now, job->at, job->at ? *job->at : 0};
}

/* Seconds left. Another question has the limit for itself. */
static double limit_left(guard_limit *limit)
{
    double now = clock_seconds(), passed = now - limit->looked;
    limit->looked = now;
    if (passed > HELD_UP)
        limit->deadline += passed;
    if (limit->at && *limit->at != limit->seen) {
        limit->seen = *limit->at;
        limit->deadline = now + limit->seconds;
    }
    return limit->deadline - now;
}

/* ---- what a child started --------------------------------------------------------------------------------------- */

typedef struct guard_family {
    pid_t members[1024];
    size_t count;
} guard_family;

static bool is_member(const guard_family *family, long pid)
{
    for (size_t i = 0; i < family->count; i++)
        if (family->members[i] == (pid_t)pid)
            return true;
    return false;
}

/* The parent of a process by its line "NUMBER (NAME) STATE PARENT" in /proc; 0: not known. */
static long parent_of(long pid)
{
    char path[64], line[512];
    long parent = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = file >= 0 ? read(file, line, sizeof line - 1) : -1;
    if (file >= 0)
        close(file);
    line[n > 0 ? n : 0] = '\0';
    const char *name_end = strrchr(line, ')');
    return name_end && sscanf(name_end, ") %*c %ld", &parent) == 1 ? parent : 0;
}

/* Stops those whose parent is in the family, which become members. */
static bool add_children(guard_family *family)
{
    size_t before = family->count;
    DIR *list = opendir("/proc");
    for (struct dirent *entry; list && (entry = readdir(list));) {
        long pid = strtol(entry->d_name, NULL, 10);
        if (pid <= 0 || family->count == sizeof family->members / sizeof family->members[0] || is_member(family, pid) ||
            !is_member(family, parent_of(pid)))
            continue;
        kill((pid_t)pid, SIGSTOP);
        family->members[family->count++] = (pid_t)pid;
    }
    if (list)
        closedir(list);
    return family->count > before;
}

/* Ends all processes below root, which is this one or has been stopped. */
static void kill_below(pid_t root)
{
    guard_family family = {.members = {root}, .count = 1};
    while (add_children(&family))
        continue;
    for (size_t i = 1; i < family.count; i++)
        kill(family.members[i], SIGKILL);
}

static bool has_children(void)
{
    siginfo_t info;
    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

/* ---- the child -------------------------------------------------------------------------------------------------- */

/* Runs first of all exit handlers, so that neither the program's own handlers nor its unwritten streams are touched. */
static void leave_at_exit(int status, void *arg)
{
    guard_note *note = arg;
    note->value = status;
    note->exited = 1;
    if (has_children())
        kill_below(getpid());
    _exit(status & 0xff);
}

void guard_close_from(int first)
{
#ifdef SYS_close_range
    if (syscall(SYS_close_range, (unsigned)first, ~0U, 0) == 0)
        return;
#endif
    long most = sysconf(_SC_OPEN_MAX);
    for (int fd = first; fd < most && fd < 65536; fd++)
        close(fd);
}

/* What takes all memory there is would have others killed. The sanitizers' own memory counts too, and is
 * more than any machine has: there is no such limit under them. */
void guard_limit_memory(void)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    static const rlim_t MORE = (rlim_t)2 << 30;
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    bool known = file && fscanf(file, "%*u %*u %*u %*u %*u %lu", &pages) == 1;
    if (file)
        fclose(file);
    rlim_t most = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + MORE;
    struct rlimit now;
    if (known && getrlimit(RLIMIT_DATA, &now) == 0 && most < now.rlim_cur && most < now.rlim_max)
        setrlimit(RLIMIT_DATA, &(struct rlimit){most, now.rlim_max});
#endif
}

static void plain_signals(void)
{
    struct sigaction plain = {.sa_handler = SIG_DFL};
    for (int s = 1; s <= SIGRTMAX; s++)
        sigaction(s, &plain, NULL); /* fails for SIGKILL, SIGSTOP and those of the C library */
}

static void child_limits(const guard_job *job)
{
    rlim_t cpu = (rlim_t)ceil(job->seconds) + 1;
    if (!job->at)
        setrlimit(RLIMIT_CPU, &(struct rlimit){.rlim_cur = cpu, .rlim_max = cpu + 1});
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    prctl(PR_SET_DUMPABLE, 0); /* RLIMIT_CORE does not hold for a core that is piped to a program */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static _Noreturn void child_main(const guard_job *job)
{
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    job->note->started = 1; /* what a handler for forks raised has arrived by now                    */
    setpgid(0, 0);          /* so that what it starts can be killed with it */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    child_limits(job);
    int nowhere = open("/dev/null", O_RDWR);
    if (nowhere >= 0) {
        dup2(nowhere, STDIN_FILENO);
        dup2(nowhere, STDOUT_FILENO);
        dup2(nowhere, STDERR_FILENO);
        if (nowhere > STDERR_FILENO)
            close(nowhere);
    }
    close(job->pipe_end);
    on_exit(leave_at_exit, job->note);
    threads_serial(true);
    int value = job->body(job->ctx);
    job->note->value = value;
    job->note->returned = 1;
    if (has_children())
        kill_below(getpid());
    _exit(value == 0 ? 0 : 1);
}

/* ---- the warden ------------------------------------------------------------------------------------------------- */

/* Waits until the child ends. false: it still runs at the limit, or the program is gone (SIGTERM). */
static bool warden_wait(pid_t child, const guard_job *job)
{
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    sigaddset(&wanted, SIGTERM);
    guard_limit limit = limit_start(job, 0);
    for (;;) {
        siginfo_t info = {.si_pid = 0};
        if (waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child)
            return true;
        double left = limit_left(&limit);
        if (left <= 0)
            return false;
        struct timespec time = {.tv_nsec = (long)(fmin(left, LOOK) * 1e9)};
        if (sigtimedwait(&wanted, NULL, &time) == SIGTERM)
            return false;
    }
}

static void note_end(guard_note *note, int status, const struct rusage *usage)
{
    note->cpu_seconds = (double)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) +
                        1e-6 * (double)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);
    note->status = status;
    note->ended = 1;
}

/* Ends and reaps the child and all that it left, whose parent the warden has become. A process that could not be found
 * is not waited for. */
static void warden_clear(pid_t child, guard_note *note)
{
    enum { TRIES = 2000 }; /* of a millisecond: for processes that are still dying, or starting others */
    kill(-child, SIGKILL);
    kill(child, SIGKILL);
    for (int tries = 0; tries < TRIES;) {
        int status;
        struct rusage usage;
        pid_t got = wait4(-1, &status, WNOHANG, &usage);
        if (got < 0 && errno != EINTR)
            return;
        if (got == child)
            note_end(note, status, &usage);
        else if (got == 0) {
            if (note->ended)
                kill_below(getpid());
            usleep(tries++ < 10 ? 50 : 1000);
        }
    }
}

static _Noreturn void warden_main(const guard_job *job)
{
    job->note->started = 1;
    setpgid(0, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    /* The handlers for forks have just run. */
    pid_t child = plain_fork();
    if (child == 0)
        child_main(job);
    if (child < 0) {
        job->note->fork_errno = errno;
        _exit(1);
    }
    /* Nothing that somebody waits for the end of stays open here; the pipe's end goes last. */
    dup2(job->pipe_end, STDIN_FILENO);
    guard_close_from(STDIN_FILENO + 1);
    job->note->late = !warden_wait(child, job);
    warden_clear(child, job->note);
    _exit(0);
}

/* ---- the program ------------------------------------------------------------------------------------------------ */

/* Waits for the process's end without reaping it; the pipe's end wakes it, the clock is what counts: a child may close
 * every descriptor. false: it still runs at the limit, or is not to go on. A warden keeps that itself: it is late only
 * when its child stopped it. */
static bool wait_for_end(pid_t pid, int pipe_end, const guard_job *job)
{
    enum { SLACK = 20 }; /* seconds for a warden's own work on a busy machine */
    guard_limit limit = limit_start(job, job->warden ? SLACK : 0);
    bool hung_up = false;
    for (;;) {
        siginfo_t info = {.si_pid = 0};
        int got = waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT);
        if ((got == 0 && info.si_pid == pid) || (got < 0 && errno != EINTR))
            return true; /* or somebody else took its status */
        double left = limit_left(&limit);
        if (left <= 0 || (job->go_on && job->note->started && !job->go_on(job->ctx)))
            return false;
        int ms = (int)(fmin(left, LOOK) * 1e3) + 1; /* questions follow one another without a word, too        */
        struct pollfd p = {.fd = hung_up ? -1 : pipe_end, .events = POLLIN};
        if (poll(&p, 1, hung_up && ms > 2 ? 2 : ms) > 0)
            hung_up = true;
    }
}

static guard_result read_note(const guard_note *note)
{
    guard_result result = {.end = GUARD_LOST, .cpu_seconds = note->cpu_seconds};
    if (!note->started) {
        result.end = GUARD_UNSTARTED;
    } else if (note->fork_errno) {
        result = (guard_result){.end = GUARD_FAILED, .value = note->fork_errno};
    } else if (note->returned) {
        result.end = GUARD_RETURNED;
        result.value = note->value;
    } else if (note->late) {
        result.end = GUARD_TIMEOUT;
    } else if (note->exited) {
        result.end = GUARD_EXITED;
        result.value = note->value;
    } else if (note->ended) {
        int status = note->status;
        result.end = WIFSIGNALED(status) ? GUARD_SIGNALLED : GUARD_EXITED;
        result.value = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
    }
    return result;
}

static guard_result watch(pid_t pid, int pipe_end, const guard_job *job)
{
    guard_note *note = job->note;
    int status;
    struct rusage usage;
    pid_t got;
    if (!wait_for_end(pid, pipe_end, job)) {
        /* Not reaped yet, the number cannot belong to anyone else. What a warden watches dies with it. */
        note->late = 1;
        if (!job->warden && kill(pid, SIGSTOP) == 0)
            kill_below(pid);
        kill(pid, SIGKILL);
    }
    if (!job->warden)
        kill(-pid, SIGKILL);
    do
        got = wait4(pid, &status, 0, &usage);
    while (got < 0 && errno == EINTR);
    if (!job->warden && got == pid)
        note_end(note, status, &usage);
    return read_note(note);
}

static guard_result attempt(guard_job *job, bool with_handlers)
{
    guard_result result = {.end = GUARD_FAILED};
    int ends[2];
    *job->note = (guard_note){0};
    if (pipe2(ends, O_CLOEXEC) != 0) {
        result.value = errno;
        return result;
    }
    job->pipe_end = ends[1];
    openmp_rest();
    /* No handler of the program may run in the child. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = with_handlers ? fork() : plain_fork();
    if (pid == 0) {
        if (!with_handlers)
            threads_forget();
        plain_signals();
        if (job->warden)
            warden_main(job);
        child_main(job);
    }
    result.value = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(ends[1]);
    if (pid > 0)
        result = watch(pid, ends[0], job);
    close(ends[0]);
    return result;
}

/* A library may have registered handlers for forks that crash in the child. Without them the C library does not make
 * its own locks whole either, so a child of a program with threads may wait for ever for one; its time is limited. */
static guard_result run(guard_job *job)
{
    static atomic_bool handlers_fail;
    guard_result result = {.end = GUARD_FAILED};
    job->note = mmap(NULL, sizeof *job->note, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (job->note == MAP_FAILED) {
        result.value = errno;
        return result;
    }
    result = attempt(job, !atomic_load(&handlers_fail));
    if (result.end == GUARD_UNSTARTED && !atomic_exchange(&handlers_fail, true))
        result = attempt(job, false);
    munmap(job->note, sizeof *job->note);
    return result;
}

guard_result guard_run_long(int (*body)(void *ctx), void *ctx, double seconds)
{
    guard_job job = {.body = body, .ctx = ctx, .seconds = seconds, .warden = true};
    return run(&job);
}

/* ---- in words --------------------------------------------------------------------------------------------------- */

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
        snprintf(reason, reason_size, "ended early (another process took its exit status)");
        break;
    case GUARD_UNSTARTED:
        snprintf(reason, reason_size, "could not be tried: a handler for forks ended the child before it began");
        break;
    case GUARD_FAILED:
        snprintf(reason, reason_size,
                 "could not be tried: no process can be started for it: %s; end other programs, raise the limits "
                 "(ulimit -u, "
                 "ulimit -n), or use no kernels",
                 strerror(result->value));
        break;
    }
}

static tn_status conclude(guard_job *job, char *reason, size_t reason_size)
{
    guard_result result = run(job);
    if (reason_size > 0)
        reason[0] = '\0';
    if (result.end == GUARD_RETURNED && result.value == 0)
        return TN_OK;
    guard_describe(&result, job->seconds, reason, reason_size);
    return result.end == GUARD_FAILED ? TN_E_MEMORY : result.end == GUARD_UNSTARTED ? TN_E_INTERNAL : TN_E_KERNEL;
}

tn_status guard_run(int (*body)(void *ctx), void *ctx, double seconds, char *reason, size_t reason_size)
{
    return conclude(&(guard_job){.body = body, .ctx = ctx, .seconds = seconds}, reason, reason_size);
}

tn_status guard_run_each(int (*body)(void *ctx), void *ctx, double seconds, const volatile size_t *at,
                         bool (*go_on)(void *ctx), char *reason, size_t reason_size)
{
    guard_job job = {.body = body, .ctx = ctx, .seconds = seconds, .at = at, .go_on = go_on};
    return conclude(&job, reason, reason_size);
}
