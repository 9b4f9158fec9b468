/* bench --profile, --trace and --plot: what they print and write, and how they fail. */
#include "printed.h"
#include "suite.h"
#include "tempdir.h"

#include <math.h>
#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODEL "models/demo"

static void expect_well(const process_result *r)
{
    ck_assert_msg(r->status == 0, "status %d: %s", r->status, r->err);
}

/* The rows of a case, the longest first, and what lies between add up to the whole. */
static void expect_sum(const json_t *c)
{
    double sum = printed_number(c, "between_seconds"), before = INFINITY;
    size_t i;
    const json_t *row;
    ck_assert(sum >= 0);
    json_array_foreach (json_object_get(c, "rows"), i, row) {
        double seconds = printed_number(row, "seconds");
        ck_assert(seconds > 0 && seconds <= before && printed_number(row, "calls") >= 1);
        ck_assert(printed_number(row, "bytes") > 0 && printed_number(row, "operations") > 0);
        ck_assert_double_eq_tol(printed_number(row, "of_limit"), printed_number(row, "limit_seconds") / seconds, 1e-6);
        ck_assert_ptr_nonnull(strstr("mem f32 bf16 amx", printed_string(row, "limited_by")));
        before = seconds;
        sum += seconds;
    }
    ck_assert_double_eq_tol(sum, printed_number(c, "seconds"), 1e-6 + 1e-6 * sum);
}

static double calls_of(const json_t *c, const char *operation, bool kernel)
{
    double calls = 0;
    size_t i;
    const json_t *row;
    json_array_foreach (json_object_get(c, "rows"), i, row)
        calls += strcmp(printed_string(row, "operation"), operation) == 0 &&
                         json_is_string(json_object_get(row, "kernel")) == kernel
                     ? printed_number(row, "calls")
                     : 0;
    return calls;
}

/* The demo has 4 layers, the first with an MLP and three with experts. */
START_TEST(json_adds_up)
{
    process_result r =
        TENON(NULL, "bench", MODEL, "--prompt=16", "--decode=3", "--context=5", "--repeat=2", "--profile", "--json");
    expect_well(&r);
    json_t *root = printed_text(r.out);
    const json_t *cases = json_object_get(root, "profile"), *prompt = json_array_get(cases, 0),
                 *decode = json_array_get(cases, 1);
    ck_assert_uint_eq(json_array_size(cases), 2);
    ck_assert_str_eq(printed_string(prompt, "phase"), "prompt");
    ck_assert_str_eq(printed_string(decode, "phase"), "decode");
    ck_assert(printed_number(decode, "tokens") == 3 && printed_number(decode, "context") == 5);
    expect_sum(prompt);
    expect_sum(decode);
    ck_assert_double_eq(calls_of(prompt, "EMBEDDING", false), 1);
    ck_assert_double_eq(calls_of(decode, "EMBEDDING", false), 3);
    ck_assert_double_eq(calls_of(decode, "ATTENTION", false) + calls_of(decode, "ATTENTION", true), 3 * 4);
    r = TENON(NULL, "bench", MODEL, "--prompt=16", "--decode=0", "--repeat=1", "--json");
    expect_well(&r);
    root = printed_text(r.out);
    ck_assert_ptr_null(json_object_get(root, "profile"));
}
END_TEST

/* One side without kernels: everything is eager, and modules of all layers are one row. */
START_TEST(modules_are_told_apart)
{
    process_result r = TENON(NULL, "bench", MODEL, "--kernels=none", "--prompt=16", "--decode=0", "--repeat=1",
                             "--profile=modules", "--json");
    expect_well(&r);
    json_t *root = printed_text(r.out);
    const json_t *c = json_array_get(json_object_get(root, "profile"), 0), *row;
    size_t i, found = 0;
    expect_sum(c);
    json_array_foreach (json_object_get(c, "rows"), i, row) {
        ck_assert(json_is_null(json_object_get(row, "kernel")));
        const json_t *module = json_object_get(row, "module");
        if (!module || strcmp(json_string_value(module), "model.layers.*.self_attn.q_proj"))
            continue;
        found++;
        ck_assert_str_eq(printed_string(row, "operation"), "LINEAR");
        ck_assert_double_eq(printed_number(row, "calls"), 4);
    }
    ck_assert_uint_eq(found, 1);
}
END_TEST

START_TEST(table_has_every_part)
{
    static const char *const words[] = {"\nprompt of 16 tokens, auto:\nOPERATION ",
                                        "  TIME  ",
                                        "  CALLS  ",
                                        "  BYTES  ",
                                        "  FLOP  ",
                                        "  OF LIMIT\n",
                                        "\nbetween operations  ",
                                        "\nall  ",
                                        "\nLINEAR  ",
                                        " eager ",
                                        " npu_fused_",
                                        "\ndecode 2 tokens behind 16, auto:\n"};
    process_result r = TENON(NULL, "bench", MODEL, "--prompt=16", "--decode=2", "--repeat=1", "--profile");
    expect_well(&r);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        ck_assert_msg(strstr(r.out, words[i]) != NULL, "'%s' is not in: %s", words[i], r.out);
}
END_TEST

/* What a terminal of that many columns sees of the profile. Owned. */
static char *on_terminal(unsigned short columns)
{
    struct winsize size = {.ws_row = 24, .ws_col = columns};
    int terminal;
    size_t length = 0, capacity = 1 << 20;
    char *seen = calloc(1, capacity), program[4200];
    snprintf(program, sizeof program, "%s/tenon", process_build());
    char *const argv[] = {program,          "bench",      MODEL,       "--prompt=16", "--decode=0",
                          "--kernels=none", "--repeat=1", "--profile", "--quiet",     NULL};
    pid_t pid = forkpty(&terminal, NULL, NULL, &size);
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        execv(program, argv);
        _exit(127);
    }
    for (ssize_t got; (got = read(terminal, seen + length, capacity - length - 1)) > 0;)
        length += (size_t)got;
    ck_assert_int_eq(process_wait(pid), 0);
    close(terminal);
    return seen;
}

START_TEST(it_fits_the_terminal)
{
    static const unsigned short widths[] = {40, 64, 80, 200};
    char *seen = on_terminal(widths[_i]), *profile = strstr(seen, "prompt of 16 tokens, none:\r\n");
    ck_assert_msg(profile != NULL, "%s", seen);
    for (char *line = profile; *line; line += strcspn(line, "\n") + 1) {
        size_t width = strcspn(line, "\r\n");
        ck_assert_msg(width <= widths[_i], "%.*s", (int)width, line);
        if (!strchr(line, '\n'))
            break;
    }
    ck_assert_ptr_nonnull(strstr(profile, "between operations"));
    ck_assert_ptr_nonnull(strstr(profile, widths[_i] == 200 ? "OPERATION" : "LINEAR, eager: "));
    free(seen);
}
END_TEST

/* ---- traces ------------------------------------------------------------------------------------- */

/* Slices of one thread follow each other; each has what the viewer shows. */
static void expect_slices(const json_t *events, int thread, double tokens, size_t *count)
{
    size_t i;
    const json_t *e;
    double end = 0;
    json_array_foreach (events, i, e) {
        if (strcmp(printed_string(e, "ph"), "X") || printed_number(e, "tid") != thread)
            continue;
        const json_t *args = json_object_get(e, "args");
        ck_assert(printed_number(e, "ts") >= end - 1e-3 && printed_number(e, "dur") >= 0);
        end = printed_number(e, "ts") + printed_number(e, "dur");
        ck_assert_str_eq(printed_string(e, "cat"), printed_string(args, "op"));
        ck_assert_uint_gt(strlen(printed_string(e, "name")) * strlen(printed_string(args, "kernel")), 0);
        ck_assert(printed_number(args, "bytes") > 0 && printed_number(args, "flops") >= 0);
        ck_assert(printed_number(args, "tokens") == tokens || printed_number(args, "tokens") == 1);
        ++*count;
    }
}

START_TEST(trace_is_valid)
{
    char *folder = tempdir_new(), *path = tempdir_at(folder, "trace \"1\".json");
    process_result r =
        TENON(NULL, "bench", MODEL, "--prompt=16", "--decode=2", "--repeat=1", "--profile", "--json", "--trace", path);
    expect_well(&r);
    size_t size, i, prompt = 0, decode = 0, names = 0;
    char *written = tempdir_read(path, &size);
    json_t *trace = printed_text(written), *root = printed_text(r.out);
    const json_t *events = json_object_get(trace, "traceEvents"), *e;
    expect_slices(events, 1, 16, &prompt);
    expect_slices(events, 2, 1, &decode);
    json_array_foreach (events, i, e)
        if (strcmp(printed_string(e, "name"), "thread_name") == 0) {
            const char *name = printed_string(json_object_get(e, "args"), "name");
            ck_assert_str_eq(name, printed_number(e, "tid") == 1 ? "prompt of 16 tokens" : "decode 2 tokens behind 16");
            names++;
        }
    ck_assert_uint_eq(names, 2);
    /* The trace is of the runs that the profile tells of. */
    const size_t counts[] = {prompt, decode};
    for (size_t c = 0; c < 2; c++) {
        const json_t *row, *rows = json_object_get(json_array_get(json_object_get(root, "profile"), c), "rows");
        double calls = 0;
        json_array_foreach (rows, i, row)
            calls += printed_number(row, "calls");
        ck_assert_double_eq(calls, (double)counts[c]);
    }
    free(written);
}
END_TEST

/* ---- plots -------------------------------------------------------------------------------------- */

static bool has_gnuplot(void)
{
    return system("command -v gnuplot >/dev/null 2>&1") == 0;
}

START_TEST(plot_is_drawn)
{
    if (!has_gnuplot()) {
        puts("SKIPPED the roofline: gnuplot is not installed");
        return;
    }
    static const char *const words[] = {"<svg ",        "</svg>", "GFLOP/s", "operations per byte",
                                        "memory, read", "f32",    "LINEAR",  "prompt of 16 tokens"};
    char *folder = tempdir_new(), *path = tempdir_at(folder, "it's a \"plot\".svg");
    process_result r =
        TENON(NULL, "bench", MODEL, "--prompt=16", "--decode=2", "--repeat=1", "--plot", path, "--threads=1");
    expect_well(&r);
    size_t size;
    char *written = tempdir_read(path, &size);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        ck_assert_msg(strstr(written, words[i]) != NULL, "'%s' is not in: %s", words[i], written);
    free(written);
}
END_TEST

START_TEST(no_gnuplot_names_the_package)
{
    char *folder = tempdir_new(), *path = tempdir_at(folder, "plot.svg");
    setenv("PATH", folder, 1);
    process_expect_error(TENON(NULL, "bench", MODEL, "--prompt=16", "--plot", path), 2, "--plot", "gnuplot-nox",
                         "install", NULL);
    ck_assert(!tempdir_exists(path));
}
END_TEST

/* A gnuplot that fails is told with what it said. */
START_TEST(failing_gnuplot_is_an_error)
{
    char *folder = tempdir_new(), *path = tempdir_at(folder, "plot.svg"), *program = tempdir_at(folder, "gnuplot");
    static const char script[] = "#!/bin/sh\necho no such terminal >&2\nexit 3\n";
    tempdir_write(program, script, sizeof script - 1);
    ck_assert_int_eq(access(program, F_OK), 0);
    ck_assert_int_eq(system(NULL) != 0, 1);
    char command[8192];
    snprintf(command, sizeof command, "chmod +x '%s'", program);
    ck_assert_int_eq(system(command), 0);
    snprintf(command, sizeof command, "%s:%s", folder, getenv("PATH"));
    setenv("PATH", command, 1);
    process_result r = TENON(NULL, "bench", MODEL, "--prompt=16", "--decode=0", "--repeat=1", "--plot", path);
    ck_assert_int_eq(r.status, 1);
    ck_assert_msg(strstr(r.err, "gnuplot") && strstr(r.err, "status 3"), "%s", r.err);
}
END_TEST

START_TEST(wrong_options_are_told_at_once)
{
    process_expect_error(TENON(NULL, "bench", MODEL, "--trace=/no/such/folder/t.json"), 4, "/no/such/folder/t.json",
                         "cannot be written: No such file or directory", "--trace", NULL);
    process_expect_error(TENON(NULL, "bench", MODEL, "--trace=/tmp"), 4, "/tmp", "Is a directory", NULL);
    process_expect_error(TENON(NULL, "bench", MODEL, "--trace="), 2, "--trace: the value is empty", NULL);
    process_expect_error(TENON(NULL, "bench", MODEL, "--profile=kernels"), 2, "unknown value 'kernels'", "modules",
                         NULL);
    if (has_gnuplot())
        process_expect_error(TENON(NULL, "bench", MODEL, "--plot=/no/such/folder/p.svg"), 4, "/no/such/folder/p.svg",
                             NULL);
    process_result r =
        TENON(NULL, "bench", MODEL, "--prompt=16", "--decode=0", "--repeat=1", "--trace=/dev/full", "--json");
    ck_assert_int_eq(r.status, 1);
    suite_expect_in(r.err, "/dev/full: cannot be written to its end: No space left on device");
}
END_TEST

int main(void)
{
    TCase *all = suite_open("cli: profile", 600);
    suite_add(all, json_adds_up, modules_are_told_apart, table_has_every_part);
    tcase_add_loop_test(all, it_fits_the_terminal, 0, 4);
    suite_add(all, trace_is_valid, plot_is_drawn, no_gnuplot_names_the_package, failing_gnuplot_is_an_error,
              wrong_options_are_told_at_once);
    return process_main();
}
