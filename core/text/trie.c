/* A tree of bytes: finds all texts of a vocabulary that begin at a place of a text. One hash table holds the children
 * of all nodes. */
#include "text/trie.h"

#include "text/buffer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static size_t slot_of(const trie *t, uint32_t node, unsigned char byte)
{
    return (size_t)((((uint64_t)node << 8 | byte) * t->factor) >> 32) & t->mask;
}

uint32_t trie_step(const trie *t, uint32_t node, unsigned char byte)
{
    if (!t->slots)
        return TRIE_NONE;
    for (size_t i = slot_of(t, node, byte);; i = (i + 1) & t->mask) {
        uint32_t child = t->slots[i];
        if (child == TRIE_NONE || (t->nodes[child].parent == node && t->nodes[child].byte == byte))
            return child;
    }
}

static void fill_slot(trie *t, uint32_t child)
{
    size_t i = slot_of(t, t->nodes[child].parent, t->nodes[child].byte);
    while (t->slots[i] != TRIE_NONE)
        i = (i + 1) & t->mask;
    t->slots[i] = child;
}

/* Keeps the table at most half full. */
static bool grow_slots(trie *t)
{
    if (t->slots && t->count * 2 <= t->mask)
        return true;
    size_t size = t->slots ? (t->mask + 1) * 4 : 1024;
    uint32_t *slots = malloc(size * sizeof *slots);
    if (!slots)
        return false;
    memset(slots, 0xff, size * sizeof *slots); /* TRIE_NONE */
    free(t->slots);
    t->slots = slots;
    t->mask = size - 1;
    for (size_t i = 1; i < t->count; i++)
        fill_slot(t, (uint32_t)i);
    return true;
}

static uint32_t add_node(trie *t, uint32_t parent, unsigned char byte)
{
    trie_node *grown = buffer_grow(t->nodes, &t->capacity, t->count + 1, sizeof *grown);
    if (!grown || t->count >= TRIE_NONE)
        return TRIE_NONE;
    t->nodes = grown;
    t->nodes[t->count] = (trie_node){parent, TRIE_NONE, byte};
    return (uint32_t)t->count++;
}

bool trie_put(trie *t, const char *text, size_t length, uint32_t value)
{
    if (t->count == 0) {
        /* Drawn, so that no file can be made whose nodes all want the same slots. */
        if (getrandom(&t->factor, sizeof t->factor, GRND_NONBLOCK) != sizeof t->factor)
            t->factor = (uint64_t)(uintptr_t)t * 0x9e3779b97f4a7c15u; /* early after boot: where the object lies */
        t->factor |= 1;
        if (add_node(t, TRIE_NONE, 0) == TRIE_NONE)
            return false;
    }
    uint32_t node = 0;
    for (size_t i = 0; i < length; i++) {
        uint32_t child = trie_step(t, node, (unsigned char)text[i]);
        if (child == TRIE_NONE) {
            if (!grow_slots(t) || (child = add_node(t, node, (unsigned char)text[i])) == TRIE_NONE)
                return false;
            fill_slot(t, child);
        }
        node = child;
    }
    t->nodes[node].value = value;
    return true;
}

void trie_free(trie *t)
{
    free(t->nodes);
    free(t->slots);
    *t = (trie){0};
}
