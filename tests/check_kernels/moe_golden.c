/* MOE_BLOCK against transformers: the golden stacks in their own layouts, and as lists. */
#include "moe_case.h"

#include <stdio.h>
#include <string.h>

check_case moe_open_case(tn_op op, tn_layout layout, tn_dtype dtype, const moe_shape *s)
{
    check_case c;
    case_init(&c, "npu_fused_moe", op, dtype);
    c.site.meaning[TN_AXIS_LAYOUT] = layout;
    c.site.meaning[TN_AXIS_ACT] = s->act ? (int32_t)s->act : TN_ACT_SILU;
    c.site.features = s->features;
    c.site.dim[TN_DIM_HIDDEN] = s->hidden;
    c.site.dim[TN_DIM_INTER] = s->inter;
    c.site.dim[TN_DIM_EXPERTS] = s->experts;
    c.site.dim[TN_DIM_TOP_K] = s->top_k;
    snprintf(c.what, sizeof c.what,
             "tokens %lld, %lld of %lld experts %lld -> %lld, gap %lld, ids %d, shared %lld, score %d, features %llx",
             (long long)s->tokens, (long long)s->top_k, (long long)s->experts, (long long)s->hidden,
             (long long)s->inter, (long long)s->gap, (int)s->ids, (long long)s->shared, (int)s->score,
             (unsigned long long)s->features);
    return c;
}

/* Rows first .. first + rows - 1 of matrix e of a stack. */
static tn_tensor slice(const tn_tensor *stack, int64_t e, int64_t first, int64_t rows)
{
    tn_tensor t = tn_tensor_dense(NULL, stack->dtype, 2, (int64_t[]){rows, stack->shape[2]});
    t.data =
        (char *)stack->data + (size_t)(e * stack->stride[0] + first * stack->stride[1]) * tn_dtype_size(stack->dtype);
    return t;
}

/* A stack of the golden as a parameter, and its gradient. */
static void golden_stack(check_case *c, tn_role role, const tn_tensor *stack, const tn_tensor *gradient)
{
    golden_copy((tn_tensor *)c->site.param[role].tensors, stack);
    golden_grad_param(c, role, 0, gradient);
}

static void golden_list(check_case *c, tn_role role, const tn_tensor *stack, const tn_tensor *gradient, int64_t first)
{
    int64_t rows = c->site.param[role].tensors[0].shape[0];
    for (int64_t e = 0; e < stack->shape[0]; e++) {
        tn_tensor part = slice(stack, e, first, rows), grad = slice(gradient, e, first, rows);
        golden_copy((tn_tensor *)&c->site.param[role].tensors[e], &part);
        golden_grad_param(c, role, e, &grad);
    }
}

static const struct {
    const char *name, *gradient;
    tn_role role;
} golden_shared[] = {{"shared_gate", "grad_shared_gate", TN_ROLE_SHARED_GATE},
                     {"shared_up", "grad_shared_up", TN_ROLE_SHARED_UP},
                     {"shared_down", "grad_shared_down", TN_ROLE_SHARED_DOWN},
                     {"shared_expert_gate", "grad_shared_expert_gate", TN_ROLE_SHARED_EXPERT_GATE}};

/* What a case of the golden says, with room for its tensors. */
static check_case golden_open(const tn_safetensors *file, int64_t n, tn_dtype dtype, tn_layout layout,
                              const tn_tensor *hidden, const tn_tensor *router, const tn_tensor *down)
{
    const moe_shape sh = {.tokens = hidden->shape[0],
                          .hidden = hidden->shape[1],
                          .inter = down->shape[layout == TN_LAYOUT_STACKED_IO ? 1 : 2],
                          .experts = router->shape[0],
                          .top_k = (int64_t)golden_number(file, n, "top_k", 1)};
    int64_t e = sh.experts, i = sh.inter, h = sh.hidden;
    check_case c = moe_open_case(TN_OP_MOE_BLOCK, layout, dtype, &sh);
    c.site.meaning[TN_AXIS_SCORE] = TN_SCORE_SOFTMAX;
    c.site.features = golden_number(file, n, "norm_topk_prob", 0) != 0 ? TN_HAS_RENORM : 0;
    if (layout == TN_LAYOUT_EXPERT_LIST) {
        case_param(&c, TN_ROLE_GATE, e, dtype, 2, (int64_t[]){i, h});
        case_param(&c, TN_ROLE_UP, e, dtype, 2, (int64_t[]){i, h});
        case_param(&c, TN_ROLE_DOWN, e, dtype, 2, (int64_t[]){h, i});
    } else {
        bool io = layout == TN_LAYOUT_STACKED_IO;
        case_param(&c, TN_ROLE_GATE_UP, 1, dtype, 3, (int64_t[]){e, io ? h : 2 * i, io ? 2 * i : h});
        case_param(&c, TN_ROLE_DOWN, 1, dtype, 3, (int64_t[]){e, io ? i : h, io ? h : i});
    }
    golden_copy(case_param(&c, TN_ROLE_ROUTER, 1, dtype, 2, router->shape), router);
    for (int j = 0; j < 4; j++) {
        tn_tensor t;
        if (!golden_get(file, n, golden_shared[j].name, &t))
            continue;
        c.site.features |= TN_HAS_SHARED_EXPERT | (j == 3 ? TN_HAS_SHARED_GATE : 0);
        c.site.dim[TN_DIM_SHARED_INTER] = j == 0 ? t.shape[0] : c.site.dim[TN_DIM_SHARED_INTER];
        golden_copy(case_param(&c, golden_shared[j].role, 1, dtype, 2, t.shape), &t);
    }
    golden_copy(case_in(&c, dtype, 2, hidden->shape, NULL), hidden);
    case_out(&c, dtype, 2, hidden->shape, NULL);
    return c;
}

static bool golden_block(check_state *s, const tn_safetensors *file, int64_t n, tn_dtype dtype, tn_layout layout)
{
    static const char *const names[] = {"out"};
    bool io = layout == TN_LAYOUT_STACKED_IO;
    tn_tensor hidden, router, both, down, up, dx, dboth, ddown, drouter, t;
    if (!golden_get(file, n, "hidden", &hidden) || !golden_get(file, n, "router", &router) ||
        !golden_get(file, n, io ? "gate_up_v4" : "gate_up_v5", &both) ||
        !golden_get(file, n, io ? "down_v4" : "down_v5", &down) || !golden_get(file, n, "grad_out", &up) ||
        !golden_get(file, n, "grad_hidden", &dx) || !golden_get(file, n, "grad_router", &drouter) ||
        !golden_get(file, n, io ? "grad_gate_up_v4" : "grad_gate_up_v5", &dboth) ||
        !golden_get(file, n, io ? "grad_down_v4" : "grad_down_v5", &ddown))
        return false;
    check_case c = golden_open(file, n, dtype, layout, &hidden, &router, &down);
    random_state r = {1};
    case_grads(&c, &r);
    golden_upstream(&c, 0, &up);
    golden_grad_in(&c, 0, &dx);
    golden_grad_param(&c, TN_ROLE_ROUTER, 0, &drouter);
    if (layout == TN_LAYOUT_EXPERT_LIST) {
        golden_list(&c, TN_ROLE_GATE, &both, &dboth, 0);
        golden_list(&c, TN_ROLE_UP, &both, &dboth, both.shape[1] / 2);
        golden_list(&c, TN_ROLE_DOWN, &down, &ddown, 0);
    } else {
        golden_stack(&c, TN_ROLE_GATE_UP, &both, &dboth);
        golden_stack(&c, TN_ROLE_DOWN, &down, &ddown);
    }
    for (int j = 0; j < 4; j++)
        if (golden_get(file, n, golden_shared[j].gradient, &t))
            golden_grad_param(&c, golden_shared[j].role, 0, &t);
    golden_run(s, &c, file, n, names);
    return true;
}

bool moe_golden(check_state *s, const char *op, const tn_safetensors *file, int64_t n, tn_dtype dtype)
{
    bool good = !strcmp(op, "moe");
    for (int layout = TN_LAYOUT_EXPERT_LIST; good && layout <= TN_LAYOUT_STACKED_IO; layout++)
        good = golden_block(s, file, n, dtype, (tn_layout)layout);
    return good;
}
