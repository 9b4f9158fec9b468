/* Eager operations against what transformers computes, and their gradients against float64 values (tests/data/ops). */
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static void norm_file(const char *name, tn_norm variant, int cases)
{
    static const char *const inputs[] = {"x", "gate"}, *const gradients[] = {"grad_x", "grad_gate"};
    for (optest_case c = optest_cases(name, "x"); optest_next(&c, cases);) {
        tn_call call = optest_call(TN_OP_RMS_NORM, c.dtype, variant == TN_NORM_W_GATED ? 2 : 1, 1);
        tn_tensor weight = optest_input(&c, "weight");
        optest_site_of(&call)->meaning[TN_AXIS_NORM] = (int32_t)variant;
        optest_site_of(&call)->num[TN_NUM_EPS] = optest_number(c.file, c.number, "eps");
        optest_param(optest_site_of(&call), TN_ROLE_WEIGHT, &weight, 1);
        for (int i = 0; i < call.in_count; i++)
            call.in[i] = optest_input(&c, inputs[i]);
        call.out[0] = optest_zeros(c.dtype, call.in[0].ndim, call.in[0].shape);
        optest_threads(&call);
        optest_expect(&c, "out", &call.out[0]);
        tn_grads *grads = optest_grads(&call, 0);
        grads->out[0] = optest_input(&c, "grad_out");
        optest_backward_threads(&call);
        for (int i = 0; i < call.in_count; i++)
            optest_expect_grad(&c, gradients[i], &grads->in[i]);
        optest_expect_grad(&c, "grad_weight", grads->param[TN_ROLE_WEIGHT].tensors);
    }
}

START_TEST(rms_norms)
{
    norm_file("rmsnorm", TN_NORM_W, 5);
    norm_file("rmsnorm_gemma", TN_NORM_1_PLUS_W, 4);
    norm_file("rmsnorm_gated", TN_NORM_W_GATED, 4);
}
END_TEST

/* Golden q and k are [B,heads,T,D]; the contract has tokens before heads, in any strides. */
static tn_call rope_run(const optest_case *c, tn_rope style, const tn_tensor *cos, const tn_tensor *sin)
{
    static const char *const names[] = {"q", "k"};
    tn_call call = optest_call(TN_OP_ROPE, c->dtype, 4, 2);
    optest_site_of(&call)->meaning[TN_AXIS_ROPE] = (int32_t)style;
    for (int i = 0; i < 2; i++) {
        tn_tensor x = optest_input(c, names[i]);
        call.in[i] = optest_transpose(x, 1, 2);
        call.out[i] = optest_transpose(optest_zeros(c->dtype, 4, x.shape), 1, 2);
    }
    call.in[2] = optest_from(c->dtype, cos);
    call.in[3] = optest_from(c->dtype, sin);
    optest_threads(&call);
    return call;
}

static void rope_check(const optest_case *c, const tn_call *call)
{
    static const char *const names[] = {"out_q", "out_k"};
    for (int i = 0; i < 2; i++) {
        tn_tensor got = optest_transpose(call->out[i], 1, 2);
        optest_expect(c, names[i], &got);
    }
}

/* Gradients of q and k: in memory of their own, and in that of the upstream gradients. q and k are not read. */
static void rope_grads(const optest_case *c, tn_call *call)
{
    static const char *const ups[] = {"grad_out_q", "grad_out_k"}, *const truths[] = {"grad_q", "grad_k"};
    tn_grads grads = {.size = sizeof grads};
    call->grads = &grads;
    for (int in_place = 0; in_place < 2; in_place++) {
        for (int i = 0; i < 2; i++) {
            tn_tensor up = optest_input(c, ups[i]);
            grads.out[i] = optest_transpose(up, 1, 2);
            grads.in[i] = optest_transpose(optest_zeros(c->dtype, 4, up.shape), 1, 2);
            call->in[i].data = NULL;
        }
        if (in_place) {
            memcpy(grads.in, grads.out, sizeof grads.in);
            optest_backward(call);
        } else {
            optest_backward_threads(call);
        }
        for (int i = 0; i < 2; i++) {
            tn_tensor got = optest_transpose(grads.in[i], 1, 2);
            optest_expect_grad(c, truths[i], &got);
        }
    }
    call->grads = NULL;
}

/* made: what is made of each table before it is used. */
static void rope_file(const char *name, tn_rope style, int cases,
                      tn_tensor (*made)(const optest_case *c, const tn_tensor *table))
{
    for (optest_case c = optest_cases(name, "q"); optest_next(&c, cases);) {
        tn_tensor cos = optest_truth(&c, "cos"), sin = optest_truth(&c, "sin");
        cos = made ? made(&c, &cos) : cos;
        sin = made ? made(&c, &sin) : sin;
        tn_call call = rope_run(&c, style, &cos, &sin);
        rope_check(&c, &call);
        /* In place. */
        call.out[0] = call.in[0];
        call.out[1] = call.in[1];
        optest_run(&call);
        rope_check(&c, &call);
        rope_grads(&c, &call);
    }
}

START_TEST(ropes)
{
    rope_file("rope", TN_ROPE_HALF, 3, NULL);
    rope_file("rope_partial", TN_ROPE_HALF, 3, NULL);
    rope_file("rope_interleaved", TN_ROPE_INTERLEAVED, 2, NULL);
    rope_file("rope_complex", TN_ROPE_COMPLEX, 3, NULL);
    rope_file("rope_deinterleaved", TN_ROPE_DEINTERLEAVED, 3, NULL);
}
END_TEST

/* The narrow form reads tables of half the width: with golden tables, whose halves are equal, it is the half form. */
static tn_tensor narrow(const optest_case *c, const tn_tensor *table)
{
    tn_tensor t = *table;
    (void)c;
    t.shape[2] /= 2;
    return t;
}

START_TEST(rope_narrow_tables)
{
    rope_file("rope", TN_ROPE_HALF_NARROW, 3, narrow);
}
END_TEST

/* The axis of every frequency is chosen where the tables are made; the rotation itself is the half form. */
static tn_tensor mrope_select(const optest_case *c, const tn_tensor *tables)
{
    tn_tensor section = optest_truth(c, "mrope_section");
    bool interleaved = optest_number(c->file, c->number, "mrope_interleaved") != 0.0;
    tn_tensor t = optest_zeros(TN_F32, 3, tables->shape + 1);
    int64_t width = tables->shape[3], half = width / 2, rows = tn_tensor_count(&t) / width;
    for (int64_t i = 0; i < half; i++) {
        int axis = 0;
        if (interleaved) {
            axis = (int)(i % 3);
            if (axis != 0 && i >= 3 * (int64_t)optest_at(&section, axis))
                axis = 0;
        } else {
            int64_t end = 0;
            for (axis = 0; axis < 2; axis++) {
                end += (int64_t)optest_at(&section, axis);
                if (i < end)
                    break;
            }
        }
        for (int64_t r = 0; r < rows; r++)
            for (int64_t j = i; j < width; j += half)
                optest_set(&t, r * width + j, optest_at(tables, (axis * rows + r) * width + i));
    }
    return t;
}

START_TEST(mropes)
{
    rope_file("mrope", TN_ROPE_HALF, 4, mrope_select);
}
END_TEST

static tn_tensor linear(const tn_tensor *x, const tn_tensor *weight)
{
    tn_site site = optest_site(TN_OP_LINEAR, x->dtype);
    optest_param(&site, TN_ROLE_WEIGHT, weight, 1);
    int64_t shape[TN_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++)
        shape[i] = x->shape[i];
    shape[x->ndim - 1] = weight->shape[0];
    tn_call call = {.op = TN_OP_LINEAR, .site = &site, .in_count = 1, .out_count = 1};
    call.in[0] = *x;
    call.out[0] = optest_zeros(x->dtype, x->ndim, shape);
    optest_threads(&call);
    return call.out[0];
}

static tn_tensor columns(tn_tensor t, int64_t begin, int64_t count)
{
    t.shape[t.ndim - 1] = count;
    t.data = (char *)t.data + (size_t)begin * tn_dtype_size(t.dtype);
    return t;
}

static tn_tensor glu(tn_act act, const tn_tensor *gate, const tn_tensor *up)
{
    tn_site site = optest_site(TN_OP_MLP, gate->dtype);
    site.meaning[TN_AXIS_ACT] = (int32_t)act;
    tn_call call = {.op = TN_OP_GLU, .site = &site, .in_count = 2, .out_count = 1};
    call.in[0] = *gate;
    call.in[1] = *up;
    call.out[0] = optest_zeros(gate->dtype, gate->ndim, gate->shape);
    optest_threads(&call);
    return call.out[0];
}

static tn_tensor linear_by(const optest_case *c, const tn_tensor *x, const char *name)
{
    tn_tensor weight = optest_input(c, name);
    return linear(x, &weight);
}

static void mlp_file(const char *name, tn_act act, bool fused, int cases)
{
    for (optest_case c = optest_cases(name, "x"); optest_next(&c, cases);) {
        tn_tensor x = optest_input(&c, "x"), gate, up;
        if (fused) {
            tn_tensor both = linear_by(&c, &x, "w_gate_up");
            int64_t inter = both.shape[both.ndim - 1] / 2;
            gate = columns(both, 0, inter);
            up = columns(both, inter, inter);
        } else {
            gate = linear_by(&c, &x, "w_gate");
            up = linear_by(&c, &x, "w_up");
        }
        tn_tensor inner = glu(act, &gate, &up), y = linear_by(&c, &inner, "w_down");
        optest_expect(&c, "out", &y);
    }
}

START_TEST(gated_mlps)
{
    mlp_file("swiglu", TN_ACT_SILU, false, 4);
    mlp_file("swiglu_fused", TN_ACT_SILU, true, 3);
    mlp_file("geglu", TN_ACT_GELU_TANH, false, 3);
}
END_TEST

/* The block: router, experts and the shared expert, as the graph composes them. */
static tn_call moe_route(const optest_case *c, const tn_tensor *x)
{
    tn_tensor router = optest_input(c, "router");
    tn_call call = optest_call(TN_OP_MOE_ROUTE, c->dtype, 1, 2);
    tn_site *site = optest_site_of(&call);
    site->meaning[TN_AXIS_SCORE] = TN_SCORE_SOFTMAX;
    site->features = optest_number(c->file, c->number, "norm_topk_prob") != 0.0 ? TN_HAS_RENORM : 0;
    optest_param(site, TN_ROLE_ROUTER, &router, 1);
    int64_t shape[2] = {x->shape[0], (int64_t)optest_number(c->file, c->number, "top_k")};
    call.in[0] = *x;
    call.out[0] = optest_zeros(c->dtype, 2, shape);
    call.out[1] = optest_zeros(TN_I32, 2, shape);
    optest_threads(&call);
    tn_tensor selected = optest_truth(c, "selected");
    for (int64_t t = 0; t < shape[0]; t++)
        for (int64_t j = 0; j < shape[1]; j++) {
            int64_t found = 0;
            for (int64_t i = 0; i < shape[1]; i++)
                found += optest_at(&call.out[1], t * shape[1] + i) == optest_at(&selected, t * shape[1] + j);
            ck_assert_int_eq(found, 1);
        }
    return call;
}

static tn_tensor slice(const tn_tensor *t, int64_t index, int64_t row, int64_t rows)
{
    tn_tensor view = tn_tensor_dense(NULL, t->dtype, 2, (int64_t[]){rows, t->shape[2]});
    view.data = (char *)t->data + (size_t)(index * t->stride[0] + row * t->stride[1]) * tn_dtype_size(t->dtype);
    return view;
}

static tn_tensor moe_experts(const optest_case *c, tn_layout layout, const tn_tensor *x, const tn_call *route)
{
    bool io = layout == TN_LAYOUT_STACKED_IO;
    tn_tensor gate_up = optest_input(c, io ? "gate_up_v4" : "gate_up_v5");
    tn_tensor down = optest_input(c, io ? "down_v4" : "down_v5");
    tn_call call = optest_call(TN_OP_MOE_EXPERTS, x->dtype, 3, 1);
    tn_site *site = optest_site_of(&call);
    site->meaning[TN_AXIS_ACT] = TN_ACT_SILU;
    site->meaning[TN_AXIS_LAYOUT] = (int32_t)layout;
    if (layout == TN_LAYOUT_EXPERT_LIST) {
        tn_tensor gates[64], ups[64], downs[64];
        int64_t experts = gate_up.shape[0], inter = gate_up.shape[1] / 2;
        for (int64_t e = 0; e < experts; e++) {
            gates[e] = slice(&gate_up, e, 0, inter);
            ups[e] = slice(&gate_up, e, inter, inter);
            downs[e] = slice(&down, e, 0, down.shape[1]);
        }
        optest_param(site, TN_ROLE_GATE, gates, experts);
        optest_param(site, TN_ROLE_UP, ups, experts);
        optest_param(site, TN_ROLE_DOWN, downs, experts);
    } else {
        optest_param(site, TN_ROLE_GATE_UP, &gate_up, 1);
        optest_param(site, TN_ROLE_DOWN, &down, 1);
    }
    call.in[0] = *x;
    call.in[1] = route->out[0];
    call.in[2] = route->out[1];
    call.out[0] = optest_zeros(x->dtype, 2, x->shape);
    optest_threads(&call);
    return call.out[0];
}

static void moe_shared(const optest_case *c, const tn_tensor *x, tn_tensor *y)
{
    tn_tensor gate = linear_by(c, x, "shared_gate"), up = linear_by(c, x, "shared_up");
    tn_tensor scale = linear_by(c, x, "shared_expert_gate");
    tn_tensor inner = glu(TN_ACT_SILU, &gate, &up), z = linear_by(c, &inner, "shared_down");
    scale.shape[1] = z.shape[1];
    scale.stride[1] = 0;
    z = glu(TN_ACT_SIGMOID, &scale, &z);
    tn_call add = {.op = TN_OP_ADD, .in_count = 2, .out_count = 1};
    add.in[0] = *y;
    add.in[1] = z;
    add.out[0] = *y;
    optest_run(&add);
}

static void moe_layout(tn_layout layout)
{
    for (optest_case c = optest_cases("moe", "hidden"); optest_next(&c, 6);) {
        tn_tensor x = optest_input(&c, "hidden");
        tn_call route = moe_route(&c, &x);
        tn_tensor y = moe_experts(&c, layout, &x, &route);
        if (optest_has(c.file, c.number, "shared_gate"))
            moe_shared(&c, &x, &y);
        optest_expect(&c, "out", &y);
    }
}

START_TEST(mixtures_of_experts)
{
    moe_layout(TN_LAYOUT_EXPERT_LIST);
    moe_layout(TN_LAYOUT_STACKED_OI);
    moe_layout(TN_LAYOUT_STACKED_IO);
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("eager: golden data", 120);
    suite_add(tc, rms_norms, ropes, rope_narrow_tables, mropes, gated_mlps, mixtures_of_experts);
    return suite_run();
}
