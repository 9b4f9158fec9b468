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

int main(void)
{
    Suite *suite = suite_create("ascend_sim_routing");
    TCase *tests = tcase_create("operators");
    tcase_add_test(tests, gates_choose_experts);
    suite_add_tcase(suite, tests);
    return process_main(suite);
}
