/* Inside core: experts as the files of DeepSeek, and of those who follow it, describe them. */
#ifndef TENON_CORE_ROUTED_H
#define TENON_CORE_ROUTED_H

#include "models/decoder.h"

/* Reads them, and sets them as those of most layers: n_routed_experts (or an older name), num_experts_per_tok,
 * moe_intermediate_size, n_shared_experts, routed_scaling_factor, n_group, topk_group, some of them also by the names
 * that other files have. defaults: the class's, with
 * shared_inter counting experts; score, names and features as they are. */
void routed_read(const config_reader *config, decoder_spec *spec, const moe_parts_spec *defaults);

/* The same with sigmoid scores in f32, whose weights are made to add up to 1 unless "norm_topk_prob" is false. */
void routed_sigmoid(const config_reader *config, decoder_spec *spec, const moe_parts_spec *defaults);

/* Takes the experts away from layer i where it comes before "first_k_dense_replace". */
void routed_first_dense(const config_reader *config, int64_t i, int64_t fallback, decoder_layer_spec *layer);

/* The same by what "mlp_layer_types" says of layer i, where the file has it. */
void routed_by_type(const config_reader *config, int64_t i, int64_t fallback, decoder_layer_spec *layer);

#endif
