/* check_tokenizers DIR: runs every case of a folder of tokenizers against its expected results. Each sub-folder (or DIR
 * itself) holds tokenizer.json, tokenizer.json.gz or tokenizer.model, cases.json (text to ids and back) and decode.json
 * (ids to text); or a .gguf and tokens.json (text to ids). Every decoding is also done as a stream. A line per file of
 * cases; exit status 0 only if none failed. */
#include "folders.h"

#include <tenon/tenon.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Failures shown in full for each file; the rest is counted. */
#define SHOWN 3

static void show(const tally *t, const char *file, size_t index, const char *what)
{
    if (t->failed < SHOWN)
        printf("  %s[%zu]: %s\n", file, index, what);
}

static json_t *ids_to_json(const int64_t *ids, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

/* Ids of a case as an array. Owned. */
static int64_t *ids_of(const json_t *list, size_t *count)
{
    *count = json_array_size(list);
    int64_t *ids = malloc((*count + 1) * sizeof *ids);
    for (size_t i = 0; ids && i < *count; i++)
        ids[i] = json_integer_value(json_array_get(list, i));
    return ids;
}

/* Decodes as a stream; true when the result is text and every part of it is whole characters. */
static bool stream_matches(const tn_tokenizer *t, const int64_t *ids, size_t count, bool skip, const char *text,
                           size_t length)
{
    tn_stream *stream = tn_stream_new(t, skip, NULL);
    size_t done = 0;
    bool same = stream != NULL;
    for (size_t i = 0; i <= count && same; i++) {
        size_t n = 0;
        const char *part = i < count ? tn_stream_push(stream, ids[i], &n, NULL) : tn_stream_flush(stream, &n, NULL);
        same = part && n <= length - done && memcmp(part, text + done, n) == 0 &&
               (n == 0 || ((unsigned char)part[0] & 0xc0) != 0x80);
        done += n;
    }
    tn_stream_free(stream);
    return same && done == length;
}

static bool check_decoding(const tn_tokenizer *t, const json_t *item, bool skip, tally *sum, const char *file,
                           size_t index)
{
    const json_t *expected = skip ? json_object_get(item, "decoded_skip_special") : NULL;
    if (!expected) /* it is only given where it differs */
        expected = json_object_get(item, "decoded");
    size_t count, length = 0;
    int64_t *ids = ids_of(json_object_get(item, "ids"), &count);
    char *text = NULL;
    tn_error err = TN_ERROR_INIT;
    bool fine = false;
    if (!json_is_string(expected) || !ids) {
        show(sum, file, index, "no 'decoded'");
    } else if (tn_tokenizer_decode(t, ids, count, skip, &text, &length, &err) != TN_OK) {
        show(sum, file, index, err.message);
    } else if (length != json_string_length(expected) || memcmp(text, json_string_value(expected), length) != 0) {
        show(sum, file, index, skip ? "decoded text differs (special tokens skipped):" : "decoded text differs:");
        if (sum->failed < SHOWN)
            printf("    expected %s\n    got      %s\n", json_string_value(expected), text);
    } else if (!stream_matches(t, ids, count, skip, text, length)) {
        show(sum, file, index, "decoding as a stream differs");
    } else {
        fine = true;
    }
    free(text);
    free(ids);
    return fine;
}

static bool check_encoding(const tn_tokenizer *t, const json_t *item, tally *sum, const char *file, size_t index)
{
    const json_t *text = json_object_get(item, "text");
    bool special = json_is_true(json_object_get(item, "add_special_tokens"));
    int64_t *ids;
    size_t count;
    tn_error err = TN_ERROR_INIT;
    if (!json_is_string(text)) {
        show(sum, file, index, "no 'text'");
        return false;
    }
    if (tn_tokenizer_encode(t, json_string_value(text), json_string_length(text), special, &ids, &count, &err) !=
        TN_OK) {
        show(sum, file, index, err.message);
        return false;
    }
    json_t *got = ids_to_json(ids, count);
    bool fine = json_equal(got, json_object_get(item, "ids"));
    if (!fine && sum->failed < SHOWN) {
        show(sum, file, index, "ids differ:");
        printf("    text     ");
        json_dumpf(text, stdout, JSON_ENCODE_ANY);
        printf("\n    expected ");
        json_dumpf(json_object_get(item, "ids"), stdout, JSON_COMPACT);
        printf("\n    got      ");
        json_dumpf(got, stdout, JSON_COMPACT);
        printf("\n");
    }
    json_decref(got);
    free(ids);
    return fine;
}

/* Encodes, where that is asked for; then decodes what the case says of it. A case that has nothing else to decode gives
 * its text again, if nothing was added to it. */
static bool check_case(const tn_tokenizer *t, json_t *item, bool encode, tally *sum, const char *file, size_t index)
{
    if (encode && !check_encoding(t, item, sum, file, index))
        return false;
    if (!json_object_get(item, "decoded")) {
        if (json_is_true(json_object_get(item, "add_special_tokens")))
            return true;
        json_object_set(item, "decoded", json_object_get(item, "text"));
        return check_decoding(t, item, false, sum, file, index);
    }
    return check_decoding(t, item, false, sum, file, index) && check_decoding(t, item, true, sum, file, index);
}

/* One file of cases. */
static tally check_file(const tn_tokenizer *t, const char *folder, const char *name, bool encode)
{
    tally sum = {0, 0};
    char path[4096];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    json_t *cases = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (!json_is_array(cases)) {
        printf("FAILED %s: %s\n", path, cases ? "no list" : error.text);
        json_decref(cases);
        return (tally){0, 1};
    }
    for (size_t i = 0; i < json_array_size(cases); i++) {
        bool fine = check_case(t, json_array_get(cases, i), encode, &sum, name, i);
        *(fine ? &sum.passed : &sum.failed) += 1;
    }
    printf("%s %s: %ld of %zu\n", sum.failed ? "FAILED" : "ok    ", path, sum.passed, json_array_size(cases));
    json_decref(cases);
    return sum;
}

static bool exists(const char *folder, const char *name)
{
    char path[4096];
    struct stat st;
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && stat(path, &st) == 0;
}

static tally check_folder(const char *folder)
{
    tally sum = {0, 0};
    tn_error err = TN_ERROR_INIT;
    char gguf[4096];
    tn_tokenizer *t = tn_tokenizer_open(folders_gguf(folder, gguf, sizeof gguf) ? gguf : folder, &err);
    if (!t) {
        printf("FAILED %s: %s\n", err.where, err.message);
        return (tally){0, 1};
    }
    static const char *const names[] = {"cases.json", "tokens.json", "decode.json"};
    for (int i = 0; i < 3; i++)
        if (exists(folder, names[i])) {
            tally one = check_file(t, folder, names[i], i < 2);
            sum.passed += one.passed;
            sum.failed += one.failed;
        }
    tn_tokenizer_free(t);
    return sum;
}

static bool is_folder(const char *folder)
{
    return exists(folder, "tokens.json") || exists(folder, "tokenizer.json") || exists(folder, "tokenizer.json.gz") ||
           exists(folder, "tokenizer.model");
}

int main(int argc, char **argv)
{
    return folders_main(argc, argv, "check_tokenizers", "a tokenizer", is_folder, check_folder);
}
