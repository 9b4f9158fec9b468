/* Inside core: mixtures of experts, as modules. */
#ifndef TENON_CORE_MOE_PARTS_H
#define TENON_CORE_MOE_PARTS_H

#include "graph/build.h"

/* What a modeling file and its checkpoints call the pieces. A file has one tensor per expert and projection
 * ("experts.3.gate_proj.weight"), or those of all experts stacked ("experts.gate_up_proj"). */
typedef struct moe_parts_names {
    const char *block_class, *router_class, *experts_class;
    const char *router, *experts; /* modules inside the block                                       */
    const char *gate, *up, *down; /* of one expert                                            */
    const char *all_gate_up, *all_down;
} moe_parts_names;

/* A softmax-routed block of gated experts. */
typedef struct moe_parts_spec {
    const moe_parts_names *names;
    int64_t hidden, inter, experts, top_k;
    tn_act act;
    uint64_t route_features; /* TN_HAS_RENORM, TN_HAS_F32_ROUTING                                 */
} moe_parts_spec;

/* The block called name: its MOE_BLOCK site and, inside it, those of router and experts. NULL after an error. */
graph_site *moe_parts_block(graph_builder *b, graph_module *parent, const char *name, const moe_parts_spec *spec);

#endif
