/* Added tokens: found in the text as they stand, by a trie, before the model sees what lies between them. Those that
 * are "normalized" are looked for after the normalizer, and have gone through it themselves. */
#include "text/added.h"

#include "text/buffer.h"
#include "text/doc.h"
#include "text/normalize.h"
#include "text/spans.h"
#include "text/trie.h"
#include "text/unicode.h"
#include "text/utf8.h"
#include "text/vocab.h"

#include <stdlib.h>
#include <string.h>

/* Bounds what a search can cost at each place of a text. The longest published one has about a hundred bytes. */
#define ADDED_LENGTH_LIMIT 1024

void added_free(added *a)
{
    free(a->tokens);
    free(a->raw.nodes);
    free(a->normalized.nodes);
    free(a->shown);
    buffer_free(&a->shown_text);
    *a = (added){0};
}

/* The node for byte below parent (-1: at the root); -1: none. */
static int32_t trie_child(const added_trie *trie, int32_t parent, unsigned char byte)
{
    if (parent < 0)
        return trie->first[byte];
    int32_t node = trie->nodes[parent].child;
    while (node >= 0 && trie->nodes[node].byte != byte)
        node = trie->nodes[node].sibling;
    return node;
}

static bool trie_insert(added_trie *trie, const char *text, size_t length, int32_t token)
{
    int32_t parent = -1;
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)text[i];
        int32_t node = trie_child(trie, parent, byte);
        if (node < 0) {
            added_node *grown = buffer_grow(trie->nodes, &trie->capacity, trie->count + 1, sizeof *grown);
            if (!grown || trie->count >= INT32_MAX)
                return false;
            trie->nodes = grown;
            node = (int32_t)trie->count++;
            trie->nodes[node] = (added_node){-1, -1, -1, byte};
            if (parent < 0) {
                trie->first[byte] = node;
            } else {
                trie->nodes[node].sibling = trie->nodes[parent].child;
                trie->nodes[parent].child = node;
            }
        }
        parent = node;
    }
    if (parent >= 0)
        trie->nodes[parent].token = token;
    return true;
}

/* The longest token that begins at text; -1: none. */
static int32_t trie_longest(const added_trie *trie, const char *text, size_t length, size_t *taken)
{
    int32_t found = -1, node = -1;
    for (size_t i = 0; i < length; i++) {
        node = trie_child(trie, node, (unsigned char)text[i]);
        if (node < 0)
            break;
        if (trie->nodes[node].token >= 0) {
            found = trie->nodes[node].token;
            *taken = i + 1;
        }
    }
    return found;
}

/* What gives tokens their ids: as the library, the vocabulary, an entry before for the same token, or the next number
 * behind the vocabulary; the entry's own 'id' only where the vocabulary has gaps: the numbers would lie in them. */
typedef struct numbering {
    trie known;
    bool gaps;
    int64_t next;
} numbering;

/* The id that an entry before gave the same token; -1: there is none. */
static int64_t number_of(const numbering *n, const added_token *t)
{
    uint32_t node = n->known.count ? 0 : TRIE_NONE;
    for (size_t i = 0; i < t->length && node != TRIE_NONE; i++)
        node = trie_step(&n->known, node, (unsigned char)t->content[i]);
    uint32_t value = node == TRIE_NONE ? TRIE_NONE : n->known.nodes[node].value;
    return value == TRIE_NONE ? -1 : (int64_t)value;
}

/* Gives the token its id and puts it into the vocabulary. own: the entry's. */
static tn_status number_token(added_token *t, int64_t own, vocab *v, numbering *n, doc_reader *r)
{
    uint32_t known = vocab_find(v, t->content, t->length);
    int64_t id = known != VOCAB_NONE ? known : number_of(n, t);
    if (id < 0)
        id = n->gaps ? own : n->next++;
    t->id = (uint32_t)id;
    if (vocab_add(v, id, t->content, t->length, t->special, r) == TN_OK &&
        !trie_put(&n->known, t->content, t->length, t->id))
        doc_no_memory(r);
    return r->status;
}

static tn_status load_token(added *a, const doc_node *node, vocab *v, numbering *numbers, doc_reader *r)
{
    added_token t = {0};
    int64_t id = -1;
    bool single_word = false, lstrip = false, rstrip = false, special = false, normalized = true;
    doc_only(node, "id content single_word lstrip rstrip normalized special", r);
    doc_get_text(node, "content", &t.content, &t.length, r);
    if (!t.content)
        doc_fail(r, "an entry has no 'content'; correct the file");
    doc_get_flag(node, "single_word", &single_word, r);
    doc_get_flag(node, "lstrip", &lstrip, r);
    doc_get_flag(node, "rstrip", &rstrip, r);
    doc_get_flag(node, "special", &special, r);
    doc_get_flag(node, "normalized", &normalized, r);
    doc_get_integer(node, "id", &id, r);
    if (r->status != TN_OK || t.length == 0) /* the library ignores empty ones, too */
        return r->status;
    if (t.length > ADDED_LENGTH_LIMIT)
        return doc_fail(r, "token '%.40s...' is longer than %d bytes; correct the file", t.content, ADDED_LENGTH_LIMIT);
    t.single_word = single_word;
    t.lstrip = lstrip;
    t.rstrip = rstrip;
    t.special = special;
    t.normalized = normalized;
    if (vocab_check_id(id, t.content, r) != TN_OK || number_token(&t, id, v, numbers, r) != TN_OK)
        return r->status;
    added_token *grown = buffer_grow(a->tokens, &a->capacity, a->count + 1, sizeof *grown);
    if (!grown)
        return doc_no_memory(r);
    a->tokens = grown;
    a->tokens[a->count++] = t;
    return TN_OK;
}

static int by_id(const void *a, const void *b)
{
    const added_shown *x = a, *y = b;
    return x->id < y->id ? -1 : x->id > y->id;
}

const added_shown *added_find_shown(const added *a, uint32_t id)
{
    const added_shown key = {.id = id};
    return a->shown_count ? bsearch(&key, a->shown, a->shown_count, sizeof key, by_id) : NULL;
}

/* Remembers what the normalizer makes of a token, which is what the token decodes to. */
static bool show(added *a, const added_token *t, const buffer *text)
{
    if (text->size == t->length && memcmp(text->data, t->content, t->length) == 0)
        return true;
    if (!a->shown && !(a->shown = calloc(a->count, sizeof *a->shown)))
        return false;
    bool special = false; /* as the library decides it: by the text */
    for (size_t i = 0; i < a->count && !special; i++)
        special = a->tokens[i].special && a->tokens[i].length == text->size && text->size > 0 &&
                  memcmp(a->tokens[i].content, text->data, text->size) == 0;
    a->shown[a->shown_count++] = (added_shown){t->id, special, a->shown_text.size, text->size};
    return buffer_add(&a->shown_text, text->data, text->size);
}

/* Puts the tokens into the tries. Of several entries for one token the last counts. */
static tn_status fill_tries(added *a, const vocab *v, const normalizer *n, doc_reader *r)
{
    size_t *last = calloc(v->size ? v->size : 1, sizeof *last);
    buffer text = {0};
    bool memory = last != NULL;
    for (size_t i = 0; i < a->count && memory; i++)
        last[a->tokens[i].id] = i;
    for (size_t i = 0; i < a->count && r->status == TN_OK && memory; i++) {
        const added_token *t = &a->tokens[i];
        text.size = 0;
        if (last[t->id] != i)
            continue;
        if (!t->normalized)
            memory = trie_insert(&a->raw, t->content, t->length, (int32_t)i);
        else if ((r->status = normalize_apply(n, t->content, t->length, &text, r->err)) == TN_OK)
            memory = trie_insert(&a->normalized, text.data, text.size, (int32_t)i) && show(a, t, &text);
    }
    if (a->shown_count)
        qsort(a->shown, a->shown_count, sizeof *a->shown, by_id);
    buffer_free(&text);
    free(last);
    return memory ? r->status : doc_no_memory(r);
}

tn_status added_load(added *a, const doc_node *node, vocab *v, const normalizer *n, doc_reader *r)
{
    memset(a->raw.first, 0xff, sizeof a->raw.first); /* -1 */
    memset(a->normalized.first, 0xff, sizeof a->normalized.first);
    if (!node)
        return TN_OK;
    if (!doc_is_list(node))
        return doc_fail(r, "no list; correct the file");
    numbering numbers = {.next = 0};
    for (size_t id = 0; id < v->size; id++)
        numbers.next += v->tokens[id].present;
    numbers.gaps = numbers.next < (int64_t)v->size;
    for (size_t i = 0; i < doc_count(node) && r->status == TN_OK; i++)
        load_token(a, doc_at(node, i), v, &numbers, r);
    trie_free(&numbers.known);
    if (r->status == TN_OK)
        fill_tries(a, v, n, r);
    for (size_t i = 0; i < a->count; i++)
        a->tokens[i].content = NULL; /* the document goes away */
    return r->status;
}

static size_t char_before(const char *text, size_t end)
{
    size_t start = end - 1;
    while (start > 0 && ((unsigned char)text[start] & 0xc0) == 0x80)
        start--;
    return start;
}

/* Is text[start..end) a word of its own? */
static bool stands_alone(const char *text, size_t length, size_t start, size_t end)
{
    size_t before = start ? char_before(text, start) : 0;
    return !(start && unicode_is_word(utf8_read(text + before, start - before).code)) &&
           !(end < length && unicode_is_word(utf8_read(text + end, length - end).code));
}

static size_t skip_spaces_back(const char *text, size_t from, size_t end)
{
    while (end > from) {
        size_t before = char_before(text, end);
        if (before < from || !utf8_is_space(utf8_read(text + before, end - before).code))
            break;
        end = before;
    }
    return end;
}

static size_t skip_spaces(const char *text, size_t length, size_t start)
{
    while (start < length) {
        utf8_char c = utf8_read(text + start, length - start);
        if (!utf8_is_space(c.code))
            break;
        start += c.length;
    }
    return start;
}

bool added_split(const added *a, const added_trie *trie, const char *text, size_t length, pieces *p)
{
    size_t base = p->text.size, done = 0; /* text before done has become pieces */
    if (!buffer_add(&p->text, text, length))
        return false;
    for (size_t i = 0; i < length;) {
        size_t taken = 0;
        int32_t index = trie->count ? trie_longest(trie, text + i, length - i, &taken) : -1;
        if (index < 0) {
            i++;
            continue;
        }
        const added_token *t = &a->tokens[index];
        size_t start = i, end = i + taken;
        i = end;
        if (t->single_word && !stands_alone(text, length, start, end))
            continue;
        if (t->lstrip) { /* but never spaces that the token before has taken, of which this one may consist */
            start = skip_spaces_back(text, done < start ? done : start, start);
            start = start < done ? done : start;
        }
        if (t->rstrip)
            end = skip_spaces(text, length, end);
        if (done < start && !buffer_add_piece(p, base + done, base + start, -1))
            return false;
        if (start < end && !buffer_add_piece(p, base + start, base + end, t->id))
            return false;
        done = end;
    }
    return done >= length || buffer_add_piece(p, base + done, base + length, -1);
}
