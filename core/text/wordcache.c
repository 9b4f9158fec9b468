/* The words of one call: a table of groups of four slots. A word belongs into one group, so a search ends after four
 * looks whatever the text holds; a full group loses one of its words. */
#include "text/wordcache.h"

#include <stdlib.h>
#include <string.h>

#define GROUP 4
#define MOST_GROUPS ((size_t)1 << 14) /* 1 MB: what a processor's second cache holds                   */

void wordcache_open(wordcache *c, size_t words)
{
    size_t groups = 4;
    while (groups < MOST_GROUPS && groups * GROUP < words)
        groups *= 2;
    *c = (wordcache){aligned_alloc(64, groups * GROUP * sizeof *c->slots), groups - 1};
    if (c->slots)
        memset(c->slots, 0, groups * GROUP * sizeof *c->slots);
}

void wordcache_close(wordcache *c)
{
    free(c->slots);
    *c = (wordcache){0};
}

static uint64_t load(const char *text, size_t bytes)
{
    uint64_t word = 0;
    memcpy(&word, text, bytes);
    return word;
}

/* Needs no key: what falls together is forgotten, and costs as much as without a cache. */
static uint64_t hash_word(const char *text, size_t length)
{
    const uint64_t odd = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t hash = length * odd, last;
    if (length >= 8) {
        for (size_t i = 0; i + 8 < length; i += 8)
            hash = (hash ^ load(text + i, 8)) * odd, hash ^= hash >> 29;
        last = load(text + length - 8, 8);
    } else if (length >= 4) {
        last = load(text, 4) << 32 | load(text + length - 4, 4);
    } else {
        last = (uint64_t)(unsigned char)text[0] << 16 | (uint64_t)(unsigned char)text[length / 2] << 8 |
               (unsigned char)text[length - 1];
    }
    hash = (hash ^ last) * odd;
    return (hash ^ hash >> 32) * odd;
}

bool wordcache_find(const wordcache *c, const char *text, size_t offset, size_t length, wordcache_slot **slot)
{
    uint64_t hash = hash_word(text + offset, length);
    uint32_t tag = (uint32_t)hash;
    wordcache_slot *group = &c->slots[GROUP * (hash >> 40 & c->mask)], *free_slot = NULL;
    for (size_t i = 0; i < GROUP; i++) {
        *slot = &group[i];
        if (group[i].length == length && group[i].tag == tag &&
            memcmp(text + group[i].offset, text + offset, length) == 0)
            return true;
        if (group[i].length == 0)
            free_slot = free_slot ? free_slot : &group[i];
    }
    *slot = free_slot ? free_slot : &group[tag >> 28 & (GROUP - 1)];
    (*slot)->length = 0;
    (*slot)->tag = tag;
    return false;
}

void wordcache_put(wordcache_slot *slot, size_t offset, size_t length, size_t first, size_t count)
{
    if (offset > UINT32_MAX || first > UINT32_MAX || count > UINT16_MAX)
        return;
    *slot = (wordcache_slot){slot->tag, (uint32_t)offset, (uint32_t)first, (uint16_t)length, (uint16_t)count};
}
