/* Gradients of MOE_BLOCK as eager mode composes it, against the float64 values of tests/data/ops in all layouts of
 * experts, with and without a shared expert. */
#include "device/device.h"
#include "eager/eager.h"
#include "run/run.h"
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <string.h>

static const tn_layout layouts[] = {TN_LAYOUT_STACKED_OI, TN_LAYOUT_STACKED_IO, TN_LAYOUT_EXPERT_LIST};

/* Expert e of a stack, from this row on. */
static tn_tensor slice(const tn_tensor *stack, int64_t e, int64_t row, int64_t rows)
{
    tn_tensor t = *stack;
    t.ndim = 2;
    t.shape[0] = rows;
    t.shape[1] = stack->shape[2];
    t.stride[0] = stack->stride[1];
    t.stride[1] = 1;
    t.data = (char *)t.data + (size_t)(e * stack->stride[0] + row * stack->stride[1]) * tn_dtype_size(t.dtype);
    return t;
}

/* The experts' parameters, or their gradients, as views of two stacks. */
static void set_experts(tn_site *site, const tn_tensor *gate_up, const tn_tensor *down)
{
    int64_t experts = down->shape[0];
    tn_tensor gate[16], up[16], downs[16];
    if (site->meaning[TN_AXIS_LAYOUT] != TN_LAYOUT_EXPERT_LIST) {
        optest_param(site, TN_ROLE_GATE_UP, gate_up, 1);
        optest_param(site, TN_ROLE_DOWN, down, 1);
        return;
    }
    int64_t inter = gate_up->shape[1] / 2;
    for (int64_t e = 0; e < experts; e++) {
        gate[e] = slice(gate_up, e, 0, inter);
        up[e] = slice(gate_up, e, inter, inter);
        downs[e] = slice(down, e, 0, down->shape[1]);
    }
    optest_param(site, TN_ROLE_GATE, gate, experts);
    optest_param(site, TN_ROLE_UP, up, experts);
    optest_param(site, TN_ROLE_DOWN, downs, experts);
}

static const struct {
    tn_role role;
    const char *name, *grad;
} shared[] = {{TN_ROLE_SHARED_GATE, "shared_gate", "grad_shared_gate"},
              {TN_ROLE_SHARED_UP, "shared_up", "grad_shared_up"},
              {TN_ROLE_SHARED_DOWN, "shared_down", "grad_shared_down"},
              {TN_ROLE_SHARED_EXPERT_GATE, "shared_expert_gate", "grad_shared_expert_gate"}};

typedef struct block {
    tn_call call;
    tn_site *site;
    tn_grads *grads;
    tn_tensor dgate_up, ddown; /* the stacks that gradients lie in                                */
} block;

static void block_make(const optest_case *c, tn_layout layout, block *b)
{
    bool io = layout == TN_LAYOUT_STACKED_IO;
    tn_tensor gate_up = optest_input(c, io ? "gate_up_v4" : "gate_up_v5");
    tn_tensor down = optest_input(c, io ? "down_v4" : "down_v5"), router = optest_input(c, "router");
    b->call = optest_call(TN_OP_MOE_BLOCK, c->dtype, 1, 1);
    b->site = optest_site_of(&b->call);
    b->site->meaning[TN_AXIS_ACT] = TN_ACT_SILU;
    b->site->meaning[TN_AXIS_SCORE] = TN_SCORE_SOFTMAX;
    b->site->meaning[TN_AXIS_LAYOUT] = (int32_t)layout;
    b->site->features = optest_number(c->file, c->number, "norm_topk_prob") != 0.0 ? TN_HAS_RENORM : 0;
    b->site->dim[TN_DIM_EXPERTS] = down.shape[0];
    b->site->dim[TN_DIM_TOP_K] = (int64_t)optest_number(c->file, c->number, "top_k");
    b->site->dim[TN_DIM_INTER] = down.shape[io ? 1 : 2];
    set_experts(b->site, &gate_up, &down);
    optest_param(b->site, TN_ROLE_ROUTER, &router, 1);
    for (size_t i = 0; optest_has(c->file, c->number, "shared_gate") && i < sizeof shared / sizeof *shared; i++) {
        tn_tensor t = optest_input(c, shared[i].name);
        optest_param(b->site, shared[i].role, &t, 1);
        b->site->features |= TN_HAS_SHARED_EXPERT | TN_HAS_SHARED_GATE;
        b->site->dim[TN_DIM_SHARED_INTER] = i ? b->site->dim[TN_DIM_SHARED_INTER] : t.shape[0];
    }
    b->call.in[0] = optest_input(c, "hidden");
    b->call.out[0] = optest_zeros(c->dtype, 2, b->call.in[0].shape);
    b->grads = optest_grads(&b->call, 1);
    b->dgate_up = optest_zeros(c->dtype, 3, gate_up.shape);
    b->ddown = optest_zeros(c->dtype, 3, down.shape);
    tn_site holder = *b->site;
    set_experts(&holder, &b->dgate_up, &b->ddown);
    for (int role = TN_ROLE_GATE; role <= TN_ROLE_GATE_UP; role++)
        b->grads->param[role] = holder.param[role];
}

/* With an arena of exactly the size that measuring says. */
static tn_status backward(const tn_call *call, tn_error *err)
{
    arena a;
    ck_assert_int_eq(arena_init(&a, &cpu_device, 0, NULL), TN_OK);
    ck_assert_int_eq(run_eager_backward(&cpu_device, &a, call, NULL), TN_OK);
    size_t size = a.peak;
    arena_close(&a);
    ck_assert_int_eq(arena_init(&a, &cpu_device, size, NULL), TN_OK);
    memset(a.base, 0xff, a.size);
    tn_status status = run_eager_backward(&cpu_device, &a, call, err);
    ck_assert_uint_eq(a.used, 0);
    arena_close(&a);
    return status;
}

START_TEST(golden_gradients)
{
    for (optest_case c = optest_cases("moe", "hidden"); optest_next(&c, 6);) {
        bool io = layouts[_i] == TN_LAYOUT_STACKED_IO;
        block b;
        block_make(&c, layouts[_i], &b);
        tn_tensor first = b.grads->in[0];
        b.grads->out[0] = optest_input(&c, "grad_out");
        for (int threads = 1; threads <= 3; threads++) {
            tn_error err = TN_ERROR_INIT;
            threads_set(threads);
            b.grads->in[0] = optest_zeros(c.dtype, 2, first.shape);
            ck_assert_msg(backward(&b.call, &err) == TN_OK, "%s", err.message);
            first = threads == 1 ? b.grads->in[0] : first;
            optest_close(&b.grads->in[0], &first, 0.0, 0.0, "threads");
        }
        optest_expect_grad(&c, "grad_hidden", &b.grads->in[0]);
        optest_expect_grad(&c, "grad_router", b.grads->param[TN_ROLE_ROUTER].tensors);
        optest_expect_grad(&c, io ? "grad_gate_up_v4" : "grad_gate_up_v5", &b.dgate_up);
        optest_expect_grad(&c, io ? "grad_down_v4" : "grad_down_v5", &b.ddown);
        for (size_t i = 0; b.site->features & TN_HAS_SHARED_EXPERT && i < sizeof shared / sizeof *shared; i++)
            optest_expect_grad(&c, shared[i].grad, b.grads->param[shared[i].role].tensors);
    }
}
END_TEST

/* Without its sigmoid gate a shared expert adds exactly the gradients of its MLP; and what is not wanted is left out.
 */
START_TEST(shared_expert_without_gate)
{
    for (optest_case c = optest_cases("moe", "hidden"); optest_next(&c, 6);) {
        if (c.number != 3)
            continue;
        block with, without, mlp;
        block_make(&c, TN_LAYOUT_STACKED_OI, &with);
        block_make(&c, TN_LAYOUT_STACKED_OI, &without);
        block_make(&c, TN_LAYOUT_STACKED_OI, &mlp);
        with.site->features &= ~TN_HAS_SHARED_GATE;
        without.site->features &= ~(TN_HAS_SHARED_GATE | TN_HAS_SHARED_EXPERT);
        mlp.call.op = mlp.site->op = TN_OP_MLP;
        mlp.site->meaning[TN_AXIS_LAYOUT] = TN_LAYOUT_SPLIT;
        mlp.site->features = 0;
        mlp.site->dim[TN_DIM_INTER] = mlp.site->dim[TN_DIM_SHARED_INTER];
        for (int i = 0; i < 3; i++) {
            mlp.site->param[TN_ROLE_GATE + i] = mlp.site->param[TN_ROLE_SHARED_GATE + i];
            mlp.grads->param[TN_ROLE_GATE + i] = mlp.grads->param[TN_ROLE_SHARED_GATE + i];
        }
        const tn_call *calls[] = {&with.call, &without.call, &mlp.call};
        for (int i = 0; i < 3; i++) {
            tn_error err = TN_ERROR_INIT;
            ck_assert_msg(backward(calls[i], &err) == TN_OK, "%s", err.message);
        }
        tn_tensor sum = optest_zeros(c.dtype, 2, with.grads->in[0].shape);
        for (int64_t i = 0; i < tn_tensor_count(&sum); i++)
            optest_set(&sum, i, optest_at(&without.grads->in[0], i) + optest_at(&mlp.grads->in[0], i));
        optest_close(&with.grads->in[0], &sum, 0.0, 0.0, "x");
        for (int i = 0; i < 3; i++)
            optest_close(with.grads->param[TN_ROLE_SHARED_GATE + i].tensors, mlp.grads->param[TN_ROLE_GATE + i].tensors,
                         0.0, 0.0, "shared expert");
        tn_tensor wanted = with.grads->in[0];
        with.grads->in[0].data = NULL;
        with.grads->param[TN_ROLE_SHARED_UP].count = with.grads->param[TN_ROLE_ROUTER].count = 0;
        tn_tensor down = optest_from(c.dtype, &with.ddown);
        memset(with.ddown.data, 0x11, (size_t)tn_tensor_count(&down) * tn_dtype_size(c.dtype));
        memset(wanted.data, 0, (size_t)tn_tensor_count(&wanted) * tn_dtype_size(c.dtype));
        ck_assert_int_eq(backward(&with.call, NULL), TN_OK);
        optest_close(&with.ddown, &down, 0.0, 0.0, "down");
        optest_expect_zero(&wanted);
    }
}
END_TEST

/* The same tensor at an odd address, its rows apart. */
static tn_tensor awkward(const tn_tensor *t)
{
    int64_t shape[3];
    for (int32_t i = 0; i < t->ndim; i++)
        shape[i] = t->shape[i] + (i + 1 == t->ndim ? 3 : 0);
    shape[0]++; /* room for the last byte                                                         */
    tn_tensor view = optest_zeros(t->dtype, t->ndim, shape);
    view.data = (char *)view.data + 1;
    for (int32_t i = 0; i < t->ndim; i++)
        view.shape[i] = t->shape[i];
    for (int64_t i = 0; i < tn_tensor_count(t); i++)
        optest_set(&view, i, optest_at(t, i));
    return view;
}

static void awkward_params(tn_param *params)
{
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < params[role].count; i++)
            ((tn_tensor *)(uintptr_t)params[role].tensors)[i] = awkward(&params[role].tensors[i]);
}

START_TEST(any_address_and_stride)
{
    for (optest_case c = optest_cases("moe", "hidden"); optest_next(&c, 6);) {
        if (c.number != 3)
            continue;
        block b, odd;
        block_make(&c, layouts[_i], &b);
        block_make(&c, layouts[_i], &odd);
        ck_assert_int_eq(backward(&b.call, NULL), TN_OK);
        odd.call.in[0] = awkward(&odd.call.in[0]);
        odd.grads->in[0] = awkward(&odd.grads->in[0]);
        odd.grads->out[0] = awkward(&odd.grads->out[0]);
        awkward_params(odd.site->param);
        awkward_params(odd.grads->param);
        tn_error err = TN_ERROR_INIT;
        ck_assert_msg(backward(&odd.call, &err) == TN_OK, "%s", err.message);
        /* Rows apart go to other routines of oneDNN, which may add in another order. */
        double close = c.dtype == TN_F32 ? 1e-6 : c.dtype == TN_BF16 ? 0x1p-7 : 0x1p-10;
        optest_close(&odd.grads->in[0], &b.grads->in[0], close, close, "x");
        for (int role = 0; role < TN_ROLE_MAX; role++)
            for (int64_t i = 0; i < b.grads->param[role].count; i++)
                optest_close(&odd.grads->param[role].tensors[i], &b.grads->param[role].tensors[i], close, close,
                             "param");
    }
}
END_TEST

START_TEST(bad_scores_name_the_token)
{
    for (optest_case c = optest_cases("moe", "hidden"); optest_next(&c, 6);) {
        if (c.number != 3 || c.dtype != TN_BF16)
            continue;
        block b;
        block_make(&c, TN_LAYOUT_EXPERT_LIST, &b);
        optest_set(&b.call.in[0], 5 * b.call.in[0].shape[1] + 2, (double)NAN);
        tn_error err = TN_ERROR_INIT;
        ck_assert_int_eq(backward(&b.call, &err), TN_E_INPUT);
        suite_expect_in(err.message, "token 5 ");
        optest_expect_zero(&b.ddown);
    }
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("eager: gradients of blocks of experts", 120);
    tcase_add_loop_test(tc, golden_gradients, 0, 3);
    suite_add(tc, shared_expert_without_gate);
    tcase_add_loop_test(tc, any_address_and_stride, 0, 3);
    suite_add(tc, bad_scores_name_the_token);
    return suite_run();
}
