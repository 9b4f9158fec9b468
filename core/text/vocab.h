/* Inside core/text: tokens and merges. */
#ifndef TENON_CORE_TEXT_VOCAB_H
#define TENON_CORE_TEXT_VOCAB_H

#include <tenon/error.h>

#include "base/siphash.h"
#include "text/buffer.h"
#include "text/doc.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct vocab_token {
    size_t offset;
    uint32_t length;
    bool present, special;
} vocab_token;

typedef struct vocab_merge {
    uint32_t left, right, rank, id; /* left == VOCAB_NONE: a free slot                             */
} vocab_merge;

#define VOCAB_NONE UINT32_MAX
#define VOCAB_LIMIT ((int64_t)1 << 21) /* ids stay below: eight times the largest vocabulary published */

typedef struct vocab {
    buffer strings;
    vocab_token *tokens;   /* by id, the model's and the added ones                             */
    size_t size, capacity; /* size: largest id + 1                                              */
    uint32_t *map;         /* open addressing over the model's tokens                             */
    size_t map_mask;
    vocab_merge *merges;
    size_t merge_mask;
    uint64_t *touching; /* bits, by a hash: characters that stand side by side in what a merge makes */
    siphash_key key;    /* of both tables                                                             */
} vocab;

tn_status vocab_load(vocab *v, const doc_node *model, doc_reader *r);
tn_status vocab_load_tokens(vocab *v, const doc_node *model, doc_reader *r); /* without merges      */
tn_status vocab_map_tokens(vocab *v, doc_reader *r); /* makes all tokens so far findable       */
void vocab_free(vocab *v);
/* Puts an added token under an id. */
tn_status vocab_add(vocab *v, int64_t id, const char *text, size_t length, bool special, doc_reader *r);
uint32_t vocab_find(const vocab *v, const char *text, size_t length); /* among the model's; VOCAB_NONE: absent */
const vocab_merge *vocab_find_merge(const vocab *v, uint32_t left, uint32_t right); /* NULL: they don't merge    */
/* May a merge, or merges of what they become, join two tokens that stand side by side? false is sure. */
bool vocab_may_touch(const vocab *v, uint32_t left, uint32_t right);
/* Checks the range, for ids that stand in the file. */
tn_status vocab_check_id(int64_t id, const char *token, doc_reader *r);

#endif
