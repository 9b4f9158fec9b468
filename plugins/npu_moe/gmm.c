/* Grouped products and their gradients: each thread takes the next piece of a group's rows. */
#include "gmm.h"
#include "pieces.h"
#include "scratch.h"
#include <string.h>

/* Multiply-adds that one thread does while the team wakes up: less work than this stays on the calling thread. */
#define SERIAL_WORK 30000

typedef struct gmm_memory {
    int64_t *offsets;
    piece *pieces;
    char *thread;
    size_t panel, x_rows, y_rows, native, product, grad; /* within one thread's memory                */
    size_t thread_size, total;
} gmm_memory;

typedef struct gmm_run {
    const gmm_layer *layer;
    const tn_tensor *x, *y; /* of the products: g and dx in backward                               */
    bool back;
    const tn_tensor *input, *upstream; /* of the weights' gradients                                */
    const tn_param *dw;
    gmm_memory memory;
    int64_t piece_count, grad_rows;
    product_queue pieces, grads;
} gmm_run;

/* base NULL: only the total counts. */
static gmm_memory layout(const gmm_layer *layer, bool back, int64_t max_rows, int32_t threads, char *base)
{
    gmm_memory m = {0};
    const product_kernels *kernels = layer->kernels;
    int64_t widest = layer->in > layer->out ? layer->in : layer->out;
    size_t at = 0, chunk = (size_t)pieces_tokens(kernels);
    m.panel = scratch_take(&at, chunk * (size_t)product_panel_token(kernels, widest));
    m.x_rows = scratch_take(&at, chunk * sizeof(void *));
    m.y_rows = scratch_take(&at, chunk * sizeof(void *));
    m.native = scratch_take(
        &at, kernels->variant->native == kernels->dtype ? 0 : PRODUCT_FEW_TOKENS * (size_t)widest * sizeof(float));
    m.product = scratch_take(&at, product_scratch_size(kernels, widest));
    m.grad = scratch_take(&at, back ? product_grad_scratch_size(kernels, max_rows) : 0);
    m.thread_size = at;
    at = 0;
    size_t offsets = scratch_take(&at, (size_t)(layer->groups + 1) * sizeof(int64_t));
    size_t pieces = scratch_take(&at, (size_t)pieces_most(kernels, layer->groups, max_rows, threads) * sizeof(piece));
    size_t thread = scratch_take(&at, (size_t)threads * m.thread_size);
    m.total = at;
    if (base) {
        m.offsets = (int64_t *)(void *)(base + offsets);
        m.pieces = (piece *)(void *)(base + pieces);
        m.thread = base + thread;
    }
    return m;
}

size_t gmm_scratch_size(const gmm_layer *layer, int64_t max_rows, int32_t threads)
{
    return layout(layer, false, max_rows, threads, NULL).total;
}

size_t gmm_backward_scratch_size(const gmm_layer *layer, int64_t max_rows, int32_t threads)
{
    return layout(layer, true, max_rows, threads, NULL).total;
}

/* Counts come from outside. */
static tn_status read_counts(const gmm_layer *layer, const tn_tensor *counts, int64_t rows, int64_t *offsets,
                             const char *where, tn_error *err)
{
    int64_t at = 0, n;
    for (int64_t g = 0; g < layer->groups; g++) {
        memcpy(&n, (const char *)counts->data + g * counts->stride[0] * (int64_t)sizeof n, sizeof n);
        if (n < 0)
            return tn_fail(err, TN_E_INPUT, where, "group %lld has %lld rows; counts must not be negative",
                           (long long)g, (long long)n);
        if (n > rows - at)
            return tn_fail(err, TN_E_INPUT, where,
                           "group %lld has %lld rows, of the %lld rows of x %lld are left; the counts must add up to "
                           "the rows of x",
                           (long long)g, (long long)n, (long long)rows, (long long)(rows - at));
        offsets[g] = at;
        at += n;
    }
    offsets[layer->groups] = at;
    if (at != rows)
        return tn_fail(err, TN_E_INPUT, where,
                       "the last group, %lld, ends at row %lld of %lld; the counts must add up to the rows of x",
                       (long long)layer->groups - 1, (long long)at, (long long)rows);
    return TN_OK;
}

/* The matrix of a group with the rows that a product takes; back: those of the product for dx. */
static product_matrix matrix_of(const gmm_layer *layer, int64_t group, bool back)
{
    const tn_tensor *w = &layer->weights[layer->list ? group : 0];
    int64_t step = w->stride[layer->list ? 0 : 1], size = (int64_t)tn_dtype_size(layer->kernels->dtype);
    const char *data = (const char *)w->data + (layer->list ? 0 : group * w->stride[0] * size);
    bool side_by_side = layer->io != back;
    return (product_matrix){data, side_by_side ? 1 : step, side_by_side ? step : 1, NULL};
}

static int64_t few(const gmm_run *run)
{
    return pieces_few(run->layer->kernels, run->layer->io != run->back);
}

static void do_piece(const gmm_run *run, const piece *p, char *mine)
{
    const gmm_layer *layer = run->layer;
    const product_kernels *kernels = layer->kernels;
    const gmm_memory *m = &run->memory;
    int64_t k = run->back ? layer->out : layer->in, from = m->offsets[p->group], n = p->tokens;
    product_matrix w = matrix_of(layer, p->group, run->back);
    const void **x = (const void **)(void *)(mine + m->x_rows);
    void **y = (void **)(void *)(mine + m->y_rows);
    for (int64_t i = 0; i < n; i++) {
        x[i] = product_row(run->x, from + p->first + i);
        y[i] = product_row(run->y, from + p->first + i);
    }
    if (m->offsets[p->group + 1] - from <= few(run)) {
        product_native_rows(kernels, x, n, k, mine + m->native, x);
        product_out_few(kernels, &w, k, x, (int32_t)n, product_rows_of(p->begin, p->end), kernels->dtype, y);
        return;
    }
    product_pack(kernels, x, n, k, 0, product_tiles(kernels, n), mine + m->panel);
    product_out_tiles(kernels, &w, k, mine + m->panel, n, product_rows_of(p->begin, p->end), kernels->dtype, y,
                      mine + m->product);
}

/* Rows of one group's dL/dw. */
static void do_grad(const gmm_run *run, int64_t index, char *mine)
{
    const gmm_layer *layer = run->layer;
    const gmm_memory *m = &run->memory;
    int64_t rows = layer->io ? layer->in : layer->out, columns = layer->io ? layer->out : layer->in;
    int64_t pieces = (rows + run->grad_rows - 1) / run->grad_rows, group = index / pieces;
    int64_t begin = index % pieces * run->grad_rows,
            end = begin + run->grad_rows < rows ? begin + run->grad_rows : rows;
    int64_t size = (int64_t)tn_dtype_size(layer->kernels->dtype), first = m->offsets[group];
    const tn_tensor *dw = &run->dw->tensors[layer->list ? group : 0];
    char *to = (char *)dw->data + (layer->list ? 0 : group * dw->stride[0] * size);
    const product_tokens_matrix x = {(const char *)run->input->data + first * run->input->stride[0] * size,
                                     run->input->stride[0]};
    const product_tokens_matrix g = {(const char *)run->upstream->data + first * run->upstream->stride[0] * size,
                                     run->upstream->stride[0]};
    product_weight_grad(layer->kernels, layer->io ? &x : &g, layer->io ? &g : &x, m->offsets[group + 1] - first, begin,
                        end, columns, to, dw->stride[layer->list ? 0 : 1], mine + m->grad);
}

static void body(void *ctx, int32_t thread, int32_t threads)
{
    gmm_run *run = ctx;
    const gmm_layer *layer = run->layer;
    char *mine = run->memory.thread + (size_t)thread * run->memory.thread_size;
    int64_t i, rows = layer->io ? layer->in : layer->out;
    (void)threads;
    while ((i = atomic_fetch_add(&run->pieces.next, 1)) < run->piece_count)
        do_piece(run, &run->memory.pieces[i], mine);
    int64_t grads = run->dw ? (rows + run->grad_rows - 1) / run->grad_rows * layer->groups : 0;
    while ((i = atomic_fetch_add(&run->grads.next, 1)) < grads)
        do_grad(run, i, mine);
}

static void run_pieces(gmm_run *run, int64_t rows, int32_t threads)
{
    const gmm_layer *layer = run->layer;
    int64_t width = run->back ? layer->in : layer->out, grads = run->dw ? (rows + 16) * layer->groups : 0;
    int64_t work = rows * layer->in * layer->out + grads * layer->in;
    if (run->y)
        run->piece_count = pieces_cut(layer->kernels, run->memory.offsets, layer->groups, width, width, few(run),
                                      work < SERIAL_WORK ? 1 : threads, run->memory.pieces);
    if (work < SERIAL_WORK)
        body(run, 0, 1);
    else
        tn_parallel(body, run);
}

tn_status gmm_forward(const gmm_layer *layer, const tn_tensor *x, const tn_tensor *counts, const tn_tensor *y,
                      int64_t max_rows, int32_t threads, void *scratch, const char *where, tn_error *err)
{
    gmm_run run = {.layer = layer, .x = x, .y = y, .memory = layout(layer, false, max_rows, threads, scratch)};
    tn_status status = read_counts(layer, counts, x->shape[0], run.memory.offsets, where, err);
    if (status == TN_OK)
        run_pieces(&run, x->shape[0], threads);
    return status;
}

tn_status gmm_backward(const gmm_layer *layer, const tn_tensor *x, const tn_tensor *counts, const tn_tensor *g,
                       const tn_tensor *dx, const tn_param *dw, int64_t max_rows, int32_t threads, void *scratch,
                       const char *where, tn_error *err)
{
    gmm_run run = {.layer = layer,
                   .back = true,
                   .x = g,
                   .y = dx->data ? dx : NULL,
                   .input = x,
                   .upstream = g,
                   .dw = dw->count ? dw : NULL,
                   .memory = layout(layer, true, max_rows, threads, scratch)};
    tn_status status = read_counts(layer, counts, x->shape[0], run.memory.offsets, where, err);
    if (status != TN_OK)
        return status;
    run.grad_rows = pieces_grad_rows((layer->io ? layer->in : layer->out) * layer->groups, threads);
    if (g->data) {
        run_pieces(&run, x->shape[0], threads);
        return TN_OK;
    }
    if (run.y)
        pieces_zero(dx);
    for (int64_t i = 0; i < dw->count; i++)
        pieces_zero(&dw->tensors[i]);
    return TN_OK;
}
