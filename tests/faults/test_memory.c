/* Every allocation of a piece of work fails once, within one process: the library must say TN_E_MEMORY, or do without,
 * and must hold nothing afterwards that it did not hold before. test_faults does the same to the program, call by call;
 * here one allocation is tried for each way in which it was reached (the last few callers), so that all pieces of work
 * together take seconds. */
#include "failing_memory.h"
#include "memory_pieces.h"
#include "suite.h"

#include <tenon/tenon.h>

#include <check.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the walk --------------------------------------------------------------------------------------------------- */

static uint64_t last_count;

static tn_status perform(const piece *p, uint64_t chosen, bool recording, uint64_t *sum, tn_error *err)
{
    *sum = 14695981039346656037ULL;
    tn_error_clear(err);
    failing_begin(chosen, recording);
    tn_status status = p->work(p->path, sum, err);
    last_count = failing_end();
    return status;
}

/* NULL, or what is wrong with how it ended. */
static const char *fault_in(const piece *p, tn_status status, const tn_error *err, bool same)
{
    if (status == TN_OK && !same)
        return "ended well with another result";
    if (status == TN_OK)
        return failing_leaks(p->name) ? "ended well and did not free all" : NULL;
    if (status != err->code)
        return "returned another status than the error says";
    if (status != TN_E_MEMORY && !(p->kernels && status == TN_E_KERNEL))
        return "a status that does not fit";
    if (!err->message[0])
        return "no message";
    return failing_leaks(p->name) ? "did not free all" : NULL;
}

static bool try_one(const piece *p, uint64_t number, uint64_t usual)
{
    uint64_t sum;
    tn_error err = TN_ERROR_INIT;
    tn_status status = perform(p, number, false, &sum, &err);
    const char *wrong = fault_in(p, status, &err, sum == usual);
    if (wrong)
        printf("    %s allocation %llu: %s; status %d, %s: %s\n", p->name, (unsigned long long)number, wrong,
               (int)status, err.where, err.message);
    return !wrong;
}

START_TEST(every_allocation_may_fail)
{
    const piece *p = &pieces[_i];
    tn_error err = TN_ERROR_INIT;
    uint64_t usual, again;
    size_t fell = 0;
    /* What is made once in a process is there afterwards. */
    tn_status status = perform(p, 0, false, &usual, &err);
    ck_assert_msg(status == TN_OK, "%s: %s: %s", p->name, err.where, err.message);
    status = perform(p, 0, true, &again, &err);
    ck_assert_msg(status == TN_OK && again == usual, "%s: another result the second time", p->name);
    ck_assert_uint_eq(failing_leaks(p->name), 0);
    const uint64_t *points;
    size_t count = failing_points(&points);
    unsigned long long total = last_count;
    for (size_t i = 0; i < count; i++)
        fell += !try_one(p, points[i], usual);
    printf("%-18s %6llu allocations, %5zu ways, %zu fell\n", p->name, total, count, fell);
    fflush(stdout); /* a child that fails loses what it holds */
    ck_assert_msg(fell == 0, "%s: %zu of %zu fell", p->name, fell, count);
    ck_assert_uint_gt(count, 1);
}
END_TEST

/* ---- the walk finds what it looks for --------------------------------------------------------------------------- */

static tn_status forgetful(const char *path, uint64_t *sum, tn_error *err)
{
    void *volatile one = malloc(10);
    void *volatile two = one ? malloc(20) : NULL;
    if (!two)
        return tn_fail(err, TN_E_MEMORY, path, "out of memory");
    piece_add(sum, "done", 4);
    free(one);
    free(two);
    return TN_OK;
}

static tn_status mistaken(const char *path, uint64_t *sum, tn_error *err)
{
    void *volatile one = malloc(10);
    if (!one)
        return tn_fail(err, TN_E_INPUT, path, "is broken");
    piece_add(sum, "done", 4);
    free(one);
    return TN_OK;
}

static tn_status careless(const char *path, uint64_t *sum, tn_error *err)
{
    void *volatile one = malloc(10);
    (void)path;
    (void)err;
    piece_add(sum, one ? "done" : "half", 4);
    free(one);
    return TN_OK;
}

START_TEST(what_goes_wrong_is_found)
{
    static const piece wrong[] = {
        {.name = "forgetful", .path = "x", .work = forgetful},
        {.name = "mistaken", .path = "x", .work = mistaken},
        {.name = "careless", .path = "x", .work = careless},
    };
    static const char *const words[] = {"did not free all", "a status that does not fit",
                                        "ended well with another result"};
    static const uint64_t at[] = {2, 1, 1};
    tn_error err = TN_ERROR_INIT;
    uint64_t usual, sum;
    ck_assert_int_eq(perform(&wrong[_i], 0, false, &usual, &err), TN_OK);
    ck_assert_uint_eq(failing_leaks(wrong[_i].name), 0);
    tn_status status = perform(&wrong[_i], at[_i], false, &sum, &err);
    const char *found = fault_in(&wrong[_i], status, &err, sum == usual);
    ck_assert_ptr_nonnull(found);
    ck_assert_str_eq(found, words[_i]);
}
END_TEST

/* Only one thread is looked at: what another one frees would count as lost. */
static void one_processor(void)
{
    cpu_set_t set;
    int first = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return;
    while (first < CPU_SETSIZE - 1 && !CPU_ISSET(first, &set))
        first++;
    CPU_ZERO(&set);
    CPU_SET(first, &set);
    sched_setaffinity(0, sizeof set, &set);
}

int main(void)
{
    if (SANITIZER) {
        puts("SKIPPED: the sanitizer owns the allocator");
        puts("100%: Checks: 0, Failures: 0, Errors: 0");
        return EXIT_SUCCESS;
    }
    setenv("TENON_MEASURE", "no", 1);
    one_processor();
    TCase *tc = suite_open("memory", 0);
    tcase_add_checked_fixture(tc, pieces_open, pieces_close);
    tcase_add_loop_test(tc, what_goes_wrong_is_found, 0, 3);
    tcase_add_loop_test(tc, every_allocation_may_fail, 0, (int)piece_count);
    return suite_run();
}
