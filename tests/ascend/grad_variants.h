/* The sites that test_ascend_grads.c draws: those of operations with gradients, in every variant that computes
 * differently. */
#ifndef TESTS_GRAD_VARIANTS_H
#define TESTS_GRAD_VARIANTS_H

#include "check/draw_site.h"

/* What a variant's site has beyond the plain one of its operation. */
typedef struct variant {
    const char *name;
    tn_op op;
    uint64_t features;
    int32_t layout, act, score, norm, rope, weight; /* 0: the first one                            */
    struct {
        tn_dim dim;
        int64_t size;
    } dims[4];
    bool spread; /* GLU: one gate for all features of a token                                      */
    double eps;
} variant;

static tn_site site_of(const variant *v, tn_dtype dtype)
{
    bool step = v->op >= TN_OP_FIRST_STEP;
    tn_site site = draw_site_plain(step ? TN_OP_MLP : v->op);
    const int32_t values[][2] = {{TN_AXIS_LAYOUT, v->layout}, {TN_AXIS_ACT, v->act},   {TN_AXIS_SCORE, v->score},
                                 {TN_AXIS_NORM, v->norm},     {TN_AXIS_ROPE, v->rope}, {TN_AXIS_WEIGHT, v->weight}};
    site.meaning[TN_AXIS_DTYPE] = dtype;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (values[i][1])
            site.meaning[values[i][0]] = values[i][1];
    if (v->features)
        draw_site_add(&site, v->features);
    for (size_t i = 0; i < sizeof v->dims / sizeof *v->dims && v->dims[i].size; i++)
        site.dim[v->dims[i].dim] = v->dims[i].size;
    if (v->op == TN_OP_MOE_ROUTE)
        site.num[TN_NUM_EPS] = v->eps;
    if (v->act == TN_ACT_CLAMPED_SWIGLU) {
        site.num[TN_NUM_LIMIT] = 0.5;
        site.num[TN_NUM_ALPHA] = 1.702;
    }
    if (v->op == TN_OP_SOFTCAP)
        site.num[TN_NUM_SOFTCAP] = 3;
    return site;
}

static const variant variants[] = {
    {.name = "linear", .op = TN_OP_LINEAR},
    {.name = "linear with a bias", .op = TN_OP_LINEAR, .features = TN_HAS_BIAS},
    {.name = "linear in f32", .op = TN_OP_LINEAR, .features = TN_HAS_BIAS, .weight = TN_F32},
    {.name = "norm", .op = TN_OP_RMS_NORM, .norm = TN_NORM_W},
    {.name = "norm of one", .op = TN_OP_RMS_NORM, .norm = TN_NORM_W, .dims = {{TN_DIM_WIDTH, 1}}},
    {.name = "norm, 1 + w", .op = TN_OP_RMS_NORM, .norm = TN_NORM_1_PLUS_W},
    {.name = "norm in f32", .op = TN_OP_RMS_NORM, .norm = TN_NORM_W_F32},
    {.name = "gated norm", .op = TN_OP_RMS_NORM, .norm = TN_NORM_W_GATED},
    {.name = "norm without a weight", .op = TN_OP_RMS_NORM, .norm = TN_NORM_NO_WEIGHT},
    {.name = "norm of a sum", .op = TN_OP_ADD_RMS_NORM, .norm = TN_NORM_W},
    {.name = "norm of a sum, 1 + w", .op = TN_OP_ADD_RMS_NORM, .norm = TN_NORM_1_PLUS_W},
    {.name = "norm of a sum in f32", .op = TN_OP_ADD_RMS_NORM, .norm = TN_NORM_W_F32},
    {.name = "layer norm", .op = TN_OP_LAYER_NORM, .features = TN_HAS_BIAS},
    {.name = "layer norm without a bias", .op = TN_OP_LAYER_NORM},
    {.name = "rope by halves", .op = TN_OP_ROPE, .rope = TN_ROPE_HALF},
    {.name = "rope by halves, narrow", .op = TN_OP_ROPE, .rope = TN_ROPE_HALF_NARROW},
    {.name = "rope of neighbours", .op = TN_OP_ROPE, .rope = TN_ROPE_INTERLEAVED},
    {.name = "complex rope", .op = TN_OP_ROPE, .rope = TN_ROPE_COMPLEX},
    {.name = "rope that sorts", .op = TN_OP_ROPE, .rope = TN_ROPE_DEINTERLEAVED},
    {.name = "rope in f32", .op = TN_OP_ROPE, .rope = TN_ROPE_HALF_F32},
    {.name = "rope of a part", .op = TN_OP_ROPE, .rope = TN_ROPE_HALF, .features = TN_HAS_PARTIAL},
    {.name = "glu", .op = TN_OP_GLU, .act = TN_ACT_SILU},
    {.name = "glu, gelu by tanh", .op = TN_OP_GLU, .act = TN_ACT_GELU_TANH},
    {.name = "glu, quick gelu", .op = TN_OP_GLU, .act = TN_ACT_QUICK_GELU},
    {.name = "glu of a sigmoid", .op = TN_OP_GLU, .act = TN_ACT_SIGMOID},
    {.name = "one gate for all", .op = TN_OP_GLU, .act = TN_ACT_SIGMOID, .spread = true},
    {.name = "silu", .op = TN_OP_ACT, .act = TN_ACT_SILU},
    {.name = "gelu by tanh", .op = TN_OP_ACT, .act = TN_ACT_GELU_TANH},
    {.name = "quick gelu", .op = TN_OP_ACT, .act = TN_ACT_QUICK_GELU},
    {.name = "sigmoid", .op = TN_OP_ACT, .act = TN_ACT_SIGMOID},
    {.name = "linear act", .op = TN_OP_ACT, .act = TN_ACT_LINEAR},
    {.name = "gelu", .op = TN_OP_ACT, .act = TN_ACT_GELU},
    {.name = "relu", .op = TN_OP_ACT, .act = TN_ACT_RELU},
    {.name = "relu2", .op = TN_OP_ACT, .act = TN_ACT_RELU2},
    {.name = "relu6", .op = TN_OP_ACT, .act = TN_ACT_RELU6},
    {.name = "gelu new", .op = TN_OP_ACT, .act = TN_ACT_GELU_NEW},
    {.name = "tanh", .op = TN_OP_ACT, .act = TN_ACT_TANH},
    {.name = "mish", .op = TN_OP_ACT, .act = TN_ACT_MISH},
    {.name = "glu of mish", .op = TN_OP_GLU, .act = TN_ACT_MISH},
    {.name = "sparse glu", .op = TN_OP_GLU, .act = TN_ACT_GELU_TANH, .features = TN_HAS_SPARSITY},
    {.name = "split mlp", .op = TN_OP_MLP, .layout = TN_LAYOUT_SPLIT},
    {.name = "mlp of both", .op = TN_OP_MLP, .layout = TN_LAYOUT_GATE_UP, .features = TN_HAS_BIAS},
    {.name = "mlp of both, exchanged", .op = TN_OP_MLP, .layout = TN_LAYOUT_UP_GATE},
    {.name = "mlp without a gate", .op = TN_OP_MLP, .layout = TN_LAYOUT_UP_DOWN, .act = TN_ACT_GELU},
    {.name = "sparse mlp",
     .op = TN_OP_MLP,
     .layout = TN_LAYOUT_SPLIT,
     .act = TN_ACT_GELU_TANH,
     .features = TN_HAS_SPARSITY},
    {.name = "softcap", .op = TN_OP_SOFTCAP},
    {.name = "groups in a list", .op = TN_OP_GROUPED_MATMUL, .layout = TN_LAYOUT_EXPERT_LIST},
    {.name = "groups, [in,out] in a list", .op = TN_OP_GROUPED_MATMUL, .layout = TN_LAYOUT_LIST_IO},
    {.name = "groups, [out,in]", .op = TN_OP_GROUPED_MATMUL, .layout = TN_LAYOUT_STACKED_OI},
    {.name = "groups, [in,out]", .op = TN_OP_GROUPED_MATMUL, .layout = TN_LAYOUT_STACKED_IO},
    {.name = "one group", .op = TN_OP_GROUPED_MATMUL, .layout = TN_LAYOUT_STACKED_OI, .dims = {{TN_DIM_EXPERTS, 1}}},
    {.name = "softmax router", .op = TN_OP_MOE_ROUTE},
    {.name = "renormalised", .op = TN_OP_MOE_ROUTE, .features = TN_HAS_RENORM, .eps = 1e-9},
    {.name = "sigmoid router",
     .op = TN_OP_MOE_ROUTE,
     .score = TN_SCORE_SIGMOID,
     .features = TN_HAS_RENORM | TN_HAS_CORRECTION_BIAS | TN_HAS_ROUTE_SCALE},
    {.name = "sigmoid router, as it is", .op = TN_OP_MOE_ROUTE, .score = TN_SCORE_SIGMOID},
    {.name = "softmax of the best",
     .op = TN_OP_MOE_ROUTE,
     .score = TN_SCORE_TOPK_SOFTMAX,
     .features = TN_HAS_EXPERT_SCALE},
    {.name = "sigmoid of the best", .op = TN_OP_MOE_ROUTE, .score = TN_SCORE_TOPK_SIGMOID},
    {.name = "renormalised sigmoid of the best",
     .op = TN_OP_MOE_ROUTE,
     .score = TN_SCORE_TOPK_SIGMOID,
     .features = TN_HAS_RENORM | TN_HAS_EXPERT_SCALE | TN_HAS_ROUTE_SCALE},
    {.name = "router in f32",
     .op = TN_OP_MOE_ROUTE,
     .features = TN_HAS_F32_ROUTER | TN_HAS_F32_ROUTING | TN_HAS_CORRECTION_BIAS},
    {.name = "router of f32 weights", .op = TN_OP_MOE_ROUTE, .weight = TN_F32},
    {.name = "best groups", .op = TN_OP_MOE_ROUTE, .features = TN_HAS_GROUPS},
    {.name = "groups of sigmoids",
     .op = TN_OP_MOE_ROUTE,
     .score = TN_SCORE_SIGMOID,
     .features = TN_HAS_GROUPS | TN_HAS_CORRECTION_BIAS | TN_HAS_RENORM},
    {.name = "all experts", .op = TN_OP_MOE_ROUTE, .dims = {{TN_DIM_EXPERTS, 4}, {TN_DIM_TOP_K, 4}}},
    {.name = "experts in a list", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_EXPERT_LIST},
    {.name = "stacked experts, [out,in]", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_STACKED_OI},
    {.name = "stacked experts, [in,out]", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_STACKED_IO},
    {.name = "experts of pairs, clamped, biased",
     .op = TN_OP_MOE_EXPERTS,
     .layout = TN_LAYOUT_PAIRS_IO,
     .act = TN_ACT_CLAMPED_SWIGLU,
     .features = TN_HAS_BIAS},
    {.name = "experts in a list with biases",
     .op = TN_OP_MOE_EXPERTS,
     .layout = TN_LAYOUT_EXPERT_LIST,
     .features = TN_HAS_BIAS},
    {.name = "experts with weights of inputs",
     .op = TN_OP_MOE_EXPERTS,
     .layout = TN_LAYOUT_STACKED_IO,
     .features = TN_HAS_INPUT_SCALE},
    {.name = "experts with weights in f32",
     .op = TN_OP_MOE_EXPERTS,
     .layout = TN_LAYOUT_STACKED_OI,
     .features = TN_HAS_F32_ROUTING},
    {.name = "experts of gelu", .op = TN_OP_MOE_EXPERTS, .layout = TN_LAYOUT_STACKED_OI, .act = TN_ACT_GELU_TANH},
    {.name = "experts of quick gelu",
     .op = TN_OP_MOE_EXPERTS,
     .layout = TN_LAYOUT_STACKED_OI,
     .act = TN_ACT_QUICK_GELU},
    {.name = "one expert",
     .op = TN_OP_MOE_EXPERTS,
     .layout = TN_LAYOUT_STACKED_OI,
     .dims = {{TN_DIM_EXPERTS, 1}, {TN_DIM_TOP_K, 1}}},
    {.name = "a list of too many experts",
     .op = TN_OP_MOE_EXPERTS,
     .layout = TN_LAYOUT_EXPERT_LIST,
     .dims = {{TN_DIM_EXPERTS, 130}, {TN_DIM_TOP_K, 3}}},
    {.name = "block of experts", .op = TN_OP_MOE_BLOCK, .layout = TN_LAYOUT_STACKED_OI},
    {.name = "block of experts and a shared one",
     .op = TN_OP_MOE_BLOCK,
     .layout = TN_LAYOUT_EXPERT_LIST,
     .features = TN_HAS_SHARED_GATE},
    {.name = "attention", .op = TN_OP_ATTENTION},
    {.name = "attention with a key head for each", .op = TN_OP_ATTENTION, .dims = {{TN_DIM_KV_HEADS, 6}}},
    {.name = "attention with one key head", .op = TN_OP_ATTENTION, .dims = {{TN_DIM_KV_HEADS, 1}, {TN_DIM_HEAD, 24}}},
    {.name = "attention to values of another width", .op = TN_OP_ATTENTION, .dims = {{TN_DIM_HEAD_V, 20}}},
    {.name = "attention in a window", .op = TN_OP_ATTENTION, .features = TN_HAS_WINDOW},
    {.name = "attention in a chunk", .op = TN_OP_ATTENTION, .features = TN_HAS_CHUNK},
    {.name = "attention with a softcap", .op = TN_OP_ATTENTION, .features = TN_HAS_SOFTCAP},
    {.name = "attention with sinks", .op = TN_OP_ATTENTION, .features = TN_HAS_SINKS},
    {.name = "attention with sinks in a window", .op = TN_OP_ATTENTION, .features = TN_HAS_SINKS | TN_HAS_WINDOW},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

#endif
