/* Inside core/text: WordPiece and WordLevel. */
#ifndef TENON_CORE_TEXT_WORDPIECE_H
#define TENON_CORE_TEXT_WORDPIECE_H

#include <tenon/error.h>

#include "text/bpe.h"
#include "text/doc.h"
#include "text/trie.h"
#include "text/vocab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct wordpiece {
    trie starts, continued; /* tokens, and those that begin with the prefix, without it             */
    int64_t longest;        /* characters of a word that is looked at                               */
    uint32_t unk;           /* VOCAB_NONE: none                                                     */
    bool whole;             /* WordLevel: words only                                                */
} wordpiece;

tn_status wordpiece_load(wordpiece *w, vocab *v, const doc_node *model, bool whole, doc_reader *r);
void wordpiece_free(wordpiece *w);
tn_status wordpiece_encode(const wordpiece *w, const vocab *v, const char *word, size_t length, id_list *out, place at,
                           tn_error *err);

#endif
