/* Kernels with bad manners, as a user meets them: what changes the process is refused or put back and named, a failure
 * ends with exit status 3 whatever the kernel calls it, and weights cannot be written (tests/bad_kernels/bad_guest.c).
 */
#include "process.h"
#include "suite.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "models/demo"
#define MANY "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38"

static const char *plugins(void)
{
    static char path[4200];
    snprintf(path, sizeof path, "%s/tests/bad_kernels", process_build());
    return path;
}

/* Continues a few tokens with the kernel that behaves as fault says; NULL: well. */
static process_result run_with(const char *fault, const char *tokens)
{
    if (fault)
        setenv("BAD_GUEST", fault, 1);
    else
        unsetenv("BAD_GUEST");
    return TENON(NULL, "run", "--temperature=0", MODEL, "--tokens", tokens, "-n", "48", "--ignore-eos", "--dtype",
                 "f32", "--threads", "2", "--only-plugins", plugins(), "--kernels", "npu_bad_guest");
}

/* What the good kernel prints. */
static char *good_text(void)
{
    process_result r = run_with(NULL, "1,2,3");
    ck_assert_msg(r.status == 0, "%s", r.err);
    ck_assert_ptr_null(process_warning(r.err));
    return r.out;
}

START_TEST(good_manners_are_accepted)
{
    good_text();
}
END_TEST

/* ---- the process ------------------------------------------------------------------------------------------ */

static const struct {
    const char *what, *says;
} changes[] = {
#if defined(__x86_64__)
    {"flush", "floating-point control"},
#endif
    {"chdir", "working directory"},      {"mask", "signal mask"}, {"umask", "umask"},
    {"close", "standard output"},        {"alarm", "alarm"},      {"handler", "handler of SIGINT"},
    {"replace", "standard output"}, /* in the trial all three lead nowhere, so nothing changes there */
};
enum { CHANGES = sizeof changes / sizeof *changes };

/* Where the trial sees it: nothing is applied. */
START_TEST(what_the_trial_sees_is_refused)
{
    static const char *const places[] = {"available", "plan", "pack", "forward"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char fault[64];
        snprintf(fault, sizeof fault, "%s in %s", changes[_i].what, places[i]);
        process_result r = run_with(fault, "1,2,3");
        ck_assert_msg(r.status == 3, "%s: status %d: %s", fault, r.status, r.err);
        ck_assert_str_eq(r.out, "");
        suite_expect_in(r.err, changes[_i].says);
        suite_expect_in(r.err, "npu_bad_guest");
    }
}
END_TEST

/* Where it comes later: it is put back, the text is the good kernel's, and the kernel is named once. */
START_TEST(what_comes_later_is_put_back)
{
    char fault[64], says[160], *text = good_text();
    snprintf(fault, sizeof fault, "%s in late", changes[_i].what);
    snprintf(says, sizeof says,
             "tenon: warning: npu_bad_guest (bad_guest.so) changed the %s in forward; it was put back\n",
             changes[_i].says);
    process_result r = run_with(fault, "1,2,3");
    ck_assert_msg(r.status == 0, "%s: status %d: %s", fault, r.status, r.err);
    ck_assert_str_eq(r.out, text);
    suite_expect_in(r.err, says);
    ck_assert_ptr_null(strstr(strstr(r.err, says) + 1, says));
}
END_TEST

#if defined(__x86_64__)
START_TEST(other_threads_are_watched)
{
    char *text = good_text();
    process_result r = run_with("flush in worker", "1,2,3");
    if (r.status == 3)
        suite_expect_in(r.err, "floating-point control");
    else
        ck_assert_str_eq(r.out, text);
}
END_TEST
#endif

/* ---- failures --------------------------------------------------------------------------------------------- */

static const struct {
    const char *fault, *tokens, *says;
} failures[] = {
    {"declines many rows", MANY, "npu_bad_guest: "},           {"77 for many rows", MANY, "npu_bad_guest: "},
    {"declines late", "1,2,3", "with 1 token: had enough"},    {"77 late", "1,2,3", "with 1 token: it returned 77"},
    {"cancels late", "1,2,3", "with 1 token: it returned -7"}, {"77 of plan", "1,2,3", "npu_bad_guest: "},
};

START_TEST(a_failure_ends_with_3)
{
    process_result r = run_with(failures[_i].fault, failures[_i].tokens);
    ck_assert_msg(r.status == 3, "%s: status %d: %s", failures[_i].fault, r.status, r.err);
    suite_expect_in(r.err, "tenon: npu_bad_guest: ");
    suite_expect_in(r.err, failures[_i].says);
    if (strstr(failures[_i].fault, "late"))
        suite_expect_in(r.err, "forward failed at model.");
}
END_TEST

/* ---- ends ------------------------------------------------------------------------------------------------- */

#define ENDS "exit", "_exit", "_Exit", "quick_exit", "pthread_exit", "abort", "SIGKILL", "exec"
enum { TOLD = 5 }; /* of them, where they happen in the program                                          */
static const char *const ends[] = {ENDS};

/* A child that ended with status 0 has not answered. */
START_TEST(an_end_in_a_child_is_no_answer)
{
    static const char *const places[] = {"available", "plan", "pack", "forward"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char fault[64];
        snprintf(fault, sizeof fault, "%s in %s", ends[_i], places[i]);
        process_result r = run_with(fault, "1,2,3");
        ck_assert_msg(r.status == 3, "%s: status %d: %s", fault, r.status, r.err);
        ck_assert_str_eq(r.out, "");
        suite_expect_in(r.err, "npu_bad_guest");
        suite_expect_in(r.err, places[i]);
    }
}
END_TEST

/* Where the program itself is ended: it says who did it, and has the status of a kernel that failed. */
START_TEST(an_end_of_the_program_is_told)
{
    static const char *const places[][2] = {{"the program's available", "available"},
                                            {"the program's plan", "plan"},
                                            {"the program's pack", "pack"},
                                            {"late", "forward"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char fault[64], says[160];
        snprintf(fault, sizeof fault, "%s in %s", ends[_i], places[i][0]);
        snprintf(says, sizeof says, "tenon: npu_bad_guest (bad_guest.so) in %s: it called %s", places[i][1], ends[_i]);
        process_result r = run_with(fault, "1,2,3");
        ck_assert_msg(r.status == 3, "%s: status %d: %s", fault, r.status, r.err);
        suite_expect_in(r.err, says);
    }
}
END_TEST

START_TEST(a_listing_that_is_ended_is_told)
{
    setenv("BAD_GUEST", "exit in the program's available", 1);
    process_result r = TENON(NULL, "kernels", "--only-plugins", plugins());
    process_expect_error(r, 3, "npu_bad_guest (bad_guest.so) in available: it called exit(0)", NULL);
    unsetenv("BAD_GUEST");
    setenv("BAD_PLUGIN", "exit in the program", 1);
    char folder[4300];
    snprintf(folder, sizeof folder, "%s/tests/bad_plugins", process_build());
    r = TENON(NULL, "kernels", "--only-plugins", folder);
    process_expect_error(r, 3, "a plugin (conduct.so) in its constructor: it called exit(0)", NULL);
    unsetenv("BAD_PLUGIN");
}
END_TEST

/* When the program is over its status stays what it is. */
START_TEST(a_handler_cannot_change_the_status)
{
    setenv("BAD_GUEST", "a handler in the program's plan", 1);
    int nowhere = open("/dev/null", O_RDWR), full = open("/dev/full", O_WRONLY);
    ck_assert(nowhere >= 0 && full >= 0);
    pid_t pid = process_start((const char *const[]){"run", MODEL, "--tokens", "1,2,3", "-n", "1", "--dtype", "f32",
                                                    "--only-plugins", plugins(), "--kernels", "npu_bad_guest", NULL},
                              nowhere, full, nowhere);
    unsetenv("BAD_GUEST");
    ck_assert_int_eq(process_wait(pid), 1);
}
END_TEST

/* ---- weights ---------------------------------------------------------------------------------------------- */

/* The demo model is bf16, so in f32 its weights are copies; packed memory is the host's. */
START_TEST(weights_are_read_only)
{
    static const char *const faults[] = {"drift", "packed"};
    process_result r = run_with(faults[_i], "1,2,3");
    ck_assert_msg(r.status == 3, "status %d: %s", r.status, r.err);
    suite_expect_in(r.err, _i ? "wrote to its packed memory, which are read-only"
                              : "wrote to its parameters, which are read-only");
    r = run_with("drift late", "1,2,3");
    /* SIGSEGV; a sanitizer has an exit status of its own. */
    ck_assert_msg(r.status != 0 && !strstr(r.err, "generated: "), "status %d: %s", r.status, r.err);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("kernels with bad manners", 600);
    suite_add(tc, good_manners_are_accepted);
    tcase_add_loop_test(tc, what_the_trial_sees_is_refused, 0, CHANGES - 1);
    tcase_add_loop_test(tc, what_comes_later_is_put_back, 0, CHANGES);
#if defined(__x86_64__)
    suite_add(tc, other_threads_are_watched);
#endif
    tcase_add_loop_test(tc, a_failure_ends_with_3, 0, sizeof failures / sizeof *failures);
    tcase_add_loop_test(tc, an_end_in_a_child_is_no_answer, 0, sizeof ends / sizeof *ends);
    tcase_add_loop_test(tc, an_end_of_the_program_is_told, 0, TOLD);
    suite_add(tc, a_listing_that_is_ended_is_told, a_handler_cannot_change_the_status);
    tcase_add_loop_test(tc, weights_are_read_only, 0, 2);
    return process_main();
}
