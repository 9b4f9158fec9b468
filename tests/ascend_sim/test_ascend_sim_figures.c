/* What the simulator counts: a short sequence whose figures are known. */
#include "sim_box.h"
#include "suite.h"

static const int64_t four = 4;
static const float ones[] = {1, 1, 1, 1};

static sim_figures since(const sim_figures *before)
{
    sim_figures now;
    CALL(sim_figures_so_far)(&now);
    const int64_t *then = (const int64_t *)(const void *)before;
    for (size_t i = 0; i < sizeof now / sizeof(int64_t); i++)
        ((int64_t *)(void *)&now)[i] -= then[i];
    return now;
}

/* One addition of four floats: what it reads and writes when it runs, one launch when it is queued. */
START_TEST(an_addition_is_one_launch_of_forty_eight_bytes)
{
    box_open();
    sim_figures before, f;
    CALL(sim_figures_so_far)(&before);
    box a = tensor(ACL_FLOAT, 1, &four, ones), b = tensor(ACL_FLOAT, 1, &four, ones);
    box out = tensor(ACL_FLOAT, 1, &four, NULL);
    f = since(&before);
    ck_assert_int_eq(f.descriptors, 3);
    ck_assert_int_eq(f.uploads, 2);
    ck_assert_int_eq(f.uploaded_bytes, 32);
    ck_assert_int_eq(f.launches + f.executors + f.synchronisations + f.downloads + f.moved_bytes, 0);
    CALL(sim_figures_so_far)(&before);
    aclScalar *alpha = number(1.0f);
    ck_assert_int_eq(FIRST(Add, a.tensor, b.tensor, alpha, out.tensor), 0);
    ck_assert_int_eq(CALL(aclnnAdd)(NULL, 0, executor, box_stream), 0);
    CALL(aclDestroyScalar)(alpha);
    f = since(&before);
    ck_assert_int_eq(f.descriptors, 1);
    ck_assert_int_eq(f.executors, 1);
    ck_assert_int_eq(f.launches, 1);
    ck_assert_int_eq(f.moved_bytes, 0); /* it waits                                                        */
    int64_t count;
    ck_assert_str_eq(CALL(sim_launched)(0, &count), "aclnnAdd");
    ck_assert_int_eq(count, 1);
    ck_assert_ptr_null(CALL(sim_launched)(1, &count));
    ck_assert_ptr_null(CALL(sim_launched)(-1, &count));
    ck_assert_int_eq(CALL(aclrtSynchronizeStream)(box_stream), 0);
    expect(&out, (float[]){2, 2, 2, 2});
    f = since(&before);
    ck_assert_int_eq(f.synchronisations, 1);
    ck_assert_int_eq(f.moved_bytes, 48);
    ck_assert_int_eq(f.downloads, 4); /* expect fetches each element                                  */
    ck_assert_int_eq(f.downloaded_bytes, 16);
    DROP(&a, &b, &out);
    box_close(0);
}
END_TEST

/* Of a table its chosen rows, of a repeated row one; what a product of batches has to copy first counts three times. */
START_TEST(bytes_are_those_that_are_used)
{
    box_open();
    sim_figures before;
    box table = tensor(ACL_FLOAT, 2, DIMS(4, 2), VALUES(1, 2, 3, 4, 5, 6, 7, 8));
    box ids = tensor(ACL_INT64, 1, DIMS(1), VALUES(2)), row = tensor(ACL_FLOAT, 2, DIMS(1, 2), NULL);
    CALL(sim_figures_so_far)(&before);
    GO(IndexSelect, table.tensor, 0, ids.tensor, row.tensor);
    expect(&row, (float[]){5, 6});
    ck_assert_int_eq(since(&before).moved_bytes, 8 + 8 + 8);
    box a = tensor(ACL_FLOAT, 3, DIMS(1, 2, 2), VALUES(1, 2, 3, 4)), out = tensor(ACL_FLOAT, 3, DIMS(1, 2, 2), NULL);
    aclTensor *across =
        CALL(aclCreateTensor)(DIMS(1, 2, 2), 3, ACL_FLOAT, DIMS(4, 1, 2), 0, ACL_FORMAT_ND, DIMS(1, 2, 2), 3, a.device);
    aclTensor *apart =
        CALL(aclCreateTensor)(DIMS(1, 2, 2), 3, ACL_FLOAT, DIMS(8, 4, 1), 0, ACL_FORMAT_ND, DIMS(8), 1, table.device);
    CALL(sim_figures_so_far)(&before);
    GO(BatchMatMul, a.tensor, across, out.tensor, 0);
    ck_assert_int_eq(since(&before).moved_bytes, 3 * 16);
    CALL(sim_figures_so_far)(&before);
    GO(BatchMatMul, a.tensor, apart, out.tensor, 0);
    ck_assert_int_eq(since(&before).moved_bytes, 3 * 16 + 2 * 16);
    CALL(aclDestroyTensor)(across);
    CALL(aclDestroyTensor)(apart);
    DROP(&table, &ids, &row, &a, &out);
    box_close(0);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("figures of the simulator", 0);
    suite_add(tc, an_addition_is_one_launch_of_forty_eight_bytes, bytes_are_those_that_are_used);
    return suite_run();
}
