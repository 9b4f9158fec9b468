/* The simulator's operators of routers: which experts a token goes to, with which weights, and where its rows lie.
 * Every test is a process of its own. */
#include "sim_box.h"

#define DIMS(...) ((const int64_t[]){__VA_ARGS__})
#define VALUES(...) ((const float[]){__VA_ARGS__})

#define ROWS 2
#define EXPERTS 4
#define K 2

/* Row 0 has the largest logits at 2 and 0, row 1 at 3 and 1. */
static const float logits[] = {1, -1, 2, 0.5, 0, 1.5, -2, 3};
static const float chosen[] = {2, 0, 3, 1};

static void weights(double *soft, double *top, bool renormalised)
{
    for (int r = 0; r < ROWS; r++) {
        double sum = 0.0, kept = 0.0;
        for (int e = 0; e < EXPERTS; e++)
            sum += exp((double)logits[r * EXPERTS + e]);
        for (int e = 0; e < EXPERTS; e++)
            soft[r * EXPERTS + e] = exp((double)logits[r * EXPERTS + e]) / sum;
        for (int j = 0; j < K; j++)
            kept += top[r * K + j] = soft[r * EXPERTS + (int)chosen[r * K + j]];
        for (int j = 0; renormalised && j < K; j++)
            top[r * K + j] /= kept;
    }
}

START_TEST(gates_choose_experts)
{
    double soft[ROWS * EXPERTS], top[ROWS * K];
    box_open();
    box x = tensor(ACL_FLOAT, 2, DIMS(ROWS, EXPERTS), logits), y = tensor(ACL_FLOAT, 2, DIMS(ROWS, K), NULL);
    box at_experts = tensor(ACL_INT32, 2, DIMS(ROWS, K), NULL), rows = tensor(ACL_INT32, 2, DIMS(ROWS, K), NULL);
    box all = tensor(ACL_FLOAT, 2, DIMS(ROWS, EXPERTS), NULL), wide = tensor(ACL_INT64, 2, DIMS(ROWS, K), NULL);
    ck_assert_int_eq(go("aclnnMoeGatingTopKSoftmax",
                        CALL(aclnnMoeGatingTopKSoftmaxGetWorkspaceSize)(x.tensor, NULL, K, y.tensor, at_experts.tensor,
                                                                        rows.tensor, &needed, &executor)),
                     0);
    weights(soft, top, false);
    expect_near(&y, top, 2e-6);
    expect(&at_experts, chosen);
    expect(&rows, VALUES(0, 2, 1, 3));
    for (int renorm = 0; renorm < 2; renorm++) {
        ck_assert_int_eq(go("aclnnMoeGatingTopKSoftmaxV2", CALL(aclnnMoeGatingTopKSoftmaxV2GetWorkspaceSize)(
                                                               x.tensor, NULL, K, renorm, !renorm, y.tensor,
                                                               at_experts.tensor, all.tensor, &needed, &executor)),
                         0);
        weights(soft, top, renorm);
        expect_near(&y, top, 2e-6);
        expect_near(&all, soft, 2e-6);
        expect(&at_experts, chosen);
    }
    BROKEN(CALL(aclnnMoeGatingTopKSoftmaxV2GetWorkspaceSize)(x.tensor, NULL, K, 0, false, y.tensor, wide.tensor, NULL,
                                                             &needed, &executor),
           161002);
    BROKEN(CALL(aclnnMoeGatingTopKSoftmaxV2GetWorkspaceSize)(x.tensor, NULL, EXPERTS + 1, 0, false, y.tensor,
                                                             at_experts.tensor, NULL, &needed, &executor),
           561002);
    box *boxes[] = {&x, &y, &at_experts, &rows, &all, &wide};
    for (int b = 0; b < 6; b++)
        drop(boxes[b]);
    box_close(2);
}
END_TEST

/* Both versions, there and back: the sum over its experts of what a token became, which is the token here. */
START_TEST(tokens_are_sent_and_gathered)
{
    const float experts_of[] = {2, 0, 1, 2, 0, 1}, x[] = {1, 2, 3, 4, 5, 6}, scales[] = {0.5, 1, 2, 4, 0.25, 0.25};
    box_open();
    box tx = tensor(ACL_FLOAT, 2, DIMS(3, 2), x), te = tensor(ACL_INT32, 2, DIMS(3, 2), experts_of);
    box rows = tensor(ACL_INT32, 2, DIMS(3, 2), VALUES(0, 3, 1, 4, 2, 5)); /* slot = expert * rows + token */
    box moved = tensor(ACL_FLOAT, 2, DIMS(6, 2), NULL), places = tensor(ACL_INT32, 1, DIMS(6), NULL);
    box sorted = tensor(ACL_INT32, 1, DIMS(6), NULL), counts = tensor(ACL_INT32, 1, DIMS(3), NULL);
    box ts = tensor(ACL_FLOAT, 2, DIMS(3, 2), scales),
        bias = tensor(ACL_FLOAT, 2, DIMS(3, 2), VALUES(0, 0, 8, 16, 0, 0));
    box out = tensor(ACL_FLOAT, 2, DIMS(3, 2), NULL);
    for (int version = 1; version <= 2; version++) {
        if (version == 1)
            ck_assert_int_eq(go("aclnnMoeInitRouting", CALL(aclnnMoeInitRoutingGetWorkspaceSize)(
                                                           tx.tensor, rows.tensor, te.tensor, 3, moved.tensor,
                                                           places.tensor, sorted.tensor, &needed, &executor)),
                             0);
        for (int flag = 1; version == 2 && flag <= 2; flag++) {
            ck_assert_int_eq(go("aclnnMoeInitRoutingV2",
                                CALL(aclnnMoeInitRoutingV2GetWorkspaceSize)(tx.tensor, te.tensor, 0, 0, 3, 0, flag,
                                                                            false, moved.tensor, places.tensor,
                                                                            counts.tensor, NULL, &needed, &executor)),
                             0);
            expect(&counts, flag == 1 ? VALUES(2, 4, 6) : VALUES(2, 2, 2));
        }
        expect(&sorted, VALUES(0, 0, 1, 1, 2, 2));
        for (int slot = 0; slot < 6; slot++) { /* each slot's row holds its token, among those of its expert */
            int token = version == 1 ? slot % 3 : slot / 2, j = version == 1 ? slot / 3 : slot % 2;
            int place = (int)at(&places, slot);
            ck_assert_int_eq(place / 2, (int)experts_of[token * 2 + j]);
            ck_assert_float_eq(at(&moved, place * 2), x[token * 2]);
        }
        ck_assert_int_eq(
            go("aclnnMoeFinalizeRoutingV2", CALL(aclnnMoeFinalizeRoutingV2GetWorkspaceSize)(
                                                moved.tensor, places.tensor, tx.tensor, NULL, bias.tensor, ts.tensor,
                                                te.tensor, version == 1 ? 0 : 2, out.tensor, &needed, &executor)),
            0);
        expect(&out, VALUES(2.5, 5, 37, 60, 9.5, 13));
    }
    BROKEN(CALL(aclnnMoeInitRoutingV2GetWorkspaceSize)(tx.tensor, te.tensor, 0, 4, 3, 1, 0, false, moved.tensor,
                                                       places.tensor, NULL, NULL, &needed, &executor),
           561002);
    box *boxes[] = {&tx, &te, &rows, &moved, &places, &sorted, &counts, &ts, &bias, &out};
    for (int b = 0; b < 10; b++)
        drop(boxes[b]);
    box_close(1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ascend_sim_routing");
    TCase *tests = tcase_create("operators");
    tcase_add_test(tests, gates_choose_experts);
    tcase_add_test(tests, tokens_are_sent_and_gathered);
    suite_add_tcase(suite, tests);
    return process_main(suite);
}
