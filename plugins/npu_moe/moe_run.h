/* Inside npu_moe: what a call works with, shared by its two ways (moe_few.c, moe_many.c). */
#ifndef MOE_RUN_H
#define MOE_RUN_H

#include "moe.h"
#include "pieces.h"

/* Columns of results that are added up at once: a piece's tokens times these stay in the second cache. */
#define MOE_STRIP 128

typedef struct moe_memory {
    routes routed;           /* of all tokens for a layer with a router, else of a block              */
    float *scale;            /* the shared expert's factor per token                                  */
    int64_t *offsets, *h_at; /* per expert: its first slot in `slots`, the place of its h in bytes     */
    int32_t *slots;
    piece *pieces;
    char *h;        /* of all slots of a block: panels of each expert's tokens, or rows               */
    float *sums;    /* [block, H]: results before they are rounded                                    */
    float *results; /* few tokens: [slots, H]                                                         */
    float *logits;  /* few tokens: [E + 1]: the experts', then the shared expert's one                */
    int64_t *bad;   /* per thread: first token whose scores are not numbers, or -1                    */
    char *thread;
    /* Within one thread's memory. Few tokens: every thread has its own routing, which saves barriers. */
    size_t panel_x, strip, x_rows, y_rows, product, router, scaled, apart;
    size_t few_logits, few_x, few_weights, few_scale, few_experts, few_offsets, few_slots;
    size_t thread_size, total;
} moe_memory;

typedef struct moe_run {
    const moe_layer *layer;
    const moe_input *in;
    const tn_tensor *y;
    int64_t tokens, block, most_block;
    moe_memory memory;
    product_queue *pieces;           /* of a block's first product, of many tokens                     */
    product_ranges *gates, *columns; /* rows of its first product, of few tokens, and of its second    */
    int64_t *piece_count;
} moe_run;

/* What one thread does of a call of few tokens (few_tokens of the variant), and of more. */
void moe_few(const moe_run *run, int32_t thread, int32_t threads);
void moe_many(const moe_run *run, int32_t thread, int32_t threads);

/* ---- moe.c: steps of both ------------------------------------------------------------------------------ */

/* The caller's weights and ids of tokens first .. first + n - 1, as the first n of `to`. */
void moe_take_routes(const moe_layer *layer, const moe_input *in, const routes *to, int64_t first, int64_t n);

static inline router_gate moe_gate(const moe_layer *layer, float *values)
{
    return (router_gate){layer->shared_scale, values};
}

/* What the result of slot `slot` counts. */
static inline float moe_weight(const moe_layer *layer, const routes *to, const float *scale, int64_t slot)
{
    int64_t places = moe_slots(layer), t = slot / places, j = slot % places;
    if (j < layer->top_k)
        return layer->scaled ? 1.0f : to->weights[t * layer->top_k + j];
    return layer->shared_scale ? scale[t] : 1.0f;
}

/* to = rnd(weight x), rows of the model's dtype. */
void moe_scale_row(const moe_layer *layer, const void *x, float weight, void *to);

/* The weight that slot `slot` is a factor of its expert's input; NULL: the input is as it is. */
static inline const float *moe_input_weight(const moe_layer *layer, const routes *to, int64_t slot)
{
    int64_t places = moe_slots(layer), t = slot / places, j = slot % places;
    return layer->scaled && j < layer->top_k ? &to->weights[t * layer->top_k + j] : NULL;
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

static inline int64_t moe_element(const moe_layer *layer)
{
    return layer->kernels->dtype == TN_F32 ? 4 : 2;
}

/* Bytes of one token of expert e between its two products. */
static inline int64_t moe_h_row(const moe_layer *layer, int64_t e)
{
    return product_panel_token(layer->kernels, e < layer->experts ? layer->inter : layer->shared_inter);
}

/* The same for few tokens, as rows of f32 or of native type. */
static inline int64_t moe_few_h_row(const moe_layer *layer)
{
    return (moe_most(layer->inter, layer->shared_inter) * (int64_t)sizeof(float) + 63) / 64 * 64;
}

static inline bool moe_pairs(const moe_layer *layer)
{
    return layer->layout == TN_LAYOUT_PAIRS_IO;
}

/* Are the rows of the experts' matrices side by side in memory? */
static inline bool moe_io(const moe_layer *layer)
{
    return layer->layout == TN_LAYOUT_STACKED_IO || layer->layout == TN_LAYOUT_PAIRS_IO;
}

static inline product_matrix moe_dense(const tn_tensor *t)
{
    return (product_matrix){t->data, t->stride[0], 1, NULL};
}

#endif
