/* SentencePiece models (tokenizer.model). What they hold is written as the tokenizer.json that the converters of
 * transformers make of them (the one for Llama for BPE, the one for T5 for Unigram), so that one reader serves both.
 * The converters pass over what a normalizer does beyond what those two ask for; here it is written, too. */
#include "text/sentencepiece.h"

#include "text/bpe.h"
#include "text/buffer.h"
#include "text/doc.h"
#include "text/normalize.h"
#include "text/tokenizer.h"
#include "text/utf8.h"
#include "text/vocab.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPACE "\xe2\x96\x81" /* U+2581, which stands for a space in pieces */

enum { MODEL_TYPE_UNIGRAM = 1, MODEL_TYPE_BPE = 2 };
enum { PIECE_UNKNOWN = 2, PIECE_CONTROL = 3, PIECE_USER_DEFINED = 4 };

/* What a file holds. Texts are borrowed from it; pieces are in the vocabulary. */
typedef struct spm {
    const char *path;
    vocab vocab;
    float *scores;
    unsigned char *types;
    size_t score_capacity, type_capacity;
    int64_t model_type, unk, bos, eos;
    bool byte_fallback, space_behind;  /* of the trainer                                 */
    bool prefix, fewer_spaces, escape; /* of the normalizer                              */
    const char *charsmap;
    size_t charsmap_length;
    bool denormalizes;
} spm;

static tn_status broken(const spm *m, tn_error *err)
{
    return tn_fail(err, TN_E_INPUT, m->path, "no SentencePiece model, or only a part of one; fetch it again");
}

static tn_status read_piece(spm *m, const char *data, size_t size, tn_error *err)
{
    protobuf p = {.data = data, .size = size};
    const char *text = "";
    size_t length = 0, id = m->vocab.size;
    float score = 0;
    uint64_t type = 1;
    for (protobuf_field f; protobuf_next(&p, &f);) {
        if (f.number == 1 && f.wire == 2) {
            text = f.bytes;
            length = f.length;
        } else if (f.number == 2 && f.wire == 5) {
            uint32_t bits = (uint32_t)f.value;
            memcpy(&score, &bits, sizeof score);
        } else if (f.number == 3 && f.wire == 0) {
            type = f.value;
        }
    }
    if (p.broken)
        return broken(m, err);
    for (size_t i = 0, n; i < length; i += n) {
        utf8_char c = utf8_read(text + i, length - i);
        if (c.code <= 0)
            return tn_fail(err, TN_E_INPUT, m->path, "piece %zu is not UTF-8, or holds a NUL; fetch it again", id);
        n = c.length;
    }
    if (!isfinite(score))
        return tn_fail(err, TN_E_INPUT, m->path, "the score of piece %zu is no number; fetch it again", id);
    float *scores = buffer_grow(m->scores, &m->score_capacity, id + 1, sizeof *scores);
    m->scores = scores ? scores : m->scores;
    unsigned char *types = buffer_grow(m->types, &m->type_capacity, id + 1, 1);
    m->types = types ? types : m->types;
    if (!scores || !types)
        return tn_fail(err, TN_E_MEMORY, m->path, "out of memory");
    scores[id] = score;
    types[id] = type < 16 ? (unsigned char)type : 1;
    doc_reader r = {{m->path, "pieces"}, err, TN_OK};
    return vocab_add(&m->vocab, (int64_t)id, text, length, false, &r);
}

static bool read_trainer(spm *m, const char *data, size_t size)
{
    protobuf p = {.data = data, .size = size};
    for (protobuf_field f; protobuf_next(&p, &f);) {
        int64_t number = (int32_t)(uint32_t)f.value; /* negative ones are written with 64 bits */
        if (f.wire != 0)
            continue;
        switch (f.number) {
        case 3:
            m->model_type = number;
            break;
        case 24:
            m->space_behind = number != 0;
            break;
        case 35:
            m->byte_fallback = number != 0;
            break;
        case 40:
            m->unk = number;
            break;
        case 41:
            m->bos = number;
            break;
        case 42:
            m->eos = number;
            break;
        default:
            break;
        }
    }
    return !p.broken;
}

static bool read_normalizer(spm *m, const char *data, size_t size)
{
    protobuf p = {.data = data, .size = size};
    for (protobuf_field f; protobuf_next(&p, &f);) {
        if (f.number == 2 && f.wire == 2) {
            m->charsmap = f.bytes;
            m->charsmap_length = f.length;
        } else if (f.wire == 0 && f.number >= 3 && f.number <= 5) {
            *(f.number == 3 ? &m->prefix : f.number == 4 ? &m->fewer_spaces : &m->escape) = f.value != 0;
        }
    }
    return !p.broken;
}

/* Does the message hold a character map? */
static bool read_denormalizer(spm *m, const char *data, size_t size)
{
    protobuf p = {.data = data, .size = size};
    for (protobuf_field f; protobuf_next(&p, &f);)
        m->denormalizes = m->denormalizes || (f.number == 2 && f.length > 0);
    return !p.broken;
}

static tn_status read_model(spm *m, const char *data, size_t size, tn_error *err)
{
    protobuf p = {.data = data, .size = size};
    tn_status status = TN_OK;
    bool fine = true;
    for (protobuf_field f; status == TN_OK && fine && protobuf_next(&p, &f);) {
        if (f.wire != 2)
            continue;
        if (f.number == 1)
            status = read_piece(m, f.bytes, f.length, err);
        else if (f.number == 2)
            fine = read_trainer(m, f.bytes, f.length);
        else if (f.number == 3)
            fine = read_normalizer(m, f.bytes, f.length);
        else if (f.number == 5)
            fine = read_denormalizer(m, f.bytes, f.length);
    }
    return status == TN_OK && (p.broken || !fine || m->vocab.size == 0) ? broken(m, err) : status;
}

/* What the tokenizer.json could not say. */
static tn_status check(const spm *m, tn_error *err)
{
    const char *what = NULL;
    if (m->model_type != MODEL_TYPE_UNIGRAM && m->model_type != MODEL_TYPE_BPE)
        return tn_fail(err, TN_E_INPUT, m->path,
                       "model_type %lld of SentencePiece is not supported; supported are unigram (1) and bpe (2)",
                       (long long)m->model_type);
    if (m->unk < 0 || (uint64_t)m->unk >= m->vocab.size)
        return tn_fail(err, TN_E_INPUT, m->path, "unk_id %lld is no piece; fetch it again", (long long)m->unk);
    if (m->bos >= (int64_t)m->vocab.size || m->eos >= (int64_t)m->vocab.size)
        return tn_fail(err, TN_E_INPUT, m->path, "bos_id or eos_id is no piece; fetch it again");
    if (m->space_behind)
        what = "treat_whitespace_as_suffix";
    else if (!m->escape)
        what = "escape_whitespaces = false";
    else if (m->denormalizes)
        what = "denormalizer_spec";
    return what ? tn_fail(err, TN_E_INPUT, m->path, "%s is not supported; use another model", what) : TN_OK;
}

/* ---- writing ----------------------------------------------------------------------------------- */

/* Appends JSON. The last of these to fail leaves b->full or no memory, which the caller asks for once. */
static bool put(buffer *b, const char *text)
{
    return buffer_add(b, text, strlen(text));
}

static bool put_string(buffer *b, const char *text, size_t length)
{
    bool fine = put(b, "\"");
    for (size_t i = 0; i < length && fine; i++) {
        char escaped[8];
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\') {
            fine = buffer_add(b, text + i, 1);
            continue;
        }
        snprintf(escaped, sizeof escaped, "\\u%04x", c);
        fine = put(b, escaped);
    }
    return fine && put(b, "\"");
}

static bool put_piece(buffer *b, const vocab *v, size_t id)
{
    const vocab_token *t = &v->tokens[id];
    return put_string(b, t->length ? v->strings.data + t->offset : "", t->length);
}

static bool put_integer(buffer *b, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return put(b, text);
}

static bool put_number(buffer *b, double value)
{
    char text[40];
    snprintf(text, sizeof text, "%.17g", value);
    for (char *c = text; *c; c++)
        if (*c == ',') /* some locales write it for the point */
            *c = '.';
    return put(b, text);
}

static bool put_base64(buffer *b, const char *data, size_t size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bool fine = put(b, "\"");
    for (size_t i = 0; i < size && fine; i += 3) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; k++)
            bits = bits << 8 | (i + k < size ? (unsigned char)data[i + k] : 0);
        char four[4];
        for (size_t k = 0; k < 4; k++)
            four[k] = i + k <= size ? digits[bits >> (18 - 6 * k) & 63] : '=';
        fine = buffer_add(b, four, 4);
    }
    return fine && put(b, "\"");
}

/* Control symbols are special added tokens, and so is the unknown one; those of users are ordinary ones. */
static bool put_added(buffer *b, const spm *m)
{
    bool fine = put(b, "\"added_tokens\":["), first = true;
    for (size_t i = 0; i < m->vocab.size && fine; i++) {
        bool special = m->types[i] == PIECE_CONTROL || m->types[i] == PIECE_UNKNOWN;
        if (!special && m->types[i] != PIECE_USER_DEFINED)
            continue;
        fine = put(b, first ? "{\"id\":" : ",{\"id\":") && put_integer(b, (int64_t)i) && put(b, ",\"content\":") &&
               put_piece(b, &m->vocab, i) && put(b, ",\"normalized\":false,\"special\":") &&
               put(b, special ? "true}" : "false}");
        first = false;
    }
    return fine && put(b, "]");
}

/* Are spaces handled as T5's converter does it, by a pre-tokenizer? Only with the settings of T5's model does that
 * agree with SentencePiece; otherwise normalizers do all of it, as for Llama. */
static bool is_like_t5(const spm *m)
{
    return m->model_type == MODEL_TYPE_UNIGRAM && m->fewer_spaces && m->prefix;
}

static bool put_normalizer(buffer *b, const spm *m)
{
    bool t5 = is_like_t5(m);
    bool fine = put(b, ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    if (m->charsmap_length)
        fine = fine && put(b, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":") &&
               put_base64(b, m->charsmap, m->charsmap_length) && put(b, "},");
    if (t5)
        fine = fine && put(b, "{\"type\":\"Strip\",\"strip_left\":false,\"strip_right\":true},"
                              "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\"" SPACE "\"}");
    if (m->fewer_spaces && !t5)
        fine = fine && put(b, "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\A +| +\\\\z\"},\"content\":\"\"},"
                              "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"},");
    if (m->prefix && !t5)
        fine = fine && put(b, "{\"type\":\"Prepend\",\"prepend\":\"" SPACE "\"},");
    if (!t5)
        fine = fine && put(b, "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" SPACE "\"}");
    return fine && put(b, "]}");
}

static bool put_metaspace(buffer *b)
{
    return put(b,
               "{\"type\":\"Metaspace\",\"replacement\":\"" SPACE "\",\"split\":true,\"prepend_scheme\":\"always\"}");
}

static bool put_pre_tokenizer(buffer *b, const spm *m)
{
    return !is_like_t5(m) || (put(b, ",\"pre_tokenizer\":") && put_metaspace(b));
}

static bool put_decoder(buffer *b, const spm *m)
{
    if (is_like_t5(m) && !m->byte_fallback)
        return put(b, ",\"decoder\":") && put_metaspace(b);
    return put(b, ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
                  "\"" SPACE "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}") &&
           put(b, m->prefix ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}" : "]}");
}

/* Llama puts a token in front, T5 one behind. */
static bool put_post_processor(buffer *b, const spm *m)
{
    bool bpe = m->model_type == MODEL_TYPE_BPE;
    int64_t id = bpe ? m->bos : m->eos;
    if (id < 0)
        return true;
    bool fine = put(b, ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[");
    for (int i = 0; i < 2 && fine; i++) {
        if (i == (bpe ? 0 : 1))
            fine = put(b, "{\"SpecialToken\":{\"id\":") && put_piece(b, &m->vocab, (size_t)id) &&
                   put(b, i ? ",\"type_id\":0}}" : ",\"type_id\":0}},");
        else
            fine = put(b, i ? "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
                            : "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},");
    }
    return fine && put(b, "],\"special_tokens\":{") && put_piece(b, &m->vocab, (size_t)id) && put(b, ":{\"id\":") &&
           put_piece(b, &m->vocab, (size_t)id) && put(b, ",\"ids\":[") && put_integer(b, id) &&
           put(b, "],\"tokens\":[") && put_piece(b, &m->vocab, (size_t)id) && put(b, "]}}}");
}

/* ---- merges: a SentencePiece model has none, its scores say which come first ------------------------ */

typedef struct spm_merge {
    float score;
    uint32_t whole, left, right, left_length, right_length; /* ids, and characters                   */
} spm_merge;

/* Better pieces first; of one piece the ways with the longer left part, then with the lower ids. */
static int by_rank(const void *a, const void *b)
{
    const spm_merge *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->left_length != y->left_length)
        return x->left_length > y->left_length ? -1 : 1;
    if (x->right_length != y->right_length)
        return x->right_length > y->right_length ? -1 : 1;
    if (x->whole != y->whole)
        return x->whole < y->whole ? -1 : 1;
    if (x->left != y->left)
        return x->left < y->left ? -1 : 1;
    return x->right < y->right ? -1 : x->right > y->right;
}

/* All ways to put a piece together from two others. */
static bool add_merges(const spm *m, size_t id, spm_merge **merges, size_t *count, size_t *capacity)
{
    const vocab_token *t = &m->vocab.tokens[id];
    const char *text = t->length ? m->vocab.strings.data + t->offset : "";
    uint32_t characters = 0, before = 0;
    for (size_t i = 0; i < t->length; i += utf8_read(text + i, t->length - i).length)
        characters++;
    for (size_t i = 0; i < t->length; i += utf8_read(text + i, t->length - i).length, before++) {
        uint32_t left = i ? vocab_find(&m->vocab, text, i) : VOCAB_NONE;
        uint32_t right = left == VOCAB_NONE ? VOCAB_NONE : vocab_find(&m->vocab, text + i, t->length - i);
        if (right == VOCAB_NONE)
            continue;
        spm_merge *grown = buffer_grow(*merges, capacity, *count + 1, sizeof *grown);
        if (!grown)
            return false;
        *merges = grown;
        float score = id < 3 ? 0 : m->scores[id]; /* as the converter has it: its first three pieces are special */
        grown[(*count)++] = (spm_merge){score, (uint32_t)id, left, right, before, characters - before};
    }
    return true;
}

static bool put_merges(buffer *b, const spm *m)
{
    spm_merge *merges = NULL;
    size_t count = 0, capacity = 0;
    bool fine = put(b, ",\"merges\":[");
    for (size_t i = 0; i < m->vocab.size && fine; i++)
        fine = add_merges(m, i, &merges, &count, &capacity);
    if (count)
        qsort(merges, count, sizeof *merges, by_rank);
    for (size_t i = 0; i < count && fine; i++)
        fine = put(b, i ? ",[" : "[") && put_piece(b, &m->vocab, merges[i].left) && put(b, ",") &&
               put_piece(b, &m->vocab, merges[i].right) && put(b, "]");
    free(merges);
    return fine && put(b, "]");
}

static bool put_model(buffer *b, const spm *m)
{
    bool bpe = m->model_type == MODEL_TYPE_BPE;
    bool fine = put(b, bpe ? ",\"model\":{\"type\":\"BPE\",\"fuse_unk\":true,\"byte_fallback\":true,\"unk_token\":"
                           : ",\"model\":{\"type\":\"Unigram\",\"unk_id\":");
    fine = fine && (bpe ? put_piece(b, &m->vocab, (size_t)m->unk) : put_integer(b, m->unk));
    if (!bpe)
        fine = fine && put(b, m->byte_fallback ? ",\"byte_fallback\":true" : ",\"byte_fallback\":false");
    fine = fine && put(b, bpe ? ",\"vocab\":{" : ",\"vocab\":[");
    for (size_t i = 0; i < m->vocab.size && fine; i++) {
        fine = (i == 0 || put(b, ",")) && (bpe || put(b, "[")) && put_piece(b, &m->vocab, i) && put(b, bpe ? ":" : ",");
        fine = fine && (bpe ? put_integer(b, (int64_t)i) : put_number(b, m->scores[i]) && put(b, "]"));
    }
    return fine && put(b, bpe ? "}" : "]") && (!bpe || put_merges(b, m)) && put(b, "}");
}

tn_status sentencepiece_convert(const char *data, size_t size, const char *path, buffer *json, tn_error *err)
{
    spm m = {.path = path,
             .model_type = MODEL_TYPE_UNIGRAM,
             .bos = 1,
             .eos = 2, /* the defaults of the format */
             .prefix = true,
             .fewer_spaces = true,
             .escape = true};
    tn_status status = read_model(&m, data, size, err);
    if (status == TN_OK)
        status = check(&m, err);
    if (status == TN_OK)
        status = vocab_map_tokens(&m.vocab, &(doc_reader){{path, "pieces"}, err, TN_OK});
    if (status == TN_OK && !(put(json, "{\"version\":\"1.0\",") && put_added(json, &m) && put_normalizer(json, &m) &&
                             put_pre_tokenizer(json, &m) && put_decoder(json, &m) && put_post_processor(json, &m) &&
                             put_model(json, &m) && put(json, "}")))
        status = buffer_failed(json, (place){path, "pieces"}, err);
    vocab_free(&m.vocab);
    free(m.scores);
    free(m.types);
    return status;
}
