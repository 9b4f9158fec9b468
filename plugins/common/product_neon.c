/* Products in f32, NEON. */
#include "vec_neon.h"

/* 24 sums, 3 vectors of tokens and a weight: 28 of 32 registers. */
#define ROWS 8
#define MAX_VECTORS 3

#include "product_f32.h"

void product_init_neon(product_kernels *kernels)
{
    product_init_f32(kernels);
}
