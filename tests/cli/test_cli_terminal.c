/* The command line on terminals and in pipes: progress bar, Ctrl-C, readers that go away, disks that are full. */
#include "process.h"
#include "suite.h"
#include "tempdir.h"

#include <errno.h>
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MODEL "models/demo"

static int null_input(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* What a memory file holds. Owned. */
static char *contents(int fd)
{
    off_t size = lseek(fd, 0, SEEK_END);
    char *text = calloc(1, (size_t)size + 1);
    ck_assert_ptr_nonnull(text);
    ck_assert_int_eq(pread(fd, text, (size_t)size, 0), size);
    close(fd);
    return text;
}

/* ---- Ctrl-C ------------------------------------------------------------------------------------- */

/* A pipe that takes nothing more: whoever writes waits. */
static void full_pipe(int ends[2])
{
    static const char block[4096];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    while (write(ends[1], block, sizeof block) > 0)
        continue;
    ck_assert_int_eq(errno, EAGAIN);
    ck_assert_int_eq(fcntl(ends[1], F_SETFL, 0), 0);
}

/* A generation that has started and cannot end, since its first token finds no room. */
static pid_t start_stuck(int ends[2], int err)
{
    const char *const arguments[] = {"run", MODEL, "And it came to pass", "-n", "400", "--ignore-eos", NULL};
    full_pipe(ends);
    pid_t pid = process_start(arguments, null_input(), ends[1], dup(err));
    process_await_handler(pid, SIGINT, true);
    return pid;
}

START_TEST(interrupt_ends_after_the_token)
{
    int ends[2], err = memfd_create("err", MFD_CLOEXEC);
    pid_t pid = start_stuck(ends, err);
    char block[8192], text[8192] = "";
    size_t length = 0;
    kill(pid, SIGINT);
    ck_assert_int_eq(fcntl(ends[0], F_SETFL, 0), 0);
    for (ssize_t got; (got = read(ends[0], block, sizeof block)) > 0;)
        for (ssize_t i = 0; i < got; i++)
            if (block[i] && length + 1 < sizeof text)
                text[length++] = block[i];
    ck_assert_int_eq(process_wait(pid), 130);
    ck_assert_uint_gt(length, 0);
    ck_assert_int_eq(text[length - 1], '\n');
    char *said = contents(err);
    ck_assert_msg(strstr(said, "generated: 1 token (interrupted)\n") || strstr(said, "generated: 0 tokens (interr"),
                  "%s", said);
    free(said);
    close(ends[0]);
}
END_TEST

START_TEST(second_interrupt_kills)
{
    int ends[2], err = memfd_create("err", MFD_CLOEXEC);
    pid_t pid = start_stuck(ends, err);
    kill(pid, SIGINT);
    process_await_handler(pid, SIGINT, false); /* signals of one kind don't queue up: the first must have come */
    kill(pid, SIGINT);
    ck_assert_int_eq(process_wait(pid), 128 + SIGINT);
    close(ends[0]);
    close(err);
}
END_TEST

/* ---- pipes ---------------------------------------------------------------------------------------- */

/* One of each command that prints a result. */
static const char *const lines[][8] = {
    {"run", MODEL, "And", "-n8", "-q", NULL},
    {"run", MODEL, "And", "-n8", "-q", "--json", NULL},
    {"--help", NULL},
    {"--version", NULL},
    {"tokenize", MODEL, "And", NULL},
    {"tokenize", MODEL, "--decode=5,6", "--json", NULL},
    {"kernels", "-q", NULL},
    {"kernels", "--json", "-q", NULL},
    {"inspect", MODEL, "--kernels=none", "-q", NULL},
    {"inspect", MODEL, "--kernels=none", "-q", "--format=json", NULL},
    {"perplexity", MODEL, "models/demo/config.json", "-q", NULL},
};

/* The loop's index: whether whoever started tenon ignores SIGPIPE. Either way it ends as by that signal. */
START_TEST(reader_that_goes_away)
{
    signal(SIGPIPE, _i ? SIG_IGN : SIG_DFL);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        int ends[2], err = memfd_create("err", MFD_CLOEXEC);
        ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
        close(ends[0]);
        ck_assert_int_eq(process_wait(process_start(lines[i], null_input(), ends[1], dup(err))), 128 + SIGPIPE);
        char *said = contents(err);
        ck_assert_str_eq(process_said(&(process_result){.err = said}), "");
        free(said);
    }
}
END_TEST

START_TEST(full_disk_is_an_error)
{
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        int full = open("/dev/full", O_WRONLY | O_CLOEXEC), err = memfd_create("err", MFD_CLOEXEC);
        ck_assert_int_eq(process_wait(process_start(lines[i], null_input(), full, dup(err))), 1);
        char *said = contents(err);
        ck_assert_str_eq(process_said(&(process_result){.err = said}),
                         "tenon: standard output: cannot write: No space left on device; "
                         "free space or write elsewhere\n");
        free(said);
    }
}
END_TEST

/* ---- a terminal ------------------------------------------------------------------------------------- */

/* What a terminal of this width sees. stop_at: Ctrl-C is pressed when that is there; or NULL. Owned. */
static char *on_terminal(const char *const *arguments, unsigned short columns, const char *stop_at, int *status)
{
    struct winsize size = {.ws_row = 24, .ws_col = columns};
    int terminal;
    size_t length = 0, capacity = 1 << 20;
    char *seen = calloc(1, capacity), program[4200];
    const char *argv[16] = {program};
    ck_assert_ptr_nonnull(seen);
    snprintf(program, sizeof program, "%s/tenon", process_build());
    for (int i = 0; arguments[i]; i++)
        argv[i + 1] = arguments[i];
    pid_t pid = forkpty(&terminal, NULL, NULL, &size);
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        execv(program, (char *const *)argv);
        _exit(127);
    }
    for (ssize_t got; (got = read(terminal, seen + length, capacity - length - 1)) > 0;) {
        length += (size_t)got;
        if (!stop_at || !strstr(seen, stop_at))
            continue;
        ck_assert_int_eq(write(terminal, "\003", 1), 1);
        stop_at = NULL;
    }
    *status = process_wait(pid);
    close(terminal);
    return seen;
}

/* A folder with the file "text": the book, again and again. A bar shows after 0.5 s, which the text must take on a fast
 * machine, too. Owned. */
static char *some_text(size_t size)
{
    size_t all;
    char *book = tempdir_read(MODEL "/heldout.txt", &all), *folder = tempdir_new(), *text = malloc(size);
    char *path = tempdir_at(folder, "text");
    ck_assert_ptr_nonnull(text);
    ck_assert_uint_gt(all, 0);
    for (size_t at = 0; at < size; at += all)
        memcpy(text + at, book, all < size - at ? all : size - at);
    tempdir_write(path, text, size);
    free(text);
    free(book);
    return folder;
}

START_TEST(progress_fits_the_terminal)
{
    static const unsigned short widths[] = {40, 80, 14, 200};
    char *folder = some_text(180000);
    char *path = tempdir_at(folder, "text");
    const char *const line[] = {"perplexity", MODEL, path, "--kernels=none", "--dtype=f32", "--threads=1", NULL};
    int status, bars = 0;
    char *seen = on_terminal(line, widths[_i], NULL, &status);
    size_t room = widths[_i] - 1u;
    ck_assert_msg(status == 0, "%s", seen);
    char *result = strstr(seen, "perplexity 1");
    ck_assert_msg(result != NULL, "%s", seen);
    /* The bar is blanked out before the result is printed over it. */
    ck_assert_uint_gt((size_t)(result - seen), 2);
    ck_assert_msg(result[-1] == '\r' && result[-2] == ' ', "%s", seen);
    for (char *bar = strchr(seen, '\r'); bar && bar < result - 1; bar = strchr(bar + 1, '\r')) {
        size_t width = strcspn(bar + 1, "\r\n");
        ck_assert_uint_le(width, room);
        if (bar[1] == ' ' || width == 0)
            continue;
        ck_assert_msg(memchr(bar + 1, '[', width) && memchr(bar + 1, '%', width), "%.*s", (int)width, bar + 1);
        bars++;
    }
    ck_assert_int_gt(bars, 0);
    ck_assert_ptr_null(strchr(seen, '\033'));
    free(seen);
}
END_TEST

START_TEST(no_progress_when_quiet)
{
    char *folder = some_text(30000);
    char *path = tempdir_at(folder, "text");
    const char *const line[] = {"perplexity", MODEL, path, "--kernels=none", "--dtype=f32", "--quiet", NULL};
    int status;
    char *seen = on_terminal(line, 80, NULL, &status);
    ck_assert_msg(status == 0, "%s", seen);
    ck_assert_int_eq(strncmp(seen, "perplexity 1", 12), 0);
    ck_assert_str_eq(strchr(seen, '\n'), "\n");
    free(seen);
}
END_TEST

/* Nobody is waited for who does not know that something is to be typed. */
START_TEST(a_terminal_is_no_prompt)
{
    const char *const line[] = {"run", MODEL, NULL};
    int status;
    char *seen = on_terminal(line, 80, NULL, &status);
    ck_assert_msg(status == 2 && strstr(seen, "tenon: run: no prompt given; "), "%d: %s", status, seen);
    free(seen);
}
END_TEST

/* ---- a first use ------------------------------------------------------------------------------------ */

/* A kernel that takes its time, in a folder of caches that is new with the first line. */
static void first_use(char plugins[4200])
{
    setenv("XDG_CACHE_HOME", tempdir_new(), 1);
    setenv("BAD_GUEST", "wait in forward", 1);
    snprintf(plugins, 4200, "%s/tests/bad_kernels", process_build());
}

#define FIRST_USE(plugins)                                                                                             \
    {                                                                                                                  \
        "run", MODEL, "And", "-n1", "--temperature=0", "--only-plugins", plugins, "--kernels=npu_bad_guest",           \
            "--dtype=f32", NULL                                                                                        \
    }

START_TEST(a_first_use_is_told)
{
    static const struct {
        unsigned short columns;
        const char *label;
    } terminals[] = {{80, "\rchecking kernels 1/2, only the first time [###"},
                     {40, "\rchecking kernels 1/2 [###"},
                     {20, "\r[######.....]  50%"}};
    char plugins[4200];
    first_use(plugins);
    const char *const line[] = FIRST_USE(plugins);
    int status;
    char *seen = on_terminal(line, terminals[_i].columns, NULL, &status);
    ck_assert_msg(status == 0 && strstr(seen, terminals[_i].label), "%s", seen);
    ck_assert_ptr_null(strstr(seen, "2/2")); /* the end needs no bar                                        */
    for (char *bar = strchr(seen, '\r'); bar; bar = strchr(bar + 1, '\r'))
        if (memchr(bar, '[', strcspn(bar + 1, "\r\n") + 1))
            ck_assert_uint_lt(strcspn(bar + 1, "\r\n"), terminals[_i].columns);
    free(seen);
    unsetenv("BAD_GUEST"); /* so that it is as fast as it can be                                            */
    seen = on_terminal(line, terminals[_i].columns, NULL, &status);
    for (int i = 1; i < 40 && process_was_busy(seen); i++) { /* then the check is not remembered               */
        free(seen);
        seen = on_terminal(line, terminals[_i].columns, NULL, &status);
    }
    free(seen);
    seen = on_terminal(line, terminals[_i].columns, NULL, &status);
    ck_assert_msg(status == 0 && !strchr(seen, '['), "%s", seen);
    free(seen);
}
END_TEST

START_TEST(interrupt_leaves_a_clean_line)
{
    char plugins[4200];
    first_use(plugins);
    const char *const line[] = FIRST_USE(plugins);
    int status;
    char *seen = on_terminal(line, 60, "checking", &status);
    ck_assert_int_eq(status, 128 + SIGINT);
    size_t end = strlen(seen);
    ck_assert_msg(end > 60 && seen[end - 1] == '\r' && strspn(seen + end - 60, " ") == 59 && seen[end - 61] == '\r',
                  "%s", seen);
    free(seen);
}
END_TEST

/* ---- a long prompt ---------------------------------------------------------------------------------- */

#define LONG_PROMPT(path)                                                                                              \
    {                                                                                                                  \
        "run", MODEL, "--prompt-file", path, "--context=30000", "-n1", "--kernels=none", "--threads=1", "--dtype=f32", \
            NULL                                                                                                       \
    }

START_TEST(a_long_prompt_has_a_bar)
{
    char *folder = some_text(60000), *path = tempdir_at(folder, "text");
    const char *const line[] = LONG_PROMPT(path);
    int status;
    char *seen = on_terminal(line, 60, NULL, &status);
    ck_assert_msg(status == 0, "%s", seen);
    suite_expect_in(seen, "\rprompt [");
    free(seen);
}
END_TEST

/* Between two blocks; what was computed is told. */
START_TEST(interrupt_ends_a_long_prompt)
{
    char *folder = some_text(36000), *path = tempdir_at(folder, "text");
    const char *const line[] = LONG_PROMPT(path);
    int out = memfd_create("out", MFD_CLOEXEC), err = memfd_create("err", MFD_CLOEXEC);
    pid_t pid = process_start(line, null_input(), dup(out), dup(err));
    process_await_handler(pid, SIGINT, true);
    kill(pid, SIGINT);
    ck_assert_int_eq(process_wait(pid), 130);
    char *said = contents(err), *printed = contents(out);
    suite_expect_in(said, "generated: 0 tokens (interrupted)\n");
    ck_assert_str_eq(printed, "\n");
    free(said);
    free(printed);
}
END_TEST

int main(void)
{
    TCase *all = suite_open("cli: terminal", 600);
    suite_add(all, interrupt_ends_after_the_token, second_interrupt_kills);
    tcase_add_loop_test(all, reader_that_goes_away, 0, 2);
    suite_add(all, full_disk_is_an_error);
    tcase_add_loop_test(all, progress_fits_the_terminal, 0, 4);
    suite_add(all, no_progress_when_quiet, a_terminal_is_no_prompt);
    tcase_add_loop_test(all, a_first_use_is_told, 0, 3);
    suite_add(all, interrupt_leaves_a_clean_line, a_long_prompt_has_a_bar, interrupt_ends_a_long_prompt);
    return process_main();
}
