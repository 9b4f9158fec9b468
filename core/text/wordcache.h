/* Inside core/text: the words that one call has encoded already. A slot holds where a word stands in the text and where
 * its ids stand in the result, so nothing is copied and nothing outlives the call. */
#ifndef TENON_CORE_TEXT_WORDCACHE_H
#define TENON_CORE_TEXT_WORDCACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Longer words come again too rarely. */
#define WORDCACHE_LONGEST 64

typedef struct wordcache_slot {
    uint32_t tag;    /* bits of the hash                                                             */
    uint32_t offset; /* of the word in the text                                                      */
    uint32_t first;  /* of its ids in the result                                                     */
    uint16_t length; /* 0: free                                                                      */
    uint16_t count;  /* ids                                                                          */
} wordcache_slot;

typedef struct wordcache {
    wordcache_slot *slots; /* in groups; NULL: nothing is remembered                                 */
    size_t mask;           /* groups - 1                                                             */
} wordcache;

/* Room for some of so many words; without memory for it the cache just stays empty. */
void wordcache_open(wordcache *c, size_t words);
void wordcache_close(wordcache *c);

/* The slot of the word at text + offset: true when it is known, else the slot that it may take. length is at most
 * WORDCACHE_LONGEST and not 0. */
bool wordcache_find(const wordcache *c, const char *text, size_t offset, size_t length, wordcache_slot **slot);

/* Fills a slot that wordcache_find gave. */
void wordcache_put(wordcache_slot *slot, size_t offset, size_t length, size_t first, size_t count);

#endif
