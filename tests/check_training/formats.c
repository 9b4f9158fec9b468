/* Records of every format and the samples that torch's side makes of them: formats.json of the golden data. Each line
 * is a file, .jsonl and .json, read with the entry's tokenizer and template (folders beside that of the file). */
#include "check.h"

#include "dataset/dataset.h"
#include "dataset/reader.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH = 4096 };

static const char *text_of(const json_t *entry, const char *key)
{
    return json_string_value(json_object_get(entry, key));
}

/* Says what is wrong with a sample, "" if nothing is. */
static void compare(const tn_dataset *d, int64_t index, const json_t *want, bool prompt_too, char why[256])
{
    tn_sample got = {.size = sizeof got};
    const json_t *ids = json_object_get(want, "input_ids"),
                 *labels = json_object_get(want, prompt_too ? "input_ids" : "labels");
    tn_dataset_sample(d, index, &got, NULL);
    if (why[0])
        return;
    if (json_array_size(ids) != (size_t)got.length)
        snprintf(why, 256, "sample %lld has %lld tokens, expected %zu", (long long)index, (long long)got.length,
                 json_array_size(ids));
    for (int64_t i = 0; i < got.length && !why[0]; i++)
        if (got.ids[i] != json_integer_value(json_array_get(ids, (size_t)i)) ||
            got.labels[i] != json_integer_value(json_array_get(labels, (size_t)i)))
            snprintf(why, 256, "sample %lld differs at token %lld: %d, label %d", (long long)index, (long long)i,
                     got.ids[i], got.labels[i]);
}

/* The entry's line in a file of that ending, once as the golden data has it, and once learnt with its prompt. */
static void check_samples(options *o, reader *r, const json_t *entry, const char *ending, const json_t *wanted,
                          const char *what)
{
    char path[] = "/tmp/formats-XXXXXX.jsonl", why[256] = "";
    int tail = (int)strlen(ending), fd;
    path[strlen(path) - strlen(".jsonl") + (size_t)tail] = '\0';
    memcpy(path + strlen(path) - tail, ending, (size_t)tail);
    fd = mkstemps(path, tail);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    char *line = json_dumps(json_object_get(entry, "line"), JSON_COMPACT);
    bool list = strcmp(ending, ".json") == 0;
    if (!file || !line || fprintf(file, list ? "[%s]\n" : "%s\n", line) < 0 || fclose(file) != 0)
        snprintf(why, sizeof why, "cannot write %s", path);
    for (int prompt_too = 0; prompt_too < 2 && !why[0]; prompt_too++) {
        tn_error err = TN_ERROR_INIT;
        r->by.options.train_on_prompt = prompt_too;
        tn_dataset *d = dataset_open(&r->by, (const char *const[]){path}, 1, &err);
        if (!d)
            snprintf(why, sizeof why, "%.60s: %.180s", err.where, err.message);
        else if ((size_t)tn_dataset_count(d) != json_array_size(wanted))
            snprintf(why, sizeof why, "%lld samples, expected %zu", (long long)tn_dataset_count(d),
                     json_array_size(wanted));
        for (size_t i = 0; d && i < json_array_size(wanted) && !why[0]; i++)
            compare(d, (int64_t)i, json_array_get(wanted, i), prompt_too, why);
        tn_dataset_close(d);
    }
    unlink(path);
    free(line);
    check_say(o, text_of(entry, "format"), what, ending + 1, !why[0], why[0] ? why : text_of(entry, "tokenizer"));
}

static void check_entry(options *o, const char *folder, const json_t *entry)
{
    static const char *const endings[] = {".jsonl", ".json"};
    tn_error err = TN_ERROR_INIT;
    char path[3 * PATH];
    reader r;
    int64_t *eos = NULL;
    size_t count = 0;
    const char *name = text_of(entry, "template"), *join = text_of(entry, "join");
    snprintf(path, sizeof path, "%s/../%s", folder, text_of(entry, "tokenizer"));
    tn_status status = reader_open(&r, path, -1, &err);
    if (status == TN_OK && r.tokenizer && r.by.eos < 0 && /* of a folder that has a tokenizer alone */
        tn_tokenizer_encode(r.tokenizer, "<|endoftext|>", 13, false, &eos, &count, &err) == TN_OK && count == 1)
        r.by.eos = eos[0];
    if (name && strcmp(name, "chatml") != 0) {
        snprintf(path, sizeof path, "%s/../%s/template.jinja", folder, name);
        tn_template_free(r.chat);
        r.by.chat = r.chat = tn_template_open(path, &err);
    }
    r.by.options = (tn_dataset_options){.size = sizeof r.by.options, .max_length = 4096, .join = join ? join : ""};
    if (err.code != TN_OK)
        check_say(o, text_of(entry, "format"), "-", "-", false, err.message);
    json_t *one = json_pack("[O]", json_object_get(entry, "one_sample"));
    for (int i = 0; i < 2 && err.code == TN_OK; i++) {
        r.by.options.one_sample = false;
        check_samples(o, &r, entry, endings[i], json_object_get(entry, "samples"), "samples");
        r.by.options.one_sample = true;
        if (one)
            check_samples(o, &r, entry, endings[i], one, "one");
    }
    json_decref(one);
    reader_close(&r);
    free(eos);
}

void check_formats(options *o, const char *path)
{
    json_error_t error;
    json_t *root = json_load_file(path, 0, &error), *entry;
    char folder[PATH];
    size_t i;
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    snprintf(slash ? slash : folder, 2, "%s", slash ? "" : ".");
    if (!json_is_array(root))
        check_say(o, path, "-", "-", false, root ? "is no list" : error.text);
    json_array_foreach (root, i, entry) {
        check_entry(o, folder, entry);
    }
    json_decref(root);
}
