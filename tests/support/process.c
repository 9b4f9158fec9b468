#include "process.h"

#include "suite.h"
#include "tempdir.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <tenon/tenon.h>
#include <time.h>
#include <unistd.h>

#define SECONDS_MAX 600 /* only ends what hangs: under sanitizers on a busy machine minutes are normal */
#define ARGUMENTS_MAX 32

const char *process_build(void)
{
    static char folder[4096];
    const char *given = getenv("TENON_BUILD");
    if (given)
        return given;
    ssize_t length = readlink("/proc/self/exe", folder, sizeof folder - 1);
    ck_assert_int_gt(length, 0);
    folder[length] = '\0';
    for (int levels = 0; levels < 2; levels++) {
        char *slash = strrchr(folder, '/');
        ck_assert_ptr_nonnull(slash);
        *slash = '\0';
    }
    return folder;
}

void process_copy_built(const char *from, const char *folder, const char *as)
{
    char path[4300];
    snprintf(path, sizeof path, "%s/%s", process_build(), from);
    tempdir_copy_file(path, folder, as);
}

pid_t process_start(const char *const *arguments, int in, int out, int err)
{
    char program[4200];
    const char *argv[ARGUMENTS_MAX + 2] = {program};
    snprintf(program, sizeof program, "%s/tenon", process_build());
    for (int i = 0; arguments[i]; i++) {
        ck_assert_int_lt(i, ARGUMENTS_MAX);
        argv[i + 1] = arguments[i];
    }
    /* check has handlers that kill the whole group; the child must not have them, not even until exec. */
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        if (dup2(in, 0) == 0 && dup2(out, 1) == 1 && dup2(err, 2) == 2)
            execv(program, (char *const *)argv);
        _exit(127);
    }
    close(in);
    close(out);
    close(err);
    return pid;
}

int process_wait(pid_t pid)
{
    int status = 0;
    for (int tenths = 0; tenths < SECONDS_MAX * 10; tenths++) {
        pid_t ended = waitpid(pid, &status, WNOHANG);
        ck_assert_int_ge(ended, 0);
        if (ended == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        nanosleep(&(struct timespec){.tv_nsec = tenths < 20 ? 5000000 : 100000000}, NULL);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    ck_abort_msg("tenon did not end within %d seconds", SECONDS_MAX);
    return -1;
}

void process_await_handler(pid_t pid, int signal_number, bool installed)
{
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    for (int tries = 0; tries < SECONDS_MAX * 100; tries++) {
        FILE *file = fopen(path, "r");
        unsigned long long caught = 0;
        char state = 'Z';
        while (file && fgets(line, sizeof line, file))
            if (sscanf(line, "State: %c", &state) != 1 && sscanf(line, "SigCgt: %llx", &caught) == 1)
                break;
        if (file)
            fclose(file);
        if ((caught >> (signal_number - 1) & 1) == installed)
            return;
        if (state == 'Z')
            break;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    ck_abort_msg("tenon did not %s a handler for signal %d", installed ? "install" : "remove", signal_number);
}

static int input_file(const char *input)
{
    int fd = memfd_create("input", MFD_CLOEXEC);
    size_t length = input ? strlen(input) : 0;
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, input ? input : "", length), (ssize_t)length);
    lseek(fd, 0, SEEK_SET);
    return fd;
}

static char *file_text(int fd, size_t *length)
{
    off_t size = lseek(fd, 0, SEEK_END);
    char *text = malloc((size_t)size + 1);
    ck_assert_ptr_nonnull(text);
    ck_assert_int_eq(pread(fd, text, (size_t)size, 0), size);
    text[size] = '\0';
    *length = (size_t)size;
    close(fd);
    suite_keep(text, free);
    return text;
}

process_result process_run(const char *input, const char *const *arguments)
{
    process_result r = {0};
    size_t ignored;
    int out = memfd_create("out", MFD_CLOEXEC), err = memfd_create("err", MFD_CLOEXEC);
    pid_t pid = process_start(arguments, input_file(input), dup(out), dup(err));
    r.status = process_wait(pid);
    r.out = file_text(out, &r.out_length);
    r.err = file_text(err, &ignored);
    ck_assert_msg(!strpbrk(r.err, "\r\033"), "escape codes on stderr: %s", r.err);
    ck_assert_msg(!strpbrk(r.out, "\r\033"), "escape codes on stdout: %s", r.out);
    return r;
}

void process_free(process_result *result)
{
    suite_forget(result->out);
    suite_forget(result->err);
    free(result->out);
    free(result->err);
    *result = (process_result){0};
}

#define WARNING "tenon: warning: "
#define BUSY "other programs had the processors while kernels were checked: "

/* Does the line warn of the machine that the test runs on? */
static bool is_of_the_machine(const char *line)
{
    static const char *const begins[] = {WARNING BUSY, WARNING "--threads: 2 are more than the 1 processor that "};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strncmp(line, begins[i], strlen(begins[i])) == 0)
            return true;
    return false;
}

const char *process_warning(const char *err)
{
    const char *line = strstr(err, WARNING);
    while (line && is_of_the_machine(line))
        line = strstr(line + 1, WARNING);
    return line;
}

bool process_was_busy(const char *said)
{
    return strstr(said, BUSY) != NULL;
}

process_result process_run_checked(const char *input, const char *const *arguments)
{
    process_result r = process_run(input, arguments);
    for (int i = 1; i < 40 && r.status == 0 && process_was_busy(r.err); i++)
        r = process_run(input, arguments);
    return r;
}

const char *process_said(const process_result *r)
{
    char line[256] = "";
    const char *why = tn_trial_unfiltered();
    if (why)
        snprintf(line, sizeof line, "plugins are tried without a filter of system calls: %s\n", why);
    const char *said = strncmp(r->err, line, strlen(line)) == 0 ? r->err + strlen(line) : r->err;
    for (const char *end; is_of_the_machine(said) && (end = strchr(said, '\n'));)
        said = end + 1;
    return said;
}

void process_expect_error(process_result r, int status, ...)
{
    va_list words;
    const char *said = process_said(&r);
    ck_assert_msg(r.status == status, "status %d, not %d: %s", r.status, status, r.err);
    ck_assert_str_eq(r.out, "");
    ck_assert_msg(strncmp(said, "tenon: ", 7) == 0, "begins otherwise: %s", r.err);
    ck_assert_msg(strchr(said, '\n') == said + strlen(said) - 1, "not one line: %s", r.err);
    va_start(words, status);
    for (const char *word = va_arg(words, const char *); word; word = va_arg(words, const char *))
        ck_assert_msg(strstr(said, word), "'%s' is not in: %s", word, r.err);
    va_end(words);
}

void process_expect_output(process_result r, const char *out)
{
    ck_assert_msg(r.status == 0, "status %d: %s", r.status, r.err);
    if (out)
        ck_assert_str_eq(r.out, out);
}

int process_main(void)
{
    char *home = tempdir_new();
    setenv("HOME", home, 1);
    setenv("XDG_CONFIG_HOME", home, 1);
    setenv("XDG_CACHE_HOME", home, 1);
    setenv("XDG_STATE_HOME", home, 1);
    unsetenv("TENON_CONFIG");
    unsetenv("HF_HOME");
    unsetenv("HF_HUB_CACHE");
    setenv("TENON_MEASURE", "no", 1); /* so that what is chosen does not depend on the machine */
    int status = suite_run();
    tempdir_remove(home);
    return status;
}
