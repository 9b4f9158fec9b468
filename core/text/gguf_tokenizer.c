/* The tokenizer in the metadata of a .gguf. */
#include "text/gguf_tokenizer.h"

#include "base/gguf.h"
#include "text/convert.h"
#include "text/gguf_splits.h"

#include <stdio.h>
#include <string.h>

#define KEY(name) "tokenizer.ggml." name

typedef struct reader {
    convert to;
    const gguf *file;
    bool scores, types; /* are there lists of these? */
    tn_error *err;
} reader;

static tn_status fail(const reader *r, const char *key, const char *what)
{
    return tn_fail(r->err, TN_E_INPUT, r->to.path, "key '%s' %s", key, what);
}

/* ---- tokens ------------------------------------------------------------------------------------ */

/* A list beside the one of tokens: as long as it, or not there. */
static tn_status find_list(const reader *r, const char *key, int64_t count, bool *there)
{
    *there = gguf_kind_of(r->file, key) != GGUF_ABSENT;
    if (*there && gguf_array(r->file, key) != count)
        return fail(r, key, "is no list as long as that of tokens; fetch the file again");
    return TN_OK;
}

/* Empty tokens, of which a file may have several, get a name that no text has. */
static tn_status read_token(reader *r, int64_t index)
{
    size_t length = 0;
    double score = 0;
    int64_t type = PIECE_NORMAL;
    char empty[40];
    const char *text = gguf_array_text(r->file, KEY("tokens"), index, &length);
    if (!text)
        return fail(r, KEY("tokens"), "is no list of strings; fetch the file again");
    if (r->scores && !gguf_array_number(r->file, KEY("scores"), index, &score))
        return fail(r, KEY("scores"), "is no list of numbers; fetch the file again");
    if (r->types && !gguf_array_integer(r->file, KEY("token_type"), index, &type))
        return fail(r, KEY("token_type"), "is no list of integers; fetch the file again");
    if (length == 0) {
        length = (size_t)snprintf(empty, sizeof empty, "[EMPTY_%lld]", (long long)index);
        text = empty;
    }
    return convert_add(&r->to, text, length, (float)score, (uint64_t)type, r->err);
}

static tn_status check_twins(const reader *r)
{
    const vocab *v = &r->to.vocab;
    for (size_t i = 0; i < v->size; i++) {
        const char *text = v->strings.data + v->tokens[i].offset;
        uint32_t found = vocab_find(v, text, v->tokens[i].length);
        if (found != i)
            return tn_fail(r->err, TN_E_INPUT, r->to.path,
                           "key '" KEY("tokens") "': tokens %zu and %u are the same; correct the file", i, found);
    }
    return TN_OK;
}

static tn_status read_tokens(reader *r)
{
    int64_t count = gguf_array(r->file, KEY("tokens"));
    if (count < 1)
        return fail(r, KEY("tokens"), "is missing, or no list; take a file that holds a tokenizer");
    tn_status status = find_list(r, KEY("scores"), count, &r->scores);
    if (status == TN_OK)
        status = find_list(r, KEY("token_type"), count, &r->types);
    for (int64_t i = 0; i < count && status == TN_OK; i++)
        status = read_token(r, i);
    if (status == TN_OK)
        status = vocab_map_tokens(&r->to.vocab, &(doc_reader){{r->to.path, "tokens"}, r->err, TN_OK});
    return status == TN_OK ? check_twins(r) : status;
}

/* ---- the keys that are no lists ---------------------------------------------------------------------- */

static tn_status read_flag(const reader *r, const char *key, bool *value)
{
    if (gguf_kind_of(r->file, key) != GGUF_ABSENT && !gguf_flag(r->file, key, value))
        return fail(r, key, "is neither true nor false; correct the file");
    return TN_OK;
}

/* A token by its id; one that is absent stays as it is, if that is one. */
static tn_status read_id(const reader *r, const char *key, int64_t *id)
{
    int64_t size = (int64_t)r->to.vocab.size;
    bool there = gguf_kind_of(r->file, key) != GGUF_ABSENT;
    if (there && (!gguf_integer(r->file, key, id) || *id < 0 || *id >= size))
        return fail(r, key, "is no token; correct the file");
    if (*id >= size)
        *id = -1;
    return TN_OK;
}

/* What is put before or behind each text, as add says unless the file does. */
static tn_status read_around(const reader *r, const char *flag, const char *key, bool add, int64_t usual, int64_t *id)
{
    *id = usual;
    tn_status status = read_flag(r, flag, &add);
    if (status == TN_OK)
        status = read_id(r, key, id);
    if (status == TN_OK && add && *id < 0 && gguf_kind_of(r->file, flag) != GGUF_ABSENT)
        status = fail(r, key, "is missing, but that token is to be added to texts; correct the file");
    if (!add)
        *id = -1;
    return status;
}

static tn_status read_ids(reader *r, bool adds_bos)
{
    bool pieces = r->to.kind == CONVERT_CHARACTERS && !r->to.merges; /* SentencePiece's have usual ids */
    r->to.unk = pieces ? 0 : -1;
    tn_status status = read_id(r, KEY("unknown_token_id"), &r->to.unk);
    if (status == TN_OK)
        status = read_around(r, KEY("add_bos_token"), KEY("bos_token_id"), adds_bos, pieces ? 1 : -1, &r->to.front);
    if (status == TN_OK)
        status = read_around(r, KEY("add_eos_token"), KEY("eos_token_id"), false, pieces ? 2 : -1, &r->to.behind);
    return status;
}

/* ---- kinds of vocabularies ------------------------------------------------------------------------ */

static tn_status need_merges(reader *r)
{
    size_t length;
    int64_t count = gguf_array(r->file, KEY("merges"));
    if (count < 0 || (count > 0 && !gguf_array_text(r->file, KEY("merges"), 0, &length)))
        return fail(r, KEY("merges"), "is missing, or no list of strings; fetch the file again");
    r->to.file = r->file;
    r->to.merges = KEY("merges");
    return TN_OK;
}

/* The file of a Phi-3 does not say that its added tokens take the spaces behind them. */
static tn_status read_pieces(reader *r, bool *adds_bos)
{
    const char *architecture = gguf_text(r->file, "general.architecture");
    r->to.kind = CONVERT_CHARACTERS;
    r->to.prefix = *adds_bos = true;
    r->to.takes_spaces = architecture && !strcmp(architecture, "phi3");
    if (gguf_array(r->file, KEY("scores")) < 0)
        return fail(r, KEY("scores"), "is missing, or no list; fetch the file again");
    return TN_OK;
}

static tn_status read_byte_level(reader *r, bool *adds_bos)
{
    const char *name = gguf_text(r->file, KEY("pre"));
    const gguf_splits *splits = name ? gguf_splits_find(name) : NULL;
    if (!name || !strcmp(name, "default"))
        return fail(r, KEY("pre"),
                    "does not say how text is split into words; convert the model again with a newer converter, or "
                    "take another file of it");
    if (!splits)
        return tn_fail(r->err, TN_E_INPUT, r->to.path,
                       "key '" KEY("pre") "': '%.60s' is no way to split text that is known; use a newer release",
                       name);
    r->to.kind = CONVERT_BYTES;
    r->to.splits = splits->expressions;
    r->to.composes = splits->composes;
    r->to.ignores_merges = splits->ignores_merges;
    *adds_bos = splits->adds_bos;
    return need_merges(r);
}

/* Pieces with spaces in them as SentencePiece has them, but with merges. */
static tn_status read_merged_pieces(reader *r, bool *adds_bos)
{
    r->to.kind = CONVERT_CHARACTERS;
    *adds_bos = true;
    return need_merges(r);
}

static const struct kind {
    const char *name;
    tn_status (*read)(reader *r, bool *adds_bos);
} kinds[] = {{"llama", read_pieces}, {"gpt2", read_byte_level}, {"gemma4", read_merged_pieces}};

static tn_status read_kind(reader *r, bool *adds_bos)
{
    const char *name = gguf_text(r->file, KEY("model"));
    if (!name)
        return fail(r, KEY("model"), "is missing, or no string; take a file that holds a tokenizer");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(name, kinds[i].name))
            return kinds[i].read(r, adds_bos);
    return tn_fail(r->err, TN_E_INPUT, r->to.path,
                   "key '" KEY("model") "': '%.60s' is not supported; supported are llama, gpt2 and gemma4", name);
}

static tn_status read_prefix(reader *r)
{
    tn_status status = read_flag(r, KEY("add_space_prefix"), &r->to.prefix);
    if (status == TN_OK && r->to.prefix && r->to.kind == CONVERT_BYTES)
        status = fail(r, KEY("add_space_prefix"), "is true, which is not supported with gpt2; use another file");
    return status;
}

static tn_status read_all(reader *r, buffer *json)
{
    bool adds_bos = false;
    tn_status status = read_kind(r, &adds_bos);
    if (status == TN_OK)
        status = read_prefix(r);
    if (status == TN_OK)
        status = read_tokens(r);
    if (status == TN_OK)
        status = read_ids(r, adds_bos);
    return status == TN_OK ? convert_write(&r->to, json, r->err) : status;
}

tn_status gguf_tokenizer_convert(const char *path, buffer *json, tn_error *err)
{
    gguf *file = gguf_open(path, err);
    if (!file)
        return err->code;
    tn_error why = TN_ERROR_INIT, cut = TN_ERROR_INIT;
    reader r = {.to = {.path = path}, .file = file, .err = &why};
    tn_status status = read_all(&r, json);
    if (gguf_check(file, &cut) != TN_OK) /* what is wrong may be so for that reason */
        status = tn_fail(err, cut.code, cut.where, "%s", cut.message);
    else if (status != TN_OK)
        tn_fail(err, status, why.where, "%s", why.message);
    convert_free(&r.to);
    gguf_close(file);
    return status;
}
