/* Products in f32, AVX2. */
#include "vec_avx2.h"

/* 12 sums, 3 vectors of tokens and a weight fill 16 registers. */
#define ROWS 4
#define MAX_VECTORS 3

#include "product_f32.h"

void product_init_avx2(product_kernels *kernels)
{
    product_init_f32(kernels);
}
