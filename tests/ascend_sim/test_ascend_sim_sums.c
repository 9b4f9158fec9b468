/* The simulator's operators along an axis: reductions, counts, rows added where an index says. Every test is a
 * process of its own. */
#include "sim_box.h"
#include "suite.h"

/* ---- along an axis --------------------------------------------------------------------------------------------- */

START_TEST(axes_are_reduced)
{
    box_open();
    box x = tensor(ACL_FLOAT, 2, DIMS(2, 4), VALUES(1, 4, 2, 4, -1, 0, 3, 1)),
        out = tensor(ACL_FLOAT, 2, DIMS(2, 4), NULL);
    box top = tensor(ACL_FLOAT, 2, DIMS(2, 2), NULL), where = tensor(ACL_INT64, 2, DIMS(2, 2), NULL);
    box narrow = tensor(ACL_INT32, 2, DIMS(2, 2), NULL), sum = tensor(ACL_FLOAT, 1, DIMS(4), NULL);
    aclIntArray *rows = CALL(aclCreateIntArray)(DIMS(0), 1);
    double soft[8];
    for (int i = 0; i < 8; i++) {
        double a = exp((double)at(&x, i)), b = exp((double)at(&x, (i + 4) % 8));
        soft[i] = a / (a + b);
    }
    GO(Softmax, x.tensor, 0, out.tensor);
    expect_near(&out, soft, bounds[0]);
    GO(Topk, x.tensor, 2, -1, true, true, top.tensor, where.tensor);
    expect(&top, VALUES(4, 4, 3, 1));
    expect(&where, VALUES(1, 3, 2, 3));
    BROKEN(FIRST(Topk, x.tensor, 2, -1, true, true, top.tensor, narrow.tensor), 161002);
    BROKEN(FIRST(Topk, x.tensor, 2, -1, true, false, top.tensor, where.tensor), 161002);
    GO(ReduceSum, x.tensor, rows, false, ACL_FLOAT, sum.tensor);
    expect(&sum, VALUES(0, 4, 5, 5));
    BROKEN(FIRST(ReduceSum, x.tensor, rows, true, ACL_FLOAT, sum.tensor), 161002);
    CALL(aclDestroyIntArray)(rows);
    DROP(&x, &out, &top, &where, &narrow, &sum);
    box_close(3);
}
END_TEST

START_TEST(values_are_counted)
{
    box_open();
    box x = tensor(ACL_FLOAT, 1, DIMS(6), VALUES(0, 2, 2, 3, 1, 2)), out = tensor(ACL_FLOAT, 1, DIMS(4), NULL);
    aclScalar *least = number(0.0f), *most = number(4.0f);
    GO(Histc, x.tensor, 4, least, most, out.tensor);
    expect(&out, VALUES(1, 1, 3, 1));
    FREE_SCALARS(least, most);
    DROP(&x, &out);
    box_close(0);
}
END_TEST

START_TEST(rows_are_added_where_an_index_says)
{
    box_open();
    aclScalar *one = number(1.0f), *two = number(2.0f);
    for (int i = 0; i < 3; i++) {
        box a = tensor(floats[i], 2, DIMS(3, 2), VALUES(1, 2, 3, 4, 5, 6)),
            out = tensor(floats[i], 2, DIMS(3, 2), NULL);
        box rows = tensor(floats[i], 2, DIMS(4, 2), VALUES(1, 1, 10, 20, 2, 2, 4, 4));
        box where = tensor(i ? ACL_INT64 : ACL_INT32, 1, DIMS(4), VALUES(2, 0, 2, 2));
        box columns = tensor(floats[i], 2, DIMS(3, 1), VALUES(8, 16, 32)), last = tensor(ACL_INT32, 0, NULL, VALUES(1));
        GO(IndexAdd, a.tensor, 0, where.tensor, rows.tensor, one, out.tensor);
        ck_assert_int_gt(needed, 0);
        expect(&out, VALUES(11, 22, 3, 4, 12, 13));
        GO(IndexAdd, a.tensor, -1, last.tensor, columns.tensor, two, out.tensor);
        expect(&out, VALUES(1, 18, 3, 36, 5, 70));
        BROKEN(FIRST(IndexAdd, a.tensor, 1, where.tensor, rows.tensor, one, out.tensor), 161002);
        BROKEN(FIRST(IndexAdd, a.tensor, 2, where.tensor, rows.tensor, one, out.tensor), 161002);
        BROKEN(FIRST(IndexAdd, a.tensor, 0, where.tensor, rows.tensor, NULL, out.tensor), 161001);
        BROKEN(FIRST(IndexAdd, a.tensor, 0, rows.tensor, rows.tensor, one, out.tensor), 161002);
        BROKEN(FIRST(IndexAdd, a.tensor, 0, where.tensor, rows.tensor, one, rows.tensor), 161002);
        BROKEN(go("aclnnIndexAdd", FIRST(IndexAdd, a.tensor, 0, where.tensor, rows.tensor, one, a.tensor)), 0);
        DROP(&a, &out, &rows, &where, &columns, &last);
    }
    FREE_SCALARS(one, two);
    box_close(18);
}
END_TEST

START_TEST(indexed_sums_have_an_order_and_rules)
{
    box_open();
    aclScalar *one = number(1.0f);
    box a = tensor(ACL_FLOAT, 1, DIMS(2), VALUES(0, 7)), out = tensor(ACL_FLOAT, 1, DIMS(2), NULL);
    box same = tensor(ACL_INT32, 1, DIMS(3), VALUES(0, 0, 0)),
        early = tensor(ACL_FLOAT, 1, DIMS(3), VALUES(1e8, 1, -1e8));
    box late = tensor(ACL_FLOAT, 1, DIMS(3), VALUES(1e8, -1e8, 1)),
        beyond = tensor(ACL_INT32, 1, DIMS(3), VALUES(0, 2, 0));
    box negative = tensor(ACL_INT64, 1, DIMS(3), VALUES(0, -1, 0)), words = tensor(ACL_INT32, 1, DIMS(2), VALUES(1, 2));
    box more = tensor(ACL_INT32, 1, DIMS(3), VALUES(3, 4, 5)), sums = tensor(ACL_INT32, 1, DIMS(2), NULL);
    GO(IndexAdd, a.tensor, 0, same.tensor, early.tensor, one, out.tensor);
    expect(&out, VALUES(0, 7));
    GO(IndexAdd, a.tensor, 0, same.tensor, late.tensor, one, out.tensor);
    expect(&out, VALUES(1, 7));
    BROKEN(FIRST(IndexAdd, words.tensor, 0, same.tensor, more.tensor, one, sums.tensor), 161002);
    BROKEN(FIRST(IndexAdd, a.tensor, 0, late.tensor, early.tensor, one, out.tensor), 161002);
    BROKEN(FIRST(IndexAdd, a.tensor, 0, same.tensor, more.tensor, one, out.tensor), 161002);
    BROKEN(go("aclnnIndexAdd", FIRST(IndexAdd, a.tensor, 0, beyond.tensor, early.tensor, one, out.tensor)), 507015);
    BROKEN(go("aclnnIndexAdd", FIRST(IndexAdd, a.tensor, 0, negative.tensor, early.tensor, one, out.tensor)), 507015);
    aclTensor *apart = view_of(&early, 1, DIMS(2), DIMS(2), 0), *two = view_of(&same, 1, DIMS(2), NULL, 0);
    BROKEN(FIRST(IndexAdd, a.tensor, 0, two, apart, one, out.tensor), 161002);
    CALL(aclDestroyTensor)(apart);
    CALL(aclDestroyTensor)(two);
    CALL(aclDestroyScalar)(one);
    DROP(&a, &out, &same, &early, &late, &beyond, &negative, &words, &more, &sums);
    box_close(6);
}
END_TEST

int main(void)
{
    TCase *tests = suite_open("ascend_sim_sums", 0);
    suite_add(tests, axes_are_reduced, values_are_counted, rows_are_added_where_an_index_says,
              indexed_sums_have_an_order_and_rules);
    return process_main();
}
