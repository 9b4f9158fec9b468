/* MOE_EXPERTS for many tokens: an expert's tokens go by chunks through strips of its rows, rounded to int8, or as they
 * are, through rows that are unpacked into cache. Whoever is free takes the next chunk through gates and ups, and, when
 * all of these are done, the next columns of the results, through all experts: each number of a result is summed by one
 * thread, in the order of the experts. */
#include "experts.h"

#include "product_mlp.h"
#include "product_parts.h"
#include "scratch.h"

#include <string.h>

enum { BLOCK = 512, CHUNK_TOKENS = 96, STRIP = CODES_ROWS, LEAST_FEATURES = 64, PER_THREAD = 4 };

/* Neighbours in the list of slots by expert. */
typedef struct chunk_of_slots {
    int32_t expert, begin, count;
    int64_t panel; /* bytes from the first panel to its own                                               */
} chunk_of_slots;

/* A thread's own memory. */
typedef struct own_memory {
    char *panel, *strip, *product;
    float *out[2];  /* [CHUNK_TOKENS + CODES_TOKENS, STRIP]                                              */
    float *wide[2]; /* rows of activations, or of weights                                                */
    const void **x;
    void **y;
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
    ints_group *x;    /* tokens, rounded                                                                  */
    char *wild[2];    /* 1 for each token, or slot, that cannot be rounded                                */
    own_memory *own;
    product_queue *queue; /* chunks and parts; chunks                                                     */
    product_ranges *columns;
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

static int64_t longest(const experts_layer *layer)
{
    return most_of(layer->hidden, layer->inter);
}

/* Bytes of an element of h. */
static int64_t h_element(const experts_layer *layer)
{
    return layer->many_ints ? (int64_t)sizeof(float) : product_element(&layer->kernels);
}

/* Bytes of a panel of rows of k activations. */
static int64_t panel_space(const experts_layer *layer, int64_t rows, int64_t k)
{
    const product_kernels *kernels = &layer->kernels;
    if (layer->many_ints)
        return rows * layer->terms * ints_space(k);
    return product_padded_tokens(kernels, rows) * product_panel_token(kernels, k);
}

/* Bytes from row to row of a strip: odd in cache lines, so that they do not fall into the same sets. */
static int64_t strip_space(const experts_layer *layer)
{
    int64_t bytes = longest(layer) * product_element(&layer->kernels);
    return ((bytes + 63) / 64 | 1) * 64;
}

static size_t layout_own(const experts_layer *layer, char *base, own_memory *own)
{
    const product_kernels *kernels = &layer->kernels;
    int64_t strip = layer->many_ints ? many_laid_bytes(longest(layer)) : STRIP * strip_space(layer);
    size_t at = 0, parts[9], n = 0;
    parts[n++] = scratch_take(&at, (size_t)panel_space(layer, CHUNK_TOKENS, layer->hidden));
    parts[n++] = scratch_take(&at, (size_t)strip);
    parts[n++] = scratch_take(&at, layer->many_ints ? 0 : product_scratch_size(kernels, longest(layer)));
    for (int i = 0; i < 2; i++)
        parts[n++] = scratch_take(&at, (CHUNK_TOKENS + CODES_TOKENS) * STRIP * sizeof(float));
    for (int i = 0; i < 2; i++)
        parts[n++] = scratch_take(&at, layer->many_ints ? (size_t)longest(layer) * sizeof(float) : 0);
    for (int i = 0; i < 2; i++)
        parts[n++] = scratch_take(&at, CHUNK_TOKENS * sizeof(void *));
    if (base)
        *own = (own_memory){base + parts[0],
                            base + parts[1],
                            base + parts[2],
                            {(float *)(void *)(base + parts[3]), (float *)(void *)(base + parts[4])},
                            {(float *)(void *)(base + parts[5]), (float *)(void *)(base + parts[6])},
                            (const void **)(void *)(base + parts[7]),
                            (void **)(void *)(base + parts[8])};
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
    const product_variant *variant = layer->kernels.variant;
    int64_t slots = tokens * layer->top_k, chunks = most_chunks(layer, slots);
    int64_t fill = layer->many_ints ? 0 : most_of(variant->min_tokens, variant->lanes);
    size_t at = 0, order = scratch_take(&at, (size_t)slots * sizeof(int32_t));
    size_t start = scratch_take(&at, (size_t)(experts_of(layer) + 1) * sizeof(int32_t));
    size_t weights = scratch_take(&at, (size_t)slots * sizeof(float));
    size_t sums = scratch_take(&at, (size_t)(tokens * layer->hidden) * sizeof(float));
    size_t list = scratch_take(&at, (size_t)chunks * sizeof(chunk_of_slots));
    size_t h = scratch_take(&at, (size_t)(slots * layer->inter * h_element(layer)));
    size_t panels = scratch_take(&at, (size_t)(panel_space(layer, slots + chunks * fill, layer->inter)));
    size_t x = scratch_take(&at, layer->many_ints ? (size_t)panel_space(layer, tokens, layer->hidden) : 0);
    size_t wild[] = {scratch_take(&at, (size_t)tokens), scratch_take(&at, (size_t)slots)};
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
    run->x = (ints_group *)(void *)(base + x);
    for (int i = 0; i < 2; i++)
        run->wild[i] = base + wild[i];
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
    int64_t panel = 0;
    run->chunk_count = 0;
    for (int64_t e = 0; e < experts_of(run->layer); e++)
        for (int32_t at = run->start[e]; at < run->start[e + 1]; at += CHUNK_TOKENS) {
            int32_t count = (int32_t)product_least(run->start[e + 1] - at, CHUNK_TOKENS);
            run->chunks[run->chunk_count++] = (chunk_of_slots){(int32_t)e, at, count, panel};
            panel += panel_space(run->layer, count, run->layer->inter);
        }
    int64_t most = most_of(run->layer->inter / LEAST_FEATURES, 1);
    run->parts = threads > 1 ? product_least((PER_THREAD * threads - 1) / run->chunk_count + 1, most) : 1;
}

/* ---- panels ----------------------------------------------------------------------------------------------------- */

static int64_t token_of(const many_run *run, const chunk_of_slots *c, int64_t i)
{
    return run->order[c->begin + i] / run->layer->top_k;
}

static void round_tokens(const many_run *run, int32_t thread, int32_t threads, const own_memory *own)
{
    const experts_layer *layer = run->layer;
    int64_t begin, end, k = layer->hidden;
    product_share(run->tokens, thread, threads, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        layer->kernels.widen(product_row(&run->call->in[0], run->first + t), k, own->wide[0]);
        run->wild[0][t] =
            !experts_round(layer, own->wide[0], k, 0, 1, own->wide[1], run->x + t * layer->terms * (k / CODES_GROUP));
    }
}

/* Rounded tokens, copied into tiles. */
static void gather_tokens(const many_run *run, const chunk_of_slots *c, const own_memory *own)
{
    int64_t terms = run->layer->terms, k = run->layer->hidden, groups = k / CODES_GROUP, step;
    for (int64_t i = 0; i < c->count * terms; i++) {
        const ints_group *from = run->x + (token_of(run, c, i / terms) * terms + i % terms) * groups;
        char *to = (char *)codes_tile_row((ints_group *)(void *)own->panel, k, i, c->count * terms,
                                          experts_tile(run->layer, c->count), &step);
        for (int64_t g = 0; g < groups; g++)
            memcpy(to + g * step, from + g, sizeof *from);
    }
}

static void pack_tokens(const many_run *run, const chunk_of_slots *c, own_memory *own)
{
    const experts_layer *layer = run->layer;
    if (layer->many_ints) {
        gather_tokens(run, c, own);
        return;
    }
    for (int64_t i = 0; i < c->count; i++)
        own->x[i] = product_row(&run->call->in[0], run->first + token_of(run, c, i));
    product_pack(&layer->kernels, own->x, c->count, layer->hidden, 0, product_tiles(&layer->kernels, c->count),
                 own->panel);
}

static char *h_row(const many_run *run, const chunk_of_slots *c, int64_t i)
{
    return run->h + (c->begin + i) * run->layer->inter * h_element(run->layer);
}

static void pack_h(const many_run *run, const chunk_of_slots *c, own_memory *own)
{
    const experts_layer *layer = run->layer;
    char *panel = run->panels + c->panel;
    for (int64_t i = 0; i < c->count; i++) {
        own->x[i] = h_row(run, c, i);
        if (layer->many_ints)
            run->wild[1][c->begin + i] =
                !experts_round(layer, own->x[i], layer->inter, i, c->count, own->wide[1], (ints_group *)(void *)panel);
    }
    if (!layer->many_ints)
        product_pack(&layer->kernels, own->x, c->count, layer->inter, 0, product_tiles(&layer->kernels, c->count),
                     panel);
}

/* ---- products --------------------------------------------------------------------------------------------------- */

/* What could not be rounded. */
static void multiply_wild(const many_run *run, tn_role role, const codes *m, const chunk_of_slots *c, int64_t row,
                          int64_t n, const own_memory *own, float *out)
{
    const experts_layer *layer = run->layer;
    bool second = role == TN_ROLE_DOWN;
    for (int64_t i = 0; i < c->count; i++) {
        int64_t t = token_of(run, c, i);
        const float *x = second ? (const float *)(const void *)h_row(run, c, i) : own->wide[0];
        if (!(second ? run->wild[1][c->begin + i] : run->wild[0][t]))
            continue;
        if (!second)
            layer->kernels.widen(product_row(&run->call->in[0], run->first + t), layer->hidden, own->wide[0]);
        experts_multiply_plain(layer, m, row, n, x, second ? layer->inter : layer->hidden, own->wide[1],
                               out + i * STRIP);
    }
}

/* out[i * STRIP + r] = row + r of a chunk's expert times its token i, for r < n <= STRIP. */
static void multiply_strip(const many_run *run, tn_role role, const chunk_of_slots *c, int64_t row, int64_t n,
                           char *panel, own_memory *own, float *out)
{
    const experts_layer *layer = run->layer;
    int64_t space = strip_space(layer), k = role == TN_ROLE_DOWN ? layer->inter : layer->hidden;
    codes m;
    if (codes_open(&m, layer->site, role, c->expert, NULL) != TN_OK)
        return; /* plan has asked */
    if (layer->many_ints) {
        experts_multiply(layer, &m, row, n, k, (ints_group *)(void *)panel, c->count, own->strip, out);
        multiply_wild(run, role, &m, c, row, n, own, out);
        return;
    }
    for (int64_t i = 0; i < c->count; i++)
        own->y[i] = out + i * STRIP;
    for (int64_t r = 0; r < n; r++)
        layer->unpacks.unpack(&m, row + r, 0, k, layer->kernels.dtype, own->strip + r * space);
    const product_matrix strip = {own->strip, space / product_element(&layer->kernels), 1, NULL};
    product_out_tiles(&layer->kernels, &strip, k, panel, c->count, product_rows_of(0, n), TN_F32, own->y, own->product);
}

/* Features f .. f + n - 1 of h for a chunk, from sums of gates and ups. */
static void activate(const many_run *run, const chunk_of_slots *c, int64_t f, int64_t n, const own_memory *own)
{
    const experts_layer *layer = run->layer;
    const product_finish plain = {layer->many_ints ? TN_F32 : layer->kernels.dtype, TN_ACT_LINEAR, NULL};
    float h[PRODUCT_FEW_ROWS];
    for (int64_t i = 0; i < c->count; i++)
        for (int64_t r = 0; r < n; r += PRODUCT_FEW_ROWS) {
            int32_t m = (int32_t)product_least(n - r, PRODUCT_FEW_ROWS);
            char *to = h_row(run, c, i) + (f + r) * h_element(layer);
            experts_glu(layer, c->expert, f + r, m, own->out[0] + i * STRIP + r, own->out[1] + i * STRIP + r, h);
            layer->kernels.row_out(h, &plain, m, to);
        }
}

static void first_product(const many_run *run, const chunk_of_slots *c, int64_t begin, int64_t end, own_memory *own)
{
    pack_tokens(run, c, own);
    for (int64_t f = begin; f < end; f += STRIP) {
        int64_t n = product_least(end - f, STRIP);
        multiply_strip(run, TN_ROLE_GATE, c, f, n, own->panel, own, own->out[0]);
        multiply_strip(run, TN_ROLE_UP, c, f, n, own->panel, own, own->out[1]);
        activate(run, c, f, n, own);
    }
}

/* At most STRIP columns of the second product of a chunk, times the weights of its slots. */
static void add_columns(const many_run *run, const chunk_of_slots *c, int64_t column, int64_t n, own_memory *own)
{
    const experts_layer *layer = run->layer;
    multiply_strip(run, TN_ROLE_DOWN, c, column, n, run->panels + c->panel, own, own->out[0]);
    for (int64_t i = 0; i < c->count; i++) {
        int64_t slot = run->order[c->begin + i];
        float *y = own->out[0] + i * STRIP, *sums = run->sums + slot / layer->top_k * layer->hidden + column;
        const void *parts[] = {sums, y};
        const float weights[] = {1.0f, run->weights[slot]};
        const product_combine sum = {
            .part_dtype = TN_F32, .dtype = TN_F32, .count = 2, .part = parts, .weight = weights};
        experts_add_bias(layer, c->expert, column, n, y);
        layer->kernels.combine(&sum, n, sums);
    }
}

static void second_product(const many_run *run, int64_t begin, int64_t end, own_memory *own)
{
    const experts_layer *layer = run->layer;
    const product_finish plain = {layer->kernels.dtype, TN_ACT_LINEAR, NULL};
    for (int64_t t = 0; t < run->tokens; t++)
        memset(run->sums + t * layer->hidden + begin, 0, (size_t)(end - begin) * sizeof(float));
    for (int64_t i = 0; i < run->chunk_count; i++)
        for (int64_t c = begin; c < end; c += STRIP)
            add_columns(run, &run->chunks[i], c, product_least(end - c, STRIP), own);
    for (int64_t t = 0; t < run->tokens; t++)
        for (int64_t c = begin; c < end; c += PRODUCT_FEW_ROWS)
            layer->kernels.row_out(
                run->sums + t * layer->hidden + c, &plain, (int32_t)product_least(end - c, PRODUCT_FEW_ROWS),
                (char *)product_row(&run->call->out[0], run->first + t) + c * product_element(&layer->kernels));
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
    product_rows piece;
    int64_t i, begin, end, units = (run->layer->inter + product_unit - 1) / product_unit;
    if (thread == 0) {
        experts_weights(run->layer, run->call, run->first, run->tokens, run->weights);
        sort_slots(run);
        cut_chunks(run, threads);
    }
    if (run->layer->many_ints)
        round_tokens(run, thread, threads, own);
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
    while (product_take_rows(run->columns, run->layer->hidden, thread, threads, &piece))
        second_product(run, piece.begin, piece.end, own);
}

void experts_many(const experts_layer *layer, const tn_call *call)
{
    int64_t all = product_tokens(&call->in[0]);
    for (int64_t first = 0; first < all; first += BLOCK) {
        product_queue queue[2] = {0};
        product_ranges columns = {0};
        int64_t tokens = product_least(all - first, BLOCK);
        many_run run = {.layer = layer,
                        .call = call,
                        .first = first,
                        .tokens = tokens,
                        .slots = tokens * layer->top_k,
                        .queue = queue,
                        .columns = &columns};
        layout(&run, layer, product_least(call->plan->max_tokens, BLOCK), call->plan->threads, call->scratch);
        tn_parallel(body, &run);
    }
}
