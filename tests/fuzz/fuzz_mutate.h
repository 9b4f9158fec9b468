/* For targets that change inputs themselves: libFuzzer's part, and random numbers. */
#ifndef TEST_FUZZ_MUTATE_H
#define TEST_FUZZ_MUTATE_H

#include <stddef.h>
#include <stdint.h>

/* libFuzzer's own changes, for the target's mutator to call; the mutator sets fuzz_state to its seed. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

static uint32_t fuzz_state;

static inline uint32_t fuzz_random(uint32_t below)
{
    fuzz_state = fuzz_state * 1664525 + 1013904223;
    return (fuzz_state >> 8) % below;
}

#endif
