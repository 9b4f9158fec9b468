/* Normalizers: what happens to a text before it is cut up. */
#include "text/normalize.h"

#include "text/buffer.h"
#include "text/doc.h"
#include "text/regex.h"
#include "text/unicode.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define SUPPORTED                                                                                                      \
    "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, StripAccents, Nmt, Precompiled, "             \
    "BertNormalizer and ByteLevel"

void normalize_free(normalizer *n)
{
    for (size_t i = 0; i < n->count; i++) {
        regex_free(n->ops[i].pattern);
        buffer_free(&n->ops[i].content);
        precompiled_free(n->ops[i].charsmap);
    }
    free(n->ops);
    *n = (normalizer){0};
}

/* What a type in the file stands for. */
typedef struct normalize_type {
    const char *type;
    unsigned kind;
    int options;
    normalize_map *map;
    const char *members;
} normalize_type;

static tn_status load_members(normalize_op *op, const normalize_type *type, const doc_node *node, doc_reader *r)
{
    const char *content = "";
    size_t length = 0;
    doc_only(node, type->members, r);
    if (op->kind == NORMALIZE_PREPEND)
        doc_get_text(node, "prepend", &content, &length, r);
    if (op->kind == NORMALIZE_REPLACE) {
        doc_get_text(node, "content", &content, &length, r);
        op->pattern = regex_load(doc_get(node, "pattern"), r);
    }
    if (op->kind == NORMALIZE_STRIP) {
        doc_get_flag(node, "strip_left", &op->left, r);
        doc_get_flag(node, "strip_right", &op->right, r);
    }
    if (op->kind == NORMALIZE_CHARSMAP)
        op->charsmap = precompiled_load(node, r);
    if (!buffer_add(&op->content, content, length))
        doc_no_memory(r);
    return r->status;
}

/* Adds an op. NULL: no memory. */
static normalize_op *add_op(normalizer *n, unsigned kind, int options, normalize_map *map)
{
    normalize_op *grown = buffer_grow(n->ops, &n->capacity, n->count + 1, sizeof *grown);
    if (!grown)
        return NULL;
    n->ops = grown;
    normalize_op *op = &n->ops[n->count++];
    *op = (normalize_op){.options = options | UTF8PROC_STABLE, .left = true, .right = true, .map = map};
    op->kind = kind;
    return op;
}

/* BERT's is up to five others in a row. */
static tn_status load_bert(normalizer *n, const doc_node *node, doc_reader *r)
{
    bool clean = true, chinese = true, lowercase = true;
    doc_only(node, "clean_text handle_chinese_chars strip_accents lowercase", r);
    doc_need_flag(node, "clean_text", &clean, r);
    doc_need_flag(node, "handle_chinese_chars", &chinese, r);
    doc_need_flag(node, "lowercase", &lowercase, r);
    bool accents = lowercase; /* unless the file says otherwise */
    doc_get_flag(node, "strip_accents", &accents, r);
    if (r->status != TN_OK)
        return r->status;
    bool memory = (!clean || add_op(n, NORMALIZE_MAP, 0, charmap_clean)) &&
                  (!chinese || add_op(n, NORMALIZE_MAP, 0, charmap_chinese)) &&
                  (!accents || (add_op(n, NORMALIZE_FORM, UTF8PROC_DECOMPOSE, NULL) &&
                                add_op(n, NORMALIZE_MAP, 0, charmap_strip_nonspacing))) &&
                  (!lowercase || add_op(n, NORMALIZE_LOWERCASE, 0, NULL));
    return memory ? TN_OK : doc_no_memory(r);
}

static tn_status load_op(normalizer *n, const doc_node *node, doc_reader *r)
{
    static const normalize_type types[] = {
        {"NFC", NORMALIZE_FORM, UTF8PROC_COMPOSE, NULL, ""},
        {"NFD", NORMALIZE_FORM, UTF8PROC_DECOMPOSE, NULL, ""},
        {"NFKC", NORMALIZE_FORM, UTF8PROC_COMPOSE | UTF8PROC_COMPAT, NULL, ""},
        {"NFKD", NORMALIZE_FORM, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT, NULL, ""},
        {"Lowercase", NORMALIZE_LOWERCASE, 0, NULL, ""},
        {"Prepend", NORMALIZE_PREPEND, 0, NULL, "prepend"},
        {"Replace", NORMALIZE_REPLACE, 0, NULL, "pattern content"},
        {"Strip", NORMALIZE_STRIP, 0, NULL, "strip_left strip_right"},
        {"StripAccents", NORMALIZE_MAP, 0, charmap_strip_accents, ""},
        {"Nmt", NORMALIZE_MAP, 0, charmap_nmt, ""},
        {"ByteLevel", NORMALIZE_MAP, 0, charmap_bytes, ""},
        {"Precompiled", NORMALIZE_CHARSMAP, 0, NULL, "precompiled_charsmap"},
    };
    if (strcmp(doc_type(node), "BertNormalizer") == 0)
        return load_bert(n, node, r);
    size_t which = 0, count = sizeof types / sizeof types[0];
    while (which < count && strcmp(types[which].type, doc_type(node)) != 0)
        which++;
    if (which == count)
        return doc_unsupported(node, SUPPORTED, r);
    normalize_op *op = add_op(n, types[which].kind, types[which].options, types[which].map);
    if (!op)
        return doc_no_memory(r);
    return load_members(op, &types[which], node, r);
}

tn_status normalize_load(normalizer *n, const doc_node *node, doc_reader *r)
{
    if (!node)
        return TN_OK;
    if (strcmp(doc_type(node), "Sequence") != 0)
        return load_op(n, node, r);
    const doc_node *list = doc_need_list(node, "normalizers", r);
    for (size_t i = 0; i < doc_count(list) && r->status == TN_OK; i++)
        normalize_load(n, doc_at(list, i), r);
    return r->status;
}

/* The canonical combining class. */
static int class_of(int32_t code)
{
    return unicode_is_too_new(code) ? 0 : utf8proc_get_property(code)->combining_class;
}

static int by_class(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Puts each run of combining marks into canonical order. The sort is stable through the index in the low half of the
 * key, and O(n log n): utf8proc's own is quadratic in the length of a run. */
static bool order_marks(utf8proc_int32_t *codes, size_t count)
{
    uint64_t *keys = NULL;
    utf8proc_int32_t *copy = NULL;
    bool memory = true;
    for (size_t i = 0; i < count && memory;) {
        size_t end = i;
        bool sorted = true;
        for (int last = 0, class; end < count && (class = class_of(codes[end])) != 0; last = class, end++)
            sorted = sorted && class >= last;
        if (!sorted) {
            size_t n = end - i;
            free(keys);
            free(copy);
            keys = malloc(n * sizeof *keys);
            copy = malloc(n * sizeof *copy);
            if (!keys || !copy) {
                memory = false;
                break;
            }
            memcpy(copy, codes + i, n * sizeof *copy);
            for (size_t k = 0; k < n; k++)
                keys[k] = (uint64_t)class_of(copy[k]) << 32 | (uint32_t)k;
            qsort(keys, n, sizeof *keys, by_class);
            for (size_t k = 0; k < n; k++)
                codes[i + k] = copy[keys[k] & UINT32_MAX];
        }
        i = end > i ? end : i + 1;
    }
    free(keys);
    free(copy);
    return memory;
}

/* Composes what stands between characters that nothing composes with. Returns the new count. */
static size_t compose(utf8proc_int32_t *codes, size_t count, int options)
{
    size_t done = 0;
    for (size_t start = 0, end; start < count; start = end) {
        end = start;
        while (end < count && !unicode_is_too_new(codes[end]))
            end++;
        memmove(codes + done, codes + start, (end - start) * sizeof *codes);
        utf8proc_ssize_t left = utf8proc_normalize_utf32(codes + done, (utf8proc_ssize_t)(end - start), options);
        done += left > 0 ? (size_t)left : 0;
        if (end < count)
            codes[done++] = codes[end++];
    }
    return done;
}

static bool form_stretch(int options, const char *text, size_t length, buffer *out)
{
    utf8proc_int32_t *codes = NULL;
    size_t count = 0, capacity = 0;
    int options_each = (options & ~UTF8PROC_COMPOSE) | UTF8PROC_DECOMPOSE, boundary = 0;
    for (size_t i = 0; i < length;) {
        utf8_char c = utf8_read(text + i, length - i);
        /* The longest decomposition has 18 codes (U+FDFA). */
        utf8proc_int32_t *grown = buffer_grow(codes, &capacity, count + 32, sizeof *codes);
        if (!grown) {
            free(codes);
            return false;
        }
        codes = grown;
        utf8proc_ssize_t n = unicode_is_too_new(c.code)
                                 ? -1
                                 : utf8proc_decompose_char(c.code, codes + count, 32, options_each, &boundary);
        if (n < 0 || n > 32) {
            codes[count] = c.code;
            n = 1;
        }
        count += (size_t)n;
        i += c.length;
    }
    bool memory = order_marks(codes, count);
    size_t left = memory && (options & UTF8PROC_COMPOSE) ? compose(codes, count, options) : count;
    for (size_t i = 0; i < left && memory; i++)
        memory = utf8_add(out, codes[i]);
    free(codes);
    return memory;
}

/* Inert characters are copied. The last one before others may take them in, so it goes with them. */
static bool apply_form(int options, const char *text, size_t length, buffer *out)
{
    bool nfc = (options & UTF8PROC_COMPOSE) && !(options & UTF8PROC_COMPAT);
    for (size_t i = 0; i < length;) {
        size_t start = i + inert_run(nfc, text + i, length - i), end = start;
        if (start == length)
            return buffer_add(out, text + i, length - i);
        if (start > i)
            start--;
        while (start > i && ((unsigned char)text[start] & 0xc0) == 0x80)
            start--;
        while (end < length) {
            utf8_char c = utf8_read(text + end, length - end);
            if (inert_is(nfc, c.code))
                break;
            end += c.length;
        }
        if (!buffer_add(out, text + i, start - i) || !form_stretch(options, text + start, end - start, out))
            return false;
        i = end;
    }
    return true;
}

static bool apply_lowercase(const char *text, size_t length, buffer *out)
{
    for (size_t i = 0; i < length;) {
        utf8_char c = utf8_read(text + i, length - i);
        /* The one character whose lower case is two: a dotted capital I becomes i and the dot. */
        if (c.code == 0x130 ? !buffer_add(out, "i\xcc\x87", 3) : !utf8_add(out, unicode_lower(c.code)))
            return false;
        i += c.length;
    }
    return true;
}

static bool apply_strip(const normalize_op *op, const char *text, size_t length, buffer *out)
{
    size_t start = 0, end = length;
    while (op->left && start < end) {
        utf8_char c = utf8_read(text + start, end - start);
        if (!utf8_is_space(c.code))
            break;
        start += c.length;
    }
    while (op->right && end > start) {
        size_t back = 1;
        while (back < end - start && ((unsigned char)text[end - back] & 0xc0) == 0x80)
            back++;
        if (!utf8_is_space(utf8_read(text + end - back, back).code))
            break;
        end -= back;
    }
    return buffer_add(out, text + start, end - start);
}

static tn_status apply_op(const normalize_op *op, const char *text, size_t length, buffer *out, tn_error *err)
{
    bool memory = true;
    switch (op->kind) {
    case NORMALIZE_FORM:
        memory = apply_form(op->options, text, length, out);
        break;
    case NORMALIZE_LOWERCASE:
        memory = apply_lowercase(text, length, out);
        break;
    case NORMALIZE_PREPEND:
        memory = (length == 0 || buffer_add(out, op->content.data, op->content.size)) && buffer_add(out, text, length);
        break;
    case NORMALIZE_STRIP:
        memory = apply_strip(op, text, length, out);
        break;
    case NORMALIZE_MAP:
        memory = op->map(text, length, out);
        break;
    case NORMALIZE_CHARSMAP:
        memory = precompiled_apply(op->charsmap, text, length, out);
        break;
    case NORMALIZE_REPLACE:
        return regex_replace(op->pattern, text, length, &op->content, out, err);
    }
    return memory ? TN_OK : buffer_failed(out, (place){NULL, "normalizer"}, err);
}

/* ---- which part of the result comes from the first character of the input ----------------------- */

/* Replacing: what stands for a match comes from the last character of it. */
static tn_status follow_replace(const normalize_op *op, const char *text, size_t length, size_t *origin, tn_error *err)
{
    regex_walk walk;
    tn_status status = regex_open(&walk, op->pattern, err);
    if (status != TN_OK)
        return status;
    regex_start(&walk, text, length);
    size_t from = *origin, done = 0, follows = 0, start = 0, end = 0;
    bool found = true;
    while (found && done < from && (status = regex_next(&walk, &found, &start, &end, err)) == TN_OK) {
        if (!found || start >= from)
            break;
        follows += start - done;
        if (end > from && end > 0) { /* the rest comes from further on */
            done = from;
            break;
        }
        follows += op->content.size;
        done = end;
    }
    regex_close(&walk);
    *origin = follows + (done < from ? from - done : 0);
    return status;
}

/* Updates *origin for an op that made out (from offset base on) of text. */
static tn_status follow(const normalize_op *op, const char *text, size_t length, const buffer *out, size_t base,
                        size_t *origin, tn_error *err)
{
    size_t made = out->size - base, first = made ? utf8_read(out->data + base, made).length : 0;
    buffer alone = {0};
    tn_status status = TN_OK;
    if (*origin == 0)
        return TN_OK;
    switch (op->kind) {
    case NORMALIZE_PREPEND:
        *origin += op->content.size;
        break;
    case NORMALIZE_REPLACE:
        status = follow_replace(op, text, length, origin, err);
        break;
    case NORMALIZE_STRIP:
        status = apply_op(&(normalize_op){.kind = NORMALIZE_STRIP, .left = op->left}, text, length, &alone, err);
        *origin = *origin > length - alone.size ? *origin - (length - alone.size) : 0;
        break;
    default: /* those that look at characters: what they make of that part alone */
        status = apply_op(op, text, *origin < length ? *origin : length, &alone, err);
        bool same = alone.size <= made && (!alone.size || memcmp(alone.data, out->data + base, alone.size) == 0);
        /* The library counts the character after a dropped first one in its place, if a map dropped it. */
        *origin = same && (alone.size || op->kind != NORMALIZE_CHARSMAP) ? alone.size : first;
    }
    buffer_free(&alone);
    *origin = *origin < made ? *origin : made;
    return status;
}

tn_status normalize_apply_from(const normalizer *n, const char *text, size_t length, size_t *origin, buffer *out,
                               tn_error *err)
{
    buffer work[2] = {{.limit = buffer_bound(length)}, {.limit = buffer_bound(length)}};
    size_t limit = out->limit;
    tn_status status = TN_OK;
    for (size_t i = 0; i < n->count && status == TN_OK; i++) {
        bool last = i + 1 == n->count;
        buffer *to = last ? out : &work[i % 2];
        if (!last)
            to->size = 0;
        else
            to->limit = to->size + work[0].limit;
        size_t base = to->size;
        status = apply_op(&n->ops[i], text, length, to, err);
        if (status == TN_OK && origin)
            status = follow(&n->ops[i], text, length, to, base, origin, err);
        text = to->size > base ? to->data + base : "";
        length = to->size - base;
    }
    if (n->count == 0 && !buffer_add(out, text, length))
        status = tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
    out->limit = limit;
    buffer_free(&work[0]);
    buffer_free(&work[1]);
    return status;
}

tn_status normalize_apply(const normalizer *n, const char *text, size_t length, buffer *out, tn_error *err)
{
    return normalize_apply_from(n, text, length, NULL, out, err);
}
