/* What the files of this kernel share. */
#ifndef SWIGLU_RUN_H
#define SWIGLU_RUN_H

#include "scratch.h"
#include "swiglu.h"

/* Tokens that go through both products before the next ones: their panels stay in the second and third cache (at
 * H = 1024, I = 3072: 0.5 and 1.5 MiB), and reading the weights again for the next block costs little beside them. */
#define SWIGLU_BLOCK 256

/* Multiply-adds that one thread does while the team wakes up and meets at a barrier (1.5 us): less work than this stays
 * on the calling thread. */
#define SWIGLU_SERIAL_WORK 30000

static inline int64_t swiglu_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t swiglu_block_tokens(const swiglu_layer *layer)
{
    return swiglu_least(layer->max_tokens, SWIGLU_BLOCK);
}

/* Calls body on the team, or on this thread when there is little to do. */
static inline void swiglu_start(const swiglu_layer *layer, int64_t tokens,
                                void (*body)(void *ctx, int32_t thread, int32_t threads), void *ctx)
{
    if (tokens * layer->hidden * layer->mlp.inter * 3 < SWIGLU_SERIAL_WORK)
        body(ctx, 0, 1);
    else
        tn_parallel(body, ctx);
}

/* ---- swiglu_sparse.c ------------------------------------------------------------------------------------ */

size_t swiglu_sparse_scratch_size(const swiglu_layer *layer);
void swiglu_sparse_forward(const swiglu_layer *layer, const tn_tensor *x, const tn_tensor *y, void *scratch)
    __attribute__((nonnull(4)));

#endif
