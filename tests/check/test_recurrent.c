/* First uses of contracts that carry a state: eager, taken for a kernel, is right in all types; one that takes padding
 * for tokens, or leaves the state as it was, is refused. */
#include "check/check.h"
#include "check/draw_site.h"
#include "eager/eager.h"
#include "op/op.h"
#include "suite.h"

#include <check.h>
#include <string.h>

static const struct {
    tn_op op;
    uint64_t features;
} ops[] = {{TN_OP_SHORT_CONV, 0},
           {TN_OP_GATED_DELTA_RULE, 0},
           {TN_OP_SELECTIVE_SCAN, 0},
           {TN_OP_SELECTIVE_SCAN, TN_HAS_F32_RESULT}};
static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};
enum { OPS = sizeof ops / sizeof *ops, TYPES = 3, MOST_TOKENS = 8195, MOST_STATE = 1 << 20 };

static tn_status eager(const tn_call *call, tn_error *err)
{
    return run_alone(&cpu_device, NULL, NULL, call, err);
}

static tn_status takes_padding(const tn_call *call, tn_error *err)
{
    static int32_t none_is_padding[MOST_TOKENS];
    tn_call other = *call;
    other.in[call->in_count - 1].data = none_is_padding;
    return eager(&other, err);
}

static tn_status leaves_state(const tn_call *call, tn_error *err)
{
    static char elsewhere[MOST_STATE];
    tn_call other = *call;
    other.out[1] = tn_tensor_dense(elsewhere, call->out[1].dtype, call->out[1].ndim, call->out[1].shape);
    tn_status status = eager(&other, err);
    int64_t rows = tn_tensor_count(&call->out[1]) / call->out[1].shape[0];
    size_t bytes = (size_t)rows * tn_dtype_size(call->out[1].dtype);
    for (int64_t b = 0; b < call->out[1].shape[0]; b++) /* rows may lie apart, and in the same place     */
        memmove((char *)call->out[1].data + (size_t)(b * call->out[1].stride[0]) * tn_dtype_size(call->out[1].dtype),
                (const char *)call->in[1].data + (size_t)(b * call->in[1].stride[0]) * tn_dtype_size(call->in[1].dtype),
                bytes);
    return status;
}

static tn_status try_kernel(int i, tn_status (*forward)(const tn_call *, tn_error *), bool gradients, tn_error *err)
{
    tn_site like = draw_site_plain(ops[i % OPS].op);
    draw_site_add(&like, ops[i % OPS].features);
    like.meaning[TN_AXIS_DTYPE] = (int32_t)dtypes[i / OPS];
    draw_site d;
    ck_assert_int_eq(draw_site_open(&d, &like, 7, err), TN_OK);
    tn_impl impl = {.size = sizeof impl, .op = like.op, .forward = forward, .backward = eager};
    check_subject subject = {.device = &cpu_device, .site = &d.site, .impl = &impl, .gradients = gradients};
    check_case cases[CHECK_FIRST_USE];
    size_t count = check_first_use_cases(&d.site, cases);
    tn_status status = check_site(&subject, cases, count, NULL, err);
    draw_site_close(&d);
    return status;
}

START_TEST(right_ones_are_taken)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(try_kernel(_i, eager, true, &err) == TN_OK, "%s", err.message);
}
END_TEST

START_TEST(wrong_ones_are_refused)
{
    tn_error err = TN_ERROR_INIT;
    ck_assert_int_eq(try_kernel(_i, takes_padding, false, &err), TN_E_VERIFY);
    tn_error_clear(&err);
    ck_assert_int_eq(try_kernel(_i, leaves_state, false, &err), TN_E_VERIFY);
    ck_assert_msg(strstr(err.message, "output 1"), "%s", err.message);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("contracts with a state", 300);
    tcase_add_loop_test(tc, right_ones_are_taken, 0, OPS * TYPES);
    tcase_add_loop_test(tc, wrong_ones_are_refused, 0, OPS * TYPES);
    return suite_run();
}
