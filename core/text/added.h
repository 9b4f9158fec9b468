/* Inside core/text: tokens that are cut out of the text before the model sees it. */
#ifndef TENON_CORE_TEXT_ADDED_H
#define TENON_CORE_TEXT_ADDED_H

#include <tenon/error.h>

#include "text/buffer.h"
#include "text/doc.h"
#include "text/normalize.h"
#include "text/spans.h"
#include "text/trie.h"
#include "text/vocab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct added_token {
    uint32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
    const char *content; /* borrowed from the document, while loading                            */
    size_t length;
} added_token;

typedef struct added_node {
    int32_t child, sibling, token; /* indices, -1: none                                           */
    unsigned char byte;
} added_node;

typedef struct added_trie {
    added_node *nodes;
    size_t count, capacity;
    int32_t first[256]; /* node of the first byte, -1: no token begins so                          */
} added_trie;

/* A token that decodes to what the normalizer makes of it. */
typedef struct added_shown {
    uint32_t id;
    bool special;
    size_t offset, length;
} added_shown;

typedef struct added {
    added_token *tokens;
    size_t count, capacity;
    added_trie raw, normalized;
    added_shown *shown; /* by id                                                                  */
    size_t shown_count;
    buffer shown_text;
} added;

tn_status added_load(added *a, const doc_node *node, vocab *v, const normalizer *n, doc_reader *r);
void added_free(added *a);
const added_shown *added_find_shown(const added *a, uint32_t id); /* NULL: decodes to its own text      */
/* Cuts text into p: the longest token at the leftmost place first. */
bool added_split(const added *a, const added_trie *trie, const char *text, size_t length, pieces *p);

#endif
