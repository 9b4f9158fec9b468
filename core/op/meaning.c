/* Names of meanings as reports print them, and the library's version. */
#include "op/op.h"

#include <tenon/tenon.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const char *const axis_names[] = {"dtype", "weight", "norm", "rope", "act", "score", "layout"};
static const char *const norm_names[] = {"?", "w", "1+w", "w_f32", "w_gated", "no_weight", "gated_w", "w_gated_f32"};
static const char *const rope_names[] = {"?",       "half",          "half_narrow", "interleaved",
                                         "complex", "deinterleaved", "half_f32"};
static const char *const act_names[] = {
    "?",          "silu",       "gelu_tanh", "gelu",    "relu",          "relu2", "relu6",
    "quick_gelu", "gelu_new",   "sigmoid",   "tanh",    "linear",        "mish",  "clamped_swiglu",
    "hard_swish", "leaky_relu", "laplace",   "gelu_10", "sqrt_softplus", "xielu", "prelu"};
static const char *const score_names[] = {"?", "softmax", "sigmoid", "topk_softmax", "topk_sigmoid", "sparsemixer"};
static const char *const layout_names[] = {"?",          "split",      "gate_up", "up_gate", "expert_list",
                                           "stacked_oi", "stacked_io", "list_io", "up_down", "pairs_io"};
static const char *const dim_names[] = {"width",      "hidden",   "inter",    "out",   "head",         "rotary",
                                        "q_heads",    "kv_heads", "experts",  "top_k", "shared_inter", "groups",
                                        "top_groups", "window",   "head_v",   "chunk", "taps",         "streams",
                                        "stride",     "rank",     "rank_down"};
static const char *const feature_names[] = {
    "bias",        "renorm",      "shared_expert", "shared_gate",     "correction_bias", "groups",      "route_scale",
    "f32_routing", "f32_router",  "sparsity",      "partial",         "mrope",           "window",      "softcap",
    "sinks",       "scales",      "zero_points",   "input_scale",     "expert_scale",    "chunk",       "shared_bias",
    "group_pairs", "mixed_types", "both_sides",    "alibi",           "channel_decay",   "chosen_keys", "step_limits",
    "f32_result",  "adapter",     "dropout",       "rounded_factors", "roundings"};
static const char *const role_names[] = {"weight",
                                         "bias",
                                         "gate",
                                         "up",
                                         "down",
                                         "gate_up",
                                         "gate_bias",
                                         "up_bias",
                                         "down_bias",
                                         "gate_up_bias",
                                         "router",
                                         "router_bias",
                                         "correction_bias",
                                         "shared_gate",
                                         "shared_up",
                                         "shared_down",
                                         "shared_expert_gate",
                                         "sinks",
                                         "expert_scale",
                                         "shared_gate_bias",
                                         "shared_up_bias",
                                         "shared_down_bias",
                                         "decay",
                                         "group_of_weight",
                                         "group_of_gate",
                                         "group_of_up",
                                         "group_of_down",
                                         "group_of_gate_up",
                                         "group_of_shared_gate",
                                         "group_of_shared_up",
                                         "group_of_shared_down"};
static const char *const num_names[] = {"eps",     "scale", "softcap", "sparsity", "limit",   "alpha",
                                        "alpha_n", "beta",  "margin",  "least",    "dropout", "scale_down"};

static const char *pick(const char *const *names, size_t count, int64_t value)
{
    return value >= 0 && (uint64_t)value < count ? names[value] : "?";
}

const char *tn_version(void)
{
    return TN_VERSION;
}

const char *tn_axis_name(tn_axis axis)
{
    return pick(axis_names, COUNT(axis_names), (int64_t)axis);
}

/* Names of an axis's values, by value; dtypes have theirs elsewhere. */
static const struct {
    const char *const *names;
    size_t count;
} values[] = {[TN_AXIS_NORM] = {norm_names, COUNT(norm_names)},
              [TN_AXIS_ROPE] = {rope_names, COUNT(rope_names)},
              [TN_AXIS_ACT] = {act_names, COUNT(act_names)},
              [TN_AXIS_SCORE] = {score_names, COUNT(score_names)},
              [TN_AXIS_LAYOUT] = {layout_names, COUNT(layout_names)}};

const char *tn_axis_value_name(tn_axis axis, int32_t value)
{
    if (axis == TN_AXIS_DTYPE || axis == TN_AXIS_WEIGHT)
        return tn_dtype_name((tn_dtype)value);
    return (int)axis >= 0 && (size_t)axis < COUNT(values) ? pick(values[axis].names, values[axis].count, value) : "?";
}

bool op_norm_is_gated(int32_t norm)
{
    return norm == TN_NORM_W_GATED || norm == TN_NORM_GATED_W || norm == TN_NORM_W_GATED_F32;
}

int32_t op_last_value(tn_axis axis)
{
    if (axis == TN_AXIS_DTYPE || axis == TN_AXIS_WEIGHT)
        return TN_DTYPE_COUNT - 1;
    return (int)axis >= 0 && (size_t)axis < COUNT(values) ? (int32_t)values[axis].count - 1 : 0;
}

bool op_knows_dim(tn_dim dim)
{
    return (int)dim >= 0 && (size_t)dim < COUNT(dim_names);
}

const char *tn_dim_name(tn_dim dim)
{
    return pick(dim_names, COUNT(dim_names), (int64_t)dim);
}

const char *tn_feature_name(uint64_t bit)
{
    if (bit == 0 || (bit & (bit - 1)) != 0)
        return "?";
    return pick(feature_names, COUNT(feature_names), __builtin_ctzll(bit));
}

const char *tn_role_name(tn_role role)
{
    static const char *const a_names[] = {"a_of_weight", "?", "a_of_gate", "a_of_up", "a_of_down", "a_of_gate_up"};
    static const char *const b_names[] = {"b_of_weight", "?", "b_of_gate", "b_of_up", "b_of_down", "b_of_gate_up"};
    if (role >= TN_ROLE_A_OF(0) && role < TN_ROLE_FIRST_ZERO)
        return pick(a_names, COUNT(a_names), (int64_t)role - TN_ROLE_A_OF(0));
    if (role >= TN_ROLE_B_OF(0))
        return pick(b_names, COUNT(b_names), (int64_t)role - TN_ROLE_B_OF(0));
    return pick(role_names, COUNT(role_names), (int64_t)role);
}

const char *tn_num_name(tn_num num)
{
    return pick(num_names, COUNT(num_names), (int64_t)num);
}
