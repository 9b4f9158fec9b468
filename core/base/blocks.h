/* Inside core: the values of quantised elements. docs/quantised.md has the formats. */
#ifndef TENON_CORE_BLOCKS_H
#define TENON_CORE_BLOCKS_H

#include <stdbool.h>
#include <tenon/tensor.h>

/* Is it a type whose codes a weight may have: a type of blocks, F8, I8, U4, I4, E2M1 or NF4? */
bool blocks_is_quantised(tn_dtype dtype);

/* The exact values of elements [first, first + count) of a row whose blocks or bytes begin at row, before any scale
 * beside them; f32, bf16 and f16 too. Subnormal results are kept. */
void blocks_to_f32(tn_dtype dtype, const void *row, int64_t first, int64_t count, float *out);

#endif
