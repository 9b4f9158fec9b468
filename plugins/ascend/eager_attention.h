/* Inside plugins/ascend: what ATTENTION and its gradients share. */
#ifndef ASCEND_EAGER_ATTENTION_H
#define ASCEND_EAGER_ATTENTION_H

#include "operators_rows.h"

/* A copy of positions [B,T] i32, with their strides: masks that go up may replace what the queue remembers. Owned; NULL
 * after a failure. */
int32_t *attention_positions(npu_run *r, const tn_tensor *t);

#endif
