/* More tokens: threads route their own, one groups them, then each takes experts, or parts of an expert's tokens,
 * through both products by itself: their panels stay in its second cache, and nobody waits in between. */
#include "moe_run.h"

/* Tokens of an expert stacked as [in, out] that go through its columns at once. */
#define FEW_COLUMNS 4

/* Logits of n tokens from `first` on, in rows of experts + 1. */
static void many_logits(const moe_run *run, int64_t first, int64_t n, char *mine)
{
    const product_kernels *kernels = run->kernels;
    const moe_layer *layer = run->layer;
    const moe_memory *m = &run->memory;
    const void **x = (const void **)(void *)(mine + m->pointers);
    void **y = (void **)(void *)(x + MOE_CHUNK);
    int64_t size = moe_element(run);
    for (int64_t t = 0; t < n; t++) {
        x[t] = product_row(run->x, first + t);
        y[t] = mine + m->logits + t * (layer->experts + 1) * size;
    }
    product_matrix router = moe_dense(layer->router);
    product_pack(kernels, x, n, layer->hidden, 0, product_tiles(kernels, n), mine + m->panel_x);
    product_out_tiles(kernels, &router, layer->hidden, mine + m->panel_x, n, 0, layer->experts, layer->dtype, y,
                      mine + m->product);
    if (layer->shared_scale) {
        product_matrix scale = moe_dense(layer->shared_scale);
        for (int64_t t = 0; t < n; t++)
            y[t] = (char *)y[t] + layer->experts * size;
        product_out_tiles(kernels, &scale, layer->hidden, mine + m->panel_x, n, 0, 1, layer->dtype, y,
                          mine + m->product);
    }
}

static void route(const moe_run *run, int32_t thread, int32_t threads)
{
    const moe_memory *m = &run->memory;
    char *mine = moe_thread_memory(run, thread);
    int64_t begin, end, row = (run->layer->experts + 1) * moe_element(run);
    product_share_rows(run->tokens, thread, threads, &begin, &end);
    m->bad[thread] = -1;
    for (int64_t first = begin; first < end; first += MOE_CHUNK) {
        int64_t n = moe_least(end - first, MOE_CHUNK);
        many_logits(run, first, n, mine);
        for (int64_t t = 0; t < n; t++)
            if (!moe_route_token(run, &m->routing, first + t, mine + m->logits + t * row,
                                 (float *)(void *)(mine + m->probability)) &&
                m->bad[thread] < 0)
                m->bad[thread] = first + t;
    }
}

/* Tokens first .. last - 1 of expert e, through both products. */
static void expert_part(const moe_run *run, int64_t e, int64_t first, int64_t last, char *mine)
{
    const product_kernels *kernels = run->kernels;
    const moe_layer *layer = run->layer;
    const moe_memory *m = &run->memory;
    const moe_routing *to = &m->routing;
    product_mlp mlp = moe_expert(layer, e);
    const void **x = (const void **)(void *)(mine + m->pointers);
    void **y = (void **)(void *)(x + MOE_CHUNK), **h = y + MOE_CHUNK;
    int64_t places = moe_slots(layer);
    int64_t h_row = product_panel_token(kernels, mlp.inter);
    int32_t few_limit = layer->layout == TN_LAYOUT_STACKED_IO ? FEW_COLUMNS : kernels->few_tokens;
    bool few = to->offsets[e + 1] - to->offsets[e] <= few_limit;
    for (; first < last; first += MOE_CHUNK) {
        int64_t n = moe_least(last - first, MOE_CHUNK);
        for (int64_t i = 0; i < n; i++) {
            int64_t slot = to->slots[to->offsets[e] + first + i];
            x[i] = m->x_rows[slot / places];
            y[i] = m->results + slot * moe_result_row(run);
            h[i] = mine + m->panel_h + i * h_row;
        }
        if (few) {
            product_native_rows(kernels, x, n, layer->hidden, mine + m->panel_x, x);
            product_glu_few(kernels, &mlp, layer->hidden, layer->act, x, (int32_t)n, 0, mlp.inter, kernels->native, h);
            product_out_few(kernels, &mlp.down, mlp.inter, (const void *const *)h, (int32_t)n, 0, layer->hidden,
                            layer->dtype, y);
        } else {
            product_pack(kernels, x, n, layer->hidden, 0, product_tiles(kernels, n), mine + m->panel_x);
            product_glu_tiles(kernels, &mlp, layer->hidden, layer->act, mine + m->panel_x, n, 0, mlp.inter,
                              mine + m->panel_h, mine + m->product);
            product_out_tiles(kernels, &mlp.down, mlp.inter, mine + m->panel_h, n, 0, layer->hidden, layer->dtype, y,
                              mine + m->product);
        }
    }
}

static void experts(const moe_run *run, int32_t thread, int32_t threads)
{
    const moe_routing *to = &run->memory.routing;
    moe_place from = moe_cut(run->layer, to->offsets, thread, threads);
    moe_place until = moe_cut(run->layer, to->offsets, thread + 1, threads);
    for (int64_t e = from.expert; e <= until.expert && e <= run->layer->experts; e++) {
        int64_t n = to->offsets[e + 1] - to->offsets[e];
        int64_t first = e == from.expert ? from.token : 0, last = e == until.expert ? until.token : n;
        if (first < last)
            expert_part(run, e, first, last, moe_thread_memory(run, thread));
    }
}

/* Pointers and routes of a block, by one thread for all. */
static void open_block(const moe_run *run, const moe_routing *block, int64_t first, int64_t n)
{
    for (int64_t t = 0; t < n; t++)
        run->memory.x_rows[t] = product_row(run->x, first + t);
    if (!run->layer->router)
        moe_take_routes(run, block, first, n);
    moe_group(run->layer, block->experts, n, block->offsets, block->slots);
}

void moe_many(const moe_run *run, int32_t thread, int32_t threads)
{
    const moe_layer *layer = run->layer;
    if (layer->router) {
        route(run, thread, threads);
        product_wait(threads);
        for (int32_t i = 0; i < threads; i++)
            if (run->memory.bad[i] >= 0)
                return;
    }
    for (int64_t first = 0; first < run->tokens; first += run->block) {
        int64_t n = moe_least(run->tokens - first, run->block);
        moe_routing block = run->memory.routing;
        if (layer->router) {
            block.weights += first * layer->top_k;
            block.experts += first * layer->top_k;
            block.shared_scale += layer->shared_scale ? first : 0;
        }
        if (thread == 0)
            open_block(run, &block, first, n);
        product_wait(threads);
        experts(run, thread, threads);
        product_wait(threads);
        moe_combine(run, &block, first, n, thread, threads);
        if (first + run->block < run->tokens)
            product_wait(threads);
    }
}
