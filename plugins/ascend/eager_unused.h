/* Inside plugins/ascend: keys or values of a batch row without what lies in unused slots. */
#ifndef ASCEND_EAGER_UNUSED_H
#define ASCEND_EAGER_UNUSED_H

#include "eager_mask.h"
#include "operators.h"

/* Keys or values of a batch row, [.., S, K, D], as whatever row of t: itself, or a copy in memory, which the caller
 * gives back. */
typedef struct used_slots {
    tn_tensor t;
    void *memory;
    size_t bytes;
} used_slots;

/* What lies in slots of the span that have no position (k below 0) may be anything, and products would take it along,
 * as 0 times it: zeros take its place, unless they are known to be there. */
used_slots used_slots_of(npu_run *r, const tn_tensor *t, int64_t row, const mask_span *span, const int32_t *k);
/* What follows in the queue may have the memory then. */
void used_slots_end(npu_run *r, const used_slots *u);

#endif
