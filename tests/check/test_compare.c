/* How far results are from eager's: what rows are measured by, and what may come in any order. */
#include "check/compare.h"
#include "base/convert.h"
#include "eager/eager.h"
#include "run/run.h"
#include "suite.h"

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

/* A head of a scan whose c lies across b: its rounding is that of the terms, not of what is left of them. A wrong one
 * is seen, and in 16 bits, where terms are f32, nothing of this holds; nor is the state measured by it. */
START_TEST(a_scan_that_cancels_is_no_smaller_than_its_terms)
{
    float x[2] = {1, -1}, b[4] = {1, 1, 1, 1}, skip = 1, want[2] = {1e-6f, -1e-6f}, got[2] = {2e-6f, -1e-6f};
    float state[2] = {1e-6f, 1e-6f}, other[2] = {2e-6f, 1e-6f};
    tn_tensor weight = tn_tensor_dense(&skip, TN_F32, 1, (int64_t[]){1});
    tn_site site = {.size = sizeof site, .op = TN_OP_SELECTIVE_SCAN};
    site.meaning[TN_AXIS_DTYPE] = TN_F32;
    site.param[TN_ROLE_WEIGHT] = (tn_param){&weight, 1};
    tn_call eager = {.size = sizeof eager, .op = TN_OP_SELECTIVE_SCAN, .site = &site, .in_count = 4, .out_count = 2};
    eager.in[0] = tn_tensor_dense(x, TN_F32, 4, (int64_t[]){1, 1, 1, 2});
    eager.in[2] = eager.in[3] = tn_tensor_dense(b, TN_F32, 4, (int64_t[]){1, 1, 1, 4});
    eager.out[0] = tn_tensor_dense(want, TN_F32, 4, (int64_t[]){1, 1, 1, 2});
    eager.out[1] = tn_tensor_dense(state, TN_F32, 4, (int64_t[]){1, 1, 1, 2});
    tn_call call = eager;
    call.out[0].data = got;
    compare_figures f = {0};
    compare_call(&eager, &call, 8, NULL, &f);
    ck_assert_msg(f.worst > 0.6 && f.worst < 0.8, "%g", f.worst); /* 1e-6 of 8 (1 + sqrt(4)) 2^-24 */
    got[0] = 3e-5f;
    f = (compare_figures){0};
    compare_call(&eager, &call, 8, NULL, &f);
    ck_assert(f.worst > 10);
    got[0] = 2e-6f;
    site.meaning[TN_AXIS_DTYPE] = TN_BF16;
    f = (compare_figures){0};
    compare_call(&eager, &call, 8, NULL, &f);
    ck_assert(f.worst > 1);
    site.meaning[TN_AXIS_DTYPE] = TN_F32;
    got[0] = want[0];
    call.out[1].data = other;
    f = (compare_figures){0};
    compare_call(&eager, &call, 8, NULL, &f);
    ck_assert(f.worst > 1000);
}
END_TEST

/* A token of the gated delta rule whose query lies nearly across the one key that the state holds: eager gives 1e-5,
 * and what rounds like the state, 1/4, is right, whatever its size beside what is left of it. Half a percent of the
 * state is wrong, and so is any such difference of the state itself. In 16 bits the row counts. */
START_TEST(a_query_across_the_keys_is_measured_by_the_state)
{
    float v[2] = {1, 0.5f}, state[8] = {0}, q[4] = {1, -1, 1, -0.9999f}, k[4] = {1, 1, 1, 1}, a = 0, b = 0, zero = 0;
    float o[2], next[8], got[2], other[8];
    int32_t index = 0;
    tn_tensor param = tn_tensor_dense(&zero, TN_F32, 1, (int64_t[]){1});
    tn_site site = {.size = sizeof site, .op = TN_OP_GATED_DELTA_RULE, .path = "delta"};
    site.meaning[TN_AXIS_DTYPE] = TN_F32;
    site.param[TN_ROLE_DECAY] = site.param[TN_ROLE_BIAS] = (tn_param){&param, 1};
    tn_call eager = {.size = sizeof eager, .op = TN_OP_GATED_DELTA_RULE, .site = &site, .in_count = 7, .out_count = 2};
    const int64_t keys[] = {1, 1, 1, 4}, values[] = {1, 1, 1, 2}, states[] = {1, 1, 4, 2};
    eager.in[0] = tn_tensor_dense(v, TN_F32, 4, values);
    eager.in[1] = tn_tensor_dense(state, TN_F32, 4, states);
    eager.in[2] = tn_tensor_dense(q, TN_F32, 4, keys);
    eager.in[3] = tn_tensor_dense(k, TN_F32, 4, keys);
    eager.in[4] = tn_tensor_dense(&a, TN_F32, 3, keys);
    eager.in[5] = tn_tensor_dense(&b, TN_F32, 3, keys);
    eager.in[6] = tn_tensor_dense(&index, TN_I32, 2, keys);
    eager.out[0] = tn_tensor_dense(o, TN_F32, 4, values);
    eager.out[1] = tn_tensor_dense(next, TN_F32, 4, states);
    ck_assert_int_eq(run_alone(&cpu_device, NULL, NULL, &eager, NULL), TN_OK);
    ck_assert_msg(fabsf(o[0]) > 5e-6f && fabsf(o[0]) < 2e-5f, "%g", (double)o[0]);
    tn_call call = eager;
    call.out[0].data = got;
    call.out[1].data = other;
    memcpy(got, o, sizeof o);
    memcpy(other, next, sizeof next);
    got[0] += 1e-6f; /* a tenth of the row, and 85 units of the last place of 0.2, the root mean square of (v / 4) */
    compare_figures f = {0};
    compare_call(&eager, &call, 256, NULL, &f);
    ck_assert_msg(f.worst > 0.3 && f.worst < 0.5, "%g", f.worst);
    got[0] = o[0] + 1e-3f;
    f = (compare_figures){0};
    compare_call(&eager, &call, 256, NULL, &f);
    ck_assert(f.worst > 100);
    got[0] = o[0] + 1e-6f;
    site.meaning[TN_AXIS_DTYPE] = TN_BF16;
    f = (compare_figures){0};
    compare_call(&eager, &call, 8, NULL, &f);
    ck_assert_msg(f.worst > 1, "%g", f.worst);
    site.meaning[TN_AXIS_DTYPE] = TN_F32;
    memcpy(got, o, sizeof o);
    other[1] += 1e-4f;
    f = (compare_figures){0};
    compare_call(&eager, &call, 256, NULL, &f);
    ck_assert(f.worst > 10);
}
END_TEST

/* An addition of two elements, its result in out. */
typedef struct addition {
    tn_site site;
    tn_call call;
    char x[8], y[8], out[8];
} addition;

static tn_call *make_addition(addition *a, tn_dtype dtype, float x0, float x1, float y0, float y1)
{
    const float x[2] = {x0, x1}, y[2] = {y0, y1}, sum[2] = {x0 + y0, x1 + y1};
    int64_t shape[2] = {1, 2};
    *a = (addition){.site = {.size = sizeof a->site, .op = TN_OP_ADD, .path = "add"}};
    a->site.meaning[TN_AXIS_DTYPE] = (int32_t)dtype;
    a->call = (tn_call){.size = sizeof a->call, .op = TN_OP_ADD, .site = &a->site, .in_count = 2, .out_count = 1};
    convert_from_f32(x, dtype, a->x, 2);
    convert_from_f32(y, dtype, a->y, 2);
    convert_from_f32(sum, dtype, a->out, 2);
    a->call.in[0] = tn_tensor_dense(a->x, dtype, 2, shape);
    a->call.in[1] = tn_tensor_dense(a->y, dtype, 2, shape);
    a->call.out[0] = tn_tensor_dense(a->out, dtype, 2, shape);
    return &a->call;
}

/* What two numbers instead of eager's are found to be. */
static compare_figures compare_addition(const tn_call *eager, double ulps, float got0, float got1)
{
    char got[8];
    const float values[2] = {got0, got1};
    compare_figures f = {0};
    tn_call call = *eager;
    convert_from_f32(values, eager->out[0].dtype, got, 2);
    call.out[0].data = got;
    compare_call(eager, &call, ulps, NULL, &f);
    return f;
}

/* A state in f32 beside activations of bf16: what rounds it to 16 bits is wrong, whatever bf16 is granted. */
START_TEST(what_is_f32_is_measured_as_such)
{
    addition a;
    const tn_call *eager = make_addition(&a, TN_F32, 1, 0.5f, 0, 0);
    ck_assert(compare_addition(eager, 0x1p16, 1 + 0x1p-9f, 0.5f).worst <= 1);
    a.site.meaning[TN_AXIS_DTYPE] = TN_BF16;
    ck_assert(compare_addition(eager, 8, 1 + 0x1p-9f, 0.5f).worst > 1);
    ck_assert(compare_addition(eager, 8, 1 + 0x1p-11f, 0.5f).worst <= 1);
}
END_TEST

/* Below the smallest normal number of f16 a step is 2^-24, whatever the row's size. */
START_TEST(rows_below_normal_numbers_have_their_steps)
{
    addition a;
    const tn_call *eager = make_addition(&a, TN_F16, 0x9p-24f, 0, 0, 0);
    compare_figures f = compare_addition(eager, 4, 0xap-24f, 0);
    ck_assert_msg(f.ulps == 2, "%g", f.ulps); /* eps is half of a step */
    f = compare_addition(eager, 4, 0x14p-24f, 0);
    ck_assert(f.worst > 1);
    eager = make_addition(&a, TN_F16, 0, 0, 0, 0);
    f = compare_addition(eager, 4, 0x1p-24f, 0);
    ck_assert(f.ulps == 2);
    f = compare_addition(eager, 4, 0x1p-20f, 0);
    ck_assert(f.worst > 1);
}
END_TEST

/* Where f32 ends, terms of sums are rounded, or taken for zero, on the way. */
START_TEST(rows_at_the_end_of_f32_lose_terms)
{
    addition a;
    static const tn_dtype dtypes[] = {TN_F32, TN_BF16};
    for (int i = 0; i < 2; i++) {
        const tn_call *eager = make_addition(&a, dtypes[i], 0x1p-130f, 0, 0, 0);
        ck_assert(compare_addition(eager, 1, 0x1p-125f, 0).worst <= 1);
        ck_assert(compare_addition(eager, 1, 0x1p-99f, 0).worst > 1);
        eager = make_addition(&a, dtypes[i], 0, 0, 0, 0);
        ck_assert(compare_addition(eager, 1, 0x1p-125f, 0).worst <= 1);
        ck_assert(compare_addition(eager, 1, 0x1p-99f, 0).worst > 1);
    }
}
END_TEST

/* NaN and infinity that went in come out, of a kernel as of eager. */
START_TEST(what_is_not_finite_stays_so)
{
    addition a;
    static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};
    for (int i = 0; i < 3; i++) {
        const tn_call *eager = make_addition(&a, dtypes[i], NAN, 1, 2, 3);
        ck_assert(compare_addition(eager, 4, NAN, 4).worst == 0);
        ck_assert(compare_addition(eager, 4, -NAN, 4).worst == 0);
        ck_assert(isinf(compare_addition(eager, 4, 2, 4).worst));
        ck_assert(isinf(compare_addition(eager, 4, INFINITY, 4).worst));
        ck_assert(isinf(compare_addition(eager, 4, NAN, NAN).worst));
        eager = make_addition(&a, dtypes[i], -INFINITY, 1, 2, 3);
        ck_assert(compare_addition(eager, 4, -INFINITY, 4).worst == 0);
        ck_assert(compare_addition(eager, 4, INFINITY, 4).worst > 1);
        ck_assert(compare_addition(eager, 4, dtypes[i] == TN_F16 ? -65504 : -0x1.fep127f, 4).worst > 1);
        ck_assert(isinf(compare_addition(eager, 4, NAN, 4).worst));
        eager = make_addition(&a, dtypes[i], INFINITY, 1, -INFINITY, 3);
        ck_assert(compare_addition(eager, 4, NAN, 4).worst == 0);
        ck_assert(isinf(compare_addition(eager, 4, 0, 4).worst));
        eager = make_addition(&a, dtypes[i], 1, 1, 2, 3);
        ck_assert(isinf(compare_addition(eager, 4, NAN, 4).worst));
        ck_assert(compare_addition(eager, 4, INFINITY, 4).worst > 1);
    }
}
END_TEST

/* Infinity stands behind the largest number. In f32's range the order of adding decides what is found there, in that of
 * f16, whose sums are f32's, it does not. */
START_TEST(sums_near_the_largest_number_go_either_way)
{
    addition a;
    const tn_call *eager = make_addition(&a, TN_F16, 65504, 60000, 0, 0);
    ck_assert(compare_addition(eager, 4, INFINITY, 60000).worst <= 1);
    ck_assert(compare_addition(eager, 4, -INFINITY, 60000).worst > 1);
    ck_assert(compare_addition(eager, 4, 65504, INFINITY).worst > 1);
    ck_assert(isinf(compare_addition(eager, 4, NAN, 60000).worst));
    eager = make_addition(&a, TN_F16, 65504, 1, 65504, 2);
    ck_assert(isinf(compare_addition(eager, 4, NAN, 3).worst));
    ck_assert(compare_addition(eager, 4, 5, 3).worst > 1);
    static const tn_dtype wide[] = {TN_F32, TN_BF16};
    for (int i = 0; i < 2; i++) {
        eager = make_addition(&a, wide[i], 0x1.fcp127f, 1, 0x1.fcp127f, 2);
        ck_assert(compare_addition(eager, 4, NAN, 3).worst == 0);
        ck_assert(compare_addition(eager, 4, 0x1.fcp127f, 3).worst == 0);
        ck_assert(isinf(compare_addition(eager, 4, INFINITY, NAN).worst));
        eager = make_addition(&a, wide[i], 0x1p100f, 1, 0x1p100f, 2);
        ck_assert(isinf(compare_addition(eager, 4, NAN, 3).worst));
        ck_assert(compare_addition(eager, 4, INFINITY, 3).worst > 1);
    }
}
END_TEST

/* Which bits of a NaN are set says nothing. */
START_TEST(every_nan_is_the_same)
{
    float a[3] = {1, NAN, -NAN}, b[3] = {1, -NAN, NAN};
    tn_tensor x = tn_tensor_dense(a, TN_F32, 1, (int64_t[]){3}), y = x;
    char detail[160];
    y.data = b;
    ck_assert(compare_bits(&x, &y, detail, sizeof detail));
    b[2] = 0;
    ck_assert(!compare_bits(&x, &y, detail, sizeof detail));
    ck_assert_ptr_nonnull(strstr(detail, "row 0, element 2"));
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

/* A stack's experts are as many gradients: one that is wrong is not hidden by another that is a thousand times larger.
 */
START_TEST(each_expert_of_a_stack_is_measured_alone)
{
    float want[8] = {1000, -1000, 500, 1000, 1, -1, 0.5f, 1}, got[8], x[2] = {1, 1};
    memcpy(got, want, sizeof got);
    tn_tensor of = tn_tensor_dense(want, TN_F32, 3, (int64_t[]){2, 2, 2}), by = of;
    by.data = got;
    tn_site site = {.size = sizeof site, .op = TN_OP_MOE_EXPERTS};
    site.meaning[TN_AXIS_DTYPE] = TN_F32;
    site.dim[TN_DIM_EXPERTS] = 2;
    tn_grads right = {.size = sizeof right}, grads = right;
    right.out[0] = tn_tensor_dense(x, TN_F32, 2, (int64_t[]){1, 2});
    grads.out[0] = right.out[0];
    right.param[TN_ROLE_DOWN] = (tn_param){&of, 1};
    grads.param[TN_ROLE_DOWN] = (tn_param){&by, 1};
    tn_call eager = {.size = sizeof eager, .op = TN_OP_MOE_EXPERTS, .site = &site, .grads = &right};
    compare_figures f = {0};
    const double ulps = 0x1p18; /* a 64th */
    compare_gradients(&eager, &grads, ulps, NULL, &f, NULL);
    ck_assert(f.worst == 0);
    got[6] = -0.5f;
    compare_gradients(&eager, &grads, ulps, NULL, &f, NULL);
    ck_assert_msg(f.worst > 63 && f.worst < 65, "%g", f.worst);
    ck_assert_ptr_nonnull(strstr(f.detail, "gradient of down 1, row 1, element 0"));
    site.dim[TN_DIM_EXPERTS] = 3; /* no stack of them */
    f = (compare_figures){0};
    compare_gradients(&eager, &grads, ulps, NULL, &f, NULL);
    ck_assert(f.worst < 1);
}
END_TEST

/* What the team goes through in parts is found as one row after the other is: the first of the worst elements. */
START_TEST(large_tensors_are_compared_in_parts)
{
    enum { ROWS = 1100, WIDTH = 257 };
    tn_site site = {.size = sizeof site, .op = TN_OP_RMS_NORM};
    site.meaning[TN_AXIS_DTYPE] = TN_F32;
    float *want = calloc((size_t)ROWS * WIDTH, sizeof *want), *got = calloc((size_t)ROWS * WIDTH, sizeof *got);
    ck_assert(want && got);
    suite_keep(want, free);
    suite_keep(got, free);
    for (size_t i = 0; i < (size_t)ROWS * WIDTH; i++)
        want[i] = got[i] = (float)(i % WIDTH) - 128;
    tn_call eager = {.size = sizeof eager, .op = TN_OP_RMS_NORM, .site = &site, .in_count = 1, .out_count = 1};
    eager.in[0] = eager.out[0] = tn_tensor_dense(want, TN_F32, 2, (int64_t[]){ROWS, WIDTH});
    tn_call call = eager;
    call.out[0].data = got;
    compare_figures f = {0};
    compare_call(&eager, &call, 1024, NULL, &f);
    ck_assert(f.worst == 0);
    got[300 * WIDTH + 5] += 1;
    got[ROWS * WIDTH - 1] += 2;
    got[900 * WIDTH + 7] += 2;
    compare_call(&eager, &call, 1024, NULL, &f);
    ck_assert_msg(strstr(f.detail, "row 900, element 7") && f.worst > 1, "%s", f.detail);
    got[2 * WIDTH] = NAN;
    compare_call(&eager, &call, 1024, NULL, &f);
    ck_assert(isinf(f.worst));
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("compare", 0);
    suite_add(tc, routes_compare_as_sets, ties_are_any_choice, sums_that_cancel_are_no_smaller_than_their_terms,
              a_scan_that_cancels_is_no_smaller_than_its_terms, a_query_across_the_keys_is_measured_by_the_state,
              what_is_f32_is_measured_as_such, rows_below_normal_numbers_have_their_steps,
              rows_at_the_end_of_f32_lose_terms, what_is_not_finite_stays_so,
              sums_near_the_largest_number_go_either_way, every_nan_is_the_same,
              what_sparse_gates_leave_is_no_smaller_than_gates, each_expert_of_a_stack_is_measured_alone,
              large_tensors_are_compared_in_parts);
    return suite_run();
}
