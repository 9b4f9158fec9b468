/* Runs of calls of the device npu, on the simulator of the vendor's libraries: which lists are kept, which calls wait
 * for what follows them, and when graphs end. */
#include "npu_pair.h"
#include "suite.h"

#include <string.h>

enum { NUMBERS = 64, BIG = 300 << 20 }; /* more than the device keeps of what is given back                       */

/* Of a model's device: sum += one, each of 64 numbers. */
typedef struct adder {
    device d;
    void *one, *sum;
} adder;

static void *of_device(const device *d, size_t bytes)
{
    void *memory;
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(device_alloc(d, bytes, &memory, &err) == TN_OK, "%s", err.message);
    return memory;
}

static void upload(const adder *a, void *to, float number)
{
    float numbers[NUMBERS];
    for (int i = 0; i < NUMBERS; i++)
        numbers[i] = number;
    ck_assert_int_eq(device_upload(&a->d, to, numbers, sizeof numbers, NULL), TN_OK);
}

static adder new_adder(void)
{
    npu_pair_scan();
    adder a = {.d = npu_pair_device("npu")};
    a.one = of_device(&a.d, NUMBERS * sizeof(float));
    a.sum = of_device(&a.d, NUMBERS * sizeof(float));
    upload(&a, a.one, 1);
    upload(&a, a.sum, 0);
    return a;
}

static void end_adder(adder *a)
{
    device_free(&a->d, a->one, NUMBERS * sizeof(float));
    device_free(&a->d, a->sum, NUMBERS * sizeof(float));
    device_close(&a->d);
    npu_pair_expect_clean();
}

/* So many additions in a row. */
static void add(const adder *a, int times)
{
    tn_error err = TN_ERROR_INIT;
    tn_call call = {.size = sizeof call, .op = TN_OP_ADD, .queue = a->d.queue, .in_count = 2, .out_count = 1};
    call.in[0] = tn_tensor_dense(a->sum, TN_F32, 1, (int64_t[]){NUMBERS});
    call.in[1] = tn_tensor_dense(a->one, TN_F32, 1, (int64_t[]){NUMBERS});
    call.out[0] = call.in[0];
    for (int i = 0; i < times; i++)
        ck_assert_msg(a->d.ops->eager(&call, &err) == TN_OK, "%s", err.message);
}

static void expect_sum(const adder *a, float want)
{
    float numbers[NUMBERS];
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(device_download(&a->d, numbers, a->sum, sizeof numbers, &err) == TN_OK, "%s", err.message);
    for (int i = 0; i < NUMBERS; i++)
        ck_assert_msg(numbers[i] == want, "%g instead of %g", (double)numbers[i], (double)want);
}

/* A run of so many additions four times; the graphs that ran. */
static int64_t run_four_times(const adder *a, int length, float *sum)
{
    int64_t before = npu_pair_figures().graphs;
    for (int i = 0; i < 4; i++, *sum += (float)length) {
        add(a, length);
        upload(a, a->one, 1); /* ends the run, and does not wait                                            */
    }
    return npu_pair_figures().graphs - before;
}

/* Lists leave their places to others, but a graph that may be running stays until the stream was waited for, and until
 * then one can go. A beginning of a list that goes on otherwise, or not at all, is launched. */
START_TEST(lists_come_and_go)
{
    adder a = new_adder();
    float sum = 1;
    add(&a, 1); /* makes the executor                                                                       */
    expect_sum(&a, sum);
    for (int length = 32; length < 48; length++) {
        ck_assert_int_eq(run_four_times(&a, length, &sum), 3);
        expect_sum(&a, sum);
    }
    ck_assert_int_eq(run_four_times(&a, 48, &sum), 3);
    ck_assert_int_eq(run_four_times(&a, 49, &sum), 0);
    expect_sum(&a, sum);
    ck_assert_int_eq(run_four_times(&a, 49, &sum), 3);
    expect_sum(&a, sum);
    ck_assert_int_eq(run_four_times(&a, 31, &sum), 3); /* what is short is tried, until a longer one came often */
    expect_sum(&a, sum);
    for (int i = 0; i < 2; i++)
        run_four_times(&a, 49, &sum);
    ck_assert_int_eq(run_four_times(&a, 30, &sum), 0);
    expect_sum(&a, sum);
    end_adder(&a);
}
END_TEST

/* A run that is like none goes into the stream call by call, but for the last one, which may be one with what follows;
 * one that is like another waits for its end. */
START_TEST(new_calls_do_not_wait)
{
    adder a = new_adder();
    add(&a, 1);
    expect_sum(&a, 1);
    for (int i = 0; i < 3; i++) {
        int64_t before = npu_pair_figures().launches;
        add(&a, 40);
        ck_assert_int_eq(npu_pair_figures().launches - before, i == 0 ? 39 : 0);
        expect_sum(&a, 1 + 40.0f * (float)(i + 1));
        ck_assert_int_eq(npu_pair_figures().launches - before, i == 0 ? 40 : 1);
    }
    int64_t before = npu_pair_figures().launches;
    add(&a, 42); /* 41 are one more than those that wait                                                    */
    ck_assert_int_eq(npu_pair_figures().launches - before, 41);
    expect_sum(&a, 163);
    end_adder(&a);
}
END_TEST

/* Memory that is given back to the vendor is not in a graph any more, whoever had it. */
START_TEST(graphs_go_before_memory_does)
{
    adder a = new_adder();
    for (int i = 0; i < 4; i++)
        add(&a, 40), expect_sum(&a, 40.0f * (float)(i + 1));
    ck_assert_int_eq(npu_pair_figures().graphs, 2);
    device_free(&a.d, of_device(&a.d, BIG), BIG);
    for (int i = 4; i < 7; i++)
        add(&a, 40), expect_sum(&a, 40.0f * (float)(i + 1));
    ck_assert_int_eq(npu_pair_figures().graphs, 4);
    end_adder(&a);
}
END_TEST

/* What fails while memory is given back is told by the next who can. */
START_TEST(what_nobody_could_be_told_is_told_later)
{
    adder a = new_adder();
    tn_error err = TN_ERROR_INIT;
    for (int i = 0; i < 4; i++)
        add(&a, 40), expect_sum(&a, 40.0f * (float)(i + 1));
    void *big = of_device(&a.d, BIG);
    add(&a, 40);
    npu_pair_let_fail(4); /* three times a context is set first */
    device_free(&a.d, big, BIG);
    ck_assert_int_eq(device_sync(&a.d, &err), TN_E_KERNEL);
    ck_assert_msg(strstr(err.message, "aclmdlRIExecuteAsync failed with 507011") != NULL, "%s", err.message);
    err = (tn_error)TN_ERROR_INIT;
    ck_assert_msg(device_sync(&a.d, &err) == TN_OK, "%s", err.message);
    expect_sum(&a, 160);
    add(&a, 40);
    expect_sum(&a, 200);
    end_adder(&a);
}
END_TEST

static void add_tests(void)
{
    suite_add(suite_open("ascend_runs", 300), lists_come_and_go, new_calls_do_not_wait, graphs_go_before_memory_does,
              what_nobody_could_be_told_is_told_later);
}

int main(int argc, char **argv)
{
    (void)argc;
    add_tests();
    return npu_pair_main(argv);
}
