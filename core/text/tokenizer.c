/* A tokenizer: opened from its file, and text to ids. */
#include "text/tokenizer.h"

#include "base/gguf.h"
#include "base/hub.h"
#include "base/place.h"
#include "base/structs.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/buffer.h"
#include "text/decode.h"
#include "text/doc.h"
#include "text/gguf_tokenizer.h"
#include "text/normalize.h"
#include "text/post.h"
#include "text/pretok.h"
#include "text/spans.h"
#include "text/unigram.h"
#include "text/utf8.h"
#include "text/vocab.h"
#include "text/wordpiece.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The file: path itself, or the first of these in that folder. Owned. */
static char *file_of(const char *path)
{
    static const char *const names[] = {"/tokenizer.json", "/tokenizer.json.gz", "/tokenizer.model"};
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        return strdup(path);
    size_t count = sizeof names / sizeof names[0], size = strlen(path) + strlen(names[1]) + 1;
    char *file = malloc(size);
    for (size_t i = 0; file && i <= count; i++) { /* none there: the message names the first */
        snprintf(file, size, "%s%s", path, names[i % count]);
        if (stat(file, &st) == 0)
            break;
    }
    return file;
}

static bool ends_with(const char *path, const char *end)
{
    size_t length = strlen(path), n = strlen(end);
    return length >= n && strcmp(path + length - n, end) == 0;
}

/* Appends the tokenizer.json that stands for what is at path. */
static tn_status convert_to_json(const char *path, buffer *json, tn_error *err)
{
    if (gguf_is_named(path))
        return gguf_tokenizer_convert(path, json, err);
    size_t size = 0;
    char *data = source_read(path, &size, err);
    tn_status status = data ? sentencepiece_convert(data, size, path, json, err) : err->code;
    free(data);
    return status;
}

/* The tokenizer.json at path, or the one that stands for a tokenizer of another form. Owned. */
static doc *open_document(const char *path, tn_error *err)
{
    if (!gguf_is_named(path) && !ends_with(path, ".model")) {
        size_t size = 0;
        char *data = source_read(path, &size, err);
        return data ? doc_parse(data, size, path, err) : NULL;
    }
    buffer json = {0};
    tn_status status = convert_to_json(path, &json, err);
    if (status == TN_OK && !buffer_add(&json, "", 1)) /* the NUL that doc_parse wants */
        status = buffer_failed(&json, (place){path, "model"}, err);
    if (status == TN_OK)
        return doc_parse(json.data, json.size - 1, path, err);
    buffer_free(&json);
    return NULL;
}

doc *tokenizer_document(const char *path, tn_error *err)
{
    char *file = file_of(path);
    doc *document = file ? open_document(file, err) : NULL;
    if (!file)
        tn_fail(err, TN_E_MEMORY, path, "out of memory");
    free(file);
    return document;
}

static tn_status load_model(tn_tokenizer *t, const doc_node *model, doc_reader *r)
{
    if (!doc_is_object(model)) {
        r->status = tn_fail(r->err, TN_E_INPUT, t->path, "'model' is missing or no object; fetch the file again");
        return r->status;
    }
    const char *type = doc_type(model);
    if (strcmp(type, "Unigram") == 0) {
        t->model = MODEL_UNIGRAM;
        return unigram_load(&t->unigram, &t->vocab, model, r);
    }
    bool whole = strcmp(type, "WordLevel") == 0;
    if (whole || strcmp(type, "WordPiece") == 0) {
        t->model = MODEL_WORDPIECE;
        return wordpiece_load(&t->wordpiece, &t->vocab, model, whole, r);
    }
    if (strcmp(type, "BPE") != 0 && !(type[0] == '\0' && doc_get(model, "merges"))) /* old files name no type */
        return doc_unsupported(model, "BPE, Unigram, WordPiece and WordLevel", r);
    return vocab_load(&t->vocab, model, r) == TN_OK ? bpe_load(&t->bpe, model, &t->vocab, r) : r->status;
}

static void check_version(const doc_node *root, doc_reader *r)
{
    const char *version = "1.0";
    size_t length;
    doc_get_text(root, "version", &version, &length, r);
    if (r->status == TN_OK && strcmp(version, "1.0") != 0)
        r->status = tn_fail(r->err, TN_E_INPUT, r->at.file,
                            "version '%.40s' of the format is not known; use a newer release", version);
}

/* The member that a component is; the reader's errors name it from now on. NULL also after an error. */
static const doc_node *component(const doc_node *root, const char *name, doc_reader *r)
{
    r->at.component = name;
    return r->status == TN_OK ? doc_get(root, name) : NULL;
}

static tn_status load(tn_tokenizer *t, const doc_node *root, tn_error *err)
{
    doc_reader r = {{t->path, "version"}, err, TN_OK};
    check_version(root, &r);
    const doc_node *model = component(root, "model", &r);
    if (r.status == TN_OK)
        load_model(t, model, &r);
    normalize_load(&t->normalizer, component(root, "normalizer", &r), &r);
    added_load(&t->added, component(root, "added_tokens", &r), &t->vocab, &t->normalizer, &r);
    pretok_load(&t->pretok, component(root, "pre_tokenizer", &r), &r);
    post_load(&t->post, component(root, "post_processor", &r), &t->vocab, &r);
    decode_load(&t->decoder, component(root, "decoder", &r), &r);
    return r.status;
}

static tn_tokenizer *open_found(const char *path, tn_error *err)
{
    tn_tokenizer *t = calloc(1, sizeof *t);
    if (t)
        t->path = file_of(path);
    if (!t || !t->path) {
        free(t);
        tn_fail(err, TN_E_MEMORY, path, "out of memory");
        return NULL;
    }
    bool folder = strcmp(t->path, path) != 0;
    doc *document = folder && place_check(path, "tokenizer.json", err) != TN_OK ? NULL : open_document(t->path, err);
    tn_status status = document ? load(t, doc_root(document), err) : TN_E_INPUT;
    if (document)
        doc_close(document);
    if (status == TN_OK)
        return t;
    tn_tokenizer_free(t);
    return NULL;
}

tn_tokenizer *tn_tokenizer_open(const char *path, tn_error *err)
{
    tn_error own = TN_ERROR_INIT;
    err = err ? err : &own;
    if (!path) {
        structs_missing("path", err);
        return NULL;
    }
    char *found = hub_find(path, err);
    if (!found)
        return NULL;
    tn_tokenizer *t = open_found(found, err);
    if (!t)
        hub_explain(path, found, err);
    free(found);
    return t;
}

void tn_tokenizer_free(tn_tokenizer *t)
{
    if (!t)
        return;
    vocab_free(&t->vocab);
    bpe_free(&t->bpe);
    unigram_free(&t->unigram);
    wordpiece_free(&t->wordpiece);
    added_free(&t->added);
    normalize_free(&t->normalizer);
    pretok_free(&t->pretok);
    post_free(&t->post);
    decode_free(&t->decoder);
    free(t->path);
    free(t);
}

int64_t tn_tokenizer_size(const tn_tokenizer *t)
{
    return t ? (int64_t)t->vocab.size : 0;
}

/* Added tokens as they stand, then the normalizer on what lies between them, then those that are looked for in
 * normalized text. */
static tn_status cut_added(const tn_tokenizer *t, const buffer *text, pieces *out, tn_error *err)
{
    pieces raw = {0};
    buffer normal = {0};
    tn_status status = TN_OK;
    bool memory = added_split(&t->added, &t->added.raw, text->data, text->size, &raw);
    for (size_t i = 0; i < raw.count && memory && status == TN_OK; i++) {
        span piece = raw.spans[i];
        const char *start = raw.text.data + piece.start;
        if (piece.id >= 0) {
            memory = buffer_append_piece(out, start, piece.end - piece.start, piece.id);
            continue;
        }
        normal.size = 0;
        bool first = t->pretok.wants_origin && i == 0 && piece.start < piece.end;
        size_t origin = first ? utf8_read(start, piece.end - piece.start).length : 0;
        status =
            normalize_apply_from(&t->normalizer, start, piece.end - piece.start, first ? &origin : NULL, &normal, err);
        if (first)
            out->origin = origin;
        if (status == TN_OK)
            memory = added_split(&t->added, &t->added.normalized, normal.data, normal.size, out);
    }
    buffer_free(&normal);
    buffer_free_pieces(&raw);
    return memory ? status : tn_fail(err, TN_E_MEMORY, t->path, "out of memory");
}

/* One piece by the models other than BPE. */
static tn_status encode_piece(const tn_tokenizer *t, const char *text, size_t length, id_list *ids, tn_error *err)
{
    place at = {t->path, "model"};
    return t->model == MODEL_UNIGRAM ? unigram_encode(&t->unigram, text, length, ids, at, err)
                                     : wordpiece_encode(&t->wordpiece, &t->vocab, text, length, ids, at, err);
}

/* Cuts the pieces into words, and gives these to the model. */
static tn_status encode_pieces(const tn_tokenizer *t, pieces *p, id_list *ids, tn_error *err)
{
    bool bytes = false, memory = true;
    tn_status status =
        t->model == MODEL_BPE ? pretok_apply_words(&t->pretok, p, &bytes, err) : pretok_apply(&t->pretok, p, err);
    if (status == TN_OK && t->model == MODEL_BPE)
        memory = bpe_encode_pieces(&t->bpe, &t->vocab, p, bytes, ids);
    for (size_t i = 0; t->model != MODEL_BPE && i < p->count && memory && status == TN_OK; i++) {
        span piece = p->spans[i];
        if (piece.id >= 0)
            memory = buffer_add_id(ids, piece.id);
        else if (piece.start < piece.end)
            status = encode_piece(t, p->text.data + piece.start, piece.end - piece.start, ids, err);
    }
    return memory ? status : tn_fail(err, TN_E_MEMORY, t->path, "out of memory");
}

tn_status tn_tokenizer_encode(const tn_tokenizer *t, const char *text, size_t length, bool special, int64_t **ids,
                              size_t *count, tn_error *err)
{
    tn_error own = TN_ERROR_INIT;
    err = err ? err : &own;
    if (!t || !ids || !count || (!text && length > 0))
        return structs_missing(!t ? "tokenizer" : !text && length > 0 ? "text" : !ids ? "ids" : "count", err);
    *ids = NULL;
    *count = 0;
    buffer clean = {0};
    pieces p = {0};
    id_list list = {0};
    tn_status status = TN_OK;
    if (!utf8_add_clean(&clean, text, length))
        status = tn_fail(err, TN_E_MEMORY, t->path, "out of memory");
    if (status == TN_OK)
        status = cut_added(t, &clean, &p, err);
    if (status == TN_OK)
        status = encode_pieces(t, &p, &list, err);
    if (status == TN_OK && special && !post_apply(&t->post, &list))
        status = tn_fail(err, TN_E_MEMORY, t->path, "out of memory");
    if (status == TN_OK && !list.ids && !(list.ids = malloc(sizeof *list.ids))) /* so that an empty list is not NULL */
        status = tn_fail(err, TN_E_MEMORY, t->path, "out of memory");
    buffer_free(&clean);
    buffer_free_pieces(&p);
    if (status != TN_OK) {
        free(list.ids);
        return status;
    }
    *ids = list.ids;
    *count = list.count;
    return TN_OK;
}
