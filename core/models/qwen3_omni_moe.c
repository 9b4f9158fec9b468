/* modeling_qwen3_omni_moe: Qwen3OmniMoeForConditionalGeneration, of which the thinker reads and writes text; what
 * speaks is not built. Qwen3-MoE with towers that see and hear, features of the layers of the first added behind the
 * first layers of the text model; rotary frequencies take turns among the axes, positions in time may be fractions. */
#include "models/multimodal.h"

static const decoder_classes classes = {DECODER_CLASSES("qwen3_omni_moe", "Qwen3OmniMoeThinkerText"),
                                        .final_norm = "Qwen3OmniMoeTextRMSNorm"};

static const moe_parts_names names = {MOE_PARTS_USUAL,
                                      MOE_PARTS_CLASSES("Qwen3OmniMoeThinkerText", "SparseMoeBlock", "TopKRouter")};

static void *text(graph_builder *b, const config_reader *config, const multimodal_place *place)
{
    decoder_spec s = {.classes = &classes, .kv_heads = 4, .theta = 1e6, .differ = decoder_sparse};
    decoder_read(config, &s);
    s.layer.attention.qkv_bias = s.layer.attention.o_bias = config_bool(config, "attention_bias", false);
    s.layer.attention.head_norm = &s.norm;
    s.layer.moe = decoder_experts(config, &s, &names, 128, 8);
    s.layer.moe.inter = config_i64(config, "moe_intermediate_size", 768, 1, 1 << 20);
    s.layer.moe.route_features = config_bool(config, "norm_topk_prob", true) ? TN_HAS_RENORM : 0;
    return multimodal_text(b, config, &s, place);
}

static const build_alias aliases[] = {
    {"model.audio_tower.", "audio_tower."}, {"model.visual.", "visual."}, {"model.language_model.", "model."}, {0}};

#define THINKER "Qwen3OmniMoeThinkerForConditionalGeneration"

#define SPEC                                                                                                           \
    .model_class = "Qwen3OmniMoeThinkerModel", .vision = &vision_qwen3_omni_moe, .audio = &audio_qwen3_omni_moe,       \
    .token_key = {[MULTIMODAL_IMAGE] = "image_token_id",                                                               \
                  [MULTIMODAL_VIDEO] = "video_token_id",                                                               \
                  [MULTIMODAL_SOUND] = "audio_token_id"},                                                              \
    .token = {[MULTIMODAL_IMAGE] = 151655, [MULTIMODAL_VIDEO] = 151656, [MULTIMODAL_SOUND] = 151646}, .deep = true,    \
    .interleaved = true, .sections = {24, 20, 20}, .rules = {.from_highest = true, .fractions = true},                 \
    .aliases = aliases, .text = text

static const multimodal_spec spec = {SPEC, .outer = "thinker", .outer_class = THINKER,
                                     .outer_config = "thinker_config"};
static const multimodal_spec alone = {SPEC};

const model_arch qwen3_omni_moe_arch = {"qwen3_omni_moe", "Qwen3OmniMoeForConditionalGeneration", NULL, &spec};
const model_arch qwen3_omni_moe_thinker_arch = {"qwen3_omni_moe_thinker", THINKER, NULL, &alone};
