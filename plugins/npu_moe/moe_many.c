/* More tokens: threads route their own, one groups them; then whoever is free takes the next piece of an expert's
 * tokens through the first product, and, when all of these are done, the next columns of the results, through all
 * experts. So each number of a result is summed by one thread, in the order of the experts. */
#include "moe_apart.h"
#include <string.h>

static void route(const moe_run *run, int32_t thread, int32_t threads)
{
    const moe_layer *layer = run->layer;
    const moe_memory *m = &run->memory;
    const router_gate gate = moe_gate(layer, m->scale);
    int64_t begin, end;
    product_share_rows(run->tokens, thread, threads, &begin, &end);
    router_tokens(&layer->router, run->in->x, begin, end - begin, false, &m->routed, &gate, &m->bad[thread],
                  moe_thread_memory(run, thread) + m->router);
}

static bool by_dots(const moe_run *run, int64_t e)
{
    int64_t n = run->memory.offsets[e + 1] - run->memory.offsets[e];
    return n <= pieces_few(run->layer->kernels, moe_io(run->layer));
}

/* The first product of a piece, into its place in h. */
static void first_product(const moe_run *run, const routes *block, int64_t first_token, const piece *p, char *mine)
{
    const moe_layer *layer = run->layer;
    const product_kernels *kernels = layer->kernels;
    const moe_memory *m = &run->memory;
    product_mlp mlp = moe_expert(layer, p->group);
    const void **x = (const void **)(void *)(mine + m->x_rows);
    int64_t places = moe_slots(layer), h_row = moe_h_row(layer, p->group), n = p->tokens;
    char *h = m->h + m->h_at[p->group] + p->first * h_row;
    float *strip = (float *)(void *)(mine + m->strip);
    for (int64_t i = 0; i < n; i++) {
        int64_t slot = m->slots[m->offsets[p->group] + p->first + i];
        const float *weight = moe_input_weight(layer, block, slot);
        x[i] = product_row(run->in->x, first_token + slot / places);
        if (weight) {
            char *to = mine + m->scaled + i * layer->hidden * moe_element(layer);
            moe_scale_row(layer, x[i], *weight, to);
            x[i] = to;
        }
    }
    if (by_dots(run, p->group)) {
        void *rows[PRODUCT_FEW_TOKENS];
        for (int64_t i = 0; i < n; i++)
            rows[i] = h + i * h_row;
        product_native_rows(kernels, x, n, layer->hidden, mine + m->panel_x, x);
        if (moe_is_apart(layer, p->group))
            moe_apart_few(layer, &mlp, x, (int32_t)n, p->begin, p->end, rows, strip);
        else
            product_glu_few(kernels, &mlp, layer->hidden, layer->act, x, (int32_t)n, product_rows_of(p->begin, p->end),
                            kernels->variant->native, rows);
        return;
    }
    product_pack(kernels, x, n, layer->hidden, 0, product_tiles(kernels, n), mine + m->panel_x);
    if (moe_is_apart(layer, p->group))
        moe_apart_tiles(layer, &mlp, mine + m->panel_x, n, p->begin, p->end, h, strip,
                        (void **)(void *)(mine + m->y_rows), mine + m->apart, mine + m->product);
    else
        product_glu_tiles(kernels, &mlp, layer->hidden, layer->act, mine + m->panel_x, n,
                          product_rows_of(p->begin, p->end), h, mine + m->product);
}

/* Adds columns begin .. end - 1 (at most MOE_STRIP) of the second product of n of expert e's tokens to their sums. */
static void add_columns(const moe_run *run, const routes *block, const float *scale, int64_t e, int64_t first,
                        int64_t n, int64_t begin, int64_t end, char *mine)
{
    const moe_layer *layer = run->layer;
    const product_kernels *kernels = layer->kernels;
    const moe_memory *m = &run->memory;
    product_mlp mlp = moe_expert(layer, e);
    product_matrix down = pieces_rows_from(kernels, &mlp.down, begin);
    float *strip = (float *)(void *)(mine + m->strip);
    void **y = (void **)(void *)(mine + m->y_rows);
    int64_t width = end - begin, h_row = moe_h_row(layer, e), places = moe_slots(layer);
    const char *h = m->h + m->h_at[e] + first * h_row;
    for (int64_t i = 0; i < n; i++)
        y[i] = strip + i * width;
    if (by_dots(run, e)) {
        const void *rows[PRODUCT_FEW_TOKENS];
        for (int64_t i = 0; i < n; i++)
            rows[i] = h + i * h_row;
        product_out_few(kernels, &down, mlp.inter, rows, (int32_t)n, product_rows_of(0, width), TN_F32, y);
    } else {
        product_out_tiles(kernels, &down, mlp.inter, h, n, product_rows_of(0, width), TN_F32, y, mine + m->product);
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t slot = m->slots[m->offsets[e] + first + i];
        pieces_add(kernels, strip + i * width, moe_weight(layer, block, scale, slot), width,
                   m->sums + slot / places * layer->hidden + begin);
    }
}

/* Columns begin .. end - 1 of y, for the block's n tokens. */
static void second_product(const moe_run *run, const routes *block, const float *scale, int64_t first_token, int64_t n,
                           int64_t begin, int64_t end, char *mine)
{
    const moe_layer *layer = run->layer;
    const moe_memory *m = &run->memory;
    for (int64_t t = 0; t < n; t++)
        memset(m->sums + t * layer->hidden + begin, 0, (size_t)(end - begin) * sizeof(float));
    for (int64_t e = 0; e <= layer->experts; e++) {
        int64_t tokens = m->offsets[e + 1] - m->offsets[e];
        int64_t chunks = by_dots(run, e) ? tokens > 0 : pieces_chunks(layer->kernels, tokens);
        for (int64_t i = 0; i < chunks; i++) {
            int64_t first = 0, count = tokens;
            if (!by_dots(run, e))
                pieces_chunk(layer->kernels, tokens, i, &first, &count);
            for (int64_t c = begin; c < end; c += MOE_STRIP)
                add_columns(run, block, scale, e, first, count, c, moe_least(end, c + MOE_STRIP), mine);
        }
    }
    for (int64_t t = 0; t < n; t++)
        pieces_round(layer->kernels, m->sums + t * layer->hidden + begin, end - begin,
                     (char *)product_row(run->y, first_token + t) + begin * moe_element(layer));
}

/* Routes, places and pieces of a block, by one thread for all. */
static void open_block(const moe_run *run, const routes *block, int64_t first, int64_t n, int32_t threads)
{
    const moe_layer *layer = run->layer;
    const product_kernels *kernels = layer->kernels;
    const moe_memory *m = &run->memory;
    int64_t at = 0;
    if (!layer->router.weight)
        moe_take_routes(layer, run->in, block, first, n);
    moe_group(layer, block->experts, n, m->offsets, m->slots);
    for (int64_t e = 0; e <= layer->experts; e++) {
        int64_t tokens = m->offsets[e + 1] - m->offsets[e];
        m->h_at[e] = at;
        at += tokens ? product_padded_tokens(kernels, tokens) * moe_h_row(layer, e) : 0;
    }
    *run->piece_count = pieces_cut(kernels, m->offsets, layer->experts + 1, layer->inter, layer->shared_inter,
                                   pieces_few(kernels, moe_io(layer)), threads, m->pieces);
    atomic_store(&run->pieces->next, 0);
    product_ranges_reset(run->columns);
}

static void do_block(const moe_run *run, int64_t first, int64_t n, int32_t thread, int32_t threads)
{
    const moe_layer *layer = run->layer;
    const moe_memory *m = &run->memory;
    routes block = m->routed;
    float *scale = m->scale;
    char *mine = moe_thread_memory(run, thread);
    product_rows piece;
    if (layer->router.weight) {
        block.weights += first * layer->top_k;
        block.experts += first * layer->top_k;
        scale += layer->shared_scale ? first : 0;
    }
    if (thread == 0)
        open_block(run, &block, first, n, threads);
    product_wait(threads);
    for (int64_t i; (i = atomic_fetch_add(&run->pieces->next, 1)) < *run->piece_count;)
        first_product(run, &block, first, &m->pieces[i], mine);
    product_wait(threads);
    while (product_take_rows(run->columns, layer->hidden, thread, threads, &piece))
        second_product(run, &block, scale, first, n, piece.begin, piece.end, mine);
}

void moe_many(const moe_run *run, int32_t thread, int32_t threads)
{
    if (run->layer->router.weight) {
        route(run, thread, threads);
        product_wait(threads);
        for (int32_t i = 0; i < threads; i++)
            if (run->memory.bad[i] >= 0)
                return;
    }
    for (int64_t first = 0; first < run->tokens; first += run->block) {
        do_block(run, first, moe_least(run->tokens - first, run->block), thread, threads);
        if (first + run->block < run->tokens)
            product_wait(threads);
    }
}
