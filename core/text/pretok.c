/* Pre-tokenizers: cut a text into the words that the model sees one by one. All of the cutting ones are a regular
 * expression with a behaviour. */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#define SUPPORTED "Sequence, Split, ByteLevel, Digits, Punctuation, Whitespace and WhitespaceSplit"

/* What ByteLevel splits by unless told otherwise: the contractions, letters, digits, others and spaces of GPT-2. */
#define BYTE_LEVEL_WORDS "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define PUNCTUATION "[!-/:-@\\[-`{-~\\p{P}]"

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
static tn_status add_op(pretok *t, pretok_op op, place at, tn_error *err)
{
    pretok_op *grown = buffer_grow(t->ops, &t->capacity, t->count + 1, sizeof *grown);
    if (!grown) {
        regex_free(op.pattern);
        return tn_fail(err, TN_E_MEMORY, at.file, "out of memory");
    }
    t->ops = grown;
    t->ops[t->count++] = op;
    return TN_OK;
}

static tn_status add_split(pretok *t, const char *pattern, pretok_behaviour behaviour, bool invert, place at,
                           tn_error *err)
{
    regex *re = regex_new(pattern, strlen(pattern), false, at, err);
    if (!re)
        return err->code;
    return add_op(t, (pretok_op){PRETOK_SPLIT, re, behaviour, invert}, at, err);
}

static tn_status read_behaviour(const doc_node *node, pretok_behaviour *behaviour, place at, tn_error *err)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name = names[*behaviour];
    size_t length;
    tn_status status = doc_get_text(node, "behavior", &name, &length, at, err);
    for (unsigned i = 0; i < sizeof names / sizeof names[0] && status == TN_OK; i++)
        if (strcmp(name, names[i]) == 0) {
            *behaviour = i;
            return TN_OK;
        }
    return tn_fail(err, TN_E_INPUT, at.file, "%s: behavior '%.40s' is unknown; correct the file", at.component, name);
}

static tn_status load_split(pretok *t, const doc_node *node, place at, tn_error *err)
{
    pretok_op op = {.kind = PRETOK_SPLIT, .behaviour = PRETOK_ISOLATED};
    tn_status status = read_behaviour(node, &op.behaviour, at, err);
    if (status == TN_OK)
        status = doc_get_flag(node, "invert", &op.invert, at, err);
    if (status == TN_OK && !(op.pattern = regex_load(doc_get(node, "pattern"), at, err)))
        status = err->code;
    return status == TN_OK ? add_op(t, op, at, err) : status;
}

static tn_status load_byte_level(pretok *t, const doc_node *node, place at, tn_error *err)
{
    bool prefix = true, words = true;
    tn_status status = doc_get_flag(node, "add_prefix_space", &prefix, at, err);
    if (status == TN_OK)
        status = doc_get_flag(node, "use_regex", &words, at, err);
    if (status == TN_OK && prefix)
        status = add_op(t, (pretok_op){.kind = PRETOK_PREFIX_SPACE}, at, err);
    if (status == TN_OK && words)
        status = add_split(t, BYTE_LEVEL_WORDS, PRETOK_ISOLATED, false, at, err);
    return status == TN_OK ? add_op(t, (pretok_op){.kind = PRETOK_BYTES}, at, err) : status;
}

tn_status pretok_load(pretok *t, const doc_node *node, place at, tn_error *err)
{
    if (!node)
        return TN_OK;
    const char *type = doc_type(node);
    if (strcmp(type, "Split") == 0)
        return load_split(t, node, at, err);
    if (strcmp(type, "ByteLevel") == 0)
        return load_byte_level(t, node, at, err);
    if (strcmp(type, "Digits") == 0) {
        bool each = false;
        tn_status status = doc_get_flag(node, "individual_digits", &each, at, err);
        return status == TN_OK ? add_split(t, "\\p{N}", each ? PRETOK_ISOLATED : PRETOK_CONTIGUOUS, false, at, err)
                               : status;
    }
    if (strcmp(type, "Punctuation") == 0) {
        pretok_behaviour behaviour = PRETOK_ISOLATED;
        tn_status status = read_behaviour(node, &behaviour, at, err);
        return status == TN_OK ? add_split(t, PUNCTUATION, behaviour, false, at, err) : status;
    }
    if (strcmp(type, "Whitespace") == 0)
        return add_split(t, "\\w+|[^\\w\\s]+", PRETOK_REMOVED, true, at, err);
    if (strcmp(type, "WhitespaceSplit") == 0)
        return add_split(t, "\\s", PRETOK_REMOVED, false, at, err);
    if (strcmp(type, "Sequence") != 0)
        return doc_unsupported(node, SUPPORTED, at, err);
    const doc_node *list = doc_get(node, "pretokenizers");
    if (!doc_is_list(list))
        return tn_fail(err, TN_E_INPUT, at.file, "%s: 'pretokenizers' is missing or no list; correct the file",
                       at.component);
    tn_status status = TN_OK;
    for (size_t i = 0; i < doc_count(list) && status == TN_OK; i++)
        status = pretok_load(t, doc_at(list, i), at, err);
    return status;
}

/* Turns the stretches of one piece, matches and what lies between them, into spans. */
typedef struct cutter {
    const pretok_op *op;
    pieces *out;
    bool any, previous; /* a span of this piece exists; the last stretch was a match               */
    bool held;          /* a match waits to join the next stretch                                */
    size_t held_start, held_end;
} cutter;

static bool cut(cutter *c, size_t start, size_t end, bool match)
{
    bool join = false, added = true;
    span *last = c->any ? &c->out->spans[c->out->count - 1] : NULL;
    match = match != c->op->invert;
    switch (c->op->behaviour) {
    case PRETOK_ISOLATED:
        break;
    case PRETOK_REMOVED:
        if (match)
            return true;
        break;
    case PRETOK_CONTIGUOUS:
        join = match == c->previous;
        break;
    case PRETOK_WITH_PREVIOUS:
        join = match && !c->previous;
        break;
    case PRETOK_WITH_NEXT:
        if (c->held && match)
            added = buffer_add_piece(c->out, c->held_start, c->held_end, -1);
        else if (c->held)
            start = c->held_start;
        c->held = match;
        c->held_start = start;
        c->held_end = end;
        if (match)
            return added;
        break;
    }
    c->previous = match;
    if (join && last) {
        last->end = end;
        return added;
    }
    c->any = true;
    return added && buffer_add_piece(c->out, start, end, -1);
}

static tn_status split_piece(const pretok_op *op, regex_walk *walk, const char *text, span piece, pieces *out,
                             tn_error *err)
{
    cutter c = {.op = op, .out = out};
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
        memory = (done >= start || cut(&c, done, start, false)) && cut(&c, start, end, true);
        done = end;
    }
    memory = memory && (done >= piece.end || cut(&c, done, piece.end, false));
    if (c.held)
        memory = memory && buffer_add_piece(out, c.held_start, c.held_end, -1);
    return memory ? TN_OK : tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
}

static tn_status apply_split(const pretok_op *op, pieces *p, tn_error *err)
{
    regex_walk walk;
    tn_status status = regex_open(&walk, op->pattern, err);
    pieces out = {0};
    for (size_t i = 0; i < p->count && status == TN_OK; i++) {
        span piece = p->spans[i];
        if (piece.id >= 0)
            status = buffer_add_piece(&out, piece.start, piece.end, piece.id)
                         ? TN_OK
                         : tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
        else if (piece.start < piece.end)
            status = split_piece(op, &walk, p->text.data, piece, &out, err);
    }
    regex_close(&walk);
    out.text = p->text; /* unchanged: only the spans are new */
    p->text = (buffer){0};
    buffer_free_pieces(p);
    *p = out;
    return status;
}

static bool rewrite_piece(const pretok_op *op, const char *text, size_t length, buffer *out)
{
    if (op->kind == PRETOK_PREFIX_SPACE)
        return (text[0] == ' ' || buffer_add(out, " ", 1)) && buffer_add(out, text, length);
    for (size_t i = 0; i < length; i++)
        if (!utf8_add(out, pretok_byte_char((unsigned char)text[i])))
            return false;
    return true;
}

static tn_status apply_rewrite(const pretok_op *op, pieces *p, tn_error *err)
{
    pieces out = {0};
    bool memory = true;
    for (size_t i = 0; i < p->count && memory; i++) {
        span piece = p->spans[i];
        size_t start = out.text.size, length = piece.end - piece.start;
        if (piece.id < 0 && length > 0)
            memory = rewrite_piece(op, p->text.data + piece.start, length, &out.text);
        memory = memory && buffer_add_piece(&out, start, out.text.size, piece.id);
    }
    buffer_free_pieces(p);
    *p = out;
    return memory ? TN_OK : tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
}

static tn_status apply_first(const pretok *t, size_t count, pieces *p, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < count && status == TN_OK; i++)
        status = t->ops[i].kind == PRETOK_SPLIT ? apply_split(&t->ops[i], p, err) : apply_rewrite(&t->ops[i], p, err);
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
