/* How far results are from eager's: what rows are measured by, and what may come in any order. */
#include "check/compare.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

START_TEST(routes_compare_as_sets)
{
    float want_w[4] = {0.6f, 0.4f, 0.7f, 0.3f}, got_w[4] = {0.4f, 0.6f, 0.7f, 0.3f};
    float x[2] = {1, 2};
    int32_t want_e[4] = {5, 2, 1, 3}, got_e[4] = {2, 5, 1, 3};
    tn_site site = {.size = sizeof site, .op = TN_OP_MOE_ROUTE};
    site.meaning[TN_AXIS_DTYPE] = TN_F32;
    site.dim[TN_DIM_EXPERTS] = 6;
    tn_call eager = {.size = sizeof eager, .op = TN_OP_MOE_ROUTE, .site = &site, .out_count = 2}, call = eager;
    int64_t shape[2] = {2, 2};
    eager.in[0] = tn_tensor_dense(x, TN_F32, 2, (int64_t[]){2, 1});
    eager.out[0] = tn_tensor_dense(want_w, TN_F32, 2, shape);
    eager.out[1] = tn_tensor_dense(want_e, TN_I32, 2, shape);
    call.out[0] = tn_tensor_dense(got_w, TN_F32, 2, shape);
    call.out[1] = tn_tensor_dense(got_e, TN_I32, 2, shape);
    compare_figures f = {0};
    compare_call(&eager, &call, 1, NULL, &f);
    ck_assert(f.worst == 0);
    got_e[3] = 4; /* another expert */
    compare_call(&eager, &call, 1, NULL, &f);
    ck_assert(isinf(f.worst));
    ck_assert_ptr_nonnull(strstr(f.detail, "row 1 does not choose expert 3"));
    f = (compare_figures){0};
    compare_call(&eager, &call, 1, (const bool[]){false, true}, &f);
    ck_assert(f.worst == 0);
}
END_TEST

/* One output, whose terms cancel: it is measured by what such sums usually are, and a wrong one is still seen. */
START_TEST(sums_that_cancel_are_no_smaller_than_their_terms)
{
    float x[8] = {1, -1, 1, -1, 1, -1, 1, -1}, w[8] = {1, 1, 1, 1, 1, 1, 1, 1}, want = 1e-7f, got = 2e-7f;
    tn_tensor weight = tn_tensor_dense(w, TN_F32, 2, (int64_t[]){1, 8});
    tn_site site = {.size = sizeof site, .op = TN_OP_LINEAR};
    site.meaning[TN_AXIS_DTYPE] = TN_F32;
    site.param[TN_ROLE_WEIGHT] = (tn_param){&weight, 1};
    tn_call eager = {.size = sizeof eager, .op = TN_OP_LINEAR, .site = &site, .in_count = 1, .out_count = 1};
    eager.in[0] = tn_tensor_dense(x, TN_F32, 2, (int64_t[]){1, 8});
    eager.out[0] = tn_tensor_dense(&want, TN_F32, 2, (int64_t[]){1, 1});
    tn_call call = eager;
    call.out[0].data = &got;
    compare_figures f = {0};
    compare_call(&eager, &call, 1, NULL, &f);
    ck_assert_msg(f.worst > 0.5 && f.worst < 0.7, "%g", f.worst); /* 1e-7 of sqrt(8) 2^-24 */
    got = 1e-6f;
    compare_call(&eager, &call, 1, NULL, &f);
    ck_assert(f.worst > 5);
}
END_TEST

/* Below the smallest normal number of f16 a step is 2^-24, whatever the row's size. A row of zeros has no steps. */
START_TEST(rows_below_normal_numbers_have_their_steps)
{
    uint16_t want[2] = {9, 0}, got[2] = {10, 0}; /* subnormal: multiples of 2^-24 */
    tn_site site = {.size = sizeof site, .op = TN_OP_ADD};
    site.meaning[TN_AXIS_DTYPE] = TN_F16;
    tn_call eager = {.size = sizeof eager, .op = TN_OP_ADD, .site = &site, .out_count = 1};
    eager.out[0] = tn_tensor_dense(want, TN_F16, 2, (int64_t[]){1, 2});
    tn_call call = eager;
    call.out[0].data = got;
    compare_figures f = {0};
    compare_call(&eager, &call, 4, NULL, &f);
    ck_assert_msg(f.ulps == 2, "%g", f.ulps); /* eps is half of a step */
    got[0] = 20;
    compare_call(&eager, &call, 4, NULL, &f);
    ck_assert(f.worst > 1);
    f = (compare_figures){0};
    want[0] = 0;
    got[0] = 1;
    compare_call(&eager, &call, 4, NULL, &f);
    ck_assert(isinf(f.ulps));
}
END_TEST

/* What sparse gates leave has the rounding of the gates; without sparsity the same distance is that of the result. */
START_TEST(what_sparse_gates_leave_is_no_smaller_than_gates)
{
    float gate[4] = {1, -1, 1, -1}, up[4] = {2, 2, -2, 2}, want[4] = {0, 1e-7f, 0, 0}, got[4] = {0, 2e-7f, 0, 0};
    tn_site site = {.size = sizeof site, .op = TN_OP_GLU, .features = TN_HAS_SPARSITY};
    site.meaning[TN_AXIS_DTYPE] = TN_F32;
    tn_call eager = {.size = sizeof eager, .op = TN_OP_GLU, .site = &site, .in_count = 2, .out_count = 1};
    eager.in[0] = tn_tensor_dense(gate, TN_F32, 2, (int64_t[]){1, 4});
    eager.in[1] = tn_tensor_dense(up, TN_F32, 2, (int64_t[]){1, 4});
    eager.out[0] = tn_tensor_dense(want, TN_F32, 2, (int64_t[]){1, 4});
    tn_call call = eager;
    call.out[0].data = got;
    compare_figures f = {0};
    compare_call(&eager, &call, 1, NULL, &f);
    ck_assert_msg(f.worst > 0.8 && f.worst < 0.9, "%g", f.worst); /* 1e-7 of 2 x 2^-24 */
    got[1] = 1e-6f;
    compare_call(&eager, &call, 1, NULL, &f);
    ck_assert(f.worst > 7);
    got[1] = 2e-7f;
    site.features = 0;
    compare_call(&eager, &call, 1, NULL, &f);
    ck_assert(f.worst > 1e6);
}
END_TEST

/* Any different experts do where all of them tie, with the weights that all of them have. */
START_TEST(ties_are_any_choice)
{
    float x[1] = {0}, want_w[2] = {0.5f, 0.5f}, got_w[2] = {0.5f, 0.5f};
    int32_t want_e[2] = {0, 1}, got_e[2] = {3, 2};
    tn_site site = {.size = sizeof site, .op = TN_OP_MOE_ROUTE};
    site.meaning[TN_AXIS_DTYPE] = TN_F32;
    site.dim[TN_DIM_EXPERTS] = 4;
    tn_call eager = {.size = sizeof eager, .op = TN_OP_MOE_ROUTE, .site = &site, .out_count = 2};
    eager.in[0] = tn_tensor_dense(x, TN_F32, 2, (int64_t[]){1, 1});
    eager.out[0] = tn_tensor_dense(want_w, TN_F32, 2, (int64_t[]){1, 2});
    eager.out[1] = tn_tensor_dense(want_e, TN_I32, 2, (int64_t[]){1, 2});
    tn_call call = eager;
    call.out[0].data = got_w;
    call.out[1].data = got_e;
    compare_figures f = {0};
    const bool tied[] = {true};
    compare_call(&eager, &call, 1, tied, &f);
    ck_assert(f.worst == 0);
    got_w[1] = 0.25f;
    compare_call(&eager, &call, 1, tied, &f);
    ck_assert(f.worst > 1);
    got_w[1] = 0.5f;
    for (int32_t wrong = 3; wrong < 5; wrong++) {
        f = (compare_figures){0};
        got_e[1] = wrong;
        compare_call(&eager, &call, 1, tied, &f);
        ck_assert(isinf(f.worst));
        ck_assert_ptr_nonnull(strstr(f.detail, wrong == 3 ? "chooses expert 3 twice" : "4, which there is not"));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("compare");
    TCase *tc = tcase_create("compare");
    tcase_add_test(tc, routes_compare_as_sets);
    tcase_add_test(tc, ties_are_any_choice);
    tcase_add_test(tc, sums_that_cancel_are_no_smaller_than_their_terms);
    tcase_add_test(tc, rows_below_normal_numbers_have_their_steps);
    tcase_add_test(tc, what_sparse_gates_leave_is_no_smaller_than_gates);
    suite_add_tcase(suite, tc);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
