/* A .gguf in the place of a model: its own tokenizer, chat template and tokens are used. */
#include "gguf_file.h"
#include "process.h"
#include "suite.h"
#include "tempdir.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODEL "tests/data/models/gguf_mixtral/model.gguf"
#define VOCABULARIES "tests/data/fuzz/gguf/"

START_TEST(tokenizes)
{
    process_expect_output(TENON(NULL, "tokenize", VOCABULARIES "llama-bpe.gguf", "Hello wor"),
                          "[28, 0, 1, 21, 3, 24, 29]\n");
    process_expect_output(TENON(NULL, "tokenize", VOCABULARIES "qwen2.gguf", "--decode", "0,1,21,3,24"), "Hello wor\n");
}
END_TEST

/* The third is run without its name. */
START_TEST(runs)
{
    static const char *const options[] = {"--kernels=none", "-n", "3", "--dtype=f32"};
    process_result plain = TENON(NULL, "run", MODEL, "ABC", options[0], options[1], options[2], options[3]);
    ck_assert_msg(plain.status == 0, "%s", plain.err);
    ck_assert_uint_gt(plain.out_length, 0);
    process_expect_output(TENON(NULL, options[0], MODEL, "ABC", options[1], options[2], options[3]), plain.out);
    process_result ids = TENON(NULL, "tokenize", MODEL, "ABC");
    ck_assert_ptr_nonnull(strchr(ids.out, '['));
    char *list = strdup(ids.out);
    list[strcspn(list, "]")] = '\0';
    process_result r = TENON(NULL, "run", MODEL, "--tokens", list + 1, options[0], options[1], options[2], options[3]);
    ck_assert_str_eq(r.out, plain.out);
    free(list);
}
END_TEST

/* Codes in place and plain values compute the same in f32; what a module has and what was re-laid is told. */
START_TEST(plain_values_are_the_same)
{
    static const char packed[] = "tests/data/models/gptq_act_order";
    process_result codes = TENON(NULL, "run", MODEL, "ABC", "--kernels=none", "-n", "8", "--dtype=f32");
    process_result plain = TENON(NULL, "run", MODEL, "ABC", "--kernels=none", "-n", "8", "--dtype=f32", "--dequantise");
    ck_assert_int_eq(plain.status, 0);
    ck_assert_str_eq(plain.out, codes.out);
    codes = TENON(NULL, "inspect", MODEL, "--kernels=none");
    suite_expect_in(codes.out, "q4_0, ");
    plain = TENON(NULL, "inspect", MODEL, "--kernels=none", "--dequantise");
    ck_assert_ptr_null(strstr(plain.out, "q4_0"));
    codes = TENON(NULL, "inspect", packed, "--kernels=none", "--memory");
    suite_expect_in(codes.out, "weights, re-laid");
    ck_assert_ptr_null(strstr(codes.out, "weights, re-laid             0 bytes"));
    codes = TENON(NULL, "inspect", MODEL, "--kernels=none", "--format=json");
    suite_expect_in(codes.out, "\"weights\": \"q4_0\"");
}
END_TEST

START_TEST(chats_and_measures)
{
    process_result r = TENON("AB\n", "chat", MODEL, "--kernels=none", "-n", "2");
    ck_assert_msg(r.status == 0 && strstr(r.err, "the model has no chat template"), "%s", r.err);
    char *folder = tempdir_new(), *text = tempdir_at(folder, "text.txt");
    tempdir_put(folder, "text.txt", "A B C A B C A B C");
    r = TENON(NULL, "perplexity", MODEL, text, "--kernels=none");
    ck_assert_msg(r.status == 0 && strstr(r.out, "perplexity "), "%s", r.err);
}
END_TEST

START_TEST(wrong)
{
    static gguf_file file;
    gguf_file_start(&file, 3);
    gguf_file_text(&file, "tokenizer.ggml.model", "gpt2");
    gguf_file_text(&file, "tokenizer.ggml.pre", "klingon");
    char *path = gguf_file_write(&file);
    process_expect_error(TENON(NULL, "tokenize", path, "x"), 4, path, "tokenizer.ggml.pre", "'klingon'", NULL);
    process_expect_error(TENON(NULL, "nowhere.gguf", "x"), 4, "nowhere.gguf", "cannot open", NULL);
    process_expect_error(TENON(NULL, "tokenize", "tests/data/models/gguf_mixtral", "x"), 4, "give the file itself",
                         "model.gguf", NULL);
    free(path);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("cli_gguf", 600);
    tcase_add_test(tc, tokenizes);
    tcase_add_test(tc, runs);
    tcase_add_test(tc, plain_values_are_the_same);
    tcase_add_test(tc, chats_and_measures);
    tcase_add_test(tc, wrong);
    return process_main();
}
