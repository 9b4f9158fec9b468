/* Checked apply: kernels that misbehave in one point each are refused, with a reason, and the model stays as it was. */
#include "check/check.h"
#include "open/model.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <fenv.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- misbehaviour ------------------------------------------------------------------------------------------- */

static float *first(const tn_call *call)
{
    return call->out[0].data;
}

static tn_status wrong(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    if (tn_tensor_count(&call->out[0]) > 0)
        first(call)[0] += 0.01f;
    return status;
}

/* Right for one token, as many a kernel for decoding; wrong for more. */
static tn_status wrong_for_many(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    if (call->in[0].shape[0] > 17)
        first(call)[call->out[0].stride[0] * 17] += 0.01f;
    return status;
}

/* Within its tolerance, but one unit of the last place elsewhere where a token is alone. */
static tn_status other_bits_alone(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    if (call->in[0].shape[0] == 1)
        first(call)[0] = nextafterf(first(call)[0], 2);
    return status;
}

/* The same for a token's place among the others. */
static tn_status other_bits_at_odd_places(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    for (int64_t t = 1; t < call->in[0].shape[0]; t += 2)
        first(call)[t * call->out[0].stride[0]] = nextafterf(first(call)[t * call->out[0].stride[0]], 2);
    return status;
}

/* Takes the rows to be dense. */
static tn_status ignores_strides(const tn_call *call, tn_error *err)
{
    tn_call dense = *call;
    const tn_tensor *x = &call->in[0];
    dense.in[0] = tn_tensor_dense(x->data, x->dtype, x->ndim, x->shape);
    dense.out[0] = tn_tensor_dense(call->out[0].data, x->dtype, x->ndim, x->shape);
    return test_kernel_forward(&dense, err);
}

static tn_status nan_forward(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    if (tn_tensor_count(&call->out[0]) > 0)
        first(call)[1] = nanf("");
    return status;
}

static tn_status unwritten(const tn_call *call, tn_error *err)
{
    tn_call most = *call;
    if (call->in[0].shape[0] == 1)
        return test_kernel_forward(call, err);
    most.in[0].shape[0] = most.out[0].shape[0] = call->in[0].shape[0] - 1;
    return test_kernel_forward(&most, err);
}

static tn_status writes_after(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    ((volatile float *)first(call))[call->out[0].shape[0] * call->out[0].stride[0]] = 1;
    return status;
}

static tn_status writes_before(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    ((volatile float *)first(call))[-1] = 1;
    return status;
}

static tn_status writes_input(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    if (call->in[0].data != call->out[0].data)
        *(volatile float *)call->in[0].data = 1;
    return status;
}

static tn_status reads_after_input(const tn_call *call, tn_error *err)
{
    volatile float sum = ((volatile float *)call->in[0].data)[call->in[0].shape[0] * call->in[0].stride[0]];
    (void)sum;
    return test_kernel_forward(call, err);
}

static tn_status plan_scratch(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->scratch_bytes = 256;
    return TN_OK;
}

static tn_status writes_scratch(const tn_call *call, tn_error *err)
{
    ((volatile char *)call->scratch)[256] = 1;
    return test_kernel_forward(call, err);
}

static tn_status plan_packed(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->packed_bytes = 100;
    return TN_OK;
}

static tn_status pack_outside(const tn_site *site, const tn_plan *plan, void *packed, tn_queue *queue, tn_error *err)
{
    (void)queue;
    (void)site;
    (void)plan;
    (void)err;
    memset(packed, 1, 101);
    return TN_OK;
}

static tn_status pack_crash(const tn_site *site, const tn_plan *plan, void *packed, tn_queue *queue, tn_error *err)
{
    (void)queue;
    (void)site;
    (void)plan;
    (void)packed;
    (void)err;
    raise(SIGBUS);
    return TN_OK;
}

static tn_status writes_packed(const tn_call *call, tn_error *err)
{
    *(volatile char *)(uintptr_t)call->packed = 1;
    return test_kernel_forward(call, err);
}

static tn_status crash(const tn_call *call, tn_error *err)
{
    (void)call;
    (void)err;
    raise(SIGSEGV); /* as a wild pointer does; sanitizers would stop the pointer itself first */
    return TN_OK;
}

static tn_status leaves(const tn_call *call, tn_error *err)
{
    (void)call;
    (void)err;
    exit(7);
}

static tn_status hang(const tn_call *call, tn_error *err)
{
    (void)call;
    (void)err;
    for (;;)
        pause();
    return TN_OK;
}

static tn_status fails(const tn_call *call, tn_error *err)
{
    return tn_fail(err, TN_E_INTERNAL, call->site->path, "the machine is on fire");
}

static tn_status changes_rounding(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    fesetround(FE_TOWARDZERO);
    return status;
}

static tn_status plan_crash(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)plan;
    (void)err;
    raise(SIGSEGV); /* as a wild pointer does; sanitizers would stop the pointer itself first */
    return TN_OK;
}

static tn_status plan_hang(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)plan;
    (void)err;
    for (;;)
        pause();
    return TN_OK;
}

static tn_status plan_absurd(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->packed_bytes = (size_t)1 << 50;
    return TN_OK;
}

static tn_status plan_endless(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->scratch_bytes = SIZE_MAX;
    return TN_OK;
}

static tn_status plan_backward(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->backward_scratch_bytes = SIZE_MAX / 2;
    return TN_OK;
}

/* Only for few tokens, as a difference that goes below zero. */
static tn_status plan_few(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->scratch_bytes = (size_t)(plan->max_tokens - 64) * 64;
    return TN_OK;
}

static tn_status plan_threads(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->threads = -1;
    return TN_OK;
}

static tn_status plan_tokens(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->max_tokens = INT64_MAX;
    return TN_OK;
}

/* Texts without an end, and with what a terminal would obey. */
static tn_status plan_unended(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)plan;
    memset(err->where, 'x', sizeof err->where);
    memset(err->message, 'y', sizeof err->message);
    return TN_E_KERNEL;
}

static tn_status unended(const tn_call *call, tn_error *err)
{
    (void)call;
    memset(err->where, 'x', sizeof err->where);
    memset(err->message, '\x1b', sizeof err->message);
    return TN_E_KERNEL;
}

static tn_status plan_fails(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)plan;
    return tn_fail(err, TN_E_INTERNAL, site->path, "no plan today");
}

static const struct {
    test_kernel kernel;
    const char *says;
    tn_status by_name;
} bad[] = {
    {{.id = "wrong", .forward = wrong}, "wrong numbers with 1 tokens", TN_E_VERIFY},
    {{.id = "wrong_for_many", .forward = wrong_for_many}, "wrong numbers with 19 tokens", TN_E_VERIFY},
    {{.id = "alone", .forward = other_bits_alone, .traits = TN_SAME_BITS},
     "other bits for tokens 8194 to 8194 alone than among 8195 (row 0, element 0 is ",
     TN_E_VERIFY},
    {{.id = "places", .forward = other_bits_at_odd_places, .traits = TN_SAME_BITS},
     "other bits for tokens 2731 to 6828 alone than among 8195 (row 0, element 0 is ",
     TN_E_VERIFY},
    {{.id = "nan", .forward = nan_forward}, "wrong numbers", TN_E_VERIFY},
    {{.id = "unwritten", .forward = unwritten}, "row 18, element 0 was never written", TN_E_VERIFY},
    {{.id = "strides", .forward = ignores_strides}, "wrote outside its outputs (19 tokens)", TN_E_KERNEL},
    {{.id = "after", .forward = writes_after}, "forward: wrote outside its outputs (1 tokens)", TN_E_KERNEL},
    {{.id = "before", .forward = writes_before}, "forward: wrote outside its outputs", TN_E_KERNEL},
    {{.id = "input", .forward = writes_input}, "forward: wrote to its inputs", TN_E_KERNEL},
    {{.id = "reads", .forward = reads_after_input}, "outside its inputs", TN_E_KERNEL},
    {{.id = "scratch", .plan = plan_scratch, .forward = writes_scratch}, "wrote outside its scratch", TN_E_KERNEL},
    {{.id = "pack", .plan = plan_packed, .pack = pack_outside}, "pack: wrote outside its packed memory", TN_E_KERNEL},
    {{.id = "packed", .plan = plan_packed, .forward = writes_packed}, "wrote to its packed memory", TN_E_KERNEL},
    {{.id = "pack_crash", .plan = plan_packed, .pack = pack_crash}, "pack: crashed with SIGBUS", TN_E_KERNEL},
    {{.id = "crash", .forward = crash}, "forward: crashed with SIGSEGV (1 tokens)", TN_E_KERNEL},
    {{.id = "leaves", .forward = leaves}, "forward: called exit(7)", TN_E_KERNEL},
    {{.id = "hang", .forward = hang}, "forward: did not finish within", TN_E_KERNEL},
    {{.id = "fails", .forward = fails}, "forward: failed: the machine is on fire", TN_E_KERNEL},
    {{.id = "rounding", .forward = changes_rounding}, "floating-point control", TN_E_KERNEL},
    {{.id = "plan_crash", .plan = plan_crash}, "plan crashed with SIGSEGV", TN_E_KERNEL},
    {{.id = "plan_hang", .plan = plan_hang}, "plan did not finish within", TN_E_KERNEL},
    {{.id = "plan_absurd", .plan = plan_absurd},
     "plan failed: it asks for 1125899906842624 bytes of packed weights; at most ",
     TN_E_KERNEL},
    {{.id = "plan_endless", .plan = plan_endless},
     "plan failed: it asks for 18446744073709551615 bytes of scratch for 4096 tokens; at most ",
     TN_E_KERNEL},
    {{.id = "plan_backward", .plan = plan_backward}, "it asks for 9223372036854775807 bytes of scratch", TN_E_KERNEL},
    {{.id = "plan_few", .plan = plan_few}, "bytes of scratch for 1 tokens; at most ", TN_E_KERNEL},
    {{.id = "plan_threads", .plan = plan_threads}, "plan failed: it changes what it is given", TN_E_KERNEL},
    {{.id = "plan_tokens", .plan = plan_tokens}, "plan failed: it changes what it is given", TN_E_KERNEL},
    {{.id = "plan_unended", .plan = plan_unended}, "plan failed: yyyyyyyy", TN_E_KERNEL},
    {{.id = "unended", .forward = unended}, "forward: failed: \\x1b\\x1b", TN_E_KERNEL},
    {{.id = "plan_fails", .plan = plan_fails}, "plan failed: no plan today", TN_E_KERNEL},
};

/* Left out by auto, which says so; nothing of the model changes. */
START_TEST(auto_leaves_it_out)
{
    tn_model *m = test_model_open("qwen3", "f32");
    tn_report *report = NULL;
    tn_error err = TN_ERROR_INIT;
    test_kernel k = bad[_i].kernel;
    k.op = TN_OP_RMS_NORM;
    test_kernel_add(&k);
    ck_assert_msg(tn_apply_kernels(m, NULL, "auto", &report, &err) == TN_OK, "%s: %s", err.where, err.message);
    ck_assert_msg(strstr(report->summary, bad[_i].says) && strstr(report->summary, k.id), "%s", report->summary);
    ck_assert_uint_eq(test_model_bound(m), 0);
    ck_assert_int_eq(m->target.packed_bytes, 0);
    tn_report_free(report);
    tn_model_close(m);
}
END_TEST

/* An error by name, with the kernel and the reason. */
START_TEST(by_name_is_an_error)
{
    tn_model *m = test_model_open("qwen3", "f32");
    tn_error err = TN_ERROR_INIT;
    test_kernel k = bad[_i].kernel;
    k.op = TN_OP_RMS_NORM;
    test_kernel_add(&k);
    ck_assert_int_eq(tn_apply_kernels(m, NULL, k.id, NULL, &err), bad[_i].by_name);
    ck_assert_int_eq(err.code, bad[_i].by_name);
    ck_assert_msg(strstr(err.message, bad[_i].says), "%s", err.message);
    ck_assert_str_eq(err.where, k.id);
    ck_assert_uint_eq(test_model_bound(m), 0);
    tn_model_close(m);
}
END_TEST

/* What does the work instead: the next kernel, whatever its priority. */
START_TEST(another_kernel_takes_over)
{
    tn_model *m = test_model_open("qwen3", "f32");
    test_kernel_add(&(test_kernel){.id = "bad", .op = TN_OP_RMS_NORM, .priority = 9, .forward = wrong});
    test_kernel_add(&(test_kernel){.id = "good", .op = TN_OP_RMS_NORM, .priority = 1});
    tn_report *report = test_model_report(m, NULL, "auto");
    for (size_t i = 0; i < report->site_count; i++)
        if (report->sites[i]->site->op == TN_OP_RMS_NORM) {
            ck_assert_str_eq(report->sites[i]->kernel, "good");
            ck_assert_str_eq(report->sites[i]->verdicts[0]->kernel, "bad");
            ck_assert(!report->sites[i]->verdicts[0]->taken);
            ck_assert_ptr_nonnull(strstr(report->sites[i]->verdicts[0]->reason, "wrong numbers"));
        }
    ck_assert_ptr_nonnull(strstr(report->summary, "good "));
    ck_assert_ptr_nonnull(strstr(report->summary, "refused: bad at RMS_NORM (wrong numbers"));
    tn_report_free(report);
    tn_model_close(m);
}
END_TEST

/* A tolerance is a bound, not a wish: just outside fails, just inside passes. */
static float shift;

static tn_status shifted(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_forward(call, err);
    const tn_tensor *y = &call->out[0];
    for (int64_t t = 0; y->ndim == 2 && t < y->shape[0]; t++) {
        float *row = first(call) + t * y->stride[0], largest = 0;
        int64_t at = 0;
        for (int64_t i = 0; i < y->shape[1]; i++)
            if (fabsf(row[i]) > largest)
                largest = fabsf(row[at = i]);
        row[at == 0] += shift * 0x1p-24f * largest;
    }
    return status;
}

START_TEST(tolerance_is_a_bound)
{
    tn_model *m = test_model_open("qwen3", "f32");
    test_kernel_add(&(test_kernel){.id = "shifted", .op = TN_OP_RMS_NORM, .forward = shifted, .ulps = 1000});
    shift = 1010;
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "shifted", NULL, NULL), TN_E_VERIFY);
    shift = 990;
    test_model_apply(m, NULL, "shifted");
    tn_model_close(m);
}
END_TEST

/* Tokens whose experts rounding may change are not compared, all others are. */
static tn_status ignores_renorm(const tn_call *call, tn_error *err)
{
    tn_site site = *call->site;
    tn_call other = *call;
    site.features &= ~TN_HAS_RENORM;
    other.site = &site;
    return test_kernel_forward(&other, err);
}

START_TEST(mixtures_are_checked)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model_open("qwen3_moe", _i ? "bf16" : "f32");
    test_kernel_add(&(test_kernel){.id = "moe", .op = TN_OP_MOE_BLOCK});
    test_kernel_add(&(test_kernel){.id = "bad_moe", .op = TN_OP_MOE_BLOCK, .forward = ignores_renorm});
    test_model_apply(m, NULL, "moe");
    ck_assert_uint_ge(test_model_bound(m), 1);
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "bad_moe", NULL, &err), TN_E_VERIFY);
    tn_model_close(m);
}
END_TEST

int main(void)
{
    TCase *refusals = suite_open("check", 120);
    int count = (int)(sizeof bad / sizeof bad[0]);
    tcase_add_loop_test(refusals, auto_leaves_it_out, 0, count);
    tcase_add_loop_test(refusals, by_name_is_an_error, 0, count);
    suite_add(refusals, another_kernel_takes_over, tolerance_is_a_bound);
    tcase_add_loop_test(refusals, mixtures_are_checked, 0, 2);
    return suite_run();
}
