/* tenon check: this project's plugins and the example pass, a bad kernel fails, and the output says what to do. */
#include "printed.h"
#include "suite.h"
#include "tempdir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *built(const char *file)
{
    static char path[4200];
    snprintf(path, sizeof path, "%s/%s", process_build(), file);
    return path;
}

#define HELLO "tests/hello_kernel/hello_kernel.so"
#define BAD_KERNEL "tests/bad_kernels/bad_kernel.so"

/* Every line of an implementation that passed says what was covered. (`make check` runs the command on every plugin of
 * this tree.) */
START_TEST(what_passed_says_what_was_covered)
{
    /* What is for another machine is not tried, and says so. */
    static const struct {
        const char *file, *ends;
    } plugins[] = {{"plugins/npu_rope.so", "\n3 passed, 0 failed, 2 not tried\n"}, {HELLO, "\n2 passed, 0 failed\n"}};
    process_result r = TENON(NULL, "check", built(plugins[_i].file));
    ck_assert_msg(r.status == 0, "status %d: %s%s", r.status, r.out, r.err);
    ck_assert_str_eq(process_said(&r), "");
    suite_expect_in(r.out, " sites, 0 to 600 tokens, 1 to ");
    suite_expect_in(r.out, ": passed, worst 0");
    suite_expect_in(r.out, plugins[_i].ends);
}
END_TEST

START_TEST(a_fault_ends_with_5)
{
    setenv("BAD_KERNEL", "many rows", 1);
    process_result r = TENON(NULL, "check", built(BAD_KERNEL), "--quick", "--threads", "2", "--seed", "7");
    ck_assert_int_eq(r.status, 5);
    suite_expect_in(r.out, "npu_fused_rmsnorm RMS_NORM f32: ");
    suite_expect_in(r.out, ": FAILED at ");
    suite_expect_in(r.out, "\n    forward: wrong numbers, ");
    suite_expect_in(r.out, "\n    at f32, norm w, width ");
    suite_expect_in(r.out, " --site 1 --quick --seed 7 --threads 2\n");
    suite_expect_in(r.out, "\n0 passed, 1 failed\n");
    suite_expect_in(r.err, "1 of 1 implementations failed");
}
END_TEST

START_TEST(verbose_has_a_line_per_site)
{
    setenv("BAD_KERNEL", "crash", 1);
    process_result r = TENON(NULL, "check", built(BAD_KERNEL), "--quick", "-v");
    ck_assert_int_eq(r.status, 5);
    suite_expect_in(r.out, "     1 f32, norm w, width ");
    suite_expect_in(r.out, ": FAILED: forward: crashed with SIGSEGV (1 tokens), 1 thread\n");
}
END_TEST

/* The file may be anywhere, and writable for others: the user named it. */
START_TEST(any_place_will_do)
{
    char *folder = tempdir_new(), *path = tempdir_at(folder, "k.so");
    size_t size;
    void *content = tempdir_read(built(HELLO), &size);
    tempdir_write(path, content, size);
    ck_assert_int_eq(chmod(folder, 0777) | chmod(path, 0777), 0);
    process_result r = TENON(NULL, "check", path, "--quick");
    ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
    suite_expect_in(r.out, "2 passed, 0 failed\n");
    free(content);
}
END_TEST

START_TEST(json_holds_rows)
{
    process_result r = TENON(NULL, "check", built(HELLO), "--quick", "--json", "--bench", "--op", "rms_norm");
    ck_assert_msg(r.status == 0, "%s%s", r.out, r.err);
    json_t *root = printed_text(r.out);
    ck_assert_int_eq(json_integer_value(json_object_get(root, "passed")), 2);
    const json_t *rows = json_object_get(root, "rows");
    ck_assert_uint_eq(json_array_size(rows), 2 * (1 + 2 * 3));
    const json_t *first = json_array_get(rows, 0), *second = json_array_get(rows, 1);
    ck_assert_str_eq(json_string_value(json_object_get(first, "kind")), "implementation");
    ck_assert_str_eq(json_string_value(json_object_get(first, "result")), "passed");
    ck_assert_str_eq(json_string_value(json_object_get(second, "kind")), "time");
    ck_assert(json_number_value(json_object_get(second, "kernel_seconds")) > 0);
}
END_TEST

START_TEST(what_is_no_plugin_ends_with_3)
{
    process_expect_error(TENON(NULL, "check", "README.md"), 3, "no usable plugin", NULL);
    process_expect_error(TENON(NULL, "check", "nosuch.so", "--json"), 3,
                         "tenon: nosuch.so: no such file: ", "give the path of a plugin", NULL);
    process_expect_error(TENON(NULL, "check", "/nowhere.so"), 3, "/nowhere.so", "No such file", NULL);
    process_expect_error(TENON(NULL, "check", built("tests/bad_plugins/endless_loop.so")), 3, "its constructor ", NULL);
    process_expect_error(TENON(NULL, "check", built(HELLO), "--op", "SOFTMAX"), 2, "'SOFTMAX' is no operation", NULL);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("tenon check", 600);
    tcase_add_loop_test(tc, what_passed_says_what_was_covered, 0, 2);
    suite_add(tc, a_fault_ends_with_5, verbose_has_a_line_per_site, any_place_will_do, json_holds_rows,
              what_is_no_plugin_ends_with_3);
    return process_main();
}
