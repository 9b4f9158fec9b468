/* Configurations with words that nobody knows, and configurations that contradict their tensors: one clear error each,
 * for every architecture. What words mean is tried on published configurations and on those of the golden cases, over a
 * record in place of files; contradictions need the files of the cases. */
#include "broken.h"
#include "open/model.h"
#include "model_config.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <glob.h>
#include <jansson.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *files[256]; /* config.json of every case, and published ones of known model types       */
static int file_count, case_count;

static bool is_known(const char *file)
{
    tn_error err = TN_ERROR_INIT;
    json_t *config = json_load_file(file, 0, NULL);
    bool known = models_find(json_string_value(json_object_get(config, "model_type")), &err) != NULL;
    json_decref(config);
    return known;
}

static void list_files(void)
{
    static const char *const patterns[] = {"tests/data/models/*/config.json", "tests/data/configs/*.json"};
    for (size_t p = 0; p < 2; p++) {
        glob_t found;
        if (glob(patterns[p], 0, NULL, &found) != 0)
            abort();
        for (size_t i = 0; i < found.gl_pathc && file_count < 256; i++)
            if (is_known(found.gl_pathv[i]))
                files[file_count++] = strdup(found.gl_pathv[i]);
        globfree(&found);
        case_count = p == 0 ? file_count : case_count;
    }
}

/* Where the text model is described: "", "text_config/", "thinker_config/text_config/". */
static void text_path(json_t *config, char out[64])
{
    *out = '\0';
    for (const char *inner = "thinker_config"; inner; inner = !strcmp(inner, "text_config") ? NULL : "text_config") {
        json_t *object = json_object_get(config, inner);
        if (object) {
            strcat(strcat(out, inner), "/");
            config = object;
        }
    }
}

/* The value at path inside config, or NULL. */
static json_t *value_at(json_t *config, const char *path)
{
    char part[128];
    while (config && *path) {
        size_t n = strcspn(path, "/");
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        config = json_object_get(config, part);
        path += n + (path[n] == '/');
    }
    return config;
}

/* ---- words --------------------------------------------------------------------------------------- */

static const struct {
    const char *key, *value; /* value NULL: a list that is one too short                             */
    const char *word, *known;
} words[] = {
    {"hidden_act", "\"swish_of_tomorrow\"", "hidden_act'", "silu"},
    {"hidden_activation", "\"swish_of_tomorrow\"", "hidden_activation'", "gelu_pytorch_tanh"},
    {"rope_scaling/rope_type", "\"spiral\"", "spiral", "default"},
    {"rope_scaling/type", "\"spiral\"", "spiral", "default"},
    {"rope_parameters/rope_type", "\"spiral\"", "spiral", "default"},
    {"rope_parameters/full_attention/rope_type", "\"spiral\"", "spiral", "default"},
    {"layer_types", "[\"some_attention\"]", "layer_types'", ""},
    {"layer_types", NULL, "layer_types'", ""},
    {"scoring_func", "\"guess\"", "scoring_func'", ""},
    {"topk_method", "\"guess\"", "topk_method'", ""},
    {"num_attention_heads", "0", "num_attention_heads'", "0"},
    {"num_hidden_layers", "\"two\"", "num_hidden_layers'", "an integer"},
    {"quantization_config", "{\"quant_method\": \"exl2\"}", "quantization_config.quant_method", "exl2"},
};
enum { WORD_COUNT = sizeof words / sizeof words[0] };

/* Is the key there to be spoilt? What Gemma's files have as hidden_act is not read. */
static bool applies(json_t *config, const char *text, size_t w)
{
    char path[256];
    snprintf(path, sizeof path, "%s%s", text, words[w].key);
    json_t *value = value_at(config, path);
    if (!strcmp(words[w].key, "quantization_config"))
        return true;
    if (!strcmp(words[w].key, "hidden_act")) {
        snprintf(path, sizeof path, "%shidden_activation", text);
        return value && json_is_null(value_at(config, path) ? value_at(config, path) : json_null());
    }
    if (!strcmp(words[w].key, "rope_scaling/type")) { /* the older name is not read beside the newer one */
        snprintf(path, sizeof path, "%srope_scaling/rope_type", text);
        return value && !value_at(config, path);
    }
    return value && !json_is_null(value);
}

static char *spoilt_list(json_t *config, const char *path)
{
    json_t *list = json_deep_copy(value_at(config, path));
    json_array_remove(list, json_array_size(list) - 1);
    char *text = json_dumps(list, 0);
    json_decref(list);
    return text;
}

static void expect_word(const char *file, json_t *config, const char *text, size_t w)
{
    char path[256];
    bool top = !strcmp(words[w].key, "quantization_config");
    snprintf(path, sizeof path, "%s%s", top ? "" : text, words[w].key);
    char *folder = tempdir_new(), *list = words[w].value ? NULL : spoilt_list(config, path);
    tn_error err = TN_ERROR_INIT;
    ck_assert(model_config_copy(file, &(model_config_changes){0}, folder, &err) == TN_OK);
    broken_json(folder, "config.json", path, list ? list : words[w].value);
    shards *record = shards_record(TN_BF16, &err);
    tn_model *model = model_open(folder, NULL, record, &err);
    ck_assert_msg(model == NULL, "%s: %s = %s is accepted", file, path, list ? list : words[w].value);
    ck_assert_msg(strstr(err.message, words[w].word) && strstr(err.message, words[w].known),
                  "%s: %s: '%s' says not %s, %s", file, path, err.message, words[w].word, words[w].known);
    broken_expect(&err, TN_E_INPUT, "config.json", NULL);
    free(list);
}

START_TEST(an_unknown_word)
{
    char text[64];
    json_t *config = json_load_file(files[_i], 0, NULL);
    text_path(config, text);
    for (size_t w = 0; w < WORD_COUNT; w++)
        if (applies(config, text, w))
            expect_word(files[_i], config, text, w);
    json_decref(config);
}
END_TEST

/* ---- numbers ------------------------------------------------------------------------------------- */

/* Sizes, each of which some tensor has. */
static const char *const numbers[] = {"vocab_size",
                                      "hidden_size",
                                      "intermediate_size",
                                      "num_hidden_layers",
                                      "num_attention_heads",
                                      "num_key_value_heads",
                                      "head_dim",
                                      "num_experts",
                                      "num_local_experts",
                                      "n_routed_experts",
                                      "moe_num_experts",
                                      "moe_intermediate_size",
                                      "kv_lora_rank",
                                      "q_lora_rank",
                                      "linear_num_value_heads",
                                      "linear_key_head_dim",
                                      "linear_value_head_dim",
                                      "linear_conv_kernel_dim",
                                      "conv_L_cache",
                                      "laurel_rank",
                                      "hidden_size_per_layer_input",
                                      "n_embd",
                                      "n_layer",
                                      "n_positions",
                                      "max_position_embeddings",
                                      "ffn_dim",
                                      "ffn_hidden_size",
                                      "word_embed_proj_dim",
                                      "num_kv_heads"};

/* Does any tensor have such a name? Some keys mean nothing where all layers have experts, or none. */
static bool has_tensor(const char *folder, const char *piece)
{
    tn_error err = TN_ERROR_INIT;
    bool found = false;
    shards *set = shards_open(folder, &err);
    ck_assert_msg(set != NULL, "%s: %s", err.where, err.message);
    for (size_t i = 0; i < shards_count(set); i++)
        found = found || strstr(shards_name(set, i), piece);
    shards_close(set);
    return found;
}

/* Latent attention and Cohere have a head_dim of their own making; HunYuan's experts are as wide as its MLPs. Where
 * hidden is cut into heads no tensor tells how many; positions count where they are learnt. */
static bool counts(const char *folder, const char *key)
{
    if (!strcmp(key, "head_dim"))
        return !has_tensor(folder, "kv_a_proj") && !strstr(folder, "cohere");
    if (!strcmp(key, "num_attention_heads"))
        return !has_tensor(folder, "attention.query_key_value") && !has_tensor(folder, "embed_positions");
    if (!strcmp(key, "n_positions") || !strcmp(key, "max_position_embeddings"))
        return has_tensor(folder, "wpe.") || has_tensor(folder, "embed_positions");
    if (!strcmp(key, "num_kv_heads"))
        return has_tensor(folder, "ln_attn");
    if (!strcmp(key, "moe_intermediate_size"))
        return !strstr(folder, "hunyuan");
    if (!strcmp(key, "intermediate_size"))
        return has_tensor(folder, "mlp.up_proj") || has_tensor(folder, "mlp.gate_up_proj");
    if (!strcmp(key, "num_key_value_heads"))
        return has_tensor(folder, "k_proj") || has_tensor(folder, "qkv_proj");
    return true;
}

/* Twice as many of something: everything that the configuration says of itself still holds, the tensors do not. */
static void expect_contradiction(const char *folder_of_case, const char *name, const char *path, int64_t value)
{
    char number[32];
    char *folder = broken_copy(name);
    snprintf(number, sizeof number, "%lld", (long long)(2 * value));
    broken_json(folder, "config.json", path, number);
    tn_error err = TN_ERROR_INIT;
    tn_model *model = tn_model_open(folder, NULL, &err);
    ck_assert_msg(model == NULL, "%s: %s = %s is accepted", folder_of_case, path, number);
    const char *key = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    bool names = strstr(err.message, key) || strstr(err.where, "layers.") || strstr(err.where, "weight") ||
                 strstr(err.message, "layer_types'") || strstr(err.message, "_types'");
    ck_assert_msg(names, "%s: %s = %s: neither key nor tensor in '%s: %s'", name, path, number, err.where, err.message);
    broken_expect(&err, TN_E_INPUT, NULL);
}

/* What a file cannot bound, a record does. */
START_TEST(more_tensors_than_a_record_has)
{
    char *folder = tempdir_new();
    tn_error err = TN_ERROR_INIT;
    ck_assert(model_config_copy("tests/data/configs/qwen3_moe.json", &(model_config_changes){0}, folder, &err) ==
              TN_OK);
    broken_json(folder, "config.json", "num_experts", "65536");
    shards *record = shards_record(TN_BF16, &err);
    ck_assert_ptr_null(model_open(folder, NULL, record, &err));
    broken_expect(&err, TN_E_INPUT, "model.layers.", "has no such tensor", NULL);
}
END_TEST

START_TEST(a_number_that_no_tensor_has)
{
    char text[64], path[256];
    json_t *config = json_load_file(files[_i], 0, NULL);
    char *folder = strdup(files[_i]);
    text_path(config, text);
    *strrchr(folder, '/') = '\0';
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        snprintf(path, sizeof path, "%s%s", text, numbers[i]);
        json_t *value = value_at(config, path);
        if (json_is_integer(value) && json_integer_value(value) > 0 && counts(folder, numbers[i]))
            expect_contradiction(folder, strrchr(folder, '/') + 1, path, json_integer_value(value));
    }
    free(folder);
    json_decref(config);
}
END_TEST

int main(void)
{
    list_files();
    TCase *tc = suite_open("bad_configs", 120);
    tcase_add_loop_test(tc, an_unknown_word, 0, file_count);
    suite_add(tc, more_tensors_than_a_record_has);
    tcase_add_loop_test(tc, a_number_that_no_tensor_has, 0, case_count);
    int status = suite_run();
    for (int i = 0; i < file_count; i++)
        free(files[i]);
    return status;
}
