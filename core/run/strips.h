/* Inside core/run: a tensor seen as strips of elements that lie side by side, in the order of its elements. */
#ifndef TENON_CORE_STRIPS_H
#define TENON_CORE_STRIPS_H

#include "device/device.h"

typedef struct strips {
    const tn_tensor *of;
    int32_t lead; /* dimensions that say which strip it is                                         */
    int64_t count, width;
} strips;

static inline strips strips_of(const tn_tensor *t)
{
    strips s = {t, t->ndim, 1, 1};
    while (s.lead > 0 && (t->shape[s.lead - 1] == 1 || t->stride[s.lead - 1] == s.width))
        s.width *= t->shape[--s.lead];
    for (int32_t i = 0; i < s.lead; i++)
        s.count *= t->shape[i];
    return s;
}

/* Where a strip begins, in elements from the tensor's first one. */
static inline int64_t strips_at(const strips *s, int64_t strip)
{
    int64_t offset = 0;
    for (int32_t i = s->lead - 1; i >= 0; i--) {
        offset += strip % s->of->shape[i] * s->of->stride[i];
        strip /= s->of->shape[i];
    }
    return offset;
}

#endif
