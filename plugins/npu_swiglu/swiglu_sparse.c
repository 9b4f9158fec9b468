/* Gated MLPs with Gaussian sparsity: where a row of gates is cut is known only when all of them are there, so the sums
 * of gates and ups are kept as rows of f32, and the hidden vector takes the place of the ups. */
#include "swiglu_run.h"

typedef struct sparse_memory {
    char *x, *h;     /* panels                                                                     */
    char *gate, *up; /* rows of f32                                                                */
    int64_t space;   /* from one of these, and of few tokens' h, to the next                       */
    char *thread;
    size_t x_rows, y_rows, gate_rows, up_rows, few_x, product; /* within one thread's memory          */
    size_t thread_size, total;
} sparse_memory;

typedef struct sparse_run {
    const swiglu_layer *layer;
    const tn_tensor *x, *y;
    int64_t tokens;
    sparse_memory memory;
    product_ranges *sums, *outs;
} sparse_run;

/* What one thread works with: pointers to the rows of a block. */
typedef struct sparse_rows {
    const void **x;
    void **y, **gate, **up;
    char *few_x, *product;
} sparse_rows;

/* scratch NULL: only the total counts. */
static sparse_memory layout(const swiglu_layer *layer, char *scratch)
{
    const product_kernels *kernels = &layer->kernels;
    int64_t hidden = layer->hidden, inter = layer->mlp.inter;
    sparse_memory m = {.space = product_row_space(inter)};
    size_t block = (size_t)product_padded_tokens(kernels, swiglu_block_tokens(layer)), at = 0;
    m.x_rows = scratch_take(&at, block * sizeof(void *));
    m.y_rows = scratch_take(&at, block * sizeof(void *));
    m.gate_rows = scratch_take(&at, block * sizeof(void *));
    m.up_rows = scratch_take(&at, block * sizeof(void *));
    m.few_x = scratch_take(&at, PRODUCT_FEW_TOKENS * (size_t)hidden * sizeof(float));
    m.product = scratch_take(&at, product_scratch_size(kernels, hidden > inter ? hidden : inter));
    m.thread_size = at;
    at = 0;
    size_t x = scratch_take(&at, block * (size_t)product_panel_token(kernels, hidden));
    size_t panel = block * (size_t)product_panel_token(kernels, inter), few = PRODUCT_FEW_TOKENS * (size_t)m.space;
    size_t h = scratch_take(&at, panel > few ? panel : few);
    size_t gate = scratch_take(&at, block * (size_t)m.space), up = scratch_take(&at, block * (size_t)m.space);
    size_t thread = scratch_take(&at, m.thread_size * (size_t)layer->threads);
    m.total = at;
    if (scratch) {
        m.x = scratch + x;
        m.h = scratch + h;
        m.gate = scratch + gate;
        m.up = scratch + up;
        m.thread = scratch + thread;
    }
    return m;
}

size_t swiglu_sparse_scratch_size(const swiglu_layer *layer)
{
    return layout(layer, NULL).total;
}

static sparse_rows rows_of_block(const sparse_run *run, int32_t thread, int64_t first, int64_t n)
{
    const sparse_memory *m = &run->memory;
    char *mine = m->thread + (size_t)thread * m->thread_size;
    sparse_rows rows = {.x = (const void **)(void *)(mine + m->x_rows),
                        .y = (void **)(void *)(mine + m->y_rows),
                        .gate = (void **)(void *)(mine + m->gate_rows),
                        .up = (void **)(void *)(mine + m->up_rows),
                        .few_x = mine + m->few_x,
                        .product = mine + m->product};
    for (int64_t t = 0; t < n; t++) {
        rows.x[t] = product_row(run->x, first + t);
        rows.y[t] = product_row(run->y, first + t);
        rows.gate[t] = m->gate + t * m->space;
        rows.up[t] = m->up + t * m->space;
    }
    return rows;
}

/* Features begin .. end - 1 of one token's hidden vector, of native type; h may be the place of the ups. */
static void hidden_row(const swiglu_layer *layer, const float *gate, const void *up, int64_t begin, int64_t end,
                       char *h)
{
    tn_dtype dtype = layer->kernels.variant->native;
    gate_cut cut = {.quantile = layer->quantile};
    layer->gates.cut(gate, layer->mlp.inter, &cut);
    gate_row row = {.act = layer->act,
                    .dtype = dtype,
                    .gate = gate + begin,
                    .up = (const float *)up + begin,
                    .cut = &cut,
                    .h = h + begin * (dtype == TN_F32 ? 4 : 2)};
    layer->gates.glu(&row, end - begin);
}

/* Every thread looks at all gates and takes a part of the features. */
static void few_tokens(const sparse_run *run, int32_t thread, int32_t threads)
{
    const swiglu_layer *layer = run->layer;
    const product_kernels *kernels = &layer->kernels;
    int64_t hidden = layer->hidden, inter = layer->mlp.inter, begin, end;
    product_rows piece;
    int32_t n = (int32_t)run->tokens;
    sparse_rows rows = rows_of_block(run, thread, 0, n);
    product_native_rows(kernels, rows.x, n, hidden, rows.few_x, rows.x);
    while (product_take_rows(run->sums, inter, thread, threads, &piece)) {
        product_out_few(kernels, &layer->mlp.gate, hidden, rows.x, n, piece, TN_F32, rows.gate);
        product_out_few(kernels, &layer->mlp.up, hidden, rows.x, n, piece, TN_F32, rows.up);
    }
    product_wait(threads);
    product_share_rows(inter, thread, threads, &begin, &end);
    const void *h[PRODUCT_FEW_TOKENS];
    for (int32_t t = 0; t < n; t++) {
        char *row = run->memory.h + t * run->memory.space; /* not in place: others still read ups */
        h[t] = row;
        if (begin < end)
            hidden_row(layer, rows.gate[t], rows.up[t], begin, end, row);
    }
    product_wait(threads);
    while (product_take_rows(run->outs, hidden, thread, threads, &piece))
        product_out_few(kernels, &layer->mlp.down, inter, h, n, piece, kernels->dtype, rows.y);
}

static void block_of_tokens(const sparse_run *run, int32_t thread, int32_t threads, int64_t first, int64_t n)
{
    const swiglu_layer *layer = run->layer;
    const product_kernels *kernels = &layer->kernels;
    const sparse_memory *m = &run->memory;
    /* Rows of native type are packed by the kernels of that type: the panels are the same. */
    const product_kernels *packing = kernels->variant->native == TN_F32 ? &layer->full : kernels;
    int64_t hidden = layer->hidden, inter = layer->mlp.inter, begin, end;
    product_rows piece;
    sparse_rows rows = rows_of_block(run, thread, first, n);
    product_share(product_tiles(kernels, n), thread, threads, &begin, &end);
    product_pack(kernels, rows.x, n, hidden, begin, end, m->x);
    product_wait(threads);
    if (thread == 0)
        product_ranges_reset(run->outs);
    while (product_take_rows(run->sums, inter, thread, threads, &piece)) {
        product_out_tiles(kernels, &layer->mlp.gate, hidden, m->x, n, piece, TN_F32, rows.gate, rows.product);
        product_out_tiles(kernels, &layer->mlp.up, hidden, m->x, n, piece, TN_F32, rows.up, rows.product);
    }
    product_wait(threads);
    if (thread == 0)
        product_ranges_reset(run->sums);
    /* A thread's tokens are those of its tiles: it packs them at once. */
    product_share(product_tiles(kernels, n), thread, threads, &begin, &end);
    int64_t last = end < product_tiles(kernels, n) ? end * kernels->variant->tile_tokens : n;
    for (int64_t t = begin * kernels->variant->tile_tokens; begin < end && t < last; t++)
        hidden_row(layer, rows.gate[t], rows.up[t], 0, inter, rows.up[t]);
    product_pack(packing, (const void *const *)rows.up, n, inter, begin, end, m->h);
    product_wait(threads);
    while (product_take_rows(run->outs, hidden, thread, threads, &piece))
        product_out_tiles(kernels, &layer->mlp.down, inter, m->h, n, piece, kernels->dtype, rows.y, rows.product);
}

static void body(void *ctx, int32_t thread, int32_t threads)
{
    const sparse_run *run = ctx;
    int64_t block = swiglu_block_tokens(run->layer);
    if (run->tokens <= run->layer->kernels.variant->few_tokens)
        few_tokens(run, thread, threads);
    else
        for (int64_t first = 0; first < run->tokens; first += block)
            block_of_tokens(run, thread, threads, first, swiglu_least(block, run->tokens - first));
}

void swiglu_sparse_forward(const swiglu_layer *layer, const tn_tensor *x, const tn_tensor *y, void *scratch)
{
    product_ranges sums = {0}, outs = {0};
    sparse_run run = {layer, x, y, product_tokens(x), layout(layer, scratch), &sums, &outs};
    if (run.tokens > 0)
        swiglu_start(layer, run.tokens, body, &run);
}
