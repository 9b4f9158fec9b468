/* A byte of options, and any bytes as a file of training data: read as it is and with what is wrong left out, by a
 * tokenizer with special tokens and a chat template. What is read twice is the same, and rows hold every sample. */
#include "fuzz.h"

#include "dataset/dataset.h"
#include "dataset/reader.h"
#include "fuzz_folder.h"

#include <stdio.h>

FUZZ_ENTRY(fuzz_dataset)

enum { LENGTH = 32 };

static reader *open_reader(void)
{
    static reader r;
    tn_error err = TN_ERROR_INIT;
    if (!r.tokenizer) {
        fuzz_agree(reader_open(&r, "tests/data/tokenizers/qwen2", 151643, &err) == TN_OK, &err);
        tn_template_free(r.chat);
        r.by.chat = r.chat = tn_template_open("tests/data/templates/qwen2.5/template.jinja", &err);
        fuzz_agree(r.chat != NULL, &err);
    }
    return &r;
}

static void look_at(const tn_dataset *d)
{
    tn_dataset_info info = {.size = sizeof info};
    fuzz_require(tn_dataset_get_info(d, &info) == TN_OK && info.samples > 0, "a dataset without samples");
    int64_t tokens = 0, labels = 0, *samples = calloc((size_t)info.samples * 2 + 1, sizeof *samples);
    for (int64_t i = 0; i < info.samples; i++) {
        tn_sample s = {.size = sizeof s};
        fuzz_require(tn_dataset_sample(d, i, &s, NULL) == TN_OK && s.length > 1 && s.length <= LENGTH, "a bad sample");
        int64_t before = labels;
        for (int64_t k = 0; k < s.length; k++) {
            fuzz_require(s.ids[k] >= 0 && s.ids[k] < 151646, "a token that there is not");
            labels += k > 0 && s.labels[k] != TN_NO_LABEL;
        }
        fuzz_require(labels > before, "nothing to learn");
        tokens += s.length;
    }
    fuzz_require(tokens == info.tokens && labels == info.labels, "samples and their sums disagree");
    int64_t rows = samples ? tn_dataset_pack(d, 0, samples, samples + info.samples, NULL) : 0;
    fuzz_require(!samples || (rows > 0 && samples[info.samples + rows] == info.samples), "rows lose samples");
    free(samples);
}

static tn_dataset *read_file(const reader *r, const char *name)
{
    char path[PATH_MAX + 32];
    tn_error err = TN_ERROR_INIT;
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    tn_dataset *d = dataset_open(&r->by, (const char *const[]){path}, 1, &err);
    fuzz_agree(d != NULL, &err);
    fuzz_require(d || err.code == TN_E_INPUT, "an error that is not of the input");
    fuzz_require(d || strncmp(err.where, path, strlen(path)) == 0, "an error without its file");
    if (d)
        look_at(d);
    return d;
}

int fuzz_dataset(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"data.jsonl", "data.json", "data.txt"};
    if (size == 0)
        return 0;
    reader *r = open_reader();
    const char *name = names[data[0] % 3];
    fuzz_folder_write(name, data + 1, size - 1);
    r->by.options = (tn_dataset_options){.size = sizeof r->by.options,
                                         .max_length = LENGTH,
                                         .join = data[0] & 4 ? "\n" : "",
                                         .one_sample = data[0] & 8,
                                         .last_turn = (data[0] & 24) == 24,
                                         .train_on_prompt = data[0] & 32};
    r->by.vocab = 151646;
    tn_dataset *d = read_file(r, name), *again = d ? read_file(r, name) : NULL;
    fuzz_require(!d || strcmp(tn_dataset_digest(d), tn_dataset_digest(again)) == 0, "the same file is another dataset");
    tn_dataset_close(again);
    r->by.options.skip_bad = true;
    again = read_file(r, name);
    fuzz_require(!d || (again && strcmp(tn_dataset_digest(d), tn_dataset_digest(again)) == 0),
                 "leaving out what is wrong changes what is right");
    tn_dataset_close(again);
    tn_dataset_close(d);
    return 0;
}
