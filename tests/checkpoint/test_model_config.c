/* config.json: types, absence, ranges, and what is said of a key that is wrong. */
#include "checkpoint/checkpoint.h"
#include "broken.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char *folder, *path;
static tn_status status;
static tn_error err;

static void setup(void)
{
    folder = tempdir_new();
    path = tempdir_at(folder, "config.json");
    status = TN_OK;
    err = (tn_error)TN_ERROR_INIT;
}

static config_file *open_text(const char *text)
{
    tempdir_write(path, text, strlen(text));
    config_file *file = config_open(path, &err);
    ck_assert_msg(file != NULL, "%s", err.message);
    return file;
}

static void expect_refused(const char *text, size_t size, const char *word)
{
    tempdir_write(path, text, size);
    tn_error_clear(&err);
    ck_assert_ptr_null(config_open(path, &err));
    broken_expect(&err, TN_E_INPUT, "config.json", word, NULL);
}

/* The next call may fail again. */
static void forget(void)
{
    status = TN_OK;
    tn_error_clear(&err);
}

START_TEST(values_are_read)
{
    config_file *file = open_text("{\"i\": 7, \"n\": -3, \"whole\": 1e6, \"f\": 0.5, \"b\": true, \"s\": \"silu\"}");
    config_reader root = config_root(file, &status, &err);
    ck_assert_int_eq(config_i64(&root, "i", 1, 0, 10), 7);
    ck_assert_int_eq(config_i64(&root, "n", 1, -3, 10), -3);
    ck_assert_int_eq(config_need_i64(&root, "whole", 0, 1000000), 1000000);
    ck_assert(config_f64(&root, "f", 1) == 0.5);
    ck_assert(config_f64(&root, "i", 1) == 7.0);
    ck_assert(config_bool(&root, "b", false));
    ck_assert_str_eq(config_str(&root, "s", "relu"), "silu");
    ck_assert_int_eq(status, TN_OK);
    config_close(file);
}
END_TEST

START_TEST(absent_and_null_leave_the_default)
{
    config_file *file = open_text("{\"null\": null}");
    config_reader root = config_root(file, &status, &err);
    const char *keys[] = {"null", "absent"};
    for (int k = 0; k < 2; k++) {
        forget();
        config_reader child = config_child(&root, keys[k]);
        ck_assert_int_eq(config_i64(&root, keys[k], 42, 0, 1), 42);
        ck_assert(config_f64(&root, keys[k], 1.5) == 1.5);
        ck_assert(config_bool(&root, keys[k], true));
        ck_assert_str_eq(config_str(&root, keys[k], "default"), "default");
        ck_assert(!config_has(&root, keys[k]));
        ck_assert_int_eq(config_list(&root, keys[k]), -1);
        ck_assert(!config_list_holds(&root, keys[k], 0));
        ck_assert(!config_has(&child, "i"));
        ck_assert_int_eq(config_i64(&child, "i", 3, 0, 9), 3);
        ck_assert_int_eq(status, TN_OK);
        ck_assert_int_eq(config_need_i64(&root, keys[k], 5, 9), 5);
        ck_assert_int_eq(status, TN_E_INPUT);
        broken_expect(&err, TN_E_INPUT, "config.json", keys[k], "missing", NULL);
    }
    ck_assert(config_is_null(&root, "null") && !config_is_null(&root, "absent"));
    config_close(file);
}
END_TEST

START_TEST(the_first_error_sticks)
{
    config_file *file = open_text("{\"text\": \"x\", \"i\": 7, \"list\": [7]}");
    config_reader root = config_root(file, &status, &err);
    ck_assert_int_eq(config_i64(&root, "text", 1, 0, 10), 1);
    ck_assert_int_eq(status, TN_E_INPUT);
    ck_assert_int_eq(config_i64(&root, "i", 2, 0, 10), 2);
    ck_assert_int_eq(config_need_i64(&root, "i", 3, 10), 3);
    ck_assert_int_eq(config_need_i64(&root, "absent", 3, 10), 3);
    ck_assert_int_eq(config_list(&root, "list"), -1);
    ck_assert(!config_list_holds(&root, "list", 7));
    config_fail(&root, "i", "is wrong too");
    broken_expect(&err, TN_E_INPUT, "config.json", "'text'", "an integer", NULL);
    config_close(file);
}
END_TEST

START_TEST(children_name_their_place)
{
    config_file *file = open_text("{\"rope\": {\"factor\": \"x\", \"deep\": {\"k\": true}}, \"flat\": 1}");
    config_reader root = config_root(file, &status, &err), rope = config_child(&root, "rope");
    ck_assert_ptr_eq(config_child(&root, "rope").node, rope.node);
    ck_assert(config_f64(&rope, "factor", 3) == 3);
    broken_expect(&err, TN_E_INPUT, "config.json", "'rope.factor'", "a string", NULL);
    forget();
    config_reader deep = config_child(&rope, "deep"), absent = config_child(&rope, "absent");
    ck_assert_ptr_ne(deep.node, absent.node);
    config_i64(&deep, "k", 0, 0, 1);
    broken_expect(&err, TN_E_INPUT, "'rope.deep.k'", "a boolean", NULL);
    forget();
    config_need_i64(&absent, "k", 0, 1);
    broken_expect(&err, TN_E_INPUT, "'rope.absent.k'", "missing", NULL);
    forget();
    config_child(&root, "flat");
    broken_expect(&err, TN_E_INPUT, "'flat'", "an object", NULL);
    config_close(file);
}
END_TEST

START_TEST(wrong_types_and_ranges_are_errors)
{
    config_file *file =
        open_text("{\"half\": 0.5, \"big\": 1e300, \"text\": \"12\", \"yes\": 1, \"list\": [1], \"b\": true}");
    config_reader root = config_root(file, &status, &err);
    const char *not_integers[] = {"half", "big", "text", "list", "b"};
    for (size_t k = 0; k < 5; k++) {
        forget();
        ck_assert_int_eq(config_i64(&root, not_integers[k], 9, INT64_MIN, INT64_MAX), 9);
        broken_expect(&err, TN_E_INPUT, "config.json", not_integers[k], "an integer", NULL);
    }
    forget();
    ck_assert_int_eq(config_i64(&root, "yes", 9, 2, 5), 9);
    broken_expect(&err, TN_E_INPUT, "'yes'", "1", "2", "5", NULL);
    forget();
    ck_assert_int_eq(config_i64(&root, "yes", 9, -5, 0), 9);
    ck_assert_int_eq(status, TN_E_INPUT);
    forget();
    ck_assert(!config_bool(&root, "yes", false));
    ck_assert_int_eq(status, TN_E_INPUT);
    forget();
    ck_assert_str_eq(config_str(&root, "yes", "no"), "no");
    ck_assert_int_eq(status, TN_E_INPUT);
    forget();
    ck_assert(config_f64(&root, "text", 2) == 2);
    ck_assert_int_eq(status, TN_E_INPUT);
    forget();
    ck_assert(config_f64(&root, "b", 2) == 2);
    ck_assert_int_eq(status, TN_E_INPUT);
    config_close(file);
}
END_TEST

START_TEST(a_word_is_one_of_those_known)
{
    static const config_word words[] = {{"silu", 3}, {"gelu", 5}, {0}};
    config_file *file = open_text("{\"act\": \"gelu\", \"other\": \"spiral\", \"acts\": [\"silu\", \"waves\"]}");
    config_reader root = config_root(file, &status, &err);
    ck_assert_int_eq(config_choice(&root, "act", "silu", words), 5);
    ck_assert_int_eq(config_choice(&root, "absent", "silu", words), 3);
    ck_assert_int_eq(config_list_choice(&root, "acts", 0, words), 3);
    ck_assert_int_eq(status, TN_OK);
    config_choice(&root, "other", "silu", words);
    broken_expect(&err, TN_E_INPUT, "config.json", "'other'", "'spiral'", "silu, gelu", NULL);
    forget();
    config_list_choice(&root, "acts", 1, words);
    broken_expect(&err, TN_E_INPUT, "'acts'", "'waves'", "silu, gelu", NULL);
    config_close(file);
}
END_TEST

START_TEST(lists_and_scalars)
{
    config_file *file = open_text("{\"ids\": [1, 2.0, 3], \"id\": 5, \"f\": [0.5, 2], \"s\": [\"a\", \"b\"], \"e\": [],"
                                  "\"mixed\": [1, null, \"x\"]}");
    config_reader root = config_root(file, &status, &err);
    ck_assert_int_eq(config_list(&root, "ids"), 3);
    ck_assert_int_eq(config_list_i64(&root, "ids", 1), 2);
    ck_assert(config_list_holds(&root, "ids", 3) && !config_list_holds(&root, "ids", 4));
    ck_assert_int_eq(config_list(&root, "id"), 1);
    ck_assert_int_eq(config_list_i64(&root, "id", 0), 5);
    ck_assert(config_list_f64(&root, "f", 1) == 2.0);
    ck_assert_str_eq(config_list_str(&root, "s", 1), "b");
    ck_assert_int_eq(config_list(&root, "e"), 0);
    ck_assert_int_eq(status, TN_OK);
    config_list_i64(&root, "ids", 3);
    broken_expect(&err, TN_E_INPUT, "'ids'", "element 3", NULL);
    forget();
    config_list_i64(&root, "ids", -1);
    ck_assert_int_eq(status, TN_E_INPUT);
    forget();
    config_list_i64(&root, "id", 1);
    ck_assert_int_eq(status, TN_E_INPUT);
    forget();
    config_list_i64(&root, "mixed", 1);
    broken_expect(&err, TN_E_INPUT, "'mixed'", "element 1", "null", NULL);
    forget();
    config_list_f64(&root, "mixed", 2);
    ck_assert_int_eq(status, TN_E_INPUT);
    forget();
    ck_assert_str_eq(config_list_str(&root, "mixed", 0), "");
    ck_assert_int_eq(status, TN_E_INPUT);
    config_close(file);
}
END_TEST

START_TEST(an_object_may_have_known_keys_alone)
{
    static const char *const keys[] = {"a", "b", NULL}, *const fewer[] = {"a", NULL};
    config_file *file = open_text("{\"o\": {\"a\": 1, \"b\": 2}}");
    config_reader root = config_root(file, &status, &err), o = config_child(&root, "o"), no = config_child(&root, "no");
    config_only(&o, keys);
    config_only(&no, keys);
    ck_assert_int_eq(status, TN_OK);
    config_only(&o, fewer);
    ck_assert_int_eq(status, TN_E_INPUT);
    broken_expect(&err, TN_E_INPUT, "config.json", "o.b", "supported", NULL);
    config_close(file);
}
END_TEST

START_TEST(the_last_duplicate_wins)
{
    config_file *file = open_text("{\"k\": 1, \"k\": 2}");
    config_reader root = config_root(file, &status, NULL);
    ck_assert_int_eq(config_i64(&root, "k", 0, 0, 9), 2);
    config_close(file);
}
END_TEST

/* As Python writes it, and as transformers does since version 5; not inside strings. */
START_TEST(infinity_is_a_large_number)
{
    config_file *file = open_text("{\"a\": Infinity, \"b\": [1, -Infinity], \"c\": \"\\\"Infinity\", "
                                  "\"d\": {\"__float__\": \"Infinity\"}, \"e\": [{\"__float__\": \"-Infinity\"}], "
                                  "\"f\": {\"__float__\": \"7\"}}");
    config_reader root = config_root(file, &status, &err);
    ck_assert(config_f64(&root, "a", 0) > 1e308 && isfinite(config_f64(&root, "a", 0)));
    ck_assert(config_list_f64(&root, "b", 1) < -1e308);
    ck_assert_str_eq(config_str(&root, "c", ""), "\"Infinity");
    ck_assert(config_is_str(&root, "c") && !config_is_str(&root, "a") && !config_is_str(&root, "none"));
    ck_assert_double_eq(config_f64(&root, "d", 0), config_f64(&root, "a", 0));
    ck_assert_double_eq(config_list_f64(&root, "e", 0), config_list_f64(&root, "b", 1));
    ck_assert_int_eq(status, TN_OK);
    config_f64(&root, "f", 0);
    ck_assert_int_eq(status, TN_E_INPUT);
    broken_expect(&err, TN_E_INPUT, "config.json", "'f' must be a number, it is an object", NULL);
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
    ck_assert_ptr_null(config_open(path, &err));
    broken_expect(&err, TN_E_INPUT, "config.json", "1099511627776", NULL);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("model_config", 0);
    tcase_add_checked_fixture(tc, setup, NULL);
    suite_add(tc, values_are_read, absent_and_null_leave_the_default, the_first_error_sticks, children_name_their_place,
              wrong_types_and_ranges_are_errors, a_word_is_one_of_those_known, lists_and_scalars,
              an_object_may_have_known_keys_alone, the_last_duplicate_wins, infinity_is_a_large_number,
              what_is_not_a_config_is_refused, a_config_that_is_no_file_is_refused, a_huge_config_is_not_read);
    return suite_run();
}
