/* Ends that come from outside: signals at any moment, files that may not grow, a machine without /proc, a plugin whose
 * file is replaced. None leaves a temporary file, and each has the status that says what happened. */
#include "process.h"
#include "sanitizer.h"
#include "suite.h"
#include "tempdir.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LLAMA "tests/data/models/llama"
#define MOMENTS 20

/* Moments spread over what a whole run takes, and somewhat beyond. */
static void signal_at_moments(int number, int status)
{
    char *folder = tempdir_new(), *path = tempdir_at(folder, "out.safetensors");
    const char *const arguments[] = {
        "logits", LLAMA, "--input", LLAMA "/expected.safetensors", "--output", path, "--kernels=none", "--quiet", NULL};
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    process_expect_output(process_run(NULL, arguments), "");
    clock_gettime(CLOCK_MONOTONIC, &end);
    double usual = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
    for (int i = 0; i < MOMENTS; i++) {
        unlink(path);
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        pid_t pid = process_start(arguments, dup(null), dup(null), null);
        double wait = usual * 1.1 * (i + 0.5) / MOMENTS;
        nanosleep(&(struct timespec){.tv_sec = (time_t)wait, .tv_nsec = (long)((wait - (double)(time_t)wait) * 1e9)},
                  NULL);
        kill(pid, number);
        int ended = process_wait(pid);
        ck_assert_msg(ended == 0 || ended == status, "moment %d: status %d", i, ended);
        size_t left = tempdir_count(folder), whole = tempdir_exists(path);
        ck_assert_msg(left == whole && (ended != 0 || whole), "moment %d: %zu files, %zu of them the result", i, left,
                      whole);
    }
}

START_TEST(signals_leave_no_files)
{
    signal_at_moments(SIGTERM, 128 + SIGTERM);
    signal_at_moments(SIGINT, 128 + SIGINT);
}
END_TEST

START_TEST(files_that_may_not_grow)
{
    char *folder = tempdir_new(), *path = tempdir_at(folder, "out.safetensors");
    struct rlimit before, small;
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 4096;
    setrlimit(RLIMIT_FSIZE, &small);
    process_result r = TENON(NULL, "logits", LLAMA, "--input", LLAMA "/expected.safetensors", "--output", path,
                             "--kernels=none", "--quiet");
    process_result printed = TENON(NULL, "inspect", "models/demo", "--kernels=none", "--format=json");
    setrlimit(RLIMIT_FSIZE, &before);
    process_expect_error(r, 4, "cannot write", "File too large", NULL);
    ck_assert_uint_eq(tempdir_count(folder), 0);
    ck_assert_int_eq(printed.status, 1);
}
END_TEST

#if !SANITIZER
static void preload(const char *fault)
{
    char library[4300];
    snprintf(library, sizeof library, "%s/tests/fault_preload.so", process_build());
    setenv("LD_PRELOAD", library, 1);
    setenv("TENON_FAULT", fault, 1);
    setenv("TENON_FAULT_CHILDREN", "yes", 1);
}
#endif

START_TEST(without_proc_the_reason_is_told)
{
#if SANITIZER
    printf("SKIPPED without /proc: the sanitizer wants to come before the library that hides it\n");
#else
    preload("proc");
    process_result r =
        TENON(NULL, "run", LLAMA, "--tokens", "1,2,3", "-n", "2", "--kernels=auto", "--quiet", "--threads=1");
    unsetenv("LD_PRELOAD");
    ck_assert_int_eq(r.status, 0);
    suite_expect_in(r.err, "tenon: warning: /proc/self/exe: ");
#endif
}
END_TEST

static char *copy_of(const char *folder, const char *plugin, const char *name)
{
    char from[4300];
    snprintf(from, sizeof from, "plugins/%s.so", plugin);
    process_copy_built(from, folder, name);
    char *to = tempdir_at(folder, name);
    ck_assert_int_eq(chmod(to, 0644), 0);
    return to;
}

/* One that generates until it is interrupted. */
static pid_t start_long_run(const char *plugins, int out, int err)
{
    const char *const arguments[] = {"run",
                                     "models/demo",
                                     "And it came to pass",
                                     "-n",
                                     "4000",
                                     "--ignore-eos",
                                     "--context=5000",
                                     "--kernels=auto",
                                     "--only-plugins",
                                     plugins,
                                     NULL};
    pid_t pid = process_start(arguments, open("/dev/null", O_RDONLY | O_CLOEXEC), out, err);
    process_await_handler(pid, SIGINT, true);
    return pid;
}

/* The mapping of a file that another one was renamed over stays: the run goes on with the plugin that it opened. */
START_TEST(a_plugin_renamed_over_while_in_use)
{
    char *folder = tempdir_new(), *plugins = tempdir_at(folder, "plugins");
    mkdir(plugins, 0755);
    char *plugin = copy_of(plugins, "npu_rmsnorm", "npu_rmsnorm.so"),
         *other = copy_of(folder, "npu_swiglu", "other.so");
    int out = memfd_create("out", MFD_CLOEXEC), err = memfd_create("err", MFD_CLOEXEC);
    pid_t pid = start_long_run(plugins, dup(out), err);
    ck_assert_int_eq(rename(other, plugin), 0);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    kill(pid, SIGINT);
    int status = process_wait(pid);
    ck_assert_msg(status == 130 || status == 0, "status %d", status);
    ck_assert_int_gt(lseek(out, 0, SEEK_END), 0);
    close(out);
    /* The next one looks at what is there now. */
    process_result r = TENON(NULL, "kernels", "--only-plugins", plugins);
    ck_assert_msg(strstr(r.out, "npu_fused_swiglu") && !strstr(r.out, "npu_fused_rmsnorm"), "%s", r.out);
}
END_TEST

int main(void)
{
    TCase *tests = suite_open("faults: ends", 0);
    suite_add(tests, signals_leave_no_files, files_that_may_not_grow, without_proc_the_reason_is_told,
              a_plugin_renamed_over_while_in_use);
    return process_main();
}
