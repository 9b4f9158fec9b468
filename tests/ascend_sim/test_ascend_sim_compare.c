/* The simulator's comparisons with a number, and choices between two tensors. Every test is a process of its own. */
#include "sim_box.h"
#include "suite.h"

/* ---- comparisons and choices ----------------------------------------------------------------------------------- */

START_TEST(values_are_compared)
{
    box_open();
    aclScalar *half = number(0.5f), *third = number(0.3f);
    for (int i = 0; i < 3; i++) {
        box a = tensor(floats[i], 2, DIMS(2, 2), VALUES(0, 0.5, 1, NAN)), out = tensor(ACL_BOOL, 2, DIMS(2, 2), NULL);
        box near = tensor(floats[i], 1, DIMS(1), VALUES(0.3)), one = tensor(ACL_BOOL, 1, DIMS(1), NULL);
        aclTensor *turned = view_of(&a, 2, DIMS(2, 2), DIMS(1, 2), 0);
        GO(GtScalar, a.tensor, half, out.tensor);
        expect(&out, VALUES(0, 0, 1, 0));
        GO(GeScalar, a.tensor, half, out.tensor);
        expect(&out, VALUES(0, 1, 1, 0));
        GO(LtScalar, turned, half, out.tensor);
        expect(&out, VALUES(1, 0, 0, 0));
        GO(GeScalar, near.tensor, third, one.tensor); /* the number keeps its 32 bits: both types round it */
        expect(&one, VALUES(at(&near, 0) >= 0.3f));
        GO(GtScalar, near.tensor, third, one.tensor);
        expect(&one, VALUES(at(&near, 0) > 0.3f));
        BROKEN(FIRST(GtScalar, a.tensor, half, a.tensor), 161002);
        BROKEN(FIRST(GeScalar, a.tensor, NULL, out.tensor), 161001);
        BROKEN(FIRST(LtScalar, a.tensor, half, one.tensor), 161002);
        CALL(aclDestroyTensor)(turned);
        DROP(&a, &out, &near, &one);
    }
    box words = tensor(ACL_INT32, 1, DIMS(3), NULL), out = tensor(ACL_BOOL, 1, DIMS(3), NULL);
    BROKEN(FIRST(GtScalar, words.tensor, half, out.tensor), 161002);
    FREE_SCALARS(half, third);
    DROP(&out, &words);
    box_close(10);
}
END_TEST

START_TEST(elements_are_chosen)
{
    box_open();
    box mask = tensor(ACL_BOOL, 2, DIMS(2, 1), VALUES(1, 0)), bytes = tensor(ACL_UINT8, 1, DIMS(3), VALUES(0, 1, 0));
    for (int i = 0; i < 3; i++) {
        box a = tensor(floats[i], 2, DIMS(3, 2), VALUES(1, 4, 2, 5, NAN, 6)),
            one = tensor(floats[i], 0, NULL, VALUES(-1));
        box out = tensor(floats[i], 2, DIMS(2, 3), NULL), row = tensor(floats[i], 1, DIMS(3), VALUES(7, 8, 9));
        aclTensor *turned = view_of(&a, 2, DIMS(2, 3), DIMS(1, 2), 0);
        GO(SWhere, mask.tensor, turned, one.tensor, out.tensor);
        expect(&out, VALUES(1, 2, NAN, -1, -1, -1));
        GO(SWhere, mask.tensor, one.tensor, row.tensor, out.tensor); /* neither has the shape of the result */
        expect(&out, VALUES(-1, -1, -1, 7, 8, 9));
        GO(SWhere, bytes.tensor, one.tensor, row.tensor, row.tensor);
        expect(&row, VALUES(7, -1, 9));
        BROKEN(FIRST(SWhere, mask.tensor, one.tensor, row.tensor, row.tensor), 161002);
        BROKEN(FIRST(SWhere, bytes.tensor, a.tensor, one.tensor, a.tensor), 161002);
        BROKEN(FIRST(SWhere, row.tensor, row.tensor, one.tensor, row.tensor), 161002);
        BROKEN(FIRST(SWhere, NULL, row.tensor, one.tensor, row.tensor), 161001);
        CALL(aclDestroyTensor)(turned);
        DROP(&a, &one, &out, &row);
    }
    DROP(&mask, &bytes);
    box_close(12);
}
END_TEST

START_TEST(choices_have_types)
{
    box_open();
    box mask = tensor(ACL_BOOL, 1, DIMS(2), VALUES(1, 0)), unwritten = tensor(ACL_BOOL, 1, DIMS(2), NULL);
    box words = tensor(ACL_INT32, 1, DIMS(2), VALUES(3, 4)), bytes = tensor(ACL_INT8, 1, DIMS(2), VALUES(1, 0));
    box half = tensor(ACL_BF16, 1, DIMS(2), VALUES(0.5, 1.5)), other = tensor(ACL_FLOAT16, 1, DIMS(2), VALUES(2, 2));
    box out = tensor(ACL_FLOAT, 1, DIMS(2), NULL);
    GO(SWhere, mask.tensor, half.tensor, other.tensor, out.tensor);
    expect(&out, VALUES(0.5, 2));
    BROKEN(FIRST(SWhere, mask.tensor, half.tensor, other.tensor, half.tensor), 161002);
    BROKEN(FIRST(SWhere, mask.tensor, words.tensor, half.tensor, half.tensor), 161002);
    BROKEN(FIRST(SWhere, mask.tensor, words.tensor, words.tensor, words.tensor), 161002);
    BROKEN(FIRST(SWhere, bytes.tensor, half.tensor, half.tensor, half.tensor), 161002);
    BROKEN(FIRST(SWhere, words.tensor, half.tensor, half.tensor, half.tensor), 161002);
    BROKEN(go("aclnnSWhere", FIRST(SWhere, unwritten.tensor, half.tensor, half.tensor, half.tensor)), 0);
    DROP(&mask, &unwritten, &words, &half, &other, &out, &bytes);
    box_close(6);
}
END_TEST

int main(void)
{
    TCase *tests = suite_open("ascend_sim_compare", 0);
    suite_add(tests, values_are_compared, elements_are_chosen, choices_have_types);
    return process_main();
}
