/* The Unigram model: of all ways to write a text as pieces, the one whose scores add up to the most (Viterbi). */
#include "text/unigram.h"

#include "text/bpe.h"
#include "text/doc.h"
#include "text/spans.h"
#include "text/trie.h"
#include "text/utf8.h"
#include "text/vocab.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bounds what a search can cost at each place of a text. SentencePiece's own pieces have at most some tens of bytes. */
#define PIECE_LENGTH_LIMIT 4096

/* What a character outside of the vocabulary scores below the worst piece. */
#define UNKNOWN_PENALTY 10.0

static tn_status load_piece(unigram *u, vocab *v, const doc_node *entry, size_t id, doc_reader *r)
{
    size_t length = 0;
    const char *text = doc_text(doc_at(entry, 0), &length);
    if (!text || doc_count(entry) != 2 || !doc_number(doc_at(entry, 1), &u->scores[id]))
        return doc_fail(r, "vocab[%zu] is no piece with its score; correct the file", id);
    if (length > PIECE_LENGTH_LIMIT)
        return doc_fail(r, "vocab[%zu] is longer than %d bytes; correct the file", id, PIECE_LENGTH_LIMIT);
    if (vocab_add(v, (int64_t)id, text, length, false, r) == TN_OK &&
        !trie_put(&u->pieces, text, length, (uint32_t)id)) /* of two equal ones the later counts */
        doc_no_memory(r);
    return r->status;
}

static void load_options(unigram *u, const doc_node *model, size_t count, doc_reader *r)
{
    int64_t unk = -1;
    doc_only(model, "vocab unk_id byte_fallback", r);
    doc_get_integer(model, "unk_id", &unk, r);
    doc_get_flag(model, "byte_fallback", &u->byte_fallback, r);
    if (doc_get(model, "unk_id") && (unk < 0 || (uint64_t)unk >= count))
        doc_fail(r, "unk_id %lld is not in vocab; correct the file", (long long)unk);
    u->unk = unk < 0 ? VOCAB_NONE : (uint32_t)unk;
}

tn_status unigram_load(unigram *u, vocab *v, const doc_node *model, doc_reader *r)
{
    const doc_node *list = doc_get(model, "vocab");
    if (!doc_is_list(list))
        return doc_fail(r, "'vocab' is missing or no list; fetch the file again");
    size_t count = doc_count(list);
    load_options(u, model, count, r);
    u->scores = calloc(count ? count : 1, sizeof *u->scores);
    if (!u->scores)
        return doc_no_memory(r);
    double lowest = INFINITY;
    for (size_t i = 0; i < count && r->status == TN_OK; i++) {
        load_piece(u, v, doc_at(list, i), i, r);
        lowest = u->scores[i] < lowest ? u->scores[i] : lowest;
    }
    u->unknown = lowest - UNKNOWN_PENALTY;
    if (r->status == TN_OK)
        vocab_map_tokens(v, r);
    for (unsigned i = 0; i < 256 && r->status == TN_OK; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", i);
        u->bytes[i] = vocab_find(v, name, 6);
    }
    return r->status;
}

void unigram_free(unigram *u)
{
    trie_free(&u->pieces);
    free(u->scores);
    *u = (unigram){0};
}

/* The best way to write the text up to here. */
typedef struct best {
    double score;
    size_t start; /* of its last piece, SIZE_MAX: no way known yet                              */
    uint32_t id;
} best;

static bool offer(best *to, double score, size_t start, uint32_t id)
{
    if (to->start != SIZE_MAX && !(score > to->score))
        return false;
    *to = (best){score, start, id};
    return true;
}

/* Fills ways[0..length]. False when a character has no piece and there is no unknown token. */
static bool find_best(const unigram *u, const char *text, size_t length, best *ways)
{
    for (size_t i = 0; i <= length; i++)
        ways[i] = (best){0, SIZE_MAX, 0};
    ways[0].start = 0;
    for (size_t i = 0, n; i < length; i += n) {
        n = utf8_read(text + i, length - i).length;
        bool single = false;
        uint32_t node = 0;
        for (size_t k = i; k < length && (node = trie_step(&u->pieces, node, (unsigned char)text[k])) != TRIE_NONE;) {
            uint32_t id = u->pieces.nodes[node].value;
            k++;
            if (id == TRIE_NONE)
                continue;
            offer(&ways[k], u->scores[id] + ways[i].score, i, id);
            single = single || k == i + n;
        }
        if (!single && offer(&ways[i + n], u->unknown + ways[i].score, i, u->unk) && u->unk == VOCAB_NONE)
            return false;
    }
    return true;
}

/* The ids of one piece, or of a run of unknown ones. */
static tn_status add_piece(const unigram *u, const char *text, size_t length, uint32_t id, id_list *out, place at,
                           tn_error *err)
{
    bool memory = true, bytes = id == VOCAB_NONE && u->byte_fallback;
    for (size_t i = 0; i < length && bytes; i++)
        bytes = u->bytes[(unsigned char)text[i]] != VOCAB_NONE;
    if (id == VOCAB_NONE && !bytes)
        id = u->unk;
    if (id == VOCAB_NONE && !bytes)
        return tn_fail(
            err, TN_E_INPUT, at.file,
            "%s: the text holds characters outside of the vocabulary, which has no unknown token; remove them",
            at.component);
    for (size_t i = 0; i < length && bytes && memory; i++)
        memory = buffer_add_id(out, u->bytes[(unsigned char)text[i]]);
    if (!bytes)
        memory = buffer_add_id(out, id);
    return memory ? TN_OK : tn_fail(err, TN_E_MEMORY, at.file, "out of memory");
}

/* The id of a text, VOCAB_NONE: it is no piece. */
static uint32_t find_piece(const unigram *u, const char *text, size_t length)
{
    uint32_t node = 0;
    for (size_t i = 0; i < length && node != TRIE_NONE; i++)
        node = trie_step(&u->pieces, node, (unsigned char)text[i]);
    return node == TRIE_NONE ? VOCAB_NONE : u->pieces.nodes[node].value;
}

/* Turns the chain of starts, which leads from the end to the beginning, around: next[i] is the end of the piece at i.
 */
static void turn_around(const best *ways, size_t length, size_t *next)
{
    for (size_t end = length; end > 0; end = ways[end].start)
        next[ways[end].start] = end;
}

tn_status unigram_encode(const unigram *u, const char *text, size_t length, id_list *out, place at, tn_error *err)
{
    best *ways = malloc((length + 1) * sizeof *ways);
    size_t *next = malloc((length + 1) * sizeof *next);
    tn_status status = TN_OK;
    if (!ways || !next) {
        status = tn_fail(err, TN_E_MEMORY, at.file, "out of memory");
    } else if (!find_best(u, text, length, ways)) {
        status = add_piece(&(unigram){.unk = VOCAB_NONE}, text, length, VOCAB_NONE, out, at, err); /* the error */
    } else {
        turn_around(ways, length, next);
        for (size_t i = 0, end; i < length && status == TN_OK; i = end) {
            // NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): turn_around has set it where a piece begins
            end = next[i];
            uint32_t id = ways[end].id;
            if (id == u->unk) { /* a run of unknown pieces is one, which may be in the vocabulary after all */
                while (end < length && ways[next[end]].id == u->unk)
                    end = next[end];
                id = find_piece(u, text + i, end - i);
            }
            status = add_piece(u, text + i, end - i, id, out, at, err);
        }
    }
    free(ways);
    free(next);
    return status;
}
