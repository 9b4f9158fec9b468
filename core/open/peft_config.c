/* What adapter_config.json says: the keys that have a meaning here, and a refusal of all that would change what is
 * computed and has none. */
#include "open/peft.h"

#include "base/json_memory.h"
#include "base/structs.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char FILE_NAME[] = "adapter_config.json";

/* Read here, or of no effect on what an adapter computes that was trained already. */
static const char *const known[] = {"peft_type",
                                    "r",
                                    "lora_alpha",
                                    "use_rslora",
                                    "lora_dropout",
                                    "target_modules",
                                    "exclude_modules",
                                    "rank_pattern",
                                    "alpha_pattern",
                                    "layers_to_transform",
                                    "layers_pattern",
                                    "target_parameters",
                                    "fan_in_fan_out",
                                    "bias",
                                    "init_lora_weights",
                                    "auto_mapping",
                                    "base_model_name_or_path",
                                    "revision",
                                    "task_type",
                                    "inference_mode",
                                    "peft_version",
                                    "loftq_config",
                                    "eva_config",
                                    "corda_config",
                                    "lora_ga_config",
                                    "megatron_core",
                                    "qalora_group_size",
                                    "ensure_weight_tying",
                                    NULL};

static bool is_known(const char *key)
{
    for (int i = 0; known[i]; i++)
        if (!strcmp(known[i], key))
            return true;
    return false;
}

/* Of those that are read, what else than the plain case they may say. */
static void refuse_others(const config_reader *c)
{
    const char *type = config_str(c, "peft_type", "LORA"), *bias = config_str(c, "bias", "none");
    const char *start = config_is_str(c, "init_lora_weights") ? config_str(c, "init_lora_weights", "") : "gaussian";
    const char *key;
    char text[96];
    if (*c->status == TN_OK && strcmp(type, "LORA") != 0)
        config_fail(c, "peft_type", "is '%s', only LORA is supported", type);
    if (*c->status == TN_OK && strcmp(bias, "none") != 0)
        config_fail(c, "bias", "is '%s', only none is supported: biases are not trained", bias);
    /* The others change the weights that the adapter belongs to. */
    if (*c->status == TN_OK && strcmp(start, "gaussian") != 0 && strcmp(start, "orthogonal") != 0 &&
        strcmp(start, "eva") != 0)
        config_fail(c, "init_lora_weights", "is '%s', which needs other weights than the model's", start);
    for (int64_t i = 0; *c->status == TN_OK && (key = config_key(c, i)) != NULL; i++)
        if (!is_known(key) && strcmp(key, "megatron_config") != 0 && config_says(c, key, 0, text, sizeof text))
            config_fail(c, key, "is %s, which is not supported", text);
}

static tn_status read(peft_config *a, tn_error *err)
{
    tn_status status = TN_OK;
    config_reader c = config_root(a->file, &status, err);
    refuse_others(&c);
    a->rank = config_i64(&c, "r", 8, 1, PEFT_LARGEST_RANK);
    a->alpha = config_f64(&c, "lora_alpha", 8);
    a->dropout = config_f64(&c, "lora_dropout", 0);
    a->rslora = config_bool(&c, "use_rslora", false);
    config_bool(&c, "fan_in_fan_out", false);
    if (status == TN_OK && !(a->dropout >= 0 && a->dropout < 1))
        config_fail(&c, "lora_dropout", "is %g, must be at least 0 and below 1", a->dropout);
    return status;
}

tn_status peft_config_open(peft_config *a, const char *folder, tn_error *err)
{
    char path[4096];
    *a = (peft_config){0};
    if (snprintf(path, sizeof path, "%s/%s", folder, FILE_NAME) >= (int)sizeof path)
        return tn_fail(err, TN_E_INPUT, folder, "the name is too long");
    json_error_t ignored;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &ignored);
    a->text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    if (!(a->file = config_open(path, err)))
        return err && err->code != TN_OK ? err->code : TN_E_INPUT;
    return read(a, err);
}

/* The names of experts' projections are those of parameters today, of which gate and up are one. */
static const char *parameter_of(const char *name, size_t length)
{
    static const char *const names[][2] = {
        {"gate_proj", "gate_up_proj"}, {"up_proj", "gate_up_proj"}, {"down_proj", "down_proj"}};
    for (int i = 0; i < 3; i++)
        if (strlen(names[i][0]) == length && !strncmp(names[i][0], name, length))
            return names[i][1];
    return NULL;
}

/* "all", an expression, or names between commas. Of a mixture the names of experts' projections become parameters, and
 * no dense layer has them any more, as peft does it. */
static void add_targets(json_t *root, const char *text, bool mixture)
{
    json_t *list = json_array(), *parameters = json_object();
    bool all = !text || !strcmp(text, "all"), expression = !all && strpbrk(text, "\\*+?()[]{}|^$");
    for (const char *at = all || expression ? "" : text, *end; *at; at = *end ? end + 1 : end) {
        end = at + strcspn(at, ",");
        const char *parameter = mixture ? parameter_of(at, (size_t)(end - at)) : NULL;
        if (parameter)
            json_object_set_new(parameters, parameter, json_true());
        else if (end > at)
            json_array_append_new(list, json_stringn(at, (size_t)(end - at)));
    }
    if (all || expression) {
        json_decref(list);
        list = json_string(all ? "all-linear" : text);
    }
    json_object_set_new(root, "target_modules", list);
    if (json_object_size(parameters) > 0) {
        const char *name;
        json_t *value, *names = json_array();
        json_object_foreach (parameters, name, value)
            json_array_append_new(names, json_string(name));
        json_object_set_new(root, "target_parameters", names);
    }
    json_decref(parameters);
}

/* Factors that gate and up share have the rank of both. */
static void add_patterns(json_t *root, int64_t rank, double alpha)
{
    static const char pattern[] = ".*\\.gate_up_proj";
    json_object_set_new(root, "rank_pattern", json_pack("{s:I}", pattern, (json_int_t)(2 * rank)));
    json_object_set_new(root, "alpha_pattern", json_pack("{s:f}", pattern, 2 * alpha));
}

static char *text_of(const tn_lora *lora, const char *model, bool mixture)
{
    json_memory_watch();
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:I, s:f, s:b, s:f, s:s, s:b}", "peft_type", "LORA", "task_type", "CAUSAL_LM",
                  "base_model_name_or_path", model, "r", (json_int_t)lora->rank, "lora_alpha", lora->alpha,
                  "use_rslora", lora->rslora, "lora_dropout", lora->dropout, "bias", "none", "inference_mode", 1);
    if (root)
        add_targets(root, lora->targets, mixture);
    if (json_object_get(root, "target_parameters"))
        add_patterns(root, lora->rank, lora->alpha);
    char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(root);
    if (!json_memory_failed())
        return text;
    free(text);
    return NULL;
}

tn_status peft_config_make(peft_config *a, const tn_lora *given, const char *model, bool mixture, tn_error *err)
{
    tn_lora lora;
    *a = (peft_config){0};
    tn_status status = structs_take(&lora, sizeof lora, given, "tn_lora", err);
    if (status != TN_OK)
        return status;
    lora.rank = lora.rank ? lora.rank : 8;
    lora.alpha = lora.alpha != 0 ? lora.alpha : 2.0 * (double)lora.rank;
    if (lora.rank < 1 || lora.rank > PEFT_LARGEST_RANK || !isfinite(lora.alpha) ||
        !(lora.dropout >= 0 && lora.dropout < 1))
        return tn_fail(err, TN_E_USAGE, "tn_lora", "rank %lld, alpha %g, dropout %g: out of range",
                       (long long)lora.rank, lora.alpha, lora.dropout);
    a->seed = lora.seed;
    if (!(a->text = text_of(&lora, model, mixture)))
        return tn_fail(err, TN_E_MEMORY, "tn_lora", "out of memory, or a text in it is no UTF-8");
    if (!(a->file = config_open_text(FILE_NAME, a->text, err)))
        return err && err->code != TN_OK ? err->code : TN_E_INPUT;
    return read(a, err);
}

void peft_config_close(peft_config *a)
{
    config_close(a->file);
    free(a->text);
    *a = (peft_config){0};
}
