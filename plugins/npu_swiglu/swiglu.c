/* The gated MLP over blocks of tokens, in one parallel section. */
#include "swiglu.h"

/* Tokens that go through both products before the next ones: their panels stay in the second and third cache (at
 * H = 1024, I = 3072: 0.5 and 1.5 MiB), and reading the weights again for the next block costs little beside them. */
#define BLOCK 256

/* Products (multiply-adds) below which waking a second thread costs more than it saves. */
#define SERIAL_WORK 100000

typedef struct swiglu_memory {
    char *x, *h;         /* panels, or rows                                                       */
    const void **x_rows; /* of the block's tokens                                                 */
    void **y_rows;
    void **h_rows; /* few tokens only                                                       */
    char *thread_scratch;
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
} swiglu_run;

static size_t aligned(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static int64_t block_tokens(const swiglu_shape *shape)
{
    return shape->max_tokens < BLOCK ? shape->max_tokens : BLOCK;
}

/* Rows of the few-token way need no more than the panels: both hold every element once. */
static swiglu_memory layout(const product_kernels *kernels, const swiglu_shape *shape, char *scratch)
{
    swiglu_memory m = {0};
    size_t block = (size_t)product_padded_tokens(kernels, block_tokens(shape)),
           pointers = aligned(block * sizeof(void *));
    int64_t widest = shape->hidden > shape->inter ? shape->hidden : shape->inter;
    size_t at = 0, x = at;
    at += aligned(block * (size_t)product_panel_token(kernels, shape->hidden));
    size_t h = at;
    at += aligned(block * (size_t)product_panel_token(kernels, shape->inter));
    size_t rows = at;
    at += 3 * pointers;
    m.thread_size = aligned(product_scratch_size(kernels, widest));
    m.total = at + m.thread_size * (size_t)shape->threads;
    if (scratch) {
        m.x = scratch + x;
        m.h = scratch + h;
        m.x_rows = (const void **)(void *)(scratch + rows);
        m.y_rows = (void **)(void *)(scratch + rows + pointers);
        m.h_rows = (void **)(void *)(scratch + rows + 2 * pointers);
        m.thread_scratch = scratch + at;
    }
    return m;
}

size_t swiglu_scratch_size(const product_kernels *kernels, const swiglu_shape *shape)
{
    return layout(kernels, shape, NULL).total;
}

/* Pointers of a block's rows. */
static void find_rows(const swiglu_run *run, int64_t first, int64_t n)
{
    const swiglu_memory *m = &run->memory;
    int64_t h_row = product_panel_token(run->kernels, run->mlp->inter);
    for (int64_t t = 0; t < n; t++) {
        m->x_rows[t] = product_row(run->x, first + t);
        m->y_rows[t] = product_row(run->y, first + t);
        m->h_rows[t] = m->h + t * h_row;
    }
}

static void few_tokens(const swiglu_run *run, int32_t thread, int32_t threads)
{
    const product_kernels *kernels = run->kernels;
    const swiglu_memory *m = &run->memory;
    int64_t hidden = run->shape->hidden, inter = run->shape->inter, begin, end;
    if (thread == 0) {
        find_rows(run, 0, run->tokens);
        product_native_rows(kernels, m->x_rows, run->tokens, hidden, m->x, m->x_rows);
    }
    product_wait(threads);
    product_share_rows(inter, thread, threads, &begin, &end);
    product_glu_few(kernels, run->mlp, hidden, run->act, m->x_rows, (int32_t)run->tokens, begin, end, m->h_rows);
    product_wait(threads);
    product_share_rows(hidden, thread, threads, &begin, &end);
    product_out_few(kernels, &run->mlp->down, inter, (const void *const *)m->h_rows, (int32_t)run->tokens, begin, end,
                    m->y_rows);
}

static void many_tokens(const swiglu_run *run, int32_t thread, int32_t threads)
{
    const product_kernels *kernels = run->kernels;
    const swiglu_memory *m = &run->memory;
    int64_t hidden = run->shape->hidden, inter = run->shape->inter, block = block_tokens(run->shape), begin, end;
    char *scratch = m->thread_scratch + (size_t)thread * m->thread_size;
    for (int64_t first = 0; first < run->tokens; first += block) {
        int64_t n = run->tokens - first < block ? run->tokens - first : block;
        if (thread == 0)
            find_rows(run, first, n);
        product_wait(threads);
        product_share(product_tiles(kernels, n), thread, threads, &begin, &end);
        product_pack(kernels, m->x_rows, n, hidden, begin, end, m->x);
        product_wait(threads);
        product_share_rows(inter, thread, threads, &begin, &end);
        product_glu_tiles(kernels, run->mlp, hidden, run->act, m->x, n, begin, end, m->h, scratch);
        product_wait(threads);
        product_share_rows(hidden, thread, threads, &begin, &end);
        product_out_tiles(kernels, &run->mlp->down, inter, m->h, n, begin, end, m->y_rows, scratch);
        product_wait(threads);
    }
}

static void body(void *ctx, int32_t thread, int32_t threads)
{
    const swiglu_run *run = ctx;
    if (run->tokens <= PRODUCT_FEW_TOKENS)
        few_tokens(run, thread, threads);
    else
        many_tokens(run, thread, threads);
}

void swiglu_forward(const product_kernels *kernels, const swiglu_shape *shape, const product_mlp *mlp, tn_act act,
                    const tn_tensor *x, const tn_tensor *y, void *scratch)
{
    swiglu_run run = {kernels, shape, mlp, act, x, y, product_tokens(x), layout(kernels, shape, scratch)};
    if (run.tokens == 0)
        return;
    if (run.tokens * shape->hidden * shape->inter * 3 < SERIAL_WORK)
        body(&run, 0, 1);
    else
        tn_parallel(body, &run);
}
