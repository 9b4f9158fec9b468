/* The bytes of one token: what decoders make of it, one after the other, as bytes instead of characters. */
#include "text/token_bytes.h"

#include "base/structs.h"
#include "text/tokenizer.h"

#include <string.h>

static bool from_fallback(const buffer *text, buffer *out)
{
    int byte = decode_fallback(text->data, text->size);
    return byte < 0 ? buffer_add(out, text->data, text->size) : buffer_add(out, &(char){(char)byte}, 1);
}

/* WordPiece: a token that continues a word loses its prefix, another has a space in front. */
static bool from_wordpiece(const decode_op *op, const buffer *text, buffer *out)
{
    size_t n = op->content.size;
    bool continues = text->size >= n && (n == 0 || memcmp(text->data, op->content.data, n) == 0);
    buffer raw = {0};
    bool good = (continues || buffer_add(&raw, " ", 1)) &&
                buffer_add(&raw, text->data + (continues ? n : 0), text->size - (continues ? n : 0));
    good = good && (op->cleanup ? cleanup_english(raw.size ? raw.data : "", raw.size, out)
                                : buffer_add(out, raw.data, raw.size));
    buffer_free(&raw);
    return good;
}

/* One decoder. Those that only act where a text begins or ends do nothing. */
static tn_status apply(const tn_tokenizer *t, const decode_op *op, const buffer *text, buffer *out, tn_error *err)
{
    bool good = true;
    switch (op->kind) {
    case DECODE_BYTE_LEVEL:
        good = decode_byte_level(text->data, text->size, out);
        break;
    case DECODE_BYTE_FALLBACK:
        good = from_fallback(text, out);
        break;
    case DECODE_REPLACE:
        return regex_replace(op->pattern, text->data, text->size, &op->content, out, err);
    case DECODE_METASPACE:
        good = cleanup_replace(text->data, text->size, op->content.data, op->content.size, " ", out);
        break;
    case DECODE_WORDPIECE:
        good = from_wordpiece(op, text, out);
        break;
    case DECODE_BPE:
        good = cleanup_replace(text->data, text->size, op->content.data, op->content.size, " ", out);
        break;
    case DECODE_JOIN:
        good = buffer_add(out, " ", 1) && buffer_add(out, text->data, text->size);
        break;
    case DECODE_CTC:
        return tn_fail(err, TN_E_INPUT, t->path, "its decoder is for speech: tokens stand for nothing by themselves");
    case DECODE_FUSE:
    case DECODE_STRIP:
        good = buffer_add(out, text->data, text->size);
        break;
    }
    return good ? TN_OK : buffer_failed(out, (place){t->path, "decoder"}, err);
}

tn_status token_bytes(const tn_tokenizer *t, int64_t id, buffer *out, token_kind *kind, tn_error *err)
{
    const vocab *v = &t->vocab;
    *kind = TOKEN_ABSENT;
    if (id < 0 || (uint64_t)id >= v->size || !v->tokens[id].present)
        return TN_OK;
    const added_shown *shown = added_find_shown(&t->added, (uint32_t)id);
    *kind = (shown ? shown->special : v->tokens[id].special) ? TOKEN_SPECIAL : TOKEN_TEXT;
    if (*kind == TOKEN_SPECIAL)
        return TN_OK;
    const char *from = shown ? t->added.shown_text.data : v->strings.data;
    size_t offset = shown ? shown->offset : v->tokens[id].offset, size = shown ? shown->length : v->tokens[id].length;
    buffer text = {0};
    tn_status status = buffer_add(&text, size ? from + offset : "", size)
                           ? TN_OK
                           : tn_fail(err, TN_E_MEMORY, t->path, "out of memory");
    for (size_t i = 0; i < t->decoder.count && status == TN_OK && text.size > 0; i++) {
        buffer next = {.limit = buffer_bound(text.size)};
        status = apply(t, &t->decoder.ops[i], &text, &next, err);
        buffer_free(&text);
        text = next;
    }
    if (status == TN_OK && text.size > 0 && !buffer_add(out, text.data, text.size))
        status = buffer_failed(out, (place){t->path, "decoder"}, err);
    buffer_free(&text);
    return status;
}

tn_status tn_tokenizer_bytes(const tn_tokenizer *tokenizer, int64_t id, char **bytes, size_t *length, bool *special,
                             tn_error *err)
{
    if (!tokenizer || !bytes || !length)
        return structs_missing(!tokenizer ? "tokenizer" : !bytes ? "bytes" : "length", err);
    tn_error own = TN_ERROR_INIT;
    err = err ? err : &own;
    buffer out = {0};
    token_kind kind;
    tn_status status = token_bytes(tokenizer, id, &out, &kind, err);
    size_t size = out.size;
    if (status == TN_OK && !buffer_add(&out, "", 1))
        status = tn_fail(err, TN_E_MEMORY, tokenizer->path, "out of memory");
    if (status != TN_OK) {
        buffer_free(&out);
        return status;
    }
    *bytes = out.data;
    *length = size;
    if (special)
        *special = kind == TOKEN_SPECIAL;
    return TN_OK;
}
