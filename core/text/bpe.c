/* Byte-pair encoding: in each word the pair with the lowest rank merges first, the leftmost of equals. Of a short word
 * all pairs are looked at for each merge. In a long one symbols form a linked list and pairs wait in a heap, so a word
 * of n characters takes O(n log n). A word that has been seen in the same call is not encoded again. */
#include "text/bpe.h"

#include "text/buffer.h"
#include "text/doc.h"
#include "text/pretok.h"
#include "text/spans.h"
#include "text/utf8.h"
#include "text/vocab.h"
#include "text/wordcache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_SYMBOL SIZE_MAX
#define NO_RANK UINT32_MAX

/* Up to here looking at all pairs is faster than a heap. */
#define SHORT_WORD 64

typedef struct symbol {
    uint32_t id;
    uint32_t made; /* what it and its right neighbour merge to; VOCAB_NONE: they don't                */
    bool gone;     /* merged into its left neighbour                                                 */
    size_t previous, next;
} symbol;

typedef struct pair {
    uint32_t rank, id; /* id: of the merged token                                                 */
    size_t position;   /* of its left symbol                                                      */
} pair;

struct bpe_scratch {
    uint32_t *ids; /* what the word's characters start as, and for a short word what becomes of them  */
    size_t id_count, id_capacity;
    symbol *symbols;
    size_t symbol_capacity;
    pair *heap;
    size_t heap_count, heap_capacity;
    buffer text;    /* a word in the characters that stand for its bytes                         */
    buffer affixed; /* a character with prefix or suffix                                            */
};

#define MEMBERS                                                                                                        \
    "vocab merges dropout unk_token continuing_subword_prefix end_of_word_suffix ignore_merges byte_fallback fuse_unk"

void bpe_free(bpe *b)
{
    buffer_free(&b->prefix);
    buffer_free(&b->suffix);
}

/* A text that may be missing. */
static void load_affix(const doc_node *model, const char *key, buffer *affix, doc_reader *r)
{
    const char *text = "";
    size_t length = 0;
    doc_get_text(model, key, &text, &length, r);
    if (!buffer_add(affix, text, length))
        doc_no_memory(r);
}

tn_status bpe_load(bpe *b, const doc_node *model, const vocab *v, doc_reader *r)
{
    doc_only(model, MEMBERS, r);
    doc_get_flag(model, "ignore_merges", &b->ignore_merges, r);
    doc_get_flag(model, "byte_fallback", &b->byte_fallback, r);
    doc_get_flag(model, "fuse_unk", &b->fuse_unk, r);
    load_affix(model, "continuing_subword_prefix", &b->prefix, r);
    load_affix(model, "end_of_word_suffix", &b->suffix, r);
    double dropout = 0.0;
    if (doc_get(model, "dropout") && (!doc_number(doc_get(model, "dropout"), &dropout) || dropout != 0.0))
        doc_fail(r, "'dropout' belongs to training; set it to null");
    const char *unk = NULL;
    size_t length = 0;
    doc_get_text(model, "unk_token", &unk, &length, r);
    b->unk = unk ? vocab_find(v, unk, length) : VOCAB_NONE;
    if (unk && b->unk == VOCAB_NONE)
        doc_fail(r, "unk_token '%.80s' is not in vocab; correct the file", unk);
    for (unsigned i = 0; i < 256; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", i);
        b->bytes[i] = vocab_find(v, name, 6);
        char character[4];
        b->characters[i] = vocab_find(v, character, utf8_write(pretok_byte_char((unsigned char)i), character));
    }
    /* A token without text would let two pairs at one place make the same token. */
    b->short_words = vocab_find(v, "", 0) == VOCAB_NONE;
    return r->status;
}

bpe_scratch *bpe_scratch_new(void)
{
    return calloc(1, sizeof(bpe_scratch));
}

void bpe_scratch_free(bpe_scratch *s)
{
    if (!s)
        return;
    free(s->ids);
    free(s->symbols);
    free(s->heap);
    buffer_free(&s->text);
    buffer_free(&s->affixed);
    free(s);
}

static bool add_symbol(bpe_scratch *s, uint32_t id)
{
    uint32_t *grown = buffer_grow(s->ids, &s->id_capacity, s->id_count + 1, sizeof *grown);
    if (!grown)
        return false;
    s->ids = grown;
    s->ids[s->id_count++] = id;
    return true;
}

/* ---- short words ------------------------------------------------------------------------------------ */

static void rank_pair(const vocab *v, const uint32_t *ids, size_t left, uint32_t *ranks, uint32_t *made)
{
    const vocab_merge *m = vocab_find_merge(v, ids[left], ids[left + 1]);
    ranks[left] = m ? m->rank : NO_RANK;
    made[left] = m ? m->id : VOCAB_NONE;
}

/* Returns how many ids are left. */
static size_t merge_short(const vocab *v, uint32_t *ids, size_t count)
{
    uint32_t ranks[SHORT_WORD], made[SHORT_WORD]; /* of the pair of ids[i] and ids[i + 1]                */
    for (size_t i = 0; i + 1 < count; i++)
        rank_pair(v, ids, i, ranks, made);
    for (;;) {
        size_t best = 0;
        uint32_t rank = NO_RANK;
        for (size_t i = 0; i + 1 < count; i++)
            if (ranks[i] < rank) {
                rank = ranks[i];
                best = i;
            }
        if (rank == NO_RANK)
            return count;
        ids[best] = made[best];
        count--;
        for (size_t i = best + 1; i + 1 < count; i++) { /* pairs that both of their ids move with            */
            ids[i] = ids[i + 1];
            ranks[i] = ranks[i + 1];
            made[i] = made[i + 1];
        }
        if (best + 1 < count) {
            ids[count - 1] = ids[count];
            rank_pair(v, ids, best, ranks, made);
        }
        if (best > 0)
            rank_pair(v, ids, best - 1, ranks, made);
    }
}

/* ---- long words ------------------------------------------------------------------------------------- */

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
    if (left == NO_SYMBOL)
        return true;
    symbol *symbols = s->symbols;
    size_t right = symbols[left].next;
    const vocab_merge *m = right == NO_SYMBOL ? NULL : vocab_find_merge(v, symbols[left].id, symbols[right].id);
    symbols[left].made = m ? m->id : VOCAB_NONE;
    return !m || heap_push(s, (pair){m->rank, m->id, left});
}

static bool start_long(const vocab *v, bpe_scratch *s, const uint32_t *ids, size_t count)
{
    symbol *grown = buffer_grow(s->symbols, &s->symbol_capacity, count, sizeof *grown);
    if (!grown)
        return false;
    s->symbols = grown;
    s->heap_count = 0;
    for (size_t i = 0; i < count; i++)
        grown[i] = (symbol){.id = ids[i], .previous = i ? i - 1 : NO_SYMBOL, .next = i + 1 < count ? i + 1 : NO_SYMBOL};
    for (size_t i = 0; i < count; i++)
        if (!queue_pair(v, s, i))
            return false;
    return true;
}

static bool merge_long(const vocab *v, bpe_scratch *s, const uint32_t *ids, size_t count, id_list *out)
{
    if (!start_long(v, s, ids, count))
        return false;
    while (s->heap_count) {
        pair top = heap_pop(s);
        symbol *left = &s->symbols[top.position];
        /* An entry is stale when its pair has changed since, unless the pair of now makes the same token. */
        if (left->gone || left->made != top.id)
            continue;
        symbol *right = &s->symbols[left->next];
        left->id = top.id;
        left->next = right->next;
        right->gone = true;
        if (right->next != NO_SYMBOL)
            s->symbols[right->next].previous = top.position;
        if (!queue_pair(v, s, left->previous) || !queue_pair(v, s, top.position))
            return false;
    }
    for (size_t i = 0; i != NO_SYMBOL; i = s->symbols[i].next)
        if (!buffer_add_id(out, s->symbols[i].id))
            return false;
    return true;
}

/* ---- words ------------------------------------------------------------------------------------------ */

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

/* The character *text with what the model puts around it at its place in the word. */
static bool put_affixes(const bpe *b, bool inside, bool last, const char **text, size_t *size, bpe_scratch *s)
{
    inside = inside && b->prefix.size;
    last = last && b->suffix.size;
    if (!inside && !last)
        return true;
    s->affixed.size = 0;
    if ((inside && !buffer_add(&s->affixed, b->prefix.data, b->prefix.size)) ||
        !buffer_add(&s->affixed, *text, *size) || (last && !buffer_add(&s->affixed, b->suffix.data, b->suffix.size)))
        return false;
    *text = s->affixed.data;
    *size = s->affixed.size;
    return true;
}

/* The symbols that a word starts as: one for each of its characters that the vocabulary has. */
static bool add_characters(const bpe *b, const vocab *v, const char *word, size_t length, bpe_scratch *s)
{
    bool pending = false;
    for (size_t i = 0; i < length;) {
        size_t n = utf8_read(word + i, length - i).length, size = n;
        const char *text = word + i;
        if (!put_affixes(b, i > 0, i + n == length, &text, &size, s))
            return false;
        uint32_t id = vocab_find(v, text, size);
        if (id == VOCAB_NONE) {
            if (!add_unknown(b, text, size, s, &pending))
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
    return !pending || add_symbol(s, b->unk);
}

static bool merge_part(const bpe *b, const vocab *v, bpe_scratch *s, uint32_t *ids, size_t count, id_list *out)
{
    if (count > SHORT_WORD || !b->short_words)
        return merge_long(v, s, ids, count, out);
    count = merge_short(v, ids, count);
    for (size_t i = 0; i < count; i++)
        if (!buffer_add_id(out, ids[i]))
            return false;
    return true;
}

/* Merges the symbols of a word, and adds what is left. A long word, which is a whole text where there is no
 * pre-tokenizer, falls into parts between characters that no merge joins: what happens in one does not change another.
 */
static bool merge(const bpe *b, const vocab *v, bpe_scratch *s, id_list *out)
{
    bool parts = s->id_count > SHORT_WORD && b->short_words;
    for (size_t start = 0, end; start < s->id_count; start = end) {
        for (end = parts ? start + 1 : s->id_count;
             end < s->id_count && vocab_may_touch(v, s->ids[end - 1], s->ids[end]); end++)
            ;
        if (!merge_part(b, v, s, s->ids + start, end - start, out))
            return false;
    }
    return true;
}

bool bpe_encode(const bpe *b, const vocab *v, const char *word, size_t length, bpe_scratch *s, id_list *out)
{
    uint32_t whole = b->ignore_merges ? vocab_find(v, word, length) : VOCAB_NONE;
    if (whole != VOCAB_NONE)
        return buffer_add_id(out, whole);
    s->id_count = 0;
    return add_characters(b, v, word, length, s) && merge(b, v, s, out);
}

/* The same for a word whose bytes stand for themselves, not yet as characters of a byte-level vocabulary. */
static bool encode_bytes(const bpe *b, const vocab *v, const char *word, size_t length, bpe_scratch *s, id_list *out)
{
    bool all = !b->ignore_merges && !b->prefix.size && !b->suffix.size;
    s->id_count = 0;
    for (size_t i = 0; i < length && all; i++) {
        uint32_t id = b->characters[(unsigned char)word[i]];
        all = id != VOCAB_NONE;
        if (all && !add_symbol(s, id))
            return false;
    }
    if (all)
        return merge(b, v, s, out);
    s->text.size = 0;
    for (size_t i = 0; i < length; i++)
        if (!utf8_add(&s->text, pretok_byte_char((unsigned char)word[i])))
            return false;
    return bpe_encode(b, v, s->text.data, s->text.size, s, out);
}

static bool encode_piece(const bpe *b, const vocab *v, const pieces *p, span piece, bool bytes, wordcache *cache,
                         bpe_scratch *s, id_list *out)
{
    size_t length = piece.end - piece.start, first = out->count;
    bool cached = cache->slots && length <= WORDCACHE_LONGEST;
    wordcache_slot *slot;
    if (cached && wordcache_find(cache, p->text.data, piece.start, length, &slot))
        return buffer_repeat_ids(out, slot->first, slot->count);
    const char *word = p->text.data + piece.start;
    bool memory = bytes ? encode_bytes(b, v, word, length, s, out) : bpe_encode(b, v, word, length, s, out);
    if (cached)
        wordcache_put(slot, piece.start, length, first, out->count - first);
    return memory;
}

bool bpe_encode_pieces(const bpe *b, const vocab *v, const pieces *p, bool bytes, id_list *out)
{
    bpe_scratch *scratch = bpe_scratch_new();
    bool memory = scratch != NULL;
    wordcache cache;
    wordcache_open(&cache, p->count);
    for (size_t i = 0; i < p->count && memory; i++) {
        span piece = p->spans[i];
        if (piece.id >= 0)
            memory = buffer_add_id(out, piece.id);
        else if (piece.start < piece.end)
            memory = encode_piece(b, v, p, piece, bytes, &cache, scratch, out);
    }
    wordcache_close(&cache);
    bpe_scratch_free(scratch);
    return memory;
}
