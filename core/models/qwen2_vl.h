/* Inside core: what the two files of Qwen2-VL share. */
#ifndef TENON_CORE_QWEN2_VL_H
#define TENON_CORE_QWEN2_VL_H

#include "models/multimodal.h"

/* Qwen2 on three axes, with a class' names. */
void *qwen2_vl_text(graph_builder *b, const config_reader *config, const decoder_classes *classes,
                    const multimodal_place *place);

/* Names of files from before transformers 5. */
extern const build_alias qwen2_vl_aliases[];

#define QWEN2_VL_SPEC                                                                                                  \
    .token_key = {[MULTIMODAL_IMAGE] = "image_token_id", [MULTIMODAL_VIDEO] = "video_token_id"},                       \
    .token = {[MULTIMODAL_IMAGE] = 151655, [MULTIMODAL_VIDEO] = 151656}, .flat = true, .text_ties = true,              \
    .sections = {16, 24, 24}, .aliases = qwen2_vl_aliases

#endif
