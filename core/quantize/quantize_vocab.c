/* The tokenizer and the chat template, as keys of a .gguf. What follows from them is compared in quantize_check.c. */
#include "quantize/quantize.h"

#include "base/gguf.h"
#include "template/template_files.h"
#include "text/gguf_splits.h"
#include "text/scanner.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KEY(name) "tokenizer.ggml." name

enum { MOST_TOKENS = 1 << 24 };
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };

typedef struct token {
    const char *text; /* in the document; NULL: none                                                      */
    size_t length;
    int32_t type;
    float score;
} token;

typedef struct vocabulary {
    quantize_plan *plan;
    const doc_node *root, *model;
    token *tokens;
    int64_t count;
    int64_t first; /* of a text that is a letter                                                            */
    bool pieces;   /* of characters, with scores; else of bytes, with merges                                 */
} vocabulary;

static void fail(quantize_plan *p, const char *what)
{
    if (p->status == TN_OK)
        p->status = tn_fail(p->err, TN_E_INPUT, p->model->folder, "its tokenizer cannot be said in a .gguf: %s", what);
}

/* ---- tokens ---------------------------------------------------------------------------------------------- */

static bool is_unknown(const vocabulary *v, const char *text, size_t length)
{
    size_t n = 0;
    const char *unknown = doc_text(doc_get(v->model, "unk_token"), &n);
    return v->pieces && unknown && text && n == length && !memcmp(unknown, text, n);
}

static int32_t type_of(const vocabulary *v, const char *text, size_t length)
{
    if (is_unknown(v, text, length))
        return UNKNOWN;
    return v->pieces && length == 6 && !memcmp(text, "<0x", 3) && text[5] == '>' ? BYTE : NORMAL;
}

static void set_token(vocabulary *v, const doc_node *id_node, const char *text, size_t length, int32_t type)
{
    int64_t id = -1;
    if (!text || !doc_integer(id_node, &id) || id < 0 || id >= v->count)
        fail(v->plan, "it has a token whose number the model has not");
    else
        v->tokens[id] = (token){text, length, type ? type : type_of(v, text, length), 0};
}

static void read_added(vocabulary *v)
{
    const doc_node *list = doc_get(v->root, "added_tokens");
    for (size_t i = 0; i < doc_count(list); i++) {
        const doc_node *one = doc_at(list, i);
        doc_reader r = {.err = v->plan->err};
        bool special = false;
        size_t length = 0;
        const char *text = doc_text(doc_get(one, "content"), &length);
        doc_get_flag(one, "special", &special, &r);
        set_token(v, doc_get(one, "id"), text, length,
                  is_unknown(v, text, length) ? UNKNOWN
                  : special                   ? CONTROL
                                              : USER_DEFINED);
    }
}

static void read_tokens(vocabulary *v)
{
    const doc_node *words = doc_get(v->model, "vocab"), *id;
    const char *text;
    size_t length;
    if (!doc_is_object(words) || strcmp(doc_type(v->model), "BPE") != 0)
        fail(v->plan, "only BPE has a form there");
    for (void *at = NULL; v->plan->status == TN_OK && doc_next(words, &at, &text, &length, &id);)
        set_token(v, id, text, length, 0);
    read_added(v);
}

/* ---- merges ---------------------------------------------------------------------------------------------- */

/* "a b", or ["a", "b"]: the two and what stands between, as all of the text. */
static void add_merge(quantize_plan *p, text *t, const doc_node *merge, const char *between)
{
    size_t n = 0, m = 0;
    bool pair = doc_is_list(merge);
    const char *a = doc_text(pair ? doc_at(merge, 0) : merge, &n), *b = pair ? doc_text(doc_at(merge, 1), &m) : NULL;
    const char *space = !pair && a && n > 0 ? memchr(a + 1, ' ', n - 1) : NULL;
    t->length = 0;
    if (!a || (pair ? !b : !space)) {
        fail(p, "a merge is no pair of texts");
        return;
    }
    m = pair ? m : n - (size_t)(space + 1 - a);
    text_add_n(t, a, pair ? n : (size_t)(space - a));
    text_add(t, "%s", between);
    text_add_n(t, pair ? b : space + 1, m);
    if (t->failed && p->status == TN_OK)
        p->status = tn_fail(p->err, TN_E_MEMORY, p->model->folder, "out of memory");
}

static void put_merges(vocabulary *v)
{
    const doc_node *merges = doc_get(v->model, "merges");
    text t = {0};
    quantize_put_list(v->plan, KEY("merges"), QUANTIZE_STRING, doc_count(merges));
    for (size_t i = 0; v->plan->status == TN_OK && i < doc_count(merges); i++) {
        add_merge(v->plan, &t, doc_at(merges, i), " ");
        quantize_add_string(v->plan, t.data, t.length);
    }
    free(t.data);
}

/* What the merges of a vocabulary of pieces make, the earlier the better: these are its scores. */
static void read_scores(vocabulary *v)
{
    const doc_node *merges = doc_get(v->model, "merges"), *words = doc_get(v->model, "vocab");
    text t = {0};
    int64_t id;
    for (int64_t i = 0; i < v->count; i++)
        v->tokens[i].score = v->tokens[i].type == NORMAL ? -(float)(doc_count(merges) + 1) : 0;
    for (size_t i = doc_count(merges); v->plan->status == TN_OK && i-- > 0;) {
        add_merge(v->plan, &t, doc_at(merges, i), "");
        if (v->plan->status == TN_OK && doc_integer(doc_get(words, t.data), &id) && id >= 0 && id < v->count)
            v->tokens[id].score = -(float)i;
    }
    free(t.data);
}

static void put_scores(vocabulary *v)
{
    static const char mark[] = "\xe2\x96\x81"; /* what stands for a space                             */
    read_scores(v);
    quantize_put_list(v->plan, KEY("scores"), QUANTIZE_F32, (uint64_t)v->count);
    for (int64_t i = 0; i < v->count; i++)
        quantize_add_f32(v->plan, v->tokens[i].score);
    for (int64_t i = 0; i < v->count; i++)
        if (v->tokens[i].type == UNKNOWN)
            quantize_put_integer(v->plan, KEY("unknown_token_id"), i);
    const token *first = v->first >= 0 && v->first < v->count ? &v->tokens[v->first] : NULL;
    bool prefix = first && first->length >= strlen(mark) && !memcmp(first->text, mark, strlen(mark));
    quantize_put_flag(v->plan, KEY("add_space_prefix"), prefix);
}

/* ---- how text is split ------------------------------------------------------------------------------------- */

static bool add_expression(gguf_splits *splits, size_t *count, const char *expression)
{
    if (!expression || *count == GGUF_SPLITS_MOST)
        return false;
    splits->expressions[(*count)++] = expression;
    return true;
}

/* One of a sequence of steps; false: it has no form there. */
static bool read_step(const doc_node *step, gguf_splits *splits, size_t *count)
{
    size_t length;
    bool flag = true;
    doc_reader r = {.err = &(tn_error){0}};
    if (!strcmp(doc_type(step), "Split"))
        return add_expression(splits, count, doc_text(doc_get(doc_get(step, "pattern"), "Regex"), &length));
    if (!strcmp(doc_type(step), "ByteLevel")) {
        doc_get_flag(step, "use_regex", &flag, &r);
        return !flag || add_expression(splits, count, SCANNER_GPT2);
    }
    return !strcmp(doc_type(step), "Digits") && add_expression(splits, count, "\\p{N}");
}

static void put_splits(vocabulary *v)
{
    gguf_splits splits = {0};
    const doc_node *pre = doc_get(v->root, "pre_tokenizer"), *list = doc_get(pre, "pretokenizers");
    size_t count = 0, length;
    bool known = true;
    doc_reader r = {.err = v->plan->err};
    for (size_t i = 0; known && i < doc_count(list); i++)
        known = read_step(doc_at(list, i), &splits, &count);
    if (!list)
        known = read_step(pre, &splits, &count);
    splits.composes = !strcmp(doc_type(doc_get(v->root, "normalizer")), "NFC");
    doc_get_flag(v->model, "ignore_merges", &splits.ignores_merges, &r);
    const char *name = known ? gguf_splits_name(&splits, &length) : NULL;
    if (name)
        quantize_put_string(v->plan, KEY("pre"), name, length);
    else
        fail(v->plan, "its way to split text into words has no name there");
}

/* ---- keys ------------------------------------------------------------------------------------------------ */

static void put_tokens(vocabulary *v)
{
    char unused[32];
    quantize_put_list(v->plan, KEY("tokens"), QUANTIZE_STRING, (uint64_t)v->count);
    for (int64_t i = 0; i < v->count; i++) {
        const token *t = &v->tokens[i];
        size_t length = t->text ? t->length : text_cut(unused, sizeof unused, "[PAD%lld]", (long long)i);
        quantize_add_string(v->plan, t->text ? t->text : unused, length);
    }
    quantize_put_list(v->plan, KEY("token_type"), QUANTIZE_I32, (uint64_t)v->count);
    for (int64_t i = 0; i < v->count; i++)
        quantize_add_i32(v->plan, v->tokens[i].text ? v->tokens[i].type : UNUSED);
}

/* What a text gets before and behind it. */
static void put_around(vocabulary *v, const char *path)
{
    quantize_plan *p = v->plan;
    tn_tokenizer *t = tn_tokenizer_open(path, p->err);
    int64_t *ids = NULL,
            bos = config_list(&p->config, "bos_token_id") > 0 ? config_list_i64(&p->config, "bos_token_id", 0) : -1;
    size_t count = 0, bare = 0;
    int64_t *text = NULL;
    p->status = t ? tn_tokenizer_encode(t, "a", 1, true, &ids, &count, p->err) : p->err->code;
    if (p->status == TN_OK)
        p->status = tn_tokenizer_encode(t, "a", 1, false, &text, &bare, p->err);
    v->first = p->status == TN_OK && bare > 0 ? text[0] : -1;
    bool front = p->status == TN_OK && count > bare && ids[0] != text[0];
    bos = front ? ids[0] : bos;
    if (bos >= 0)
        quantize_put_integer(p, KEY("bos_token_id"), bos);
    quantize_put_flag(p, KEY("add_bos_token"), front);
    quantize_put_flag(p, KEY("add_eos_token"), count > bare + front);
    free(ids);
    free(text);
    tn_tokenizer_free(t);
}

static void put_ids(quantize_plan *p)
{
    static const char *const ends[] = {KEY("eos_token_id"), KEY("eot_token_id"), KEY("eom_token_id")};
    for (int64_t i = 0; i < p->model->eos_count && i < 3; i++)
        quantize_put_integer(p, ends[i], p->model->eos[i]);
    int64_t pad = config_i64(&p->config, "pad_token_id", -1, -1, INT32_MAX);
    if (pad >= 0)
        quantize_put_integer(p, KEY("padding_token_id"), pad);
}

static void put_template(quantize_plan *p, const char *path)
{
    tn_error why = TN_ERROR_INIT;
    template_files files = {0};
    tn_status status = template_files_read(&files, path, &why);
    if (status == TN_E_MEMORY && p->status == TN_OK)
        p->status = tn_fail(p->err, status, why.where, "%s", why.message);
    if (status == TN_OK && files.usual)
        quantize_put_string(p, "tokenizer.chat_template", files.usual, files.usual_size);
    template_files_free(&files);
}

static void put_vocabulary(vocabulary *v, const char *path)
{
    v->pieces = !strstr(doc_type(doc_get(v->root, "decoder")), "ByteLevel");
    read_tokens(v);
    if (v->plan->status != TN_OK)
        return;
    quantize_put_text(v->plan, KEY("model"), v->pieces ? "llama" : "gpt2");
    put_tokens(v);
    put_around(v, path);
    if (v->pieces) {
        quantize_put_text(v->plan, KEY("pre"), "default");
        put_scores(v);
    } else {
        put_splits(v);
        put_merges(v);
    }
}

/* A .gguf without one says so. One that cannot be opened is for who reads it next. */
static bool gguf_has_tokenizer(const char *path)
{
    gguf *file = gguf_open(path, &(tn_error){0});
    const char *kind = file ? gguf_text(file, KEY("model")) : NULL;
    bool has = !file || (kind && strcmp(kind, "none") != 0);
    gguf_close(file);
    return has;
}

/* Is there a tokenizer? */
static bool has_tokenizer(const char *path)
{
    static const char *const names[] = {"tokenizer.json", "tokenizer.json.gz", "tokenizer.model"};
    char file[4096];
    if (gguf_is_named(path))
        return gguf_has_tokenizer(path);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        text_cut(file, sizeof file, "%s/%s", path, names[i]);
        if (access(file, F_OK) == 0)
            return true;
    }
    return false;
}

void quantize_vocab(quantize_plan *p, const char *path)
{
    put_ids(p);
    if (!has_tokenizer(path)) {
        quantize_put_text(p, KEY("model"), "none");
        return;
    }
    doc *document = tokenizer_document(path, p->err);
    if (!document) {
        p->status = p->err->code;
        return;
    }
    vocabulary v = {.plan = p, .root = doc_root(document), .count = p->shape->vocab};
    v.model = doc_get(v.root, "model");
    v.tokens = v.count <= MOST_TOKENS ? calloc((size_t)v.count, sizeof *v.tokens) : NULL;
    if (v.tokens)
        put_vocabulary(&v, path);
    else
        p->status = tn_fail(p->err, TN_E_MEMORY, path, "out of memory for the tokens");
    free(v.tokens);
    doc_close(document);
    put_template(p, path);
}
