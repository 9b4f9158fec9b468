/* SentencePiece models (tokenizer.model). */
#include "text/sentencepiece.h"

#include "base/text.h"
#include "text/convert.h"
#include "text/tokenizer.h"

#include <string.h>

enum { MODEL_TYPE_UNIGRAM = 1, MODEL_TYPE_BPE = 2 };

/* What a file holds. Texts are borrowed from it. */
typedef struct spm {
    convert to;
    int64_t model_type, bos, eos;
    bool space_behind; /* of the trainer                                                          */
    bool escape;       /* of the normalizer                                                       */
    bool denormalizes;
} spm;

static tn_status broken(const spm *m, tn_error *err)
{
    return tn_fail(err, TN_E_INPUT, m->to.path, "no SentencePiece model, or only a part of one; fetch it again");
}

static tn_status read_piece(spm *m, const char *data, size_t size, tn_error *err)
{
    protobuf p = {.data = data, .size = size};
    const char *text = "";
    size_t length = 0;
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
    if (!text_is_clean(text, length))
        return tn_fail(err, TN_E_INPUT, m->to.path, "piece %zu is not UTF-8, or holds a NUL; fetch it again",
                       m->to.vocab.size);
    return convert_add(&m->to, text, length, score, type, err);
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
            m->to.byte_fallback = number != 0;
            break;
        case 40:
            m->to.unk = number;
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
            m->to.charsmap = f.bytes;
            m->to.charsmap_length = f.length;
        } else if (f.wire == 0 && f.number >= 3 && f.number <= 5) {
            *(f.number == 3 ? &m->to.prefix : f.number == 4 ? &m->to.fewer_spaces : &m->escape) = f.value != 0;
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
    return status == TN_OK && (p.broken || !fine || m->to.vocab.size == 0) ? broken(m, err) : status;
}

/* What the tokenizer.json could not say. */
static tn_status check(const spm *m, tn_error *err)
{
    const char *what = NULL;
    if (m->model_type != MODEL_TYPE_UNIGRAM && m->model_type != MODEL_TYPE_BPE)
        return tn_fail(err, TN_E_INPUT, m->to.path,
                       "model_type %lld of SentencePiece is not supported; supported are unigram (1) and bpe (2)",
                       (long long)m->model_type);
    if (m->to.unk < 0 || (uint64_t)m->to.unk >= m->to.vocab.size)
        return tn_fail(err, TN_E_INPUT, m->to.path, "unk_id %lld is no piece; fetch it again", (long long)m->to.unk);
    if (m->bos >= (int64_t)m->to.vocab.size || m->eos >= (int64_t)m->to.vocab.size)
        return tn_fail(err, TN_E_INPUT, m->to.path, "bos_id or eos_id is no piece; fetch it again");
    if (m->space_behind)
        what = "treat_whitespace_as_suffix";
    else if (!m->escape)
        what = "escape_whitespaces = false";
    else if (m->denormalizes)
        what = "denormalizer_spec";
    return what ? tn_fail(err, TN_E_INPUT, m->to.path, "%s is not supported; use another model", what) : TN_OK;
}

tn_status sentencepiece_convert(const char *data, size_t size, const char *path, buffer *json, tn_error *err)
{
    /* The defaults of the format. */
    spm m = {.to = {.path = path, .front = -1, .behind = -1, .prefix = true, .fewer_spaces = true},
             .model_type = MODEL_TYPE_UNIGRAM,
             .bos = 1,
             .eos = 2,
             .escape = true};
    tn_status status = read_model(&m, data, size, err);
    if (status == TN_OK)
        status = check(&m, err);
    if (status == TN_OK)
        status = vocab_map_tokens(&m.to.vocab, &(doc_reader){{path, "pieces"}, err, TN_OK});
    /* Llama puts a token in front, T5 one behind. */
    m.to.kind = m.model_type == MODEL_TYPE_BPE ? CONVERT_CHARACTERS : CONVERT_UNIGRAM;
    *(m.to.kind == CONVERT_CHARACTERS ? &m.to.front : &m.to.behind) = m.to.kind == CONVERT_CHARACTERS ? m.bos : m.eos;
    if (status == TN_OK)
        status = convert_write(&m.to, json, err);
    convert_free(&m.to);
    return status;
}
