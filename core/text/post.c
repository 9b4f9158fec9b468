/* Post-processors: the tokens that are put around a text, such as one that begins it. */
#include "text/post.h"

#include "text/bpe.h"
#include "text/buffer.h"
#include "text/doc.h"
#include "text/spans.h"
#include "text/vocab.h"

#include <stdlib.h>
#include <string.h>

#define SUPPORTED "Sequence, TemplateProcessing, BertProcessing, RobertaProcessing and ByteLevel"

void post_free(post *p)
{
    for (size_t i = 0; i < p->count; i++)
        free(p->steps[i].pieces.ids);
    free(p->steps);
    *p = (post){0};
}

/* An id that the vocabulary has. */
static tn_status check_id(const post *p, int64_t id, const char *name, doc_reader *r)
{
    if (vocab_check_id(id, name, r) == TN_OK && (size_t)id >= p->vocab_size)
        doc_fail(r, "the template's token '%.80s' has id %lld, and the vocabulary ends at %zu; correct the file", name,
                 (long long)id, p->vocab_size);
    return r->status;
}

/* Appends the ids that a template's special token stands for. */
static void add_special(const post *p, id_list *list, const doc_node *tokens, const doc_node *piece, doc_reader *r)
{
    const char *name = "";
    size_t length;
    doc_get_text(piece, "id", &name, &length, r);
    const doc_node *ids = doc_get(doc_get(tokens, name), "ids");
    if (!doc_is_list(ids))
        doc_fail(r, "the template's token '%.80s' has no 'ids'; correct the file", name);
    for (size_t i = 0; i < doc_count(ids) && r->status == TN_OK; i++) {
        int64_t id = -1;
        doc_integer(doc_at(ids, i), &id);
        if (check_id(p, id, name, r) == TN_OK && !buffer_add_id(list, id))
            doc_no_memory(r);
    }
}

/* A step without pieces. NULL: no memory. */
static post_step *add_step(post *p)
{
    post_step *grown = buffer_grow(p->steps, &p->capacity, p->count + 1, sizeof *grown);
    if (!grown)
        return NULL;
    p->steps = grown;
    p->steps[p->count] = (post_step){POST_TEMPLATE, {0}};
    return &p->steps[p->count++];
}

/* The place of a sequence in a template: POST_FIRST or POST_SECOND; 0: it is none that the template may have. */
static int sequence_of(const doc_node *piece, bool pair)
{
    size_t length;
    const char *name = doc_text(doc_get(doc_get(piece, "Sequence"), "id"), &length);
    if (!name || length != 1)
        return 0;
    return *name == 'A' ? POST_FIRST : *name == 'B' && pair ? POST_SECOND : 0;
}

static void load_pieces(const post *p, id_list *list, const doc_node *node, bool pair, doc_reader *r)
{
    const char *key = pair ? "pair" : "single";
    const doc_node *pieces = doc_need_list(node, key, r);
    bool seen[2] = {false, false};
    for (size_t i = 0; i < doc_count(pieces) && r->status == TN_OK; i++) {
        const doc_node *piece = doc_at(pieces, i), *special = doc_get(piece, "SpecialToken");
        int place = special ? 0 : sequence_of(piece, pair);
        if (special)
            add_special(p, list, doc_get(node, "special_tokens"), special, r);
        else if (!place || seen[-1 - place])
            doc_fail(r, "'%s' is not %s among special tokens; correct the file", key,
                     pair ? "sequences A and B, each once," : "sequence A once");
        else if (!buffer_add_id(list, place))
            doc_no_memory(r);
        if (place)
            seen[-1 - place] = true;
        if (!buffer_add_id(list, POST_END))
            doc_no_memory(r);
    }
}

/* 'pair' counts only where a template before has made two parts. */
static tn_status load_template(post *p, const doc_node *node, doc_reader *r)
{
    doc_only(node, "single pair special_tokens", r);
    if (p->parts != 1 && p->parts != 2)
        return doc_fail(r, "a template behind one of %zu pieces has no meaning; remove one of the two", p->parts);
    post_step *step = add_step(p);
    if (!step)
        return doc_no_memory(r);
    load_pieces(p, &step->pieces, node, p->parts == 2, r);
    p->parts = 0;
    for (size_t i = 0; i < step->pieces.count; i++)
        p->parts += step->pieces.ids[i] == POST_END;
    return r->status;
}

/* A token with its id, ["[SEP]", 102]. */
static void read_token(const post *p, const doc_node *node, const char *key, int64_t *id, doc_reader *r)
{
    const doc_node *pair = doc_get(node, key);
    size_t length;
    const char *text = doc_text(doc_at(pair, 0), &length);
    if (!doc_is_list(pair) || doc_count(pair) != 2 || !text || !doc_integer(doc_at(pair, 1), id))
        doc_fail(r, "'%s' is no token with its id; correct the file", key);
    else
        check_id(p, *id, text, r);
}

/* BERT's and RoBERTa's: one token before the first part and one behind each; RoBERTa's has the latter in front of
 * further parts, too. Its flags concern offsets. */
static tn_status load_around(post *p, const doc_node *node, doc_reader *r)
{
    int64_t first = -1, last = -1;
    doc_only(node, "sep cls trim_offsets add_prefix_space", r);
    read_token(p, node, "cls", &first, r);
    read_token(p, node, "sep", &last, r);
    post_step *step = add_step(p);
    if (!step || !buffer_add_id(&step->pieces, first) || !buffer_add_id(&step->pieces, last))
        return doc_no_memory(r);
    step->kind = strcmp(doc_type(node), "BertProcessing") == 0 ? POST_BERT : POST_ROBERTA;
    return r->status;
}

static tn_status load_steps(post *p, const doc_node *node, doc_reader *r)
{
    if (strcmp(doc_type(node), "ByteLevel") == 0) { /* it only trims offsets, which we don't keep */
        doc_only(node, "add_prefix_space trim_offsets use_regex", r);
        return r->status;
    }
    if (strcmp(doc_type(node), "BertProcessing") == 0 || strcmp(doc_type(node), "RobertaProcessing") == 0)
        return load_around(p, node, r);
    if (strcmp(doc_type(node), "TemplateProcessing") == 0)
        return load_template(p, node, r);
    if (strcmp(doc_type(node), "Sequence") != 0)
        return doc_unsupported(node, SUPPORTED, r);
    const doc_node *list = doc_need_list(node, "processors", r);
    for (size_t i = 0; i < doc_count(list) && r->status == TN_OK; i++)
        load_steps(p, doc_at(list, i), r);
    return r->status;
}

tn_status post_load(post *p, const doc_node *node, const vocab *v, doc_reader *r)
{
    p->vocab_size = v->size;
    p->parts = 1;
    return node ? load_steps(p, node, r) : TN_OK;
}

/* Appends the part of a list that begins at start, without its end; returns where that is. */
static size_t add_part(const id_list *in, size_t start, id_list *out, bool *memory)
{
    size_t end = start;
    for (; end < in->count && in->ids[end] != POST_END; end++)
        *memory = *memory && buffer_add_id(out, in->ids[end]);
    return end;
}

static bool apply_template(const id_list *pieces, const id_list *in, id_list *out)
{
    bool memory = true;
    size_t second = 0;
    while (second < in->count && in->ids[second] != POST_END)
        second++;
    for (size_t i = 0; i < pieces->count && memory; i++) {
        int64_t id = pieces->ids[i];
        if (id == POST_FIRST || id == POST_SECOND)
            add_part(in, id == POST_FIRST ? 0 : second + 1, out, &memory);
        else
            memory = buffer_add_id(out, id);
    }
    return memory;
}

static bool apply_around(const post_step *step, const id_list *in, id_list *out)
{
    int64_t first = step->pieces.ids[0], last = step->pieces.ids[1];
    bool memory = true;
    for (size_t start = 0; start < in->count && memory; start++) {
        if (start == 0 || step->kind == POST_ROBERTA)
            memory = buffer_add_id(out, start == 0 ? first : last);
        start = add_part(in, start, out, &memory);
        memory = memory && buffer_add_id(out, last) && buffer_add_id(out, POST_END);
    }
    return memory;
}

bool post_apply(const post *p, id_list *ids)
{
    bool memory = p->count == 0 || buffer_add_id(ids, POST_END);
    for (size_t i = 0; i < p->count && memory; i++) {
        const post_step *step = &p->steps[i];
        id_list out = {0};
        memory = step->kind == POST_TEMPLATE ? apply_template(&step->pieces, ids, &out) : apply_around(step, ids, &out);
        free(ids->ids);
        *ids = out;
    }
    size_t count = 0;
    for (size_t i = 0; i < ids->count; i++)
        if (ids->ids[i] != POST_END)
            ids->ids[count++] = ids->ids[i];
    ids->count = count;
    return memory;
}
