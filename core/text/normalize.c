/* Normalizers: what happens to a text before it is cut up. */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define SUPPORTED "Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace and Strip"

void normalize_free(normalizer *n)
{
    for (size_t i = 0; i < n->count; i++) {
        regex_free(n->ops[i].pattern);
        buffer_free(&n->ops[i].content);
    }
    free(n->ops);
    *n = (normalizer){0};
}

static tn_status add_op(normalizer *n, const doc_node *node, place at, tn_error *err)
{
    static const struct {
        const char *type;
        int kind, options;
    } types[] = {
        {"NFC", NORMALIZE_FORM, UTF8PROC_COMPOSE},
        {"NFD", NORMALIZE_FORM, UTF8PROC_DECOMPOSE},
        {"NFKC", NORMALIZE_FORM, UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
        {"NFKD", NORMALIZE_FORM, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT},
        {"Lowercase", NORMALIZE_LOWERCASE, 0},
        {"Prepend", NORMALIZE_PREPEND, 0},
        {"Replace", NORMALIZE_REPLACE, 0},
        {"Strip", NORMALIZE_STRIP, 0},
    };
    size_t which = 0, count = sizeof types / sizeof types[0];
    while (which < count && strcmp(types[which].type, doc_type(node)) != 0)
        which++;
    if (which == count)
        return doc_unsupported(node, SUPPORTED, at, err);
    normalize_op *grown = buffer_grow(n->ops, &n->capacity, n->count + 1, sizeof *grown);
    if (!grown)
        return tn_fail(err, TN_E_MEMORY, at.file, "out of memory");
    n->ops = grown;
    normalize_op *op = &n->ops[n->count++];
    *op = (normalize_op){.options = types[which].options | UTF8PROC_STABLE, .left = true, .right = true};
    op->kind = (unsigned)types[which].kind;
    const char *content = "";
    size_t length = 0;
    tn_status status = TN_OK;
    if (op->kind == NORMALIZE_PREPEND)
        status = doc_get_text(node, "prepend", &content, &length, at, err);
    if (op->kind == NORMALIZE_REPLACE) {
        status = doc_get_text(node, "content", &content, &length, at, err);
        if (status == TN_OK && !(op->pattern = regex_load(doc_get(node, "pattern"), at, err)))
            return err->code;
    }
    if (op->kind == NORMALIZE_STRIP && (status = doc_get_flag(node, "strip_left", &op->left, at, err)) == TN_OK)
        status = doc_get_flag(node, "strip_right", &op->right, at, err);
    if (status == TN_OK && !buffer_add(&op->content, content, length))
        status = tn_fail(err, TN_E_MEMORY, at.file, "out of memory");
    return status;
}

tn_status normalize_load(normalizer *n, const doc_node *node, place at, tn_error *err)
{
    if (!node)
        return TN_OK;
    if (strcmp(doc_type(node), "Sequence") != 0)
        return add_op(n, node, at, err);
    const doc_node *list = doc_get(node, "normalizers");
    if (!doc_is_list(list))
        return tn_fail(err, TN_E_INPUT, at.file, "%s: 'normalizers' is missing or no list; correct the file",
                       at.component);
    tn_status status = TN_OK;
    for (size_t i = 0; i < doc_count(list) && status == TN_OK; i++)
        status = normalize_load(n, doc_at(list, i), at, err);
    return status;
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
        for (int last = 0, class; end < count && (class = utf8proc_get_property(codes[end])->combining_class) != 0;
             last = class, end++)
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
                keys[k] = (uint64_t)utf8proc_get_property(copy[k])->combining_class << 32 | (uint32_t)k;
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
        utf8proc_ssize_t n = utf8proc_decompose_char(c.code, codes + count, 32, options_each, &boundary);
        if (n < 0 || n > 32) {
            codes[count] = c.code;
            n = 1;
        }
        count += (size_t)n;
        i += c.length;
    }
    bool memory = order_marks(codes, count);
    utf8proc_ssize_t left = utf8proc_normalize_utf32(codes, (utf8proc_ssize_t)count, options);
    for (utf8proc_ssize_t i = 0; i < left && memory; i++)
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
        if (c.code == 0x130 ? !buffer_add(out, "i\xcc\x87", 3) : !utf8_add(out, utf8proc_tolower(c.code)))
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
    case NORMALIZE_REPLACE:
        return regex_replace(op->pattern, text, length, &op->content, out, err);
    }
    return memory ? TN_OK : tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
}

tn_status normalize_apply(const normalizer *n, const char *text, size_t length, buffer *out, tn_error *err)
{
    buffer work[2] = {{0}, {0}};
    tn_status status = TN_OK;
    for (size_t i = 0; i < n->count && status == TN_OK; i++) {
        bool last = i + 1 == n->count;
        buffer *to = last ? out : &work[i % 2];
        if (!last)
            to->size = 0;
        status = apply_op(&n->ops[i], text, length, to, err);
        text = to->size ? to->data : "";
        length = to->size;
    }
    if (n->count == 0 && !buffer_add(out, text, length))
        status = tn_fail(err, TN_E_MEMORY, NULL, "out of memory");
    buffer_free(&work[0]);
    buffer_free(&work[1]);
    return status;
}
