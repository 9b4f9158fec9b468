/* WordPiece: the longest token that begins a word, then the longest of those that continue one, and so on. WordLevel:
 * a word is a token or it is unknown. */
#include "text/wordpiece.h"

#include "text/bpe.h"
#include "text/doc.h"
#include "text/trie.h"
#include "text/utf8.h"
#include "text/vocab.h"

#include <string.h>

/* Bounds what a search can cost at each place of a word. */
#define TOKEN_LENGTH_LIMIT 4096

static tn_status load_tries(wordpiece *w, const vocab *v, const char *prefix, size_t prefix_length, doc_reader *r)
{
    for (size_t i = 0; i < v->size; i++) {
        const vocab_token *token = &v->tokens[i];
        const char *text = token->length ? v->strings.data + token->offset : "";
        if (!token->present)
            continue;
        if (token->length > TOKEN_LENGTH_LIMIT)
            return doc_fail(r, "token '%.40s...' is longer than %d bytes; correct the file", text, TOKEN_LENGTH_LIMIT);
        bool memory = trie_put(&w->starts, text, token->length, (uint32_t)i);
        if (token->length >= prefix_length && memcmp(text, prefix, prefix_length) == 0)
            memory =
                memory && trie_put(&w->continued, text + prefix_length, token->length - prefix_length, (uint32_t)i);
        if (!memory)
            return doc_no_memory(r);
    }
    return TN_OK;
}

tn_status wordpiece_load(wordpiece *w, vocab *v, const doc_node *model, bool whole, doc_reader *r)
{
    const char *unk = "", *prefix = "";
    size_t unk_length = 0, prefix_length = 0;
    w->whole = whole;
    doc_only(model, whole ? "vocab unk_token" : "vocab unk_token continuing_subword_prefix max_input_chars_per_word",
             r);
    doc_need_text(model, "unk_token", &unk, &unk_length, r);
    if (!whole) {
        doc_need_text(model, "continuing_subword_prefix", &prefix, &prefix_length, r);
        doc_need_integer(model, "max_input_chars_per_word", &w->longest, r);
    }
    if (r->status != TN_OK || vocab_load_tokens(v, model, r) != TN_OK)
        return r->status;
    w->unk = vocab_find(v, unk, unk_length);
    return whole ? TN_OK : load_tries(w, v, prefix, prefix_length, r);
}

void wordpiece_free(wordpiece *w)
{
    trie_free(&w->starts);
    trie_free(&w->continued);
    *w = (wordpiece){0};
}

/* The longest token at the start of text; 0 bytes taken: none. */
static uint32_t longest(const trie *t, const char *text, size_t length, size_t *taken)
{
    uint32_t node = 0, found = VOCAB_NONE;
    *taken = 0;
    for (size_t i = 0; i < length && (node = trie_step(t, node, (unsigned char)text[i])) != TRIE_NONE; i++)
        if (t->nodes[node].value != TRIE_NONE) {
            found = t->nodes[node].value;
            *taken = i + 1;
        }
    return found;
}

/* No more characters than a word may have? */
static bool is_short(const wordpiece *w, const char *word, size_t length)
{
    int64_t characters = 0;
    for (size_t i = 0; i < length && characters <= w->longest; characters++)
        i += utf8_read(word + i, length - i).length;
    return characters <= w->longest;
}

tn_status wordpiece_encode(const wordpiece *w, const vocab *v, const char *word, size_t length, id_list *out, place at,
                           tn_error *err)
{
    size_t before = out->count, done = 0, taken = 1;
    bool memory = true;
    if (w->whole) {
        uint32_t id = vocab_find(v, word, length);
        if (id != VOCAB_NONE) {
            memory = buffer_add_id(out, id);
            done = length;
        }
    } else if (is_short(w, word, length)) {
        for (; done < length && taken && memory; done += taken) {
            uint32_t id = longest(done ? &w->continued : &w->starts, word + done, length - done, &taken);
            memory = taken == 0 || buffer_add_id(out, id);
        }
    }
    if (done < length && memory) { /* one piece is missing: the whole word is unknown */
        out->count = before;
        if (w->unk == VOCAB_NONE)
            return tn_fail(
                err, TN_E_INPUT, at.file,
                "%s: the text holds words outside of the vocabulary, which lacks unk_token; correct the file",
                at.component);
        memory = buffer_add_id(out, w->unk);
    }
    return memory ? TN_OK : tn_fail(err, TN_E_MEMORY, at.file, "out of memory");
}
