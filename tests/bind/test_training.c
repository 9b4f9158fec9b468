/* Models opened for training: kernels without gradients are declined, those with them are checked. */
#include "open/model.h"
#include "plugin/plugins.h"
#include "sanitizer.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const dtypes[] = {"f32", "bf16", "f16"};

static bool has_kernel(const tn_model *m)
{
    for (size_t i = 0; i < m->target.graph->site_count; i++)
        if (m->target.graph->sites[i]->bound.impl)
            return true;
    return false;
}

/* ---- without a backward --------------------------------------------------------------------------------------- */

#define NO_BACKWARD "no backward: it gives no gradients, which are wanted here"

START_TEST(kernels_without_gradients_are_declined)
{
    tn_error err = TN_ERROR_INIT;
    tn_report *report = NULL;
    test_kernel_add(&(test_kernel){.id = "forward_only", .op = TN_OP_RMS_NORM});
    tn_model *m = test_model_open_with("qwen3", .dtype = "f32", .training = true);
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "auto", &report, NULL), TN_OK);
    ck_assert(!has_kernel(m));
    const graph_site *norm = test_model_site(m, "model.norm", TN_OP_RMS_NORM);
    ck_assert_str_eq(report->sites[norm->index]->verdicts[0]->reason, NO_BACKWARD);
    char *text = tn_model_describe(m, report, TN_GRAPH_TEXT, true, NULL);
    ck_assert_ptr_nonnull(strstr(text, "- forward_only: " NO_BACKWARD));
    free(text);
    tn_report_free(report);
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "forward_only", NULL, &err), TN_E_KERNEL);
    suite_expect_in(err.message, NO_BACKWARD);
    tn_model_close(m);
    m = test_model_open("qwen3", "f32");
    test_model_apply(m, NULL, "forward_only");
    ck_assert(has_kernel(m));
    tn_model_close(m);
}
END_TEST

/* ---- checked gradients ------------------------------------------------------------------------------------------- */

START_TEST(right_gradients_are_taken)
{
    static const tn_op ops[] = {TN_OP_RMS_NORM, TN_OP_ADD_RMS_NORM, TN_OP_ROPE, TN_OP_LINEAR};
    static const char *const ids[] = {"norm", "add_norm", "rope", "linear"};
    tn_model *m = test_model("qwen2", .dtype = dtypes[_i], .training = true); /* its products have biases */
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        tn_error err = TN_ERROR_INIT;
        const char *id = ids[i];
        test_kernel_add(&(test_kernel){.id = id, .op = ops[i], .backward = test_kernel_backward});
        tn_status status = tn_apply_kernels(m, NULL, id, NULL, &err);
        ck_assert_msg(status == TN_OK, "%s: %s: %s", id, err.where, err.message);
        ck_assert(has_kernel(m));
        tn_verify_row **rows = NULL;
        size_t count = 0;
        status = tn_verify(m, &rows, &count, &err);
        ck_assert_msg(status == TN_OK, "%s: %s: %s", id, err.where, err.message);
        free(rows);
    }
}
END_TEST

static float *floats(const tn_tensor *t)
{
    return t->data;
}

/* The gradients that the faults below are about may not be wanted. */
static bool wants_input(const tn_call *call)
{
    return call->grads->in[0].data && tn_tensor_count(&call->grads->in[0]) > 0;
}

static bool wants_weight(const tn_call *call)
{
    return call->grads->param[TN_ROLE_WEIGHT].count > 0;
}

static tn_status wrong_input(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_backward(call, err);
    if (wants_input(call))
        floats(&call->grads->in[0])[1] += 0.01f;
    return status;
}

static tn_status wrong_weight(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_backward(call, err);
    if (wants_weight(call))
        floats(call->grads->param[TN_ROLE_WEIGHT].tensors)[2] *= 1.01f;
    return status;
}

/* Adds to what is there. */
static tn_status adds_weight(const tn_call *call, tn_error *err)
{
    const tn_tensor *w = call->grads->param[TN_ROLE_WEIGHT].tensors;
    float before = wants_weight(call) ? floats(w)[0] : 0;
    tn_status status = test_kernel_backward(call, err);
    if (wants_weight(call))
        floats(w)[0] += before;
    return status;
}

static tn_status leaves_out(const tn_call *call, tn_error *err)
{
    tn_grads grads = *call->grads;
    tn_call less = *call;
    less.grads = &grads;
    grads.param[TN_ROLE_WEIGHT] = (tn_param){NULL, 0};
    return test_kernel_backward(&less, err);
}

static tn_status ignores_strides(const tn_call *call, tn_error *err)
{
    tn_grads grads = *call->grads;
    tn_call dense = *call;
    dense.grads = &grads;
    tn_tensor *dx = &grads.in[0];
    if (dx->data)
        *dx = tn_tensor_dense(dx->data, dx->dtype, dx->ndim, dx->shape);
    return test_kernel_backward(&dense, err);
}

static tn_status crashes(const tn_call *call, tn_error *err)
{
    raise(SIGSEGV); /* as a wild pointer does; sanitizers would stop the pointer itself first */
    return test_kernel_backward(call, err);
}

static tn_status writes_after(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_backward(call, err);
    const tn_tensor *dw = call->grads->param[TN_ROLE_WEIGHT].tensors;
    if (wants_weight(call))
        ((volatile float *)floats(dw))[dw->shape[0]] = 1;
    return status;
}

static tn_status writes_upstream(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_backward(call, err);
    if (call->grads->out[0].data && call->grads->out[0].data != call->grads->in[0].data)
        *(volatile float *)call->grads->out[0].data = 1;
    return status;
}

static tn_status fails(const tn_call *call, tn_error *err)
{
    return tn_fail(err, TN_E_KERNEL, call->site->path, "no gradient today");
}

static const struct {
    tn_status (*backward)(const tn_call *call, tn_error *err);
    tn_status code;
    const char *words[2];
} bad[] = {
    {wrong_input, TN_E_VERIFY, {"wrong gradients with 1 tokens", "gradient of input 0, row 0, element 1 is"}},
    {wrong_weight, TN_E_VERIFY, {"wrong gradients with 1 tokens", "gradient of weight 0, row 0, element 2 is"}},
    {adds_weight, TN_E_VERIFY, {"wrong gradients", "gradient of weight 0, row 0, element 0 "}},
    {leaves_out, TN_E_VERIFY, {"wrong gradients", "gradient of weight 0, row 0, element 0 was never written"}},
    {ignores_strides, TN_E_KERNEL, {"backward: wrote outside its gradients", "(19 tokens)"}},
    {crashes, TN_E_KERNEL, {"backward: crashed with SIGSEGV", "(1 tokens)"}},
    {writes_after, TN_E_KERNEL, {"backward: wrote outside its gradients", "(1 tokens)"}},
    {writes_upstream, TN_E_KERNEL, {"backward: wrote to the gradients of its outputs, which are read-only", ""}},
    {fails, TN_E_KERNEL, {"backward: failed: no gradient today", "(1 tokens)"}},
};

START_TEST(bad_gradients_are_refused)
{
    tn_error err = TN_ERROR_INIT;
    test_kernel_add(&(test_kernel){.id = "bad", .op = TN_OP_RMS_NORM, .priority = 9, .backward = bad[_i].backward});
    test_kernel_add(&(test_kernel){.id = "good", .op = TN_OP_RMS_NORM, .backward = test_kernel_backward});
    tn_model *m = test_model_open_with("qwen3", .dtype = "f32", .training = true);
    tn_status status = tn_apply_kernels(m, NULL, "bad", NULL, &err);
    ck_assert_msg(status == bad[_i].code, "%d: %s", (int)status, err.message);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(strstr(err.message, bad[_i].words[i]) != NULL, "no '%s' in: %s", bad[_i].words[i], err.message);
    ck_assert(!has_kernel(m));
    tn_report *report = test_model_report(m, NULL, "auto");
    suite_expect_in(report->summary, "good 9/9 RMS_NORM");
    ck_assert_ptr_nonnull(strstr(report->summary, "refused: bad at RMS_NORM"));
    const tn_site_report *norm = report->sites[test_model_site(m, "model.norm", TN_OP_RMS_NORM)->index];
    for (size_t i = 0; i < norm->verdict_count; i++)
        ck_assert_int_eq(norm->verdicts[i]->refused, !strcmp(norm->verdicts[i]->kernel, "bad"));
    tn_report_free(report);
    tn_model_close(m);
    m = test_model_open("qwen3", "f32"); /* nobody asks for its gradients */
    test_model_apply(m, NULL, "bad");
    tn_model_close(m);
}
END_TEST

/* Gradients have a tolerance of their own. */
static float shift;

static tn_status shifted(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_backward(call, err);
    const tn_tensor *dw = call->grads->param[TN_ROLE_WEIGHT].tensors;
    float largest = 0;
    int64_t at = 0;
    for (int64_t i = 0; wants_weight(call) && i < dw->shape[0]; i++)
        if (fabsf(floats(dw)[i]) > largest)
            largest = fabsf(floats(dw)[at = i]);
    if (wants_weight(call))
        floats(dw)[at == 0] += shift * 0x1p-24f * largest;
    return status;
}

START_TEST(gradients_have_their_tolerance)
{
    test_kernel_add(
        &(test_kernel){.id = "shifted", .op = TN_OP_RMS_NORM, .ulps = 1, .backward = shifted, .gradient_ulps = 1000});
    tn_model *m = test_model("qwen3", .dtype = "f32", .training = true);
    shift = 1010;
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "shifted", NULL, NULL), TN_E_VERIFY);
    shift = 990;
    test_model_apply(m, NULL, "shifted");
}
END_TEST

/* ---- scratch ---------------------------------------------------------------------------------------------- */

enum { FEW = 4096, MANY = 64 << 20 };

static tn_status plan_backward(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->backward_scratch_bytes = plan->max_tokens > 100 ? MANY : FEW;
    return TN_OK;
}

static tn_status fills_scratch(const tn_call *call, tn_error *err)
{
    memset(call->scratch, 1, call->plan->backward_scratch_bytes);
    return test_kernel_backward(call, err);
}

static tn_status overfills_scratch(const tn_call *call, tn_error *err)
{
    ((volatile char *)call->scratch)[call->plan->backward_scratch_bytes] = 1;
    return test_kernel_backward(call, err);
}

static tn_status plan_far_too_much(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->backward_scratch_bytes = (size_t)1 << 40;
    return TN_OK;
}

static size_t arena_of(tn_model *m)
{
    tn_session *s = test_model_session(m, .context = 32);
    size_t bytes = tn_session_arena_bytes(s);
    tn_session_free(s);
    return bytes;
}

/* Backward gets what its plan asks for; sessions, which do not train, reserve none of it. */
START_TEST(backward_has_scratch)
{
    tn_error err = TN_ERROR_INIT;
    test_kernel_add(
        &(test_kernel){.id = "good", .op = TN_OP_RMS_NORM, .plan = plan_backward, .backward = fills_scratch});
    test_kernel_add(
        &(test_kernel){.id = "over", .op = TN_OP_RMS_NORM, .plan = plan_backward, .backward = overfills_scratch});
    test_kernel_add(&(test_kernel){
        .id = "glutton", .op = TN_OP_RMS_NORM, .plan = plan_far_too_much, .backward = test_kernel_backward});
    for (int training = 0; training < 2; training++) {
        tn_model *m = test_model_open_with("qwen3", .dtype = "f32", .training = training);
        test_model_apply(m, NULL, "good");
        ck_assert_uint_lt(arena_of(m), MANY);
        tn_model_close(m);
    }
    tn_model *m = test_model_open_with("qwen3", .dtype = "f32", .training = true);
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "over", NULL, &err), TN_E_KERNEL);
    suite_expect_in(err.message, "backward: wrote outside its scratch");
    err = (tn_error)TN_ERROR_INIT;
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "glutton", NULL, &err), TN_E_KERNEL);
    suite_expect_in(err.message, "bytes of scratch");
    tn_model_close(m);
}
END_TEST

int main(void)
{
    TCase *c = suite_open("training", 120);
    suite_add(c, kernels_without_gradients_are_declined);
    tcase_add_loop_test(c, right_gradients_are_taken, 0, 3);
    ADD_SLOW_LOOP(c, bad_gradients_are_refused, sizeof bad / sizeof *bad);
    suite_add(c, gradients_have_their_tolerance, backward_has_scratch);
    return suite_run();
}
