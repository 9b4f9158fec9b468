/* Inside core/text: the unigram model. */
#ifndef TENON_CORE_TEXT_UNIGRAM_H
#define TENON_CORE_TEXT_UNIGRAM_H

#include <tenon/error.h>

#include "text/bpe.h"
#include "text/doc.h"
#include "text/spans.h"
#include "text/trie.h"
#include "text/vocab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct unigram {
    trie pieces;
    double *scores; /* by id                                                                     */
    double unknown; /* the score of an unknown character                                        */
    uint32_t unk;   /* VOCAB_NONE: none                                                          */
    bool byte_fallback;
    uint32_t bytes[256];
} unigram;

tn_status unigram_load(unigram *u, vocab *v, const doc_node *model, doc_reader *r);
void unigram_free(unigram *u);
tn_status unigram_encode(const unigram *u, const char *text, size_t length, id_list *out, place at, tn_error *err);

#endif
