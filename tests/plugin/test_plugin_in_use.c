/* Files of plugins, and of libraries that came in with them, that are written to, cut, replaced or removed while a
 * session computes with their kernels: it goes on as if nothing had happened. */
#include "plugin_box.h"
#include "rewrite.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef TN_SECCOMP
#include <errno.h>
#include <seccomp.h>
#include <sys/mman.h>
#endif

#define LIBRARY "libin_use.so.1"
enum { STEPS = 4, VOCABULARY_MAX = 4096 };

static char *files[2]; /* the plugin, and the library beside it                                            */
static tn_config *config;
static tn_model *model;

static void setup(void)
{
    plugin_box_open();
    plugin_box_add("in_use", "in_use.so");
    plugin_box_add("in_use_library", LIBRARY);
    files[0] = tempdir_at(plugin_box_folder(), "in_use.so");
    files[1] = tempdir_at(plugin_box_folder(), LIBRARY);
    config = plugin_box_config(NULL);
}

static void teardown(void)
{
    tn_model_close(model);
}

static void apply(void)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(tn_scan(config, &err) == TN_OK, "%s: %s", err.where, err.message);
    model = test_model_open_with("qwen3", .dtype = "f32", .threads = 1);
    tn_report *report = test_model_report(model, config, "test_in_use");
    ck_assert_ptr_nonnull(strstr(report->summary, "test_in_use"));
    tn_report_free(report);
}

/* Step number i, which is one token; logits has room for VOCABULARY_MAX. */
static void step(tn_session *session, int i, float *logits)
{
    const int64_t ids[STEPS] = {3, 7, 1, 9};
    test_model_run(session, 1, &ids[i], .logits = logits);
}

static void expect_same(const float *want, const float *got, const char *when)
{
    ck_assert_msg(memcmp(want, got, VOCABULARY_MAX * sizeof *want) == 0, "other numbers: %s", when);
}

static bool has_notice(const char *text)
{
    bool found = false;
    for (size_t i = 0; i < tn_notice_count(); i++)
        found = found || strstr(tn_notice_get(i), text);
    return found;
}

START_TEST(a_session_goes_on)
{
    static float want[STEPS][VOCABULARY_MAX], got[VOCABULARY_MAX];
    const rewrite *r = &rewrites[_i % REWRITES];
    const char *file = files[_i / REWRITES];
    apply();
    tn_session *session = test_model_session(model, .context = 16);
    for (int i = 0; i < STEPS; i++)
        step(session, i, want[i]);
    tn_session_free(session);
    session = test_model_session(model, .context = 16);
    step(session, 0, got);
    expect_same(want[0], got, "before");
    r->act(file);
    for (int i = 1; i < STEPS; i++) {
        step(session, i, got);
        expect_same(want[i], got, r->name);
    }
    tn_session_free(session);
    /* What is made afterwards is of the same kernels, which are checked in a child. */
    test_model_apply(model, config, "test_in_use");
    session = test_model_session(model, .context = 16);
    step(session, 0, got);
    expect_same(want[0], got, "applied again");
    tn_session_free(session);
}
END_TEST

static int ignore(void *ctx, const tn_check_row *row)
{
    (void)ctx;
    (void)row;
    return 0;
}

/* It is not the one that is in use, and that is said. */
START_TEST(another_content_is_told)
{
    tn_error err = TN_ERROR_INIT;
    const rewrite *r = &rewrites[_i];
    apply();
    ck_assert_int_eq(tn_scan(config, NULL), TN_OK);
    ck_assert(!has_notice("changed since"));
    r->act(files[0]);
    ck_assert_int_eq(tn_scan(config, NULL), TN_OK);
    ck_assert_msg(has_notice("in_use.so changed since it was opened; what was opened stays in use") == r->another, "%s",
                  r->name);
    if (!r->another)
        return;
    ck_assert_int_eq(tn_check_plugin(files[0], NULL, ignore, NULL, &err), TN_E_KERNEL);
    ck_assert_str_eq(err.where, files[0]);
    suite_expect_in(err.message, "it changed since it was opened");
}
END_TEST

/* Whether a page of the file can still be read, written or run through its mapping. */
static bool is_mapped(const char *path)
{
    char line[8192];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof line, maps))
        found = found || (strstr(line, path) && !strstr(line, " ---p "));
    fclose(maps);
    return found;
}

START_TEST(no_page_is_left_in_a_file)
{
    apply();
    ck_assert(!is_mapped(files[0]));
    ck_assert(!is_mapped(files[1]));
}
END_TEST

/* The number of a removed file's inode is not given to another as long as the dynamic linker knows it. */
START_TEST(another_file_is_another_plugin)
{
    apply();
    rewrites[REWRITES - 1].act(files[0]);
    for (int i = 0; i < 8; i++) {
        char name[32];
        snprintf(name, sizeof name, "other%d.so", i);
        plugin_box_add("wrong_numbers", name);
    }
    ck_assert_int_eq(tn_scan(config, NULL), TN_OK);
    tn_plugin_info info = plugin_box_of("other0.so");
    ck_assert_msg(info.state == TN_PLUGIN_LOADED, "%s", info.reason);
}
END_TEST

START_TEST(what_changes_while_it_is_opened_is_refused)
{
    setenv("BAD_PLUGIN", "its file changes while it is opened", 1);
    ck_assert_int_eq(tn_scan(config, NULL), TN_OK);
    tn_plugin_info info = plugin_box_of("in_use.so");
    ck_assert_int_eq(info.state, TN_PLUGIN_REFUSED);
    /* Where trials have no filter it changes there. */
    suite_expect_in(info.reason, "it changed while it was being ");
}
END_TEST

/* As under systemd's MemoryDenyWriteExecute: the plugin is used all the same, and what is to be known is said. */
START_TEST(a_system_that_does_not_allow_it_is_told)
{
#ifdef TN_SECCOMP
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);
    ck_assert_ptr_nonnull(filter);
    ck_assert_int_eq(seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(mprotect), 1,
                                      SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, PROT_EXEC)),
                     0);
    if (seccomp_load(filter) == 0) {
        static float logits[VOCABULARY_MAX];
        apply();
        tn_session *session = test_model_session(model, .context = 16);
        step(session, 0, logits);
        tn_session_free(session);
        ck_assert(
            has_notice("in_use.so stays in its file (code in memory: Operation not permitted), which is not to be "
                       "written to while it is in use"));
    } else {
        printf("SKIPPED: this system takes no filter\n");
    }
    seccomp_release(filter);
#else
    printf("SKIPPED: no libseccomp\n");
#endif
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("plugins in use", 300);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, a_session_goes_on, 0, 2 * REWRITES);
    tcase_add_loop_test(tc, another_content_is_told, 0, REWRITES);
    suite_add(tc, no_page_is_left_in_a_file, another_file_is_another_plugin, a_system_that_does_not_allow_it_is_told,
              what_changes_while_it_is_opened_is_refused);
    return suite_run();
}
