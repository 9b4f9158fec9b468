/* Published types around a text model: its numbers are those of the text model alone, whatever names the file has. */
#include "models/models.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 7 };

static const struct {
    const char *wrapper, *inside;
} cases[] = {{"gemma3", "gemma3_text"}, {"gemma3n", "gemma3n_text"}, {"gemma4", "gemma4_text"},
             {"llama4", "llama4_text"}, {"mistral3", "mistral"},     {"mistral3", "ministral3"},
             {"llava", "llama"},        {"llava_next", "mistral"},   {"internvl", "qwen2_sliding"},
             {"internvl", "qwen3"},     {"llava", "gemma2"}};
enum { CASES = sizeof cases / sizeof *cases };

/* What stands for "model." and "lm_head.". */
static const struct {
    const char *model, *head;
} names[] = {{"language_model.model.", "language_model.lm_head."}, {"model.language_model.", "lm_head."}};
enum { NAMES = sizeof names / sizeof *names };

static char *renamed(const char *name, const char *from, const char *to, char out[256])
{
    snprintf(out, 256, "%s%s", to, name + strlen(from));
    return out;
}

/* The name in the text model's file as the wrapper's has it; what is written with both parts already loses one. */
static const char *wrapped_name(const char *name, size_t form, char out[256])
{
    static const char *const model[] = {"model.language_model.", "language_model.model.", "model."};
    if (!strncmp(name, "lm_head.", strlen("lm_head.")))
        return renamed(name, "lm_head.", names[form].head, out);
    for (size_t i = 0; i < sizeof model / sizeof *model; i++)
        if (!strncmp(name, model[i], strlen(model[i])))
            return renamed(name, model[i], names[form].model, out);
    return name;
}

static void wrap_weights(const char *from, const char *to, size_t form)
{
    size_t size;
    char *file = tempdir_read(from, &size), name[256];
    uint64_t length, longer;
    memcpy(&length, file, sizeof length);
    json_t *header = json_loadb(file + 8, (size_t)length, 0, NULL), *other = json_object(), *value;
    ck_assert_ptr_nonnull(header);
    const char *key;
    json_object_foreach (header, key, value)
        ck_assert_int_eq(json_object_set(other, wrapped_name(key, form, name), value), 0);
    char *text = json_dumps(other, JSON_COMPACT);
    longer = (strlen(text) + 7) / 8 * 8;
    size_t data = size - 8 - (size_t)length;
    char *out = malloc(8 + (size_t)longer + data);
    memcpy(out, &longer, 8);
    memset(out + 8, ' ', (size_t)longer);
    memcpy(out + 8, text, strlen(text));
    memcpy(out + 8 + longer, file + 8 + length, data);
    tempdir_write(to, out, 8 + (size_t)longer + data);
    free(out);
    free(text);
    free(file);
    json_decref(header);
    json_decref(other);
}

/* The folder of cases[i] inside its wrapper; config.json says whether embeddings are tied within the text model or
 * around it. */
static char *wrap(size_t i, size_t form)
{
    char from[300];
    char *folder = tempdir_new();
    snprintf(from, sizeof from, "tests/data/models/%s/config.json", cases[i].inside);
    json_t *text = json_load_file(from, 0, NULL), *tied = json_incref(json_object_get(text, "tie_word_embeddings"));
    if (form == 1)
        json_object_del(text, "tie_word_embeddings");
    const model_wrapper *w = models_wrapper(cases[i].wrapper);
    json_t *config = json_pack("{s:s, s:[s], s:o, s:{}}", "model_type", w->model_type, "architectures", w->class_name,
                               "text_config", text, "vision_config");
    if (form == 1 && tied)
        json_object_set(config, "tie_word_embeddings", tied);
    json_decref(tied);
    ck_assert_int_eq(json_dump_file(config, tempdir_at(folder, "config.json"), 0), 0);
    json_decref(config);
    snprintf(from, sizeof from, "tests/data/models/%s/model.safetensors", cases[i].inside);
    wrap_weights(from, tempdir_at(folder, "model.safetensors"), form);
    return folder;
}

static float *logits_of(const char *folder, int64_t *vocab)
{
    tn_model *m = test_model(folder, .dtype = "f32");
    int64_t ids[TOKENS];
    *vocab = test_model_vocab(m);
    for (int64_t t = 0; t < TOKENS; t++)
        ids[t] = 1 + t * 37 % (*vocab - 1);
    float *logits = calloc((size_t)(TOKENS * *vocab), sizeof *logits);
    suite_keep(logits, free);
    test_model_run(test_session(m, .context = TOKENS), TOKENS, ids, .logits = logits);
    return logits;
}

START_TEST(numbers_are_those_of_the_text_model)
{
    int64_t vocab, other;
    const float *alone = logits_of(cases[_i % CASES].inside, &vocab);
    ck_assert_uint_eq(tn_notice_count(), 0);
    const float *inside = logits_of(wrap((size_t)_i % CASES, (size_t)_i / CASES), &other);
    ck_assert_int_eq(vocab, other);
    ck_assert_mem_eq(alone, inside, (size_t)(TOKENS * vocab) * sizeof *alone);
    ck_assert_uint_eq(tn_notice_count(), 1);
    suite_expect_in(tn_notice_get(0), ": its text model is used; what sees and hears beside it is not read");
}
END_TEST

START_TEST(a_gguf_is_that_of_the_text_model)
{
    enum { LLAMA = 6 };
    const tn_quantize_options o = {.size = sizeof o};
    tn_error err = TN_ERROR_INIT;
    const float *logits[2];
    int64_t vocab;
    ck_assert_str_eq(cases[LLAMA].inside, "llama");
    for (int i = 0; i < 2; i++) {
        char *out = tempdir_at(tempdir_new(), "out.gguf");
        const char *from = i ? wrap(LLAMA, 0) : "tests/data/models/llama";
        ck_assert_msg(tn_quantize(from, out, "Q8_0", &o, &err) == TN_OK, "%s: %s", err.where, err.message);
        logits[i] = logits_of(out, &vocab);
    }
    ck_assert_mem_eq(logits[0], logits[1], (size_t)(TOKENS * vocab) * sizeof **logits);
}
END_TEST

/* The object around is another's; sizes that only classes have; what is inside is unknown. */
START_TEST(what_is_inside_is_told)
{
    static const struct {
        const char *config, *says;
    } bad[] = {
        {"{\"model_type\": \"llava\", \"text_config\": {\"model_type\": \"lama\"}}",
         "model_type 'lama' is not supported"},
        {"{\"model_type\": \"llava\", \"text_config\": 3}", "text_config"},
        {"{\"model_type\": \"gemma3\", \"architectures\": [\"Gemma3ForCausalLM\"], \"text_config\": {}}",
         "is 'Gemma3ForCausalLM', which is not supported, only Gemma3ForConditionalGeneration of model_type gemma3"},
        {"{\"model_type\": \"internvl\", \"text_config\": {}}", "hidden_size"},
    };
    char *folder = tempdir_new();
    tempdir_copy("tests/data/models/llama", folder);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tn_error err = TN_ERROR_INIT;
        tempdir_put(folder, "config.json", bad[i].config);
        ck_assert_ptr_null(tn_model_open(folder, NULL, &err));
        ck_assert_int_eq(err.code, TN_E_INPUT);
        suite_expect_in(err.message, bad[i].says);
    }
}
END_TEST

int main(void)
{
    TCase *c = suite_open("wrappers", 120);
    tcase_add_loop_test(c, numbers_are_those_of_the_text_model, 0, CASES * NAMES);
    suite_add(c, a_gguf_is_that_of_the_text_model, what_is_inside_is_told);
    return suite_run();
}
