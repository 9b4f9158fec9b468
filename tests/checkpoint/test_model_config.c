/* config.json: types, absence, ranges, and what is said of a key that is wrong. */
#include "checkpoint/checkpoint.h"
#include "broken.h"
#include "tempdir.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char *folder, *path;

static void setup(void)
{
    folder = tempdir_new();
    path = tempdir_path(folder, "config.json");
}

static void teardown(void)
{
    free(path);
    tempdir_remove(folder);
}

static config_file *open_text(const char *text)
{
    tempdir_write(path, text, strlen(text));
    tn_error err = TN_ERROR_INIT;
    config_file *file = config_open(path, &err);
    ck_assert_msg(file != NULL, "%s", err.message);
    return file;
}

static void expect_refused(const char *text, size_t size, const char *word)
{
    tempdir_write(path, text, size);
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(config_open(path, &err));
    broken_expect(&err, TN_E_INPUT, "config.json", word, NULL);
}

START_TEST(values_are_read)
{
    config_file *file = open_text("{\"i\": 7, \"n\": -3, \"whole\": 1e6, \"f\": 0.5, \"b\": true, \"s\": \"silu\"}");
    const config_node *root = config_root(file);
    tn_error err = TN_ERROR_INIT;
    int64_t i = 0;
    double f = 0;
    bool b = false;
    const char *s = NULL;
    ck_assert_int_eq(config_i64(root, "i", 0, 10, &i, &err), TN_OK);
    ck_assert_int_eq(i, 7);
    ck_assert_int_eq(config_i64(root, "n", -3, 10, &i, &err), TN_OK);
    ck_assert_int_eq(i, -3);
    ck_assert_int_eq(config_need_i64(root, "whole", 0, 1000000, &i, &err), TN_OK);
    ck_assert_int_eq(i, 1000000);
    ck_assert_int_eq(config_f64(root, "f", &f, &err), TN_OK);
    ck_assert(f == 0.5);
    ck_assert_int_eq(config_f64(root, "i", &f, &err), TN_OK);
    ck_assert(f == 7.0);
    ck_assert_int_eq(config_bool(root, "b", &b, &err), TN_OK);
    ck_assert(b);
    ck_assert_int_eq(config_str(root, "s", &s, &err), TN_OK);
    ck_assert_str_eq(s, "silu");
    config_close(file);
}
END_TEST

START_TEST(absent_and_null_leave_the_default)
{
    config_file *file = open_text("{\"null\": null}");
    const config_node *root = config_root(file);
    tn_error err = TN_ERROR_INIT;
    const char *keys[] = {"null", "absent"};
    for (int k = 0; k < 2; k++) {
        int64_t i = 42;
        double f = 1.5;
        bool b = true;
        const char *s = "default";
        ck_assert_int_eq(config_i64(root, keys[k], 0, 1, &i, &err), TN_OK);
        ck_assert_int_eq(config_f64(root, keys[k], &f, &err), TN_OK);
        ck_assert_int_eq(config_bool(root, keys[k], &b, &err), TN_OK);
        ck_assert_int_eq(config_str(root, keys[k], &s, &err), TN_OK);
        ck_assert_int_eq(i, 42);
        ck_assert(f == 1.5);
        ck_assert(b);
        ck_assert_str_eq(s, "default");
        ck_assert(!config_has(root, keys[k]));
        ck_assert_ptr_null(config_child(root, keys[k], &err));
        ck_assert_int_eq(config_list(root, keys[k]), -1);
        ck_assert_int_eq(err.code, TN_OK);
        tn_error missing = TN_ERROR_INIT;
        ck_assert_int_eq(config_need_i64(root, keys[k], 0, 1, &i, &missing), TN_E_INPUT);
        broken_expect(&missing, TN_E_INPUT, "config.json", keys[k], "missing", NULL);
    }
    config_close(file);
}
END_TEST

START_TEST(children_name_their_place)
{
    config_file *file = open_text("{\"rope\": {\"factor\": \"x\", \"deep\": {\"k\": true}}, \"flat\": 1}");
    const config_node *root = config_root(file);
    tn_error err = TN_ERROR_INIT;
    const config_node *rope = config_child(root, "rope", &err);
    ck_assert_ptr_nonnull(rope);
    ck_assert_ptr_eq(config_child(root, "rope", &err), rope);
    double f = 3;
    ck_assert_int_eq(config_f64(rope, "factor", &f, &err), TN_E_INPUT);
    broken_expect(&err, TN_E_INPUT, "config.json", "'rope.factor'", "a string", NULL);
    ck_assert(f == 3);
    tn_error_clear(&err);
    int64_t i = 0;
    ck_assert_int_eq(config_i64(config_child(rope, "deep", &err), "k", 0, 1, &i, &err), TN_E_INPUT);
    broken_expect(&err, TN_E_INPUT, "'rope.deep.k'", "a boolean", NULL);
    tn_error_clear(&err);
    ck_assert_ptr_null(config_child(root, "flat", &err));
    broken_expect(&err, TN_E_INPUT, "'flat'", "an object", NULL);
    config_close(file);
}
END_TEST

START_TEST(wrong_types_and_ranges_are_errors)
{
    config_file *file =
        open_text("{\"half\": 0.5, \"big\": 1e300, \"text\": \"12\", \"yes\": 1, \"list\": [1], \"b\": true}");
    const config_node *root = config_root(file);
    const char *not_integers[] = {"half", "big", "text", "list", "b"};
    for (size_t k = 0; k < 5; k++) {
        tn_error err = TN_ERROR_INIT;
        int64_t i = 9;
        ck_assert_int_eq(config_i64(root, not_integers[k], INT64_MIN, INT64_MAX, &i, &err), TN_E_INPUT);
        broken_expect(&err, TN_E_INPUT, "config.json", not_integers[k], "an integer", NULL);
        ck_assert_int_eq(i, 9);
    }
    tn_error err = TN_ERROR_INIT;
    int64_t i = 9;
    bool b = false;
    const char *s = NULL;
    double f = 0;
    ck_assert_int_eq(config_i64(root, "yes", 2, 5, &i, &err), TN_E_INPUT);
    broken_expect(&err, TN_E_INPUT, "'yes'", "1", "2", "5", NULL);
    tn_error_clear(&err);
    ck_assert_int_eq(config_i64(root, "yes", -5, 0, &i, &err), TN_E_INPUT);
    ck_assert_int_eq(i, 9);
    ck_assert_int_eq(config_bool(root, "yes", &b, NULL), TN_E_INPUT);
    ck_assert_int_eq(config_str(root, "yes", &s, NULL), TN_E_INPUT);
    ck_assert_int_eq(config_f64(root, "text", &f, NULL), TN_E_INPUT);
    ck_assert_int_eq(config_f64(root, "b", &f, NULL), TN_E_INPUT);
    config_close(file);
}
END_TEST

START_TEST(lists_and_scalars)
{
    config_file *file = open_text("{\"ids\": [1, 2.0, 3], \"id\": 5, \"f\": [0.5, 2], \"s\": [\"a\", \"b\"], \"e\": [],"
                                  "\"mixed\": [1, null, \"x\"]}");
    const config_node *root = config_root(file);
    tn_error err = TN_ERROR_INIT;
    int64_t i = 0;
    double f = 0;
    const char *s = NULL;
    ck_assert_int_eq(config_list(root, "ids"), 3);
    ck_assert_int_eq(config_list_i64(root, "ids", 1, &i, &err), TN_OK);
    ck_assert_int_eq(i, 2);
    ck_assert_int_eq(config_list(root, "id"), 1);
    ck_assert_int_eq(config_list_i64(root, "id", 0, &i, &err), TN_OK);
    ck_assert_int_eq(i, 5);
    ck_assert_int_eq(config_list_f64(root, "f", 1, &f, &err), TN_OK);
    ck_assert(f == 2.0);
    ck_assert_int_eq(config_list_str(root, "s", 1, &s, &err), TN_OK);
    ck_assert_str_eq(s, "b");
    ck_assert_int_eq(config_list(root, "e"), 0);
    ck_assert_int_eq(config_list_i64(root, "ids", 3, &i, &err), TN_E_INPUT);
    broken_expect(&err, TN_E_INPUT, "'ids'", "element 3", NULL);
    ck_assert_int_eq(config_list_i64(root, "ids", -1, &i, NULL), TN_E_INPUT);
    ck_assert_int_eq(config_list_i64(root, "id", 1, &i, NULL), TN_E_INPUT);
    tn_error_clear(&err);
    ck_assert_int_eq(config_list_i64(root, "mixed", 1, &i, &err), TN_E_INPUT);
    broken_expect(&err, TN_E_INPUT, "'mixed'", "element 1", "null", NULL);
    ck_assert_int_eq(config_list_f64(root, "mixed", 2, &f, NULL), TN_E_INPUT);
    ck_assert_int_eq(config_list_str(root, "mixed", 0, &s, NULL), TN_E_INPUT);
    config_close(file);
}
END_TEST

START_TEST(the_last_duplicate_wins)
{
    config_file *file = open_text("{\"k\": 1, \"k\": 2}");
    int64_t i = 0;
    ck_assert_int_eq(config_i64(config_root(file), "k", 0, 9, &i, NULL), TN_OK);
    ck_assert_int_eq(i, 2);
    config_close(file);
}
END_TEST

START_TEST(what_is_not_a_config_is_refused)
{
    expect_refused("", 0, "JSON");
    expect_refused("{\"a\": 1", 7, "JSON");
    expect_refused("{\"a\": 1} x", 10, "JSON");
    expect_refused("[1]", 3, "object");
    expect_refused("{\"a\": NaN}", 10, "JSON");
    expect_refused("{\"a\": 1e999}", 12, "JSON");
    expect_refused("{\"a\": 99999999999999999999}", 27, "JSON");
    expect_refused("{\"a\": \"\xff\"}", 10, "JSON");
    expect_refused("{\"a\0\": 1}", 9, "JSON");
    size_t depth = 1 << 20;
    char *deep = malloc(depth + 8);
    memcpy(deep, "{\"a\": ", 6);
    memset(deep + 6, '[', depth);
    expect_refused(deep, depth + 6, "depth");
    free(deep);
}
END_TEST

START_TEST(a_config_that_is_no_file_is_refused)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(config_open(path, &err));
    broken_expect(&err, TN_E_INPUT, "config.json", "cannot open", NULL);
    tn_error_clear(&err);
    ck_assert_ptr_null(config_open(folder, &err));
    broken_expect(&err, TN_E_INPUT, folder, "not a regular file", NULL);
    tn_error_clear(&err);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_ptr_null(config_open(path, &err));
    broken_expect(&err, TN_E_INPUT, "config.json", "not a regular file", NULL);
}
END_TEST

START_TEST(a_huge_config_is_not_read)
{
    tempdir_write(path, "{}", 2);
    broken_truncate(folder, "config.json", (size_t)1 << 40); /* sparse */
    tn_error err = TN_ERROR_INIT;
    ck_assert_ptr_null(config_open(path, &err));
    broken_expect(&err, TN_E_INPUT, "config.json", "1099511627776", NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("model_config");
    TCase *tc = tcase_create("config");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, values_are_read);
    tcase_add_test(tc, absent_and_null_leave_the_default);
    tcase_add_test(tc, children_name_their_place);
    tcase_add_test(tc, wrong_types_and_ranges_are_errors);
    tcase_add_test(tc, lists_and_scalars);
    tcase_add_test(tc, the_last_duplicate_wins);
    tcase_add_test(tc, what_is_not_a_config_is_refused);
    tcase_add_test(tc, a_config_that_is_no_file_is_refused);
    tcase_add_test(tc, a_huge_config_is_not_read);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
