/* Memory of the device npu, on the simulator of the vendor's libraries: what is handed out and taken back, the
 * workspace of operators, and what the host keeps of its copies. */
#include "ascend.h"
#include "npu_pair.h"
#include "suite.h"

#include <stdlib.h>
#include <string.h>

static device open_device(void)
{
    npu_pair_scan();
    return npu_pair_device("npu");
}

static void fill(unsigned char *bytes, size_t count, int seed)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (unsigned char)((i * 2654435761u >> 11) + (unsigned)seed);
}

START_TEST(memory_is_kept_and_zero_again)
{
    device d = open_device();
    const size_t sizes[] = {1, 512, 5000, 70000, 9 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *first, *second;
        unsigned char *bytes = malloc(sizes[i]), *back = malloc(sizes[i]);
        fill(bytes, sizes[i], 7);
        ck_assert_int_eq(device_alloc(&d, sizes[i], &first, NULL), TN_OK);
        ck_assert_uint_eq((uintptr_t)first % 64, 0);
        ck_assert_int_eq(device_upload(&d, first, bytes, sizes[i], NULL), TN_OK);
        memset(bytes, 0, sizes[i]); /* at once: it was copied */
        ck_assert_int_eq(device_download(&d, back, first, sizes[i], NULL), TN_OK);
        fill(bytes, sizes[i], 7);
        ck_assert_mem_eq(back, bytes, sizes[i]);
        device_free(&d, first, sizes[i]);
        int64_t before = npu_pair_ask("sim_leaks");
        ck_assert_int_eq(device_alloc(&d, sizes[i], &second, NULL), TN_OK);
        ck_assert_ptr_eq(first, second);
        ck_assert_int_eq(npu_pair_ask("sim_leaks"), before);
        ck_assert_int_eq(device_download(&d, back, second, sizes[i], NULL), TN_OK);
        memset(bytes, 0, sizes[i]);
        ck_assert_mem_eq(back, bytes, sizes[i]);
        device_free(&d, second, sizes[i]);
        free(bytes);
        free(back);
    }
    device_close(&d);
    npu_pair_expect_clean();
}
END_TEST

START_TEST(no_memory_is_told_with_numbers)
{
    setenv("ASCEND_SIM_MEMORY", "16777216", 1);
    device d = open_device();
    tn_error err = TN_ERROR_INIT;
    void *a, *b;
    ck_assert_int_eq(device_alloc(&d, 10 << 20, &a, &err), TN_OK);
    ck_assert_int_eq(device_alloc(&d, 12 << 20, &b, &err), TN_E_MEMORY);
    ck_assert_msg(strstr(err.message,
                         "cannot allocate 12582912 bytes, 6291424 of 16777216 are free (aclrtMalloc failed "
                         "with 207001, out of memory: ") != NULL,
                  "%s", err.message);
    /* What is kept for later goes back when something else needs the room. */
    device_free(&d, a, 10 << 20);
    err = (tn_error)TN_ERROR_INIT;
    ck_assert_msg(device_alloc(&d, 12 << 20, &b, &err) == TN_OK, "%s", err.message);
    device_free(&d, b, 12 << 20);
    device_close(&d);
    npu_pair_expect_clean();
}
END_TEST

/* What the operator prepared is ended all the same: by asking it to run without a workspace, which it refuses. */
START_TEST(an_operator_without_workspace_leaves_nothing)
{
    setenv("ASCEND_SIM_MEMORY", "200000", 1);
    device d = open_device();
    tn_error err = TN_ERROR_INIT;
    void *a, *b;
    ck_assert_int_eq(device_alloc(&d, 131072, &a, &err), TN_OK);
    ck_assert_int_eq(device_alloc(&d, 65536, &b, &err), TN_OK);
    tn_call call = {.size = sizeof call, .op = TN_OP_ADD, .queue = d.queue, .in_count = 2, .out_count = 1};
    for (int i = 0; i < 2; i++) {
        call.in[i] = tn_tensor_dense(a, TN_F32, 2, (int64_t[]){8, 8});
        call.in[i].stride[0] = 16;
    }
    call.out[0] = tn_tensor_dense(b, TN_F32, 2, (int64_t[]){8, 8});
    ck_assert_int_eq(d.ops->eager(&call, &err), TN_E_MEMORY);
    ck_assert_msg(strstr(err.message, "cannot allocate") != NULL, "%s", err.message);
    device_free(&d, a, 131072);
    device_free(&d, b, 65536);
    device_close(&d);
    ck_assert_int_eq(npu_pair_ask("sim_leaks"), 0);
}
END_TEST

START_TEST(small_uploads_have_a_shadow)
{
    device d = open_device();
    int32_t slots[32] = {3, 4, 5};
    float numbers[32] = {0};
    char *memory;
    void *block;
    ck_assert_int_eq(device_alloc(&d, 1 << 20, &block, NULL), TN_OK);
    memory = block;
    ck_assert_int_eq(device_upload(&d, memory + 64, slots, sizeof slots, NULL), TN_OK);
    const void *shadow = d.queue->shadow(d.queue, memory + 64, sizeof slots);
    ck_assert_ptr_nonnull(shadow);
    ck_assert_mem_eq(shadow, slots, sizeof slots);
    ck_assert_ptr_eq(d.queue->shadow(d.queue, memory + 68, 60), (const char *)shadow + 4);
    ck_assert_ptr_null(d.queue->shadow(d.queue, memory + 68, sizeof slots));
    ck_assert_ptr_null(d.queue->shadow(d.queue, memory, sizeof slots));
    /* A neighbour leaves it alone; what overlaps it does not: an upload, a result, its release. */
    ck_assert_int_eq(device_upload(&d, memory, slots, 64, NULL), TN_OK);
    ck_assert_ptr_nonnull(d.queue->shadow(d.queue, memory + 64, sizeof slots));
    ck_assert_int_eq(device_upload(&d, memory + 128, slots, 8, NULL), TN_OK);
    ck_assert_ptr_null(d.queue->shadow(d.queue, memory + 64, sizeof slots));
    ck_assert_int_eq(device_upload(&d, memory + 4096, numbers, sizeof numbers, NULL), TN_OK);
    tn_call call = {.size = sizeof call, .op = TN_OP_ADD, .queue = d.queue, .in_count = 2, .out_count = 1};
    for (int i = 0; i < 2; i++)
        call.in[i] = tn_tensor_dense(memory + 8192, TN_F32, 1, (int64_t[]){8});
    call.out[0] = tn_tensor_dense(memory + 4096 + 64, TN_F32, 1, (int64_t[]){8});
    ck_assert_ptr_nonnull(d.queue->shadow(d.queue, memory + 4096, sizeof numbers));
    ck_assert_int_eq(d.ops->eager(&call, NULL), TN_OK);
    ck_assert_ptr_null(d.queue->shadow(d.queue, memory + 4096, sizeof numbers));
    ck_assert_int_eq(device_upload(&d, memory, slots, sizeof slots, NULL), TN_OK);
    ck_assert_int_eq(device_sync(&d, NULL), TN_OK);
    device_free(&d, block, 1 << 20);
    ck_assert_ptr_null(d.queue->shadow(d.queue, memory, sizeof slots));
    device_close(&d);
    npu_pair_expect_clean();
}
END_TEST

/* What operators ask for grows with every token: memory for it is taken a few times in a thousand. */
START_TEST(the_workspace_grows_by_doubling)
{
    device d = open_device();
    tn_error err = TN_ERROR_INIT;
    const void *last = NULL;
    int taken = 0;
    for (uint64_t bytes = 1000; bytes <= 1001000; bytes += 1000) {
        const void *now = d.queue->workspace(d.queue, bytes, &err);
        ck_assert_msg(now != NULL, "%s", err.message);
        taken += now != last;
        last = now;
        ck_assert_ptr_eq(d.queue->workspace(d.queue, 1, &err), now);
    }
    ck_assert_int_le(taken, 11); /* log2 of 1001, and the first */
    device_close(&d);
    npu_pair_expect_clean();
}
END_TEST

static void add_tests(void)
{
    suite_add(suite_open("ascend_memory", 60), memory_is_kept_and_zero_again, no_memory_is_told_with_numbers,
              an_operator_without_workspace_leaves_nothing, small_uploads_have_a_shadow,
              the_workspace_grows_by_doubling);
}

int main(int argc, char **argv)
{
    (void)argc;
    add_tests();
    return npu_pair_main(argv);
}
