/* Inside core/text: reading the protocol buffers of SentencePiece. */
#ifndef TENON_CORE_TEXT_SENTENCEPIECE_H
#define TENON_CORE_TEXT_SENTENCEPIECE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A message, borrowed. Start with at 0. */
typedef struct protobuf {
    const char *data;
    size_t size, at;
    bool broken; /* set when the bytes are no message                                             */
} protobuf;

typedef struct protobuf_field {
    uint32_t number;
    unsigned wire;     /* 0: a varint, 1 and 5: 64 and 32 bits, 2: bytes                        */
    uint64_t value;    /* of all but bytes                                                      */
    const char *bytes; /* of bytes, within the message                                          */
    size_t length;
} protobuf_field;

/* The next field; false at the end and in what is broken. */
bool protobuf_next(protobuf *p, protobuf_field *field);

#endif
