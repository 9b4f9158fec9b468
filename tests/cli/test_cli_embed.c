/* tenon embed: what it prints and writes, where its texts come from, and what it says when something is missing. */
#include "process.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <tenon/tenon.h>

static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"};

/* The demo model with files of sentence-transformers: the last token, a prompt, at most 20 tokens. */
static char *make_folder(void)
{
    char from[128], *folder = tempdir_new(), *pooling = tempdir_at(folder, "1_Pooling");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(from, sizeof from, "models/demo/%s", files[i]);
        tempdir_copy_file(from, folder, files[i]);
    }
    ck_assert_int_eq(mkdir(pooling, 0700), 0);
    tempdir_put(pooling, "config.json", "{\"pooling_mode_mean_tokens\": false, \"pooling_mode_lasttoken\": true}");
    tempdir_put(folder, "modules.json",
                "[{\"path\": \"\", \"type\": \"a.Transformer\"}, {\"path\": \"1_Pooling\", \"type\": \"a.Pooling\"}, "
                "{\"path\": \"2_Normalize\", \"type\": \"a.Normalize\"}]");
    tempdir_put(folder, "config_sentence_transformers.json", "{\"prompts\": {\"query\": \"And it came \"}}");
    tempdir_put(folder, "sentence_bert_config.json", "{\"max_seq_length\": 20}");
    return folder;
}

/* The vector of line number `line` of what was printed; its index is checked, and its text where one is given. */
static json_t *vector_of(const process_result *r, int line, const char *text)
{
    const char *at = r->out;
    ck_assert_msg(r->status == 0, "%s", r->err);
    for (int i = 0; i < line; i++)
        ck_assert_ptr_nonnull(at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL);
    json_t *root = json_loadb(at, strcspn(at, "\n"), 0, NULL);
    ck_assert_msg(root != NULL, "no JSON: %.80s", at);
    ck_assert_int_eq(json_integer_value(json_object_get(root, "index")), line);
    json_t *own = json_object_get(root, "text"), *list = json_incref(json_object_get(root, "embedding"));
    ck_assert(text ? !strcmp(json_string_value(own), text) : own == NULL);
    ck_assert_uint_gt(json_array_size(list), 0);
    json_decref(root);
    return list;
}

static double length_of(const json_t *vector)
{
    double sum = 0;
    for (size_t i = 0; i < json_array_size(vector); i++)
        sum += pow(json_real_value(json_array_get(vector, i)), 2);
    return sqrt(sum);
}

START_TEST(texts_come_from_arguments_or_lines)
{
    char *folder = make_folder();
    process_result given = TENON(NULL, "embed", folder, "--kernels=none", "--text", "And it came", "to pass");
    process_result lines = TENON("And it came\n  to pass \nlast", "embed", folder, "--kernels=none");
    for (int i = 0; i < 2; i++) {
        json_t *a = vector_of(&given, i, i ? "to pass" : "And it came"), *b = vector_of(&lines, i, NULL);
        ck_assert(json_equal(a, b));
        ck_assert_double_eq_tol(length_of(a), 1, 1e-6);
        json_decref(a);
        json_decref(b);
    }
    ck_assert_int_eq(lines.status, 0);
    json_decref(vector_of(&lines, 2, NULL));
}
END_TEST

START_TEST(a_prompt_stands_before_the_text)
{
    char *folder = make_folder();
    process_result with = TENON(NULL, "embed", folder, "--kernels=none", "--prompt", "query", "to pass");
    process_result whole = TENON(NULL, "embed", folder, "--kernels=none", "And it came to pass");
    process_result without = TENON(NULL, "embed", folder, "--kernels=none", "to pass");
    json_t *a = vector_of(&with, 0, NULL), *b = vector_of(&whole, 0, NULL), *c = vector_of(&without, 0, NULL);
    ck_assert(json_equal(a, b) && !json_equal(a, c));
    json_decref(a);
    json_decref(b);
    json_decref(c);
    process_expect_error(TENON(NULL, "embed", folder, "--prompt", "quest", "x"), 2, "'quest'", "query", NULL);
}
END_TEST

/* More texts than are computed together, in numpy's form: magic, version 1.0, a header up to 128 bytes. */
START_TEST(numpy_reads_what_is_written)
{
    char lines[1024] = "", *folder = make_folder(), *path = tempdir_at(folder, "v.npy");
    for (int i = 0; i < 70; i++)
        snprintf(lines + strlen(lines), sizeof lines - strlen(lines), "line %d\n", i);
    process_result printed = TENON(lines, "embed", folder, "--kernels=none");
    process_expect_output(TENON(lines, "embed", folder, "--kernels=none", "--npy", path), "");
    size_t size;
    unsigned char *file = tempdir_read(path, &size);
    json_t *last = vector_of(&printed, 69, NULL);
    int64_t width = (int64_t)json_array_size(last);
    char shape[128];
    snprintf(shape, sizeof shape, "{'descr': '<f4', 'fortran_order': False, 'shape': (70, %d), }", (int)width);
    ck_assert(!memcmp(file, "\x93NUMPY\1\0\x76\0", 10) && !strncmp((char *)file + 10, shape, strlen(shape)));
    ck_assert(file[127] == '\n' && size == 128 + 70 * (size_t)width * sizeof(float));
    for (int64_t i = 0; i < width; i++) {
        float x;
        memcpy(&x, file + 128 + (69 * width + i) * 4, sizeof x);
        ck_assert_double_eq_tol((double)x, json_real_value(json_array_get(last, (size_t)i)), 1e-8);
    }
    json_decref(last);
    free(file);
}
END_TEST

START_TEST(what_is_missing_is_told)
{
    char *folder = make_folder();
    process_expect_error(TENON(NULL, "embed"), 2, "no model given; usage: tenon embed MODEL [TEXT...]", NULL);
    process_expect_error(TENON("", "embed", folder), 4, "standard input: is empty", NULL);
    process_expect_error(TENON("one\n\n", "embed", folder, "--kernels=none"), 4, "text 1 has no tokens", NULL);
    process_expect_error(TENON(NULL, "embed", "models/demo", "x"), 4, "models/demo: has no modules.json",
                         "--pooling mean, last, cls or max", NULL);
    process_expect_error(TENON(NULL, "embed", folder, "--pooling", "sum", "x"), 2, "pooling", "mean|last|cls|max",
                         NULL);
    process_expect_error(TENON(NULL, "embed", folder, "short",
                               "And it came to pass, that the LORD said unto Moses, Go, and say unto the people, that "
                               "they shall go unto the land, and unto the people that are therein"),
                         4, "text 1 has ", "at most 20", NULL);
    char *pooling = tempdir_at(folder, "1_Pooling");
    tempdir_put(pooling, "config.json", "{\"word_embedding_dimension\": 3}");
    process_expect_error(TENON(NULL, "embed", folder, "x"), 4, "1_Pooling/config.json", "word_embedding_dimension",
                         NULL);
    json_t *mean, *last;
    process_result r = TENON(NULL, "embed", folder, "--pooling", "mean", "to pass");
    mean = vector_of(&r, 0, NULL);
    r = TENON(NULL, "embed", folder, "--pooling=last", "to pass");
    last = vector_of(&r, 0, NULL);
    ck_assert(!json_equal(mean, last));
    ck_assert_double_eq_tol(length_of(mean), 1, 1e-6);
    json_decref(mean);
    json_decref(last);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("tenon embed", 120);
    suite_add(tc, texts_come_from_arguments_or_lines, a_prompt_stands_before_the_text, numpy_reads_what_is_written,
              what_is_missing_is_told);
    return process_main();
}
