/* The check of a first use is made once: not again for the same kernel, weights, threads and environment, and again
 * where one of them is another. */
#include "open/model.h"
#include "plugin_box.h"
#include "process.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static char *folder; /* of a model of our own                                                      */

static void setup(void)
{
    plugin_box_open();
    folder = tempdir_new();
    tempdir_copy("tests/data/models/qwen3", folder);
    plugin_box_add("../bad_kernels/bad_rope", "rope.so");
}

static void teardown(void)
{
    unsetenv("BAD_KERNEL");
}

static tn_status apply(int32_t threads, const char *verify, tn_error *err)
{
    char text[128];
    snprintf(text, sizeof text, "{\"verify\": \"%s\"}", verify);
    *err = (tn_error)TN_ERROR_INIT;
    tn_config *config = plugin_box_config(text);
    ck_assert_msg(tn_scan(config, err) == TN_OK, "%s", err->message);
    tn_model *m = test_model_open_with(folder, .dtype = "f32", .threads = threads);
    tn_status status = tn_apply_kernels(m, config, "bad_rope", NULL, err);
    tn_model_close(m);
    return status;
}

/* Files of checks; *newest is the inode of the last one, which a check that is made again replaces. */
static size_t kept(ino_t *newest)
{
    char pattern[4300];
    glob_t found;
    struct stat st;
    snprintf(pattern, sizeof pattern, "%s/cache/tenon/checked-*", plugin_box_root());
    size_t count = glob(pattern, 0, NULL, &found) == 0 ? found.gl_pathc : 0;
    *newest = 0;
    for (size_t i = 0; i < count; i++)
        if (stat(found.gl_pathv[i], &st) == 0)
            *newest += st.st_ino;
    globfree(&found);
    return count;
}

static void expect_ok(int32_t threads, const char *verify)
{
    tn_error err;
    ck_assert_msg(apply(threads, verify, &err) == TN_OK, "%s: %s", err.where, err.message);
}

/* Applies until so many checks are kept, the newest of them not `before`: what a busy machine never ran at one time is
 * not. */
static ino_t expect_kept(int32_t threads, const char *verify, size_t count, ino_t before)
{
    ino_t newest = before;
    size_t found = 0;
    for (int i = 0; i < 40 && (found != count || newest == before); i++) {
        expect_ok(threads, verify);
        found = kept(&newest);
    }
    ck_assert_uint_eq(found, count);
    ck_assert(newest != before);
    return newest;
}

START_TEST(what_passed_is_not_tried_again)
{
    ino_t second, first = expect_kept(2, "first-use", 1, 0);
    expect_ok(2, "first-use");
    ck_assert_uint_eq(kept(&second), 1);
    ck_assert(first == second);
    second = expect_kept(2, "all", 1, first);
    expect_kept(3, "first-use", 2, second);
}
END_TEST

START_TEST(other_weights_are_tried)
{
    ino_t before = expect_kept(2, "first-use", 1, 0);
    char *path = tempdir_at(folder, "model.safetensors");
    const struct timespec now[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
    ck_assert_int_eq(utimensat(AT_FDCWD, path, now, 0), 0);
    expect_kept(2, "first-use", 2, before);
}
END_TEST

/* The same bytes of a plugin do otherwise where a variable says so. */
START_TEST(another_environment_is_tried)
{
    ino_t inode;
    tn_error err;
    expect_kept(2, "first-use", 1, 0);
    setenv("BAD_KERNEL", "one row of tables", 1);
    ck_assert_int_eq(apply(2, "first-use", &err), TN_E_VERIFY);
    suite_expect_in(err.message, "wrong numbers");
    ck_assert_uint_eq(kept(&inode), 1); /* what is refused is not kept                            */
    ck_assert_int_eq(apply(2, "first-use", &err), TN_E_VERIFY);
    setenv("PWD", "/elsewhere", 1);
    unsetenv("BAD_KERNEL");
    expect_ok(2, "first-use");
    ck_assert_uint_eq(kept(&inode), 1);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("check cache", 0);
    tcase_add_checked_fixture(tc, setup, teardown);
    suite_add(tc, what_passed_is_not_tried_again, other_weights_are_tried, another_environment_is_tried);
    return suite_run();
}
