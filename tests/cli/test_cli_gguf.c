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

static const char lacking[] = "the checkpoint has no such tensor";

/* What stands behind a key or the name of a tensor, from byte at on, becomes these bytes. */
static const struct hostile {
    const char *name;
    size_t at;
    uint64_t value;
    size_t bytes;
    const char *word;
} hostile[] = {
    {"GGUF", 0, 7, 4, "is of version 7 of the format"},
    {"GGUF", 4, UINT64_MAX, 8, "more than the file can hold"},
    {"GGUF", 4, 1 << 10, 8, ""},
    {"GGUF", 12, UINT64_MAX, 8, "more than the file can hold"},
    {"llama.block_count", 4, 9, 4, lacking},
    {"llama.block_count", 4, UINT32_MAX, 4, "key 'llama.block_count'"},
    {"llama.block_count", 0, 9, 4, "does not fit into the file"},
    {"llama.attention.head_count", 4, 0, 4, "is not that of a head"},
    {"llama.attention.head_count_kv", 4, 3, 4, "num_key_value_heads"},
    {"llama.embedding_length", 4, 65, 4, ""},
    {"llama.feed_forward_length", 4, 1, 4, "config.json implies"},
    {"llama.expert_count", 4, 1 << 20, 4, ""},
    {"llama.expert_used_count", 4, 1 << 20, 4, "num_experts_per_tok"},
    {"llama.attention.layer_norm_rms_epsilon", 4, 0x7fc00000, 4, "is no finite number"},
    {"llama.rope.freq_base", 4, 0, 4, "rope_theta"},
    {"tokenizer.ggml.tokens", 8, UINT64_MAX, 8, "elements do not fit into the file"},
    {"tokenizer.ggml.tokens", 4, 9, 4, "is an array of arrays"},
    {"tokenizer.ggml.scores", 8, 1, 8, ""},
    {"token_embd.weight", 0, 0, 4, ""},
    {"token_embd.weight", 0, UINT32_MAX, 4, "has 4294967295 dimensions"},
    {"token_embd.weight", 4, 33, 8, ""},
    {"token_embd.weight", 4, UINT64_MAX, 8, "its dimension 0 is"},
    {"token_embd.weight", 20, 4, 4, "is of type Q4_2"},
    {"token_embd.weight", 20, 0, 4, "its data begin within those of the tensor before"},
    {"token_embd.weight", 24, 1, 8, "no multiple of the alignment 32"},
    {"token_embd.weight", 24, UINT64_MAX - 31, 8, "do not fit into the file"},
    {"blk.0.ffn_up_exps.weight", 20, 1 << 30, 8, ""},
};

static uint64_t length_before(const char *at)
{
    uint64_t length;
    memcpy(&length, at - sizeof length, sizeof length);
    return length;
}

/* Whatever a file says that is not so: status 4, and a line that names it. */
START_TEST(hostile_files)
{
    const struct hostile *h = &hostile[_i];
    size_t size;
    char *data = tempdir_read(MODEL, &size), *path = tempdir_at(tempdir_new(), "hostile.gguf");
    char *at = memmem(data, size, h->name, strlen(h->name));
    while (at && strcmp(h->name, "GGUF") != 0 && length_before(at) != strlen(h->name))
        at = memmem(at + 1, size - (size_t)(at + 1 - data), h->name, strlen(h->name));
    ck_assert_msg(at != NULL, "%s", h->name);
    memcpy(at + strlen(h->name) + h->at, &h->value, h->bytes);
    tempdir_write(path, data, size);
    process_expect_error(TENON(NULL, "run", path, "--tokens=1,2,3", "-n", "2", "--kernels=none", "--quiet"), 4,
                         strcmp(h->word, lacking) ? "hostile.gguf" : "model.layers.", h->word, NULL);
    free(data);
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
    tcase_add_loop_test(tc, hostile_files, 0, sizeof hostile / sizeof *hostile);
    return process_main();
}
