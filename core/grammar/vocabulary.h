/* Inside core/grammar: the bytes of a vocabulary's tokens, as a tree in the order of walking it. */
#ifndef TENON_CORE_VOCABULARY_H
#define TENON_CORE_VOCABULARY_H

#include <tenon/grammar.h>

/* One byte behind those of the nodes above it. */
typedef struct vocabulary_node {
    uint32_t skip;  /* the node behind all that begin so                                                  */
    uint32_t token; /* the first id that ends here, more by `same`; VOCABULARY_NONE: none                 */
    uint16_t depth;
    uint8_t byte;
} vocabulary_node;

#define VOCABULARY_NONE UINT32_MAX

typedef struct vocabulary_tree {
    vocabulary_node *nodes;
    size_t count;
} vocabulary_tree;

struct tn_vocabulary {
    int64_t size; /* ids                                                                                   */
    size_t words;
    char *bytes;
    size_t *offsets; /* [size + 1]; without bytes: never allowed                                            */
    uint32_t *same;  /* [size] the next id of the same bytes                                                */
    size_t longest;
    vocabulary_tree all, rest; /* rest: without plain tokens                                                 */
    /* Plain tokens are whole characters that stand for themselves in a JSON string, by how many they are. */
    uint64_t *plain;        /* a mask of them                                                                 */
    uint32_t *plain_order;  /* [plain_count] by their characters, fewest first                                */
    uint32_t *plain_length; /* [plain_count] of these                                                        */
    size_t plain_count;
    uint64_t *ends; /* a mask                                                                                */
};

static inline bool vocabulary_has(const uint64_t *bits, int64_t id)
{
    return bits[id / 64] >> (id % 64) & 1;
}

static inline void vocabulary_set(uint64_t *bits, int64_t id)
{
    bits[id / 64] |= UINT64_C(1) << (id % 64);
}

/* Puts plain tokens of at most so many characters into bits. */
void vocabulary_add_plain(const tn_vocabulary *v, uint64_t *bits, uint32_t characters);

#endif
