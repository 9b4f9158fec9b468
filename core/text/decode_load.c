/* Reading decoders from tokenizer.json. */
#include "text/buffer.h"
#include "text/decode.h"
#include "text/doc.h"
#include "text/regex.h"

#include <stdlib.h>
#include <string.h>

#define SUPPORTED "Sequence, BPEDecoder, ByteLevel, ByteFallback, CTC, Fuse, Metaspace, Replace, Strip and WordPiece"

static void load_strip(decode_op *op, const doc_node *node, doc_reader *r)
{
    const char *text = "";
    size_t length = 0;
    doc_need_character(node, "content", &text, &length, r);
    doc_get_integer(node, "start", &op->start, r);
    doc_get_integer(node, "stop", &op->stop, r);
    if (!buffer_add(&op->content, text, length))
        doc_no_memory(r);
}

static void load_replace(decode_op *op, const doc_node *node, doc_reader *r)
{
    const char *text = "";
    size_t length = 0;
    doc_get_text(node, "content", &text, &length, r);
    op->pattern = regex_load(doc_get(node, "pattern"), r);
    if (!buffer_add(&op->content, text, length))
        doc_no_memory(r);
}

static void load_metaspace(decode_op *op, const doc_node *node, doc_reader *r)
{
    const char *text = "", *scheme = "always";
    size_t length = 0, scheme_length;
    bool prefix = true;
    doc_need_character(node, "replacement", &text, &length, r);
    doc_get_text(node, "prepend_scheme", &scheme, &scheme_length, r);
    doc_get_flag(node, "add_prefix_space", &prefix, r);
    bool never = strcmp(scheme, "never") == 0;
    if (!never && strcmp(scheme, "first") != 0 && strcmp(scheme, "always") != 0)
        doc_fail(r, "prepend_scheme '%.40s' is unknown; correct the file", scheme);
    if (!prefix && !never)
        doc_fail(r, "add_prefix_space is false, but prepend_scheme '%.40s'; correct the file", scheme);
    op->cleanup = !never;
    if (!buffer_add(&op->content, text, length))
        doc_no_memory(r);
}

/* WordPiece, BPEDecoder and CTC: a text, a flag but for the second, another text for the third. */
static void load_texts(decode_op *op, const doc_node *node, doc_reader *r)
{
    const char *text = "", *delimiter = "";
    size_t length = 0, delimiter_length = 0;
    const char *key = op->kind == DECODE_WORDPIECE ? "prefix" : op->kind == DECODE_BPE ? "suffix" : "pad_token";
    doc_need_text(node, key, &text, &length, r);
    if (op->kind != DECODE_BPE)
        doc_need_flag(node, "cleanup", &op->cleanup, r);
    if (op->kind == DECODE_CTC)
        doc_need_text(node, "word_delimiter_token", &delimiter, &delimiter_length, r);
    if (!buffer_add(&op->content, text, length) || !buffer_add(&op->delimiter, delimiter, delimiter_length))
        doc_no_memory(r);
}

static tn_status add_op(decoder *d, const doc_node *node, doc_reader *r)
{
    static const struct {
        const char *type, *members;
        void (*load)(decode_op *op, const doc_node *node, doc_reader *r);
    } types[] = {
        [DECODE_BYTE_LEVEL] = {"ByteLevel", "add_prefix_space trim_offsets use_regex", NULL},
        [DECODE_BYTE_FALLBACK] = {"ByteFallback", "", NULL},
        [DECODE_FUSE] = {"Fuse", "", NULL},
        [DECODE_REPLACE] = {"Replace", "pattern content", load_replace},
        [DECODE_STRIP] = {"Strip", "content start stop", load_strip},
        [DECODE_METASPACE] = {"Metaspace", "replacement prepend_scheme add_prefix_space split str_rep", load_metaspace},
        [DECODE_WORDPIECE] = {"WordPiece", "prefix cleanup", load_texts},
        [DECODE_BPE] = {"BPEDecoder", "suffix", load_texts},
        [DECODE_CTC] = {"CTC", "pad_token word_delimiter_token cleanup", load_texts}};
    unsigned which = 0;
    while (which < DECODE_JOIN && node && strcmp(types[which].type, doc_type(node)) != 0)
        which++;
    if (node && which == DECODE_JOIN)
        return doc_unsupported(node, SUPPORTED, r);
    decode_op *grown = buffer_grow(d->ops, &d->capacity, d->count + 1, sizeof *grown);
    if (!grown)
        return doc_no_memory(r);
    d->ops = grown;
    decode_op *op = &d->ops[d->count++];
    *op = (decode_op){.kind = node ? which : DECODE_JOIN};
    if (node)
        doc_only(node, types[which].members, r);
    if (node && types[which].load)
        types[which].load(op, node, r);
    return r->status;
}

static tn_status load_list(decoder *d, const doc_node *node, doc_reader *r)
{
    if (strcmp(doc_type(node), "Sequence") != 0)
        return add_op(d, node, r);
    const doc_node *list = doc_need_list(node, "decoders", r);
    for (size_t i = 0; i < doc_count(list) && r->status == TN_OK; i++)
        load_list(d, doc_at(list, i), r);
    return r->status;
}

tn_status decode_load(decoder *d, const doc_node *node, doc_reader *r)
{
    return node ? load_list(d, node, r) : add_op(d, NULL, r); /* none: tokens with spaces between */
}
