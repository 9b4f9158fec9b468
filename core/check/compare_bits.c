/* Are two results the same, bit for bit? */
#include "check/compare.h"

#include "base/convert.h"
#include "base/tensor.h"
#include "base/text.h"

#include <math.h>
#include <string.h>

static double value_of(const char *element, tn_dtype dtype)
{
    float f;
    if (dtype == TN_I32) {
        int32_t i;
        memcpy(&i, element, sizeof i);
        return i;
    }
    convert_to_f32(element, dtype, &f, 1);
    return (double)f;
}

/* NaN is one value: which of its bits are set depends on the order of operands, of which C says nothing. */
static bool same_element(const char *x, const char *y, tn_dtype dtype)
{
    return !memcmp(x, y, tn_dtype_size(dtype)) || (isnan(value_of(x, dtype)) && isnan(value_of(y, dtype)));
}

bool compare_bits(const tn_tensor *a, const tn_tensor *b, char *detail, size_t detail_size)
{
    int64_t width = a->shape[a->ndim - 1], rows = width > 0 ? tn_tensor_count(a) / width : 0;
    size_t size = tn_dtype_size(a->dtype);
    for (int64_t row = 0; row < rows; row++) {
        const char *x = tensor_row(a, row), *y = tensor_row(b, row);
        int64_t i = !memcmp(x, y, (size_t)width * size) ? width : 0;
        while (i < width && same_element(x + (size_t)i * size, y + (size_t)i * size, a->dtype))
            i++;
        if (i == width)
            continue;
        text_cut(detail, detail_size, "row %lld, element %lld is %.9g and %.9g", (long long)row, (long long)i,
                 value_of(x + (size_t)i * size, a->dtype), value_of(y + (size_t)i * size, a->dtype));
        return false;
    }
    return true;
}
