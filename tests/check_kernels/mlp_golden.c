/* Golden operations that are gated MLPs. */
#include "mlp.h"

#include <math.h>
#include <string.h>

/* The golden operations: their names, and which MLPs they are. */
static const struct golden_op {
    const char *name;
    tn_layout layout;
    tn_act act;
    bool sparse;
} ops[] = {
    {"swiglu", TN_LAYOUT_SPLIT, TN_ACT_SILU, false},
    {"swiglu_fused", TN_LAYOUT_GATE_UP, TN_ACT_SILU, false},
    {"geglu", TN_LAYOUT_SPLIT, TN_ACT_GELU_TANH, false},
    {"geglu_gaussian_topk", TN_LAYOUT_SPLIT, TN_ACT_GELU_TANH, true},
};

/* x with this fraction of the standard normal distribution below it, by bisection. */
static double normal_quantile(double fraction)
{
    double low = -40, high = 40;
    for (int i = 0; i < 100; i++) {
        double x = (low + high) / 2;
        if (0.5 * erfc(-x / sqrt(2)) < fraction)
            low = x;
        else
            high = x;
    }
    return low;
}

/* A weight and its gradient from tensors "w_name" and "grad_w_name". False: there is no such weight. */
static bool weight(check_case *c, tn_role role, const tn_safetensors *file, int64_t n, const char *name)
{
    tn_tensor w;
    if (!golden_get(file, n, name, &w) || w.ndim != 2)
        return false;
    golden_copy(case_param(c, role, 1, (tn_dtype)c->site.meaning[TN_AXIS_DTYPE], 2, w.shape), &w);
    return true;
}

static void weight_gradient(check_case *c, tn_role role, const tn_safetensors *file, int64_t n, const char *name)
{
    tn_tensor g;
    if (c->site.param[role].count && golden_get(file, n, name, &g))
        golden_grad_param(c, role, 0, &g);
}

static bool weights(check_case *c, bool split, const tn_safetensors *file, int64_t n)
{
    if (!weight(c, TN_ROLE_DOWN, file, n, "w_down"))
        return false;
    if (!split)
        return weight(c, TN_ROLE_GATE_UP, file, n, "w_gate_up");
    return weight(c, TN_ROLE_GATE, file, n, "w_gate") && weight(c, TN_ROLE_UP, file, n, "w_up");
}

bool mlp_golden(check_state *s, const char *op, const tn_safetensors *file, int64_t n, tn_dtype dtype)
{
    static const char *const names[] = {"out"};
    const struct golden_op *g = NULL;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (!strcmp(op, ops[i].name))
            g = &ops[i];
    tn_tensor x, dy, dx;
    if (!g || !golden_get(file, n, "x", &x))
        return false;
    check_case c;
    random_state r = {1};
    case_init(&c, "npu_fused_swiglu", TN_OP_MLP, dtype);
    if (!weights(&c, g->layout == TN_LAYOUT_SPLIT, file, n)) {
        case_free(&c);
        return false;
    }
    const int64_t *down = c.site.param[TN_ROLE_DOWN].tensors->shape;
    c.site.meaning[TN_AXIS_ACT] = (int32_t)g->act;
    c.site.meaning[TN_AXIS_LAYOUT] = (int32_t)g->layout;
    c.site.features = g->sparse ? TN_HAS_SPARSITY : 0;
    c.site.num[TN_NUM_SPARSITY] = g->sparse ? normal_quantile(golden_number(file, n, "sparsity", 0.5)) : 0;
    c.site.dim[TN_DIM_HIDDEN] = down[0];
    c.site.dim[TN_DIM_INTER] = down[1];
    int64_t folded[] = {down[0] ? tn_tensor_count(&x) / down[0] : 0, down[0]};
    golden_copy(case_in(&c, dtype, 2, folded, NULL), &x);
    case_out(&c, dtype, 2, folded, NULL);
    if (golden_get(file, n, "grad_out", &dy) && golden_get(file, n, "grad_x", &dx)) {
        case_grads(&c, &r);
        golden_upstream(&c, 0, &dy);
        golden_grad_in(&c, 0, &dx);
        weight_gradient(&c, TN_ROLE_GATE, file, n, "grad_w_gate");
        weight_gradient(&c, TN_ROLE_UP, file, n, "grad_w_up");
        weight_gradient(&c, TN_ROLE_GATE_UP, file, n, "grad_w_gate_up");
        weight_gradient(&c, TN_ROLE_DOWN, file, n, "grad_w_down");
    }
    golden_run(s, &c, file, n, names);
    return true;
}
