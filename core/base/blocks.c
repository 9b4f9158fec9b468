/* The values of quantised elements. */
#include "base/blocks.h"

#include "base/convert.h"

bool blocks_is_quantised(tn_dtype dtype)
{
    return dtype == TN_I8 || (dtype >= TN_F8_E4M3 && dtype < TN_DTYPE_COUNT && dtype != TN_F8_E8M0);
}

void blocks_to_f32(tn_dtype dtype, const void *row, int64_t first, int64_t count, float *out)
{
    convert_to_f32((const char *)row + first * (int64_t)tn_dtype_size(dtype), dtype, out, count);
}
