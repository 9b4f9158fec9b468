/* A vocabulary's tokens as bytes: read from the tokenizer, put in order, made a tree. */
#include "grammar/vocabulary.h"

#include "base/structs.h"
#include "text/token_bytes.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

/* Longer tokens are never allowed: a depth has 16 bits, and no tokenizer has such. */
enum { LONGEST_TOKEN = 4096, MOST_IDS = 1 << 24 };

void tn_vocabulary_free(tn_vocabulary *v)
{
    if (!v)
        return;
    free(v->bytes);
    free(v->offsets);
    free(v->same);
    free(v->all.nodes);
    free(v->rest.nodes);
    free(v->plain);
    free(v->plain_order);
    free(v->plain_length);
    free(v->ends);
    free(v);
}

size_t tn_vocabulary_words(const tn_vocabulary *vocabulary)
{
    return vocabulary ? vocabulary->words : 0;
}

/* ---- reading ------------------------------------------------------------------------------------------------- */

static tn_status no_memory(tn_error *err)
{
    return tn_fail(err, TN_E_MEMORY, "vocabulary", "out of memory");
}

static tn_status read_tokens(tn_vocabulary *v, const tn_tokenizer *tokenizer, tn_error *err)
{
    buffer bytes = {0};
    tn_status status = TN_OK;
    for (int64_t id = 0; id < v->size && status == TN_OK; id++) {
        token_kind kind;
        v->offsets[id] = bytes.size;
        status = token_bytes(tokenizer, id, &bytes, &kind, err);
        size_t length = bytes.size - v->offsets[id];
        if (length > LONGEST_TOKEN || vocabulary_has(v->ends, id))
            bytes.size = v->offsets[id];
        else if (length > v->longest)
            v->longest = length;
    }
    v->offsets[v->size] = bytes.size;
    v->bytes = bytes.data;
    return status;
}

/* How many characters a plain token has; 0: it is none. */
static uint32_t plain_characters(const char *bytes, size_t length)
{
    uint32_t n = 0;
    for (size_t i = 0; i < length; n++) {
        utf8_char c = utf8_read(bytes + i, length - i);
        if (c.code < 0x20 || c.code == '"' || c.code == '\\')
            return 0;
        i += c.length;
    }
    return n;
}

/* ---- the tree ------------------------------------------------------------------------------------------------- */

static int by_bytes(const void *x, const void *y, void *ctx)
{
    const tn_vocabulary *v = ctx;
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    size_t m = v->offsets[a + 1] - v->offsets[a], n = v->offsets[b + 1] - v->offsets[b];
    int order = memcmp(v->bytes + v->offsets[a], v->bytes + v->offsets[b], m < n ? m : n);
    if (order == 0)
        order = m < n ? -1 : m > n;
    return order ? order : a < b ? -1 : 1;
}

static size_t common(const char *a, size_t m, const char *b, size_t n)
{
    size_t i = 0;
    while (i < m && i < n && a[i] == b[i])
        i++;
    return i;
}

/* ids in order of their bytes; open[depth] is the node of a depth that is not yet closed. */
static bool make_tree(tn_vocabulary *v, const uint32_t *ids, size_t count, vocabulary_tree *tree)
{
    size_t most = 0, depth = 0;
    for (size_t i = 0; i < count; i++)
        most += v->offsets[ids[i] + 1] - v->offsets[ids[i]];
    tree->nodes = malloc((most + 1) * sizeof *tree->nodes);
    uint32_t *open = malloc((v->longest + 1) * sizeof *open);
    const char *before = NULL;
    bool good = tree->nodes && open;
    for (size_t i = 0; good && i < count; i++) {
        const char *bytes = v->bytes + v->offsets[ids[i]];
        size_t length = v->offsets[ids[i] + 1] - v->offsets[ids[i]], shared = common(before, depth, bytes, length);
        if (shared == length && shared == depth && before) { /* the same bytes once more */
            v->same[ids[i]] = tree->nodes[open[depth - 1]].token;
            tree->nodes[open[depth - 1]].token = ids[i];
            continue;
        }
        while (depth > shared)
            tree->nodes[open[--depth]].skip = (uint32_t)tree->count;
        for (; depth < length; depth++) {
            open[depth] = (uint32_t)tree->count;
            tree->nodes[tree->count++] = (vocabulary_node){0, VOCABULARY_NONE, (uint16_t)depth, (uint8_t)bytes[depth]};
        }
        tree->nodes[open[depth - 1]].token = ids[i];
        before = bytes;
    }
    while (good && depth)
        tree->nodes[open[--depth]].skip = (uint32_t)tree->count;
    free(open);
    vocabulary_node *fitting = good ? realloc(tree->nodes, (tree->count + 1) * sizeof *fitting) : NULL;
    tree->nodes = fitting ? fitting : tree->nodes;
    return fitting != NULL;
}

static int by_length(const void *x, const void *y, void *ctx)
{
    const uint32_t *length = ctx;
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return length[a] != length[b] ? (length[a] < length[b] ? -1 : 1) : a < b ? -1 : 1;
}

/* Sorts the tokens, tells plain ones from the rest, and makes both trees. */
static bool arrange(tn_vocabulary *v)
{
    size_t n = (size_t)v->size + 1, count = 0, rest_count = 0;
    uint32_t *ids = malloc(n * sizeof *ids), *rest = malloc(n * sizeof *rest), *lengths = calloc(n, sizeof *lengths);
    v->plain_order = malloc(n * sizeof *v->plain_order);
    v->plain_length = malloc(n * sizeof *v->plain_length);
    bool good = ids && rest && lengths && v->plain_order && v->plain_length;
    for (uint32_t id = 0; good && id < (uint32_t)v->size; id++)
        if (v->offsets[id + 1] > v->offsets[id])
            ids[count++] = id;
    if (good && count)
        qsort_r(ids, count, sizeof *ids, by_bytes, v);
    for (size_t i = 0; good && i < count; i++) {
        uint32_t id = ids[i];
        lengths[id] = plain_characters(v->bytes + v->offsets[id], v->offsets[id + 1] - v->offsets[id]);
        if (!lengths[id]) {
            rest[rest_count++] = id;
            continue;
        }
        vocabulary_set(v->plain, id);
        v->plain_order[v->plain_count++] = id;
    }
    if (good && v->plain_count)
        qsort_r(v->plain_order, v->plain_count, sizeof *v->plain_order, by_length, lengths);
    for (size_t i = 0; good && i < v->plain_count; i++)
        v->plain_length[i] = lengths[v->plain_order[i]];
    /* The second tree finds the ids of same bytes linked already: those of one node are all in it, or none is. */
    good = good && make_tree(v, ids, count, &v->all) && make_tree(v, rest, rest_count, &v->rest);
    free(ids);
    free(rest);
    free(lengths);
    return good;
}

void vocabulary_add_plain(const tn_vocabulary *v, uint64_t *bits, uint32_t characters)
{
    size_t low = 0, high = v->plain_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (v->plain_length[middle] <= characters)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < v->plain_count / 2) {
        for (size_t i = 0; i < low; i++)
            vocabulary_set(bits, v->plain_order[i]);
        return;
    }
    /* bits holds none of them yet: all, and those that are too long out again. */
    for (size_t w = 0; w < v->words; w++)
        bits[w] |= v->plain[w];
    for (size_t i = low; i < v->plain_count; i++)
        bits[v->plain_order[i] / 64] &= ~(UINT64_C(1) << (v->plain_order[i] % 64));
}

/* ---- from outside ------------------------------------------------------------------------------------------------ */

static tn_status fill(tn_vocabulary *v, const tn_tokenizer *tokenizer, const int64_t *ends, size_t end_count,
                      tn_error *err)
{
    v->words = ((size_t)v->size + 63) / 64;
    v->offsets = calloc((size_t)v->size + 1, sizeof *v->offsets);
    v->same = malloc((size_t)v->size * sizeof *v->same);
    v->plain = calloc(v->words, sizeof *v->plain);
    v->ends = calloc(v->words, sizeof *v->ends);
    if (!v->offsets || !v->same || !v->plain || !v->ends)
        return no_memory(err);
    memset(v->same, 0xff, (size_t)v->size * sizeof *v->same);
    for (size_t i = 0; i < end_count; i++) {
        if (ends[i] < 0 || ends[i] >= v->size)
            return tn_fail(err, TN_E_USAGE, "ends", "token id %lld is outside the vocabulary of %lld",
                           (long long)ends[i], (long long)v->size);
        vocabulary_set(v->ends, ends[i]);
    }
    tn_status status = read_tokens(v, tokenizer, err);
    return status == TN_OK && !arrange(v) ? no_memory(err) : status;
}

tn_vocabulary *tn_vocabulary_new(const tn_tokenizer *tokenizer, int64_t size, const int64_t *ends, size_t end_count,
                                 tn_error *err)
{
    tn_error own = TN_ERROR_INIT;
    err = err ? err : &own;
    if (!tokenizer || (!ends && end_count > 0)) {
        structs_missing(tokenizer ? "ends" : "tokenizer", err);
        return NULL;
    }
    size = size ? size : tn_tokenizer_size(tokenizer);
    if (size < 1 || size > MOST_IDS) {
        tn_fail(err, TN_E_USAGE, "size", "%lld is no size of a vocabulary", (long long)size);
        return NULL;
    }
    tn_vocabulary *v = calloc(1, sizeof *v);
    if (!v)
        no_memory(err);
    else
        v->size = size;
    if (v && fill(v, tokenizer, ends, end_count, err) == TN_OK)
        return v;
    tn_vocabulary_free(v);
    return NULL;
}
