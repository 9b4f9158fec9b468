/* The vocabulary: tokens by id and by text, and the merges of a BPE model by pair. */
#include "text/vocab.h"

#include "base/siphash.h"
#include "text/buffer.h"
#include "text/doc.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

static uint64_t hash_pair(const vocab *v, uint32_t left, uint32_t right)
{
    uint32_t pair[2] = {left, right};
    return siphash(v->key, pair, sizeof pair);
}

/* Slots of a table that stays at most half full: a power of two. */
static size_t table_size(size_t count)
{
    size_t size = 16;
    while (size < count * 2)
        size *= 2;
    return size;
}

static bool token_is(const vocab *v, uint32_t id, const char *text, size_t length)
{
    const vocab_token *t = &v->tokens[id];
    return t->length == length && (length == 0 || memcmp(v->strings.data + t->offset, text, length) == 0);
}

uint32_t vocab_find(const vocab *v, const char *text, size_t length)
{
    for (size_t i = siphash(v->key, text, length) & v->map_mask;; i = (i + 1) & v->map_mask)
        if (v->map[i] == VOCAB_NONE || token_is(v, v->map[i], text, length))
            return v->map[i];
}

const vocab_merge *vocab_find_merge(const vocab *v, uint32_t left, uint32_t right)
{
    for (size_t i = hash_pair(v, left, right) & v->merge_mask;; i = (i + 1) & v->merge_mask) {
        const vocab_merge *m = &v->merges[i];
        if (m->left == VOCAB_NONE)
            return NULL;
        if (m->left == left && m->right == right)
            return m;
    }
}

#define TOUCHING_BITS 18

/* The bit of two characters. Of 262,144 a vocabulary sets some ten thousand; a bit that two pairs share only makes
 * words longer. */
static size_t touching_bit(int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)left << 21 | (uint64_t)right;
    return (size_t)(pair * UINT64_C(0x9e3779b97f4a7c15) >> (64 - TOUCHING_BITS));
}

static void note_touching(vocab *v, const char *text, size_t length)
{
    int32_t last = 0;
    for (size_t i = 0; i < length;) {
        utf8_char c = utf8_read(text + i, length - i);
        size_t bit = touching_bit(last, c.code);
        if (i > 0)
            v->touching[bit / 64] |= UINT64_C(1) << bit % 64;
        last = c.code;
        i += c.length;
    }
}

bool vocab_may_touch(const vocab *v, uint32_t left, uint32_t right)
{
    const vocab_token *a = &v->tokens[left], *b = &v->tokens[right];
    if (a->length == 0 || b->length == 0)
        return true;
    const char *start = v->strings.data + a->offset, *last = start + a->length - 1;
    while (last > start && ((unsigned char)*last & 0xc0) == 0x80)
        last--;
    size_t bit = touching_bit(utf8_read(last, a->length - (size_t)(last - start)).code,
                              utf8_read(v->strings.data + b->offset, b->length).code);
    return v->touching[bit / 64] >> bit % 64 & 1;
}

tn_status vocab_check_id(int64_t id, const char *token, doc_reader *r)
{
    if (id >= 0 && id < VOCAB_LIMIT)
        return TN_OK;
    return doc_fail(r, "id %lld of token '%.80s' is outside 0 to %lld; correct the file", (long long)id, token,
                    (long long)VOCAB_LIMIT - 1);
}

tn_status vocab_add(vocab *v, int64_t id, const char *text, size_t length, bool special, doc_reader *r)
{
    if (vocab_check_id(id, text, r) != TN_OK)
        return r->status;
    size_t index = (size_t)id;
    if (index >= v->capacity) {
        size_t before = v->capacity;
        vocab_token *grown = buffer_grow(v->tokens, &v->capacity, index + 1, sizeof *grown);
        if (!grown)
            return doc_no_memory(r);
        v->tokens = grown;
        memset(grown + before, 0, (v->capacity - before) * sizeof *grown);
    }
    if (index >= v->size)
        v->size = index + 1;
    vocab_token *token = &v->tokens[index];
    if (token->present && !token_is(v, (uint32_t)index, text, length))
        return doc_fail(r, "tokens '%.*s' and '%.80s' both have id %lld; correct the file",
                        token->length < 80 ? (int)token->length : 80, v->strings.data + token->offset, text,
                        (long long)id);
    token->special = special;
    if (token->present)
        return TN_OK;
    token->present = true;
    token->offset = v->strings.size;
    token->length = (uint32_t)length;
    if (!buffer_add(&v->strings, text, length))
        return doc_no_memory(r);
    return TN_OK;
}

/* Room for count tokens that can be found by their texts. */
static tn_status start_map(vocab *v, size_t count, doc_reader *r)
{
    size_t slots = table_size(count);
    v->key = siphash_draw();
    v->map = malloc(slots * sizeof *v->map);
    if (!v->map)
        return doc_no_memory(r);
    memset(v->map, 0xff, slots * sizeof *v->map); /* VOCAB_NONE */
    v->map_mask = slots - 1;
    return TN_OK;
}

tn_status vocab_load_tokens(vocab *v, const doc_node *model, doc_reader *r)
{
    const doc_node *tokens = doc_get(model, "vocab"), *value;
    if (!doc_is_object(tokens))
        return doc_fail(r, "'vocab' is missing or no object; fetch the file again");
    if (start_map(v, doc_count(tokens), r) != TN_OK)
        return r->status;
    const char *text;
    size_t length;
    for (void *it = NULL; doc_next(tokens, &it, &text, &length, &value);) {
        int64_t id;
        if (!doc_integer(value, &id))
            return doc_fail(r, "the id of token '%.80s' is not an integer; correct the file", text);
        if (vocab_add(v, id, text, length, false, r) != TN_OK)
            return r->status;
        size_t i = siphash(v->key, text, length) & v->map_mask;
        while (v->map[i] != VOCAB_NONE)
            i = (i + 1) & v->map_mask;
        v->map[i] = (uint32_t)id;
    }
    return TN_OK;
}

tn_status vocab_map_tokens(vocab *v, doc_reader *r)
{
    if (start_map(v, v->size, r) != TN_OK)
        return r->status;
    for (size_t id = 0; id < v->size; id++) {
        const vocab_token *token = &v->tokens[id];
        const char *text = token->length ? v->strings.data + token->offset : "";
        size_t i = siphash(v->key, text, token->length) & v->map_mask;
        while (token->present && v->map[i] != VOCAB_NONE && !token_is(v, v->map[i], text, token->length))
            i = (i + 1) & v->map_mask;
        if (token->present)
            v->map[i] = (uint32_t)id; /* of two equal ones the later counts */
    }
    return TN_OK;
}

/* Splits one merge, "left right" or ["left", "right"]. */
static bool read_merge(const doc_node *node, const char *part[2], size_t length[2])
{
    if (doc_is_list(node)) {
        for (size_t i = 0; i < 2; i++)
            if ((part[i] = doc_text(doc_at(node, i), &length[i])) == NULL)
                return false;
        return doc_count(node) == 2;
    }
    size_t all;
    const char *text = doc_text(node, &all);
    const char *space = text ? memchr(text, ' ', all) : NULL;
    if (!space)
        return false;
    part[0] = text;
    length[0] = (size_t)(space - text);
    part[1] = space + 1;
    length[1] = all - length[0] - 1;
    return memchr(part[1], ' ', length[1]) == NULL;
}

/* prefix: bytes of continuing_subword_prefix, which the right one loses. */
static tn_status add_merge(vocab *v, const doc_node *node, size_t index, uint32_t rank, size_t prefix, buffer *joined,
                           doc_reader *r)
{
    const char *part[2];
    size_t length[2];
    if (!read_merge(node, part, length))
        return doc_fail(r, "merges[%zu] is no pair of tokens; correct the file", index);
    uint32_t id[2];
    for (size_t i = 0; i < 2; i++)
        if ((id[i] = vocab_find(v, part[i], length[i])) == VOCAB_NONE)
            return doc_fail(r, "merges[%zu]: token '%.*s' is not in vocab; correct the file", index,
                            (int)(length[i] < 80 ? length[i] : 80), part[i]);
    if (length[1] < prefix)
        return doc_fail(r, "merges[%zu]: token '%.80s' is shorter than continuing_subword_prefix; correct the file",
                        index, part[1]);
    joined->size = 0;
    if (!buffer_add(joined, part[0], length[0]) || !buffer_add(joined, part[1], length[1]))
        return doc_no_memory(r);
    note_touching(v, joined->data, joined->size); /* with the prefix, since the right one begins with it */
    joined->size = length[0];
    if (!buffer_add(joined, part[1] + prefix, length[1] - prefix))
        return doc_no_memory(r);
    uint32_t whole = vocab_find(v, joined->size ? joined->data : "", joined->size);
    if (whole == VOCAB_NONE)
        return doc_fail(r, "merges[%zu]: token '%.*s' is not in vocab; correct the file", index,
                        (int)(joined->size < 80 ? joined->size : 80), joined->data);
    size_t i = hash_pair(v, id[0], id[1]) & v->merge_mask;
    // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): load_merges has set all slots
    while (v->merges[i].left != VOCAB_NONE && (v->merges[i].left != id[0] || v->merges[i].right != id[1]))
        i = (i + 1) & v->merge_mask;
    v->merges[i] = (vocab_merge){id[0], id[1], rank, whole}; /* of two equal ones the later counts */
    return TN_OK;
}

static tn_status load_merges(vocab *v, const doc_node *model, doc_reader *r)
{
    const doc_node *list = doc_get(model, "merges");
    if (!doc_is_list(list))
        return doc_fail(r, "'merges' is missing or no list; fetch the file again");
    size_t count = doc_count(list), slots = table_size(count);
    v->merges = malloc(slots * sizeof *v->merges);
    v->touching = calloc(((size_t)1 << TOUCHING_BITS) / 64, sizeof *v->touching);
    if (!v->merges || !v->touching)
        return doc_no_memory(r);
    for (size_t i = 0; i < slots; i++)
        v->merges[i].left = VOCAB_NONE;
    v->merge_mask = slots - 1;
    buffer joined = {0};
    const char *prefix = "";
    size_t prefix_length = 0;
    doc_get_text(model, "continuing_subword_prefix", &prefix, &prefix_length, r);
    uint32_t rank = 0;
    for (size_t i = 0; i < count && r->status == TN_OK; i++) {
        size_t length;
        const char *text = doc_text(doc_at(list, i), &length);
        if (text && strncmp(text, "#version", 8) == 0) /* the first line of merges.txt, sometimes kept */
            continue;
        add_merge(v, doc_at(list, i), i, rank++, prefix_length, &joined, r);
    }
    buffer_free(&joined);
    return r->status;
}

tn_status vocab_load(vocab *v, const doc_node *model, doc_reader *r)
{
    return vocab_load_tokens(v, model, r) == TN_OK ? load_merges(v, model, r) : r->status;
}

void vocab_free(vocab *v)
{
    buffer_free(&v->strings);
    free(v->tokens);
    free(v->map);
    free(v->merges);
    free(v->touching);
    *v = (vocab){0};
}
