/* Inside core: the text models of Qwen3.5, which stand alone or under one with a tower. */
#ifndef TENON_CORE_QWEN3_5_TEXT_H
#define TENON_CORE_QWEN3_5_TEXT_H

#include "models/decoder.h"
#include "models/delta_net.h"

/* What the two modeling files call their layers of the gated delta rule. */
typedef struct qwen3_5_names {
    const decoder_classes *classes;
    const char *delta, *delta_norm;
    int64_t kv_heads;
} qwen3_5_names;

/* All but the MLP of a layer. Both structs must live until the tree is built. Errors stick in config. */
void qwen3_5_text_shared(const config_reader *config, const qwen3_5_names *names, decoder_spec *spec,
                         delta_net_spec *delta);

/* The same for each of the files, MLP or experts included. */
void qwen3_5_text_read(const config_reader *config, decoder_spec *spec, delta_net_spec *delta);
void qwen3_5_moe_text_read(const config_reader *config, decoder_spec *spec, delta_net_spec *delta);

/* Files of the whole model have the text model one level further down. */
extern const build_alias qwen3_5_text_aliases[];

#endif
