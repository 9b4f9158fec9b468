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
    return tn_quantize(model, out, &(tn_quantize_options){.size = sizeof(tn_quantize_options), .type = type}, err);
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
    const char *out = tempdir_at(tempdir_new(), "q.gguf");
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
static const char *const models[] = {"llama",   "llama_llama3_rope", "llama_yarn",     "llama_linear",
                                     "mixtral", "phi3_longrope",     "qwen2",          "qwen2_moe",
                                     "qwen3",   "qwen3_moe",         "qwen3_moe_step2"};

START_TEST(eight_bits_say_the_same)
{
    double error = error_of(models[_i], "Q8_0");
    ck_assert_msg(error > 0 && error < 0.04, "%s: %g", models[_i], error);
}
END_TEST

static const char *const types[] = {"Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "IQ4_NL", "MXFP4"};

START_TEST(every_type_is_written)
{
    double error = error_of("qwen3", types[_i]);
    ck_assert_msg(error > 0 && error < 0.4, "%s: %g", types[_i], error);
}
END_TEST

static const struct refused {
    const char *model, *type, *words;
} refused[] = {
    {"tests/data/models/llama", "Q3_Z", "'Q3_Z' is no type to quantise to; choose one of Q8_0,"},
    {"tests/data/models/cohere2", "Q8_0", "models of type 'cohere2' are not written as .gguf; those that are: gemma2"},
    {"tests/data/models/llama_gelu", "Q8_0", "cannot be said in a .gguf: model.layers.0.mlp would be another"},
    {"tests/data/models/qwen3_win", "Q8_0", "cannot be said in a .gguf: model.layers.1.self_attn would be another"},
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

static int stop(void *ctx, const char *what, int64_t done, int64_t total)
{
    (void)what;
    ck_assert(done > 0 && done <= total);
    return ++*(int *)ctx == 3;
}

START_TEST(cancelling_leaves_what_was_there)
{
    tn_error err = TN_ERROR_INIT;
    int calls = 0;
    size_t size;
    const char *out = tempdir_at(tempdir_new(), "q.gguf");
    tn_quantize_options o = {.size = sizeof o, .type = "Q4_0", .progress = stop, .ctx = &calls};
    tempdir_write(out, "before", 6);
    ck_assert_int_eq(tn_quantize("tests/data/models/qwen3", out, &o, &err), TN_E_CANCELLED);
    ck_assert_int_eq(calls, 3);
    char *left = tempdir_read(out, &size);
    ck_assert_str_eq(left, "before");
    free(left);
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
        tn_quantize_options o = {.size = sizeof o, .type = "Q4_K_M", .threads = 1 + i};
        ck_assert_msg(tn_quantize("models/demo", out, &o, &err) == TN_OK, "%s", err.message);
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
    suite_add(tcase, cancelling_leaves_what_was_there, threads_change_nothing, a_file_is_written_again);
    return suite_run();
}
