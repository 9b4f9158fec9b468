/* Inside plugins/ascend: what ATTENTION and its gradients share. */
#ifndef ASCEND_EAGER_ATTENTION_H
#define ASCEND_EAGER_ATTENTION_H

#include "eager_mask.h"
#include "operators.h"

/* A call, as both read it. o is that of forward. */
typedef struct attention_job {
    const tn_tensor *q, *k, *v, *o, *sinks, *slopes, *chosen; /* from sinks on NULL where there are none */
    tn_dtype dtype;
    int64_t batch, tokens, heads, d, keys, kv_heads, group, dv;
    float scale, softcap, alpha; /* softcap 0: none; alpha: factor of what slopes make of positions   */
    mask_rule rule;
    int64_t q_step, kv_step; /* from one batch row of positions to the next                        */
    size_t scratch_bytes;
} attention_job;
attention_job attention_shape(const tn_call *call);

/* Whether heads and types are such as sites have them; else the failure is r's. */
bool attention_fits(npu_run *r, const attention_job *job);

/* Heads before tokens: [heads,count,width] of one batch row, from a token on. */
tn_tensor attention_by_head(const tn_tensor *t, int64_t row, int64_t first, int64_t count);

/* A copy of positions [B,T] i32, with their strides: masks that go up may replace what the queue remembers. Owned; NULL
 * after a failure. */
int32_t *attention_positions(npu_run *r, const tn_tensor *t);

#endif
