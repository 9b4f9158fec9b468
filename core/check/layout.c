/* Tensors with gaps between their rows. */
#include "check/layout.h"

#include <string.h>

/* Elements between rows of a padded tensor, and the bytes that they hold. */
enum { PADDING = 8, GAP_FILL = 0x5a };

layout layout_set(tn_tensor *t, bool padded)
{
    int32_t split = t->ndim < 2 ? -1 : t->ndim == 2 ? 0 : 1;
    layout b = {1, 1, 0};
    for (int32_t i = 0; i < t->ndim; i++)
        *(i <= split ? &b.count : &b.length) *= t->shape[i];
    b.step = b.length + (padded && split >= 0 ? PADDING : 0);
    int64_t stride = 1;
    for (int32_t i = t->ndim - 1; i >= 0; i--) {
        t->stride[i] = i == split ? b.step : stride;
        stride = t->stride[i] * t->shape[i];
    }
    return b;
}

size_t layout_bytes(const layout *b, tn_dtype dtype)
{
    return (size_t)(b->count * b->step) * tn_dtype_size(dtype);
}

void layout_copy(const layout *b, const tn_tensor *from, const tn_tensor *to)
{
    size_t size = tn_dtype_size(to->dtype);
    for (int64_t i = 0; i < b->count; i++)
        memcpy((char *)to->data + (size_t)(i * b->step) * size,
               (const char *)from->data + (size_t)(i * b->length) * size, (size_t)b->length * size);
}

void layout_fill_gaps(const layout *b, const tn_tensor *t)
{
    size_t size = tn_dtype_size(t->dtype);
    for (int64_t i = 0; i < b->count; i++)
        memset((char *)t->data + (size_t)(i * b->step + b->length) * size, GAP_FILL,
               (size_t)(b->step - b->length) * size);
}

bool layout_gaps_intact(const layout *b, const tn_tensor *t)
{
    size_t size = tn_dtype_size(t->dtype);
    for (int64_t i = 0; i < b->count; i++) {
        const unsigned char *gap = (const unsigned char *)t->data + (size_t)(i * b->step + b->length) * size;
        for (size_t j = 0; j < (size_t)(b->step - b->length) * size; j++)
            if (gap[j] != GAP_FILL)
                return false;
    }
    return true;
}
