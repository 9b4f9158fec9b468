/* Decoders: from tokens back to text, token by token. Every decoder is a stage that receives tokens in fragments and
 * passes on what is certain; decoding at once is the same walk, so a stream cannot say anything else. */
#include "text/decode.h"

#include "base/structs.h"
#include "base/text.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/buffer.h"
#include "text/doc.h"
#include "text/pretok.h"
#include "text/regex.h"
#include "text/tokenizer.h"
#include "text/utf8.h"
#include "text/vocab.h"
#include "text/wordpiece.h"

#include <stdlib.h>
#include <string.h>

void decode_free(decoder *d)
{
    for (size_t i = 0; i < d->count; i++) {
        regex_free(d->ops[i].pattern);
        buffer_free(&d->ops[i].content);
        buffer_free(&d->ops[i].delimiter);
    }
    free(d->ops);
    *d = (decoder){0};
}

/* What a stage remembers. */
typedef struct stage {
    buffer token; /* fragments of a token that must be whole first                               */
    buffer bytes; /* bytes that may yet become characters; BPE, CTC: the token before             */
    int64_t skip; /* STRIP: characters that may still be dropped from this token's start         */
    bool begun;   /* there was a token before                                                     */
} stage;

struct tn_stream {
    const tn_tokenizer *tokenizer;
    bool skip_special;
    stage *stages;
    size_t given; /* bytes of the tokens so far, which bound what stages may make of them         */
    buffer out;   /* what the last call completed                                                 */
    tn_error *err;
};

static bool pass(tn_stream *s, size_t index, const char *text, size_t length, bool ends);

/* Passes on the characters that bytes completes; at the end also U+FFFD for what stays incomplete. */
static bool pass_characters(tn_stream *s, size_t index, buffer *bytes, bool ends)
{
    size_t whole = bytes->size;
    for (size_t i = 0; i < bytes->size;) {
        utf8_char c = utf8_read(bytes->data + i, bytes->size - i);
        if (c.cut && !ends)
            whole = i;
        i += c.length;
    }
    buffer clean = {0};
    bool fine = utf8_add_clean(&clean, bytes->data, whole) && pass(s, index + 1, clean.data, clean.size, ends);
    buffer_free(&clean);
    if (whole)
        memmove(bytes->data, bytes->data + whole, bytes->size - whole);
    bytes->size -= whole;
    return fine;
}

bool decode_byte_level(const char *text, size_t length, buffer *bytes)
{
    size_t before = bytes->size;
    for (size_t i = 0; i < length;) {
        utf8_char c = utf8_read(text + i, length - i);
        int32_t byte = pretok_char_byte(c.code);
        if (byte < 0) {
            bytes->size = before;
            return buffer_add(bytes, text, length);
        }
        if (!buffer_add(bytes, &(char){(char)byte}, 1))
            return false;
        i += c.length;
    }
    return true;
}

int decode_fallback(const char *text, size_t length)
{
    bool marked = length == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>';
    int high = marked ? text_hex(text[3]) : -1, low = marked ? text_hex(text[4]) : -1;
    return high < 0 || low < 0 ? -1 : high << 4 | low;
}

static bool byte_level(tn_stream *s, size_t index, const char *text, size_t length)
{
    buffer *bytes = &s->stages[index].bytes;
    return decode_byte_level(text, length, bytes) && pass_characters(s, index, bytes, false);
}

/* The end of a run of byte tokens: a text if it is one, else U+FFFD for each byte. */
static bool end_byte_run(tn_stream *s, size_t index)
{
    buffer *bytes = &s->stages[index].bytes;
    bool valid = true, fine = true;
    for (size_t i = 0; i < bytes->size && valid;) {
        utf8_char c = utf8_read(bytes->data + i, bytes->size - i);
        valid = c.code >= 0;
        i += c.length;
    }
    if (valid && bytes->size)
        fine = pass(s, index + 1, bytes->data, bytes->size, true);
    for (size_t i = 0; !valid && i < bytes->size && fine; i++)
        fine = pass(s, index + 1, UTF8_REPLACEMENT, 3, true);
    bytes->size = 0;
    return fine;
}

static bool byte_fallback(tn_stream *s, size_t index, const char *text, size_t length)
{
    int byte = decode_fallback(text, length);
    if (byte >= 0)
        return buffer_add(&s->stages[index].bytes, &(char){(char)byte}, 1);
    return end_byte_run(s, index) && pass(s, index + 1, text, length, true);
}

static bool starts_with(const char *text, size_t length, const buffer *content)
{
    return content->size == 0 || (length >= content->size && memcmp(text, content->data, content->size) == 0);
}

/* Drops up to start characters in front and stop behind; with a stop the token is whole. */
static bool strip(tn_stream *s, size_t index, const char *text, size_t length, bool ends)
{
    const decode_op *op = &s->tokenizer->decoder.ops[index];
    stage *st = &s->stages[index];
    size_t n = op->content.size;
    while (length && st->skip > 0) {
        if (!starts_with(text, length, &op->content)) {
            st->skip = 0;
            break;
        }
        text += n;
        length -= n;
        st->skip--;
    }
    for (int64_t i = 0; i < op->stop && length >= n && starts_with(text + length - n, n, &op->content); i++)
        length -= n;
    if (ends)
        st->skip = op->start;
    return pass(s, index + 1, text, length, ends);
}

static bool replace(tn_stream *s, size_t index, const char *text, size_t length)
{
    const decode_op *op = &s->tokenizer->decoder.ops[index];
    buffer out = {.limit = buffer_bound(s->given)};
    bool fine = regex_replace(op->pattern, text, length, &op->content, &out, s->err) == TN_OK &&
                pass(s, index + 1, out.data, out.size, true);
    buffer_free(&out);
    return fine;
}

/* Spaces for the character that stands for them; in the first token nothing. */
static bool metaspace(tn_stream *s, size_t index, const char *text, size_t length, bool ends)
{
    const decode_op *op = &s->tokenizer->decoder.ops[index];
    stage *st = &s->stages[index];
    const char *to = !st->begun && op->cleanup ? "" : " ";
    buffer out = {0};
    bool fine = cleanup_replace(text, length, op->content.data, op->content.size, to, &out) &&
                pass(s, index + 1, out.data, out.size, ends);
    buffer_free(&out);
    st->begun = st->begun || ends;
    return fine;
}

/* A token that continues a word loses its prefix, others have a space in front. */
static bool wordpiece_token(tn_stream *s, size_t index, const char *text, size_t length)
{
    const decode_op *op = &s->tokenizer->decoder.ops[index];
    bool first = !s->stages[index].begun, continues = starts_with(text, length, &op->content);
    size_t cut = !first && continues ? op->content.size : 0;
    buffer out = {0}, clean = {0};
    bool fine = (first || continues || buffer_add(&out, " ", 1)) && buffer_add(&out, text + cut, length - cut);
    fine = fine && (!op->cleanup || cleanup_english(out.size ? out.data : "", out.size, &clean));
    const buffer *result = op->cleanup ? &clean : &out;
    s->stages[index].begun = true;
    fine = fine && pass(s, index + 1, result->data, result->size, true);
    buffer_free(&out);
    buffer_free(&clean);
    return fine;
}

/* Frees a stage's result. If it could not grow beyond its limit, the error says so. */
static bool done_with(tn_stream *s, buffer *out, bool fine)
{
    if (!fine && out->full)
        buffer_failed(out, (place){s->tokenizer->path, "decoder"}, s->err);
    buffer_free(out);
    return fine;
}

/* Passes on the token that BPE held back: its suffix becomes a space, or nothing in the last one. */
static bool pass_held(tn_stream *s, size_t index, const char *instead)
{
    const decode_op *op = &s->tokenizer->decoder.ops[index];
    stage *st = &s->stages[index];
    buffer out = {.limit = buffer_bound(s->given)};
    bool fine = cleanup_replace(st->bytes.size ? st->bytes.data : "", st->bytes.size, op->content.data,
                                op->content.size, instead, &out) &&
                pass(s, index + 1, out.data, out.size, true);
    st->bytes.size = 0;
    return done_with(s, &out, fine);
}

static bool bpe_token(tn_stream *s, size_t index, const char *text, size_t length)
{
    stage *st = &s->stages[index];
    if (st->begun && !pass_held(s, index, " "))
        return false;
    st->begun = true;
    return buffer_add(&st->bytes, text, length);
}

/* Equal tokens in a row are one, padding is none, and words have a delimiter between them. */
static bool ctc(tn_stream *s, size_t index, const char *text, size_t length)
{
    const decode_op *op = &s->tokenizer->decoder.ops[index];
    stage *st = &s->stages[index];
    if (st->begun && st->bytes.size == length && (!length || memcmp(st->bytes.data, text, length) == 0))
        return true;
    st->begun = true;
    st->bytes.size = 0;
    buffer bare = {0}, clean = {0}, spaced = {.limit = buffer_bound(s->given)};
    bool fine = buffer_add(&st->bytes, text, length) &&
                cleanup_replace(text, length, op->content.data, op->content.size, "", &bare);
    if (op->cleanup)
        fine = fine && cleanup_english(bare.size ? bare.data : "", bare.size, &clean) &&
               cleanup_replace(clean.size ? clean.data : "", clean.size, op->delimiter.data, op->delimiter.size, " ",
                               &spaced);
    const buffer *result = op->cleanup ? &spaced : &bare;
    fine = fine && (result->size == 0 || pass(s, index + 1, result->data, result->size, true));
    buffer_free(&bare);
    buffer_free(&clean);
    return done_with(s, &spaced, fine);
}

/* Gives a fragment of a token to a stage; ends: the token is complete with it. Fails with err filled, or for want of
 * memory. */
static bool pass(tn_stream *s, size_t index, const char *text, size_t length, bool ends)
{
    const decoder *d = &s->tokenizer->decoder;
    text = length ? text : ""; /* a buffer without bytes has no address */
    if (index == d->count)
        return buffer_add(&s->out, text, length);
    const decode_op *op = &d->ops[index];
    stage *st = &s->stages[index];
    if (op->kind == DECODE_FUSE)
        return pass(s, index + 1, text, length, false);
    if (op->kind == DECODE_STRIP && op->stop <= 0)
        return strip(s, index, text, length, ends);
    if (op->kind == DECODE_METASPACE)
        return metaspace(s, index, text, length, ends);
    /* The others see whole tokens only. */
    if (!ends || st->token.size) {
        if (!buffer_add(&st->token, text, length))
            return false;
        if (!ends)
            return true;
        text = st->token.data;
        length = st->token.size;
    }
    if (length == 0)
        text = "";
    bool fine = true, first = !st->begun;
    switch (op->kind) {
    case DECODE_BYTE_LEVEL:
        fine = byte_level(s, index, text, length);
        break;
    case DECODE_BYTE_FALLBACK:
        fine = byte_fallback(s, index, text, length);
        break;
    case DECODE_REPLACE:
        fine = replace(s, index, text, length);
        break;
    case DECODE_STRIP:
        fine = strip(s, index, text, length, true);
        break;
    case DECODE_JOIN:
        st->begun = true;
        fine = (first || pass(s, index + 1, " ", 1, false)) && pass(s, index + 1, text, length, false);
        break;
    case DECODE_WORDPIECE:
        fine = wordpiece_token(s, index, text, length);
        break;
    case DECODE_BPE:
        fine = bpe_token(s, index, text, length);
        break;
    case DECODE_CTC:
        fine = ctc(s, index, text, length);
        break;
    case DECODE_METASPACE:
    case DECODE_FUSE:
        break;
    }
    st->token.size = 0;
    return fine;
}

/* Ends every stage in order: what it holds back becomes certain now. */
static bool finish(tn_stream *s)
{
    const decoder *d = &s->tokenizer->decoder;
    bool fine = true;
    for (size_t i = 0; i < d->count && fine; i++) {
        if (d->ops[i].kind == DECODE_BYTE_LEVEL)
            fine = pass_characters(s, i, &s->stages[i].bytes, true);
        else if (d->ops[i].kind == DECODE_BYTE_FALLBACK)
            fine = end_byte_run(s, i);
        else if (d->ops[i].kind == DECODE_BPE)
            fine = !s->stages[i].begun || pass_held(s, i, "");
        else if (d->ops[i].kind == DECODE_FUSE || d->ops[i].kind == DECODE_JOIN)
            fine = pass(s, i + 1, "", 0, true);
    }
    return fine;
}

/* Forgets all tokens so far. */
static void restart(tn_stream *s)
{
    s->given = 0;
    for (size_t i = 0; i < s->tokenizer->decoder.count; i++) {
        s->stages[i].token.size = s->stages[i].bytes.size = 0;
        s->stages[i].skip = s->tokenizer->decoder.ops[i].start;
        s->stages[i].begun = false;
    }
}

tn_stream *tn_stream_new(const tn_tokenizer *tokenizer, bool skip_special, tn_error *err)
{
    if (!tokenizer) {
        structs_missing("tokenizer", err);
        return NULL;
    }
    tn_stream *s = calloc(1, sizeof *s);
    size_t count = tokenizer->decoder.count;
    if (s)
        s->stages = calloc(count ? count : 1, sizeof *s->stages);
    if (!s || !s->stages) {
        free(s);
        tn_fail(err, TN_E_MEMORY, tokenizer->path, "out of memory");
        return NULL;
    }
    s->tokenizer = tokenizer;
    s->skip_special = skip_special;
    restart(s);
    return s;
}

void tn_stream_free(tn_stream *stream)
{
    if (!stream)
        return;
    for (size_t i = 0; i < stream->tokenizer->decoder.count; i++) {
        buffer_free(&stream->stages[i].token);
        buffer_free(&stream->stages[i].bytes);
    }
    free(stream->stages);
    buffer_free(&stream->out);
    free(stream);
}

/* Sends one token through the stages. Ids that have no token are passed over, as the library does: models often have
 * more rows than their tokenizer has tokens. */
static bool push(tn_stream *s, int64_t id)
{
    const vocab *v = &s->tokenizer->vocab;
    if (id < 0 || (uint64_t)id >= v->size || !v->tokens[id].present)
        return true;
    const vocab_token *token = &v->tokens[id];
    const added *a = &s->tokenizer->added;
    const added_shown *shown = added_find_shown(a, (uint32_t)id);
    if ((shown ? shown->special : token->special) && s->skip_special)
        return true;
    s->given += shown ? shown->length : token->length;
    if (shown)
        return pass(s, 0, shown->length ? a->shown_text.data + shown->offset : "", shown->length, true);
    return pass(s, 0, token->length ? v->strings.data + token->offset : "", token->length, true);
}

/* Ends a call: the text so far, or NULL. */
static const char *result(tn_stream *s, bool fine, size_t *length, tn_error *err)
{
    fine = fine && buffer_reserve(&s->out, 1);
    s->err = NULL;
    if (!fine) {
        tn_fail(err, TN_E_MEMORY, s->tokenizer->path, "out of memory"); /* unless err already says what it was */
        return NULL;
    }
    s->out.data[s->out.size] = '\0';
    if (length)
        *length = s->out.size;
    return s->out.data;
}

const char *tn_stream_push(tn_stream *stream, int64_t id, size_t *length, tn_error *err)
{
    tn_error own = TN_ERROR_INIT;
    if (!stream) {
        structs_missing("stream", err);
        return NULL;
    }
    stream->err = err ? err : &own;
    stream->out.size = 0;
    return result(stream, push(stream, id), length, err);
}

const char *tn_stream_flush(tn_stream *stream, size_t *length, tn_error *err)
{
    tn_error own = TN_ERROR_INIT;
    if (!stream) {
        structs_missing("stream", err);
        return NULL;
    }
    stream->err = err ? err : &own;
    stream->out.size = 0;
    bool fine = finish(stream);
    restart(stream);
    return result(stream, fine, length, err);
}

tn_status tn_tokenizer_decode(const tn_tokenizer *tokenizer, const int64_t *ids, size_t count, bool skip_special,
                              char **text, size_t *length, tn_error *err)
{
    tn_error own = TN_ERROR_INIT;
    err = err ? err : &own;
    if (!tokenizer || !text || (!ids && count > 0))
        return structs_missing(!tokenizer ? "tokenizer" : !text ? "text" : "ids", err);
    *text = NULL;
    tn_stream *s = tn_stream_new(tokenizer, skip_special, err);
    if (!s)
        return err->code;
    s->err = err;
    bool fine = true;
    for (size_t i = 0; i < count && fine; i++)
        fine = push(s, ids[i]);
    fine = fine && finish(s);
    if (result(s, fine, length, err)) {
        *text = s->out.data;
        s->out = (buffer){0};
    }
    tn_stream_free(s);
    return *text ? TN_OK : err->code;
}
