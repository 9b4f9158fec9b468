/* Tensors that checkpoints of an architecture carry although nothing of it reads them. Others that stay unread are a
 * sign that config.json is not that of the weights. */
#include "models/models.h"

#include <stdlib.h>
#include <string.h>

typedef struct unread {
    const char *model_type; /* NULL: any                                                          */
    const char *part;       /* of the name                                                        */
} unread;

static const unread known[] = {
    {NULL, "rotary_emb.inv_freq"}, /* computed; in old files                                      */
    {NULL, "lm_head.weight"},      /* that of a model whose head is its embedding                 */
    {NULL, "mtp."},                /* heads that guess several tokens                             */
    /* Masks and what stands in their place; in old files. */
    {"gpt2", ".attn.bias"},
    {"gpt2", ".attn.masked_bias"},
    {"gptj", ".attn.bias"},
    {"gptj", ".attn.masked_bias"},
    {"gpt_neox", ".attention.bias"},
    {"gpt_neox", ".attention.masked_bias"},
    /* What its config says already. */
    {"minimax", ".self_attn.slope_rate"},
    {"minimax", ".self_attn.query_decay"},
    {"minimax", ".self_attn.key_decay"},
    {"minimax", ".self_attn.diagonal_decay"},
    /* The other parts of a file whose text model is what runs. */
    {NULL, "visual."},
    {NULL, "vision"},
    {NULL, "audio"},
    {NULL, "multi_modal_projector."},
    {NULL, "image_newline"},
    {NULL, "embed_vision."},
    {NULL, "talker."},
    {NULL, "token2wav."},
    {NULL, "code2wav."},
    /* Keys and values of layers that use those of an earlier one. */
    {"gemma3n_text", ".self_attn.k_"},
    {"gemma3n_text", ".self_attn.v_"},
    {"gemma4_text", ".self_attn.k_"},
    {"gemma4_text", ".self_attn.v_"},
};

/* Their heads for several tokens are layers behind the last. */
static const char *const with_layers_behind[] = {"deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite",
                                                 "glm4v_moe",   "glm_moe_dsa",  "hy_v3",    "minimax_m2"};

bool models_leaves(const char *model_type, int64_t layers, const char *name)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if ((!known[i].model_type || !strcmp(known[i].model_type, model_type)) && strstr(name, known[i].part))
            return true;
    const char *layer = strstr(name, "layers.");
    for (size_t i = 0; layer && i < sizeof with_layers_behind / sizeof *with_layers_behind; i++)
        if (!strcmp(with_layers_behind[i], model_type) && strtoll(layer + strlen("layers."), NULL, 10) >= layers)
            return true;
    return false;
}
