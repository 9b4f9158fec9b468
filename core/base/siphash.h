/* Inside core: SipHash (Aumasson and Bernstein), the keyed hash for tables whose entries come from files. Who writes a
 * file cannot know the key, and so cannot choose entries that fall into one slot. */
#ifndef TENON_CORE_SIPHASH_H
#define TENON_CORE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct siphash_key {
    uint64_t low, high;
} siphash_key;

/* A key from the system's random numbers. It never fails: where the system call is barred, the random bytes that every
 * process is started with stand in. */
siphash_key siphash_draw(void);

static inline uint64_t siphash_rotate(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static inline void siphash_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = siphash_rotate(v[1], 13) ^ v[0];
    v[0] = siphash_rotate(v[0], 32);
    v[2] += v[3];
    v[3] = siphash_rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = siphash_rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = siphash_rotate(v[1], 17) ^ v[2];
    v[2] = siphash_rotate(v[2], 32);
}

/* With so many rounds for each word of eight bytes, and at the end. Bytes are read in the order of the processor, so
 * values differ between machines of different byte order: they are for tables in memory. */
static inline uint64_t siphash_of(siphash_key key, const void *data, size_t size, int rounds, int last_rounds)
{
    uint64_t v[4] = {key.low ^ UINT64_C(0x736f6d6570736575), key.high ^ UINT64_C(0x646f72616e646f6d),
                     key.low ^ UINT64_C(0x6c7967656e657261), key.high ^ UINT64_C(0x7465646279746573)};
    const char *bytes = data;
    size_t whole = size & ~(size_t)7;
    for (size_t i = 0; i <= whole; i += 8) {
        uint64_t word = 0;
        if (i < whole) {
            memcpy(&word, bytes + i, 8);
        } else {
            for (size_t k = size - whole; k > 0; k--)
                word = word << 8 | (unsigned char)bytes[i + k - 1];
            word |= (uint64_t)size << 56;
        }
        v[3] ^= word;
        for (int r = 0; r < rounds; r++)
            siphash_round(v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    for (int r = 0; r < last_rounds; r++)
        siphash_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* SipHash-1-3, which is enough for tables. */
static inline uint64_t siphash(siphash_key key, const void *data, size_t size)
{
    return siphash_of(key, data, size, 1, 3);
}

#endif
