/* Vectors of texts: pooling, dense layers, prompts and limits against plain arithmetic on a session's states; files
 * that lie; base classes, and models that see both sides. */
#include "broken.h"
#include "embed/pipeline.h"
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tenon/tenon.h>

enum { TOKENS = 7, HIDDEN = 48, MOST = 6 * HIDDEN };

static const int64_t ids[TOKENS] = {5, 90, 17, 42, 3, 66, 101};

/* A copy of a case with the folders of its modules. */
static char *copy_case(const char *name)
{
    static const char *const parts[] = {"1_Pooling", "2_Dense", "3_Dense"};
    char from[256], *folder = broken_copy(name);
    struct stat st;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        snprintf(from, sizeof from, "tests/data/models/%s/%s", name, parts[i]);
        if (stat(from, &st) != 0)
            continue;
        char *to = tempdir_at(folder, parts[i]);
        ck_assert_int_eq(mkdir(to, 0700), 0);
        tempdir_copy(from, to);
    }
    return folder;
}

static tn_model *open_f32(const char *folder)
{
    tn_error err = TN_ERROR_INIT;
    tn_model *m = tn_model_open(folder, &(tn_model_options){.size = sizeof(tn_model_options), .dtype = "f32"}, &err);
    ck_assert_msg(m != NULL, "%s: %s", err.where, err.message);
    return test_model_kept(m);
}

static tn_embedder *embedder_of(tn_model *m, uint32_t pooling)
{
    tn_error err = TN_ERROR_INIT;
    tn_embedder *e =
        tn_embedder_open(m, &(tn_embedder_options){.size = sizeof(tn_embedder_options), .pooling = pooling}, &err);
    ck_assert_msg(e != NULL, "%s: %s", err.where, err.message);
    return e;
}

/* The states behind the final norm. */
static void states_of(tn_model *m, float states[TOKENS * HIDDEN])
{
    tn_model_info info = {.size = sizeof info};
    tn_model_get_info(m, &info);
    ck_assert_int_eq(info.hidden, HIDDEN);
    float *hidden[16] = {NULL};
    hidden[info.layers] = states;
    tn_session *s = test_model_session(m, .context = TOKENS);
    test_model_run(s, TOKENS, ids, .hidden = hidden);
    tn_session_free(s);
}

static void embed_tokens(tn_embedder *e, int64_t tokens, int64_t prompt, float *out)
{
    tn_error err = TN_ERROR_INIT;
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = tokens, .ids = ids};
    tn_status status = tn_embed(e, &batch, prompt, out, &err);
    ck_assert_msg(status == TN_OK, "%s: %s", err.where, err.message);
}

static void expect_close(const float *got, const double *expected, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(fabs((double)got[i] - expected[i]) <= 2e-6, "element %d: %.9g, expected %.9g", (int)i,
                      (double)got[i], expected[i]);
}

static void divide_by_length(double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++)
        x[i] /= sqrt(sum);
}

/* One kind of pooling over the tokens from first on. */
static void pool(uint32_t kind, const float *states, int64_t first, double out[HIDDEN])
{
    for (int i = 0; i < HIDDEN; i++) {
        double sum = 0, weighted = 0, weights = 0, max = -INFINITY;
        for (int64_t t = first; t < TOKENS; t++) {
            double x = (double)states[t * HIDDEN + i];
            sum += x;
            weighted += (double)(t + 1) * x;
            weights += (double)(t + 1);
            max = fmax(max, x);
        }
        out[i] = kind == TN_POOLING_CLS             ? (double)states[i]
                 : kind == TN_POOLING_MAX           ? max
                 : kind == TN_POOLING_MEAN          ? sum / (double)(TOKENS - first)
                 : kind == TN_POOLING_MEAN_SQRT_LEN ? sum / sqrt((double)(TOKENS - first))
                 : kind == TN_POOLING_WEIGHTED_MEAN ? weighted / weights
                                                    : (double)states[(TOKENS - 1) * HIDDEN + i];
    }
}

START_TEST(every_kind_of_pooling)
{
    float states[TOKENS * HIDDEN], got[MOST];
    tn_model *m = open_f32("tests/data/models/qwen3_embedding");
    states_of(m, states);
    for (uint32_t pooling = 1; pooling < 64; pooling++) {
        double expected[MOST];
        int64_t width = 0;
        for (uint32_t kind = 1; kind < 64; kind *= 2)
            if (pooling & kind) {
                pool(kind, states, 0, expected + width);
                width += HIDDEN;
            }
        divide_by_length(expected, width);
        tn_embedder *e = embedder_of(m, pooling);
        tn_embedder_info info = {.size = sizeof info};
        ck_assert_int_eq(tn_embedder_get_info(e, &info), TN_OK);
        ck_assert_int_eq(info.width, width);
        embed_tokens(e, TOKENS, 0, got);
        expect_close(got, expected, width);
        tn_embedder_close(e);
    }
}
END_TEST

/* ---- files -------------------------------------------------------------------------------------- */

#define MODULE(number, path, type)                                                                                     \
    "{\"idx\": " #number ", \"name\": \"" #number "\", \"path\": \"" path "\", \"type\": \"some.models." type "\"}"
#define MODEL_AND_POOLING MODULE(0, "", "Transformer") ", " MODULE(1, "1_Pooling", "Pooling")

static void write_dense(const char *folder, const char *act, int64_t in, int64_t out, bool bias)
{
    char text[512];
    float weight[24 * MOST], b[24];
    tn_error err = TN_ERROR_INIT;
    char *path = tempdir_at(folder, "2_Dense"), *file = tempdir_at(path, "model.safetensors");
    mkdir(path, 0700);
    snprintf(text, sizeof text, "{\"in_features\": %d, \"out_features\": %d, \"bias\": %s%s%s%s}", (int)in, (int)out,
             bias ? "true" : "false", act ? ", \"activation_function\": \"torch.nn.modules." : "", act ? act : "",
             act ? "\"" : "");
    tempdir_put(path, "config.json", text);
    for (int64_t i = 0; i < in * out; i++)
        weight[i] = (float)(i % 13 - 6) / 16;
    for (int64_t i = 0; i < out; i++)
        b[i] = (float)(i % 5 - 2) / 8;
    tn_named_tensor tensors[] = {{"linear.weight", tn_tensor_dense(weight, TN_F32, 2, (int64_t[]){out, in})},
                                 {"linear.bias", tn_tensor_dense(b, TN_F32, 1, &out)}};
    ck_assert_int_eq(tn_safetensors_write(file, tensors, bias ? 2 : 1, &err), TN_OK);
}

static double act_of(const char *name, double x)
{
    if (!name || strstr(name, "Tanh"))
        return tanh(x);
    if (strstr(name, "ReLU"))
        return x < 0 ? 0 : x;
    if (strstr(name, "GELU"))
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    if (strstr(name, "SiLU"))
        return x / (1 + exp(-x));
    return strstr(name, "Sigmoid") ? 1 / (1 + exp(-x)) : x;
}

/* Two kinds of pooling behind a prompt that is left out, a matrix with each activation, and no norm. */
START_TEST(files_say_what_comes_behind)
{
    static const char *const acts[] = {"linear.Identity",
                                       "activation.Tanh",
                                       "activation.ReLU",
                                       "activation.GELU",
                                       "activation.SiLU",
                                       "activation.Sigmoid",
                                       NULL};
    enum { OUT = 24, IN = 2 * HIDDEN, PROMPT = 2 };
    float states[TOKENS * HIDDEN], got[OUT];
    double pooled[IN], expected[OUT];
    char *folder = copy_case("qwen3_embedding");
    tempdir_put(folder, "modules.json",
                "[" MODEL_AND_POOLING ", " MODULE(2, "", "Dropout") ", " MODULE(3, "2_Dense", "Dense") "]");
    char *pooling = tempdir_at(folder, "1_Pooling");
    tempdir_put(pooling, "config.json",
                "{\"word_embedding_dimension\": 48, \"pooling_mode_max_tokens\": true, \"include_prompt\": false}");
    write_dense(folder, acts[_i], IN, OUT, _i % 2);
    tn_model *m = open_f32(folder);
    tn_embedder *e = embedder_of(m, 0);
    tn_embedder_info info = {.size = sizeof info};
    ck_assert_int_eq(tn_embedder_get_info(e, &info), TN_OK);
    ck_assert(!info.include_prompt && info.width == OUT);
    states_of(m, states);
    pool(TN_POOLING_MAX, states, PROMPT, pooled);
    pool(TN_POOLING_MEAN, states, PROMPT, pooled + HIDDEN);
    for (int o = 0; o < OUT; o++) {
        double sum = _i % 2 ? (double)(o % 5 - 2) / 8 : 0;
        for (int i = 0; i < IN; i++)
            sum += (double)((o * IN + i) % 13 - 6) / 16 * pooled[i];
        expected[o] = act_of(acts[_i], sum);
    }
    embed_tokens(e, TOKENS, PROMPT, got);
    for (int o = 0; o < OUT; o++)
        ck_assert_double_eq_tol((double)got[o], expected[o], 1e-4);
    tn_error err = TN_ERROR_INIT;
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = PROMPT, .ids = ids};
    ck_assert_int_eq(tn_embed(e, &batch, PROMPT, got, &err), TN_E_INPUT);
    broken_expect(&err, TN_E_INPUT, "text 0", "behind its prompt", NULL);
    tn_embedder_close(e);
}
END_TEST

START_TEST(prompts_and_limits)
{
    tn_error err = TN_ERROR_INIT;
    float got[HIDDEN];
    char *folder = copy_case("qwen3_embedding");
    tempdir_put(folder, "config_sentence_transformers.json",
                "{\"prompts\": {\"query\": \"ask: \", \"document\": \"\"}, \"default_prompt_name\": \"query\"}");
    tempdir_put(folder, "sentence_bert_config.json", "{\"max_seq_length\": 5, \"do_lower_case\": false}");
    tn_embedder *e = embedder_of(open_f32(folder), 0);
    tn_embedder_info info = {.size = sizeof info};
    ck_assert_int_eq(tn_embedder_get_info(e, &info), TN_OK);
    ck_assert_int_eq(info.max_tokens, 5);
    ck_assert_uint_eq(info.prompt_count, 2);
    ck_assert_str_eq(info.prompts[1], "document");
    ck_assert_str_eq(info.default_prompt, "query");
    ck_assert_str_eq(tn_embedder_prompt(e, NULL, &err), "ask: ");
    ck_assert_str_eq(tn_embedder_prompt(e, "document", &err), "");
    ck_assert_ptr_null(tn_embedder_prompt(e, "quest", &err));
    broken_expect(&err, TN_E_USAGE, "'quest'", "query, document", NULL);
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = TOKENS, .ids = ids};
    err = (tn_error)TN_ERROR_INIT;
    ck_assert_int_eq(tn_embed(e, &batch, 0, got, &err), TN_E_INPUT);
    broken_expect(&err, TN_E_INPUT, "has 7 tokens", "at most 5", NULL);
    tn_embedder_close(e);
}
END_TEST

/* Files that lie: each is one line that names file, key or tensor. */
static const struct {
    const char *file, *text; /* text NULL: the file is removed                                   */
    const char *words[3];
} lies[] = {
    {"modules.json", NULL, {"has no modules.json", "--pooling mean, last, cls or max"}},
    {"modules.json", "{}", {"modules.json", "is not a JSON list"}},
    {"modules.json", "[", {"modules.json", "is not valid JSON"}},
    {"modules.json", "[]", {"modules.json", "names no Pooling"}},
    {"modules.json", "[1]", {"modules.json", "'0'", "an object"}},
    {"modules.json", "[" MODULE(0, "", "Transformer") "]", {"names no Pooling"}},
    {"modules.json", "[" MODULE(0, "0_Model", "Transformer") "]", {"0.type", "at '0_Model'"}},
    {"modules.json", "[" MODULE(1, "1_Pooling", "Pooling") "]", {"0.type", "Transformer"}},
    {"modules.json", "[" MODEL_AND_POOLING ", " MODULE(2, "1_Pooling", "Pooling") "]", {"2.type", "second module"}},
    {"modules.json", "[" MODULE(0, "", "Transformer") ", " MODULE(1, "", "Normalize") "]", {"1.type", "second module"}},
    {"modules.json",
     "[" MODULE(0, "", "Transformer") ", " MODULE(1, "../1_Pooling", "Pooling") "]",
     {"1.path", "leads out of the folder"}},
    {"modules.json", "[" MODULE(0, "", "Transformer") ", " MODULE(1, "/etc", "Pooling") "]", {"1.path", "'/etc'"}},
    {"modules.json", "[" MODULE(0, "", "Transformer") ", " MODULE(1, "a/..", "Pooling") "]", {"1.path", "'a/..'"}},
    {"modules.json",
     "[" MODULE(0, "", "Transformer") ", " MODULE(1, "9_Pooling", "Pooling") "]",
     {"9_Pooling/config.json"}},
    {"modules.json", "[" MODEL_AND_POOLING ", " MODULE(2, "", "LSTM") "]", {"2.type", "LSTM", "Dense"}},
    {"1_Pooling/config.json", "[]", {"1_Pooling/config.json", "is not a JSON object"}},
    {"1_Pooling/config.json", "{\"word_embedding_dimension\": 47}", {"word_embedding_dimension", "hidden_size 48"}},
    {"1_Pooling/config.json", "{\"word_embedding_dimension\": 1e300}", {"word_embedding_dimension"}},
    {"1_Pooling/config.json", "{\"pooling_mode_mean_tokens\": false}", {"pooling_mode_mean_tokens", "must be true"}},
    {"1_Pooling/config.json", "{\"pooling_mode_mean_tokens\": \"yes\"}", {"pooling_mode_mean_tokens"}},
    {"1_Pooling/config.json", "{\"pooling_mode\": \"median\"}", {"pooling_mode", "median", "lasttoken"}},
    {"1_Pooling/config.json", "{\"pooling_mode_median\": true}", {"pooling_mode_median", "is not supported"}},
    {"2_Dense/config.json", "{\"out_features\": 96}", {"in_features", "missing"}},
    {"2_Dense/config.json", "{\"in_features\": 47, \"out_features\": 96}", {"in_features", "gives 48"}},
    {"2_Dense/config.json", "{\"in_features\": 48, \"out_features\": -1}", {"out_features"}},
    {"2_Dense/config.json", "{\"in_features\": 48, \"out_features\": 1099511627776}", {"out_features"}},
    {"2_Dense/config.json",
     "{\"in_features\": 48, \"out_features\": 95, \"bias\": false}",
     {"model.safetensors", "linear.weight", "[95,48]"}},
    {"2_Dense/config.json", "{\"in_features\": 48, \"out_features\": 96, \"bias\": true}", {"linear.bias"}},
    {"2_Dense/config.json",
     "{\"in_features\": 48, \"out_features\": 96, \"activation_function\": \"torch.nn.Softplus\"}",
     {"activation_function", "torch.nn.Softplus"}},
    {"2_Dense/config.json",
     "{\"in_features\": 48, \"out_features\": 96, \"module_input_name\": \"token_embeddings\"}",
     {"module_input_name", "token_embeddings"}},
    {"2_Dense/model.safetensors", NULL, {"2_Dense/model.safetensors"}},
    {"2_Dense/model.safetensors", "short", {"2_Dense/model.safetensors"}},
    {"config_sentence_transformers.json", "{\"prompts\": 3}", {"prompts"}},
    {"config_sentence_transformers.json", "{\"prompts\": {\"query\": 3}}", {"prompts.query"}},
    {"config_sentence_transformers.json", "{\"default_prompt_name\": \"query\"}", {"default_prompt_name", "'query'"}},
    {"sentence_bert_config.json", "{\"do_lower_case\": true}", {"do_lower_case"}},
    {"sentence_bert_config.json", "{\"max_seq_length\": -3}", {"max_seq_length"}},
};
enum { LIES = sizeof lies / sizeof *lies };

START_TEST(a_file_that_lies_is_told)
{
    tn_error err = TN_ERROR_INIT;
    char *folder = copy_case("embeddinggemma");
    if (lies[_i].text)
        tempdir_put(folder, lies[_i].file, lies[_i].text);
    else
        ck_assert_int_eq(remove(tempdir_at(folder, lies[_i].file)), 0);
    tn_embedder *e = tn_embedder_open(open_f32(folder), NULL, &err);
    ck_assert_msg(e == NULL, "%s: %s", lies[_i].file, lies[_i].text);
    for (int w = 0; w < 3 && lies[_i].words[w]; w++)
        broken_expect(&err, TN_E_INPUT, lies[_i].words[w], NULL);
}
END_TEST

/* Files that would keep the reader busy. */
START_TEST(long_lists_are_told)
{
    tn_error err = TN_ERROR_INIT;
    enum { MANY = 1100, SIZE = MANY * 64 };
    char *text = malloc(SIZE), *folder = copy_case("embeddinggemma");
    suite_keep(text, free);
    strcpy(text, _i ? "{\"prompts\": {\"0\": \"\"" : "[" MODEL_AND_POOLING);
    for (int i = 1; i < MANY; i++)
        snprintf(text + strlen(text), SIZE - strlen(text), _i ? ", \"%d\": \"\"" : ", {\"type\": \"Dropout\"}", i);
    strcat(text, _i ? "}}" : "]");
    tempdir_put(folder, _i ? "config_sentence_transformers.json" : "modules.json", text);
    ck_assert_ptr_null(tn_embedder_open(open_f32(folder), NULL, &err));
    broken_expect(&err, TN_E_INPUT, _i ? "'prompts' has more than 1024" : "'64' is one module too many", NULL);
}
END_TEST

/* What is pooled may hold no number. */
START_TEST(broken_numbers_are_told)
{
    tn_error err = TN_ERROR_INIT;
    float got[HIDDEN];
    const uint16_t infinite = 0x7f80; /* bf16 */
    char *folder = copy_case("qwen3_embedding");
    char *path = tempdir_at(folder, "model.safetensors");
    size_t size;
    tn_safetensors *file = tn_safetensors_open(path, &err);
    tn_tensor t;
    ck_assert(file && tn_safetensors_get(file, "norm.weight", &t));
    char *all = tempdir_read(path, &size), *start;
    ck_assert(t.dtype == TN_BF16 && (start = memmem(all, size, t.data, HIDDEN * sizeof infinite)));
    memcpy(start, &infinite, sizeof infinite);
    tn_safetensors_close(file);
    tempdir_write(path, all, size);
    free(all);
    tn_embedder *e = embedder_of(open_f32(folder), 0);
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = TOKENS, .ids = ids};
    ck_assert_int_eq(tn_embed(e, &batch, 0, got, &err), TN_E_VERIFY);
    broken_expect(&err, TN_E_VERIFY, "NaN or infinity", "text 0", NULL);
    tn_embedder_close(e);
}
END_TEST

/* ---- base classes --------------------------------------------------------------------------------- */

/* llama as its base class is saved (lead 0), and with one "model." too many. */
static char *other_names(int lead, bool head)
{
    char *folder = broken_copy("llama"), *path = tempdir_at(folder, "model.safetensors");
    char *from = tempdir_at("tests/data/models/llama", "model.safetensors");
    tn_error err = TN_ERROR_INIT;
    tn_safetensors *file = tn_safetensors_open(from, &err);
    size_t count = tn_safetensors_count(file), kept = 0;
    tn_named_tensor *tensors = calloc(count, sizeof *tensors);
    char(*names)[128] = calloc(count, sizeof *names);
    for (size_t i = 0; i < count; i++) {
        const char *name = tn_safetensors_name(file, i);
        bool inner = !strncmp(name, "model.", 6);
        if (!inner && !head)
            continue;
        snprintf(names[kept], sizeof names[kept], "%s%s", lead && inner ? "model." : "",
                 inner && !lead ? name + 6 : name);
        tensors[kept].name = names[kept];
        tn_safetensors_get(file, name, &tensors[kept++].tensor);
    }
    ck_assert_msg(tn_safetensors_write(path, tensors, kept, &err) == TN_OK, "%s", err.message);
    tn_safetensors_close(file);
    free(tensors);
    free(names);
    return folder;
}

static float *logits_of(tn_model *m, tn_error *err)
{
    tn_session *s = test_model_session(m, .context = TOKENS);
    float *logits = calloc((size_t)test_model_vocab(m), sizeof *logits);
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = 3, .ids = (const int64_t[]){1, 2, 3}};
    tn_outputs out = {.size = sizeof out, .last_logits = logits};
    tn_session_run(s, &batch, &out, err);
    tn_session_free(s);
    suite_keep(logits, free);
    return logits;
}

START_TEST(names_of_base_classes_are_found)
{
    tn_error err = TN_ERROR_INIT;
    float *expected = logits_of(open_f32("tests/data/models/llama"), &err);
    tn_model *m = open_f32(other_names(_i, true));
    ck_assert(!memcmp(expected, logits_of(m, &err), (size_t)test_model_vocab(m) * sizeof *expected));
    ck_assert_int_eq(err.code, TN_OK);
}
END_TEST

START_TEST(a_base_class_has_no_head)
{
    tn_error err = TN_ERROR_INIT;
    int64_t out[2];
    char *folder = other_names(0, false);
    broken_json(folder, "config.json", "architectures", _i ? "[\"LlamaModel\"]" : "[\"LlamaForCausalLM\"]");
    tn_model *m = open_f32(folder);
    logits_of(m, &err);
    broken_expect(&err, TN_E_INPUT, folder, "has no head (lm_head.weight)", "tenon embed", "LlamaForCausalLM", NULL);
    err = (tn_error)TN_ERROR_INIT;
    tn_session *s = test_session_kept(test_model_session(m, .context = 8));
    tn_generate_options go = {.size = sizeof go, .max_tokens = 2};
    ck_assert_int_eq(tn_generate(s, (const int64_t[]){1, 2}, 2, &go, out, NULL, &err), TN_E_INPUT);
    broken_expect(&err, TN_E_INPUT, "has no head", NULL);
}
END_TEST

START_TEST(a_tied_base_class_has_one)
{
    tn_error err = TN_ERROR_INIT;
    char *folder = other_names(0, false);
    broken_json(folder, "config.json", "architectures", "[\"LlamaModel\"]");
    broken_json(folder, "config.json", "tie_word_embeddings", "true");
    logits_of(open_f32(folder), &err);
    ck_assert_msg(err.code == TN_OK, "%s", err.message);
}
END_TEST

/* A whole causal model without its head is a broken file, and other heads are another model. */
START_TEST(other_heads_are_refused)
{
    tn_error err = TN_ERROR_INIT;
    char *folder = broken_copy("llama");
    broken_remove_tensor(folder, "model.safetensors", "lm_head.weight");
    ck_assert_ptr_null(tn_model_open(folder, NULL, &err));
    broken_expect(&err, TN_E_INPUT, "lm_head.weight", NULL);
    err = (tn_error)TN_ERROR_INIT;
    broken_json(folder, "config.json", "architectures", "[\"LlamaForSequenceClassification\"]");
    ck_assert_ptr_null(tn_model_open(folder, NULL, &err));
    broken_expect(&err, TN_E_INPUT, "LlamaForSequenceClassification", "only LlamaForCausalLM", NULL);
}
END_TEST

/* ---- both sides ------------------------------------------------------------------------------------- */

START_TEST(a_text_that_sees_both_sides_is_one_call)
{
    tn_error err = TN_ERROR_INIT;
    int64_t out[2];
    tn_model *m = open_f32("tests/data/models/embeddinggemma");
    tn_session *s = test_session_kept(test_model_session(m, .context = 16, .chunk = 2));
    tn_batch batch = {.size = sizeof batch, .rows = 1, .tokens = TOKENS, .ids = ids};
    ck_assert_int_eq(tn_session_run(s, &batch, NULL, &err), TN_OK);
    ck_assert_int_eq(tn_session_run(s, &batch, NULL, &err), TN_E_INPUT);
    broken_expect(&err, TN_E_INPUT, "use_bidirectional_attention", "7 tokens behind 7", NULL);
    err = (tn_error)TN_ERROR_INIT;
    tn_session_reset(s);
    ck_assert_int_eq(tn_session_run(s, &batch, NULL, &err), TN_OK);
    tn_session_reset(s);
    tn_generate_options go = {.size = sizeof go, .max_tokens = 2};
    ck_assert_int_eq(tn_generate(s, ids, TOKENS, &go, out, NULL, &err), TN_E_INPUT);
    broken_expect(&err, TN_E_INPUT, "use_bidirectional_attention", "continues no text", NULL);
}
END_TEST

/* The last token changes the state of the first, as far as windows reach. */
START_TEST(what_follows_is_seen)
{
    float one[TOKENS * HIDDEN], other[TOKENS * HIDDEN], *hidden[4] = {NULL, NULL, NULL, other};
    int64_t changed[TOKENS];
    tn_model *m = open_f32("tests/data/models/embeddinggemma");
    states_of(m, one);
    memcpy(changed, ids, sizeof ids);
    changed[TOKENS - 1]++;
    tn_session *s = test_session_kept(test_model_session(m, .context = TOKENS));
    test_model_run(s, TOKENS, changed, .hidden = hidden);
    ck_assert(memcmp(one, other, HIDDEN * sizeof *one) != 0);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("embed", 120);
    suite_add(tc, every_kind_of_pooling, prompts_and_limits, broken_numbers_are_told, a_tied_base_class_has_one,
              other_heads_are_refused, a_text_that_sees_both_sides_is_one_call, what_follows_is_seen);
    tcase_add_loop_test(tc, files_say_what_comes_behind, 0, 7);
    tcase_add_loop_test(tc, a_file_that_lies_is_told, 0, LIES);
    tcase_add_loop_test(tc, long_lists_are_told, 0, 2);
    tcase_add_loop_test(tc, names_of_base_classes_are_found, 0, 2);
    tcase_add_loop_test(tc, a_base_class_has_no_head, 0, 2);
    return suite_run();
}
