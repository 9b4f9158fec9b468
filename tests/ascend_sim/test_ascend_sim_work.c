/* The simulator's rules of queued work, of objects and of executors, each against its code. Every test is a process of
 * its own. */
#include "sim_box.h"
#include "suite.h"

#include <pthread.h>

static const int64_t four = 4;
static const float ones[] = {1, 1, 1, 1}, count4[] = {1, 2, 3, 4};

/* Queues out = a + b, and does not wait. */
static int queue_add(const box *a, const box *b, const box *out)
{
    aclScalar *alpha = number(1.0f);
    int code = FIRST(Add, a->tensor, b->tensor, alpha, out->tensor);
    if (!code)
        code = CALL(aclnnAdd)(NULL, 0, executor, box_stream);
    CALL(aclDestroyScalar)(alpha);
    return code;
}

/* ---- queues ---------------------------------------------------------------------------------------------------- */

START_TEST(work_waits_for_who_synchronises)
{
    box_open();
    box a = tensor(ACL_FLOAT, 1, &four, ones), b = tensor(ACL_FLOAT, 1, &four, count4);
    box out = tensor(ACL_FLOAT, 1, &four, NULL);
    ck_assert_int_eq(queue_add(&a, &b, &out), 0);
    int64_t before = broken();
    ck_assert(isnan(at(&out, 0))); /* a copy does not wait for the stream, and whoever relies on it is told */
    ck_assert_int_eq(broken(), before + 1);
    ck_assert_int_eq(CALL(aclrtSynchronizeStream)(box_stream), 0);
    expect(&out, (float[]){2, 3, 4, 5});
    DROP(&a, &b, &out);
    box_close(1);
}
END_TEST

START_TEST(memory_of_queued_work_may_not_go)
{
    box_open();
    box a = tensor(ACL_FLOAT, 1, &four, ones), b = tensor(ACL_FLOAT, 1, &four, ones);
    box out = tensor(ACL_FLOAT, 1, &four, NULL);
    ck_assert_int_eq(queue_add(&a, &b, &out), 0);
    int64_t before = broken();
    drop(&b); /* the tensor may go, its memory may not */
    ck_assert_int_eq(broken(), before + 1);
    ck_assert_int_eq(CALL(aclrtSynchronizeStream)(box_stream), 507015);
    ck_assert_ptr_nonnull(CALL(aclGetRecentErrMsg)());
    ck_assert_int_eq(CALL(aclrtSynchronizeStream)(box_stream), 0);
    DROP(&a, &out);
    box_close(2);
}
END_TEST

START_TEST(copies_wait_for_page_locked_memory_alone)
{
    box_open();
    box a = tensor(ACL_FLOAT, 1, &four, ones), out = tensor(ACL_FLOAT, 1, &four, NULL);
    float *locked = NULL, ordinary[4] = {0};
    ck_assert_int_eq(CALL(aclrtMallocHost)((void **)&locked, 16), 0);
    locked[0] = 7.0f;
    ck_assert_int_eq(queue_add(&a, &a, &out), 0);
    ck_assert_int_eq(CALL(aclrtMemcpyAsync)(locked, 16, out.device, 16, ACL_MEMCPY_DEVICE_TO_HOST, box_stream), 0);
    ck_assert_float_eq(locked[0], 7.0f);
    BROKEN(CALL(aclrtFreeHost)(locked), 0);
    ck_assert_int_eq(CALL(aclrtMemcpyAsync)(ordinary, 16, out.device, 16, ACL_MEMCPY_DEVICE_TO_HOST, box_stream), 0);
    ck_assert_float_eq(ordinary[0], 2.0f);
    ck_assert_float_eq(locked[0], 2.0f);
    ck_assert_int_eq(CALL(aclrtFreeHost)(locked), 0);
    DROP(&a, &out);
    box_close(1);
}
END_TEST

/* ---- objects --------------------------------------------------------------------------------------------------- */

START_TEST(tensors_are_checked)
{
    box_open();
    box a = tensor(ACL_FLOAT, 1, &four, ones);
    char *p = a.device;
    ck_assert_ptr_null(
        CALL(aclCreateTensor)(&four, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, &four, 1, p + 4)); /* 32 bytes */
    ck_assert_ptr_null(CALL(aclCreateTensor)(&four, 1, ACL_FLOAT, NULL, 1, ACL_FORMAT_ND, &four, 1, p));
    ck_assert_ptr_null(CALL(aclCreateTensor)(NULL, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, &four, 1, p));
    ck_assert_ptr_null(CALL(aclCreateTensor)(&(int64_t){-1}, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, &four, 1, p));
    ck_assert_int_eq(broken(), 4);
    ck_assert_int_eq(CALL(aclDestroyTensor)(NULL), 0);
    ck_assert_int_eq(CALL(aclDestroyScalar)(NULL), 0);
    ck_assert_int_eq(CALL(aclDestroyTensorList)(NULL), 0);
    aclTensor *twin = view_of(&a, 1, &four, NULL, 0);
    aclTensorList *list = CALL(aclCreateTensorList)((const aclTensor *[]){twin}, 1);
    BROKEN(CALL(aclDestroyTensor)(twin), 0); /* the list's */
    ck_assert_int_eq(CALL(aclDestroyTensorList)(list), 0);
    BROKEN(CALL(aclDestroyTensor)(twin), 0);
    BROKEN(CALL(aclDestroyTensorList)(list), 0);
    drop(&a);
    box_close(7);
}
END_TEST

START_TEST(views_beyond_memory_are_seen_when_work_runs)
{
    box_open();
    box a = tensor(ACL_FLOAT, 1, &four, ones), out = tensor(ACL_FLOAT, 1, &(int64_t){8}, NULL);
    aclTensor *wide =
        CALL(aclCreateTensor)(&(int64_t){8}, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, &(int64_t){8}, 1, a.device);
    BROKEN(go("aclnnSilu", FIRST(Silu, wide, out.tensor)), 507015);
    float host[8] = {0}; /* and so is memory of the host */
    aclTensor *here = CALL(aclCreateTensor)(&(int64_t){8}, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, &(int64_t){8}, 1,
                                            (void *)((uintptr_t)host / 32 * 32));
    BROKEN(go("aclnnSilu", FIRST(Silu, here, out.tensor)), 507015);
    CALL(aclDestroyTensor)(wide);
    CALL(aclDestroyTensor)(here);
    DROP(&a, &out);
    box_close(2);
}
END_TEST

START_TEST(results_may_not_lie_on_inputs)
{
    box_open();
    int64_t shape[] = {2, 2}, wide[] = {2, 4}, strides[] = {4, 1};
    box a = tensor(ACL_FLOAT, 2, wide, (float[]){1, 2, 0, 0, 3, 4, 0, 0}), w = tensor(ACL_FLOAT, 2, shape, ones);
    aclTensor *left = view_of(&a, 2, shape, strides, 0), *right = view_of(&a, 2, shape, strides, 2);
    GO(Matmul, left, w.tensor, right, 0);
    expect(&a, (float[]){1, 2, 3, 3, 3, 4, 7, 7}); /* halves of rows have no element in common */
    BROKEN(go("aclnnMatmul", FIRST(Matmul, left, w.tensor, left, 0)), 0);
    GO(Silu, w.tensor, w.tensor);
    CALL(aclDestroyTensor)(left);
    CALL(aclDestroyTensor)(right);
    DROP(&a, &w);
    box_close(1);
}
END_TEST

/* ---- executors ------------------------------------------------------------------------------------------------- */

START_TEST(executors_are_used_once)
{
    box_open();
    box a = tensor(ACL_FLOAT, 1, &four, ones), out = tensor(ACL_FLOAT, 1, &four, NULL);
    ck_assert_int_eq(FIRST(Silu, a.tensor, out.tensor), 0);
    ck_assert_int_eq(CALL(sim_leaks)(), 6);
    ck_assert_int_eq(CALL(aclnnSilu)(NULL, 0, executor, box_stream), 0);
    ck_assert_int_eq(CALL(sim_leaks)(), 5);
    BROKEN(CALL(aclnnSilu)(NULL, 0, executor, box_stream), 561000);
    BROKEN(CALL(aclnnSilu)(NULL, 0, NULL, box_stream), 161001);
    ck_assert_int_eq(FIRST(Silu, a.tensor, out.tensor), 0);
    BROKEN(CALL(aclnnSigmoid)(NULL, 0, executor, box_stream), 561000);
    ck_assert_int_eq(FIRST(Silu, a.tensor, out.tensor), 0);
    BROKEN(CALL(aclDestroyAclOpExecutor)(executor), 0); /* never run, and not repeatable */
    BROKEN(CALL(aclnnSiluGetWorkspaceSize)(a.tensor, out.tensor, NULL, &executor), 161001);
    ck_assert_int_eq(CALL(aclrtSynchronizeStream)(box_stream), 0);
    DROP(&a, &out);
    box_close(5);
}
END_TEST

START_TEST(the_workspace_is_checked)
{
    box_open();
    int64_t shape[] = {2, 2};
    box a = tensor(ACL_FLOAT, 2, shape, ones), out = tensor(ACL_FLOAT, 2, shape, NULL);
    void *p = NULL;
    char host[64];
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(FIRST(Matmul, a.tensor, a.tensor, out.tensor, 0), 0);
        ck_assert_int_gt(needed, 0);
        if (!p)
            ck_assert_int_eq(CALL(aclrtMalloc)(&p, needed, ACL_MEM_MALLOC_HUGE_FIRST), 0);
        if (i == 0)
            BROKEN(CALL(aclnnMatmul)(NULL, needed, executor, box_stream), 161001);
        else if (i == 1)
            BROKEN(CALL(aclnnMatmul)(p, needed - 1, executor, box_stream), 161002);
        else if (i == 2)
            BROKEN(CALL(aclnnMatmul)(host, needed, executor, box_stream), 161002);
        else
            BROKEN(CALL(aclnnMatmul)((char *)p + 32, needed, executor, box_stream), 161002);
    }
    CALL(aclrtFree)(p);
    DROP(&a, &out);
    box_close(4);
}
END_TEST

START_TEST(tensors_stay_between_the_phases)
{
    box_open();
    box a = tensor(ACL_FLOAT, 1, &four, ones), out = tensor(ACL_FLOAT, 1, &four, NULL);
    ck_assert_int_eq(FIRST(Silu, a.tensor, out.tensor), 0);
    BROKEN(CALL(aclDestroyTensor)(a.tensor), 0);
    BROKEN(CALL(aclnnSilu)(NULL, 0, executor, box_stream), 161002);
    CALL(aclrtFree)(a.device);
    drop(&out);
    box_close(2);
}
END_TEST

typedef struct second_call {
    int code;
    bool with_device;
} second_call;

static void *run_second(void *argument)
{
    second_call *call = argument;
    if (call->with_device)
        ck_assert_int_eq(CALL(aclrtSetDevice)(0), 0);
    call->code = CALL(aclnnSilu)(NULL, 0, executor, box_stream);
    if (call->with_device)
        ck_assert_int_eq(CALL(aclrtResetDevice)(0), 0);
    return NULL;
}

/* A thread without a device cannot run it; one with the device can, though no document says so. */
START_TEST(phases_stay_in_a_thread)
{
    box_open();
    box a = tensor(ACL_FLOAT, 1, &four, ones), out = tensor(ACL_FLOAT, 1, &four, NULL);
    for (int i = 0; i < 2; i++) {
        second_call call = {.with_device = i};
        pthread_t thread;
        ck_assert_int_eq(FIRST(Silu, a.tensor, out.tensor), 0);
        ck_assert_int_eq(pthread_create(&thread, NULL, run_second, &call), 0);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert_int_eq(call.code, i ? 0 : 361001);
    }
    ck_assert_int_eq(CALL(aclrtSynchronizeStream)(box_stream), 0);
    DROP(&a, &out);
    box_close(3);
}
END_TEST

START_TEST(repeatable_executors_run_again)
{
    box_open();
    box a = tensor(ACL_FLOAT, 1, &four, ones), out = tensor(ACL_FLOAT, 1, &four, NULL);
    aclScalar *two = number(2.0f);
    ck_assert_int_eq(FIRST(Muls, a.tensor, two, out.tensor), 0);
    ck_assert_int_eq(CALL(aclSetAclOpExecutorRepeatable)(executor), 0);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(CALL(aclnnMuls)(NULL, 0, executor, box_stream), 0);
        ck_assert_int_eq(CALL(aclrtSynchronizeStream)(box_stream), 0);
        expect(&out, i ? (float[]){2, 4, 6, 8} : (float[]){2, 2, 2, 2});
        ck_assert_int_eq(CALL(aclrtMemcpy)(a.device, 16, count4, 16, ACL_MEMCPY_HOST_TO_DEVICE), 0);
    }
    ck_assert_int_eq(CALL(aclDestroyAclOpExecutor)(executor), 0);
    CALL(aclDestroyScalar)(two);
    DROP(&a, &out);
    box_close(0);
}
END_TEST

int main(void)
{
    TCase *tests = suite_open("ascend_sim_work", 0);
    suite_add(tests, work_waits_for_who_synchronises, memory_of_queued_work_may_not_go,
              copies_wait_for_page_locked_memory_alone, tensors_are_checked,
              views_beyond_memory_are_seen_when_work_runs, results_may_not_lie_on_inputs, executors_are_used_once,
              the_workspace_is_checked, tensors_stay_between_the_phases, phases_stay_in_a_thread,
              repeatable_executors_run_again);
    return process_main();
}
