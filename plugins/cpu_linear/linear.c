/* The product of a call, in one parallel section. Few tokens stream the weights, each thread a share of its own; more
 * go by blocks, whose panel all threads pack together and then take rows of weights for, piece by piece. */
#include "linear.h"
#include "scratch.h"

typedef struct linear_memory {
    char *panel;
    char *thread;
    size_t x_rows, y_rows, native, product; /* within one thread's memory: pointers and scratch        */
    size_t thread_size, total;
} linear_memory;

typedef struct linear_run {
    const linear_layer *layer;
    const tn_tensor *x, *y;
    int64_t tokens;
    linear_memory memory;
    product_queue rows[2]; /* of this block and of the next                                            */
} linear_run;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Tokens that go through all weights before the next ones. */
static int64_t block_tokens(const linear_layer *layer)
{
    return least(layer->max_tokens, layer->kernels.variant->block);
}

/* scratch NULL: only the total counts. */
static linear_memory layout(const linear_layer *layer, char *scratch)
{
    const product_kernels *kernels = &layer->kernels;
    linear_memory m = {0};
    size_t block = (size_t)product_padded_tokens(kernels, block_tokens(layer)), at = 0;
    bool converts = kernels->variant->native != kernels->dtype;
    m.x_rows = scratch_take(&at, block * sizeof(void *));
    m.y_rows = scratch_take(&at, block * sizeof(void *));
    m.native = scratch_take(&at, converts ? PRODUCT_FEW_TOKENS * (size_t)layer->in * sizeof(float) : 0);
    m.product = scratch_take(&at, product_scratch_size(kernels, layer->in));
    m.thread_size = at;
    at = 0;
    size_t panel = scratch_take(&at, block * (size_t)product_panel_token(kernels, layer->in));
    size_t thread = scratch_take(&at, m.thread_size * (size_t)layer->threads);
    m.total = at;
    if (scratch) {
        m.panel = scratch + panel;
        m.thread = scratch + thread;
    }
    return m;
}

size_t linear_scratch_size(const linear_layer *layer)
{
    return layout(layer, NULL).total;
}

/* Pointers to the rows of a block. */
static void rows_of(const linear_run *run, int64_t first, int64_t n, char *mine, const void ***x, void ***y)
{
    *x = (const void **)(void *)(mine + run->memory.x_rows);
    *y = (void **)(void *)(mine + run->memory.y_rows);
    for (int64_t t = 0; t < n; t++) {
        (*x)[t] = product_row(run->x, first + t);
        (*y)[t] = product_row(run->y, first + t);
    }
}

/* Every thread converts the tokens for itself, which is cheaper than waiting for another to do it, and reads one
 * stretch of the weights from its beginning to its end. */
static void few_tokens(const linear_run *run, char *mine, int32_t thread, int32_t threads)
{
    const linear_layer *layer = run->layer;
    const void **x;
    void **y;
    int64_t begin, end;
    rows_of(run, 0, run->tokens, mine, &x, &y);
    product_native_rows(&layer->kernels, x, run->tokens, layer->in, mine + run->memory.native, x);
    product_share_rows(layer->out, thread, threads, &begin, &end);
    product_out_few(&layer->kernels, &layer->weight, layer->in, x, (int32_t)run->tokens, begin, end,
                    layer->kernels.dtype, y);
}

/* The queue of a block is emptied for the one after the next behind a barrier that everyone reaches only when done with
 * it. */
static void many_tokens(linear_run *run, char *mine, int32_t thread, int32_t threads)
{
    const linear_layer *layer = run->layer;
    const product_kernels *kernels = &layer->kernels;
    int64_t begin, end, block = block_tokens(layer);
    for (int64_t first = 0, i = 0; first < run->tokens; first += block, i++) {
        int64_t n = least(block, run->tokens - first);
        const void **x;
        void **y;
        rows_of(run, first, n, mine, &x, &y);
        if (i > 0)
            product_wait(threads);
        product_share(product_tiles(kernels, n), thread, threads, &begin, &end);
        product_pack(kernels, x, n, layer->in, begin, end, run->memory.panel);
        product_queue_reset(&run->rows[(i + 1) % 2], thread);
        product_wait(threads);
        while (product_take_rows(&run->rows[i % 2], layer->out, threads, &begin, &end))
            product_out_tiles(kernels, &layer->weight, layer->in, run->memory.panel, n, begin, end, kernels->dtype, y,
                              mine + run->memory.product);
    }
}

static void body(void *ctx, int32_t thread, int32_t threads)
{
    linear_run *run = ctx;
    char *mine = run->memory.thread + (size_t)thread * run->memory.thread_size;
    if (run->tokens <= run->layer->kernels.variant->few_tokens)
        few_tokens(run, mine, thread, threads);
    else
        many_tokens(run, mine, thread, threads);
}

void linear_forward(const linear_layer *layer, const tn_tensor *x, const tn_tensor *y, void *scratch)
{
    linear_run run = {.layer = layer, .x = x, .y = y, .tokens = product_tokens(x), .memory = layout(layer, scratch)};
    if (run.tokens == 0)
        return;
    if (run.tokens * layer->in * layer->out < linear_serial_work)
        body(&run, 0, 1);
    else
        tn_parallel(body, &run);
}
