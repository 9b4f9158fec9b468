/* Gradients of a linear layer: dx = dy W, dW = dy^T x, db the sum of dy over tokens. Threads take pieces of all three
 * from queues, and none waits for another. */
#include "linear.h"
#include "product_parts.h"
#include "scratch.h"

#include <string.h>

/* Tokens and columns of a piece of dx, rows of a piece of dW: what one thread keeps in its second cache. */
enum { TOKENS = 512, COLUMNS = 256, ROWS = 512 };

/* Columns of a piece of db. */
enum { SUMS = 64 };

typedef struct grad_memory {
    size_t native, y_rows, product; /* within one thread's memory                                   */
    size_t thread_size, total;
} grad_memory;

typedef struct grad_run {
    const linear_layer *layer;
    const linear_gradients *to;
    product_tokens_matrix x, dy;
    int64_t tokens;
    grad_memory memory;
    char *scratch;
    int64_t dx_tokens, dx_columns, dw_rows; /* of a piece                                           */
    product_queue dx, dw, db;
} grad_run;

static bool wanted(const tn_tensor *t)
{
    return t && t->data;
}

static int64_t pieces(int64_t count, int64_t each)
{
    return (count + each - 1) / each;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static grad_memory layout(const linear_layer *layer)
{
    const product_kernels *kernels = &layer->kernels;
    grad_memory m = {0};
    bool converts = kernels->variant->native != kernels->dtype;
    size_t at = 0;
    m.native = scratch_take(&at, converts ? PRODUCT_FEW_TOKENS * (size_t)layer->out * sizeof(float) : 0);
    m.y_rows = scratch_take(&at, 2 * TOKENS * sizeof(void *));
    size_t lines = product_lines_scratch_size(kernels, layer->out);
    size_t grad = product_grad_scratch_size(kernels, layer->max_tokens);
    m.product = scratch_take(&at, lines > grad ? lines : grad);
    m.thread_size = at;
    m.total = at * (size_t)layer->threads;
    return m;
}

size_t linear_backward_scratch_size(const linear_layer *layer)
{
    return layout(layer).total;
}

/* One piece of dx: some tokens by some columns. */
static void do_dx(const grad_run *run, int64_t piece, char *mine)
{
    const linear_layer *layer = run->layer;
    const product_kernels *kernels = &layer->kernels;
    int64_t across = pieces(layer->in, run->dx_columns), size = product_element(kernels);
    int64_t begin = piece % across * run->dx_columns, end = product_least(begin + run->dx_columns, layer->in);
    int64_t first = piece / across * run->dx_tokens, n = product_least(run->dx_tokens, run->tokens - first);
    void **y = (void **)(void *)(mine + run->memory.y_rows);
    const char *dy = (const char *)run->dy.data + first * run->dy.stride * size;
    for (int64_t t = 0; t < n; t++)
        y[t] = product_row(run->to->dx, first + t);
    if (n <= PRODUCT_FEW_COLUMNS && n <= kernels->variant->few_tokens) {
        const product_matrix columns = {layer->weight.data, 1, layer->weight.row_stride, NULL};
        const void **rows = (const void **)(void *)(y + n);
        for (int64_t t = 0; t < n; t++)
            rows[t] = dy + t * run->dy.stride * size;
        product_native_rows(kernels, rows, n, layer->out, mine + run->memory.native, rows);
        product_out_few(kernels, &columns, layer->out, rows, (int32_t)n, product_rows_of(begin, end), kernels->dtype,
                        y);
        return;
    }
    const product_matrix rows = {dy, run->dy.stride, 1, NULL};
    const product_columns columns = {layer->weight.data, layer->weight.row_stride};
    product_lines(kernels, &rows, n, &columns, layer->out, begin, end, kernels->dtype, y, mine + run->memory.product);
}

static void do_dw(const grad_run *run, int64_t piece, char *mine)
{
    const linear_layer *layer = run->layer;
    const tn_tensor *dw = run->to->weight;
    int64_t begin = piece * run->dw_rows, end = product_least(begin + run->dw_rows, layer->out);
    product_weight_grad(&layer->kernels, &run->dy, &run->x, run->tokens, begin, end, layer->in, dw->data, dw->stride[0],
                        mine + run->memory.product);
}

/* Token after token. */
static void do_db(const grad_run *run, int64_t piece)
{
    const product_kernels *kernels = &run->layer->kernels;
    const product_finish finish = {.dtype = kernels->dtype};
    int64_t size = product_element(kernels), begin = piece * SUMS;
    int64_t n = product_least(SUMS, run->layer->out - begin);
    float sums[SUMS] = {0}, one[SUMS];
    for (int64_t t = 0; t < run->tokens; t++) {
        kernels->widen((const char *)run->dy.data + (t * run->dy.stride + begin) * size, n, one);
        for (int64_t i = 0; i < n; i++)
            sums[i] += one[i];
    }
    for (int64_t i = 0; i < n; i += PRODUCT_FEW_ROWS)
        kernels->row_out(sums + i, &finish, (int32_t)product_least(n - i, PRODUCT_FEW_ROWS),
                         (char *)run->to->bias->data + (begin + i) * size);
}

static int64_t next(product_queue *queue)
{
    return atomic_fetch_add_explicit(&queue->next, 1, memory_order_relaxed);
}

static void body(void *ctx, int32_t thread, int32_t threads)
{
    grad_run *run = ctx;
    const linear_layer *layer = run->layer;
    char *mine = run->scratch + (size_t)thread * run->memory.thread_size;
    int64_t i, dx = pieces(layer->in, run->dx_columns) * pieces(run->tokens, run->dx_tokens);
    (void)threads;
    while (wanted(run->to->dx) && (i = next(&run->dx)) < dx)
        do_dx(run, i, mine);
    while (wanted(run->to->weight) && (i = next(&run->dw)) < pieces(layer->out, run->dw_rows))
        do_dw(run, i, mine);
    while (wanted(run->to->bias) && (i = next(&run->db)) < pieces(layer->out, SUMS))
        do_db(run, i);
}

static void clear(const tn_tensor *t)
{
    for (int64_t row = 0, rows = wanted(t) ? product_tokens(t) : 0; row < rows; row++)
        memset(product_row(t, row), 0, (size_t)t->shape[t->ndim - 1] * tn_dtype_size(t->dtype));
}

/* A share of n for each of four times the threads, in whole units, but no more than is best. */
static int64_t share(int64_t n, int32_t threads, int64_t best)
{
    int64_t each = n / (4 * threads) / 32 * 32;
    return threads == 1 ? best : product_least(most(each, 32), best);
}

tn_status linear_backward(const linear_layer *layer, const tn_tensor *x, const linear_gradients *to, void *scratch,
                          const char *where, tn_error *err)
{
    grad_run run = {.layer = layer, .to = to, .tokens = product_tokens(x), .scratch = scratch};
    if (run.tokens == 0 || !wanted(to->dy)) {
        clear(to->dx);
        clear(to->weight);
        clear(to->bias);
        return TN_OK;
    }
    run.memory = layout(layer);
    run.x = product_all_rows(x);
    run.dy = product_all_rows(to->dy);
    if (!run.x.data || !run.dy.data)
        return tn_fail(err, TN_E_INPUT, where, "the rows of a linear layer do not follow one stride");
    int32_t threads = run.tokens * layer->in * layer->out < linear_serial_work ? 1 : tn_thread_count();
    run.dw_rows = share(layer->out, threads, ROWS);
    run.dx_tokens = TOKENS;
    run.dx_columns = share(layer->in, threads, COLUMNS);
    if (threads == 1)
        body(&run, 0, 1);
    else
        tn_parallel(body, &run);
    return TN_OK;
}
