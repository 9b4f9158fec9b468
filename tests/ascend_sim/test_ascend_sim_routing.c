/* The simulator's operators that take tokens to their experts and back. Every test is a process of its own. */
#include "sim_box.h"
#include "suite.h"

#define T 4
#define TOPK 2
#define WIDTH 3

START_TEST(tokens_go_to_experts_and_back)
{
    const float experts_of[] = {2, 0, 1, 2, 0, 2, 1, 0}, probs[] = {0.5, 0.25, 1, 0, 0.75, 0.5, 0.25, 2};
    float x[T * WIDTH];
    draw(x, T * WIDTH, 13);
    box_open();
    for (int i = 0; i < 3; i++) {
        box tx = tensor(floats[i], 2, DIMS(T, WIDTH), x), at_experts = tensor(ACL_INT32, 2, DIMS(T, TOPK), experts_of);
        box rows = tensor(floats[i], 2, DIMS(T * TOPK, WIDTH), NULL),
            sorted = tensor(ACL_INT32, 1, DIMS(T * TOPK), NULL);
        box tp = tensor(floats[i], 2, DIMS(T, TOPK), probs), back = tensor(floats[i], 2, DIMS(T, WIDTH), NULL);
        box wrong = tensor(ACL_INT64, 1, DIMS(T * TOPK), NULL);
        GO(MoeTokenPermute, tx.tensor, at_experts.tensor, T * TOPK, false, rows.tensor, sorted.tensor);
        float last = -1.0f, mixed[T * WIDTH] = {0};
        for (int row = 0; row < T * TOPK; row++)
            for (int slot = 0; slot < T * TOPK; slot++)
                if (at(&sorted, slot) == (float)row) {
                    ck_assert_float_ge(experts_of[slot], last);
                    last = experts_of[slot];
                    for (int h = 0; h < WIDTH; h++) {
                        ck_assert_float_eq(at(&rows, row * WIDTH + h), x[slot / TOPK * WIDTH + h]);
                        mixed[slot / TOPK * WIDTH + h] += probs[slot] * x[slot / TOPK * WIDTH + h];
                    }
                }
        GO(MoeTokenUnpermute, rows.tensor, sorted.tensor, tp.tensor, false, NULL, back.tensor);
        expect(&back, mixed); /* sums that 32 bits hold */
        BROKEN(FIRST(MoeTokenPermute, tx.tensor, at_experts.tensor, 0, true, rows.tensor, sorted.tensor), 561002);
        BROKEN(FIRST(MoeTokenPermute, tx.tensor, at_experts.tensor, 0, false, rows.tensor, wrong.tensor), 161002);
        BROKEN(FIRST(MoeTokenUnpermute, rows.tensor, sorted.tensor, NULL, false, NULL, back.tensor), 561002);
        DROP(&tx, &at_experts, &rows, &sorted, &tp, &back, &wrong);
    }
    box_close(9);
}
END_TEST

START_TEST(dropped_tokens_add_nothing)
{
    box_open();
    box tx = tensor(ACL_FLOAT, 2, DIMS(2, 1), VALUES(3, 5)),
        experts_of = tensor(ACL_INT64, 2, DIMS(2, 2), VALUES(3, 0, 1, 2));
    box rows = tensor(ACL_FLOAT, 2, DIMS(3, 1), NULL), sorted = tensor(ACL_INT32, 1, DIMS(4), NULL);
    box tp = tensor(ACL_BF16, 2, DIMS(2, 2), VALUES(1, 2, 4, 8)), back = tensor(ACL_FLOAT, 2, DIMS(2, 1), NULL);
    for (int64_t kept = -1; kept <= 3; kept += 4) {
        GO(MoeTokenPermute, tx.tensor, experts_of.tensor, kept, false, rows.tensor, sorted.tensor);
        expect(&rows, VALUES(3, 5, 5));
        expect(&sorted, VALUES(3, 0, 1, 2));
    }
    GO(MoeTokenUnpermute, rows.tensor, sorted.tensor, tp.tensor, false, NULL, back.tensor);
    expect(&back, VALUES(6, 60));
    /* Nor do rows of weight 0, whatever is in them. */
    box zero = tensor(ACL_FLOAT, 2, DIMS(2, 2), VALUES(1, 2, 0, 8)),
        bad = tensor(ACL_FLOAT, 2, DIMS(3, 1), VALUES(3, NAN, 5));
    GO(MoeTokenUnpermute, bad.tensor, sorted.tensor, zero.tensor, false, NULL, back.tensor);
    expect(&back, VALUES(6, 40));
    DROP(&zero, &bad, &tx, &experts_of, &rows, &sorted, &tp, &back);
    box_close(0);
}
END_TEST

START_TEST(tokens_have_gradients)
{
    box_open();
    box rows = tensor(ACL_FLOAT, 2, DIMS(4, 2), VALUES(1, 2, 3, 4, 5, 6, 7, 8)),
        g = tensor(ACL_FLOAT, 2, DIMS(2, 2), VALUES(1, -1, 2, 3));
    box sorted = tensor(ACL_INT32, 1, DIMS(4), VALUES(3, 0, 1, 2)), out = tensor(ACL_FLOAT, 2, DIMS(2, 2), NULL);
    box probs = tensor(ACL_FLOAT, 2, DIMS(2, 2), VALUES(0.5, 2, 4, 0)), dprobs = tensor(ACL_FLOAT, 2, DIMS(2, 2), NULL);
    box drows = tensor(ACL_FLOAT, 2, DIMS(4, 2), NULL);
    box narrow = tensor(ACL_BF16, 2, DIMS(2, 2), VALUES(0.5, 2, 4, 0)), dnarrow = tensor(ACL_BF16, 2, DIMS(2, 2), NULL);
    box twice = tensor(ACL_INT32, 1, DIMS(4), VALUES(3, 0, 0, 2));
    GO(MoeTokenPermuteGrad, rows.tensor, sorted.tensor, 2, false, out.tensor);
    expect(&out, VALUES(8, 10, 8, 10));
    GO(MoeTokenUnpermuteGrad, rows.tensor, g.tensor, sorted.tensor, probs.tensor, false, NULL, drows.tensor,
       dprobs.tensor);
    expect(&drows, VALUES(2, -2, 8, 12, 0, 0, 0.5, -0.5));
    expect(&dprobs, VALUES(-1, -1, 18, 28));
    BROKEN(FIRST(MoeTokenUnpermuteGrad, rows.tensor, g.tensor, sorted.tensor, narrow.tensor, false, NULL, drows.tensor,
                 dnarrow.tensor),
           161002);
    BROKEN(go("aclnnMoeTokenPermuteGrad", FIRST(MoeTokenPermuteGrad, rows.tensor, twice.tensor, 2, false, out.tensor)),
           507015);
    DROP(&rows, &g, &sorted, &out, &probs, &dprobs, &drows, &narrow, &dnarrow, &twice);
    box_close(2);
}
END_TEST

int main(void)
{
    TCase *tests = suite_open("ascend_sim_routing", 0);
    suite_add(tests, tokens_go_to_experts_and_back, dropped_tokens_add_nothing, tokens_have_gradients);
    return process_main();
}
