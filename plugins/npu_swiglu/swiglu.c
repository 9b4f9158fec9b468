/* The gated MLP over blocks of tokens, in one parallel section. */
#include "swiglu.h"

/* Tokens that go through both products before the next ones: their panels stay in the second and third cache (at
 * H = 1024, I = 3072: 0.5 and 1.5 MiB), and reading the weights again for the next block costs little beside them. */
#define BLOCK 256

/* Multiply-adds that one thread does while the team wakes up and meets at a barrier (1.5 us): less work than this stays
 * on the calling thread. */
#define SERIAL_WORK 30000

typedef struct swiglu_memory {
    char *x, *h; /* panels; few tokens: h as rows                                                  */
    char *thread;
    size_t x_rows, y_rows, few_x, product; /* within one thread's memory: pointers and scratch     */
    size_t thread_size, total;
} swiglu_memory;

typedef struct swiglu_run {
    const product_kernels *kernels;
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
    m.product = take(&at, product_scratch_size(kernels, widest));
    m.thread_size = at;
    at = 0;
    size_t x = take(&at, block * (size_t)product_panel_token(kernels, shape->hidden));
    size_t h = take(&at, block * (size_t)product_panel_token(kernels, shape->inter));
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

static void few_tokens(const swiglu_run *run, int32_t thread, int32_t threads)
{
    const product_kernels *kernels = run->kernels;
    const swiglu_memory *m = &run->memory;
    int64_t hidden = run->shape->hidden, inter = run->shape->inter, begin, end;
    int64_t h_row = product_panel_token(kernels, inter);
    int32_t n = (int32_t)run->tokens;
    const void *x[PRODUCT_FEW_TOKENS];
    void *h[PRODUCT_FEW_TOKENS], *y[PRODUCT_FEW_TOKENS];
    for (int32_t t = 0; t < n; t++) {
        x[t] = product_row(run->x, t);
        y[t] = product_row(run->y, t);
        h[t] = m->h + t * h_row;
    }
    /* Every thread converts the tokens for itself: cheaper than waiting for another to do it. */
    product_native_rows(kernels, x, n, hidden, m->thread + (size_t)thread * m->thread_size + m->few_x, x);
    while (product_take_rows(run->glus, inter, threads, &begin, &end))
        product_glu_few(kernels, run->mlp, hidden, run->act, x, n, begin, end, h);
    product_wait(threads);
    while (product_take_rows(run->outs, hidden, threads, &begin, &end))
        product_out_few(kernels, &run->mlp->down, inter, (const void *const *)h, n, begin, end, kernels->dtype, y);
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
    if (run->tokens <= run->kernels->few_tokens)
        few_tokens(run, thread, threads);
    else
        many_tokens(run, thread, threads);
}

void swiglu_forward(const product_kernels *kernels, const swiglu_shape *shape, const product_mlp *mlp, tn_act act,
                    const tn_tensor *x, const tn_tensor *y, void *scratch)
{
    product_queue glus = {0}, outs = {0};
    swiglu_run run = {kernels, shape, mlp, act, x, y, product_tokens(x), layout(kernels, shape, scratch), &glus, &outs};
    if (run.tokens == 0)
        return;
    if (run.tokens * shape->hidden * shape->inter * 3 < SERIAL_WORK)
        body(&run, 0, 1);
    else
        tn_parallel(body, &run);
}
