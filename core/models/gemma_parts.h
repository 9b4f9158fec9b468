/* Inside core: what the modeling files of the Gemma family have in common. */
#ifndef TENON_CORE_GEMMA_PARTS_H
#define TENON_CORE_GEMMA_PARTS_H

#include "models/decoder.h"

/* Rotations of layers with a window and of those without, in decoder_spec.rope. */
enum { GEMMA_LOCAL, GEMMA_GLOBAL };

/* Both, with the parameters of their layer type. */
void gemma_parts_ropes(decoder_spec *spec);

/* What a layer is of whose type that is. */
void gemma_parts_layer_type(decoder_layer_spec *layer, bool slides);

/* The last shared layers use the keys and values of the last layer of their type before them. */
void gemma_parts_share(const config_reader *config, int64_t i, int64_t shared,
                       bool (*slides)(const config_reader *, int64_t), gqa_spec *attention);

/* "query_pre_attn_scalar" to the power of -0.5. */
double gemma_parts_score_scale(const config_reader *config);

/* Refuses "use_bidirectional_attention", but where what is around the model sees to it. */
void gemma_parts_causal(const graph_builder *b, const config_reader *config);

#endif
