/* A kernel that is wrong with sizes that no check draws, as a user meets it: the text is eager's with one warning, and
 * the next run refuses the kernel (tests/bad_kernels/bad_guest.c). */
#include "process.h"
#include "suite.h"
#include "tempdir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char plugins[4200];

static void enter(void)
{
    setenv("XDG_CACHE_HOME", tempdir_new(), 1);
    snprintf(plugins, sizeof plugins, "%s/tests/bad_kernels", process_build());
}

/* "1,2,3": a prompt of so many tokens. Static storage. */
static const char *prompt(int tokens)
{
    static char ids[2048];
    size_t used = 0;
    for (int i = 0; i < tokens; i++)
        used += (size_t)snprintf(ids + used, sizeof ids - used, "%s%d", i ? "," : "", 1 + i % 200);
    return ids;
}

#define RUN(tokens, kernels)                                                                                           \
    "run", "--temperature=0", "models/demo", "--tokens", prompt(tokens), "-n", "8", "--ignore-eos", "--dtype", "f32",  \
        "--threads", "2", "--no-measure", "--only-plugins", plugins, "--kernels", kernels

static process_result run_with(const char *fault, int tokens, const char *kernels)
{
    setenv("BAD_GUEST", fault, 1);
    return TENON(NULL, RUN(tokens, kernels));
}

static const struct {
    const char *fault;
    int tokens;
} faults[] = {{"wrong with 77 tokens", 77}, {"wrong with 7 over blocks of 9", 79}, {"wrong with 96 tokens", 96}};
enum { FAULTS = sizeof faults / sizeof *faults };

START_TEST(a_wrong_size_changes_no_text)
{
    const char *fault = faults[_i].fault;
    process_result eager = run_with("", faults[_i].tokens, "none");
    process_result r = run_with(fault, faults[_i].tokens, "npu_bad_guest");
    ck_assert_msg(eager.status == 0 && r.status == 0, "%s%s", eager.err, r.err);
    ck_assert_str_eq(r.out, eager.out);
    const char *line = strstr(r.err, "tenon: warning: npu_bad_guest is wrong at model.layers.0.input_layernorm with ");
    ck_assert_msg(line != NULL, "%s", r.err);
    ck_assert_ptr_null(strstr(line + 1, "tenon: warning: npu_bad_guest"));
    /* Another prompt would be right: it is refused all the same, without a word where nobody asked for it (but perhaps
     * one of a busy machine). */
    process_expect_error(run_with(fault, 5, "npu_bad_guest"), 5, "npu_bad_guest", "is refused at model.layers.",
                         "wrong in an earlier run at model.layers.0.input_layernorm with",
                         "`tenon cache clear` tries it again", NULL);
    r = run_with(fault, faults[_i].tokens, "auto");
    ck_assert_msg(r.status == 0 && !strstr(r.err, "warning: npu_bad_guest"), "%s", r.err);
    suite_expect_in(r.err, "refused: npu_bad_guest at RMS_NORM (wrong in an earlier run");
}
END_TEST

/* How many there were is told where kernels are explained: those behind a check that is remembered. */
START_TEST(it_is_told)
{
    setenv("BAD_GUEST", "", 1);
    process_result r = TENON_CHECKED(NULL, RUN(20, "npu_bad_guest"));
    ck_assert_msg(r.status == 0 && !strstr(r.err, "warning: npu_bad_guest"), "%s", r.err);
    r = TENON(NULL, "inspect", "models/demo", "--threads", "2", "--dtype", "f32", "--only-plugins", plugins,
              "--kernels", "npu_bad_guest");
    const char *line = strstr(r.out, "compared with eager on first use: ");
    ck_assert_msg(line && strstr(line, " calls of new sizes\n"), "%s", r.err);
    r = TENON(NULL, "inspect", "models/demo", "--threads", "2", "--dtype", "f32", "--only-plugins", plugins,
              "--kernels", "npu_bad_guest", "--format", "json");
    line = strstr(r.out, "\"first_calls\": {");
    long all = 0, now = -1;
    ck_assert(line && sscanf(line, "\"first_calls\": { \"compared\": %ld, \"now\": %ld", &all, &now) == 2);
    ck_assert(all > 0 && now == 0);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("first calls", 600);
    tcase_add_checked_fixture(tc, enter, NULL);
    tcase_add_loop_test(tc, a_wrong_size_changes_no_text, 0, FAULTS);
    suite_add(tc, it_is_told);
    return process_main();
}
