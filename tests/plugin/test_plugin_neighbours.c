/* What a plugin may do to the program and to other plugins only by being there: names of its functions, threads. */
#include "device/tasks.h"
#include "plugin/registry.h"
#include "plugin_box.h"
#include "run/guest.h"
#include "sanitizer.h"
#include "suite.h"

#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *reason_of(const char *id)
{
    registry_kernel *k = registry_find("cpu", id);
    ck_assert_msg(k != NULL, "%s is not there", id);
    ck_assert_int_eq(registry_probe(k, NULL), TN_OK);
    return k->reason;
}

static bool has_notice(const char *text)
{
    for (size_t i = 0; i < tn_notice_count(); i++)
        if (strstr(tn_notice_get(i), text))
            return true;
    return false;
}

/* ---- names ------------------------------------------------------------------------------------------------ */

static void open_both(const char *first, const char *second)
{
    tn_error err = TN_ERROR_INIT;
    plugin_box_add(first, "a.so");
    plugin_box_add(second, "b.so");
    plugin_box_add("good", "good.so");
    ck_assert_msg(plugin_box_scan(NULL, &err) == TN_OK, "%s: %s", err.where, err.message);
    ck_assert_uint_eq(registry_count("cpu"), 3);
}

static int compare_ints(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* In both orders: the first one that is opened must not win. */
START_TEST(each_plugin_calls_its_own_function)
{
    open_both(_i == 0 ? "same_symbols_one" : "same_symbols_two", _i == 0 ? "same_symbols_two" : "same_symbols_one");
    ck_assert_str_eq(reason_of("test_same_one"), "helper gives 1, qsort gives 1 2 3");
    /* Names of the program's libraries come first, as docs/trust.md says. */
    ck_assert_str_eq(reason_of("test_same_two"), "helper gives 2, qsort gives 1 2 3");
}
END_TEST

START_TEST(the_program_calls_its_own_functions)
{
    open_both("same_symbols_two", "same_symbols_one");
    reason_of("test_same_two");
    int list[] = {3, 1, 2};
    qsort(list, 3, sizeof *list, compare_ints);
    ck_assert_int_eq(list[0], 1);
    ck_assert_int_eq(list[2], 3);
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(tn_fail(&err, TN_E_USAGE, "here", "number %d", 7), TN_E_USAGE);
    ck_assert_str_eq(err.message, "number 7");
    ck_assert_ptr_null(tn_model_open("/nowhere", NULL, &err));
}
END_TEST

/* ---- threads ---------------------------------------------------------------------------------------------- */

static void *nothing(void *unused)
{
    return unused;
}

/* With the first thread that a program makes, the sanitizer starts one of its own, which stays. */
static void open_box(void)
{
    pthread_t thread;
    plugin_box_open();
    if (!THREAD_SANITIZER)
        return;
    ck_assert_int_eq(pthread_create(&thread, NULL, nothing, NULL), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    for (int tries = 0; tries < 1000 && tasks_count() > 2; tries++)
        usleep(1000);
}

static void plan_once(void)
{
    registry_kernel *k = registry_find("cpu", "test_leaves_thread");
    graph_binding bound = {.id = "test_leaves_thread", .file = "/x/a.so", .impl = &k->kernel.impls[0]};
    tn_site site = {.size = sizeof site, .op = TN_OP_RMS_NORM, .path = "norm"};
    tn_plan plan = {.size = sizeof plan};
    ck_assert_int_eq(guest_plan(&bound, &site, &plan, NULL), TN_OK);
}

START_TEST(a_thread_that_is_left_behind_is_reported)
{
    static const char *const places[] = {"available", "plan", "nowhere"};
    setenv("BAD_PLUGIN", places[_i], 1);
    plugin_box_add("leaves_thread", "a.so");
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    ck_assert_str_eq(reason_of("test_leaves_thread"), "");
    plan_once();
    ck_assert_int_eq(has_notice("left a thread behind in available"), _i == 0);
    ck_assert_int_eq(has_notice("test_leaves_thread (a.so) left a thread behind in plan"), _i == 1);
    ck_assert_int_eq(has_notice("a thread behind in its constructor"), false);
}
END_TEST

START_TEST(a_thread_that_a_constructor_leaves_is_reported)
{
    static const char *const deeds[] = {"a thread that stays", "a thread that ends", "nothing at all"};
    setenv("BAD_PLUGIN", deeds[_i], 1);
    plugin_box_add("conduct", "a.so");
    ck_assert_int_eq(plugin_box_scan(NULL, NULL), TN_OK);
    tn_plugin_info info = plugin_box_of("a.so");
    ck_assert_int_eq(info.state, TN_PLUGIN_LOADED);
    ck_assert_str_eq(info.reason, _i == 0 ? "its constructor leaves 1 thread behind" : "");
    ck_assert_int_eq(has_notice("a.so left a thread behind in its constructor"), _i == 0);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("plugins beside others", 120);
    tcase_add_checked_fixture(tc, open_box, NULL);
    tcase_add_loop_test(tc, each_plugin_calls_its_own_function, 0, 2);
    suite_add(tc, the_program_calls_its_own_functions);
    tcase_add_loop_test(tc, a_thread_that_is_left_behind_is_reported, 0, 3);
    tcase_add_loop_test(tc, a_thread_that_a_constructor_leaves_is_reported, 0, 3);
    return suite_run();
}
