/* What the simulator captures of streams: performed whenever it is executed, and the rules of that. Every test is a
 * process of its own. */
#include "sim_box.h"
#include "suite.h"

enum { GLOBAL, THREAD_LOCAL, RELAXED };

/* An executor of a = a + a that may run again; with workspace where the operator wants one. */
static aclOpExecutor *doubling(const box *a, aclScalar *one)
{
    ck_assert_int_eq(FIRST(Add, a->tensor, a->tensor, one, a->tensor), 0);
    ck_assert_int_eq(CALL(aclSetAclOpExecutorRepeatable)(executor), 0);
    return executor;
}

/* Twice what doubling does. */
static aclmdlRI captured(aclOpExecutor *e)
{
    aclmdlRI model = NULL;
    ck_assert_int_eq(CALL(aclmdlRICaptureBegin)(box_stream, (aclmdlRICaptureMode)THREAD_LOCAL), 0);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(CALL(aclnnAdd)(NULL, 0, e, box_stream), 0);
    ck_assert_int_eq(CALL(aclmdlRICaptureEnd)(box_stream, &model), 0);
    ck_assert_ptr_nonnull(model);
    return model;
}

static void wait_for_all(void)
{
    ck_assert_int_eq(CALL(aclrtSynchronizeStream)(box_stream), 0);
}

START_TEST(what_is_captured_runs_as_often_as_it_is_executed)
{
    box_open();
    sim_figures before, after;
    box a = tensor(ACL_FLOAT, 1, DIMS(2), VALUES(1, 3));
    aclScalar *one = number(1);
    aclOpExecutor *e = doubling(&a, one);
    CALL(sim_figures_so_far)(&before);
    aclmdlRI model = captured(e);
    wait_for_all();
    expect(&a, VALUES(1, 3));
    CALL(sim_figures_so_far)(&after);
    ck_assert_int_eq(after.captured - before.captured, 2);
    ck_assert_int_eq(after.launches - before.launches, 0);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(CALL(aclmdlRIExecuteAsync)(model, box_stream), 0);
    wait_for_all();
    expect(&a, VALUES(16, 48));
    CALL(sim_figures_so_far)(&after);
    ck_assert_int_eq(after.launches - before.launches, 2);
    ck_assert_int_eq(after.graphs - before.graphs, 2);
    ck_assert_int_eq(after.replayed - before.replayed, 4);
    ck_assert_int_eq(CALL(aclmdlRIDestroy)(model), 0);
    ck_assert_int_eq(CALL(aclDestroyAclOpExecutor)(e), 0);
    FREE_SCALARS(one);
    DROP(&a);
    box_close(0);
}
END_TEST

/* What waits, and what the host does at once, breaks the capture, and its end says so. */
START_TEST(nobody_waits_or_allocates_meanwhile)
{
    box_open();
    void *memory;
    char here[8];
    aclmdlRI model = NULL;
    box a = tensor(ACL_FLOAT, 1, DIMS(2), VALUES(1, 3));
    ck_assert_int_eq(CALL(aclmdlRICaptureBegin)(box_stream, (aclmdlRICaptureMode)_i), 0);
    BROKEN(CALL(aclmdlRICaptureBegin)(box_stream, (aclmdlRICaptureMode)_i), 107027);
    BROKEN(CALL(aclrtSynchronizeStream)(box_stream), 107041);
    int64_t rules = 2;
    if (_i != RELAXED) {
        BROKEN(CALL(aclrtMalloc)(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST), 107041);
        BROKEN(CALL(aclrtFree)(a.device), 107041);
        BROKEN(CALL(aclrtMemcpy)(here, 8, a.device, 8, ACL_MEMCPY_DEVICE_TO_HOST), 107041);
        rules += 3;
    }
    BROKEN(CALL(aclrtMemcpyAsync)(here, 8, a.device, 8, ACL_MEMCPY_DEVICE_TO_HOST, box_stream), 107041);
    ck_assert_int_eq(CALL(aclmdlRICaptureEnd)(box_stream, &model), 507903);
    ck_assert_ptr_null(model);
    wait_for_all();
    expect(&a, VALUES(1, 3));
    DROP(&a);
    box_close(rules + 1);
}
END_TEST

START_TEST(captures_begin_and_end)
{
    box_open();
    aclmdlRI model = NULL;
    BROKEN(CALL(aclmdlRICaptureBegin)(NULL, (aclmdlRICaptureMode)GLOBAL), 107031);
    BROKEN(CALL(aclmdlRICaptureBegin)(box_stream, (aclmdlRICaptureMode)3), 107000);
    BROKEN(CALL(aclmdlRICaptureEnd)(box_stream, &model), 107029);
    BROKEN(CALL(aclmdlRIExecuteAsync)(NULL, box_stream), 107000);
    BROKEN(CALL(aclmdlRIDestroy)(NULL), 107000);
    ck_assert_int_eq(CALL(aclmdlRICaptureBegin)(box_stream, (aclmdlRICaptureMode)GLOBAL), 0);
    ck_assert_int_eq(CALL(aclmdlRICaptureEnd)(box_stream, &model), 0);
    ck_assert_int_eq(CALL(aclmdlRICaptureBegin)(box_stream, (aclmdlRICaptureMode)GLOBAL), 0);
    BROKEN(CALL(aclmdlRIExecuteAsync)(model, box_stream), 107026);
    aclmdlRI other = NULL;
    ck_assert_int_eq(CALL(aclmdlRICaptureEnd)(box_stream, &other), 0);
    ck_assert_int_eq(CALL(aclmdlRIExecuteAsync)(model, box_stream), 0);
    BROKEN(CALL(aclmdlRIDestroy)(model), 0);
    wait_for_all();
    ck_assert_int_eq(CALL(aclmdlRIDestroy)(model), 0);
    ck_assert_int_eq(CALL(aclmdlRIDestroy)(other), 0);
    BROKEN(CALL(aclmdlRIDestroy)(model), 107000);
    box_close(8);
}
END_TEST

/* Memory and executors of what was captured stay until that is destroyed; without them it does not run. */
START_TEST(what_captured_work_needs_has_to_stay)
{
    box_open();
    box a = tensor(ACL_FLOAT, 1, DIMS(2), VALUES(1, 3));
    aclScalar *one = number(1);
    aclOpExecutor *e = doubling(&a, one);
    aclmdlRI model = captured(e);
    BROKEN(CALL(aclDestroyAclOpExecutor)(e), 0);
    BROKEN(CALL(aclrtFree)(a.device), 0);
    ck_assert_int_eq(CALL(aclmdlRIExecuteAsync)(model, box_stream), 0);
    BROKEN(CALL(aclrtSynchronizeStream)(box_stream), 507015);
    ck_assert_int_eq(CALL(aclmdlRIDestroy)(model), 0);
    ck_assert_int_eq(CALL(aclDestroyTensor)(a.tensor), 0);
    FREE_SCALARS(one);
    box_close(3);
}
END_TEST

/* Each of the four calls may be made to fail, but for the last. */
START_TEST(captures_fail)
{
    box_open();
    aclmdlRI model = NULL;
    CALL(sim_fail_after)(1);
    ck_assert_int_eq(CALL(aclmdlRICaptureBegin)(box_stream, (aclmdlRICaptureMode)GLOBAL), 207005);
    ck_assert_int_eq(CALL(aclmdlRICaptureBegin)(box_stream, (aclmdlRICaptureMode)GLOBAL), 0);
    CALL(sim_fail_after)(1);
    ck_assert_int_eq(CALL(aclmdlRICaptureEnd)(box_stream, &model), 507903);
    ck_assert_int_eq(CALL(aclmdlRICaptureBegin)(box_stream, (aclmdlRICaptureMode)GLOBAL), 0);
    ck_assert_int_eq(CALL(aclmdlRICaptureEnd)(box_stream, &model), 0);
    CALL(sim_fail_after)(1);
    ck_assert_int_eq(CALL(aclmdlRIExecuteAsync)(model, box_stream), 507011);
    ck_assert_int_eq(CALL(aclmdlRIDestroy)(model), 0);
    box_close(0);
}
END_TEST

/* ---- rows at places ---------------------------------------------------------------------------------------------- */

START_TEST(rows_are_put_where_an_index_says)
{
    box_open();
    for (int i = 0; i < 3; i++) {
        box data = tensor(floats[i], 4, DIMS(2, 1, 3, 2), VALUES(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
        box rows = tensor(floats[i], 4, DIMS(2, 1, 1, 2), VALUES(20, 21, 30, 31));
        box where = tensor(i ? ACL_INT64 : ACL_INT32, 1, DIMS(2), VALUES(2, 0));
        box beyond = tensor(ACL_INT32, 1, DIMS(2), VALUES(0, 3)), pair = tensor(ACL_INT32, 2, DIMS(1, 2), NULL);
        GO(InplaceScatterUpdate, data.tensor, where.tensor, rows.tensor, -2);
        expect(&data, VALUES(1, 2, 3, 4, 20, 21, 30, 31, 9, 10, 11, 12));
        BROKEN(FIRST(InplaceScatterUpdate, data.tensor, where.tensor, rows.tensor, 0), 161002);
        BROKEN(FIRST(InplaceScatterUpdate, data.tensor, pair.tensor, rows.tensor, 2), 161002);
        BROKEN(FIRST(InplaceScatterUpdate, rows.tensor, where.tensor, data.tensor, 2), 161002);
        BROKEN(go("aclnnInplaceScatterUpdate", FIRST(InplaceScatterUpdate, data.tensor, beyond.tensor, rows.tensor, 2)),
               507015);
        DROP(&data, &rows, &where, &beyond, &pair);
    }
    box_close(3 * 4);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("what the simulator captures", 0);
    suite_add(tc, what_is_captured_runs_as_often_as_it_is_executed, captures_begin_and_end,
              what_captured_work_needs_has_to_stay, captures_fail, rows_are_put_where_an_index_says);
    tcase_add_loop_test(tc, nobody_waits_or_allocates_meanwhile, 0, 3);
    return suite_run();
}
