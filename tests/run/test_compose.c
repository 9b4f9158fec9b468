/* Contracts that eager mode composes, MLP and MOE_BLOCK, against what transformers computes (tests/data/ops): through
 * run_eager_call, which is what kernels are checked against. */
#include "eager/eager.h"
#include "open/model.h"
#include "optest.h"
#include "suite.h"
#include "test_models.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static void set_param(const optest_case *c, tn_site *site, tn_role role, const char *name)
{
    tn_tensor t = optest_input(c, name);
    optest_param(site, role, &t, 1);
}

static void run_case(const optest_case *c, tn_call *call, const char *input)
{
    tn_tensor x = optest_input(c, input);
    int64_t width = x.shape[x.ndim - 1], shape[2] = {tn_tensor_count(&x) / width, width};
    call->in[0] = tn_tensor_dense(x.data, x.dtype, 2, shape);
    call->out[0] = optest_zeros(c->dtype, 2, shape);
    optest_site_of(call)->dim[TN_DIM_HIDDEN] = width;
    optest_composed(call);
    optest_expect(c, "out", &call->out[0]);
}

static void mlp_file(const char *name, tn_act act, bool fused, int cases)
{
    for (optest_case c = optest_cases(name, "x"); optest_next(&c, cases);) {
        tn_call call = optest_call(TN_OP_MLP, c.dtype, 1, 1);
        tn_site *site = optest_site_of(&call);
        site->meaning[TN_AXIS_ACT] = (int32_t)act;
        site->meaning[TN_AXIS_LAYOUT] = fused ? TN_LAYOUT_GATE_UP : TN_LAYOUT_SPLIT;
        set_param(&c, site, TN_ROLE_DOWN, "w_down");
        site->dim[TN_DIM_INTER] = site->param[TN_ROLE_DOWN].tensors->shape[1];
        set_param(&c, site, fused ? TN_ROLE_GATE_UP : TN_ROLE_GATE, fused ? "w_gate_up" : "w_gate");
        if (!fused)
            set_param(&c, site, TN_ROLE_UP, "w_up");
        run_case(&c, &call, "x");
    }
}

START_TEST(gated_mlps)
{
    mlp_file("swiglu", TN_ACT_SILU, false, 4);
    mlp_file("swiglu_fused", TN_ACT_SILU, true, 3);
    mlp_file("geglu", TN_ACT_GELU_TANH, false, 3);
}
END_TEST

static void set_shared(const optest_case *c, tn_site *site)
{
    if (!optest_has(c->file, c->number, "shared_gate"))
        return;
    site->features |= TN_HAS_SHARED_EXPERT | TN_HAS_SHARED_GATE;
    set_param(c, site, TN_ROLE_SHARED_GATE, "shared_gate");
    set_param(c, site, TN_ROLE_SHARED_UP, "shared_up");
    set_param(c, site, TN_ROLE_SHARED_DOWN, "shared_down");
    set_param(c, site, TN_ROLE_SHARED_EXPERT_GATE, "shared_expert_gate");
    site->dim[TN_DIM_SHARED_INTER] = site->param[TN_ROLE_SHARED_GATE].tensors->shape[0];
}

START_TEST(blocks_of_experts)
{
    for (optest_case c = optest_cases("moe", "hidden"); optest_next(&c, 6);)
        for (int io = 0; io < 2; io++) {
            tn_call call = optest_call(TN_OP_MOE_BLOCK, c.dtype, 1, 1);
            tn_site *site = optest_site_of(&call);
            set_param(&c, site, TN_ROLE_DOWN, io ? "down_v4" : "down_v5");
            set_param(&c, site, TN_ROLE_GATE_UP, io ? "gate_up_v4" : "gate_up_v5");
            set_param(&c, site, TN_ROLE_ROUTER, "router");
            const int64_t *down = site->param[TN_ROLE_DOWN].tensors->shape;
            site->meaning[TN_AXIS_ACT] = TN_ACT_SILU;
            site->meaning[TN_AXIS_SCORE] = TN_SCORE_SOFTMAX;
            site->meaning[TN_AXIS_LAYOUT] = io ? TN_LAYOUT_STACKED_IO : TN_LAYOUT_STACKED_OI;
            site->features = optest_number(c.file, c.number, "norm_topk_prob") != 0.0 ? TN_HAS_RENORM : 0;
            site->dim[TN_DIM_EXPERTS] = down[0];
            site->dim[TN_DIM_TOP_K] = (int64_t)optest_number(c.file, c.number, "top_k");
            site->dim[TN_DIM_INTER] = down[io ? 1 : 2];
            set_shared(&c, site);
            run_case(&c, &call, "hidden");
        }
}
END_TEST

/* Quantised weights with scales beside them, and zero points and groups of columns: of the site alone, and through the
 * sites of its parts. */
static void compare_alone(const graph_site *site)
{
    enum { TOKENS = 3, WIDTH = 512 };
    static float x[TOKENS * WIDTH], alone[TOKENS * WIDTH], parts[TOKENS * WIDTH];
    tn_error err = TN_ERROR_INIT;
    int64_t width = site->site.dim[TN_DIM_HIDDEN], shape[2] = {TOKENS, width};
    ck_assert_int_le(width, WIDTH);
    for (int64_t i = 0; i < TOKENS * width; i++)
        x[i] = (float)((i * 37) % 23 - 11) / 8;
    tn_call call = {.size = sizeof call, .op = site->site.op, .site = &site->site, .in_count = 1, .out_count = 1};
    call.in[0] = tn_tensor_dense(x, TN_F32, 2, shape);
    call.out[0] = tn_tensor_dense(alone, TN_F32, 2, shape);
    ck_assert_msg(run_alone(&cpu_device, NULL, NULL, &call, &err) == TN_OK, "%s", err.message);
    call.out[0].data = parts;
    ck_assert_msg(run_alone(&cpu_device, site, NULL, &call, &err) == TN_OK, "%s", err.message);
    ck_assert_msg(memcmp(alone, parts, (size_t)(TOKENS * width) * sizeof *alone) == 0, "%s", site->site.path);
}

START_TEST(scales_come_along)
{
    static const char *const names[] = {"bnb_nf4", "gptq_act_order", "fp8_block_qwen3_moe"};
    int compared = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const tn_model *m = test_model(names[i], .dtype = "f32");
        const graph *g = m->target.graph;
        for (size_t n = 0; n < g->site_count; n++)
            if (g->sites[n]->site.op == TN_OP_MLP || g->sites[n]->site.op == TN_OP_MOE_BLOCK) {
                compare_alone(g->sites[n]);
                compared++;
            }
    }
    ck_assert_int_ge(compared, 3);
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("composed operations", 0);
    suite_add(tc, gated_mlps, blocks_of_experts, scales_come_along);
    return suite_run();
}
