/* Inside core: what Gemma 4 adds to a decoder. */
#ifndef TENON_CORE_GEMMA4_PARTS_H
#define TENON_CORE_GEMMA4_PARTS_H

#include "models/gemma_parts.h"
#include "models/layer_inputs.h"

typedef struct gemma4_spec {
    layer_inputs_spec inputs;            /* width 0: none                                         */
    const parts_norm_kind *norm, *plain; /* with weights and without                              */
    parts_mlp_spec mlp;
    moe_parts_spec moe; /* beside the MLP; experts 0: none                                       */
} gemma4_spec;

/* Inputs of layers, their sum with h, and the scalar of a layer. Specs: gemma4_spec. */
extern const stage_kind gemma4_parts_first;
extern const feed_kind gemma4_parts_tail;

/* MLP and experts, each with norms of its own, added. */
extern const feed_kind gemma4_parts_feed;

/* Sizes of heads in layer i: "per_layer_config", or "global_head_dim" and "num_global_key_value_heads". */
void gemma4_parts_heads(const config_reader *config, int64_t i, bool slide, gqa_spec *attention);

/* Those of all layers of a type, which must be the same. */
void gemma4_parts_heads_of_type(const config_reader *config, bool slide, bool (*slides)(const config_reader *, int64_t),
                                int64_t layers, gqa_spec *attention);

layer_inputs_spec gemma4_parts_read_inputs(const config_reader *config, const decoder_spec *s,
                                           const char *embedding_class);

#endif
