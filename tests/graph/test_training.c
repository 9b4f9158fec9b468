/* Models opened for training: kernels without gradients are declined, those with them are checked, and single sites can
 * be performed forward and backward. */
#include "eager/eager.h"
#include "graph/contract.h"
#include "graph/run.h"
#include "model.h"
#include "optest.h"
#include "plugin/plugins.h"
#include "test_kernels.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const dtypes[] = {"f32", "bf16", "f16"};

static tn_model *open_model(const char *name, const char *dtype, bool training)
{
    char path[256];
    tn_error err = TN_ERROR_INIT;
    tn_model_options o = {.size = sizeof o, .dtype = dtype, .training = training};
    snprintf(path, sizeof path, "tests/data/models/%s", name);
    tn_model *m = tn_model_open(path, &o, &err);
    ck_assert_msg(m != NULL, "%s: %s", err.where, err.message);
    return m;
}

static const graph_site *site_at(const tn_model *m, const char *path, tn_op op)
{
    for (size_t i = 0; i < m->graph->site_count; i++)
        if (!strcmp(m->graph->sites[i]->site.path, path) && m->graph->sites[i]->site.op == op)
            return m->graph->sites[i];
    ck_abort_msg("no site %s", path);
}

static bool has_kernel(const tn_model *m)
{
    for (size_t i = 0; i < m->graph->site_count; i++)
        if (m->graph->sites[i]->bound.impl)
            return true;
    return false;
}

/* ---- without a backward --------------------------------------------------------------------------------------- */

#define NO_BACKWARD "no backward: the model is opened for training"

START_TEST(kernels_without_gradients_are_declined)
{
    tn_error err = TN_ERROR_INIT;
    tn_report *report = NULL;
    test_kernel_add(&(test_kernel){.id = "forward_only", .op = TN_OP_RMS_NORM});
    tn_model *m = open_model("qwen3", "f32", true);
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "auto", &report, NULL), TN_OK);
    ck_assert(!has_kernel(m));
    const graph_site *norm = site_at(m, "model.norm", TN_OP_RMS_NORM);
    ck_assert_str_eq(report->sites[norm->index].verdicts[0].reason, NO_BACKWARD);
    char *text = tn_model_describe(m, report, TN_GRAPH_TEXT, true, NULL);
    ck_assert_ptr_nonnull(strstr(text, "- forward_only: " NO_BACKWARD));
    free(text);
    tn_report_free(report);
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "forward_only", NULL, &err), TN_E_KERNEL);
    ck_assert_msg(strstr(err.message, NO_BACKWARD) != NULL, "%s", err.message);
    tn_model_close(m);
    m = open_model("qwen3", "f32", false);
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "forward_only", NULL, NULL), TN_OK);
    ck_assert(has_kernel(m));
    tn_model_close(m);
}
END_TEST

/* Before ABI 1.1 an impl ended with backward, whose calls had no gradients. */
static tn_status never(const tn_call *call, tn_error *err)
{
    (void)call;
    return tn_fail(err, TN_E_INTERNAL, "test", "a backward of ABI 1.0 was called");
}

START_TEST(backward_of_abi_1_0_counts_as_none)
{
    enum { SIZE_1_0 = offsetof(tn_impl, gradient_tolerance) };
    tn_impl impl = {.size = SIZE_1_0,
                    .op = TN_OP_RMS_NORM,
                    .match = {.size = sizeof impl.match,
                              .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32), [TN_AXIS_NORM] = TN_TAKES(TN_NORM_W)}},
                    .tolerance = {64, 64, 64},
                    .forward = test_kernel_forward,
                    .backward = never};
    tn_kernel kernel = {.size = sizeof kernel, .id = "old", .device = TN_DEVICE_CPU, .impls = &impl, .impl_count = 1};
    tn_plugin plugin = {
        .size = sizeof plugin, .abi_major = 1, .name = "old", .version = "1", .kernels = &kernel, .kernel_count = 1};
    tn_error err = TN_ERROR_INIT;
    descriptor *d = descriptor_read(&plugin, NULL, "old", &err);
    ck_assert_msg(d && registry_add(d, "old", &err) == TN_OK, "%s", err.message);
    tn_model *m = open_model("qwen3", "f32", true);
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "old", NULL, &err), TN_E_KERNEL);
    ck_assert_msg(strstr(err.message, NO_BACKWARD) != NULL, "%s", err.message);
    tn_model_close(m);
    m = open_model("qwen3", "f32", false);
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "old", NULL, NULL), TN_OK);
    tn_model_close(m);
}
END_TEST

/* ---- checked gradients ------------------------------------------------------------------------------------------- */

START_TEST(right_gradients_are_taken)
{
    static const tn_op ops[] = {TN_OP_RMS_NORM, TN_OP_ADD_RMS_NORM, TN_OP_ROPE, TN_OP_LINEAR};
    static const char *const ids[] = {"norm", "add_norm", "rope", "linear"};
    tn_model *m = open_model("qwen2", dtypes[_i], true); /* its products have biases */
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        tn_error err = TN_ERROR_INIT;
        const char *id = ids[i];
        test_kernel_add(&(test_kernel){.id = id, .op = ops[i], .backward = test_kernel_backward});
        tn_status status = tn_apply_kernels(m, NULL, id, NULL, &err);
        ck_assert_msg(status == TN_OK, "%s: %s: %s", id, err.where, err.message);
        ck_assert(has_kernel(m));
        tn_verify_row *rows = NULL;
        size_t count = 0;
        status = tn_verify(m, &rows, &count, &err);
        ck_assert_msg(status == TN_OK, "%s: %s: %s", id, err.where, err.message);
        free(rows);
    }
    tn_model_close(m);
}
END_TEST

static float *floats(const tn_tensor *t)
{
    return t->data;
}

static tn_status wrong_input(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_backward(call, err);
    floats(&call->grads->in[0])[1] += 0.01f;
    return status;
}

static tn_status wrong_weight(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_backward(call, err);
    floats(call->grads->param[TN_ROLE_WEIGHT].tensors)[2] *= 1.01f;
    return status;
}

/* Adds to what is there. */
static tn_status adds_weight(const tn_call *call, tn_error *err)
{
    const tn_tensor *w = call->grads->param[TN_ROLE_WEIGHT].tensors;
    float before = floats(w)[0];
    tn_status status = test_kernel_backward(call, err);
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
    *dx = tn_tensor_dense(dx->data, dx->dtype, dx->ndim, dx->shape);
    return test_kernel_backward(&dense, err);
}

static tn_status crashes(const tn_call *call, tn_error *err)
{
    (void)err;
    *(volatile int *)(uintptr_t)call->in_count = 1;
    return TN_OK;
}

static tn_status writes_after(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_backward(call, err);
    const tn_tensor *dw = call->grads->param[TN_ROLE_WEIGHT].tensors;
    ((volatile float *)floats(dw))[dw->shape[0]] = 1;
    return status;
}

static tn_status writes_upstream(const tn_call *call, tn_error *err)
{
    tn_status status = test_kernel_backward(call, err);
    if (call->grads->out[0].data != call->grads->in[0].data)
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
    tn_model *m = open_model("qwen3", "f32", true);
    tn_status status = tn_apply_kernels(m, NULL, "bad", NULL, &err);
    ck_assert_msg(status == bad[_i].code, "%d: %s", (int)status, err.message);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(strstr(err.message, bad[_i].words[i]) != NULL, "no '%s' in: %s", bad[_i].words[i], err.message);
    ck_assert(!has_kernel(m));
    tn_report *report = NULL;
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "auto", &report, NULL), TN_OK);
    ck_assert_msg(strstr(report->summary, "good 9/9 RMS_NORM") != NULL, "%s", report->summary);
    ck_assert_ptr_nonnull(strstr(report->summary, "refused: bad at RMS_NORM"));
    tn_report_free(report);
    tn_model_close(m);
    m = open_model("qwen3", "f32", false); /* nobody asks for its gradients */
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "bad", NULL, NULL), TN_OK);
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
    for (int64_t i = 0; i < dw->shape[0]; i++)
        if (fabsf(floats(dw)[i]) > largest)
            largest = fabsf(floats(dw)[at = i]);
    floats(dw)[at == 0] += shift * 0x1p-24f * largest;
    return status;
}

START_TEST(gradients_have_their_tolerance)
{
    test_kernel_add(
        &(test_kernel){.id = "shifted", .op = TN_OP_RMS_NORM, .ulps = 1, .backward = shifted, .gradient_ulps = 1000});
    tn_model *m = open_model("qwen3", "f32", true);
    shift = 1010;
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "shifted", NULL, NULL), TN_E_VERIFY);
    shift = 990;
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "shifted", NULL, NULL), TN_OK);
    tn_model_close(m);
}
END_TEST

/* ---- scratch --------------------------------------------------------------------------------------------------------
 */

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
    tn_error err = TN_ERROR_INIT;
    tn_session *s = tn_session_new(m, &(tn_session_options){.size = sizeof(tn_session_options), .context = 32}, &err);
    ck_assert_msg(s != NULL, "%s", err.message);
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
        tn_model *m = open_model("qwen3", "f32", training);
        ck_assert_int_eq(tn_apply_kernels(m, NULL, "good", NULL, NULL), TN_OK);
        ck_assert_uint_lt(arena_of(m), MANY);
        tn_model_close(m);
    }
    tn_model *m = open_model("qwen3", "f32", true);
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "over", NULL, &err), TN_E_KERNEL);
    ck_assert_msg(strstr(err.message, "backward: wrote outside its scratch") != NULL, "%s", err.message);
    err = (tn_error)TN_ERROR_INIT;
    ck_assert_int_eq(tn_apply_kernels(m, NULL, "glutton", NULL, &err), TN_E_KERNEL);
    ck_assert_msg(strstr(err.message, "bytes of scratch") != NULL, "%s", err.message);
    tn_model_close(m);
}
END_TEST

/* ---- one site
 * ---------------------------------------------------------------------------------------------------------- */

static int64_t width_of(const graph_site *site)
{
    return site->site.dim[TN_DIM_WIDTH];
}

static int forwards, backwards;

static tn_status counts_forward(const tn_call *call, tn_error *err)
{
    forwards++;
    return test_kernel_forward(call, err);
}

static tn_status counts_backward(const tn_call *call, tn_error *err)
{
    backwards++;
    return test_kernel_backward(call, err);
}

/* The same numbers through the public function as from eager, by whoever has the site; with more tokens than sessions
 * compute at once. */
START_TEST(sites_are_performed)
{
    enum { TOKENS = 5000 };
    tn_error err = TN_ERROR_INIT;
    test_kernel_add(&(test_kernel){.id = "norm",
                                   .op = TN_OP_RMS_NORM,
                                   .plan = plan_backward,
                                   .forward = counts_forward,
                                   .backward = counts_backward});
    tn_model *m = open_model("qwen3", "f32", true);
    const graph_site *site = site_at(m, "model.norm", TN_OP_RMS_NORM);
    int64_t shape[2] = {TOKENS, width_of(site)}, count = TOKENS * width_of(site);
    tn_tensor x = optest_random(TN_F32, 2, shape, 1), dy = optest_random(TN_F32, 2, shape, 2);
    tn_tensor y[2], dx[2], dw[2];
    for (int i = 0; i < 2; i++) {
        y[i] = optest_zeros(TN_F32, 2, shape);
        dx[i] = optest_zeros(TN_F32, 2, shape);
        dw[i] = optest_zeros(TN_F32, 1, shape + 1);
        tn_grads grads = {.size = sizeof grads, .out = {dy}, .in = {dx[i]}};
        grads.param[TN_ROLE_WEIGHT] = (tn_param){&dw[i], 1};
        if (i == 1)
            ck_assert_int_eq(tn_apply_kernels(m, NULL, "norm", NULL, NULL), TN_OK);
        ck_assert_int_eq(tn_site_forward(m, "model.norm", TN_OP_RMS_NORM, &x, 1, &y[i], 1, &err), TN_OK);
        ck_assert_int_eq(tn_site_backward(m, "model.norm", TN_OP_RMS_NORM, &x, 1, &grads, &err), TN_OK);
        ck_assert_int_eq(forwards, i);
        ck_assert_int_eq(backwards, i);
    }
    ck_assert_mem_eq(y[0].data, y[1].data, (size_t)count * 4);
    ck_assert_mem_eq(dx[0].data, dx[1].data, (size_t)count * 4);
    ck_assert_mem_eq(dw[0].data, dw[1].data, (size_t)width_of(site) * 4);
    ck_assert(optest_at(&dx[0], 7) != 0 && optest_at(&dw[0], 7) != 0);
    tn_model_close(m);
}
END_TEST

/* Composed sites and rotations, with few tokens: what is wanted alone is written. */
START_TEST(composed_sites_have_gradients)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = open_model("qwen3_moe", "f32", true);
    static const struct {
        const char *path;
        tn_op op;
    } sites[] = {{"model.layers.0.mlp", TN_OP_MOE_BLOCK},
                 {"model.layers.1.input_layernorm", TN_OP_ADD_RMS_NORM},
                 {"model.layers.0.self_attn.q_proj", TN_OP_LINEAR}};
    for (size_t i = 0; i < sizeof sites / sizeof *sites; i++) {
        const graph_site *site = site_at(m, sites[i].path, sites[i].op);
        int64_t in[2] = {3, site->site.dim[TN_DIM_HIDDEN]}, out[2] = {3, site->site.dim[TN_DIM_OUT]};
        bool add = sites[i].op == TN_OP_ADD_RMS_NORM;
        in[1] = add ? width_of(site) : in[1];
        out[1] = sites[i].op == TN_OP_LINEAR ? out[1] : in[1];
        tn_tensor x[2] = {optest_random(TN_F32, 2, in, 1), optest_random(TN_F32, 2, in, 2)};
        tn_tensor y[2] = {optest_zeros(TN_F32, 2, out), optest_zeros(TN_F32, 2, out)};
        tn_grads grads = {.size = sizeof grads};
        grads.out[0] = optest_random(TN_F32, 2, out, 3);
        grads.in[0] = optest_zeros(TN_F32, 2, in);
        int32_t n = add ? 2 : 1;
        tn_status status = tn_site_forward(m, sites[i].path, sites[i].op, x, n, y, n, &err);
        ck_assert_msg(status == TN_OK, "%s: %s", sites[i].path, err.message);
        status = tn_site_backward(m, sites[i].path, sites[i].op, x, n, &grads, &err);
        ck_assert_msg(status == TN_OK, "%s: %s", sites[i].path, err.message);
        /* dL/dx by a difference quotient in the direction of a coordinate. */
        double slope = 0, h = 0x1p-6, at = optest_at(&x[0], 1);
        for (int side = -1; side <= 1; side += 2) {
            optest_set(&x[0], 1, at + side * h);
            ck_assert_int_eq(tn_site_forward(m, sites[i].path, sites[i].op, x, n, y, n, &err), TN_OK);
            for (int64_t j = 0; j < tn_tensor_count(&y[0]); j++)
                slope += side * optest_at(&y[0], j) * optest_at(&grads.out[0], j) / (2 * h);
        }
        ck_assert_double_eq_tol(optest_at(&grads.in[0], 1), slope, 2e-2 * fabs(slope) + 1e-3);
    }
    tn_model_close(m);
}
END_TEST

/* A site with the sizes and weights of golden cases. */
START_TEST(gradients_are_the_golden_ones)
{
    tn_model *m = open_model("qwen3", dtypes[_i], true);
    graph_site *site = (graph_site *)site_at(m, "model.norm", TN_OP_RMS_NORM);
    tn_dtype dtype = (tn_dtype)site->site.meaning[TN_AXIS_DTYPE];
    tn_tensor *own = (tn_tensor *)site->site.param[TN_ROLE_WEIGHT].tensors, kept = *own;
    tn_safetensors *file = optest_open("rmsnorm");
    int n = 0;
    for (; optest_has(file, n, "x"); n++) {
        tn_error err = TN_ERROR_INIT;
        tn_tensor from[3] = {optest_get(file, n, "x", ""), optest_get(file, n, "weight", ""),
                             optest_get(file, n, "grad_out", "")};
        tn_tensor x = optest_from(dtype, &from[0]), dx = optest_zeros(dtype, x.ndim, x.shape);
        *own = optest_from(dtype, &from[1]);
        tn_tensor dw = optest_zeros(dtype, 1, own->shape);
        site->site.dim[TN_DIM_WIDTH] = own->shape[0];
        site->site.num[TN_NUM_EPS] = optest_number(file, n, "eps");
        tn_grads grads = {.size = sizeof grads, .out = {optest_from(dtype, &from[2])}, .in = {dx}};
        grads.param[TN_ROLE_WEIGHT] = (tn_param){&dw, 1};
        tn_status status = tn_site_backward(m, "model.norm", TN_OP_RMS_NORM, &x, 1, &grads, &err);
        ck_assert_msg(status == TN_OK, "%s: %s", err.where, err.message);
        tn_tensor truth = optest_get(file, n, "grad_x", "");
        optest_golden_grad(&dx, &truth, "grad_x");
        truth = optest_get(file, n, "grad_weight", "");
        optest_golden_grad(&dw, &truth, "grad_weight");
    }
    ck_assert_int_gt(n, 2);
    *own = kept;
    tn_safetensors_close(file);
    tn_model_close(m);
}
END_TEST

/* ---- what does not fit
 * ------------------------------------------------------------------------------------------------ */

static void expect_refused(tn_status status, tn_status code, const tn_error *err, const char *words)
{
    ck_assert_msg(status == code && strstr(err->message, words), "%d: %s", (int)status, err->message);
}

START_TEST(wrong_tensors_are_refused)
{
    tn_model *m = open_model("qwen3", "f32", true), *inference = open_model("qwen3", "f32", false);
    int64_t width = width_of(site_at(m, "model.norm", TN_OP_RMS_NORM)), good[2] = {3, width}, wide[2] = {3, width + 1};
    tn_tensor x = optest_random(TN_F32, 2, good, 1), y = optest_zeros(TN_F32, 2, good);
    tn_tensor other = optest_zeros(TN_F32, 2, wide), half = optest_zeros(TN_BF16, 2, good), none = y, turned = y;
    none.data = NULL;
    turned.stride[1] = 3;
    turned.stride[0] = 1;
    const struct {
        const char *path;
        tn_op op;
        const tn_tensor *in, *out;
        int32_t count;
        const char *words;
    } calls[] = {
        {"model.norms", TN_OP_RMS_NORM, &x, &y, 1, "no site with this path and operation RMS_NORM"},
        {"model.norm", TN_OP_MLP, &x, &y, 1, "no site with this path and operation MLP"},
        {NULL, TN_OP_MLP, &x, &y, 1, "no site"},
        {"model.norm", TN_OP_RMS_NORM, &x, &y, 0, "RMS_NORM takes 1 inputs and 1 outputs, got 0 and 1"},
        {"model.norm", TN_OP_RMS_NORM, &other, &y, 1, "input 0 (f32 [3,65]) does not have the shape"},
        {"model.norm", TN_OP_RMS_NORM, &x, &other, 1, "output 0 (f32 [3,65]) does not have the shape"},
        {"model.norm", TN_OP_RMS_NORM, &half, &y, 1, "input 0 (bf16 [3,64]) must have dtype f32"},
        {"model.norm", TN_OP_RMS_NORM, &none, &y, 1, "input 0 (f32 [3,64]) has no data"},
        {"model.norm", TN_OP_RMS_NORM, &x, &turned, 1, "output 0 (f32 [3,64]) must be dense in its last dimension"},
    };
    ck_assert_int_eq(width, 64);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        tn_error err = TN_ERROR_INIT;
        tn_status status =
            tn_site_forward(m, calls[i].path, calls[i].op, calls[i].in, calls[i].count, calls[i].out, 1, &err);
        expect_refused(status, TN_E_USAGE, &err, calls[i].words);
    }
    tn_grads grads = {.size = sizeof grads, .out = {x}, .in = {y}};
    tn_error err = TN_ERROR_INIT;
    tn_status status = tn_site_backward(inference, "model.norm", TN_OP_RMS_NORM, &x, 1, &grads, &err);
    expect_refused(status, TN_E_USAGE, &err, "opened for training");
    grads.in[0] = other;
    err = (tn_error)TN_ERROR_INIT;
    status = tn_site_backward(m, "model.norm", TN_OP_RMS_NORM, &x, 1, &grads, &err);
    expect_refused(status, TN_E_USAGE, &err, "gradient of input 0 (f32 [3,65]) does not have the shape");
    grads.in[0] = y;
    grads.in[1] = y;
    err = (tn_error)TN_ERROR_INIT;
    status = tn_site_backward(m, "model.norm", TN_OP_RMS_NORM, &x, 1, &grads, &err);
    expect_refused(status, TN_E_USAGE, &err, "gradient of input 1 (f32 [3,64]) belongs to no input");
    grads.in[1].data = NULL;
    grads.param[TN_ROLE_WEIGHT] = (tn_param){&y, 1};
    err = (tn_error)TN_ERROR_INIT;
    status = tn_site_backward(m, "model.norm", TN_OP_RMS_NORM, &x, 1, &grads, &err);
    expect_refused(status, TN_E_USAGE, &err, "gradient of parameter 0 (f32 [3,64]) does not fit");
    ck_assert(optest_at(&y, 0) == 0);
    tn_model_close(m);
    tn_model_close(inference);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("training");
    TCase *c = tcase_create("training");
    tcase_set_timeout(c, 120);
    tcase_add_checked_fixture(c, optest_setup, optest_teardown);
    tcase_add_test(c, kernels_without_gradients_are_declined);
    tcase_add_test(c, backward_of_abi_1_0_counts_as_none);
    tcase_add_loop_test(c, right_gradients_are_taken, 0, 3);
    tcase_add_loop_test(c, bad_gradients_are_refused, 0, sizeof bad / sizeof *bad);
    tcase_add_test(c, gradients_have_their_tolerance);
    tcase_add_test(c, backward_has_scratch);
    tcase_add_test(c, sites_are_performed);
    tcase_add_test(c, composed_sites_have_gradients);
    tcase_add_loop_test(c, gradients_are_the_golden_ones, 0, 3);
    tcase_add_test(c, wrong_tensors_are_refused);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
