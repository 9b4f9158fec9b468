/* Post-processors: the tokens that are put around a text, such as one that begins it. */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#define SUPPORTED "Sequence, TemplateProcessing, BertProcessing, RobertaProcessing and ByteLevel"

void post_free(post *p)
{
    for (size_t i = 0; i < p->count; i++)
        free(p->templates[i].ids);
    free(p->templates);
    *p = (post){0};
}

/* An id that the vocabulary has. */
static tn_status check_id(const post *p, int64_t id, const char *name, place at, tn_error *err)
{
    tn_status status = vocab_check_id(id, name, at, err);
    if (status == TN_OK && (size_t)id >= p->vocab_size)
        return tn_fail(err, TN_E_INPUT, at.file,
                       "%s: the template's token '%.80s' has id %lld, and the vocabulary ends at %zu; correct the file",
                       at.component, name, (long long)id, p->vocab_size);
    return status;
}

/* Appends the ids that a template's special token stands for. */
static tn_status add_special(const post *p, id_list *list, const doc_node *tokens, const doc_node *piece, place at,
                             tn_error *err)
{
    const char *name = "";
    size_t length;
    tn_status status = doc_get_text(piece, "id", &name, &length, at, err);
    if (status != TN_OK)
        return status;
    const doc_node *ids = doc_get(doc_get(tokens, name), "ids");
    if (!doc_is_list(ids))
        return tn_fail(err, TN_E_INPUT, at.file, "%s: the template's token '%.80s' has no 'ids'; correct the file",
                       at.component, name);
    for (size_t i = 0; i < doc_count(ids) && status == TN_OK; i++) {
        int64_t id = -1;
        doc_integer(doc_at(ids, i), &id);
        status = check_id(p, id, name, at, err);
        if (status == TN_OK && !buffer_add_id(list, id))
            status = tn_fail(err, TN_E_MEMORY, at.file, "out of memory");
    }
    return status;
}

/* An empty template. NULL: no memory. */
static id_list *add_template(post *p)
{
    id_list *grown = buffer_grow(p->templates, &p->capacity, p->count + 1, sizeof *grown);
    if (!grown)
        return NULL;
    p->templates = grown;
    p->templates[p->count] = (id_list){0};
    return &p->templates[p->count++];
}

static tn_status load_template(post *p, const doc_node *node, place at, tn_error *err)
{
    const doc_node *single = doc_get(node, "single");
    if (!doc_is_list(single))
        return tn_fail(err, TN_E_INPUT, at.file, "%s: 'single' is missing or no list; correct the file", at.component);
    id_list *list = add_template(p);
    if (!list)
        return tn_fail(err, TN_E_MEMORY, at.file, "out of memory");
    tn_status status = doc_only(node, "single pair special_tokens", at, err);
    bool seen = false;
    for (size_t i = 0; i < doc_count(single) && status == TN_OK; i++) {
        const doc_node *piece = doc_at(single, i);
        const doc_node *special = doc_get(piece, "SpecialToken");
        size_t length;
        const char *name = doc_text(doc_get(doc_get(piece, "Sequence"), "id"), &length);
        if (special)
            status = add_special(p, list, doc_get(node, "special_tokens"), special, at, err);
        else if (seen || !name || strcmp(name, "A") != 0)
            status =
                tn_fail(err, TN_E_INPUT, at.file,
                        "%s: 'single' is not sequence A once among special tokens; correct the file", at.component);
        else if (!buffer_add_id(list, -1))
            status = tn_fail(err, TN_E_MEMORY, at.file, "out of memory");
        seen = seen || !special;
    }
    return status;
}

/* A token with its id, ["[SEP]", 102]. */
static tn_status read_token(const post *p, const doc_node *node, const char *key, int64_t *id, place at, tn_error *err)
{
    const doc_node *pair = doc_get(node, key);
    size_t length;
    const char *text = doc_text(doc_at(pair, 0), &length);
    if (!doc_is_list(pair) || doc_count(pair) != 2 || !text || !doc_integer(doc_at(pair, 1), id))
        return tn_fail(err, TN_E_INPUT, at.file, "%s: '%s' is no token with its id; correct the file", at.component,
                       key);
    return check_id(p, *id, text, at, err);
}

/* BERT's and RoBERTa's: one token before the text and one behind it. The flags of RoBERTa's concern offsets. */
static tn_status load_around(post *p, const doc_node *node, place at, tn_error *err)
{
    int64_t first = -1, last = -1;
    tn_status status = doc_only(node, "sep cls trim_offsets add_prefix_space", at, err);
    if (status == TN_OK)
        status = read_token(p, node, "cls", &first, at, err);
    if (status == TN_OK)
        status = read_token(p, node, "sep", &last, at, err);
    if (status != TN_OK)
        return status;
    id_list *list = add_template(p);
    if (!list || !buffer_add_id(list, first) || !buffer_add_id(list, -1) || !buffer_add_id(list, last))
        return tn_fail(err, TN_E_MEMORY, at.file, "out of memory");
    return TN_OK;
}

tn_status post_load(post *p, const doc_node *node, const vocab *v, place at, tn_error *err)
{
    p->vocab_size = v->size;
    if (!node)
        return TN_OK;
    if (strcmp(doc_type(node), "ByteLevel") == 0) /* it only trims offsets, which we don't keep */
        return doc_only(node, "add_prefix_space trim_offsets use_regex", at, err);
    if (strcmp(doc_type(node), "BertProcessing") == 0 || strcmp(doc_type(node), "RobertaProcessing") == 0)
        return load_around(p, node, at, err);
    if (strcmp(doc_type(node), "TemplateProcessing") == 0)
        return load_template(p, node, at, err);
    if (strcmp(doc_type(node), "Sequence") != 0)
        return doc_unsupported(node, SUPPORTED, at, err);
    const doc_node *list = doc_get(node, "processors");
    if (!doc_is_list(list))
        return tn_fail(err, TN_E_INPUT, at.file, "%s: 'processors' is missing or no list; correct the file",
                       at.component);
    tn_status status = TN_OK;
    for (size_t i = 0; i < doc_count(list) && status == TN_OK; i++)
        status = post_load(p, doc_at(list, i), v, at, err);
    return status;
}

bool post_apply(const post *p, id_list *ids)
{
    for (size_t i = 0; i < p->count; i++) {
        const id_list *template = &p->templates[i];
        id_list out = {0};
        bool memory = true;
        for (size_t k = 0; k < template->count && memory; k++) {
            if (template->ids[k] >= 0)
                memory = buffer_add_id(&out, template->ids[k]);
            for (size_t j = 0; template->ids[k] < 0 && j < ids->count && memory; j++)
                memory = buffer_add_id(&out, ids->ids[j]);
        }
        free(ids->ids);
        *ids = out;
        if (!memory)
            return false;
    }
    return true;
}
