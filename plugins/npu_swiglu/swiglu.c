/* The gated MLP over blocks of tokens, in one parallel section. */
#include "swiglu_run.h"

/* Elements of a weight matrix that stay in the first caches with the others: a layer as small goes through all tokens
 * by eights, without barriers, and in f32 throughout, which costs nothing there. */
#define SMALL_LAYER 8192
#define PAIRS (TN_CPU_AVX512_BF16 | TN_CPU_AVX512_FP16 | TN_CPU_AMX_BF16)

typedef struct swiglu_memory {
    char *x, *h; /* panels; few tokens: h as rows                                                  */
    char *thread;
    size_t x_rows, y_rows, few_x, few_h, product; /* within one thread's memory: pointers and scratch */
    size_t thread_size, total;
} swiglu_memory;

typedef struct swiglu_run {
    const swiglu_layer *layer;
    const tn_tensor *x, *y;
    int64_t tokens;
    swiglu_memory memory;
    product_ranges *glus, *outs;
} swiglu_run;

static bool is_small(const swiglu_layer *layer)
{
    return layer->hidden * layer->mlp.inter <= SMALL_LAYER;
}

/* scratch NULL: only the total counts. */
static swiglu_memory layout(const swiglu_layer *layer, char *scratch)
{
    const product_kernels *kernels = &layer->kernels;
    swiglu_memory m = {0};
    size_t block = (size_t)product_padded_tokens(kernels, swiglu_block_tokens(layer)), at = 0;
    int64_t widest = layer->hidden > layer->mlp.inter ? layer->hidden : layer->mlp.inter;
    bool converts = kernels->variant->native != kernels->dtype;
    m.x_rows = scratch_take(&at, block * sizeof(void *));
    m.y_rows = scratch_take(&at, block * sizeof(void *));
    m.few_x = scratch_take(&at, converts ? PRODUCT_FEW_TOKENS * (size_t)layer->hidden * sizeof(float) : 0);
    m.few_h = scratch_take(&at, is_small(layer) ? PRODUCT_FEW_TOKENS * (size_t)layer->mlp.inter * sizeof(float) : 0);
    m.product = scratch_take(&at, product_scratch_size(kernels, widest));
    m.thread_size = at;
    at = 0;
    size_t x = scratch_take(&at, block * (size_t)product_panel_token(kernels, layer->hidden));
    size_t few = PRODUCT_FEW_TOKENS * (size_t)layer->mlp.inter * sizeof(float);
    size_t panel = block * (size_t)product_panel_token(kernels, layer->mlp.inter);
    size_t h = scratch_take(&at, panel > few ? panel : few);
    size_t thread = scratch_take(&at, m.thread_size * (size_t)layer->threads);
    m.total = at;
    if (scratch) {
        m.x = scratch + x;
        m.h = scratch + h;
        m.thread = scratch + thread;
    }
    return m;
}

size_t swiglu_scratch_size(const swiglu_layer *layer)
{
    return layer->sparse ? swiglu_sparse_scratch_size(layer) : layout(layer, NULL).total;
}

/* Tokens first .. first + n - 1 as rows of native type; every thread converts them for itself, which is cheaper than
 * waiting for another to do it. */
static void few_rows(const swiglu_run *run, int64_t first, int32_t n, char *mine, const void **x, void **y)
{
    for (int32_t t = 0; t < n; t++) {
        x[t] = product_row(run->x, first + t);
        y[t] = product_row(run->y, first + t);
    }
    product_native_rows(&run->layer->kernels, x, n, run->layer->hidden, mine + run->memory.few_x, x);
}

static void few_tokens(const swiglu_run *run, int32_t thread, int32_t threads)
{
    const swiglu_memory *m = &run->memory;
    const product_kernels *kernels = &run->layer->kernels;
    int64_t hidden = run->layer->hidden, inter = run->layer->mlp.inter;
    product_rows piece;
    int32_t n = (int32_t)run->tokens;
    const void *x[PRODUCT_FEW_TOKENS] = {0};
    void *h[PRODUCT_FEW_TOKENS], *y[PRODUCT_FEW_TOKENS];
    few_rows(run, 0, n, m->thread + (size_t)thread * m->thread_size, x, y);
    for (int32_t t = 0; t < n; t++)
        h[t] = m->h + t * inter * (kernels->variant->native == TN_F32 ? 4 : 2);
    while (product_take_rows(run->glus, inter, thread, threads, &piece))
        product_glu_few(kernels, &run->layer->mlp, hidden, run->layer->act, x, n, piece, kernels->variant->native, h);
    product_wait(threads);
    while (product_take_rows(run->outs, hidden, thread, threads, &piece))
        product_out_few(kernels, &run->layer->mlp.down, inter, (const void *const *)h, n, piece, kernels->dtype, y);
}

static void small_layer(const swiglu_run *run, int32_t thread, int32_t threads)
{
    const swiglu_memory *m = &run->memory;
    const product_kernels *kernels = &run->layer->kernels;
    char *mine = m->thread + (size_t)thread * m->thread_size;
    int64_t hidden = run->layer->hidden, inter = run->layer->mlp.inter, begin, end;
    product_share((run->tokens + PRODUCT_FEW_TOKENS - 1) / PRODUCT_FEW_TOKENS, thread, threads, &begin, &end);
    for (int64_t first = begin * PRODUCT_FEW_TOKENS; first < end * PRODUCT_FEW_TOKENS && first < run->tokens;
         first += PRODUCT_FEW_TOKENS) {
        const void *x[PRODUCT_FEW_TOKENS] = {0};
        void *h[PRODUCT_FEW_TOKENS], *y[PRODUCT_FEW_TOKENS];
        int64_t left = run->tokens - first;
        int32_t n = left < PRODUCT_FEW_TOKENS ? (int32_t)left : PRODUCT_FEW_TOKENS;
        few_rows(run, first, n, mine, x, y);
        for (int32_t t = 0; t < n; t++)
            h[t] = mine + m->few_h + (size_t)t * (size_t)inter * sizeof(float);
        product_glu_few(kernels, &run->layer->mlp, hidden, run->layer->act, x, n, product_rows_of(0, inter),
                        kernels->variant->native, h);
        product_out_few(kernels, &run->layer->mlp.down, inter, (const void *const *)h, n, product_rows_of(0, hidden),
                        kernels->dtype, y);
    }
}

static void many_tokens(const swiglu_run *run, int32_t thread, int32_t threads)
{
    const product_kernels *kernels = &run->layer->kernels;
    const swiglu_memory *m = &run->memory;
    int64_t hidden = run->layer->hidden, inter = run->layer->mlp.inter, block = swiglu_block_tokens(run->layer), begin,
            end;
    product_rows piece;
    char *mine = m->thread + (size_t)thread * m->thread_size, *scratch = mine + m->product;
    const void **x_rows = (const void **)(void *)(mine + m->x_rows);
    void **y_rows = (void **)(void *)(mine + m->y_rows);
    for (int64_t first = 0; first < run->tokens; first += block) {
        int64_t n = run->tokens - first < block ? run->tokens - first : block;
        for (int64_t t = 0; t < n; t++) {
            x_rows[t] = product_row(run->x, first + t);
            y_rows[t] = product_row(run->y, first + t);
        }
        /* Nobody reads the panel of x any more when the first thread is through with a block's gates and ups; that
         * of h is written again only behind the next barrier. */
        product_share(product_tiles(kernels, n), thread, threads, &begin, &end);
        product_pack(kernels, x_rows, n, hidden, begin, end, m->x);
        product_wait(threads);
        if (thread == 0)
            product_ranges_reset(run->outs);
        while (product_take_rows(run->glus, inter, thread, threads, &piece))
            product_glu_tiles(kernels, &run->layer->mlp, hidden, run->layer->act, m->x, n, piece, m->h, scratch);
        product_wait(threads);
        if (thread == 0)
            product_ranges_reset(run->glus);
        while (product_take_rows(run->outs, hidden, thread, threads, &piece))
            product_out_tiles(kernels, &run->layer->mlp.down, inter, m->h, n, piece, kernels->dtype, y_rows, scratch);
    }
}

static void body(void *ctx, int32_t thread, int32_t threads)
{
    const swiglu_run *run = ctx;
    if (is_small(run->layer))
        small_layer(run, thread, threads);
    else if (run->tokens <= run->layer->kernels.variant->few_tokens)
        few_tokens(run, thread, threads);
    else
        many_tokens(run, thread, threads);
}

void swiglu_layer_init(swiglu_layer *layer, tn_dtype dtype, uint64_t cpu_flags)
{
    product_kernels_init(&layer->kernels, dtype, is_small(layer) ? cpu_flags & ~PAIRS : cpu_flags);
    product_kernels_init(&layer->full, TN_F32, cpu_flags);
    gate_kernels_init(&layer->gates, cpu_flags);
}

void swiglu_forward(const swiglu_layer *layer, const tn_tensor *x, const tn_tensor *y, void *scratch)
{
    if (layer->sparse) {
        swiglu_sparse_forward(layer, x, y, scratch);
        return;
    }
    product_ranges glus = {0}, outs = {0};
    swiglu_run run = {layer, x, y, product_tokens(x), layout(layer, scratch), &glus, &outs};
    if (run.tokens > 0)
        swiglu_start(layer, run.tokens, body, &run);
}
