/* Inside core/text: byte pair encoding, and lists of ids. */
#ifndef TENON_CORE_TEXT_BPE_H
#define TENON_CORE_TEXT_BPE_H

#include <tenon/error.h>

#include "text/buffer.h"
#include "text/doc.h"
#include "text/spans.h"
#include "text/vocab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct id_list {
    int64_t *ids;
    size_t count, capacity;
} id_list;

bool buffer_add_id(id_list *list, int64_t id);
bool buffer_repeat_ids(id_list *list, size_t first, size_t count); /* appends some of its own            */

typedef struct bpe {
    buffer prefix, suffix; /* of characters inside a word, and of its last one                      */
    bool ignore_merges, byte_fallback, fuse_unk;
    uint32_t unk;             /* VOCAB_NONE: none                                                             */
    uint32_t bytes[256];      /* ids of "<0x00>" and so on, for byte_fallback                     */
    uint32_t characters[256]; /* ids of the characters that stand for bytes (pretok_byte_char)  */
    bool short_words;         /* bpe.c may merge short words without a heap                     */
} bpe;

typedef struct bpe_scratch bpe_scratch;

tn_status bpe_load(bpe *b, const doc_node *model, const vocab *v, doc_reader *r);
void bpe_free(bpe *b);
/* Scratch for one encoding. Owned. */
bpe_scratch *bpe_scratch_new(void);
void bpe_scratch_free(bpe_scratch *s);
bool bpe_encode(const bpe *b, const vocab *v, const char *word, size_t length, bpe_scratch *s, id_list *out);
/* All pieces of a text. bytes: they have not become the characters of a byte-level vocabulary yet. */
bool bpe_encode_pieces(const bpe *b, const vocab *v, const pieces *p, bool bytes, id_list *out);

#endif
