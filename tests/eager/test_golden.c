/* Eager operations against what transformers computes, and their gradients against float64 values (tests/data/ops). */
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const tn_dtype dtypes[] = {TN_F32, TN_BF16, TN_F16};
static const char *const suffixes[] = {"", "_bf16", "_f16"};

static void norm_case(const tn_safetensors *file, int n, tn_norm variant, int d, const char *what)
{
    tn_tensor truth = optest_get(file, n, "out", ""), theirs = optest_get(file, n, "out", suffixes[d]);
    tn_tensor x = optest_get(file, n, "x", ""), weight = optest_get(file, n, "weight", "");
    weight = optest_from(dtypes[d], &weight);
    tn_site site = optest_site(TN_OP_RMS_NORM, dtypes[d]);
    site.meaning[TN_AXIS_NORM] = (int32_t)variant;
    site.num[TN_NUM_EPS] = optest_number(file, n, "eps");
    optest_param(&site, TN_ROLE_WEIGHT, &weight, 1);
    tn_call call = {.op = TN_OP_RMS_NORM, .site = &site, .in_count = 1, .out_count = 1};
    call.in[0] = optest_from(dtypes[d], &x);
    if (variant == TN_NORM_W_GATED) {
        tn_tensor gate = optest_get(file, n, "gate", "");
        call.in[call.in_count++] = optest_from(dtypes[d], &gate);
    }
    call.out[0] = optest_zeros(dtypes[d], x.ndim, x.shape);
    optest_threads(&call);
    optest_golden(&call.out[0], &truth, &theirs, what);
    static const char *const names[] = {"grad_x", "grad_gate"};
    tn_tensor upstream = optest_get(file, n, "grad_out", "");
    tn_grads grads;
    optest_grads(&call, &grads, 0);
    grads.out[0] = optest_from(dtypes[d], &upstream);
    optest_backward_threads(&call);
    for (int i = 0; i < call.in_count; i++) {
        truth = optest_get(file, n, names[i], "");
        optest_golden_grad(&grads.in[i], &truth, names[i]);
    }
    truth = optest_get(file, n, "grad_weight", "");
    optest_golden_grad(grads.param[TN_ROLE_WEIGHT].tensors, &truth, what);
}

static void norm_file(const char *name, tn_norm variant, int cases)
{
    tn_safetensors *file = optest_open(name);
    int n = 0;
    for (; optest_has(file, n, "x"); n++)
        for (int d = 0; d < 3; d++)
            norm_case(file, n, variant, d, name);
    ck_assert_int_eq(n, cases);
    tn_safetensors_close(file);
}

START_TEST(rms_norms)
{
    norm_file("rmsnorm", TN_NORM_W, 5);
    norm_file("rmsnorm_gemma", TN_NORM_1_PLUS_W, 4);
    norm_file("rmsnorm_gated", TN_NORM_W_GATED, 4);
}
END_TEST

/* Golden q and k are [B,heads,T,D]; the contract has tokens before heads, in any strides. */
static void rope_run(tn_rope style, tn_dtype dtype, const tn_tensor *q, const tn_tensor *k, const tn_tensor *cos,
                     const tn_tensor *sin, tn_call *call, tn_site *site)
{
    *site = optest_site(TN_OP_ROPE, dtype);
    site->meaning[TN_AXIS_ROPE] = (int32_t)style;
    *call = (tn_call){.op = TN_OP_ROPE, .site = site, .in_count = 4, .out_count = 2};
    call->in[0] = optest_transpose(optest_from(dtype, q), 1, 2);
    call->in[1] = optest_transpose(optest_from(dtype, k), 1, 2);
    call->in[2] = optest_from(dtype, cos);
    call->in[3] = optest_from(dtype, sin);
    call->out[0] = optest_transpose(optest_zeros(dtype, 4, q->shape), 1, 2);
    call->out[1] = optest_transpose(optest_zeros(dtype, 4, k->shape), 1, 2);
    optest_threads(call);
}

static void rope_check(const tn_safetensors *file, int n, int d, tn_call *call, const char *what)
{
    static const char *const names[] = {"out_q", "out_k"};
    for (int i = 0; i < 2; i++) {
        tn_tensor truth = optest_get(file, n, names[i], ""), theirs = optest_get(file, n, names[i], suffixes[d]);
        tn_tensor got = optest_transpose(call->out[i], 1, 2);
        optest_golden(&got, &truth, &theirs, what);
    }
}

/* Gradients of q and k: in memory of their own, and in that of the upstream gradients. q and k are not read. */
static void rope_grads(const tn_safetensors *file, int n, int d, tn_call *call, const char *what)
{
    static const char *const ups[] = {"grad_out_q", "grad_out_k"}, *const truths[] = {"grad_q", "grad_k"};
    tn_grads grads = {.size = sizeof grads};
    call->grads = &grads;
    for (int in_place = 0; in_place < 2; in_place++) {
        for (int i = 0; i < 2; i++) {
            tn_tensor up = optest_get(file, n, ups[i], "");
            grads.out[i] = optest_transpose(optest_from(dtypes[d], &up), 1, 2);
            grads.in[i] = optest_transpose(optest_zeros(dtypes[d], 4, up.shape), 1, 2);
            call->in[i].data = NULL;
        }
        if (in_place) {
            memcpy(grads.in, grads.out, sizeof grads.in);
            optest_backward(call);
        } else {
            optest_backward_threads(call);
        }
        for (int i = 0; i < 2; i++) {
            tn_tensor truth = optest_get(file, n, truths[i], ""), got = optest_transpose(grads.in[i], 1, 2);
            optest_golden_grad(&got, &truth, what);
        }
    }
    call->grads = NULL;
}

static void rope_file(const char *name, tn_rope style, int cases)
{
    tn_safetensors *file = optest_open(name);
    int n = 0;
    for (; optest_has(file, n, "q"); n++)
        for (int d = 0; d < 3; d++) {
            tn_tensor q = optest_get(file, n, "q", ""), k = optest_get(file, n, "k", "");
            tn_tensor cos = optest_get(file, n, "cos", ""), sin = optest_get(file, n, "sin", "");
            tn_call call;
            tn_site site;
            rope_run(style, dtypes[d], &q, &k, &cos, &sin, &call, &site);
            rope_check(file, n, d, &call, name);
            /* In place. */
            call.out[0] = call.in[0];
            call.out[1] = call.in[1];
            optest_run(&call);
            rope_check(file, n, d, &call, name);
            rope_grads(file, n, d, &call, name);
        }
    ck_assert_int_eq(n, cases);
    tn_safetensors_close(file);
}

START_TEST(ropes)
{
    rope_file("rope", TN_ROPE_HALF, 3);
    rope_file("rope_partial", TN_ROPE_HALF, 3);
    rope_file("rope_interleaved", TN_ROPE_INTERLEAVED, 2);
    rope_file("rope_complex", TN_ROPE_COMPLEX, 3);
    rope_file("rope_deinterleaved", TN_ROPE_DEINTERLEAVED, 3);
}
END_TEST

/* The narrow form reads tables of half the width: with golden tables, whose halves are equal, it is the half form. */
START_TEST(rope_narrow_tables)
{
    tn_safetensors *file = optest_open("rope");
    for (int n = 0; optest_has(file, n, "q"); n++)
        for (int d = 0; d < 3; d++) {
            tn_tensor q = optest_get(file, n, "q", ""), k = optest_get(file, n, "k", "");
            tn_tensor cos = optest_get(file, n, "cos", ""), sin = optest_get(file, n, "sin", "");
            cos.shape[2] /= 2;
            sin.shape[2] /= 2;
            tn_call call;
            tn_site site;
            rope_run(TN_ROPE_HALF_NARROW, dtypes[d], &q, &k, &cos, &sin, &call, &site);
            rope_check(file, n, d, &call, "rope, narrow tables");
            rope_grads(file, n, d, &call, "rope, narrow tables");
        }
    tn_safetensors_close(file);
}
END_TEST

/* The axis of every frequency is chosen where the tables are made; the rotation itself is the half form. */
static tn_tensor mrope_select(const tn_tensor *tables, const tn_tensor *section, bool interleaved)
{
    tn_tensor t = optest_zeros(TN_F32, 3, tables->shape + 1);
    int64_t width = tables->shape[3], half = width / 2, rows = tn_tensor_count(&t) / width;
    for (int64_t i = 0; i < half; i++) {
        int axis = 0;
        if (interleaved) {
            axis = (int)(i % 3);
            if (axis != 0 && i >= 3 * (int64_t)optest_at(section, axis))
                axis = 0;
        } else {
            int64_t end = 0;
            for (axis = 0; axis < 2; axis++) {
                end += (int64_t)optest_at(section, axis);
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
    tn_safetensors *file = optest_open("mrope");
    int n = 0;
    for (; optest_has(file, n, "q"); n++)
        for (int d = 0; d < 3; d++) {
            tn_tensor q = optest_get(file, n, "q", ""), k = optest_get(file, n, "k", "");
            tn_tensor cos = optest_get(file, n, "cos", ""), sin = optest_get(file, n, "sin", "");
            tn_tensor section = optest_get(file, n, "mrope_section", "");
            bool interleaved = optest_number(file, n, "mrope_interleaved") != 0.0;
            cos = mrope_select(&cos, &section, interleaved);
            sin = mrope_select(&sin, &section, interleaved);
            tn_call call;
            tn_site site;
            rope_run(TN_ROPE_HALF, dtypes[d], &q, &k, &cos, &sin, &call, &site);
            rope_check(file, n, d, &call, "mrope");
            rope_grads(file, n, d, &call, "mrope");
        }
    ck_assert_int_eq(n, 4);
    tn_safetensors_close(file);
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

static tn_tensor parameter(const tn_safetensors *file, int n, const char *name, tn_dtype dtype)
{
    tn_tensor t = optest_get(file, n, name, "");
    return optest_from(dtype, &t);
}

static void mlp_file(const char *name, tn_act act, bool fused, int cases)
{
    tn_safetensors *file = optest_open(name);
    int n = 0;
    for (; optest_has(file, n, "x"); n++)
        for (int d = 0; d < 3; d++) {
            tn_tensor x = parameter(file, n, "x", dtypes[d]), gate, up;
            if (fused) {
                tn_tensor weight = parameter(file, n, "w_gate_up", dtypes[d]);
                tn_tensor both = linear(&x, &weight);
                gate = columns(both, 0, weight.shape[0] / 2);
                up = columns(both, weight.shape[0] / 2, weight.shape[0] / 2);
            } else {
                tn_tensor gate_weight = parameter(file, n, "w_gate", dtypes[d]);
                tn_tensor up_weight = parameter(file, n, "w_up", dtypes[d]);
                gate = linear(&x, &gate_weight);
                up = linear(&x, &up_weight);
            }
            tn_tensor inner = glu(act, &gate, &up), down = parameter(file, n, "w_down", dtypes[d]);
            tn_tensor y = linear(&inner, &down);
            tn_tensor truth = optest_get(file, n, "out", ""), theirs = optest_get(file, n, "out", suffixes[d]);
            optest_golden(&y, &truth, &theirs, name);
        }
    ck_assert_int_eq(n, cases);
    tn_safetensors_close(file);
}

START_TEST(gated_mlps)
{
    mlp_file("swiglu", TN_ACT_SILU, false, 4);
    mlp_file("swiglu_fused", TN_ACT_SILU, true, 3);
    mlp_file("geglu", TN_ACT_GELU_TANH, false, 3);
}
END_TEST

/* The block: router, experts and the shared expert, as the graph composes them. */
static void moe_route(const tn_safetensors *file, int n, tn_dtype dtype, const tn_tensor *x, tn_call *call,
                      tn_site *site)
{
    tn_tensor router = parameter(file, n, "router", dtype);
    *site = optest_site(TN_OP_MOE_ROUTE, dtype);
    site->meaning[TN_AXIS_SCORE] = TN_SCORE_SOFTMAX;
    site->features = optest_number(file, n, "norm_topk_prob") != 0.0 ? TN_HAS_RENORM : 0;
    optest_param(site, TN_ROLE_ROUTER, &router, 1);
    int64_t shape[2] = {x->shape[0], (int64_t)optest_number(file, n, "top_k")};
    *call = (tn_call){.op = TN_OP_MOE_ROUTE, .site = site, .in_count = 1, .out_count = 2};
    call->in[0] = *x;
    call->out[0] = optest_zeros(dtype, 2, shape);
    call->out[1] = optest_zeros(TN_I32, 2, shape);
    optest_threads(call);
    tn_tensor selected = optest_get(file, n, "selected", "");
    for (int64_t t = 0; t < shape[0]; t++)
        for (int64_t j = 0; j < shape[1]; j++) {
            int64_t found = 0;
            for (int64_t i = 0; i < shape[1]; i++)
                found += optest_at(&call->out[1], t * shape[1] + i) == optest_at(&selected, t * shape[1] + j);
            ck_assert_int_eq(found, 1);
        }
}

static tn_tensor slice(const tn_tensor *t, int64_t index, int64_t row, int64_t rows)
{
    tn_tensor view = tn_tensor_dense(NULL, t->dtype, 2, (int64_t[]){rows, t->shape[2]});
    view.data = (char *)t->data + (size_t)(index * t->stride[0] + row * t->stride[1]) * tn_dtype_size(t->dtype);
    return view;
}

static tn_tensor moe_experts(const tn_safetensors *file, int n, tn_layout layout, const tn_tensor *x,
                             const tn_call *route)
{
    bool io = layout == TN_LAYOUT_STACKED_IO;
    tn_tensor gate_up = parameter(file, n, io ? "gate_up_v4" : "gate_up_v5", x->dtype);
    tn_tensor down = parameter(file, n, io ? "down_v4" : "down_v5", x->dtype);
    tn_site site = optest_site(TN_OP_MOE_EXPERTS, x->dtype);
    site.meaning[TN_AXIS_ACT] = TN_ACT_SILU;
    site.meaning[TN_AXIS_LAYOUT] = (int32_t)layout;
    if (layout == TN_LAYOUT_EXPERT_LIST) {
        tn_tensor gates[64], ups[64], downs[64];
        int64_t experts = gate_up.shape[0], inter = gate_up.shape[1] / 2;
        for (int64_t e = 0; e < experts; e++) {
            gates[e] = slice(&gate_up, e, 0, inter);
            ups[e] = slice(&gate_up, e, inter, inter);
            downs[e] = slice(&down, e, 0, down.shape[1]);
        }
        optest_param(&site, TN_ROLE_GATE, gates, experts);
        optest_param(&site, TN_ROLE_UP, ups, experts);
        optest_param(&site, TN_ROLE_DOWN, downs, experts);
    } else {
        optest_param(&site, TN_ROLE_GATE_UP, &gate_up, 1);
        optest_param(&site, TN_ROLE_DOWN, &down, 1);
    }
    tn_call call = {.op = TN_OP_MOE_EXPERTS, .site = &site, .in_count = 3, .out_count = 1};
    call.in[0] = *x;
    call.in[1] = route->out[0];
    call.in[2] = route->out[1];
    call.out[0] = optest_zeros(x->dtype, 2, x->shape);
    optest_threads(&call);
    return call.out[0];
}

static void moe_shared(const tn_safetensors *file, int n, const tn_tensor *x, tn_tensor *y)
{
    tn_tensor w_gate = parameter(file, n, "shared_gate", x->dtype), w_up = parameter(file, n, "shared_up", x->dtype);
    tn_tensor w_down = parameter(file, n, "shared_down", x->dtype);
    tn_tensor w_scale = parameter(file, n, "shared_expert_gate", x->dtype);
    tn_tensor gate = linear(x, &w_gate), up = linear(x, &w_up), scale = linear(x, &w_scale);
    tn_tensor inner = glu(TN_ACT_SILU, &gate, &up), z = linear(&inner, &w_down);
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
    tn_safetensors *file = optest_open("moe");
    int n = 0;
    for (; optest_has(file, n, "hidden"); n++)
        for (int d = 0; d < 3; d++) {
            tn_tensor x = parameter(file, n, "hidden", dtypes[d]);
            tn_call route;
            tn_site site;
            moe_route(file, n, dtypes[d], &x, &route, &site);
            tn_tensor y = moe_experts(file, n, layout, &x, &route);
            if (optest_has(file, n, "shared_gate"))
                moe_shared(file, n, &x, &y);
            tn_tensor truth = optest_get(file, n, "out", ""), theirs = optest_get(file, n, "out", suffixes[d]);
            optest_golden(&y, &truth, &theirs, "moe");
        }
    ck_assert_int_eq(n, 6);
    tn_safetensors_close(file);
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
    TCase *tc = suite_open("eager: golden data", 120);
    tcase_add_checked_fixture(tc, optest_setup, optest_teardown);
    suite_add(tc, rms_norms, ropes, rope_narrow_tables, mropes, gated_mlps, mixtures_of_experts);
    return suite_run();
}
