/* Inside core: what is inside of GLM-4V and, under another class, GLM-4.6V. */
#ifndef TENON_CORE_GLM4V_H
#define TENON_CORE_GLM4V_H

#include "models/multimodal.h"

void *glm4v_text(graph_builder *b, const config_reader *config, const multimodal_place *place);

#define GLM4V_SPEC                                                                                                     \
    .vision = &vision_glm4v,                                                                                           \
    .token_key = {[MULTIMODAL_IMAGE] = "image_token_id", [MULTIMODAL_VIDEO] = "video_token_id"},                       \
    .token = {[MULTIMODAL_IMAGE] = 151343, [MULTIMODAL_VIDEO] = 151344}, .text_ties = true, .one_picture_token = true, \
    .sections = {8, 12, 12}, .rules = {.split_frames = true, .image_interval = 1, .video_interval = 1},                \
    .text = glm4v_text

#endif
