/* Inside core/text: what a file of another form says of a tokenizer, to be written as the tokenizer.json that stands
 * for it. */
#ifndef TENON_CORE_TEXT_CONVERT_H
#define TENON_CORE_TEXT_CONVERT_H

#include "text/buffer.h"
#include "text/vocab.h"

/* SentencePiece's numbers, and GGUF's. */
enum { PIECE_NORMAL = 1, PIECE_UNKNOWN = 2, PIECE_CONTROL = 3, PIECE_USER_DEFINED = 4 };

typedef struct convert {
    const char *path;
    /* Unigram; BPE over characters with U+2581 for spaces; BPE over the characters that stand for bytes. */
    enum { CONVERT_UNIGRAM, CONVERT_CHARACTERS, CONVERT_BYTES } kind;
    vocab vocab;          /* convert_add, then vocab_map_tokens                                       */
    float *scores;        /* of each piece, which say what merges first where no merges are listed        */
    unsigned char *types; /* PIECE_...                                                                */
    size_t score_capacity, type_capacity;
    int64_t unk;           /* -1: none                                                                */
    int64_t front, behind; /* tokens that are put around a text; -1: none                                 */
    bool takes_spaces;     /* most added tokens take the spaces behind them                               */
    bool byte_fallback;    /* of Unigram; BPE over characters always has it                               */
    bool prefix;           /* a space in front of a text                                                */
    bool fewer_spaces;     /* runs of spaces count as one                                               */
    const char *charsmap;  /* borrowed                                                                */
    size_t charsmap_length;
    bool composes;             /* NFC first, of CONVERT_BYTES: and                                      */
    bool ignores_merges;       /* for words that are tokens                                           */
    const char *const *splits; /* expressions that cut words, up to NULL                                  */
    const struct gguf *file;   /* whose array of this key lists the merges                                */
    const char *merges;        /* NULL: none, the scores say                                          */
} convert;

/* The next piece, UTF-8 without NUL. type: PIECE_..., or another, which is a normal one. */
tn_status convert_add(convert *c, const char *text, size_t length, float score, uint64_t type, tn_error *err);
tn_status convert_write(const convert *c, buffer *json, tn_error *err);
void convert_free(convert *c);

#endif
