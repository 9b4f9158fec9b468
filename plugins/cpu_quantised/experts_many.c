/* MOE_EXPERTS for many tokens: an expert's tokens go by chunks through strips of its rows, which are unpacked into
 * cache. Whoever is free takes the next chunk through gates and ups, and, when all of these are done, the next columns
 * of the results, through all experts: each number of a result is summed by one thread, in the order of the experts. */
#include "experts.h"

#include "product_mlp.h"
#include "product_parts.h"
#include "scratch.h"

#include <string.h>

enum { BLOCK = 512, CHUNK_TOKENS = 64, STRIP = 32, LEAST_FEATURES = 64, PER_THREAD = 4 };

/* Neighbours in the list of slots by expert. */
typedef struct chunk_of_slots {
    int32_t expert, begin, count;
    int64_t panel; /* bytes from the first panel to its own                                               */
} chunk_of_slots;

/* A thread's own memory. */
typedef struct own_memory {
    char *panel, *strip, *product;
    float *out[2]; /* [CHUNK_TOKENS, STRIP]                                                               */
    const void **x;
    void **y[2];
} own_memory;

typedef struct many_run {
    const experts_layer *layer;
    const tn_call *call;
    int64_t first, tokens, slots; /* of this block                                                        */
    int32_t *order;               /* slots by expert                                                      */
    int32_t *start;               /* where each expert's begin                                            */
    float *weights, *sums;        /* [slots]; [tokens, hidden]                                            */
    chunk_of_slots *chunks;
    int64_t chunk_count, parts;
    char *h, *panels; /* rows of h in that order, and panels of them                                      */
    own_memory *own;
    product_queue *queue; /* chunks and parts; chunks; columns                                            */
} many_run;

static int64_t most_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t experts_of(const experts_layer *layer)
{
    return layer->site->param[TN_ROLE_GATE].count;
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

/* Bytes from row to row of a strip: odd in cache lines, so that they do not fall into the same sets. */
static int64_t strip_space(const experts_layer *layer)
{
    int64_t bytes = most_of(layer->hidden, layer->inter) * product_element(&layer->kernels);
    return ((bytes + 63) / 64 | 1) * 64;
}

static size_t layout_own(const experts_layer *layer, char *base, own_memory *own)
{
    const product_kernels *kernels = &layer->kernels;
    size_t at = 0, parts[8], n = 0;
    parts[n++] = scratch_take(
        &at, (size_t)(product_padded_tokens(kernels, CHUNK_TOKENS) * product_panel_token(kernels, layer->hidden)));
    parts[n++] = scratch_take(&at, (size_t)(STRIP * strip_space(layer)));
    parts[n++] = scratch_take(&at, product_scratch_size(kernels, most_of(layer->hidden, layer->inter)));
    for (int i = 0; i < 2; i++)
        parts[n++] = scratch_take(&at, CHUNK_TOKENS * STRIP * sizeof(float));
    for (int i = 0; i < 3; i++)
        parts[n++] = scratch_take(&at, CHUNK_TOKENS * sizeof(void *));
    if (base)
        *own = (own_memory){base + parts[0],
                            base + parts[1],
                            base + parts[2],
                            {(float *)(void *)(base + parts[3]), (float *)(void *)(base + parts[4])},
                            (const void **)(void *)(base + parts[5]),
                            {(void **)(void *)(base + parts[6]), (void **)(void *)(base + parts[7])}};
    return at;
}

static int64_t most_chunks(const experts_layer *layer, int64_t slots)
{
    int64_t experts = experts_of(layer);
    return slots / CHUNK_TOKENS + (experts < slots ? experts : slots);
}

/* base NULL: only the size counts. */
static size_t layout(many_run *run, const experts_layer *layer, int64_t tokens, int32_t threads, char *base)
{
    const product_kernels *kernels = &layer->kernels;
    int64_t slots = tokens * layer->top_k, chunks = most_chunks(layer, slots);
    int64_t fill = most_of(kernels->variant->min_tokens, kernels->variant->lanes);
    size_t at = 0, order = scratch_take(&at, (size_t)slots * sizeof(int32_t));
    size_t start = scratch_take(&at, (size_t)(experts_of(layer) + 1) * sizeof(int32_t));
    size_t weights = scratch_take(&at, (size_t)slots * sizeof(float));
    size_t sums = scratch_take(&at, (size_t)(tokens * layer->hidden) * sizeof(float));
    size_t list = scratch_take(&at, (size_t)chunks * sizeof(chunk_of_slots));
    size_t h = scratch_take(&at, (size_t)(slots * layer->inter * product_element(kernels)));
    size_t panels = scratch_take(&at, (size_t)((slots + chunks * fill) * product_panel_token(kernels, layer->inter)));
    size_t own = scratch_take(&at, (size_t)threads * sizeof(own_memory)), each = layout_own(layer, NULL, NULL);
    size_t thread = scratch_take(&at, (size_t)threads * each);
    if (!base)
        return at;
    run->order = (int32_t *)(void *)(base + order);
    run->start = (int32_t *)(void *)(base + start);
    run->weights = (float *)(void *)(base + weights);
    run->sums = (float *)(void *)(base + sums);
    run->chunks = (chunk_of_slots *)(void *)(base + list);
    run->h = base + h;
    run->panels = base + panels;
    run->own = (own_memory *)(void *)(base + own);
    for (int32_t i = 0; i < threads; i++)
        layout_own(layer, base + thread + (size_t)i * each, &run->own[i]);
    return at;
}

size_t experts_many_scratch_size(const experts_layer *layer, int64_t max_tokens, int32_t threads)
{
    return layout(NULL, layer, product_least(max_tokens, BLOCK), threads, NULL);
}

/* ---- the list --------------------------------------------------------------------------------------------------- */

/* By one thread for all. */
static void sort_slots(many_run *run)
{
    int64_t experts = experts_of(run->layer);
    memset(run->start, 0, (size_t)(experts + 1) * sizeof *run->start);
    for (int64_t slot = 0; slot < run->slots; slot++)
        run->start[experts_id(run->layer, run->call, run->first, slot) + 1]++;
    for (int64_t e = 0; e < experts; e++)
        run->start[e + 1] += run->start[e];
    for (int64_t slot = 0; slot < run->slots; slot++)
        run->order[run->start[experts_id(run->layer, run->call, run->first, slot)]++] = (int32_t)slot;
    for (int64_t e = experts; e > 0; e--)
        run->start[e] = run->start[e - 1];
    run->start[0] = 0;
}

static void cut_chunks(many_run *run, int32_t threads)
{
    const product_kernels *kernels = &run->layer->kernels;
    int64_t panel = 0, row = product_panel_token(kernels, run->layer->inter);
    run->chunk_count = 0;
    for (int64_t e = 0; e < experts_of(run->layer); e++)
        for (int32_t at = run->start[e]; at < run->start[e + 1]; at += CHUNK_TOKENS) {
            int32_t count = (int32_t)product_least(run->start[e + 1] - at, CHUNK_TOKENS);
            run->chunks[run->chunk_count++] = (chunk_of_slots){(int32_t)e, at, count, panel};
            panel += product_padded_tokens(kernels, count) * row;
        }
    int64_t most = most_of(run->layer->inter / LEAST_FEATURES, 1);
    run->parts = threads > 1 ? product_least((PER_THREAD * threads - 1) / run->chunk_count + 1, most) : 1;
}

/* ---- products --------------------------------------------------------------------------------------------------- */

/* y[i][0 .. n - 1] = rows of a matrix times the tokens of a panel. */
static void multiply_strip(const many_run *run, tn_role role, int32_t expert, int64_t row, int64_t n, const char *panel,
                           int64_t tokens, int64_t k, const own_memory *own, void **y)
{
    const experts_layer *layer = run->layer;
    int64_t space = strip_space(layer);
    codes c;
    if (codes_open(&c, layer->site, role, expert, NULL) != TN_OK)
        return; /* plan has asked */
    for (int64_t r = 0; r < n; r++)
        layer->unpacks.unpack(&c, row + r, 0, k, layer->kernels.dtype, own->strip + r * space);
    const product_matrix strip = {own->strip, space / product_element(&layer->kernels), 1, NULL};
    product_out_tiles(&layer->kernels, &strip, k, panel, tokens, 0, n, TN_F32, y, own->product);
}

/* Features f .. f + n - 1 of h for a chunk, from sums of gates and ups. */
static void activate(const many_run *run, const chunk_of_slots *c, int64_t f, int64_t n, const own_memory *own)
{
    const experts_layer *layer = run->layer;
    const product_finish plain = {layer->kernels.dtype, TN_ACT_LINEAR, NULL};
    float h[PRODUCT_FEW_ROWS];
    for (int64_t i = 0; i < c->count; i++)
        for (int64_t r = 0; r < n; r += PRODUCT_FEW_ROWS) {
            int32_t m = (int32_t)product_least(n - r, PRODUCT_FEW_ROWS);
            char *to = run->h + ((c->begin + i) * layer->inter + f + r) * product_element(&layer->kernels);
            experts_glu(layer, c->expert, f + r, m, own->out[0] + i * STRIP + r, own->out[1] + i * STRIP + r, h);
            layer->kernels.row_out(h, &plain, m, to);
        }
}

static void first_product(const many_run *run, const chunk_of_slots *c, int64_t begin, int64_t end, own_memory *own)
{
    const experts_layer *layer = run->layer;
    const product_kernels *kernels = &layer->kernels;
    for (int64_t i = 0; i < c->count; i++) {
        own->x[i] = product_row(&run->call->in[0], run->first + run->order[c->begin + i] / layer->top_k);
        for (int side = 0; side < 2; side++)
            own->y[side][i] = own->out[side] + i * STRIP;
    }
    product_pack(kernels, own->x, c->count, layer->hidden, 0, product_tiles(kernels, c->count), own->panel);
    for (int64_t f = begin; f < end; f += STRIP) {
        int64_t n = product_least(end - f, STRIP);
        multiply_strip(run, TN_ROLE_GATE, c->expert, f, n, own->panel, c->count, layer->hidden, own, own->y[0]);
        multiply_strip(run, TN_ROLE_UP, c->expert, f, n, own->panel, c->count, layer->hidden, own, own->y[1]);
        activate(run, c, f, n, own);
    }
}

static void pack_h(const many_run *run, const chunk_of_slots *c, own_memory *own)
{
    const product_kernels *kernels = &run->layer->kernels;
    for (int64_t i = 0; i < c->count; i++)
        own->x[i] = run->h + (c->begin + i) * run->layer->inter * product_element(kernels);
    product_pack(kernels, own->x, c->count, run->layer->inter, 0, product_tiles(kernels, c->count),
                 run->panels + c->panel);
}

static void combine(const many_run *run, const void *const *parts, const float *weights, int32_t count, tn_dtype dtype,
                    int64_t n, void *to)
{
    const product_combine c = {.part_dtype = TN_F32, .dtype = dtype, .count = count, .part = parts, .weight = weights};
    run->layer->kernels.combine(&c, n, to);
}

/* At most STRIP columns of the second product of a chunk, times the weights of its slots. */
static void add_columns(const many_run *run, const chunk_of_slots *c, int64_t column, int64_t n, own_memory *own)
{
    const experts_layer *layer = run->layer;
    for (int64_t i = 0; i < c->count; i++)
        own->y[0][i] = own->out[0] + i * STRIP;
    multiply_strip(run, TN_ROLE_DOWN, c->expert, column, n, run->panels + c->panel, c->count, layer->inter, own,
                   own->y[0]);
    for (int64_t i = 0; i < c->count; i++) {
        int64_t slot = run->order[c->begin + i];
        float *sums = run->sums + slot / layer->top_k * layer->hidden + column;
        const void *parts[] = {sums, own->y[0][i]};
        experts_add_bias(layer, c->expert, column, n, own->y[0][i]);
        combine(run, parts, (const float[]){1.0f, run->weights[slot]}, 2, TN_F32, n, sums);
    }
}

static void second_product(const many_run *run, int64_t begin, int64_t end, own_memory *own)
{
    const experts_layer *layer = run->layer;
    for (int64_t t = 0; t < run->tokens; t++)
        memset(run->sums + t * layer->hidden + begin, 0, (size_t)(end - begin) * sizeof(float));
    for (int64_t i = 0; i < run->chunk_count; i++)
        for (int64_t c = begin; c < end; c += STRIP)
            add_columns(run, &run->chunks[i], c, product_least(end - c, STRIP), own);
    for (int64_t t = 0; t < run->tokens; t++) {
        const void *part = run->sums + t * layer->hidden + begin;
        char *y = product_row(&run->call->out[0], run->first + t);
        combine(run, &part, (const float[]){1.0f}, 1, layer->kernels.dtype, end - begin,
                y + begin * product_element(&layer->kernels));
    }
}

/* ---- a call ----------------------------------------------------------------------------------------------------- */

/* The next of count; false: there is none. */
static bool take(product_queue *queue, int64_t count, int64_t *i)
{
    *i = atomic_fetch_add_explicit(&queue->next, 1, memory_order_relaxed);
    return *i < count;
}

static void body(void *ctx, int32_t thread, int32_t threads)
{
    many_run *run = ctx;
    own_memory *own = &run->own[thread];
    int64_t i, begin, end, units = (run->layer->inter + product_unit - 1) / product_unit;
    if (thread == 0) {
        experts_weights(run->layer, run->call, run->first, run->tokens, run->weights);
        sort_slots(run);
        cut_chunks(run, threads);
    }
    product_wait(threads);
    while (take(&run->queue[0], run->chunk_count * run->parts, &i)) {
        product_share(units, (int32_t)(i % run->parts), (int32_t)run->parts, &begin, &end);
        first_product(run, &run->chunks[i / run->parts], begin * product_unit,
                      product_least(end * product_unit, run->layer->inter), own);
    }
    product_wait(threads);
    while (take(&run->queue[1], run->chunk_count, &i))
        pack_h(run, &run->chunks[i], own);
    product_wait(threads);
    while (product_take_rows(&run->queue[2], run->layer->hidden, threads, &begin, &end))
        second_product(run, begin, end, own);
}

void experts_many(const experts_layer *layer, const tn_call *call)
{
    int64_t all = product_tokens(&call->in[0]);
    for (int64_t first = 0; first < all; first += BLOCK) {
        product_queue queue[3] = {{0}, {0}, {0}};
        int64_t tokens = product_least(all - first, BLOCK);
        many_run run = {.layer = layer,
                        .call = call,
                        .first = first,
                        .tokens = tokens,
                        .slots = tokens * layer->top_k,
                        .queue = queue};
        layout(&run, layer, product_least(call->plan->max_tokens, BLOCK), call->plan->threads, call->scratch);
        tn_parallel(body, &run);
    }
}
