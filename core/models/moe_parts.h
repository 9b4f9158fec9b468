/* Inside core: mixtures of experts, as modules. */
#ifndef TENON_CORE_MOE_PARTS_H
#define TENON_CORE_MOE_PARTS_H

#include "models/parts.h"

/* What a modeling file and its checkpoints call the pieces. A file has one tensor per expert and projection
 * ("experts.3.gate_proj.weight"), or those of all experts stacked ("experts.gate_up_proj"; their biases are
 * "experts.gate_up_proj_bias"). */
typedef struct moe_parts_names {
    const char *block_class, *router_class, *experts_class;
    const char *router, *experts; /* modules inside the block                                       */
    const char *gate, *up, *down; /* of one expert                                            */
    const char *all_gate_up, *all_down;
    bool stacks; /* files that have neither lack the stacks                                         */
    /* Below: NULL where the modeling file has nothing of the kind. */
    const char *router_linear;           /* Linear inside the router that has its weight                         */
    const char *correction;              /* tensor of the correction bias, in the router, or                     */
    const char *statics, *statics_class; /* in this module of the router's, or                                   */
    bool correction_of_block;            /* in the block                                                         */
    const char *expert_scale;            /* tensor of the router's: a factor for each expert                     */
    const char *shared, *shared_class;   /* the shared expert, an MLP inside the block                           */
    const char *shared_gate;             /* Linear inside the block: its sigmoid is a factor of the shared expert */
} moe_parts_names;

/* What files call the parts: most; those whose matrices have numbers; those whose experts are stacked, unless they are
 * quantised. */
#define MOE_PARTS_USUAL                                                                                                \
    .router = "gate", .experts = "experts", .gate = "gate_proj", .up = "up_proj", .down = "down_proj",                 \
    .all_gate_up = "gate_up_proj", .all_down = "down_proj"
#define MOE_PARTS_NUMBERED                                                                                             \
    .router = "gate", .experts = "experts", .gate = "w1", .up = "w3", .down = "w2", .all_gate_up = "gate_up_proj",     \
    .all_down = "down_proj"
#define MOE_PARTS_STACKED                                                                                              \
    .router = "router", .experts = "experts", .gate = "gate_proj", .up = "up_proj", .down = "down_proj",               \
    .all_gate_up = "gate_up_proj", .all_down = "down_proj", .stacks = true

/* Regular classes: what they begin with, and how those of block and router go on. */
#define MOE_PARTS_CLASSES(prefix, of_block, of_router)                                                                 \
    .block_class = prefix of_block, .router_class = prefix of_router, .experts_class = prefix "Experts"
#define MOE_PARTS_SHARED(name, prefix) .shared = (name), .shared_class = prefix "MLP"

/* A block of routed, gated experts. */
typedef struct moe_parts_spec {
    const moe_parts_names *names;
    int64_t hidden, inter, experts, top_k;
    tn_act act;
    /* TN_HAS_RENORM, TN_HAS_F32_ROUTING, TN_HAS_F32_ROUTER, and for the experts TN_HAS_INPUT_SCALE; other features
     * follow from what else is set. */
    uint64_t route_features;
    tn_score score;             /* 0: softmax                                                            */
    int64_t groups, top_groups; /* of the router's; 0 or 1 groups: none                                   */
    double scale;               /* factor of the weights; 0: none                                        */
    double margin;              /* of TN_SCORE_SPARSEMIXER                                               */
    double least_sum;           /* TN_NUM_EPS of MOE_ROUTE                                               */
    double limit, alpha;        /* of TN_ACT_CLAMPED_SWIGLU                                              */
    tn_layout stacked;          /* of stacked tensors; 0: TN_LAYOUT_STACKED_OI                           */
    bool turns;                 /* stacked tensors that do not fit it are in the other order: TN_LAYOUT_STACKED_IO */
    bool router_bias, bias;     /* the router's; of all experts' products                                */
    bool f32_router;            /* router weight in f32 whatever the model's dtype                        */
    bool f32_correction;        /* the same of the correction bias                                       */
    int64_t shared_inter;       /* 0: no shared expert                                                   */
    bool shared_bias;
    const char *experts_key; /* of config.json, for errors; NULL: num_experts                         */
} moe_parts_spec;

/* The block called name: its MOE_BLOCK site and, inside it, those of router and experts, and the shared expert's MLP.
 * NULL after an error. */
graph_site *moe_parts_block(graph_builder *b, graph_module *parent, const char *name, const moe_parts_spec *spec);

/* The same pieces for models whose block is another: inside parent, outer as in graph_site. */
graph_site *moe_parts_router(graph_builder *b, graph_module *parent, const moe_parts_spec *spec, graph_site *outer);
graph_site *moe_parts_experts(graph_builder *b, graph_module *parent, const moe_parts_spec *spec, graph_site *outer);

#endif
