/* Contracts that eager mode composes, MLP and MOE_BLOCK, against what transformers computes (tests/data/ops): through
 * run_eager_call, which is what kernels are checked against. */
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <stdlib.h>

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};
static const char *const suffixes[] = {"", "_bf16", "_f16"};

static tn_tensor parameter(const tn_safetensors *file, int n, const char *name, tn_dtype dtype)
{
    tn_tensor t = optest_get(file, n, name, "");
    return optest_from(dtype, &t);
}

static void set_param(tn_site *site, tn_role role, tn_tensor t)
{
    optest_param(site, role, &t, 1);
}

static void run_case(const tn_safetensors *file, int n, int d, tn_site *site, const char *input, const char *what)
{
    tn_tensor truth = optest_get(file, n, "out", ""), theirs = optest_get(file, n, "out", suffixes[d]);
    tn_tensor x = parameter(file, n, input, dtypes[d]);
    int64_t width = x.shape[x.ndim - 1], shape[2] = {tn_tensor_count(&x) / width, width};
    tn_call call = {.size = sizeof call, .op = site->op, .site = site, .in_count = 1, .out_count = 1};
    call.in[0] = tn_tensor_dense(x.data, x.dtype, 2, shape);
    call.out[0] = optest_zeros(dtypes[d], 2, shape);
    site->dim[TN_DIM_HIDDEN] = width;
    optest_composed(&call);
    optest_golden(&call.out[0], &truth, &theirs, what);
}

static void mlp_file(const char *name, tn_act act, bool fused)
{
    tn_safetensors *file = optest_open(name);
    int n = 0;
    for (; optest_has(file, n, "x"); n++)
        for (int d = 0; d < 3; d++) {
            tn_site site = optest_site(TN_OP_MLP, dtypes[d]);
            tn_tensor down = parameter(file, n, "w_down", dtypes[d]);
            site.meaning[TN_AXIS_ACT] = (int32_t)act;
            site.meaning[TN_AXIS_LAYOUT] = fused ? TN_LAYOUT_GATE_UP : TN_LAYOUT_SPLIT;
            site.dim[TN_DIM_INTER] = down.shape[1];
            set_param(&site, TN_ROLE_DOWN, down);
            if (fused) {
                set_param(&site, TN_ROLE_GATE_UP, parameter(file, n, "w_gate_up", dtypes[d]));
            } else {
                set_param(&site, TN_ROLE_GATE, parameter(file, n, "w_gate", dtypes[d]));
                set_param(&site, TN_ROLE_UP, parameter(file, n, "w_up", dtypes[d]));
            }
            run_case(file, n, d, &site, "x", name);
        }
    ck_assert_int_gt(n, 2);
    tn_safetensors_close(file);
}

START_TEST(gated_mlps)
{
    mlp_file("swiglu", TN_ACT_SILU, false);
    mlp_file("swiglu_fused", TN_ACT_SILU, true);
    mlp_file("geglu", TN_ACT_GELU_TANH, false);
}
END_TEST

static void set_shared(const tn_safetensors *file, int n, tn_dtype dtype, tn_site *site)
{
    if (!optest_has(file, n, "shared_gate"))
        return;
    tn_tensor gate = parameter(file, n, "shared_gate", dtype);
    site->features |= TN_HAS_SHARED_EXPERT | TN_HAS_SHARED_GATE;
    site->dim[TN_DIM_SHARED_INTER] = gate.shape[0];
    set_param(site, TN_ROLE_SHARED_GATE, gate);
    set_param(site, TN_ROLE_SHARED_UP, parameter(file, n, "shared_up", dtype));
    set_param(site, TN_ROLE_SHARED_DOWN, parameter(file, n, "shared_down", dtype));
    set_param(site, TN_ROLE_SHARED_EXPERT_GATE, parameter(file, n, "shared_expert_gate", dtype));
}

START_TEST(blocks_of_experts)
{
    tn_safetensors *file = optest_open("moe");
    int n = 0;
    for (; optest_has(file, n, "hidden"); n++)
        for (int d = 0; d < 3; d++)
            for (int io = 0; io < 2; io++) {
                tn_site site = optest_site(TN_OP_MOE_BLOCK, dtypes[d]);
                tn_tensor down = parameter(file, n, io ? "down_v4" : "down_v5", dtypes[d]);
                site.meaning[TN_AXIS_ACT] = TN_ACT_SILU;
                site.meaning[TN_AXIS_SCORE] = TN_SCORE_SOFTMAX;
                site.meaning[TN_AXIS_LAYOUT] = io ? TN_LAYOUT_STACKED_IO : TN_LAYOUT_STACKED_OI;
                site.features = optest_number(file, n, "norm_topk_prob") != 0.0 ? TN_HAS_RENORM : 0;
                site.dim[TN_DIM_EXPERTS] = down.shape[0];
                site.dim[TN_DIM_TOP_K] = (int64_t)optest_number(file, n, "top_k");
                site.dim[TN_DIM_INTER] = down.shape[io ? 1 : 2];
                set_param(&site, TN_ROLE_DOWN, down);
                set_param(&site, TN_ROLE_GATE_UP, parameter(file, n, io ? "gate_up_v4" : "gate_up_v5", dtypes[d]));
                set_param(&site, TN_ROLE_ROUTER, parameter(file, n, "router", dtypes[d]));
                set_shared(file, n, dtypes[d], &site);
                run_case(file, n, d, &site, "hidden", "moe");
            }
    ck_assert_int_eq(n, 6);
    tn_safetensors_close(file);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("composed operations", 0);
    tcase_add_checked_fixture(tc, optest_setup, optest_teardown);
    suite_add(tc, gated_mlps, blocks_of_experts);
    return suite_run();
}
