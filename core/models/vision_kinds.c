/* The vision towers that there are: what each modeling file calls things, and what it leaves out of config.json. */
#include "models/vision.h"

#define TOWER(kind, given)                                                                                             \
    static void *build_##kind(graph_builder *b, graph_module *parent, const char *name, const config_reader *config,   \
                              int64_t text_hidden)                                                                     \
    {                                                                                                                  \
        return vision_build(b, parent, name, config, text_hidden, &(given));                                           \
    }                                                                                                                  \
    const tower_kind vision_##kind = {#kind,          build_##kind, vision_free, vision_tokens,                        \
                                      vision_forward, NULL,         false,       NULL};

/* ---- Qwen 2: LayerNorm, MLPs without a gate ----------------------------------------------------------- */

static const parts_mlp_names fc1_fc2 = {NULL, "fc1", "fc2"};

static const vision_family family_qwen2_vl = {
    .scope = "modeling_qwen2_vl",
    .model = "Qwen2VisionTransformerPretrainedModel",
    .patch = "PatchEmbed",
    .rotary = "VisionRotaryEmbedding",
    .block = "Qwen2VLVisionBlock",
    .attention = "VisionAttention",
    .mlp = "VisionMlp",
    .merger = "PatchMerger",
    .mlp_names = &fc1_fc2,
    .merging = {.norm = "ln_q", .first = "0", .second = "2", .inner = "mlp", .inner_class = "Sequential"},
    .by_ratio = true,
    .mlp_bias = true,
    .attention_bias = true,
    .act = "quick_gelu",
    .eps = 1e-6,
    .depth = 32,
    .hidden = 1280,
    .heads = 16,
    .out = 3584,
    .patch_size = 14};
TOWER(qwen2_vl, family_qwen2_vl)

/* ---- Qwen 2.5: windows, RMS norms, gated MLPs ------------------------------------------------------- */

#define QWEN2_5_REST                                                                                                   \
    .merging = {.norm = "ln_q", .first = "0", .second = "2", .inner = "mlp", .inner_class = "Sequential"},             \
    .windows = true, .gated = true, .mlp_bias = true, .attention_bias = true, .act = "silu", .eps = 1e-6, .depth = 32, \
    .hidden = 3584, .heads = 16, .inter = 3420, .out = 3584, .patch_size = 14

static const vision_family family_qwen2_5_vl = {.scope = "modeling_qwen2_5_vl",
                                                .model = "Qwen2_5_VisionTransformerPretrainedModel",
                                                .patch = "Qwen2_5_VisionPatchEmbed",
                                                .rotary = "Qwen2_5_VLVisionRotaryEmbedding",
                                                .block = "Qwen2_5_VLVisionBlock",
                                                .attention = "Qwen2_5_VLVisionAttention",
                                                .mlp = "Qwen2_5_VLMLP",
                                                .merger = "Qwen2_5_VLPatchMerger",
                                                .norm = "Qwen2_5_VLRMSNorm",
                                                QWEN2_5_REST};
TOWER(qwen2_5_vl, family_qwen2_5_vl)

static const vision_family family_qwen2_5_omni = {.scope = "modeling_qwen2_5_omni",
                                                  .model = "Qwen2_5OmniVisionEncoder",
                                                  .patch = "Qwen2_5_VisionPatchEmbed",
                                                  .rotary = "Qwen2_5OmniVisionRotaryEmbedding",
                                                  .block = "Qwen2_5OmniVisionBlock",
                                                  .attention = "Qwen2_5OmniVisionAttention",
                                                  .mlp = "Qwen2_5OmniMLP",
                                                  .merger = "Qwen2_5OmniPatchMerger",
                                                  .norm = "Qwen2_5OmniRMSNorm",
                                                  .split_qkv = true,
                                                  QWEN2_5_REST};
TOWER(qwen2_5_omni, family_qwen2_5_omni)

/* ---- Qwen 3: learnt positions, LayerNorm, MLPs without a gate ---------------------------------------- */

#define QWEN3_MERGING(deep)                                                                                            \
    {                                                                                                                  \
        .list = (deep), .norm = "norm", .first = "linear_fc1", .second = "linear_fc2"                                  \
    }
#define QWEN3_CLASSES(file, prefix)                                                                                    \
    .scope = "modeling_" file, .patch = prefix "VisionPatchEmbed", .rotary = prefix "VisionRotaryEmbedding",           \
    .block = prefix "VisionBlock", .attention = prefix "VisionAttention", .mlp = prefix "VisionMLP",                   \
    .merger = prefix "VisionPatchMerger"
#define QWEN3_REST                                                                                                     \
    .positions = VISION_BILINEAR, .patch_bias = true, .mlp_bias = true, .attention_bias = true,                        \
    .act = "gelu_pytorch_tanh", .eps = 1e-6, .depth = 27, .hidden = 1152, .heads = 16, .inter = 4304, .out = 3584,     \
    .patch_size = 16, .position_count = 2304

static const vision_family family_qwen3_vl = {QWEN3_CLASSES("qwen3_vl", "Qwen3VL"), .model = "Qwen3VLVisionModel",
                                              .merging = QWEN3_MERGING("deepstack_merger_list"), QWEN3_REST};
TOWER(qwen3_vl, family_qwen3_vl)

static const vision_family family_qwen3_vl_moe = {QWEN3_CLASSES("qwen3_vl_moe", "Qwen3VLMoe"),
                                                  .model = "Qwen3VLMoeVisionModel",
                                                  .merging = QWEN3_MERGING("deepstack_merger_list"), QWEN3_REST};
TOWER(qwen3_vl_moe, family_qwen3_vl_moe)

static const vision_family family_qwen3_5 = {QWEN3_CLASSES("qwen3_5", "Qwen3_5"), .model = "Qwen3_5VisionModel",
                                             .merging = QWEN3_MERGING(NULL), QWEN3_REST};
TOWER(qwen3_5, family_qwen3_5)

static const vision_family family_qwen3_5_moe = {QWEN3_CLASSES("qwen3_5_moe", "Qwen3_5Moe"),
                                                 .model = "Qwen3_5MoeVisionModel", .merging = QWEN3_MERGING(NULL),
                                                 QWEN3_REST};
TOWER(qwen3_5_moe, family_qwen3_5_moe)

static const vision_family family_qwen3_omni_moe = {QWEN3_CLASSES("qwen3_omni_moe", "Qwen3OmniMoe"),
                                                    .model = "Qwen3OmniMoeVisionEncoder",
                                                    .merging = {.list = "merger_list",
                                                                .norm = "ln_q",
                                                                .first = "0",
                                                                .second = "2",
                                                                .inner = "mlp",
                                                                .inner_class = "ModuleList"},
                                                    QWEN3_REST};
TOWER(qwen3_omni_moe, family_qwen3_omni_moe)

/* ---- GLM-4V: learnt positions, RMS norms, gated MLPs, downsampling --------------------------------- */

#define GLM_CLASSES(file, prefix)                                                                                      \
    .scope = "modeling_" file, .model = prefix "VisionModel", .patch = prefix "VisionPatchEmbed",                      \
    .rotary = prefix "VisionRotaryEmbedding", .block = prefix "VisionBlock", .attention = prefix "VisionAttention",    \
    .merger = prefix "VisionPatchMerger", .norm = prefix "RMSNorm", .embeddings = prefix "VisionEmbeddings"
#define GLM_REST                                                                                                       \
    .merging = {.downsamples = true}, .positions = VISION_BICUBIC, .gated = true, .patch_bias = true,                  \
    .post_norms = true, .act = "silu", .eps = 1e-5, .depth = 24, .hidden = 1536, .heads = 12, .inter = 13696,          \
    .out = 4096, .patch_size = 14, .image_size = 336

static const vision_family family_glm4v = {GLM_CLASSES("glm4v", "Glm4v"), .mlp = "Glm4VisionMlp", GLM_REST};
TOWER(glm4v, family_glm4v)

static const vision_family family_glm4v_moe = {GLM_CLASSES("glm4v_moe", "Glm4vMoe"), .mlp = "Glm4vMoeisionMlp",
                                               GLM_REST};
TOWER(glm4v_moe, family_glm4v_moe)
