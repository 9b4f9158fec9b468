/* Plugins that keep the host waiting have a time for all of their answers, and what hung is not asked again by the next
 * commands, for a while (tests/bad_plugins/slow_answers.c). */
#include "process.h"
#include "suite.h"
#include "tempdir.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define KERNEL "test_slow_answers"

static char *root;
static char plugins[4096];

static void expect_listed(const char *words)
{
    process_result r = TENON(NULL, "kernels", "--only-plugins", plugins);
    ck_assert_msg(r.status == 0 && strstr(r.out, words), "'%s': status %d: %s%s", words, r.status, r.out, r.err);
}

static void set_up(void)
{
    char path[8300];
    root = tempdir_new();
    snprintf(plugins, sizeof plugins, "%.4000s/plugins", root);
    ck_assert_int_eq(mkdir(plugins, 0755), 0);
    process_copy_built("tests/bad_plugins/slow_answers.so", plugins, "slow.so");
    snprintf(path, sizeof path, "%s/cache", root);
    setenv("XDG_CACHE_HOME", path, 1);
    setenv("TENON_TRIAL_SECONDS", "60", 1);
    expect_listed(KERNEL "  cpu     1.0.0    yes ");
    /* It was tried. From now on its answers have three seconds. */
    setenv("TENON_TRIAL_SECONDS", "1", 1);
}

static void expect_refused(const char *words, const char *early)
{
    process_result r = TENON(NULL, "run", "models/demo", "--tokens", "1,2", "-n", "1", "--dtype", "f32",
                             "--only-plugins", plugins, "--kernels", KERNEL);
    ck_assert_msg(r.status == 3 && strstr(r.err, KERNEL) && (strstr(r.err, words) || (early && strstr(r.err, early))),
                  "'%s': status %d: %s", words, r.status, r.err);
}

/* Removes what was remembered of hangs; how many there were. */
static size_t forget(bool remove_them)
{
    char pattern[4300];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/cache/tenon/hung-*", root);
    size_t count = glob(pattern, 0, NULL, &found) == 0 ? found.gl_pathc : 0;
    for (size_t i = 0; i < count && remove_them; i++)
        remove(found.gl_pathv[i]);
    globfree(&found);
    return count;
}

static const struct {
    const char *deed, *first, *then, *early; /* early: where a slow machine spent the time before the check       */
} deeds[] = {
    {"hangs in available", "when asked whether it is available it did not finish within 3 s",
     "s ago; it is asked again in ", NULL},
    {"hangs in plan", "plan did not finish within 5 s", "s ago; it is asked again in ", NULL},
    {"slow in plan", "plan was not asked: the plugin's answers used up the time that it has",
     "its answers used up the 3 s that a plugin has (", NULL},
    {"slow for each call", "and a plugin has no more time for them", "its answers used up the 3 s that a plugin has (",
     "plan was not asked: the plugin's answers used up the time that it has"},
    {"hangs in forward", "forward: did not finish within", "s ago; it is asked again in ", NULL},
};

START_TEST(what_hangs_is_not_waited_for_again)
{
    setenv("BAD_PLUGIN", deeds[_i].deed, 1);
    expect_refused(deeds[_i].first, deeds[_i].early);
    ck_assert_uint_eq(forget(false), 1);
    expect_refused(deeds[_i].then, NULL);
    expect_listed(deeds[_i].then);
    ck_assert_uint_eq(forget(true), 1);
    /* Asked again, as it says. */
    if (strcmp(deeds[_i].deed, "hangs in available") != 0)
        expect_listed(KERNEL "  cpu     1.0.0    yes ");
    else
        expect_listed(deeds[_i].first);
}
END_TEST

/* A hang holds for the environment that it was met in. */
START_TEST(elsewhere_it_is_asked)
{
    setenv("BAD_PLUGIN", "hangs in available", 1);
    expect_listed(deeds[0].first);
    expect_listed(deeds[0].then);
    unsetenv("BAD_PLUGIN");
    expect_listed(KERNEL "  cpu     1.0.0    yes ");
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("cli: patience", 600);
    tcase_add_checked_fixture(tc, set_up, NULL);
    tcase_add_loop_test(tc, what_hangs_is_not_waited_for_again, 0, sizeof deeds / sizeof *deeds);
    suite_add(tc, elsewhere_it_is_asked);
    return process_main();
}
