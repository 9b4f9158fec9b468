/* One site on its own: tn_site_forward and tn_site_backward. */
#include "open/model.h"
#include "optest.h"
#include "suite.h"
#include "test_kernels.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const dtypes[] = {"f32", "bf16", "f16"};

enum { FEW = 4096, MANY = 64 << 20 };

static tn_status plan_backward(const tn_site *site, tn_plan *plan, tn_error *err)
{
    (void)site;
    (void)err;
    plan->backward_scratch_bytes = plan->max_tokens > 100 ? MANY : FEW;
    return TN_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------------ */

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
    tn_model *m = test_model("qwen3", .dtype = "f32", .training = true);
    const graph_site *site = test_model_site(m, "model.norm", TN_OP_RMS_NORM);
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
            test_model_apply(m, NULL, "norm");
        ck_assert_int_eq(tn_site_forward(m, "model.norm", TN_OP_RMS_NORM, &x, 1, &y[i], 1, &err), TN_OK);
        ck_assert_int_eq(tn_site_backward(m, "model.norm", TN_OP_RMS_NORM, &x, 1, &grads, &err), TN_OK);
        ck_assert_int_eq(forwards, i);
        ck_assert_int_eq(backwards, i);
    }
    ck_assert_mem_eq(y[0].data, y[1].data, (size_t)count * 4);
    ck_assert_mem_eq(dx[0].data, dx[1].data, (size_t)count * 4);
    ck_assert_mem_eq(dw[0].data, dw[1].data, (size_t)width_of(site) * 4);
    ck_assert(optest_at(&dx[0], 7) != 0 && optest_at(&dw[0], 7) != 0);
}
END_TEST

/* Composed sites and rotations, with few tokens: what is wanted alone is written. */
START_TEST(composed_sites_have_gradients)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = test_model("qwen3_moe", .dtype = "f32", .training = true);
    static const struct {
        const char *path;
        tn_op op;
    } sites[] = {{"model.layers.0.mlp", TN_OP_MOE_BLOCK},
                 {"model.layers.1.input_layernorm", TN_OP_ADD_RMS_NORM},
                 {"model.layers.0.self_attn.q_proj", TN_OP_LINEAR}};
    for (size_t i = 0; i < sizeof sites / sizeof *sites; i++) {
        const graph_site *site = test_model_site(m, sites[i].path, sites[i].op);
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
}
END_TEST

/* A site with the sizes and weights of golden cases. */
START_TEST(gradients_are_the_golden_ones)
{
    tn_model *m = test_model("qwen3", .dtype = dtypes[_i], .training = true);
    graph_site *site = (graph_site *)test_model_site(m, "model.norm", TN_OP_RMS_NORM);
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
}
END_TEST

/* ---- what does not fit ----------------------------------------------------------------------------------- */

static void expect_refused(tn_status status, tn_status code, const tn_error *err, const char *words)
{
    ck_assert_msg(status == code && strstr(err->message, words), "%d: %s", (int)status, err->message);
}

START_TEST(wrong_tensors_are_refused)
{
    tn_model *m = test_model("qwen3", .dtype = "f32", .training = true),
             *inference = test_model("qwen3", .dtype = "f32");
    int64_t width = width_of(test_model_site(m, "model.norm", TN_OP_RMS_NORM)), good[2] = {3, width},
            wide[2] = {3, width + 1};
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
}
END_TEST

int main(void)
{
    TCase *c = optest_suite("single sites", 120);
    suite_add(c, sites_are_performed, composed_sites_have_gradients);
    tcase_add_loop_test(c, gradients_are_the_golden_ones, 0, 3);
    suite_add(c, wrong_tensors_are_refused);
    return suite_run();
}
