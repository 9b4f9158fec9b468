/* Inside core/text: the parts of a tokenizer. A text goes through added.c, normalize.c, pretok.c, a model (bpe.c,
 * unigram.c or wordpiece.c) and post.c to become ids, and ids go through decode.c to become text. Lists of small
 * components ("ops") are flattened from the nested objects of tokenizer.json, so each stage is one loop. Functions that
 * return bool fail only for want of memory; those that return tn_status fill err, which is never NULL here. */
#ifndef TENON_CORE_TEXT_TOKENIZER_H
#define TENON_CORE_TEXT_TOKENIZER_H

#include <tenon/tenon.h>

#include "text/added.h"
#include "text/bpe.h"
#include "text/buffer.h"
#include "text/decode.h"
#include "text/normalize.h"
#include "text/post.h"
#include "text/pretok.h"
#include "text/unigram.h"
#include "text/vocab.h"
#include "text/wordpiece.h"

/* ---- source.c -------------------------------------------------------------------------------------------------- */

/* A whole regular file, unpacked if its name ends in .gz, and a NUL behind it. Owned: free(). NULL: see err. */
char *source_read(const char *path, size_t *size, tn_error *err);

/* ---- sentencepiece.c ------------------------------------------------------------------------------------------- */

/* Appends the tokenizer.json that stands for a SentencePiece model. */
tn_status sentencepiece_convert(const char *data, size_t size, const char *path, buffer *json, tn_error *err);

/* The tokenizer.json of a folder, or the one that stands for a tokenizer of another form. Owned. */
doc *tokenizer_document(const char *path, tn_error *err);

struct tn_tokenizer {
    char *path; /* of the file                                                                    */
    vocab vocab;
    added added;
    normalizer normalizer;
    pretok pretok;
    enum { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORDPIECE } model;
    bpe bpe;
    unigram unigram;
    wordpiece wordpiece;
    post post;
    decoder decoder;
};

#endif
