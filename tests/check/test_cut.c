/* Kernels of models that are cut over ranks: what they give for some rows, or some heads, may not hang on how many
 * there are. */
#include "check/check.h"
#include "check/cut.h"
#include "check/draw_site.h"
#include "eager/eager.h"
#include "op/op.h"
#include "suite.h"

#include <check.h>
#include <string.h>

static const struct {
    tn_op op;
    tn_layout layout; /* 0: there is none                                                                  */
    tn_dim dim;
} ops[] = {{TN_OP_LINEAR, 0, TN_DIM_OUT},        {TN_OP_GROUPED_MATMUL, TN_LAYOUT_EXPERT_LIST, TN_DIM_OUT},
           {TN_OP_SHORT_CONV, 0, TN_DIM_WIDTH},  {TN_OP_ROPE, 0, TN_DIM_Q_HEADS},
           {TN_OP_ATTENTION, 0, TN_DIM_Q_HEADS}, {TN_OP_GATED_DELTA_RULE, 0, TN_DIM_Q_HEADS}};
enum { OPS = sizeof ops / sizeof *ops };
static const tn_dtype dtypes[] = {TN_F32, TN_BF16};

static tn_dim counted; /* dimension of the operation at hand                                               */
static int64_t whole;
static bool takes_whole, plans_whole; /* sites of no other size                                            */

static tn_status eager(const tn_call *call, tn_error *err)
{
    return run_alone(&cpu_device, NULL, NULL, call, err);
}

/* The last bit of one element is another one, which no tolerance sees. */
static tn_status nudged(const tn_call *call, bool nudge, tn_error *err)
{
    tn_status status = eager(call, err);
    if (status == TN_OK && nudge && tn_tensor_count(&call->out[0]) > 0)
        *(unsigned char *)call->out[0].data ^= 1;
    return status;
}

static tn_status other_where_whole(const tn_call *call, tn_error *err)
{
    return nudged(call, call->site->dim[counted] == whole, err);
}

static tn_status other_where_few(const tn_call *call, tn_error *err)
{
    return nudged(call, call->site->dim[counted] < whole && call->in[0].shape[0] < 3, err);
}

static tn_status always(const tn_call *call, tn_error *err)
{
    return nudged(call, true, err);
}

static tn_status plan(const tn_site *site, tn_plan *p, tn_error *err)
{
    (void)p;
    return plans_whole && site->dim[counted] < whole ? tn_fail(err, TN_DECLINED, site->path, "too few") : TN_OK;
}

static tn_status try_kernel(int i, tn_status (*forward)(const tn_call *, tn_error *), bool cut, tn_error *err)
{
    tn_site like = draw_site_plain(ops[i % OPS].op);
    like.meaning[TN_AXIS_DTYPE] = (int32_t)dtypes[i / OPS];
    if (ops[i % OPS].layout)
        like.meaning[TN_AXIS_LAYOUT] = (int32_t)ops[i % OPS].layout;
    draw_site d;
    ck_assert_msg(draw_site_open(&d, &like, 7, err) == TN_OK, "%s", err->message);
    counted = ops[i % OPS].dim;
    whole = d.site.dim[counted];
    const tn_dim_rule rule = {counted, takes_whole ? whole : 0, 0, 0};
    tn_impl impl = {.size = sizeof impl, .op = like.op, .tolerance = {64, 8, 8}, .plan = plan, .forward = forward};
    impl.match = (tn_match){.size = sizeof impl.match, .features = like.features, .dims = &rule, .dim_count = 1};
    for (int axis = 0; axis < TN_AXIS_MAX; axis++)
        impl.match.takes[axis] = d.site.meaning[axis] ? TN_TAKES(d.site.meaning[axis]) : 0;
    const check_subject subject = {.device = &cpu_device, .site = &d.site, .impl = &impl, .cut = cut};
    check_case cases[CHECK_FIRST_USE];
    tn_status status = check_site(&subject, cases, check_first_use_cases(&d.site, cases), NULL, err);
    draw_site_close(&d);
    return status;
}

START_TEST(right_ones_are_taken)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(try_kernel(_i, eager, true, &err) == TN_OK, "%s", err.message);
    ck_assert_msg(try_kernel(_i, other_where_whole, false, &err) == TN_OK, "%s", err.message);
}
END_TEST

/* Of what is always the same element, the first of each part is another one. */
START_TEST(others_are_refused)
{
    tn_status (*const bad[])(const tn_call *, tn_error *) = {other_where_whole, other_where_few, always};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        tn_error err = TN_ERROR_INIT;
        ck_assert_msg(try_kernel(_i, bad[k], true, &err) == TN_E_VERIFY, "%zu: %s", k, err.message);
        ck_assert_msg(strstr(err.message, "for some rows or heads alone than among all"), "%s", err.message);
    }
}
END_TEST

/* Of these nothing can be said. */
START_TEST(kernels_for_no_part_are_taken)
{
    tn_error err = TN_ERROR_INIT;
    takes_whole = true;
    ck_assert_msg(try_kernel(_i, always, true, &err) == TN_OK, "%s", err.message);
    takes_whole = false;
    plans_whole = true;
    ck_assert_msg(try_kernel(_i, always, true, &err) == TN_OK, "%s", err.message);
}
END_TEST

/* Key heads that all query heads share, and rows that are fewer than a unit, lie on every rank. */
START_TEST(what_has_no_parts)
{
    cut c;
    tn_impl impl = {.size = sizeof impl, .op = TN_OP_ATTENTION};
    tn_site site = {.op = TN_OP_ATTENTION};
    site.dim[TN_DIM_Q_HEADS] = 4;
    site.dim[TN_DIM_KV_HEADS] = 1;
    ck_assert(!cut_open(&c, &site, &impl, 0));
    cut_close(&c);
    site = (tn_site){.op = TN_OP_LINEAR};
    site.dim[TN_DIM_OUT] = 7;
    ck_assert(!cut_open(&c, &site, &impl, 0));
    cut_close(&c);
    site.op = TN_OP_RMS_NORM;
    ck_assert(!cut_open(&c, &site, &impl, 0));
    cut_close(&c);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("parts of a site", 120);
    tcase_add_loop_test(tc, right_ones_are_taken, 0, 2 * OPS);
    tcase_add_loop_test(tc, others_are_refused, 0, 2 * OPS);
    tcase_add_loop_test(tc, kernels_for_no_part_are_taken, 0, 2 * OPS);
    tcase_add_test(tc, what_has_no_parts);
    return suite_run();
}
