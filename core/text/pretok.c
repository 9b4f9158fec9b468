/* Pre-tokenizers: cut a text into the words that the model sees one by one: at what a regular expression matches, or
 * (in split.c) at characters. */
#include "text/pretok.h"

#include "text/added.h"
#include "text/buffer.h"
#include "text/doc.h"
#include "text/regex.h"
#include "text/scanner.h"
#include "text/spans.h"
#include "text/unicode.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

#define SUPPORTED                                                                                                      \
    "Sequence, BertPreTokenizer, ByteLevel, CharDelimiterSplit, Digits, FixedLength, Metaspace, Punctuation, Split, "  \
    "UnicodeScripts, Whitespace and WhitespaceSplit"

/* What ByteLevel splits by unless told otherwise: the contractions, letters, digits, others and spaces of GPT-2. */

int32_t pretok_byte_char(unsigned char byte)
{
    /* Printable Latin-1 characters stand for themselves, the 68 other bytes for U+0100 onwards, in order. */
    if (byte <= 0x20)
        return 0x100 + byte;
    if (byte >= 0x7f && byte <= 0xa0)
        return 0x121 + byte - 0x7f;
    return byte == 0xad ? 0x143 : byte;
}

int32_t pretok_char_byte(int32_t code)
{
    if (code >= 0x100 && code <= 0x143)
        return code <= 0x120 ? code - 0x100 : code <= 0x142 ? code - 0x121 + 0x7f : 0xad;
    bool printable = (code > 0x20 && code < 0x7f) || (code > 0xa0 && code <= 0xff && code != 0xad);
    return printable ? code : -1;
}

void pretok_free(pretok *t)
{
    for (size_t i = 0; i < t->count; i++)
        regex_free(t->ops[i].pattern);
    free(t->ops);
    *t = (pretok){0};
}

/* Adds an op; takes pattern. */
static tn_status add_op(pretok *t, pretok_op op, doc_reader *r)
{
    pretok_op *grown = buffer_grow(t->ops, &t->capacity, t->count + 1, sizeof *grown);
    if (!grown) {
        regex_free(op.pattern);
        return doc_no_memory(r);
    }
    t->ops = grown;
    t->ops[t->count++] = op;
    return r->status;
}

static tn_status add_class(pretok *t, unicode_class *class, pretok_behaviour behaviour, doc_reader *r)
{
    return add_op(t, (pretok_op){.kind = PRETOK_CLASS, .behaviour = behaviour, .class = class}, r);
}

static void read_behaviour(const doc_node *node, pretok_behaviour *behaviour, doc_reader *r)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name = names[*behaviour];
    size_t length;
    doc_get_text(node, "behavior", &name, &length, r);
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) {
            *behaviour = i;
            return;
        }
    doc_fail(r, "behavior '%.40s' is unknown; correct the file", name);
}

static tn_status load_split(pretok *t, const doc_node *node, doc_reader *r)
{
    pretok_op op = {.kind = PRETOK_SPLIT, .behaviour = PRETOK_ISOLATED};
    doc_only(node, "pattern behavior invert", r);
    read_behaviour(node, &op.behaviour, r);
    doc_get_flag(node, "invert", &op.invert, r);
    op.pattern = regex_load(doc_get(node, "pattern"), r);
    return add_op(t, op, r);
}

static tn_status load_byte_level(pretok *t, const doc_node *node, doc_reader *r)
{
    bool prefix = true, words = true;
    doc_only(node, "add_prefix_space trim_offsets use_regex", r);
    doc_get_flag(node, "add_prefix_space", &prefix, r);
    doc_get_flag(node, "use_regex", &words, r);
    if (prefix)
        add_op(t, (pretok_op){.kind = PRETOK_PREFIX_SPACE}, r);
    if (words) {
        regex *re = regex_new(SCANNER_GPT2, strlen(SCANNER_GPT2), false, r);
        add_op(t, (pretok_op){.pattern = re, .behaviour = PRETOK_ISOLATED}, r);
    }
    return add_op(t, (pretok_op){.kind = PRETOK_BYTES}, r);
}

static void read_scheme(const doc_node *node, pretok_op *op, doc_reader *r)
{
    static const char *const names[] = {"always", "first", "never"};
    const char *name = names[0];
    size_t length;
    bool prefix = true; /* what older files say instead */
    doc_get_text(node, "prepend_scheme", &name, &length, r);
    doc_get_flag(node, "add_prefix_space", &prefix, r);
    unsigned which = 0;
    while (which < 3 && strcmp(name, names[which]) != 0)
        which++;
    if (which == 3)
        doc_fail(r, "prepend_scheme '%.40s' is unknown; correct the file", name);
    if (!prefix && which != PRETOK_NEVER)
        doc_fail(r, "add_prefix_space is false, but prepend_scheme '%.40s'; correct the file", name);
    op->prepend = which;
}

static tn_status load_metaspace(pretok *t, const doc_node *node, doc_reader *r)
{
    pretok_op op = {.kind = PRETOK_METASPACE};
    const char *text = " ";
    size_t length = 1;
    bool split = true;
    doc_only(node, "replacement prepend_scheme add_prefix_space split str_rep", r);
    doc_need_character(node, "replacement", &text, &length, r);
    read_scheme(node, &op, r);
    doc_get_flag(node, "split", &split, r);
    op.code = utf8_read(text, length).code;
    t->wants_origin = t->wants_origin || op.prepend == PRETOK_FIRST;
    add_op(t, op, r);
    if (split)
        add_op(t, (pretok_op){.kind = PRETOK_CLASS, .behaviour = PRETOK_WITH_NEXT, .code = op.code}, r);
    return r->status;
}

static tn_status load_delimiter(pretok *t, const doc_node *node, doc_reader *r)
{
    const char *text = " ";
    size_t length = 1;
    doc_only(node, "delimiter", r);
    doc_need_character(node, "delimiter", &text, &length, r);
    pretok_op op = {.kind = PRETOK_CLASS, .behaviour = PRETOK_REMOVED, .code = utf8_read(text, length).code};
    return add_op(t, op, r);
}

static tn_status load_fixed(pretok *t, const doc_node *node, doc_reader *r)
{
    pretok_op op = {.kind = PRETOK_FIXED, .length = 5};
    doc_only(node, "length", r);
    doc_get_integer(node, "length", &op.length, r);
    if (op.length < 1)
        doc_fail(r, "'length' is not positive; correct the file");
    return add_op(t, op, r);
}

static tn_status load_digits(pretok *t, const doc_node *node, doc_reader *r)
{
    bool each = false;
    doc_only(node, "individual_digits", r);
    doc_get_flag(node, "individual_digits", &each, r);
    return add_class(t, unicode_is_numeric, each ? PRETOK_ISOLATED : PRETOK_CONTIGUOUS, r);
}

static tn_status load_punctuation(pretok *t, const doc_node *node, doc_reader *r)
{
    pretok_behaviour behaviour = PRETOK_ISOLATED;
    doc_only(node, "behavior", r);
    read_behaviour(node, &behaviour, r);
    return add_class(t, unicode_is_punctuation, behaviour, r);
}

static tn_status load_words(pretok *t, const doc_node *node, doc_reader *r)
{
    doc_only(node, "", r);
    return add_op(t, (pretok_op){.kind = PRETOK_WORDS}, r);
}

static tn_status load_whitespace(pretok *t, const doc_node *node, doc_reader *r)
{
    doc_only(node, "", r);
    return add_class(t, utf8_is_space, PRETOK_REMOVED, r);
}

static tn_status load_bert(pretok *t, const doc_node *node, doc_reader *r)
{
    load_whitespace(t, node, r);
    return add_class(t, unicode_is_punctuation, PRETOK_ISOLATED, r);
}

static tn_status load_scripts(pretok *t, const doc_node *node, doc_reader *r)
{
    doc_only(node, "", r);
    return add_op(t, (pretok_op){.kind = PRETOK_SCRIPTS}, r);
}

tn_status pretok_load(pretok *t, const doc_node *node, doc_reader *r)
{
    static const struct {
        const char *type;
        tn_status (*load)(pretok *t, const doc_node *node, doc_reader *r);
    } types[] = {{"Split", load_split},           {"ByteLevel", load_byte_level},
                 {"Digits", load_digits},         {"Punctuation", load_punctuation},
                 {"Whitespace", load_words},      {"WhitespaceSplit", load_whitespace},
                 {"BertPreTokenizer", load_bert}, {"CharDelimiterSplit", load_delimiter},
                 {"FixedLength", load_fixed},     {"Metaspace", load_metaspace},
                 {"UnicodeScripts", load_scripts}};
    if (!node)
        return TN_OK;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(doc_type(node), types[i].type) == 0)
            return types[i].load(t, node, r);
    if (strcmp(doc_type(node), "Sequence") != 0)
        return doc_unsupported(node, SUPPORTED, r);
    const doc_node *list = doc_need_list(node, "pretokenizers", r);
    for (size_t i = 0; i < doc_count(list) && r->status == TN_OK; i++)
        pretok_load(t, doc_at(list, i), r);
    return r->status;
}

static tn_status split_piece(const pretok_op *op, regex_walk *walk, const char *text, span piece, pieces *out,
                             tn_error *err)
{
    split_cutter c = {.op = op, .out = out};
    regex_start(walk, text + piece.start, piece.end - piece.start);
    size_t done = piece.start, start, end;
    bool found = true, memory = true;
    while (memory) {
        tn_status status = regex_next(walk, &found, &start, &end, err);
        if (status != TN_OK)
            return status;
        if (!found)
            break;
        start += piece.start;
        end += piece.start;
        memory = (done >= start || split_cut(&c, done, start, false)) && split_cut(&c, start, end, true);
        done = end;
    }
    memory = memory && (done >= piece.end || split_cut(&c, done, piece.end, false));
    memory = memory && split_cut_end(&c);
    return memory ? TN_OK : tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
}

/* Cuts one piece. walk: for regular expressions. */
static tn_status cut_piece(const pretok_op *op, regex_walk *walk, const char *text, span piece, pieces *out,
                           tn_error *err)
{
    bool memory = true;
    if (piece.id >= 0)
        memory = buffer_add_piece(out, piece.start, piece.end, piece.id);
    else if (piece.start == piece.end)
        return TN_OK;
    else if (op->kind == PRETOK_SPLIT)
        return split_piece(op, walk, text, piece, out, err);
    else if (op->kind == PRETOK_CLASS)
        memory = split_class(op, text, piece, out);
    else if (op->kind == PRETOK_WORDS)
        memory = split_words(text, piece, out);
    else if (op->kind == PRETOK_FIXED)
        memory = split_fixed(op, text, piece, out);
    else
        memory = split_scripts(text, piece, out);
    return memory ? TN_OK : tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
}

static tn_status apply_split(const pretok_op *op, pieces *p, tn_error *err)
{
    regex_walk walk = {0};
    tn_status status = op->kind == PRETOK_SPLIT ? regex_open(&walk, op->pattern, err) : TN_OK;
    pieces out = {0};
    for (size_t i = 0; i < p->count && status == TN_OK; i++)
        status = cut_piece(op, &walk, p->text.data, p->spans[i], &out, err);
    regex_close(&walk);
    out.text = p->text; /* unchanged: only the spans are new */
    out.origin = p->origin;
    p->text = (buffer){0};
    buffer_free_pieces(p);
    *p = out;
    return status;
}

/* Appends what becomes of a piece. *origin: as in pieces, within the piece. */
static bool rewrite_piece(const pretok_op *op, const char *text, size_t length, size_t *origin, buffer *out)
{
    size_t before = out->size, follows = 0;
    if (op->kind == PRETOK_METASPACE)
        return split_metaspace(op, text, length, origin, out);
    if (op->kind == PRETOK_PREFIX_SPACE) {
        bool prefix = text[0] != ' ';
        *origin += prefix && *origin > 0;
        return (!prefix || buffer_add(out, " ", 1)) && buffer_add(out, text, length);
    }
    for (size_t i = 0; i < length; i++) {
        if (!utf8_add(out, pretok_byte_char((unsigned char)text[i])))
            return false;
        if (i + 1 == *origin)
            follows = out->size - before;
    }
    *origin = follows;
    return true;
}

static tn_status apply_rewrite(const pretok_op *op, pieces *p, size_t limit, tn_error *err)
{
    pieces out = {.text = {.limit = limit}};
    bool memory = true;
    for (size_t i = 0; i < p->count && memory; i++) {
        span piece = p->spans[i];
        size_t start = out.text.size, length = piece.end - piece.start;
        size_t origin = piece.start < p->origin ? p->origin - piece.start : 0;
        origin = origin < length ? origin : length;
        if (piece.id < 0 && length > 0)
            memory = rewrite_piece(op, p->text.data + piece.start, length, &origin, &out.text);
        if (piece.id < 0 && origin > 0)
            out.origin = start + origin;
        memory = memory && buffer_add_piece(&out, start, out.text.size, piece.id);
    }
    tn_status status = memory ? TN_OK : buffer_failed(&out.text, (place){NULL, "pre_tokenizer"}, err);
    buffer_free_pieces(p);
    *p = out;
    return status;
}

/* The first count ops. */
static tn_status apply_first(const pretok *t, size_t count, pieces *p, tn_error *err)
{
    size_t limit = buffer_bound(p->text.size);
    tn_status status = TN_OK;
    for (size_t i = 0; i < count && status == TN_OK; i++) {
        const pretok_op *op = &t->ops[i];
        bool rewrites = op->kind == PRETOK_PREFIX_SPACE || op->kind == PRETOK_BYTES || op->kind == PRETOK_METASPACE;
        status = rewrites ? apply_rewrite(op, p, limit, err) : apply_split(op, p, err);
    }
    return status;
}

tn_status pretok_apply(const pretok *t, pieces *p, tn_error *err)
{
    return apply_first(t, t->count, p, err);
}

tn_status pretok_apply_words(const pretok *t, pieces *p, bool *bytes, tn_error *err)
{
    *bytes = t->count > 0 && t->ops[t->count - 1].kind == PRETOK_BYTES;
    return apply_first(t, t->count - *bytes, p, err);
}
