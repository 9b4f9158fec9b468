/* Checkpoints written as .gguf files say nearly the same: the errors are those of eight bits and of four. What cannot
 * be said in one is an error, after which no file is there. */
#include "suite.h"
#include "tempdir.h"
#include "test_models.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 12 };

static tn_status quantize(const char *model, const char *out, const char *type, tn_error *err)
{
    return tn_quantize(model, out, type, NULL, err);
}

/* Logits of the same few tokens, in f32. Owned. */
static float *logits_of(const char *model, int64_t *vocab)
{
    int64_t ids[TOKENS];
    tn_model *m = test_model(model, .dtype = "f32");
    *vocab = test_model_vocab(m);
    float *logits = calloc((size_t)(TOKENS * *vocab), sizeof *logits);
    ck_assert_ptr_nonnull(logits);
    for (int64_t i = 0; i < TOKENS; i++)
        ids[i] = (i * 37 + 5) % *vocab;
    test_model_run(test_session(m, .context = TOKENS), TOKENS, ids, .logits = logits);
    return logits;
}

/* Root of the mean square of their difference over that of a, from its mean. */
static double distance(const float *a, const float *b, int64_t count)
{
    double off = 0, all = 0, mean = 0;
    for (int64_t i = 0; i < count; i++)
        mean += (double)a[i] / (double)count;
    for (int64_t i = 0; i < count; i++) {
        off += pow((double)a[i] - (double)b[i], 2);
        all += pow((double)a[i] - mean, 2);
    }
    return sqrt(off / all);
}

static double error_of(const char *model, const char *type)
{
    tn_error err = TN_ERROR_INIT;
    int64_t vocab, same;
    char name[256];
    const char *out = tempdir_at(tempdir_new(), strcmp(type, "FP8") ? "q.gguf" : "folder");
    snprintf(name, sizeof name, "tests/data/models/%s", model);
    ck_assert_msg(quantize(name, out, type, &err) == TN_OK, "%s: %s", model, err.message);
    float *plain = logits_of(model, &vocab), *written = logits_of(out, &same);
    ck_assert_int_eq(vocab, same);
    double error = distance(plain, written, TOKENS * vocab);
    free(plain);
    free(written);
    return error;
}

/* Rows in another order, norms without their 1 or frequencies without their factors are off by all there is; eight bits
 * are off by half a per cent of each product's terms. */
static const char *const models[] = {"llama",       "llama_llama3_rope", "llama_yarn",      "llama_linear",
                                     "mixtral",     "phi3_longrope",     "qwen2",           "qwen2_moe",
                                     "qwen3",       "qwen3_moe",         "qwen3_moe_step2", "deepseek_v2",
                                     "deepseek_v3", "gpt_oss_mxfp4"};

START_TEST(eight_bits_say_the_same)
{
    double error = error_of(models[_i], "Q8_0");
    ck_assert_msg(error > 0 && error < 0.04, "%s: %g", models[_i], error);
}
END_TEST

static const char *const types[] = {"Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "IQ4_NL", "MXFP4", "FP8"};

START_TEST(every_type_is_written)
{
    double error = error_of("qwen3", types[_i]);
    ck_assert_msg(error > 0 && error < 0.4, "%s: %g", types[_i], error);
}
END_TEST

/* ---- what is another form there ---------------------------------------------------------------------------------- */

/* text with what stands behind key, up to a comma or the end of its line, replaced. Owned. */
static char *with_value(const char *text, const char *key, const char *value)
{
    char *changed = NULL;
    const char *at = strstr(text, key);
    ck_assert_ptr_nonnull(at);
    at += strlen(key);
    ck_assert_int_ge(asprintf(&changed, "%.*s%s%s", (int)(at - text), text, value, at + strcspn(at, ",\n")), 0);
    return changed;
}

/* A model of tests/data whose config.json says something else. */
static char *model_with(const char *model, const char *key, const char *value)
{
    char from[256], *folder = tempdir_new();
    size_t size;
    snprintf(from, sizeof from, "tests/data/models/%s", model);
    tempdir_copy(from, folder);
    char *text = tempdir_read(tempdir_at(folder, "config.json"), &size), *config = with_value(text, key, value);
    tempdir_put(folder, "config.json", config);
    free(text);
    free(config);
    return folder;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* That of the middle one of the tokens: some choose another expert by a hair, and their neighbours see it. */
static double distance_of(const char *from, const char *to)
{
    int64_t vocab, same;
    double each[TOKENS];
    float *plain = logits_of(from, &vocab), *written = logits_of(to, &same);
    ck_assert_int_eq(vocab, same);
    for (int64_t i = 0; i < TOKENS; i++)
        each[i] = distance(plain + i * vocab, written + i * vocab, vocab);
    qsort(each, TOKENS, sizeof *each, compare_doubles);
    free(plain);
    free(written);
    return each[TOKENS / 2];
}

/* Experts in stacks, whose gates and ups take turns, and whose rows are columns, are matrices by themselves there. */
START_TEST(stacks_of_experts_are_turned)
{
    tn_error err = TN_ERROR_INIT;
    const char *model = model_with("gpt_oss", "\"swiglu_limit\": ", "7.0"), *out = tempdir_at(tempdir_new(), "q.gguf");
    ck_assert_msg(quantize(model, out, "Q8_0", &err) == TN_OK, "%s", err.message);
    double error = distance_of(model, out);
    ck_assert_msg(error > 0 && error < 0.04, "%g", error);
}
END_TEST

/* Mistral without a window is what llama is, and only then. */
START_TEST(mistral_is_said_as_llama)
{
    tn_error err = TN_ERROR_INIT;
    const char *model = model_with("mistral", "\"sliding_window\": ", "null"),
               *out = tempdir_at(tempdir_new(), "q.gguf");
    ck_assert_msg(quantize(model, out, "Q8_0", &err) == TN_OK, "%s", err.message);
    double error = distance_of(model, out);
    ck_assert_msg(error > 0 && error < 0.04, "%g", error);
}
END_TEST

/* Of latent attention neighbours are rotated there. */
START_TEST(halves_that_rotate_are_refused)
{
    tn_error err = TN_ERROR_INIT;
    const char *out = tempdir_at(tempdir_new(), "q.gguf");
    ck_assert_int_eq(quantize(model_with("deepseek_v3", "\"rope_interleave\": ", "false"), out, "Q8_0", &err),
                     TN_E_INPUT);
    suite_expect_in(err.message,
                    "cannot be said in that form: modeling_deepseek_v3.apply_rotary_pos_emb would be another");
    ck_assert(!tempdir_exists(out));
}
END_TEST

static void count_kept(void *ctx, const tn_quantized *t)
{
    bool experts = strstr(t->name, "_exps.weight") != NULL;
    ck_assert(!experts || (t->to == TN_MXFP4 && t->error <= 0));
    *(int *)ctx += experts;
}

/* Experts of MXFP4 have the same values in any type; everything else is as near as that type is. */
START_TEST(mxfp4_stays_mxfp4)
{
    static const char *const which[] = {"Q8_0", "Q4_K_M", "MXFP4", "Q4_0"};
    tn_error err = TN_ERROR_INIT;
    int stacks = 0;
    const char *out = tempdir_at(tempdir_new(), "q.gguf");
    const tn_quantize_options o = {.size = sizeof o, .tensor = count_kept, .ctx = &stacks};
    ck_assert_msg(tn_quantize("tests/data/models/gpt_oss_mxfp4", out, which[_i], &o, &err) == TN_OK, "%s", err.message);
    ck_assert_int_eq(stacks, 6);
    double error = distance_of("tests/data/models/gpt_oss_mxfp4", out);
    ck_assert_msg(error > 0 && error < (_i % 2 ? 0.6 : 0.04), "%s: %g", which[_i], error);
}
END_TEST

/* What is written of a .gguf that was written so has the same matrices: all of them are found again. */
START_TEST(other_forms_are_written_again)
{
    static const char *const which[] = {"deepseek_v2", "deepseek_v3", "gpt_oss_mxfp4"};
    tn_error err = TN_ERROR_INIT;
    char model[256];
    const char *folder = tempdir_new(), *once = tempdir_at(folder, "a.gguf"), *twice = tempdir_at(folder, "b.gguf");
    snprintf(model, sizeof model, "tests/data/models/%s", which[_i]);
    ck_assert_msg(quantize(model, once, "Q8_0", &err) == TN_OK, "%s", err.message);
    ck_assert_msg(quantize(once, twice, "Q8_0", &err) == TN_OK, "%s", err.message);
    ck_assert_double_le(distance_of(once, twice), 1e-6);
}
END_TEST

static const struct refused {
    const char *model, *type, *words;
} refused[] = {
    {"tests/data/models/llama", "Q3_Z", "'Q3_Z' is no type to quantise to; choose one of Q8_0,"},
    {"tests/data/models/cohere2", "Q8_0",
     "models of type 'cohere2' are not written as .gguf; those that are: deepseek_v3"},
    {"tests/data/models/llama_gelu", "Q8_0", "cannot be said in that form: model.layers.0.mlp would be another"},
    {"tests/data/models/qwen3_win", "Q8_0", "cannot be said in that form: model.layers.1.self_attn would be another"},
    {"tests/data/models/mistral", "Q8_0", "cannot be said in that form: model.layers.0.self_attn would be another"},
    {"tests/data/models/gpt_oss", "Q8_0", "cannot be said in that form: model.layers.0.mlp would be another"},
    {"tests/data/models/glm4_moe_lite", "Q8_0", "models of type 'glm4_moe_lite' are not written as .gguf; those that "},
    {"tests/data/models/llama_dynamic", "Q8_0", "key 'rope_type' is dynamic, which cannot be said in a .gguf"},
    {"tests/data/models/nothing", "Q8_0", "no such folder"},
};

START_TEST(what_cannot_be_said)
{
    const struct refused *r = &refused[_i];
    tn_error err = TN_ERROR_INIT;
    const char *folder = tempdir_new(), *out = tempdir_at(folder, "q.gguf");
    ck_assert_int_ne(quantize(r->model, out, r->type, &err), TN_OK);
    ck_assert_msg(strstr(err.message, r->words) != NULL, "%s", err.message);
    ck_assert(!tempdir_exists(out));
}
END_TEST

/* ---- tokenizers ------------------------------------------------------------------------------------------------- */

enum { MOST_TENSORS = 64, WIDTH = 64 };

/* Zeros in the place of what a vocabulary or MLPs of another size change. */
static tn_tensor resized(const char *name, tn_tensor t, float *zeros, int64_t vocab, int64_t inter)
{
    int64_t rows = strstr(name, "embed_tokens")                           ? vocab
                   : strstr(name, "gate_proj") || strstr(name, "up_proj") ? inter
                                                                          : 0;
    if (rows)
        return tn_tensor_dense(zeros, TN_F32, 2, (int64_t[]){rows, WIDTH});
    return strstr(name, "down_proj") ? tn_tensor_dense(zeros, TN_F32, 2, (int64_t[]){WIDTH, inter}) : t;
}

/* The little model of tests/data with a vocabulary and MLPs of other sizes. tokenizer: or NULL. */
static char *model_of(const char *tokenizer, int64_t vocab, int64_t inter)
{
    tn_error err = TN_ERROR_INIT;
    tn_named_tensor tensors[MOST_TENSORS];
    size_t count = 0, size;
    char *folder = tempdir_new(), from[256];
    tn_safetensors *file = tn_safetensors_open("tests/data/models/llama_llama3_rope/model.safetensors", &err);
    float *zeros = calloc((size_t)((vocab > inter ? vocab : inter) * WIDTH), sizeof *zeros);
    ck_assert_msg(file && zeros, "%s", err.message);
    for (; count < tn_safetensors_count(file) && count < MOST_TENSORS; count++) {
        tensors[count].name = tn_safetensors_name(file, count);
        ck_assert(tn_safetensors_get(file, tensors[count].name, &tensors[count].tensor));
        tensors[count].tensor = resized(tensors[count].name, tensors[count].tensor, zeros, vocab, inter);
    }
    ck_assert_int_eq(tn_safetensors_write(tempdir_at(folder, "model.safetensors"), tensors, count, &err), TN_OK);
    char *text = tempdir_read("tests/data/models/llama_llama3_rope/config.json", &size);
    snprintf(from, sizeof from, "%lld", (long long)vocab);
    char *words = with_value(text, "\"vocab_size\": ", from);
    snprintf(from, sizeof from, "%lld", (long long)inter);
    char *config = with_value(words, "\"intermediate_size\": ", from);
    tempdir_put(folder, "config.json", config);
    snprintf(from, sizeof from, "tests/data/tokenizers/%s/tokenizer.json", tokenizer ? tokenizer : "");
    if (tokenizer)
        tempdir_copy_file(from, folder, "tokenizer.json");
    tn_safetensors_close(file);
    free(zeros);
    free(text);
    free(words);
    free(config);
    return folder;
}

static const struct vocabulary {
    const char *name;
    int64_t size;
    const char *words; /* of the error; NULL: there is none                                          */
} vocabularies[] = {
    {"gpt-2", 50257, NULL},
    {"qwen2", 152000, NULL},
    {"llama-3", 128256, NULL},
    {"phi-3", 32064, NULL}, /* of pieces, with scores                                                */
    {"falcon", 65024, "its way to split text into words has no name there"},
    {"gpt-2", 50000, "it has a token whose number the model has not"},
};

/* A made-up text gets the same tokens. */
START_TEST(a_tokenizer_is_written)
{
    const struct vocabulary *v = &vocabularies[_i];
    static const char text[] = "Nobody's  code is\n\tfinished, 2026: naïve 世界 <|endoftext|>";
    tn_error err = TN_ERROR_INIT;
    char *folder = model_of(v->name, v->size, 104), *out = tempdir_at(tempdir_new(), "q.gguf");
    int64_t *ids[2];
    size_t count[2];
    tn_status status = quantize(folder, out, "Q4_0", &err);
    if (v->words) {
        ck_assert_int_eq(status, TN_E_INPUT);
        suite_expect_in(err.message, v->words);
        return;
    }
    ck_assert_msg(status == TN_OK, "%s: %s", v->name, err.message);
    for (int i = 0; i < 2; i++) {
        tn_tokenizer *t = tn_tokenizer_open(i ? out : folder, &err);
        ck_assert_msg(t != NULL, "%s", err.message);
        ck_assert_int_eq(tn_tokenizer_encode(t, text, strlen(text), true, &ids[i], &count[i], &err), TN_OK);
        tn_tokenizer_free(t);
    }
    ck_assert_uint_eq(count[0], count[1]);
    ck_assert(!memcmp(ids[0], ids[1], count[0] * sizeof *ids[0]));
    free(ids[0]);
    free(ids[1]);
}
END_TEST

/* ---- folders ------------------------------------------------------------------------------------------------------
 */

/* A folder is made, and not in the place of another. */
START_TEST(a_folder_of_fp8)
{
    tn_error err = TN_ERROR_INIT;
    char *out = tempdir_at(tempdir_new(), "folder");
    ck_assert_msg(quantize("models/demo", out, "FP8", &err) == TN_OK, "%s", err.message);
    ck_assert(tempdir_exists(tempdir_at(out, "model.safetensors")) &&
              tempdir_exists(tempdir_at(out, "tokenizer.json")));
    ck_assert_int_eq(quantize("models/demo", out, "FP8", &err), TN_E_INPUT);
    suite_expect_in(err.message, "is there already; choose another name");
    tn_error_clear(&err);
    ck_assert_int_eq(quantize(out, tempdir_at(tempdir_new(), "again"), "FP8", &err), TN_E_INPUT);
    suite_expect_in(err.message, "is quantised already; take the plain checkpoint");
    tn_error_clear(&err);
    ck_assert_msg(quantize(out, tempdir_at(tempdir_new(), "q.gguf"), "Q6_K", &err) == TN_OK, "%s", err.message);
    /* Layers of another name; matrices that files have as [in,out]. */
    out = tempdir_at(tempdir_new(), "bloom");
    ck_assert_msg(quantize("tests/data/models/bloom", out, "FP8", &err) == TN_OK, "%s", err.message);
    ck_assert_int_eq(quantize("tests/data/models/gpt2", tempdir_at(tempdir_new(), "gpt2"), "FP8", &err), TN_E_INPUT);
    suite_expect_in(err.message, "has its dimensions changed over");
}
END_TEST

/* When to cancel: at the first call in the middle of a tensor, or of what is being written. */
typedef struct stopping {
    const char *what; /* whose calls count; NULL: of any                                             */
    char last[64];
    int calls;
} stopping;

static int stop(void *ctx, const char *what, int64_t done, int64_t total)
{
    stopping *s = ctx;
    ck_assert(done > 0 && done <= total);
    bool again = !strcmp(s->last, what);
    snprintf(s->last, sizeof s->last, "%s", what);
    s->calls += again;
    return again && (!s->what || !strcmp(s->what, what));
}

/* A matrix is so large that it is looked at more than once whether to go on. */
START_TEST(cancelling_leaves_what_was_there)
{
    tn_error err = TN_ERROR_INIT;
    stopping s = {0};
    size_t size;
    const char *folder = tempdir_new(), *out = tempdir_at(folder, "q.gguf");
    tn_quantize_options o = {.size = sizeof o, .progress = stop, .ctx = &s};
    tempdir_write(out, "before", 6);
    ck_assert_int_eq(tn_quantize(model_of("gpt-2", 50257, 104), out, "Q4_0", &o, &err), TN_E_CANCELLED);
    ck_assert_int_eq(s.calls, 1);
    ck_assert_str_eq(s.last, "token_embd.weight");
    char *left = tempdir_read(out, &size);
    ck_assert_str_eq(left, "before");
    ck_assert_int_eq(tempdir_count(folder), 1);
    free(left);
}
END_TEST

/* The same of a folder: matrices of layers are many blocks, and then all of it is written. */
START_TEST(cancelling_a_folder)
{
    static const char *const what[] = {"model.layers.0.mlp.gate_proj.weight", "writing"};
    tn_error err = TN_ERROR_INIT;
    stopping s = {.what = what[_i]};
    const char *folder = tempdir_new();
    tn_quantize_options o = {.size = sizeof o, .progress = stop, .ctx = &s};
    ck_assert_int_eq(tn_quantize(model_of(NULL, 264, 40000), tempdir_at(folder, "out"), "FP8", &o, &err),
                     TN_E_CANCELLED);
    ck_assert_str_eq(s.last, s.what);
    ck_assert_int_eq(tempdir_count(folder), 0);
}
END_TEST

/* Twice as many threads, the same bytes. */
START_TEST(threads_change_nothing)
{
    char *bytes[2];
    size_t size[2];
    for (int i = 0; i < 2; i++) {
        tn_error err = TN_ERROR_INIT;
        const char *out = tempdir_at(tempdir_new(), "q.gguf");
        tn_quantize_options o = {.size = sizeof o, .threads = 1 + i};
        ck_assert_msg(tn_quantize("models/demo", out, "Q4_K_M", &o, &err) == TN_OK, "%s", err.message);
        bytes[i] = tempdir_read(out, &size[i]);
    }
    ck_assert_uint_eq(size[0], size[1]);
    ck_assert(!memcmp(bytes[0], bytes[1], size[0]));
    free(bytes[0]);
    free(bytes[1]);
}
END_TEST

/* Values of eight bits are found again: what is written from a .gguf has the same blocks. */
START_TEST(a_file_is_written_again)
{
    char *bytes[2];
    size_t size[2];
    const char *folder = tempdir_new(), *out[2] = {tempdir_at(folder, "a.gguf"), tempdir_at(folder, "b.gguf")};
    tn_error err = TN_ERROR_INIT;
    ck_assert_msg(quantize("models/demo", out[0], "Q8_0", &err) == TN_OK, "%s", err.message);
    ck_assert_msg(quantize(out[0], out[1], "Q8_0", &err) == TN_OK, "%s", err.message);
    for (int i = 0; i < 2; i++)
        bytes[i] = tempdir_read(out[i], &size[i]);
    size_t tail = size[0] / 2; /* data: names of files are in the header                               */
    ck_assert_uint_gt(size[1], tail);
    ck_assert(!memcmp(bytes[0] + size[0] - tail, bytes[1] + size[1] - tail, tail));
    free(bytes[0]);
    free(bytes[1]);
}
END_TEST

int main(void)
{
    TCase *tcase = suite_open("quantize", 60);
    tcase_add_loop_test(tcase, eight_bits_say_the_same, 0, sizeof models / sizeof *models);
    tcase_add_loop_test(tcase, every_type_is_written, 0, sizeof types / sizeof *types);
    tcase_add_loop_test(tcase, what_cannot_be_said, 0, sizeof refused / sizeof *refused);
    tcase_add_loop_test(tcase, a_tokenizer_is_written, 0, sizeof vocabularies / sizeof *vocabularies);
    tcase_add_loop_test(tcase, mxfp4_stays_mxfp4, 0, 4);
    tcase_add_loop_test(tcase, other_forms_are_written_again, 0, 3);
    suite_add(tcase, stacks_of_experts_are_turned, mistral_is_said_as_llama, halves_that_rotate_are_refused,
              a_folder_of_fp8, cancelling_leaves_what_was_there, threads_change_nothing, a_file_is_written_again);
    tcase_add_loop_test(tcase, cancelling_a_folder, 0, 2);
    return suite_run();
}
