/* The gated MLP over blocks of tokens, in one parallel section. */
#include "swiglu.h"

/* Tokens that go through both products before the next ones: their panels stay in the second and third cache (at
 * H = 1024, I = 3072: 0.5 and 1.5 MiB), and reading the weights again for the next block costs little beside them. */
#define BLOCK 256

/* Up to so many tokens the hidden vector stays f32 even where the dot product takes bf16: reading the weights takes
 * longer than what is done with them. */
#define WIDE_TOKENS 4

/* Elements of a weight matrix that stay in the first caches with the others: a layer as small goes through all tokens
 * by eights, without barriers and with the hidden vector in f32. */
#define SMALL_LAYER 8192

/* Multiply-adds that one thread does while the team wakes up and meets at a barrier (1.5 us): less work than this stays
 * on the calling thread. */
#define SERIAL_WORK 30000

typedef struct swiglu_memory {
    char *x, *h; /* panels; few tokens: h as rows                                                  */
    char *thread;
    size_t x_rows, y_rows, few_x, few_h, product; /* within one thread's memory: pointers and scratch */
    size_t thread_size, total;
} swiglu_memory;

typedef struct swiglu_run {
    const product_kernels *kernels;
    const product_kernels *wide; /* of the same dtype with f32 as native type                          */
    const swiglu_shape *shape;
    const product_mlp *mlp;
    tn_act act;
    const tn_tensor *x, *y;
    int64_t tokens;
    swiglu_memory memory;
    product_queue *glus, *outs; /* of a call with few tokens                                       */
} swiglu_run;

static size_t take(size_t *at, size_t bytes)
{
    size_t here = *at;
    *at += (bytes + 63) / 64 * 64;
    return here;
}

static int64_t block_tokens(const swiglu_shape *shape)
{
    return shape->max_tokens < BLOCK ? shape->max_tokens : BLOCK;
}

static bool is_small(const swiglu_shape *shape)
{
    return shape->hidden * shape->inter <= SMALL_LAYER;
}

/* scratch NULL: only the total counts. */
static swiglu_memory layout(const product_kernels *kernels, const swiglu_shape *shape, char *scratch)
{
    swiglu_memory m = {0};
    size_t block = (size_t)product_padded_tokens(kernels, block_tokens(shape)), at = 0;
    int64_t widest = shape->hidden > shape->inter ? shape->hidden : shape->inter;
    bool converts = kernels->native != kernels->dtype;
    m.x_rows = take(&at, block * sizeof(void *));
    m.y_rows = take(&at, block * sizeof(void *));
    m.few_x = take(&at, converts ? PRODUCT_FEW_TOKENS * (size_t)shape->hidden * sizeof(float) : 0);
    m.few_h = take(&at, is_small(shape) ? PRODUCT_FEW_TOKENS * (size_t)shape->inter * sizeof(float) : 0);
    m.product = take(&at, product_scratch_size(kernels, widest));
    m.thread_size = at;
    at = 0;
    size_t x = take(&at, block * (size_t)product_panel_token(kernels, shape->hidden));
    size_t few = WIDE_TOKENS * (size_t)shape->inter * sizeof(float);
    size_t panel = block * (size_t)product_panel_token(kernels, shape->inter);
    size_t h = take(&at, panel > few ? panel : few);
    size_t thread = take(&at, m.thread_size * (size_t)shape->threads);
    m.total = at;
    if (scratch) {
        m.x = scratch + x;
        m.h = scratch + h;
        m.thread = scratch + thread;
    }
    return m;
}

size_t swiglu_scratch_size(const product_kernels *kernels, const swiglu_shape *shape)
{
    return layout(kernels, shape, NULL).total;
}

/* Tokens first .. first + n - 1 as rows of native type; every thread converts them for itself, which is cheaper than
 * waiting for another to do it. */
static void few_rows(const swiglu_run *run, int64_t first, int32_t n, char *mine, const void **x, void **y)
{
    for (int32_t t = 0; t < n; t++) {
        x[t] = product_row(run->x, first + t);
        y[t] = product_row(run->y, first + t);
    }
    product_native_rows(run->kernels, x, n, run->shape->hidden, mine + run->memory.few_x, x);
}

static void few_tokens(const swiglu_run *run, int32_t thread, int32_t threads)
{
    const swiglu_memory *m = &run->memory;
    const product_kernels *second = run->tokens <= WIDE_TOKENS ? run->wide : run->kernels;
    int64_t hidden = run->shape->hidden, inter = run->shape->inter, begin, end;
    int32_t n = (int32_t)run->tokens;
    const void *x[PRODUCT_FEW_TOKENS] = {0};
    void *h[PRODUCT_FEW_TOKENS], *y[PRODUCT_FEW_TOKENS];
    few_rows(run, 0, n, m->thread + (size_t)thread * m->thread_size, x, y);
    for (int32_t t = 0; t < n; t++)
        h[t] = m->h + t * inter * (second->native == TN_F32 ? 4 : 2);
    while (product_take_rows(run->glus, inter, threads, &begin, &end))
        product_glu_few(run->kernels, run->mlp, hidden, run->act, x, n, begin, end, second->native, h);
    product_wait(threads);
    while (product_take_rows(run->outs, hidden, threads, &begin, &end))
        product_out_few(second, &run->mlp->down, inter, (const void *const *)h, n, begin, end, second->dtype, y);
}

static void small_layer(const swiglu_run *run, int32_t thread, int32_t threads)
{
    const swiglu_memory *m = &run->memory;
    char *mine = m->thread + (size_t)thread * m->thread_size;
    int64_t hidden = run->shape->hidden, inter = run->shape->inter, begin, end;
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
        product_glu_few(run->kernels, run->mlp, hidden, run->act, x, n, 0, inter, TN_F32, h);
        product_out_few(run->wide, &run->mlp->down, inter, (const void *const *)h, n, 0, hidden, run->wide->dtype, y);
    }
}

static void many_tokens(const swiglu_run *run, int32_t thread, int32_t threads)
{
    const product_kernels *kernels = run->kernels;
    const swiglu_memory *m = &run->memory;
    int64_t hidden = run->shape->hidden, inter = run->shape->inter, block = block_tokens(run->shape), begin, end;
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
        product_share_rows(inter, thread, threads, &begin, &end);
        product_glu_tiles(kernels, run->mlp, hidden, run->act, m->x, n, begin, end, m->h, scratch);
        product_wait(threads);
        product_share_rows(hidden, thread, threads, &begin, &end);
        product_out_tiles(kernels, &run->mlp->down, inter, m->h, n, begin, end, kernels->dtype, y_rows, scratch);
    }
}

static void body(void *ctx, int32_t thread, int32_t threads)
{
    const swiglu_run *run = ctx;
    if (is_small(run->shape))
        small_layer(run, thread, threads);
    else if (run->tokens <= run->kernels->few_tokens)
        few_tokens(run, thread, threads);
    else
        many_tokens(run, thread, threads);
}

void swiglu_forward(const product_kernels *kernels, const product_kernels *wide, const swiglu_shape *shape,
                    const product_mlp *mlp, tn_act act, const tn_tensor *x, const tn_tensor *y, void *scratch)
{
    product_queue glus = {0}, outs = {0};
    swiglu_run run = {.kernels = kernels,
                      .wide = wide,
                      .shape = shape,
                      .mlp = mlp,
                      .act = act,
                      .x = x,
                      .y = y,
                      .tokens = product_tokens(x),
                      .memory = layout(kernels, shape, scratch),
                      .glus = &glus,
                      .outs = &outs};
    if (run.tokens == 0)
        return;
    if (run.tokens * shape->hidden * shape->inter * 3 < SERIAL_WORK)
        body(&run, 0, 1);
    else
        tn_parallel(body, &run);
}
