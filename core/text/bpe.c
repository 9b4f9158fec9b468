/* Byte-pair encoding of one word: the pair with the lowest rank merges first, the leftmost of equals. Symbols form a
 * linked list and pairs wait in a heap, so a word of n characters takes O(n log n). */
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_SYMBOL SIZE_MAX

typedef struct symbol {
    uint32_t id;
    bool gone; /* merged into its left neighbour                                                 */
    size_t previous, next;
} symbol;

typedef struct pair {
    uint32_t rank, id; /* id: of the merged token                                                 */
    size_t position;   /* of its left symbol                                                      */
} pair;

struct bpe_scratch {
    symbol *symbols;
    size_t symbol_count, symbol_capacity;
    pair *heap;
    size_t heap_count, heap_capacity;
};

tn_status bpe_load(bpe *b, const doc_node *model, const vocab *v, place at, tn_error *err)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    tn_status status = doc_get_flag(model, "ignore_merges", &b->ignore_merges, at, err);
    if (status == TN_OK)
        status = doc_get_flag(model, "byte_fallback", &b->byte_fallback, at, err);
    if (status == TN_OK)
        status = doc_get_flag(model, "fuse_unk", &b->fuse_unk, at, err);
    for (size_t i = 0; i < 2 && status == TN_OK; i++) {
        const char *affix = "";
        size_t length = 0;
        status = doc_get_text(model, affixes[i], &affix, &length, at, err);
        if (length)
            status = tn_fail(err, TN_E_INPUT, at.file, "%s: '%s' is not supported; use another model", at.component,
                             affixes[i]);
    }
    if (status == TN_OK && doc_get(model, "dropout"))
        status = tn_fail(err, TN_E_INPUT, at.file, "%s: 'dropout' belongs to training; set it to null", at.component);
    const char *unk = NULL;
    size_t length = 0;
    if (status == TN_OK)
        status = doc_get_text(model, "unk_token", &unk, &length, at, err);
    b->unk = unk ? vocab_find(v, unk, length) : VOCAB_NONE;
    if (unk && b->unk == VOCAB_NONE)
        status = tn_fail(err, TN_E_INPUT, at.file, "%s: unk_token '%.80s' is not in vocab; correct the file",
                         at.component, unk);
    for (unsigned i = 0; i < 256; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", i);
        b->bytes[i] = vocab_find(v, name, 6);
    }
    return status;
}

bpe_scratch *bpe_scratch_new(void)
{
    return calloc(1, sizeof(bpe_scratch));
}

void bpe_scratch_free(bpe_scratch *s)
{
    if (!s)
        return;
    free(s->symbols);
    free(s->heap);
    free(s);
}

static bool add_symbol(bpe_scratch *s, uint32_t id)
{
    symbol *grown = buffer_grow(s->symbols, &s->symbol_capacity, s->symbol_count + 1, sizeof *grown);
    if (!grown)
        return false;
    s->symbols = grown;
    s->symbols[s->symbol_count++] = (symbol){.id = id};
    return true;
}

static bool before(const pair *a, const pair *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->position < b->position;
}

static bool heap_push(bpe_scratch *s, pair p)
{
    pair *grown = buffer_grow(s->heap, &s->heap_capacity, s->heap_count + 1, sizeof *grown);
    if (!grown)
        return false;
    s->heap = grown;
    size_t i = s->heap_count++;
    for (; i > 0 && before(&p, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = p;
    return true;
}

static pair heap_pop(bpe_scratch *s)
{
    pair top = s->heap[0], last = s->heap[--s->heap_count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < s->heap_count; i = child) {
        if (child + 1 < s->heap_count && before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!before(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = last;
    return top;
}

/* Queues the pair of a symbol and its right neighbour, if they merge. */
static bool queue_pair(const vocab *v, bpe_scratch *s, size_t left)
{
    size_t right = left == NO_SYMBOL ? NO_SYMBOL : s->symbols[left].next;
    if (right == NO_SYMBOL)
        return true;
    const vocab_merge *m = vocab_find_merge(v, s->symbols[left].id, s->symbols[right].id);
    return !m || heap_push(s, (pair){m->rank, m->id, left});
}

static bool merge_all(const vocab *v, bpe_scratch *s)
{
    for (size_t i = 0; i < s->symbol_count; i++) {
        s->symbols[i].previous = i ? i - 1 : NO_SYMBOL;
        s->symbols[i].next = i + 1 < s->symbol_count ? i + 1 : NO_SYMBOL;
    }
    s->heap_count = 0;
    for (size_t i = 0; i < s->symbol_count; i++)
        if (!queue_pair(v, s, i))
            return false;
    while (s->heap_count) {
        pair top = heap_pop(s);
        symbol *left = &s->symbols[top.position];
        if (left->gone || left->next == NO_SYMBOL)
            continue;
        symbol *right = &s->symbols[left->next];
        /* An entry is stale when its pair has changed since, unless the pair of now makes the same token. */
        const vocab_merge *m = vocab_find_merge(v, left->id, right->id);
        if (!m || m->id != top.id)
            continue;
        left->id = top.id;
        left->next = right->next;
        right->gone = true;
        if (right->next != NO_SYMBOL)
            s->symbols[right->next].previous = top.position;
        if (!queue_pair(v, s, left->previous) || !queue_pair(v, s, top.position))
            return false;
    }
    return true;
}

/* The symbols that one character starts as when the vocabulary lacks it. pending counts unknown characters that have
 * not become a symbol yet: with fuse_unk a run of them is one token. */
static bool add_unknown(const bpe *b, const char *text, size_t length, bpe_scratch *s, bool *pending)
{
    bool all = b->byte_fallback;
    for (size_t i = 0; i < length && all; i++)
        all = b->bytes[(unsigned char)text[i]] != VOCAB_NONE;
    if (all) {
        for (size_t i = 0; i < length; i++)
            if (!add_symbol(s, b->bytes[(unsigned char)text[i]]))
                return false;
        return true;
    }
    if (b->unk == VOCAB_NONE) /* without an unknown token the character is dropped */
        return true;
    if (*pending && !b->fuse_unk && !add_symbol(s, b->unk))
        return false;
    *pending = true;
    return true;
}

bool bpe_encode(const bpe *b, const vocab *v, const char *word, size_t length, bpe_scratch *s, id_list *out)
{
    uint32_t whole = b->ignore_merges ? vocab_find(v, word, length) : VOCAB_NONE;
    if (whole != VOCAB_NONE)
        return buffer_add_id(out, whole);
    s->symbol_count = 0;
    bool pending = false;
    for (size_t i = 0; i < length;) {
        size_t n = utf8_read(word + i, length - i).length;
        uint32_t id = vocab_find(v, word + i, n);
        if (id == VOCAB_NONE) {
            if (!add_unknown(b, word + i, n, s, &pending))
                return false;
        } else {
            if (pending && !add_symbol(s, b->unk))
                return false;
            pending = false;
            if (!add_symbol(s, id))
                return false;
        }
        i += n;
    }
    if ((pending && !add_symbol(s, b->unk)) || !merge_all(v, s))
        return false;
    for (size_t i = 0; i < s->symbol_count; i++)
        if (!s->symbols[i].gone && !buffer_add_id(out, s->symbols[i].id))
            return false;
    return true;
}
