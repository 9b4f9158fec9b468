/* Inside core: what LFM2 and its mixture of experts share. */
#ifndef TENON_CORE_LFM2_H
#define TENON_CORE_LFM2_H

#include "models/decoder.h"
#include "models/gated_conv.h"

/* Reads the spec, whose classes are set, and the convolutions that stand in most layers; both must outlive the build.
 */
void lfm2_read(const config_reader *config, const char *conv_class, decoder_spec *spec, gated_conv_spec *conv);

/* For decoder_spec.differ: attention as "layer_types" or "full_attn_idxs" say, else in all layers. */
void lfm2_differ(const config_reader *config, int64_t i, decoder_layer_spec *layer);

#endif
