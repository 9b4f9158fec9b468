/* The tokenizer.json that stands for a tokenizer of another form: as the converters of transformers write it (for
 * SentencePiece the one for Llama for BPE, the one for T5 for Unigram), so that one reader serves all. The converters
 * pass over what a normalizer does beyond what those two ask for; here it is written, too. */
#include "text/convert.h"

#include "base/gguf.h"
#include "text/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPACE "\xe2\x96\x81" /* U+2581, which stands for a space in pieces */

tn_status convert_add(convert *c, const char *text, size_t length, float score, uint64_t type, tn_error *err)
{
    size_t id = c->vocab.size;
    if (!isfinite(score))
        return tn_fail(err, TN_E_INPUT, c->path, "the score of piece %zu is no number; fetch it again", id);
    float *scores = buffer_grow(c->scores, &c->score_capacity, id + 1, sizeof *scores);
    c->scores = scores ? scores : c->scores;
    unsigned char *types = buffer_grow(c->types, &c->type_capacity, id + 1, 1);
    c->types = types ? types : c->types;
    if (!scores || !types)
        return tn_fail(err, TN_E_MEMORY, c->path, "out of memory");
    scores[id] = score;
    types[id] = type < 16 ? (unsigned char)type : PIECE_NORMAL;
    return vocab_add(&c->vocab, (int64_t)id, text, length, false, &(doc_reader){{c->path, "pieces"}, err, TN_OK});
}

void convert_free(convert *c)
{
    vocab_free(&c->vocab);
    free(c->scores);
    free(c->types);
}

/* ---- writing ----------------------------------------------------------------------------------- */

/* Appends JSON. The last of these to fail leaves b->full or no memory, which the caller asks for once. */
static bool put(buffer *b, const char *text)
{
    return buffer_add(b, text, strlen(text));
}

static bool is_plain(unsigned char byte)
{
    return byte >= 0x20 && byte != '"' && byte != '\\';
}

static bool put_string(buffer *b, const char *text, size_t length)
{
    bool fine = put(b, "\"");
    for (size_t i = 0, n; i < length && fine; i += n) {
        char escaped[8];
        for (n = 0; i + n < length && is_plain((unsigned char)text[i + n]); n++)
            ;
        if (n > 0) {
            fine = buffer_add(b, text + i, n);
            continue;
        }
        snprintf(escaped, sizeof escaped, "\\u%04x", (unsigned char)text[i]);
        fine = put(b, escaped);
        n = 1;
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

/* Does it take the spaces behind it? */
static bool takes_spaces(const convert *c, size_t id)
{
    static const char *const others[] = {"<unk>", "<s>", "<|endoftext|>"};
    bool other = !c->takes_spaces;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        other = other || vocab_find(&c->vocab, others[i], strlen(others[i])) == id;
    return !other;
}

/* Control symbols are special added tokens, and so is the unknown one; those of users are ordinary ones. */
static bool put_added(buffer *b, const convert *c)
{
    bool fine = put(b, "\"added_tokens\":["), first = true;
    for (size_t i = 0; i < c->vocab.size && fine; i++) {
        bool special = c->types[i] == PIECE_CONTROL || c->types[i] == PIECE_UNKNOWN;
        if (!special && c->types[i] != PIECE_USER_DEFINED)
            continue;
        fine = put(b, first ? "{\"id\":" : ",{\"id\":") && put_integer(b, (int64_t)i) && put(b, ",\"content\":") &&
               put_piece(b, &c->vocab, i) && put(b, takes_spaces(c, i) ? ",\"rstrip\":true" : "") &&
               put(b, ",\"normalized\":false,\"special\":") && put(b, special ? "true}" : "false}");
        first = false;
    }
    return fine && put(b, "]");
}

/* Are spaces handled as T5's converter does it, by a pre-tokenizer? Only with the settings of T5's model does that
 * agree with SentencePiece; otherwise normalizers do all of it, as for Llama. */
static bool is_like_t5(const convert *c)
{
    return c->kind == CONVERT_UNIGRAM && c->fewer_spaces && c->prefix;
}

static bool put_normalizer(buffer *b, const convert *c)
{
    bool t5 = is_like_t5(c);
    if (c->kind == CONVERT_BYTES)
        return !c->composes || put(b, ",\"normalizer\":{\"type\":\"NFC\"}");
    bool fine = put(b, ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    if (c->charsmap_length)
        fine = fine && put(b, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":") &&
               put_base64(b, c->charsmap, c->charsmap_length) && put(b, "},");
    if (t5)
        fine = fine && put(b, "{\"type\":\"Strip\",\"strip_left\":false,\"strip_right\":true},"
                              "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\"" SPACE "\"}");
    if (c->fewer_spaces && !t5)
        fine = fine && put(b, "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\A +| +\\\\z\"},\"content\":\"\"},"
                              "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"},");
    if (c->prefix && !t5)
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

/* Words of a byte-level vocabulary: cut by each expression in turn, then bytes become characters. */
static bool put_splits(buffer *b, const char *const *splits)
{
    bool fine = put(b, "{\"type\":\"Sequence\",\"pretokenizers\":[");
    for (; *splits && fine; splits++)
        fine = put(b, "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":") &&
               put_string(b, *splits, strlen(*splits)) && put(b, "}},");
    return fine && put(b, "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}");
}

static bool put_pre_tokenizer(buffer *b, const convert *c)
{
    if (!is_like_t5(c) && c->kind != CONVERT_BYTES)
        return true;
    return put(b, ",\"pre_tokenizer\":") && (c->kind == CONVERT_BYTES ? put_splits(b, c->splits) : put_metaspace(b));
}

static bool put_decoder(buffer *b, const convert *c)
{
    if (c->kind == CONVERT_BYTES)
        return put(b, ",\"decoder\":{\"type\":\"ByteLevel\"}");
    if (is_like_t5(c) && !c->byte_fallback)
        return put(b, ",\"decoder\":") && put_metaspace(b);
    return put(b, ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
                  "\"" SPACE "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}") &&
           put(b, c->prefix ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}" : "]}");
}

static bool put_special(buffer *b, const convert *c, int64_t id)
{
    return put(b, "{\"SpecialToken\":{\"id\":") && put_piece(b, &c->vocab, (size_t)id) && put(b, ",\"type_id\":0}}");
}

static bool put_special_id(buffer *b, const convert *c, int64_t id)
{
    return put_piece(b, &c->vocab, (size_t)id) && put(b, ":{\"id\":") && put_piece(b, &c->vocab, (size_t)id) &&
           put(b, ",\"ids\":[") && put_integer(b, id) && put(b, "],\"tokens\":[") &&
           put_piece(b, &c->vocab, (size_t)id) && put(b, "]}");
}

static bool put_post_processor(buffer *b, const convert *c)
{
    bool both = c->front >= 0 && c->behind >= 0 && c->front != c->behind;
    if (c->front < 0 && c->behind < 0)
        return true;
    return put(b, ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[") &&
           (c->front < 0 || (put_special(b, c, c->front) && put(b, ","))) &&
           put(b, "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}") &&
           (c->behind < 0 || (put(b, ",") && put_special(b, c, c->behind))) && put(b, "],\"special_tokens\":{") &&
           put_special_id(b, c, c->front >= 0 ? c->front : c->behind) &&
           (!both || (put(b, ",") && put_special_id(b, c, c->behind))) && put(b, "}}");
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
static bool add_merges(const convert *c, size_t id, spm_merge **merges, size_t *count, size_t *capacity)
{
    const vocab_token *t = &c->vocab.tokens[id];
    const char *text = t->length ? c->vocab.strings.data + t->offset : "";
    uint32_t characters = 0, before = 0;
    for (size_t i = 0; i < t->length; i += utf8_read(text + i, t->length - i).length)
        characters++;
    for (size_t i = 0; i < t->length; i += utf8_read(text + i, t->length - i).length, before++) {
        uint32_t left = i ? vocab_find(&c->vocab, text, i) : VOCAB_NONE;
        uint32_t right = left == VOCAB_NONE ? VOCAB_NONE : vocab_find(&c->vocab, text + i, t->length - i);
        if (right == VOCAB_NONE)
            continue;
        spm_merge *grown = buffer_grow(*merges, capacity, *count + 1, sizeof *grown);
        if (!grown)
            return false;
        *merges = grown;
        float score = id < 3 ? 0 : c->scores[id]; /* as the converter has it: its first three pieces are special */
        grown[(*count)++] = (spm_merge){score, (uint32_t)id, left, right, before, characters - before};
    }
    return true;
}

static bool put_scored_merges(buffer *b, const convert *c)
{
    spm_merge *merges = NULL;
    size_t count = 0, capacity = 0;
    bool fine = true;
    for (size_t i = 0; i < c->vocab.size && fine; i++)
        fine = add_merges(c, i, &merges, &count, &capacity);
    if (count)
        qsort(merges, count, sizeof *merges, by_rank);
    for (size_t i = 0; i < count && fine; i++)
        fine = put(b, i ? ",[" : "[") && put_piece(b, &c->vocab, merges[i].left) && put(b, ",") &&
               put_piece(b, &c->vocab, merges[i].right) && put(b, "]");
    free(merges);
    return fine;
}

/* A merge is "a b": the first space behind the first character is none of a's, which may begin with one. */
static bool put_listed_merges(buffer *b, const convert *c)
{
    bool fine = true;
    size_t length;
    const char *text;
    for (int64_t i = 0; fine && (text = gguf_array_text(c->file, c->merges, i, &length)); i++) {
        const char *space = length > 1 ? memchr(text + 1, ' ', length - 1) : NULL;
        size_t left = space ? (size_t)(space - text) : length;
        fine = put(b, i ? ",[" : "[") && put_string(b, text, left) && put(b, ",") &&
               put_string(b, space ? space + 1 : "", space ? length - left - 1 : 0) && put(b, "]");
    }
    return fine;
}

static bool put_merges(buffer *b, const convert *c)
{
    return put(b, ",\"merges\":[") && (c->merges ? put_listed_merges(b, c) : put_scored_merges(b, c)) && put(b, "]");
}

static bool put_model_start(buffer *b, const convert *c)
{
    if (c->kind == CONVERT_BYTES)
        return put(b, c->ignores_merges ? "\"BPE\",\"ignore_merges\":true" : "\"BPE\"");
    if (c->kind == CONVERT_UNIGRAM)
        return put(b, "\"Unigram\",\"unk_id\":") && put_integer(b, c->unk) &&
               put(b, c->byte_fallback ? ",\"byte_fallback\":true" : ",\"byte_fallback\":false");
    return put(b, "\"BPE\",\"fuse_unk\":true,\"byte_fallback\":true") &&
           (c->unk < 0 || (put(b, ",\"unk_token\":") && put_piece(b, &c->vocab, (size_t)c->unk)));
}

static bool put_model(buffer *b, const convert *c)
{
    bool bpe = c->kind != CONVERT_UNIGRAM;
    bool fine =
        put(b, ",\"model\":{\"type\":") && put_model_start(b, c) && put(b, bpe ? ",\"vocab\":{" : ",\"vocab\":[");
    for (size_t i = 0; i < c->vocab.size && fine; i++) {
        fine = (i == 0 || put(b, ",")) && (bpe || put(b, "[")) && put_piece(b, &c->vocab, i) && put(b, bpe ? ":" : ",");
        fine = fine && (bpe ? put_integer(b, (int64_t)i) : put_number(b, c->scores[i]) && put(b, "]"));
    }
    return fine && put(b, bpe ? "}" : "]") && (!bpe || put_merges(b, c)) && put(b, "}");
}

tn_status convert_write(const convert *c, buffer *json, tn_error *err)
{
    bool fine = put(json, "{\"version\":\"1.0\",") && put_added(json, c) && put_normalizer(json, c) &&
                put_pre_tokenizer(json, c) && put_decoder(json, c) && put_post_processor(json, c) &&
                put_model(json, c) && put(json, "}");
    return fine ? TN_OK : buffer_failed(json, (place){c->path, "pieces"}, err);
}
