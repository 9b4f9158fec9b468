/* MLP as eager mode composes it, against float64 values (tests/data/ops): gradients, and forward with Gaussian top-k
 * sparsity. */
#include "optest.h"
#include "suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

/* The number that a standard normal variable is below with probability p: the root of a monotonous function. */
static double quantile(double p)
{
    double low = -10.0, high = 10.0;
    for (int i = 0; i < 200; i++) {
        double middle = (low + high) / 2.0;
        if (0.5 * erfc(-middle / sqrt(2.0)) < p)
            low = middle;
        else
            high = middle;
    }
    return low;
}

typedef struct golden {
    const char *name;
    tn_act act;
    int cases;
} golden;

static const golden goldens[] = {{"swiglu", TN_ACT_SILU, 4},
                                 {"swiglu_fused", TN_ACT_SILU, 3},
                                 {"geglu", TN_ACT_GELU_TANH, 3},
                                 {"geglu_gaussian_topk", TN_ACT_GELU_TANH, 3}};

static const struct {
    tn_role role;
    const char *name, *grad;
} params[] = {{TN_ROLE_GATE, "w_gate", "grad_w_gate"},
              {TN_ROLE_UP, "w_up", "grad_w_up"},
              {TN_ROLE_GATE_UP, "w_gate_up", "grad_w_gate_up"},
              {TN_ROLE_DOWN, "w_down", "grad_w_down"}};

/* A tensor of the case, leading dimensions folded. */
static tn_tensor matrix(const optest_case *c, const char *name)
{
    tn_tensor t = optest_input(c, name);
    int64_t width = t.shape[t.ndim - 1];
    return tn_tensor_dense(t.data, t.dtype, 2, (int64_t[]){tn_tensor_count(&t) / width, width});
}

static tn_call golden_call(const optest_case *c, const golden *g)
{
    tn_call call = optest_call(TN_OP_MLP, c->dtype, 1, 1);
    tn_site *site = optest_site_of(&call);
    for (size_t i = 0; i < sizeof params / sizeof *params; i++)
        if (optest_has(c->file, c->number, params[i].name)) {
            tn_tensor t = matrix(c, params[i].name);
            optest_param(site, params[i].role, &t, 1);
        }
    site->meaning[TN_AXIS_ACT] = (int32_t)g->act;
    site->meaning[TN_AXIS_LAYOUT] = site->param[TN_ROLE_GATE].count ? TN_LAYOUT_SPLIT : TN_LAYOUT_GATE_UP;
    site->dim[TN_DIM_HIDDEN] = site->param[TN_ROLE_DOWN].tensors->shape[0];
    site->dim[TN_DIM_INTER] = site->param[TN_ROLE_DOWN].tensors->shape[1];
    if (optest_has(c->file, c->number, "sparsity")) {
        site->features |= TN_HAS_SPARSITY;
        site->num[TN_NUM_SPARSITY] = quantile(optest_number(c->file, c->number, "sparsity"));
    }
    call.in[0] = matrix(c, "x");
    call.out[0] = optest_zeros(c->dtype, 2, call.in[0].shape);
    return call;
}

static double dot(const tn_tensor *x, int64_t t, const tn_tensor *w, int64_t i)
{
    int64_t width = x->shape[1];
    double sum = 0.0;
    for (int64_t k = 0; k < width; k++)
        sum += optest_at(x, t * width + k) * optest_at(w, i * width + k);
    return sum;
}

/* Is every gate farther from its row's cut than the roundings on the way to both? Gate, mean, deviation, quantile, the
 * last two's product, cut and difference are rounded, each by at most eps of what is the largest number in sight. A
 * gate that is nearer may pass or not, and its gradient with it. */
static bool decided(const tn_call *call, double eps)
{
    const tn_tensor *w = call->site->param[TN_ROLE_GATE].tensors;
    int64_t inter = w->shape[0];
    double *gate = malloc((size_t)inter * sizeof *gate), z = call->site->num[TN_NUM_SPARSITY];
    bool clear = true;
    ck_assert_ptr_nonnull(gate);
    for (int64_t t = 0; t < call->in[0].shape[0]; t++) {
        double mean = 0.0, variance = 0.0;
        for (int64_t i = 0; i < inter; i++)
            mean += (gate[i] = dot(&call->in[0], t, w, i)) / (double)inter;
        for (int64_t i = 0; i < inter; i++)
            variance += (gate[i] - mean) * (gate[i] - mean) / (double)inter;
        double cut = mean + z * sqrt(variance), large = fabs(mean) + fabs(z) * sqrt(variance);
        for (int64_t i = 0; i < inter; i++)
            clear = clear && fabs(gate[i] - cut) > 7.0 * eps * fmax(fabs(gate[i]), large);
    }
    free(gate);
    return clear;
}

/* The rule for gradients, with forward's own error for eps where that is larger. */
static void golden_gradient(const optest_case *c, const char *name, const tn_tensor *got, double forward)
{
    tn_tensor truth = optest_truth(c, name);
    if (forward == 0.0)
        optest_expect_grad(c, name, got);
    else if (optest_error(got, &truth) > 4.0 * fmax(forward, optest_epsilon(got->dtype)))
        ck_abort_msg("%s, %d.%s: relative rms error %.4g, forward has %.4g", c->op, c->number, name,
                     optest_error(got, &truth), forward);
}

START_TEST(golden_gradients)
{
    const golden *g = &goldens[_i];
    int held = 0;
    for (optest_case c = optest_cases(g->name, "x"); optest_next(&c, g->cases);) {
        tn_call call = golden_call(&c, g);
        bool sparse = call.site->features & TN_HAS_SPARSITY;
        if (sparse && !decided(&call, optest_epsilon(c.dtype)))
            continue;
        held++;
        tn_grads *grads = optest_grads(&call, 1);
        grads->out[0] = matrix(&c, "grad_out");
        optest_composed(&call);
        /* A cut is rounded in proportion to itself, what passes it is smaller: transformers' result shows by how much
         * more than eps that changes it, and gradients are of the same numbers. */
        tn_tensor truth = optest_truth(&c, "out"), theirs = optest_theirs(&c, "out");
        double forward = sparse && c.dtype != TN_F32 ? optest_error(&theirs, &truth) : 0.0;
        golden_gradient(&c, "grad_x", &grads->in[0], forward);
        for (size_t i = 0; i < sizeof params / sizeof *params; i++)
            if (call.site->param[params[i].role].count)
                golden_gradient(&c, params[i].grad, grads->param[params[i].role].tensors, forward);
    }
    if (_i == 3)
        ck_assert_int_gt(held, g->cases); /* f32 and some of the others                          */
    else
        ck_assert_int_eq(held, 3 * g->cases);
}
END_TEST

START_TEST(sparse_forward)
{
    const golden *g = &goldens[3];
    for (optest_case c = optest_cases(g->name, "x"); optest_next(&c, g->cases);) {
        tn_call call = golden_call(&c, g);
        optest_composed(&call);
        optest_expect(&c, "out", &call.out[0]);
        /* Eager rounds where transformers does; only the order of f32 sums may differ. Where that changes a rounding
         * the sum lies between two numbers, as far from one as from the other, to within the inner size times 2^-24:
         * the error keeps its size and changes its sign. With at most 104 terms that happens to fewer than
         * 104 2^-24 / eps = 1.3 % of the values (f16), whose errors' products with the others' then differ. */
        tn_tensor truth = optest_truth(&c, "out"), theirs = optest_theirs(&c, "out");
        if (c.dtype != TN_F32)
            ck_assert_double_le(optest_error(&call.out[0], &truth), 1.013 * optest_error(&theirs, &truth));
    }
}
END_TEST

int main(void)
{
    TCase *tc = optest_suite("eager: gradients of MLP", 120);
    tcase_add_loop_test(tc, golden_gradients, 0, (int)(sizeof goldens / sizeof *goldens));
    suite_add(tc, sparse_forward);
    return suite_run();
}
