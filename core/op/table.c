/* The table of operations. */
#include "op/op.h"

#include "base/tensor.h"
#include "op/rules.h"

#define BIT(value) (1u << (value))
#define QUANTISED (TN_HAS_SCALES | TN_HAS_ZERO_POINTS | TN_HAS_MIXED)
#define NORMS_GATED (BIT(TN_NORM_W_GATED) | BIT(TN_NORM_GATED_W) | BIT(TN_NORM_W_GATED_F32))
#define NORMS_WITH_WEIGHT (BIT(TN_NORM_W) | BIT(TN_NORM_1_PLUS_W) | BIT(TN_NORM_W_F32) | NORMS_GATED)
#define ROUTING                                                                                                        \
    (TN_HAS_RENORM | TN_HAS_CORRECTION_BIAS | TN_HAS_GROUPS | TN_HAS_ROUTE_SCALE | TN_HAS_EXPERT_SCALE |               \
     TN_HAS_F32_ROUTING | TN_HAS_F32_ROUTER | TN_HAS_GROUP_PAIRS)

/* ---- operations that are no products with parameters ------------------------------------------------------------- */

/* Scores and the sum of values. */
static double attention_operations(const tn_call *call)
{
    const tn_tensor *q = &call->in[0], *k = &call->in[1], *v = &call->in[2];
    return 2.0 * (double)tn_tensor_count(q) * (double)k->shape[1] * (1.0 + (double)v->shape[3] / (double)q->shape[3]);
}

/* Of each token: what its state holds at the key, what is written there, what the query reads, and forgetting. */
static double delta_operations(const tn_call *call)
{
    return 8.0 * (double)tn_tensor_count(&call->in[0]) * (double)call->site->dim[TN_DIM_HEAD];
}

/* Of each token: forgetting, what is written to its state, and what is read of it. */
static double scan_operations(const tn_call *call)
{
    return 5.0 * (double)tn_tensor_count(&call->in[0]) * (double)call->site->dim[TN_DIM_HEAD];
}

/* A few for each element that goes in. */
static double elementwise_operations(const tn_call *call)
{
    return 4.0 * (double)tn_tensor_count(&call->in[0]);
}

/* Two products and a sum for each rotated element. */
static double rope_operations(const tn_call *call)
{
    return 3.0 * (double)(tn_tensor_count(&call->in[0]) + tn_tensor_count(&call->in[1]));
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

/* What steps have in common. */
#define STEP(number, text) .op = (number), .name = (text), .kind = OP_STEP, .operations = elementwise_operations

#define SPLIT                                                                                                          \
    {                                                                                                                  \
        .layouts = BIT(TN_LAYOUT_SPLIT)                                                                                \
    }
#define FUSED                                                                                                          \
    {                                                                                                                  \
        .layouts = BIT(TN_LAYOUT_GATE_UP) | BIT(TN_LAYOUT_UP_GATE)                                                     \
    }
#define SPLIT_BIAS                                                                                                     \
    {                                                                                                                  \
        .features = TN_HAS_BIAS, .layouts = BIT(TN_LAYOUT_SPLIT)                                                       \
    }
#define FUSED_BIAS                                                                                                     \
    {                                                                                                                  \
        .features = TN_HAS_BIAS, .layouts = BIT(TN_LAYOUT_GATE_UP) | BIT(TN_LAYOUT_UP_GATE)                            \
    }
#define SPLIT_OR_UP                                                                                                    \
    {                                                                                                                  \
        .layouts = BIT(TN_LAYOUT_SPLIT) | BIT(TN_LAYOUT_UP_DOWN)                                                       \
    }
#define SPLIT_OR_UP_BIAS                                                                                               \
    {                                                                                                                  \
        .features = TN_HAS_BIAS, .layouts = BIT(TN_LAYOUT_SPLIT) | BIT(TN_LAYOUT_UP_DOWN)                              \
    }
#define LIST                                                                                                           \
    {                                                                                                                  \
        .layouts = BIT(TN_LAYOUT_EXPERT_LIST)                                                                          \
    }
#define LIST_IO                                                                                                        \
    {                                                                                                                  \
        .layouts = BIT(TN_LAYOUT_LIST_IO)                                                                              \
    }
#define STACKED_OI                                                                                                     \
    {                                                                                                                  \
        .layouts = BIT(TN_LAYOUT_STACKED_OI)                                                                           \
    }
#define STACKED_IO                                                                                                     \
    {                                                                                                                  \
        .layouts = BIT(TN_LAYOUT_STACKED_IO)                                                                           \
    }
#define COLUMNS                                                                                                        \
    {                                                                                                                  \
        .layouts = BIT(TN_LAYOUT_STACKED_IO) | BIT(TN_LAYOUT_PAIRS_IO)                                                 \
    }
#define WITH(feature)                                                                                                  \
    {                                                                                                                  \
        .features = (feature)                                                                                          \
    }

/* Of the adapter beside a weight of experts. */
#define FACTOR(which, of, text)                                                                                        \
    {                                                                                                                  \
        .role = TN_ROLE_##which##_OF(TN_ROLE_##of), .shape = (text), .when = WITH(TN_HAS_ADAPTER),                     \
        .use = OP_USE_TOP_K, .any_float = true, .maybe = true                                                          \
    }

static const op_row rows[] = {
    {.op = TN_OP_RMS_NORM,
     .name = "RMS_NORM",
     .needs = BIT(TN_AXIS_DTYPE) | BIT(TN_AXIS_NORM),
     .allows = BIT(TN_AXIS_WEIGHT),
     .features = TN_HAS_GROUPS,
     .dims = BIT(TN_DIM_WIDTH),
     .more_dims = BIT(TN_DIM_GROUPS),
     .nums = BIT(TN_NUM_EPS),
     .in = {{.name = "x", .shape = "d*W"}, {.name = "gate", .shape = "d*W", .when = {.norms = NORMS_GATED}}},
     .out = {{.name = "y", .shape = "d*W"}},
     .param = {{.role = TN_ROLE_WEIGHT, .shape = "W", .when = {.norms = NORMS_WITH_WEIGHT}}},
     .in_place = 1,
     .operations = elementwise_operations,
     .check = rules_norm},
    {.op = TN_OP_ADD_RMS_NORM,
     .name = "ADD_RMS_NORM",
     .composed = true,
     .needs = BIT(TN_AXIS_DTYPE) | BIT(TN_AXIS_NORM),
     .allows = BIT(TN_AXIS_WEIGHT),
     .dims = BIT(TN_DIM_WIDTH),
     .nums = BIT(TN_NUM_EPS),
     .in = {{.name = "h", .shape = "d*W"}, {.name = "r", .shape = "d*W"}},
     .out = {{.name = "sum", .shape = "d*W"}, {.name = "y", .shape = "d*W"}},
     .param = {{.role = TN_ROLE_WEIGHT, .shape = "W", .when = {.norms = NORMS_WITH_WEIGHT}}},
     .in_place = 1,
     .operations = elementwise_operations,
     .check = rules_norm},
    {.op = TN_OP_LAYER_NORM,
     .name = "LAYER_NORM",
     .needs = BIT(TN_AXIS_DTYPE),
     .allows = BIT(TN_AXIS_WEIGHT),
     .features = TN_HAS_BIAS,
     .dims = BIT(TN_DIM_WIDTH),
     .nums = BIT(TN_NUM_EPS),
     .in = {{.name = "x", .shape = "d*W"}},
     .out = {{.name = "y", .shape = "d*W"}},
     .param = {{.role = TN_ROLE_WEIGHT, .shape = "W"}, {.role = TN_ROLE_BIAS, .shape = "W", .when = WITH(TN_HAS_BIAS)}},
     .in_place = 1,
     .operations = elementwise_operations,
     .check = rules_norm},
    {.op = TN_OP_ROPE,
     .name = "ROPE",
     .cut = "NK",
     .needs = BIT(TN_AXIS_DTYPE) | BIT(TN_AXIS_ROPE),
     .features = TN_HAS_PARTIAL | TN_HAS_MROPE | TN_HAS_ROUNDINGS,
     .dims = BIT(TN_DIM_HEAD) | BIT(TN_DIM_Q_HEADS),
     .more_dims = BIT(TN_DIM_KV_HEADS) | BIT(TN_DIM_ROTARY),
     .in = {{.name = "q", .shape = "dBTND", .unread = true},
            {.name = "k", .shape = "dBTKD", .unread = true},
            {.name = "cos", .shape = "cbTR", .constant = true},
            {.name = "sin", .shape = "cbTR", .constant = true}},
     .out = {{.name = "q", .shape = "dBTND"}, {.name = "k", .shape = "dBTKD"}},
     .in_place = 2,
     .operations = rope_operations,
     .check = rules_rope},
    {.op = TN_OP_MLP,
     .name = "MLP",
     .composed = true,
     .needs = BIT(TN_AXIS_DTYPE) | BIT(TN_AXIS_ACT) | BIT(TN_AXIS_LAYOUT),
     .allows = BIT(TN_AXIS_WEIGHT),
     .features = TN_HAS_BIAS | TN_HAS_SPARSITY | TN_HAS_ADAPTER | QUANTISED,
     .dims = BIT(TN_DIM_HIDDEN) | BIT(TN_DIM_INTER),
     .nums = BIT(TN_NUM_SPARSITY) | BIT(TN_NUM_LIMIT) | BIT(TN_NUM_ALPHA) | BIT(TN_NUM_ALPHA_N) | BIT(TN_NUM_BETA) |
             BIT(TN_NUM_EPS),
     .in = {{.name = "x", .shape = "dTH"}},
     .out = {{.name = "y", .shape = "dTH"}},
     .param = {{.role = TN_ROLE_GATE, .shape = "IH", .when = SPLIT},
               {.role = TN_ROLE_UP, .shape = "IH", .when = SPLIT_OR_UP},
               {.role = TN_ROLE_GATE_UP, .shape = "2IH", .when = FUSED},
               {.role = TN_ROLE_DOWN, .shape = "HI"},
               {.role = TN_ROLE_GATE_BIAS, .shape = "I", .when = SPLIT_BIAS},
               {.role = TN_ROLE_UP_BIAS, .shape = "I", .when = SPLIT_OR_UP_BIAS},
               {.role = TN_ROLE_GATE_UP_BIAS, .shape = "2I", .when = FUSED_BIAS},
               {.role = TN_ROLE_DOWN_BIAS, .shape = "H", .when = WITH(TN_HAS_BIAS)}},
     .check = rules_mlp},
    {.op = TN_OP_MOE_ROUTE,
     .name = "MOE_ROUTE",
     .needs = BIT(TN_AXIS_DTYPE) | BIT(TN_AXIS_SCORE),
     .allows = BIT(TN_AXIS_WEIGHT),
     .features = ROUTING | QUANTISED,
     .dims = BIT(TN_DIM_HIDDEN) | BIT(TN_DIM_EXPERTS) | BIT(TN_DIM_TOP_K),
     .more_dims = BIT(TN_DIM_GROUPS) | BIT(TN_DIM_TOP_GROUPS),
     .nums = BIT(TN_NUM_SCALE) | BIT(TN_NUM_EPS) | BIT(TN_NUM_MARGIN),
     .in = {{.name = "x", .shape = "dTH"}},
     .out = {{.name = "weights", .shape = "wTk"},
             {.name = "experts", .shape = "iTk"},
             {.name = "logits", .shape = "rTE", .optional = true}},
     .param = {{.role = TN_ROLE_ROUTER, .shape = "EH", .any_float = true},
               {.role = TN_ROLE_ROUTER_BIAS, .shape = "E", .any_float = true, .maybe = true},
               {.role = TN_ROLE_CORRECTION_BIAS,
                .shape = "E",
                .when = WITH(TN_HAS_CORRECTION_BIAS),
                .any_float = true,
                .constant = true},
               {.role = TN_ROLE_EXPERT_SCALE, .shape = "E", .when = WITH(TN_HAS_EXPERT_SCALE), .any_float = true}},
     .picks = true,
     .check = rules_router},
    {.op = TN_OP_MOE_EXPERTS,
     .name = "MOE_EXPERTS",
     .needs = BIT(TN_AXIS_DTYPE) | BIT(TN_AXIS_ACT) | BIT(TN_AXIS_LAYOUT),
     .allows = BIT(TN_AXIS_WEIGHT),
     .features = TN_HAS_BIAS | TN_HAS_INPUT_SCALE | TN_HAS_F32_ROUTING | TN_HAS_ADAPTER | QUANTISED,
     .dims = BIT(TN_DIM_HIDDEN) | BIT(TN_DIM_INTER) | BIT(TN_DIM_EXPERTS) | BIT(TN_DIM_TOP_K),
     .more_dims = BIT(TN_DIM_RANK) | BIT(TN_DIM_RANK_DOWN),
     .nums = BIT(TN_NUM_LIMIT) | BIT(TN_NUM_ALPHA) | BIT(TN_NUM_SCALE) | BIT(TN_NUM_SCALE_DOWN),
     .in = {{.name = "x", .shape = "dTH"}, {.name = "weights", .shape = "wTk"}, {.name = "experts", .shape = "iTk"}},
     .out = {{.name = "y", .shape = "dTH"}},
     .param = {{.role = TN_ROLE_GATE, .shape = "IH", .when = LIST, .use = OP_USE_TOP_K, .per_expert = true},
               {.role = TN_ROLE_UP, .shape = "IH", .when = LIST, .use = OP_USE_TOP_K, .per_expert = true},
               {.role = TN_ROLE_DOWN, .shape = "HI", .when = LIST, .use = OP_USE_TOP_K, .per_expert = true},
               {.role = TN_ROLE_GATE_UP, .shape = "E2IH", .when = STACKED_OI, .use = OP_USE_TOP_K},
               {.role = TN_ROLE_DOWN, .shape = "EHI", .when = STACKED_OI, .use = OP_USE_TOP_K},
               {.role = TN_ROLE_GATE_UP, .shape = "EH2I", .when = COLUMNS, .use = OP_USE_TOP_K},
               {.role = TN_ROLE_DOWN, .shape = "EIH", .when = COLUMNS, .use = OP_USE_TOP_K},
               {.role = TN_ROLE_GATE_UP_BIAS, .shape = "E2I", .when = WITH(TN_HAS_BIAS), .use = OP_USE_TOP_K},
               {.role = TN_ROLE_DOWN_BIAS, .shape = "EH", .when = WITH(TN_HAS_BIAS), .use = OP_USE_TOP_K},
               FACTOR(A, GATE_UP, "MH"),
               FACTOR(B, GATE_UP, "2IM"),
               FACTOR(A, GATE, "MH"),
               FACTOR(B, GATE, "IM"),
               FACTOR(A, UP, "MH"),
               FACTOR(B, UP, "IM"),
               FACTOR(A, DOWN, "mI"),
               FACTOR(B, DOWN, "Hm")},
     .check = rules_routed},
    {.op = TN_OP_MOE_BLOCK,
     .name = "MOE_BLOCK",
     .composed = true,
     .needs = BIT(TN_AXIS_DTYPE) | BIT(TN_AXIS_ACT) | BIT(TN_AXIS_SCORE) | BIT(TN_AXIS_LAYOUT),
     .allows = BIT(TN_AXIS_WEIGHT),
     .features = ROUTING | TN_HAS_BIAS | TN_HAS_INPUT_SCALE | TN_HAS_SHARED_EXPERT | TN_HAS_SHARED_GATE |
                 TN_HAS_SHARED_BIAS | TN_HAS_ADAPTER | QUANTISED,
     .dims = BIT(TN_DIM_HIDDEN) | BIT(TN_DIM_INTER) | BIT(TN_DIM_EXPERTS) | BIT(TN_DIM_TOP_K),
     .more_dims = BIT(TN_DIM_GROUPS) | BIT(TN_DIM_TOP_GROUPS) | BIT(TN_DIM_SHARED_INTER),
     .nums = BIT(TN_NUM_SCALE) | BIT(TN_NUM_EPS) | BIT(TN_NUM_LIMIT) | BIT(TN_NUM_ALPHA) | BIT(TN_NUM_MARGIN),
     .in = {{.name = "x", .shape = "dTH"}},
     .out = {{.name = "y", .shape = "dTH"}, {.name = "logits", .shape = "rTE", .optional = true}},
     .param =
         {{.role = TN_ROLE_ROUTER, .shape = "EH", .any_float = true},
          {.role = TN_ROLE_ROUTER_BIAS, .shape = "E", .any_float = true, .maybe = true},
          {.role = TN_ROLE_CORRECTION_BIAS,
           .shape =
               "E",
           .when = WITH(TN_HAS_CORRECTION_BIAS),
           .any_float = true,
           .constant = true},
          {.role = TN_ROLE_EXPERT_SCALE, .shape = "E", .when = WITH(TN_HAS_EXPERT_SCALE), .any_float = true},
          {.role = TN_ROLE_GATE, .shape = "IH", .when = LIST, .use = OP_USE_TOP_K, .per_expert = true},
          {.role = TN_ROLE_UP, .shape = "IH", .when = LIST, .use = OP_USE_TOP_K, .per_expert = true},
          {.role = TN_ROLE_DOWN, .shape = "HI", .when = LIST, .use = OP_USE_TOP_K, .per_expert = true},
          {.role = TN_ROLE_GATE_UP, .shape = "E2IH", .when = STACKED_OI, .use = OP_USE_TOP_K},
          {.role = TN_ROLE_DOWN, .shape = "EHI", .when = STACKED_OI, .use = OP_USE_TOP_K},
          {.role = TN_ROLE_GATE_UP, .shape = "EH2I", .when = COLUMNS, .use = OP_USE_TOP_K},
          {.role = TN_ROLE_DOWN, .shape = "EIH", .when = COLUMNS, .use = OP_USE_TOP_K},
          {.role = TN_ROLE_GATE_UP_BIAS, .shape = "E2I", .when = WITH(TN_HAS_BIAS), .use = OP_USE_TOP_K},
          {.role = TN_ROLE_DOWN_BIAS, .shape = "EH", .when = WITH(TN_HAS_BIAS), .use = OP_USE_TOP_K},
          {.role = TN_ROLE_SHARED_GATE, .shape = "JH", .when = WITH(TN_HAS_SHARED_EXPERT)},
          {.role = TN_ROLE_SHARED_UP, .shape = "JH", .when = WITH(TN_HAS_SHARED_EXPERT)},
          {.role = TN_ROLE_SHARED_DOWN, .shape = "HJ", .when = WITH(TN_HAS_SHARED_EXPERT)},
          {.role = TN_ROLE_SHARED_EXPERT_GATE, .shape = "UH", .when = WITH(TN_HAS_SHARED_EXPERT | TN_HAS_SHARED_GATE)},
          {.role = TN_ROLE_SHARED_GATE_BIAS, .shape = "J", .when = WITH(TN_HAS_SHARED_EXPERT | TN_HAS_SHARED_BIAS)},
          {.role = TN_ROLE_SHARED_UP_BIAS, .shape = "J", .when = WITH(TN_HAS_SHARED_EXPERT | TN_HAS_SHARED_BIAS)},
          {.role = TN_ROLE_SHARED_DOWN_BIAS, .shape = "H", .when = WITH(TN_HAS_SHARED_EXPERT | TN_HAS_SHARED_BIAS)}},
     .check = rules_router},
    {.op = TN_OP_GROUPED_MATMUL,
     .name = "GROUPED_MATMUL",
     .cut = "O",
     .needs = BIT(TN_AXIS_DTYPE) | BIT(TN_AXIS_LAYOUT),
     .allows = BIT(TN_AXIS_WEIGHT),
     .features = QUANTISED,
     .dims = BIT(TN_DIM_HIDDEN) | BIT(TN_DIM_OUT) | BIT(TN_DIM_EXPERTS),
     .in = {{.name = "x", .shape = "dTH"}, {.name = "counts", .shape = "lE"}},
     .out = {{.name = "y", .shape = "dTO"}},
     .param = {{.role = TN_ROLE_WEIGHT, .shape = "OH", .when = LIST, .use = OP_USE_ONE, .per_expert = true},
               {.role = TN_ROLE_WEIGHT, .shape = "HO", .when = LIST_IO, .use = OP_USE_ONE, .per_expert = true},
               {.role = TN_ROLE_WEIGHT, .shape = "EOH", .when = STACKED_OI, .use = OP_USE_ONE},
               {.role = TN_ROLE_WEIGHT, .shape = "EHO", .when = STACKED_IO, .use = OP_USE_ONE}}},
    {.op = TN_OP_LINEAR,
     .name = "LINEAR",
     .cut = "O",
     .needs = BIT(TN_AXIS_DTYPE),
     .allows = BIT(TN_AXIS_WEIGHT),
     .features = TN_HAS_BIAS | QUANTISED,
     .dims = BIT(TN_DIM_HIDDEN) | BIT(TN_DIM_OUT),
     .in = {{.name = "x", .shape = "dTH"}},
     .out = {{.name = "y", .shape = "dTO"}},
     .param = {{.role = TN_ROLE_WEIGHT, .shape = "OH"},
               {.role = TN_ROLE_BIAS, .shape = "O", .when = WITH(TN_HAS_BIAS)}}},
    {.op = TN_OP_LORA_LINEAR,
     .name = "LORA_LINEAR",
     .composed = true,
     .needs = BIT(TN_AXIS_DTYPE),
     .allows = BIT(TN_AXIS_WEIGHT),
     .features = TN_HAS_BIAS | TN_HAS_DROPOUT | TN_HAS_ROUNDED_FACTORS | QUANTISED,
     .dims = BIT(TN_DIM_HIDDEN) | BIT(TN_DIM_OUT) | BIT(TN_DIM_RANK),
     .nums = BIT(TN_NUM_SCALE) | BIT(TN_NUM_DROPOUT),
     .in = {{.name = "x", .shape = "dTH"}, {.name = "key", .shape = "l2U", .when = WITH(TN_HAS_DROPOUT)}},
     .out = {{.name = "y", .shape = "dTO"}},
     .param = {{.role = TN_ROLE_WEIGHT, .shape = "OH"},
               {.role = TN_ROLE_BIAS, .shape = "O", .when = WITH(TN_HAS_BIAS)},
               {.role = TN_ROLE_A_OF(TN_ROLE_WEIGHT), .shape = "LH", .any_float = true},
               {.role = TN_ROLE_B_OF(TN_ROLE_WEIGHT), .shape = "OL", .any_float = true}}},
    {.op = TN_OP_ATTENTION,
     .name = "ATTENTION",
     .cut = "NK",
     .needs = BIT(TN_AXIS_DTYPE),
     .features = TN_HAS_WINDOW | TN_HAS_CHUNK | TN_HAS_SOFTCAP | TN_HAS_SINKS | TN_HAS_BOTH_SIDES | TN_HAS_ALIBI |
                 TN_HAS_CHOSEN_KEYS,
     .dims = BIT(TN_DIM_HEAD) | BIT(TN_DIM_Q_HEADS) | BIT(TN_DIM_KV_HEADS),
     .more_dims = BIT(TN_DIM_HEAD_V) | BIT(TN_DIM_WINDOW) | BIT(TN_DIM_CHUNK),
     .nums = BIT(TN_NUM_SCALE) | BIT(TN_NUM_SOFTCAP) | BIT(TN_NUM_ALPHA),
     .in = {{.name = "q", .shape = "dBTND"},
            {.name = "k", .shape = "dBSKD"},
            {.name = "v", .shape = "dBSKV"},
            {.name = "q_index", .shape = "iBT"},
            {.name = "kv_index", .shape = "iBS"},
            {.name = "chosen", .shape = "iBTS", .when = WITH(TN_HAS_CHOSEN_KEYS)}},
     .out = {{.name = "o", .shape = "dBTNV"}},
     .param = {{.role = TN_ROLE_SINKS, .shape = "N", .when = WITH(TN_HAS_SINKS), .any_float = true},
               {.role = TN_ROLE_DECAY, .shape = "N", .when = WITH(TN_HAS_ALIBI), .any_float = true, .constant = true}},
     .operations = attention_operations,
     .check = rules_attention},
    {.op = TN_OP_GATED_DELTA_RULE,
     .name = "GATED_DELTA_RULE",
     .cut = "NK",
     .needs = BIT(TN_AXIS_DTYPE),
     .allows = BIT(TN_AXIS_WEIGHT),
     .features = TN_HAS_CHANNEL_DECAY,
     .dims = BIT(TN_DIM_HEAD) | BIT(TN_DIM_HEAD_V) | BIT(TN_DIM_Q_HEADS) | BIT(TN_DIM_KV_HEADS),
     .in = {{.name = "v", .shape = "dBTKV"},
            {.name = "state", .shape = "fBKDV"},
            {.name = "q", .shape = "dBTND"},
            {.name = "k", .shape = "dBTND"},
            {.name = "a", .shape = "dBTKG"},
            {.name = "b", .shape = "dBTK"},
            {.name = "index", .shape = "iBT"}},
     .out = {{.name = "o", .shape = "dBTKV"}, {.name = "state", .shape = "fBKDV"}},
     .param = {{.role = TN_ROLE_DECAY, .shape = "K", .any_float = true},
               {.role = TN_ROLE_BIAS, .shape = "KG", .any_float = true}},
     .in_place = 2,
     .operations = delta_operations,
     .check = rules_delta},
    {.op = TN_OP_SELECTIVE_SCAN,
     .name = "SELECTIVE_SCAN",
     .needs = BIT(TN_AXIS_DTYPE),
     .allows = BIT(TN_AXIS_WEIGHT),
     .features = TN_HAS_STEP_LIMITS | TN_HAS_F32_RESULT,
     .dims = BIT(TN_DIM_HEAD) | BIT(TN_DIM_HEAD_V) | BIT(TN_DIM_Q_HEADS) | BIT(TN_DIM_KV_HEADS),
     .nums = BIT(TN_NUM_LEAST) | BIT(TN_NUM_LIMIT),
     .in = {{.name = "x", .shape = "dBTKV"},
            {.name = "state", .shape = "fBKDV"},
            {.name = "b", .shape = "dBTND"},
            {.name = "c", .shape = "dBTND"},
            {.name = "dt", .shape = "dBTK"},
            {.name = "index", .shape = "iBT"}},
     .out = {{.name = "y", .shape = "yBTKV"}, {.name = "state", .shape = "fBKDV"}},
     .param = {{.role = TN_ROLE_DECAY, .shape = "K", .any_float = true},
               {.role = TN_ROLE_BIAS, .shape = "K", .any_float = true},
               {.role = TN_ROLE_WEIGHT, .shape = "K", .any_float = true}},
     .in_place = 2,
     .operations = scan_operations,
     .check = rules_scan},
    {.op = TN_OP_SHORT_CONV,
     .name = "SHORT_CONV",
     .cut = "W",
     .needs = BIT(TN_AXIS_DTYPE) | BIT(TN_AXIS_ACT),
     .allows = BIT(TN_AXIS_WEIGHT),
     .features = TN_HAS_BIAS,
     .dims = BIT(TN_DIM_WIDTH) | BIT(TN_DIM_TAPS),
     .in = {{.name = "x", .shape = "dBTW"}, {.name = "state", .shape = "dBWP"}, {.name = "index", .shape = "iBT"}},
     .out = {{.name = "y", .shape = "dBTW"}, {.name = "state", .shape = "dBWP"}},
     .param = {{.role = TN_ROLE_WEIGHT, .shape = "WF"},
               {.role = TN_ROLE_BIAS, .shape = "W", .when = WITH(TN_HAS_BIAS)}},
     .in_place = 2,
     .check = rules_act},
    {.op = TN_OP_ATTENTION_LAYER, .name = "ATTENTION_LAYER", .kind = OP_LATER},
    {.op = TN_OP_DECODER_LAYER, .name = "DECODER_LAYER", .kind = OP_LATER},
    {STEP(TN_OP_EMBEDDING, "EMBEDDING"), .features = TN_HAS_PARTIAL, .in = {{.name = "ids", .shape = "lT"}},
     .out = {{.name = "y", .shape = "dTA"}}},
    {STEP(TN_OP_EMBEDDING_BAG, "EMBEDDING_BAG"), .dims = BIT(TN_DIM_TOP_K),
     .in = {{.name = "ids", .shape = "lTk"}, {.name = "weights", .shape = "fTk", .constant = true}},
     .out = {{.name = "y", .shape = "dTA"}}},
    {STEP(TN_OP_ADD, "ADD"),
     .in = {{.name = "a", .shape = "d*A", .unread = true}, {.name = "b", .shape = "d*A", .unread = true}},
     .out = {{.name = "sum", .shape = "d*A"}}, .in_place = 1},
    {STEP(TN_OP_GLU, "GLU"), .in = {{.name = "gate", .shape = "dTA"}, {.name = "up", .shape = "dTA"}},
     .out = {{.name = "y", .shape = "dTA"}}, .in_place = 1},
    {STEP(TN_OP_CACHE_APPEND, "CACHE_APPEND"),
     .in = {{.name = "x", .shape = "dBTKA", .unread = true}, {.name = "slot", .shape = "iBT"}},
     .out = {{.name = "cache", .shape = "dBCKA"}}},
    {STEP(TN_OP_CHOOSE_KEYS, "CHOOSE_KEYS"), .dims = BIT(TN_DIM_TOP_K),
     .in = {{.name = "q", .shape = "dBTND"},
            {.name = "k", .shape = "dBSUD"},
            {.name = "w", .shape = "dBTN"},
            {.name = "q_index", .shape = "iBT"},
            {.name = "kv_index", .shape = "iBS"}},
     .out = {{.name = "chosen", .shape = "iBTS"}}},
    {STEP(TN_OP_SOFTCAP, "SOFTCAP"), .nums = BIT(TN_NUM_SOFTCAP), .in = {{.name = "x", .shape = "d*A"}},
     .out = {{.name = "y", .shape = "d*A"}}, .in_place = 1},
    {STEP(TN_OP_ACT, "ACT"), .needs = BIT(TN_AXIS_ACT), .in = {{.name = "x", .shape = "d*A"}},
     .out = {{.name = "y", .shape = "d*A"}}, .in_place = 1},
    {STEP(TN_OP_SCALE, "SCALE"), .nums = BIT(TN_NUM_SCALE), .in = {{.name = "x", .shape = "d*A", .unread = true}},
     .out = {{.name = "y", .shape = "d*A"}}, .in_place = 1},
    {STEP(TN_OP_CLAMP, "CLAMP"), .features = TN_HAS_STEP_LIMITS, .nums = BIT(TN_NUM_LEAST) | BIT(TN_NUM_LIMIT),
     .in = {{.name = "x", .shape = "d*A"}}, .out = {{.name = "y", .shape = "d*A"}}, .in_place = 1},
    {STEP(TN_OP_COPY, "COPY"), .in = {{.name = "x", .shape = "d*A", .unread = true}},
     .out = {{.name = "y", .shape = "d*A"}}},
    {STEP(TN_OP_ROW_SCALE, "ROW_SCALE"),
     .in = {{.name = "x", .shape = "dTA", .unread = true}, {.name = "s", .shape = "fT", .constant = true}},
     .out = {{.name = "y", .shape = "dTA"}}, .in_place = 1},
    {STEP(TN_OP_STREAM_MIX, "STREAM_MIX"), .dims = BIT(TN_DIM_STREAMS),
     .in = {{.name = "x", .shape = "dZTA"}, {.name = "c", .shape = "dTQ"}}, .out = {{.name = "y", .shape = "dZTA"}},
     .in_place = 1},
    {STEP(TN_OP_STREAM_ADD, "STREAM_ADD"), .dims = BIT(TN_DIM_STREAMS),
     .in = {{.name = "x", .shape = "dZTA", .unread = true},
            {.name = "d", .shape = "dTA"},
            {.name = "c", .shape = "dTZ"}},
     .out = {{.name = "y", .shape = "dZTA"}}, .in_place = 1},
    {STEP(TN_OP_STREAM_MEAN, "STREAM_MEAN"), .dims = BIT(TN_DIM_STREAMS),
     .in = {{.name = "x", .shape = "dZTA", .unread = true}}, .out = {{.name = "y", .shape = "dTA"}}},
    {STEP(TN_OP_DEPTHWISE, "DEPTHWISE"), .dims = BIT(TN_DIM_TAPS) | BIT(TN_DIM_STRIDE),
     .in = {{.name = "x", .shape = "dBTA"}}, .out = {{.name = "y", .shape = "dCSA"}}},
    {STEP(TN_OP_RMS_MATCH, "RMS_MATCH"), .nums = BIT(TN_NUM_EPS),
     .in = {{.name = "x", .shape = "dTA"}, {.name = "like", .shape = "dTA"}}, .out = {{.name = "y", .shape = "dTA"}},
     .in_place = 1},
};

const op_row *op_at(size_t index)
{
    return index < sizeof rows / sizeof *rows ? &rows[index] : NULL;
}

const op_row *op_find(tn_op op)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].op == op)
            return &rows[i];
    return NULL;
}

const char *tn_op_name(tn_op op)
{
    const op_row *row = op_find(op);
    return row ? row->name : "?";
}

bool op_input_has_gradient(const op_row *row, int input, tn_dtype dtype)
{
    return tensor_is_float(dtype) && !row->in[input].constant;
}

bool op_param_has_gradient(const op_row *row, tn_role role, tn_dtype dtype)
{
    for (int i = 0; i < OP_PARAMS && row->param[i].shape; i++)
        if (row->param[i].role == role)
            return tensor_is_float(dtype) && !row->param[i].constant;
    return false;
}
