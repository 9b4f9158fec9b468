/* The commands whose failures test_faults walks over. */
#ifndef TEST_FAULTS_SUBJECTS_H
#define TEST_FAULTS_SUBJECTS_H

#include "faults.h"

#include <stdbool.h>
#include <stddef.h>

enum { WORDS_MAX = 20 };

typedef struct subject {
    const char *name;
    const char *words[WORDS_MAX]; /* names of places in capitals stand for folders, see below               */
    const char *input;            /* standard input; NULL: none                                             */
    bool cold;                    /* begins with an empty cache                                             */
    bool varies;                  /* its output is another one each time                                    */
    bool timed;                   /* from "timings" on the output is another one each time                  */
    bool measures;                /* kernels are timed                                                      */
    bool children;                /* calls of its children fail, too                                        */
    int of_path;                  /* how many calls of one path a whole walk tries: 1 the first, 2 the last as well; 0:
                                     all calls                                                              */
    int64_t sample[FAULT_KINDS];  /* how many points of a kind are tried in a sample; -1: all               */
} subject;

#define LLAMA "tests/data/models/llama"
#define DEMO "models/demo"
#define TOKENIZERS "tests/data/tokenizers/"
#define GGUF "tests/data/fuzz/gguf/"
#define TEXT "Hello  w\xc3\xb6rld, \xef\xac\x81ne 12"

/* OUT: a folder for results, whose files are compared and removed. PLUGINS: one with two plugins. TINY: a checkpoint of
 * one layer whose few numbers keep a run short, with a tokenizer, a chat template, messages.json and a lock. What is
 * long is long for the code that oneDNN makes, by few paths that are taken again and again. What verify prints has
 * times. */
static const subject subjects[] = {
    {"version", {"version"}, .sample = {-1}},
    {"inspect", {"inspect", LLAMA, "--kernels=none"}, .sample = {60, -1, -1, -1, -1, -1, -1, -1, -1}},
    {"inspect-json", {"inspect", LLAMA, "--kernels=none", "--format=json"}, .sample = {40}},
    {"tokenize", {"tokenize", DEMO, "And it came to pass"}, .sample = {40, -1, -1, -1, -1, -1, -1, -1, -1}},
    {"tokenize-gpt2", {"tokenize", TOKENIZERS "gpt-2", TEXT}, .sample = {20}},
    {"tokenize-llama3", {"tokenize", TOKENIZERS "llama-3", TEXT}, .sample = {20}},
    {"tokenize-unigram", {"tokenize", TOKENIZERS "unigram", TEXT}, .sample = {40, -1, -1, -1, -1}},
    {"tokenize-wordpiece", {"tokenize", TOKENIZERS "wordpiece", TEXT}, .sample = {40}},
    {"tokenize-wordlevel", {"tokenize", TOKENIZERS "wordlevel", TEXT}, .sample = {40}},
    {"tokenize-letters", {"tokenize", TOKENIZERS "letters", TEXT}, .sample = {40}},
    {"tokenize-bpe-model", {"tokenize", TOKENIZERS "sentencepiece-bpe", TEXT}, .sample = {40, -1, -1, -1, -1}},
    {"tokenize-unigram-model", {"tokenize", TOKENIZERS "sentencepiece-unigram", TEXT}, .sample = {40}},
    {"tokenize-gguf", {"tokenize", GGUF "qwen2.gguf", TEXT}, .sample = {40, -1, -1, -1, -1, -1, -1}},
    {"tokenize-gguf-pieces", {"tokenize", GGUF "llama.gguf", TEXT}, .sample = {40}},
    {"decode",
     {"tokenize", TOKENIZERS "unigram-bytes", "--decode=1,259,577,242,175,132,269", "--json"},
     .sample = {40}},
    {"logits",
     {"logits", LLAMA, "--input", LLAMA "/expected.safetensors", "--output", "OUT/logits.safetensors", "--hidden",
      "--kernels=none", "--threads=1"},
     .of_path = 2,
     .sample = {20, 8, 8, -1, -1, 8, 8, -1, -1}},
    {"run",
     {"run", "TINY", "--tokens", "1,2,3,4,5,6,7,8", "-n", "4", "--kernels=none", "--dtype=bf16", "--threads=2"},
     .sample = {30, 8, 8, -1, -1, 8, 8, -1, -1}},
    {"run-json",
     {"run", "TINY", "And it", "-n", "3", "--kernels=none", "--threads=1", "--json", "--seed", "1"},
     .timed = true,
     .of_path = 2,
     .sample = {16, 4, 4, -1, -1, 6, 6, -1, -1}},
    {"run-messages",
     {"run", "TINY", "--messages", "TINY/messages.json", "-n", "2", "--kernels=none", "--threads=1"},
     .of_path = 2,
     .sample = {16, 4, 4, -1, -1, 6, 6}},
    {"chat",
     {"chat", "TINY", "-n", "2", "--kernels=none", "--threads=1"},
     .input = "And it\n/save OUT/talk.json\ncame to pass\n",
     .of_path = 1,
     .sample = {16, 4, 4, -1, -1, 6, 6}},
    {"run-kernels",
     {"run", "TINY", "--tokens", "1,2,3,4,5,6,7,8", "-n", "4", "--kernels=auto", "--only-plugins=PLUGINS",
      "--threads=1"},
     .of_path = 1,
     .sample = {8, 3, 3, 4, 6, 6, 4, -1, -1}},
    {"run-kernels-cold",
     {"run", "TINY", "--tokens", "1,2,3,4,5,6,7,8", "-n", "4", "--kernels=auto", "--only-plugins=PLUGINS",
      "--threads=1"},
     .cold = true,
     .of_path = 1,
     .sample = {8, 3, 3, 4, 6, 6, 4, -1, -1}},
    {"kernels", {"kernels", "--only-plugins", "PLUGINS"}, .of_path = 2, .sample = {16, 6, 6, 8, -1, 8, 6, -1, -1}},
    {"kernels-cold",
     {"kernels", "--only-plugins", "PLUGINS"},
     .cold = true,
     .of_path = 2,
     .sample = {12, 4, 4, 8, -1, 6, 4, -1, -1}},
    {"kernels-children",
     {"kernels", "--only-plugins", "PLUGINS"},
     .cold = true,
     .children = true,
     .of_path = 1,
     .sample = {10, 3, 3, 6, -1, 6, 4, -1, -1}},
    {"run-measured",
     {"run", "TINY", "--tokens", "1,2,3,4,5,6,7,8", "-n", "4", "--kernels=auto", "--only-plugins=PLUGINS",
      "--threads=1"},
     .cold = true,
     .varies = true,
     .measures = true,
     .children = true,
     .of_path = 1,
     .sample = {3, 2, 2, 2, 2, 2, 2, 2, -1}},
    {"inspect-explain",
     {"inspect", "TINY", "--only-plugins", "PLUGINS", "--explain"},
     .cold = true,
     .varies = true,
     .of_path = 1,
     .sample = {4, 2, 2, 2, 2, 2, 2, 2, -1}},
    {"check",
     {"check", "PLUGINS/npu_rmsnorm.so", "--quick", "--op", "ADD_RMS_NORM", "--site", "3", "--threads=1"},
     .cold = true,
     .varies = true,
     .of_path = 1,
     .sample = {4, 2, 2, 2, 2, 2, 2, 2, -1}},
    {"bench",
     {"bench", "TINY", "--only-plugins", "PLUGINS", "--prompt", "8", "--decode", "2", "--repeat", "1", "--threads=1"},
     .cold = true,
     .varies = true,
     .of_path = 1,
     .sample = {4, 2, 2, 2, 2, 2, 2, 2, -1}},
    {"verify-text",
     {"verify", "TINY", "--text", "TINY/messages.json", "--only-plugins", "PLUGINS", "--threads=1"},
     .cold = true,
     .varies = true,
     .of_path = 1,
     .sample = {4, 2, 2, 2, 2, 2, 2, 2, -1}},
    {"lock",
     {"lock", "TINY", "--only-plugins", "PLUGINS", "--threads=1"},
     .of_path = 2,
     .sample = {16, 6, 6, 8, -1, 8, 6, -1, -1}},
    {"run-locked",
     {"run", "TINY", "--tokens", "1,2,3", "-n", "2", "--kernels=none", "--threads=1", "--lock", "TINY/tiny.lock"},
     .of_path = 2,
     .sample = {16, 6, 6, 8, -1, 8, 6, -1, -1}},
    {"cache", {"cache"}, .cold = true, .sample = {-1, -1, -1, -1, -1, -1, -1}},
    {"cache-prune", {"cache", "prune", "--max-age=1", "--json"}, .cold = true, .sample = {-1, -1, -1, -1, -1, -1, -1}},
    {"verify",
     {"verify", "TINY", "--only-plugins", "PLUGINS", "--threads=1"},
     .cold = true,
     .varies = true,
     .of_path = 1,
     .sample = {3, 2, 2, 2, 2, 2, 2, 2, -1}},
};

#endif
