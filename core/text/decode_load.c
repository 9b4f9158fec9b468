/* Reading decoders from tokenizer.json. */
#include "text/buffer.h"
#include "text/decode.h"
#include "text/doc.h"
#include "text/regex.h"

#include <stdlib.h>
#include <string.h>

#define SUPPORTED "Sequence, BPEDecoder, ByteLevel, ByteFallback, CTC, Fuse, Metaspace, Replace, Strip and WordPiece"

static tn_status load_strip(decode_op *op, const doc_node *node, place at, tn_error *err)
{
    const char *text = "";
    size_t length = 0;
    tn_status status = doc_need_character(node, "content", &text, &length, at, err);
    if (status == TN_OK)
        status = doc_get_integer(node, "start", &op->start, at, err);
    if (status == TN_OK)
        status = doc_get_integer(node, "stop", &op->stop, at, err);
    if (status == TN_OK && !buffer_add(&op->content, text, length))
        status = tn_fail(err, TN_E_MEMORY, at.file, "out of memory");
    return status;
}

static tn_status load_replace(decode_op *op, const doc_node *node, place at, tn_error *err)
{
    const char *text = "";
    size_t length = 0;
    tn_status status = doc_get_text(node, "content", &text, &length, at, err);
    if (status == TN_OK && !(op->pattern = regex_load(doc_get(node, "pattern"), at, err)))
        return err->code;
    if (status == TN_OK && !buffer_add(&op->content, text, length))
        status = tn_fail(err, TN_E_MEMORY, at.file, "out of memory");
    return status;
}

static tn_status load_metaspace(decode_op *op, const doc_node *node, place at, tn_error *err)
{
    const char *text = "", *scheme = "always";
    size_t length = 0, scheme_length;
    bool prefix = true;
    tn_status status = doc_need_character(node, "replacement", &text, &length, at, err);
    if (status == TN_OK)
        status = doc_get_text(node, "prepend_scheme", &scheme, &scheme_length, at, err);
    if (status == TN_OK)
        status = doc_get_flag(node, "add_prefix_space", &prefix, at, err);
    bool never = strcmp(scheme, "never") == 0;
    if (status == TN_OK && !never && strcmp(scheme, "first") != 0 && strcmp(scheme, "always") != 0)
        status = tn_fail(err, TN_E_INPUT, at.file, "%s: prepend_scheme '%.40s' is unknown; correct the file",
                         at.component, scheme);
    if (status == TN_OK && !prefix && !never)
        status = tn_fail(err, TN_E_INPUT, at.file,
                         "%s: add_prefix_space is false, but prepend_scheme '%.40s'; correct the file", at.component,
                         scheme);
    op->cleanup = !never;
    if (status == TN_OK && !buffer_add(&op->content, text, length))
        status = tn_fail(err, TN_E_MEMORY, at.file, "out of memory");
    return status;
}

/* WordPiece, BPEDecoder and CTC: a text, a flag but for the second, another text for the third. */
static tn_status load_texts(decode_op *op, const doc_node *node, place at, tn_error *err)
{
    const char *text = "", *delimiter = "";
    size_t length = 0, delimiter_length = 0;
    const char *key = op->kind == DECODE_WORDPIECE ? "prefix" : op->kind == DECODE_BPE ? "suffix" : "pad_token";
    tn_status status = doc_need_text(node, key, &text, &length, at, err);
    if (status == TN_OK && op->kind != DECODE_BPE)
        status = doc_need_flag(node, "cleanup", &op->cleanup, at, err);
    if (status == TN_OK && op->kind == DECODE_CTC)
        status = doc_need_text(node, "word_delimiter_token", &delimiter, &delimiter_length, at, err);
    if (status == TN_OK &&
        (!buffer_add(&op->content, text, length) || !buffer_add(&op->delimiter, delimiter, delimiter_length)))
        status = tn_fail(err, TN_E_MEMORY, at.file, "out of memory");
    return status;
}

static tn_status add_op(decoder *d, const doc_node *node, place at, tn_error *err)
{
    static const struct {
        const char *type, *members;
        tn_status (*load)(decode_op *op, const doc_node *node, place at, tn_error *err);
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
        return doc_unsupported(node, SUPPORTED, at, err);
    decode_op *grown = buffer_grow(d->ops, &d->capacity, d->count + 1, sizeof *grown);
    if (!grown)
        return tn_fail(err, TN_E_MEMORY, at.file, "out of memory");
    d->ops = grown;
    decode_op *op = &d->ops[d->count++];
    *op = (decode_op){.kind = node ? which : DECODE_JOIN};
    tn_status status = node ? doc_only(node, types[which].members, at, err) : TN_OK;
    return status == TN_OK && node && types[which].load ? types[which].load(op, node, at, err) : status;
}

static tn_status load_list(decoder *d, const doc_node *node, place at, tn_error *err)
{
    if (strcmp(doc_type(node), "Sequence") != 0)
        return add_op(d, node, at, err);
    const doc_node *list = doc_get(node, "decoders");
    if (!doc_is_list(list))
        return tn_fail(err, TN_E_INPUT, at.file, "%s: 'decoders' is missing or no list; correct the file",
                       at.component);
    tn_status status = TN_OK;
    for (size_t i = 0; i < doc_count(list) && status == TN_OK; i++)
        status = load_list(d, doc_at(list, i), at, err);
    return status;
}

tn_status decode_load(decoder *d, const doc_node *node, place at, tn_error *err)
{
    return node ? load_list(d, node, at, err) : add_op(d, NULL, at, err); /* none: tokens with spaces between */
}
