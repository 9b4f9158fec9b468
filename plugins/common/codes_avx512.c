/* Decoding quantised weights, AVX-512. */
#include "codes_avx512.h"

#include "codes_vec.h"

void codes_init_avx512(codes_kernels *kernels)
{
    kernels->unpack = unpack;
}
