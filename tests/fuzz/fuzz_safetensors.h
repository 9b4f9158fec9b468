/* For targets that read .safetensors files. */
#ifndef TEST_FUZZ_SAFETENSORS_H
#define TEST_FUZZ_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline size_t fuzz_header_length(const uint8_t *data)
{
    size_t length = 0;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | data[i];
    return length;
}

#ifdef TN_FUZZER
#include "fuzz_mutate.h"

/* Mostly changes the header's text and keeps its length right, or little would get as far as the text. */
static inline size_t fuzz_mutate_header(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    static uint8_t tail[16384];
    size_t length = size < 8 ? 0 : fuzz_header_length(data);
    if (size < 8 || length > size - 8 || size - 8 - length > sizeof tail || seed % 8 == 0)
        return LLVMFuzzerMutate(data, size, max_size);
    size_t rest = size - 8 - length;
    memcpy(tail, data + 8 + length, rest);
    length = LLVMFuzzerMutate(data + 8, length, max_size - 8 - rest);
    for (int i = 0; i < 8; i++)
        data[i] = (uint8_t)(length >> (8 * i));
    memcpy(data + 8 + length, tail, rest);
    return 8 + length + rest;
}
#endif

#endif
