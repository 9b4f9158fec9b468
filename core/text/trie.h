/* Inside core/text: a tree of bytes. */
#ifndef TENON_CORE_TEXT_TRIE_H
#define TENON_CORE_TEXT_TRIE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct trie_node {
    uint32_t parent, value;
    unsigned char byte;
} trie_node;

typedef struct trie {
    trie_node *nodes; /* the first is the root                                                  */
    size_t count, capacity;
    uint32_t *slots; /* open addressing: the child of a node by a byte                          */
    size_t mask;
    uint64_t factor; /* of the hash, odd                                                        */
} trie;

#define TRIE_NONE UINT32_MAX
bool trie_put(trie *t, const char *text, size_t length, uint32_t value); /* value replaces an older one  */
uint32_t trie_step(const trie *t, uint32_t node, unsigned char byte);    /* TRIE_NONE: no such child      */
void trie_free(trie *t);

#endif
