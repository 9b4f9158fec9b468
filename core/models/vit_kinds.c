/* The towers of whole pictures that there are: what each modeling file calls things, and what it leaves out of
 * config.json. */
#include "models/vit.h"

#include <string.h>

static const parts_mlp_names fc1_fc2 = {NULL, "fc1", "fc2"};

/* CLIP and SigLIP, which are written alike. */
#define CLIP_LIKE                                                                                                      \
    .embeddings = "embeddings", .patch = "patch_embedding", .positions = "position_embedding",                         \
    .post_norm = "post_layernorm", .around = "encoder", .list = "layers", .list_class = "ModuleList",                  \
    .norm1 = "layer_norm1", .norm2 = "layer_norm2", .attn = "self_attn", .o = "out_proj", .mlp_name = "mlp",           \
    .mlp_names = &fc1_fc2, .bias = true, .depth = 12, .hidden = 768, .heads = 12, .inter = 3072, .image = 224

/* As processing_pixtral writes them. */
static const vit_marks pixtral_marks = {.before = "", .line = "[IMG_BREAK]", .after = "[IMG_END]"};

static const vit_family families[] = {{.model_type = "clip_vision_model",
                                       .scope = "modeling_clip",
                                       .model = "CLIPVisionModel",
                                       .inside = "CLIPEncoder",
                                       .embeddings_class = "CLIPVisionEmbeddings",
                                       .block = "CLIPEncoderLayer",
                                       .attention = "CLIPAttention",
                                       .mlp = "CLIPMLP",
                                       .class_token = "class_embedding",
                                       .pre_norm = "pre_layrnorm",
                                       .act = "quick_gelu",
                                       .eps = 1e-5,
                                       .patch_size = 32,
                                       CLIP_LIKE},
                                      {.model_type = "siglip_vision_model",
                                       .scope = "modeling_siglip",
                                       .model = "SiglipVisionModel",
                                       .inside = "SiglipEncoder",
                                       .embeddings_class = "SiglipVisionEmbeddings",
                                       .block = "SiglipEncoderLayer",
                                       .attention = "SiglipAttention",
                                       .mlp = "SiglipMLP",
                                       .patch_bias = true,
                                       .act = "gelu_pytorch_tanh",
                                       .eps = 1e-6,
                                       .patch_size = 16,
                                       CLIP_LIKE},
                                      {.model_type = "pixtral",
                                       .scope = "modeling_pixtral",
                                       .model = "PixtralVisionModel",
                                       .inside = "PixtralTransformer",
                                       .list_class = "ModuleList",
                                       .block = "PixtralAttentionLayer",
                                       .attention = "PixtralAttention",
                                       .mlp = "PixtralMLP",
                                       .norm = "PixtralRMSNorm",
                                       .patch = "patch_conv",
                                       .pre_norm = "ln_pre",
                                       .around = "transformer",
                                       .list = "layers",
                                       .norm1 = "attention_norm",
                                       .norm2 = "ffn_norm",
                                       .attn = "attention",
                                       .o = "o_proj",
                                       .mlp_name = "feed_forward",
                                       .gated = true,
                                       .by_axes = true,
                                       .may_differ = true,
                                       .marks = &pixtral_marks,
                                       .act = "gelu",
                                       .eps = 1e-5,
                                       .depth = 24,
                                       .hidden = 1024,
                                       .heads = 16,
                                       .inter = 4096,
                                       .image = 1024,
                                       .patch_size = 16},
                                      {.model_type = "internvl_vision",
                                       .scope = "modeling_internvl",
                                       .model = "InternVLVisionModel",
                                       .inside = "InternVLVisionEncoder",
                                       .embeddings_class = "InternVLVisionEmbeddings",
                                       .list_class = "ModuleList",
                                       .block = "InternVLVisionLayer",
                                       .attention = "InternVLVisionAttention",
                                       .mlp = "InternVLVisionMLP",
                                       .embeddings = "embeddings",
                                       .patch = "patch_embeddings",
                                       .patch_inner = "projection",
                                       .class_token = "cls_token",
                                       .positions = "position_embeddings",
                                       .loose = true,
                                       .post_norm = "layernorm",
                                       .around = "encoder",
                                       .list = "layer",
                                       .norm1 = "layernorm_before",
                                       .norm2 = "layernorm_after",
                                       .attn = "attention",
                                       .o = "projection_layer",
                                       .mlp_name = "mlp",
                                       .mlp_names = &fc1_fc2,
                                       .scale = {"lambda_1", "lambda_2"},
                                       .patch_bias = true,
                                       .bias = true,
                                       .act = "gelu",
                                       .eps = 1e-6,
                                       .depth = 24,
                                       .hidden = 1024,
                                       .heads = 16,
                                       .inter = 4096,
                                       .image = 448,
                                       .patch_size = 14}};

const vit_family *vit_family_of(const char *model_type)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (!strcmp(families[i].model_type, model_type))
            return &families[i];
    return NULL;
}
