/* The architectures of .gguf files: a row for each, and what their tensors are called. */
#include "checkpoint/gguf_arch.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names of tensors ------------------------------------------------------------------------- */

static const gguf_rename usual[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
    {"attn_norm", "input_layernorm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_qkv", "self_attn.qkv_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"attn_sinks.weight", "self_attn.sinks"},
    {"attn_q_a", "self_attn.q_a_proj"},
    {"attn_q_a_norm", "self_attn.q_a_layernorm"},
    {"attn_q_b", "self_attn.q_b_proj"},
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
    {"attn_kv_b", "self_attn.kv_b_proj"},
    {"attn_k_b", "self_attn.k_b_proj.#"}, /* of a head: [kv_lora_rank, nope]                       */
    {"attn_v_b", "self_attn.v_b_proj.#"}, /* [v, kv_lora_rank]                                     */
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
    {"ffn_gate_exps", "mlp.experts.#.gate_proj"},
    {"ffn_up_exps", "mlp.experts.#.up_proj"},
    {"ffn_down_exps", "mlp.experts.#.down_proj"},
    {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
    {"ffn_down_shexp", "mlp.shared_expert.down_proj"},
    {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
    {0},
};

static const gguf_rename phi3[] = {{"ffn_up", "mlp.gate_up_proj"}, {0}};

static const gguf_rename mixtral[] = {{"ffn_gate_exps", "mlp.experts.#.w1"},
                                      {"ffn_up_exps", "mlp.experts.#.w3"},
                                      {"ffn_down_exps", "mlp.experts.#.w2"},
                                      {0}};

static const gguf_rename shared_experts[] = {{"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
                                             {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
                                             {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
                                             {0}};

static const gguf_rename gemma[] = {{"ffn_norm", "pre_feedforward_layernorm"}, {0}};

static const gguf_rename gpt_oss[] = {{"post_attention_norm", "post_attention_layernorm"},
                                      {"ffn_gate_inp", "mlp.router"},
                                      {"ffn_gate_exps.bias", "mlp.experts.gate_up_proj_bias"},
                                      {"ffn_down_exps.bias", "mlp.experts.down_proj_bias"},
                                      {0}};

/* ---- architectures ------------------------------------------------------------------------------ */

/* What classes would otherwise take from their defaults. */
#define LATENT "\"q_lora_rank\": null, \"routed_scaling_factor\": 1.0"
#define NO_CAPS "{\"attn_logit_softcapping\": null, \"final_logit_softcapping\": null}"

static const gguf_arch archs[] = {
    {"deepseek2", "expert_gating_func", 2, "deepseek_v3", "DeepseekV3ForCausalLM", GGUF_LATENT, 0,
     "{\"norm_topk_prob\": true, " LATENT "}", shared_experts},
    {"deepseek2", NULL, 0, "deepseek_v2", "DeepseekV2ForCausalLM", GGUF_LATENT, 0,
     "{\"norm_topk_prob\": false, " LATENT "}", shared_experts},
    {"gemma2", NULL, 0, "gemma2", "Gemma2ForCausalLM", GGUF_PLUS_ONE, 2, NO_CAPS, gemma},
    {"gemma3", NULL, 0, "gemma3_text", "Gemma3ForCausalLM", GGUF_PLUS_ONE | GGUF_TWO_ROPES, 6, NO_CAPS, gemma},
    {"gpt-oss", NULL, 0, "gpt_oss", "GptOssForCausalLM", 0, 2, NULL, gpt_oss},
    {"llama", "expert_count", 0, "mixtral", "MixtralForCausalLM", GGUF_PAIRS, 0, NULL, mixtral},
    {"llama", NULL, 0, "llama", "LlamaForCausalLM", GGUF_PAIRS, 0, NULL, NULL},
    {"phi3", NULL, 0, "phi3", "Phi3ForCausalLM", GGUF_PARTIAL, 0, NULL, phi3},
    {"qwen2", NULL, 0, "qwen2", "Qwen2ForCausalLM", 0, 0, NULL, NULL},
    {"qwen2moe", NULL, 0, "qwen2_moe", "Qwen2MoeForCausalLM", 0, 0, "{\"norm_topk_prob\": false}", NULL},
    {"qwen3", NULL, 0, "qwen3", "Qwen3ForCausalLM", 0, 0, NULL, NULL},
    {"qwen3moe", NULL, 0, "qwen3_moe", "Qwen3MoeForCausalLM", 0, 0, "{\"norm_topk_prob\": true}", NULL},
};

enum { ARCHS = sizeof archs / sizeof *archs };

const char *gguf_arch_key(const gguf_arch *arch, const char *key, char out[static 128])
{
    snprintf(out, 128, "%s.%s", arch->name, key);
    return out;
}

static bool is_meant(const gguf *file, const gguf_arch *arch)
{
    char key[128];
    double number = 0;
    if (arch->when)
        gguf_number(file, gguf_arch_key(arch, arch->when, key), &number);
    return !arch->when || (arch->is ? number == (double)arch->is : number > 0);
}

const gguf_arch *gguf_arch_of(const gguf *file, tn_error *err)
{
    const char *name = gguf_text(file, "general.architecture");
    char shown[64], known[512] = "";
    for (size_t i = 0, used = 0; name && i < ARCHS; i++) {
        if (!strcmp(name, archs[i].name) && is_meant(file, &archs[i]))
            return &archs[i];
        if ((i == 0 || strcmp(archs[i].name, archs[i - 1].name) != 0) && used < sizeof known)
            used += text_cut(known + used, sizeof known - used, "%s%s", i ? ", " : "", archs[i].name);
    }
    if (!name)
        tn_fail(err, TN_E_INPUT, gguf_path(file, 0), "key 'general.architecture' is missing; this is not a model");
    else if (text_escape(shown, sizeof shown, name))
        tn_fail(err, TN_E_INPUT, gguf_path(file, 0),
                "key 'general.architecture' is '%s', which is not supported; those that are: %s", shown, known);
    return NULL;
}

static const gguf_rename *rename_in(const gguf_rename *list, const char *name, const char **rest)
{
    for (; list && list->gguf; list++) {
        size_t length = strlen(list->gguf);
        if (strncmp(name, list->gguf, length) != 0 || (name[length] != '\0' && name[length] != '.'))
            continue;
        *rest = name + length;
        return list;
    }
    return NULL;
}

const gguf_rename *gguf_arch_rename(const gguf_arch *arch, const char *name, const char **rest)
{
    const gguf_rename *own = rename_in(arch->names, name, rest);
    return own ? own : rename_in(usual, name, rest);
}

const gguf_arch *gguf_arch_written(const char *model_type, tn_error *err)
{
    char known[512] = "";
    if (!strcmp(model_type, "mistral")) /* without a window it is the same */
        model_type = "llama";
    for (size_t i = 0, used = 0; i < ARCHS; i++) {
        if (!strcmp(model_type, archs[i].model_type))
            return &archs[i];
        if (used < sizeof known)
            used += text_cut(known + used, sizeof known - used, "%s%s", used ? ", " : "", archs[i].model_type);
    }
    tn_fail(err, TN_E_INPUT, "config.json", "models of type '%s' are not written as .gguf; those that are: %s",
            model_type, known);
    return NULL;
}

/* Where name goes on behind form, whose '#' is a number; NULL: it begins otherwise. */
static const char *behind_form(const char *form, const char *name, int64_t *number)
{
    const char *mark = strchr(form, '#');
    size_t before = mark ? (size_t)(mark - form) : strlen(form);
    char *end;
    *number = -1;
    if (strncmp(name, form, before) != 0)
        return NULL;
    name += before;
    if (!mark)
        return name;
    *number = *name >= '0' && *name <= '9' ? strtoll(name, &end, 10) : -1;
    return *number >= 0 && !strncmp(end, mark + 1, strlen(mark + 1)) ? end + strlen(mark + 1) : NULL;
}

/* Rows that another hides do not count. */
static const gguf_rename *name_in(const gguf_arch *arch, const gguf_rename *list, const char *hf, const char **rest,
                                  int64_t *number)
{
    const char *unused;
    for (; list && list->gguf; list++) {
        *rest = behind_form(list->hf, hf, number);
        if (*rest && (**rest == '.' || !**rest) && gguf_arch_rename(arch, list->gguf, &unused) == list)
            return list;
    }
    return NULL;
}

const gguf_rename *gguf_arch_name(const gguf_arch *arch, const char *hf, const char **rest, int64_t *number)
{
    const gguf_rename *own = name_in(arch, arch->names, hf, rest, number);
    return own ? own : name_in(arch, usual, hf, rest, number);
}

bool gguf_arch_tensor(const gguf *file, const char *name, tn_tensor *tensor)
{
    const char *path;
    for (size_t i = 0; i < gguf_tensor_count(file); i++)
        if (!strcmp(gguf_tensor(file, i, tensor, &path), name))
            return true;
    return false;
}
