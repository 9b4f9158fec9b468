/* What a library may do beside registering: BAD_PLUGIN names one deed. Right ones stand beside wrong ones, which
 * tests/plugin/test_plugin_trial.c tells apart. */
#include "honest.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/ioprio.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

HONEST_PLUGIN("conduct", "test_conduct", honest_forward);

/* A second one, that no trial would take. */
static const tn_plugin second = {.size = sizeof second, .abi_major = TN_ABI_MAJOR, .name = (const char *)8};

static bool is(const char *name)
{
    const char *deed = getenv("BAD_PLUGIN");
    return deed && !strcmp(deed, name);
}

static volatile int *volatile nowhere = (volatile int *)8;

static void crash(void)
{
    *nowhere = 1;
}

static void crash_at_exit(int status, void *unused)
{
    (void)status, (void)unused;
    crash();
}

static void crash_with(void *unused)
{
    (void)unused;
    crash();
}

static void nothing(void)
{
}

static void *register_now(void *unused)
{
    tn_register(&second);
    return unused;
}

static void *register_later(void *unused)
{
    usleep(20000);
    tn_register(&second);
    return unused;
}

static void *stay(void *unused)
{
    for (;;)
        pause();
    return unused;
}

static void *end(void *unused)
{
    return unused;
}

static void start(void *(*body)(void *), bool wait)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, body, NULL) == 0 && wait)
        pthread_join(thread, NULL);
}

/* BAD_NAME: what the processes are called. */
static void leave_process(bool detached)
{
    const char *name = getenv("BAD_NAME");
    pid_t pid = fork();
    if (pid == 0 && name)
        prctl(PR_SET_NAME, name);
    if (pid == 0 && detached && (setsid() < 0 || fork() > 0))
        _exit(0);
    if (pid == 0) {
        for (;;)
            pause();
    }
    if (detached)
        waitpid(pid, NULL, 0);
}

static void threads(void)
{
    if (is("a thread that registers"))
        start(register_now, true);
    if (is("a thread that registers later"))
        start(register_later, false);
    if (is("a thread that stays"))
        start(stay, false);
    if (is("a thread that ends"))
        start(end, true);
    if (is("ends its thread"))
        pthread_exit(NULL);
}

static void processes(void)
{
    if (is("a process"))
        leave_process(false);
    if (is("a process that got away"))
        leave_process(true);
    if (is("a process that ended") && system("true") != 0)
        _exit(1);
    if (is("a handler for forks that crashes first"))
        pthread_atfork(crash, NULL, NULL);
    if (is("a handler for forks that crashes in the parent"))
        pthread_atfork(NULL, crash, NULL);
    if (is("a handler for forks that crashes in the child"))
        pthread_atfork(NULL, NULL, crash);
    if (is("handlers for forks"))
        pthread_atfork(nothing, nothing, nothing);
}

static void timers(void)
{
    timer_t timer;
    struct itimerval one = {.it_value.tv_sec = 3600};
    struct itimerspec two = {.it_value.tv_sec = 3600};
    if (is("alarm"))
        alarm(3600);
    if (is("an alarm that is off again"))
        alarm(3600), alarm(0);
    if (is("setitimer"))
        setitimer(ITIMER_VIRTUAL, &one, NULL);
    if (is("timer_create") && timer_create(CLOCK_MONOTONIC, NULL, &timer) == 0)
        timer_settime(timer, 0, &two, NULL);
}

static void limits(void)
{
    cpu_set_t one;
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    if (is("fewer files")) {
        files.rlim_cur = 32;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (is("more files")) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    if (is("one processor"))
        sched_setaffinity(0, sizeof one, &one);
    if (is("one processor for its thread"))
        pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    if (is("only when nobody else runs"))
        sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0});
    if (is("reads files last"))
        syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0));
    if (is("all memory")) {
        for (size_t i = 0; i < 64; i++) {
            char *volatile piece = malloc((size_t)1 << 28); /* or a compiler sees that nobody reads it */
            if (!piece)
                abort();
            memset(piece, 1, (size_t)1 << 28);
        }
    }
}

static void files(void)
{
    for (int fd = 3; fd < 256 && is("closes files"); fd++)
        close(fd);
    if (is("changes a variable"))
        setenv("HOME", "/", 1);
    if (is("removes a variable"))
        unsetenv("HOME");
    if (is("sets a variable of its own"))
        setenv("TEST_CONDUCT", "1", 1);
    if (is("prints")) {
        printf("from the constructor\n");
        fflush(stdout);
        fprintf(stderr, "from the constructor\n");
    }
}

/* A trial opens a plugin on another thread than its process's first. */
static bool is_trial(void)
{
    return gettid() != getpid();
}

static void wait_for_change(const char *path)
{
    struct stat first, now;
    if (stat(path, &first) != 0)
        abort();
    do {
        usleep(1000);
        if (stat(path, &now) != 0)
            abort();
    } while (first.st_ctim.tv_sec == now.st_ctim.tv_sec && first.st_ctim.tv_nsec == now.st_ctim.tv_nsec);
}

/* Each must fail, and for that reason. */
static void expect_denied(int result)
{
    if (result != -1 || errno != EPERM)
        abort();
}

/* own: a file that is there and that nobody keeps this process from changing. */
static void try_to_leave_traces(const char *own)
{
    char path[4096];
    struct sockaddr_un socket_name = {.sun_family = AF_UNIX, .sun_path = "nobody"};
    snprintf(path, sizeof path, "%s.new", own);
    expect_denied(open(path, O_WRONLY | O_CREAT, 0600));
    expect_denied(creat(path, 0600));
    expect_denied(open(own, O_RDWR));
    expect_denied(open(own, O_RDONLY | O_TRUNC));
    expect_denied(truncate(own, 0));
    expect_denied(rename(own, path));
    expect_denied(link(own, path));
    expect_denied(symlink(own, path));
    expect_denied(unlink(own));
    expect_denied(mkdir(path, 0700));
    expect_denied(chmod(own, 0700));
    expect_denied(socket(AF_INET, SOCK_STREAM, 0));
    expect_denied(socket(AF_UNIX, SOCK_STREAM, 0));
    expect_denied(connect(STDIN_FILENO, (struct sockaddr *)&socket_name, sizeof socket_name));
    expect_denied(kill(getppid(), 0));
    expect_denied((int)ptrace(PTRACE_ATTACH, getppid(), NULL, NULL));
    expect_denied(setpriority(PRIO_PROCESS, (id_t)getppid(), 0));
    expect_denied(mount("none", "/mnt", "tmpfs", 0, NULL));
    /* What it needs. */
    int file = open(own, O_RDONLY);
    if (file < 0 || close(file) != 0 || kill(getpid(), 0) != 0 || write(STDOUT_FILENO, "", 1) != 1 ||
        prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1)
        abort();
}

/* As one that keeps what it found out in a file, and goes on where it cannot. */
static void write_cache(const char *own)
{
    char path[4096];
    snprintf(path, sizeof path, "%s.cache", own);
    FILE *file = fopen(path, "w");
    if (file) {
        fputs("cache", file);
        fclose(file);
    }
}

static void looks_around(void)
{
    const char *file = getenv("BAD_FILE");
    if (is("looks at descriptor 50") && is_trial() && fcntl(50, F_GETFD) >= 0)
        abort();
    if (is("waits until its file changes") && is_trial() && file)
        wait_for_change(file);
    if (is("leaves traces in the trial") && is_trial() && file)
        try_to_leave_traces(file);
    if (is("writes a cache in the trial") && is_trial() && file)
        write_cache(file);
    if (is("allows itself less")) {
        struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        struct sock_fprog program = {1, &all};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    }
    if (is("opens another library") && file && !dlopen(file, RTLD_NOW | RTLD_LOCAL))
        abort();
    if (is("opens another plugin") && file)
        dlopen(file, RTLD_NOW | RTLD_LOCAL);
}

static void ends(void)
{
    static pthread_key_t key;
    if (is("an exit handler that crashes"))
        atexit(crash);
    if (is("an exit handler with an argument that crashes"))
        on_exit(crash_at_exit, NULL);
    if (is("an exit handler"))
        atexit(nothing);
    if (is("a thread's end that crashes") && pthread_key_create(&key, crash_with) == 0)
        pthread_setspecific(key, &key);
    if (is("SIGTERM"))
        raise(SIGTERM);
    if (is("SIGKILL"))
        raise(SIGKILL);
    if (is("SIGABRT"))
        abort();
    if (is("exit"))
        exit(0);
    if (is("exit in the program") && !is_trial())
        exit(0);
}

__attribute__((constructor)) static void act(void)
{
    threads();
    processes();
    timers();
    limits();
    files();
    looks_around();
    ends();
}

__attribute__((destructor)) static void finish(void)
{
    if (is("a destructor that crashes"))
        crash();
    if (is("a destructor that leaves"))
        _exit(0);
    if (is("a destructor that hangs"))
        for (;;)
            pause();
}
