/* Inside npu_moe: what a call works with, shared by its two ways (moe_few.c, moe_many.c). */
#ifndef MOE_RUN_H
#define MOE_RUN_H

#include "moe.h"

/* Tokens of an expert that a thread takes through both products at once: their panels stay in the second cache. */
#define MOE_CHUNK 256

/* Who goes where: k weights and ids per token, the shared expert's factor, and the slots sorted by expert. */
typedef struct moe_routing {
    float *weights, *shared_scale;
    int32_t *experts, *offsets, *slots;
} moe_routing;

typedef struct moe_memory {
    moe_routing routing; /* of the call; ids and weights of all its tokens for a layer with a router  */
    const void **x_rows; /* of the block's tokens                                                   */
    char *results;       /* a row of dtype per slot                                                 */
    char *few_h;         /* rows of native type per slot                                            */
    char *few_logits;    /* rows of dtype: the experts', then the shared expert's one               */
    int64_t *bad;        /* per thread: first token whose scores are NaN, or -1                     */
    char *thread;
    /* Within one thread's memory. Few tokens: every thread has its own routing, which saves barriers. */
    size_t panel_x, panel_h, logits, probability, pointers, product;
    size_t few_x, few_weights, few_scale, few_experts, few_offsets, few_slots;
    size_t thread_size, total;
} moe_memory;

typedef struct moe_run {
    const product_kernels *kernels;
    const moe_layer *layer;
    const tn_tensor *x, *y, *weights, *experts;
    int64_t tokens, block;
    moe_memory memory;
} moe_run;

/* What one thread does of a call of few tokens (kernels->few_tokens), and of more. */
void moe_few(const moe_run *run, int32_t thread, int32_t threads);
void moe_many(const moe_run *run, int32_t thread, int32_t threads);

/* ---- moe.c: steps of both --------------------------------------------------------------------------------- */

/* One token's experts and weights from its logits, behind which that of the shared expert lies. False: NaN. */
bool moe_route_token(const moe_run *run, const moe_routing *to, int64_t token, const char *logits, float *probability);

/* The caller's weights and ids of tokens first .. first + n - 1, as the first n of `to`. */
void moe_take_routes(const moe_run *run, const moe_routing *to, int64_t first, int64_t n);

/* The results of a block's tokens become y, every thread doing some columns. `to` begins with the block's tokens. */
void moe_combine(const moe_run *run, const moe_routing *to, int64_t first, int64_t n, int32_t thread, int32_t threads);

/* Bytes from one slot's result to the next: an odd number of cache lines, so that a tile's tokens do not fall into the
 * same few sets of the cache. */
static inline int64_t moe_result_row(const moe_run *run)
{
    int64_t size = run->layer->dtype == TN_F32 ? 4 : 2;
    return ((run->layer->hidden * size + 63) / 64 | 1) * 64;
}

static inline char *moe_thread_memory(const moe_run *run, int32_t thread)
{
    return run->memory.thread + (size_t)thread * run->memory.thread_size;
}

static inline int64_t moe_most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t moe_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t moe_element(const moe_run *run)
{
    return run->layer->dtype == TN_F32 ? 4 : 2;
}

static inline product_matrix moe_dense(const tn_tensor *t)
{
    return (product_matrix){t->data, t->stride[0], 1, NULL};
}

#endif
