/* Inside core/text: from ids to text; cleanup.c: what two decoders do to the text of a token. */
#ifndef TENON_CORE_TEXT_DECODE_H
#define TENON_CORE_TEXT_DECODE_H

#include <tenon/error.h>

#include "text/buffer.h"
#include "text/doc.h"
#include "text/regex.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct decode_op {
    enum {
        DECODE_BYTE_LEVEL,
        DECODE_BYTE_FALLBACK,
        DECODE_FUSE,
        DECODE_REPLACE,
        DECODE_STRIP,
        DECODE_METASPACE,
        DECODE_WORDPIECE,
        DECODE_BPE,
        DECODE_CTC,
        DECODE_JOIN
    } kind;
    regex *pattern;
    buffer content; /* also METASPACE's character, WORDPIECE's prefix, BPE's suffix, CTC's padding    */
    buffer delimiter;
    int64_t start, stop;
    bool cleanup; /* METASPACE: the first token loses the characters                              */
} decode_op;

typedef struct decoder {
    decode_op *ops;
    size_t count, capacity;
} decoder;

tn_status decode_load(decoder *d, const doc_node *node, doc_reader *r);
void decode_free(decoder *d);

/* A byte-level token: the bytes that its characters stand for, or its own when one of them stands for none, behind
 * bytes. false: no memory. */
bool decode_byte_level(const char *text, size_t length, buffer *bytes);

/* The byte that a token like <0x0A> stands for; -1: it is none. */
int decode_fallback(const char *text, size_t length);

/* cleanup.c: what two decoders do to the text of a token. Both append to out. */
bool cleanup_replace(const char *text, size_t length, const char *from, size_t from_length, const char *to,
                     buffer *out);
bool cleanup_english(const char *text, size_t length, buffer *out);

#endif
