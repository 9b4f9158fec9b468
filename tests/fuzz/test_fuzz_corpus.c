/* Replays the fuzzers' corpus: what once was interesting stays tested, without a fuzzer. */
#include "corpus.h"
#include "fuzz.h"
#include "sanitizer.h"

static const struct {
    const char *name;
    int (*fuzz)(const uint8_t *, size_t);
    int least; /* files in the corpus                                                                  */
} targets[] = {
    {"safetensors", fuzz_safetensors, 10},
    {"config", fuzz_config, 10},
    {"quantised", fuzz_quantised, 12},
    {"graph", fuzz_graph, 10},
    {"adapter", fuzz_adapter, 8},
    {"borrow", fuzz_borrow, 6},
    {"tokenizer", fuzz_tokenizer, 6},
    {"template", fuzz_template, 10},
    {"kernels", fuzz_kernels, 6},
    {"elfnote", fuzz_elfnote, 6},
    {"sentencepiece", fuzz_sentencepiece, 6},
    {"gguf", fuzz_gguf, 10},
    {"replay", fuzz_replay, 10},
    {"image", fuzz_image, 8},
    {"audio", fuzz_audio, 8},
    {"schema", fuzz_schema, 10},
    {"toolcall", fuzz_toolcall, 20},
    {"dataset", fuzz_dataset, 20},
    {"lock", fuzz_lock, 12},
};

START_TEST(corpus)
{
    char folder[64];
    if ((targets[_i].fuzz == fuzz_graph || targets[_i].fuzz == fuzz_borrow || targets[_i].fuzz == fuzz_adapter) &&
        under_valgrind()) {
        printf("SKIPPED %s: it takes 64 GiB of addresses or more, which valgrind has not\n", targets[_i].name);
        return;
    }
    snprintf(folder, sizeof folder, "tests/data/fuzz/%s", targets[_i].name);
    ck_assert_int_ge(corpus_replay(folder, targets[_i].fuzz), targets[_i].least);
}
END_TEST

int main(void)
{
    TCase *tc = suite_open("fuzz_corpus", 120);
    tcase_add_loop_test(tc, corpus, 0, sizeof targets / sizeof targets[0]);
    return suite_run();
}
