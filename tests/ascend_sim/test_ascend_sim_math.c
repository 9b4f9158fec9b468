/* The simulator's functions of single elements and their limits against straightforward expectations, their rules
 * against their codes, and what older chips lack of these operators. Every test is a process of its own. */
#include "sim_box.h"
#include "suite.h"

/* ---- functions ------------------------------------------------------------------------------------------------- */

static double reciprocal_root(double v)
{
    return 1.0 / sqrt(v);
}

typedef struct function {
    const char *name, *first;
    double (*exact)(double);
    aclDataType refuses; /* of what is not floating point */
} function;

static const function functions[] = {
    {"aclnnTanh", "aclnnTanhGetWorkspaceSize", tanh, ACL_UINT32},
    {"aclnnErf", "aclnnErfGetWorkspaceSize", erf, ACL_INT32},
    {"aclnnExp", "aclnnExpGetWorkspaceSize", exp, ACL_INT32},
    {"aclnnSqrt", "aclnnSqrtGetWorkspaceSize", sqrt, ACL_UINT16},
    {"aclnnRsqrt", "aclnnRsqrtGetWorkspaceSize", reciprocal_root, ACL_UINT64},
};

static int first_of(const function *f, const aclTensor *self, aclTensor *out)
{
    any_function *found = box_find(f->first);
    return ((__typeof__(&aclnnTanhGetWorkspaceSize))found)(self, out, &needed, &executor);
}

/* Of positive values, so that roots are among the functions. */
START_TEST(functions_are_computed)
{
    float x[64];
    double y[64];
    box_open();
    draw(x, 64, 11);
    for (int i = 0; i < 64; i++)
        x[i] = fabsf(x[i]) + 0.0078125f;
    for (int f = 0; f < 5; f++)
        for (int i = 0; i < 3; i++) {
            box a = tensor(floats[i], 2, DIMS(8, 8), x), out = tensor(floats[i], 2, DIMS(8, 8), NULL);
            aclTensor *turned = view_of(&a, 2, DIMS(8, 8), DIMS(1, 8), 0);
            for (int e = 0; e < 64; e++)
                y[e] = functions[f].exact((double)x[e % 8 * 8 + e / 8]);
            ck_assert_int_eq(go(functions[f].name, first_of(&functions[f], turned, out.tensor)), 0);
            ck_assert_int_gt(needed, 0);
            expect_near(&out, y, bounds[i]);
            for (int e = 0; e < 64; e++)
                y[e] = functions[f].exact((double)x[e]);
            ck_assert_int_eq(go(functions[f].name, first_of(&functions[f], a.tensor, a.tensor)), 0);
            ck_assert_int_eq(needed, 0);
            expect_near(&a, y, bounds[i]);
            CALL(aclDestroyTensor)(turned);
            DROP(&a, &out);
        }
    box_close(0);
}
END_TEST

START_TEST(functions_have_edges)
{
    box_open();
    box a = tensor(ACL_FLOAT, 1, DIMS(4), VALUES(NAN, -1, 0, INFINITY)), out = tensor(ACL_FLOAT, 1, DIMS(4), NULL);
    const float edges[5][4] = {{NAN, tanhf(-1), 0, 1},
                               {NAN, erff(-1), 0, 1},
                               {NAN, expf(-1), 1, INFINITY},
                               {NAN, NAN, 0, INFINITY},
                               {NAN, NAN, INFINITY, 0}};
    for (int f = 0; f < 5; f++) {
        ck_assert_int_eq(go(functions[f].name, first_of(&functions[f], a.tensor, out.tensor)), 0);
        expect(&out, edges[f]);
    }
    DROP(&a, &out);
    box_close(0);
}
END_TEST

START_TEST(functions_have_rules)
{
    box_open();
    box a = tensor(ACL_FLOAT, 1, DIMS(2), VALUES(1, 1)), half = tensor(ACL_BF16, 1, DIMS(2), NULL);
    box longer = tensor(ACL_FLOAT, 1, DIMS(3), NULL), out = tensor(ACL_FLOAT, 1, DIMS(2), NULL);
    box words = tensor(ACL_INT32, 1, DIMS(2), NULL);
    for (int f = 0; f < 5; f++) {
        box refused = tensor(functions[f].refuses, 1, DIMS(2), VALUES(1, 1));
        BROKEN(first_of(&functions[f], refused.tensor, out.tensor), 161002);
        BROKEN(first_of(&functions[f], NULL, out.tensor), 161001);
        BROKEN(first_of(&functions[f], a.tensor, NULL), 161001);
        BROKEN(first_of(&functions[f], a.tensor, longer.tensor), 161002);
        BROKEN(first_of(&functions[f], a.tensor, half.tensor), 161002);
        BROKEN(first_of(&functions[f], a.tensor, words.tensor), 161002);
        drop(&refused);
    }
    DROP(&a, &half, &longer, &out, &words);
    box_close(30);
}
END_TEST

/* ---- limits ---------------------------------------------------------------------------------------------------- */

START_TEST(values_are_limited)
{
    const float x[] = {-2, -0.5, 0.25, 3, NAN, -INFINITY};
    aclScalar *least, *most;
    box_open();
    least = number(-1.0f);
    most = number(0.5f);
    for (int i = 0; i < 3; i++) {
        box a = tensor(floats[i], 2, DIMS(2, 3), x), out = tensor(floats[i], 2, DIMS(2, 3), NULL);
        GO(Clamp, a.tensor, least, most, out.tensor);
        expect(&out, VALUES(-1, -0.5, 0.25, 0.5, NAN, -1));
        GO(Clamp, a.tensor, NULL, most, out.tensor);
        expect(&out, VALUES(-2, -0.5, 0.25, 0.5, NAN, -INFINITY));
        GO(Clamp, a.tensor, least, NULL, out.tensor);
        expect(&out, VALUES(-1, -0.5, 0.25, 3, NAN, -1));
        GO(Clamp, a.tensor, most, least, out.tensor); /* crossed: the lower limit wins */
        expect(&out, VALUES(0.5, 0.5, 0.5, 0.5, NAN, 0.5));
        GO(Relu, a.tensor, out.tensor);
        expect(&out, VALUES(0, 0, 0.25, 3, NAN, 0));
        BROKEN(FIRST(Clamp, a.tensor, NULL, NULL, out.tensor), 161001);
        DROP(&a, &out);
    }
    FREE_SCALARS(least, most);
    box_close(3);
}
END_TEST

START_TEST(limits_have_rules)
{
    box_open();
    aclScalar *half = number(0.5f), *nothing = number(NAN);
    box a = tensor(ACL_FLOAT, 1, DIMS(3), VALUES(1, 2, 3)), words = tensor(ACL_INT32, 1, DIMS(3), VALUES(-1, 4, 7));
    box rank0 = tensor(ACL_FLOAT, 0, NULL, VALUES(1));
    BROKEN(FIRST(Clamp, words.tensor, half, NULL, words.tensor), 161002);
    BROKEN(FIRST(Clamp, a.tensor, nothing, NULL, a.tensor), 161002);
    BROKEN(FIRST(Clamp, a.tensor, half, NULL, words.tensor), 161002);
    BROKEN(FIRST(Clamp, rank0.tensor, half, NULL, rank0.tensor), 161002);
    BROKEN(FIRST(Relu, words.tensor, words.tensor), 161002);
    BROKEN(FIRST(Relu, a.tensor, words.tensor), 161002);
    BROKEN(FIRST(Relu, a.tensor, rank0.tensor), 161002);
    BROKEN(FIRST(Relu, NULL, a.tensor), 161001);
    FREE_SCALARS(half, nothing);
    DROP(&a, &words, &rank0);
    box_close(8);
}
END_TEST

START_TEST(softplus_is_straight_beyond_its_threshold)
{
    const float x[] = {-3, -0.5, 0, 0.25, 0.5, 0.75, 2, 100};
    double y[8];
    box_open();
    aclScalar *two = number(2.0f), *one = number(1.0f), *zero = number(0.0f);
    for (int i = 0; i < 8; i++)
        y[i] = i < 5 ? log1p(exp(2.0 * (double)x[i])) / 2.0 : (double)x[i];
    for (int i = 0; i < 3; i++) {
        box a = tensor(floats[i], 1, DIMS(8), x), out = tensor(floats[i], 1, DIMS(8), NULL);
        GO(Softplus, a.tensor, two, one, out.tensor);
        for (int e = 0; e < 8; e++) /* each by itself: the last one is large */
            ck_assert_double_le(fabs((double)at(&out, e) - y[e]), bounds[i] * y[e]);
        BROKEN(FIRST(Softplus, a.tensor, NULL, one, out.tensor), 161001);
        BROKEN(FIRST(Softplus, a.tensor, two, NULL, out.tensor), 161001);
        BROKEN(FIRST(Softplus, a.tensor, zero, one, out.tensor), 161002);
        DROP(&a, &out);
    }
    box words = tensor(ACL_INT32, 1, DIMS(2), NULL), nothing = tensor(ACL_FLOAT, 1, DIMS(1), VALUES(NAN));
    BROKEN(FIRST(Softplus, words.tensor, two, one, words.tensor), 161002);
    GO(Softplus, nothing.tensor, two, one, nothing.tensor);
    expect(&nothing, VALUES(NAN));
    FREE_SCALARS(two, one, zero);
    DROP(&words, &nothing);
    box_close(10);
}
END_TEST

/* ---- chips ----------------------------------------------------------------------------------------------------- */

START_TEST(older_chips_have_fewer)
{
    setenv("ASCEND_SIM_SOC", "Ascend310P3", 1);
    box_open();
    aclScalar *one = number(1.0f);
    box half = tensor(ACL_FLOAT16, 1, DIMS(2), VALUES(0.25, 1)), brain = tensor(ACL_BF16, 1, DIMS(2), VALUES(1, 1));
    box flags = tensor(ACL_BOOL, 1, DIMS(2), NULL), where = tensor(ACL_INT32, 1, DIMS(2), VALUES(0, 1));
    box out = tensor(ACL_FLOAT16, 1, DIMS(2), NULL);
    GO(Rsqrt, half.tensor, half.tensor);
    expect(&half, VALUES(2, 1));
    GO(GtScalar, half.tensor, one, flags.tensor);
    expect(&flags, VALUES(1, 0));
    GO(SWhere, flags.tensor, half.tensor, half.tensor, half.tensor);
    BROKEN(FIRST(Tanh, half.tensor, half.tensor), 561003);
    BROKEN(FIRST(Erf, half.tensor, half.tensor), 561003);
    BROKEN(FIRST(Exp, half.tensor, half.tensor), 561003);
    BROKEN(FIRST(Sqrt, half.tensor, half.tensor), 561003);
    BROKEN(FIRST(Relu, half.tensor, half.tensor), 561003);
    BROKEN(FIRST(LtScalar, half.tensor, one, flags.tensor), 561003);
    BROKEN(FIRST(IndexAdd, half.tensor, 0, where.tensor, half.tensor, one, out.tensor), 561003);
    BROKEN(FIRST(Rsqrt, brain.tensor, brain.tensor), 161002);
    BROKEN(FIRST(Clamp, brain.tensor, one, NULL, brain.tensor), 161002);
    BROKEN(FIRST(Softplus, brain.tensor, one, one, brain.tensor), 161002);
    BROKEN(FIRST(GeScalar, brain.tensor, one, flags.tensor), 161002);
    BROKEN(FIRST(SWhere, flags.tensor, brain.tensor, brain.tensor, brain.tensor), 161002);
    CALL(aclDestroyScalar)(one);
    DROP(&half, &brain, &flags, &where, &out);
    box_close(12);
}
END_TEST

int main(void)
{
    TCase *tests = suite_open("ascend_sim_math", 0);
    suite_add(tests, functions_are_computed, functions_have_edges, functions_have_rules, values_are_limited,
              limits_have_rules, softplus_is_straight_beyond_its_threshold, older_chips_have_fewer);
    return process_main();
}
