/* Gradients of the gated MLP. Nothing is kept from forward: gate and up are computed again.
 *
 * Tokens go by blocks through   gate, up = x Wg^T, x Wu^T    dh = dy Wd    h, dg, du from these    dx = dg Wg + du Wu
 * with sums in f32; h, dg and du, rounded to dtype, are kept for all tokens of the call. Then the gradients of the
 * weights are products over all tokens at once:   dWg = dg^T x    dWu = du^T x    dWd = dy^T h. The other way, adding
 * each block to f32 sums of the weights' shape, would move 12 H I bytes back and forth per block; this one writes and
 * reads 6 I bytes per token, and needs less memory as long as there are fewer than 2 H tokens. */
#include "swiglu_run.h"

#include <string.h>

enum { JOBS = 4, SUMS = 4 };

/* Tokens of a block: columns of the weights are turned once for each, which costs what 40 to 80 tokens do. */
#define BLOCK 512

typedef struct grad_memory {
    char *x, *dy, *d_gate, *d_up; /* panels of a block                                              */
    char *gate, *up, *dh;         /* rows of f32 of a block; gate and up: later of dx               */
    char *kept_h, *kept_sides;    /* rows of dtype of all tokens; sides: da and du, in the order of the weights */
    char *kept_x, *kept_dy;       /* the same, for tensors whose rows are not at one distance       */
    char *thread;
    int64_t space; /* from one row of f32 to the next                                              */
    size_t x_rows, dy_rows, gate_rows, up_rows, dh_rows, out_rows, product; /* within one thread's memory */
    size_t native_x, native_dy; /* few tokens' rows of native type, when that is another than dtype */
    size_t thread_size, total;
} grad_memory;

/* A gradient of a weight: dw = a^T b. */
typedef struct weight_job {
    const tn_tensor *dw;
    product_tokens_matrix a, b;
    int64_t rows, columns;
} weight_job;

/* A gradient of a bias: sums of columns. */
typedef struct sum_job {
    const tn_tensor *db;
    product_tokens_matrix a;
    int64_t columns;
} sum_job;

typedef struct grad_run {
    const swiglu_layer *layer;
    const tn_tensor *x;
    const swiglu_gradients *to;
    int64_t tokens;
    grad_memory memory;
    product_tokens_matrix all_x, all_dy; /* data NULL: to be copied first                          */
    product_ranges middle, dx;           /* of a block                                                      */
    product_ranges weights[JOBS];
} grad_run;

static int64_t element(const swiglu_layer *layer)
{
    return layer->kernels.dtype == TN_F32 ? 4 : 2;
}

static int64_t grad_block(const swiglu_layer *layer)
{
    return swiglu_least(layer->max_tokens, BLOCK);
}

static bool wanted(const tn_tensor *t)
{
    return t && t->data;
}

/* scratch NULL: only the total counts. */
static grad_memory layout(const swiglu_layer *layer, char *scratch)
{
    const product_kernels *kernels = &layer->kernels;
    int64_t hidden = layer->hidden, inter = layer->mlp.inter, tokens = layer->max_tokens;
    int64_t widest = hidden > inter ? hidden : inter;
    grad_memory m = {.space = product_row_space(widest)};
    size_t block = (size_t)product_padded_tokens(kernels, grad_block(layer)), at = 0;
    size_t *const rows[] = {&m.x_rows, &m.dy_rows, &m.gate_rows, &m.up_rows, &m.dh_rows, &m.out_rows};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        *rows[i] = scratch_take(&at, block * sizeof(void *));
    size_t product = product_scratch_size(kernels, widest);
    size_t grad = product_grad_scratch_size(kernels, tokens);
    m.product = scratch_take(&at, product > grad ? product : grad);
    bool converts = kernels->variant->native != kernels->dtype;
    size_t native = converts ? PRODUCT_FEW_TOKENS * (size_t)widest * sizeof(float) : 0;
    m.native_x = scratch_take(&at, native);
    m.native_dy = scratch_take(&at, native);
    m.thread_size = at;
    at = 0;
    size_t x = scratch_take(&at, block * (size_t)product_panel_token(kernels, hidden));
    size_t dy = scratch_take(&at, block * (size_t)product_panel_token(kernels, hidden));
    size_t d_gate = scratch_take(&at, block * (size_t)product_panel_token(kernels, inter));
    size_t d_up = scratch_take(&at, block * (size_t)product_panel_token(kernels, inter));
    size_t gate = scratch_take(&at, block * (size_t)m.space), up = scratch_take(&at, block * (size_t)m.space);
    size_t dh = scratch_take(&at, block * (size_t)m.space);
    size_t kept_h = scratch_take(&at, (size_t)(tokens * inter * element(layer)));
    size_t kept_sides = scratch_take(&at, (size_t)(2 * tokens * inter * element(layer)));
    size_t kept_x = scratch_take(&at, (size_t)(tokens * hidden * element(layer)));
    size_t kept_dy = scratch_take(&at, (size_t)(tokens * hidden * element(layer)));
    size_t thread = scratch_take(&at, m.thread_size * (size_t)layer->threads);
    m.total = at;
    char **const places[] = {&m.x,  &m.dy,     &m.d_gate,     &m.d_up,   &m.gate,    &m.up,
                             &m.dh, &m.kept_h, &m.kept_sides, &m.kept_x, &m.kept_dy, &m.thread};
    const size_t offsets[] = {x, dy, d_gate, d_up, gate, up, dh, kept_h, kept_sides, kept_x, kept_dy, thread};
    for (size_t i = 0; scratch && i < sizeof offsets / sizeof *offsets; i++)
        *places[i] = scratch + offsets[i];
    return m;
}

size_t swiglu_backward_scratch_size(const swiglu_layer *layer)
{
    return layout(layer, NULL).total;
}

/* ---- a block of tokens ------------------------------------------------------------------------------------- */

/* What one thread works with: pointers to the rows of a block. */
typedef struct grad_rows {
    const void **x, **dy;
    void **gate, **up, **dh, **out;
    char *product, *native_x, *native_dy;
    bool few; /* tokens stream the weights: x and dy are of native type                              */
} grad_rows;

static void *kept_row(char *rows, int64_t token, int64_t elements, const swiglu_layer *layer)
{
    return rows + token * elements * element(layer);
}

static grad_rows rows_of_block(const grad_run *run, int32_t thread, int64_t first, int64_t n)
{
    const grad_memory *m = &run->memory;
    char *mine = m->thread + (size_t)thread * m->thread_size;
    grad_rows rows = {.x = (const void **)(void *)(mine + m->x_rows),
                      .dy = (const void **)(void *)(mine + m->dy_rows),
                      .gate = (void **)(void *)(mine + m->gate_rows),
                      .up = (void **)(void *)(mine + m->up_rows),
                      .dh = (void **)(void *)(mine + m->dh_rows),
                      .out = (void **)(void *)(mine + m->out_rows),
                      .product = mine + m->product,
                      .native_x = mine + m->native_x,
                      .native_dy = mine + m->native_dy,
                      .few = n <= PRODUCT_FEW_COLUMNS && n <= run->layer->kernels.variant->few_tokens};
    for (int64_t t = 0; t < n; t++) {
        rows.x[t] = product_row(run->x, first + t);
        rows.dy[t] = product_row(run->to->dy, first + t);
        rows.gate[t] = m->gate + t * m->space;
        rows.up[t] = m->up + t * m->space;
        rows.dh[t] = m->dh + t * m->space;
    }
    return rows;
}

/* The gradients of gate or up of one token. */
static void *side_of(const grad_run *run, int64_t token, bool up)
{
    const swiglu_layer *layer = run->layer;
    char *sides = kept_row(run->memory.kept_sides, token, 2 * layer->mlp.inter, layer);
    return up == layer->up_first ? sides : sides + layer->mlp.inter * element(layer);
}

/* Features begin .. end - 1 of h, dg and du of one token. */
static void middle(const grad_run *run, const grad_rows *rows, int64_t t, int64_t token, int64_t begin, int64_t end)
{
    const swiglu_layer *layer = run->layer;
    int64_t inter = layer->mlp.inter, size = element(layer);
    gate_cut cut = {.quantile = layer->quantile};
    gate_row row = {.act = layer->act,
                    .dtype = layer->kernels.dtype,
                    .gate = (const float *)rows->gate[t] + begin,
                    .up = (const float *)rows->up[t] + begin,
                    .cut = layer->sparse ? &cut : NULL,
                    .h = (char *)kept_row(run->memory.kept_h, token, inter, layer) + begin * size,
                    .dh = (float *)rows->dh[t] + begin,
                    .scale = 1,
                    .d_gate = (char *)side_of(run, token, false) + begin * size,
                    .d_up = (char *)side_of(run, token, true) + begin * size};
    if (layer->sparse)
        layer->gates.cut(row.gate, inter, &cut);
    layer->gates.grad(&row, end - begin);
}

/* Rows begin .. end - 1 of w with n tokens, from few rows of native type or from a panel. */
static void multiply(const grad_run *run, const grad_rows *rows, const product_matrix *w, int64_t k,
                     const void *const *few, const void *panel, int64_t n, product_rows outputs, void *const *y)
{
    const product_kernels *kernels = &run->layer->kernels;
    if (rows->few)
        product_out_few(kernels, w, k, few, (int32_t)n, outputs, TN_F32, y);
    else
        product_out_tiles(kernels, w, k, panel, n, outputs, TN_F32, y, rows->product);
}

/* Sums of gate, up and dh; where a row is not sparse, whoever has them goes on. */
static void block_middle(grad_run *run, const grad_rows *rows, int64_t first, int64_t n, int32_t thread,
                         int32_t threads)
{
    const swiglu_layer *layer = run->layer;
    const product_matrix down = {layer->mlp.down.data, 1, layer->mlp.down.row_stride, NULL};
    int64_t hidden = layer->hidden, inter = layer->mlp.inter, begin, end;
    product_rows piece;
    if (thread == 0)
        product_ranges_reset(&run->dx);
    while (product_take_rows(&run->middle, inter, thread, threads, &piece)) {
        multiply(run, rows, &layer->mlp.gate, hidden, rows->x, run->memory.x, n, piece, rows->gate);
        multiply(run, rows, &layer->mlp.up, hidden, rows->x, run->memory.x, n, piece, rows->up);
        multiply(run, rows, &down, hidden, rows->dy, run->memory.dy, n, piece, rows->dh);
        for (int64_t t = 0; t < n && !layer->sparse; t++)
            middle(run, rows, t, first + t, piece.begin, piece.end);
    }
    if (!layer->sparse)
        return;
    product_wait(threads);
    product_share(n, thread, threads, &begin, &end);
    for (int64_t t = begin; t < end; t++)
        middle(run, rows, t, first + t, 0, inter);
}

/* Columns begin .. end - 1 of dx: the sum of what came through gate and up, rounded once. */
static void add_sides(const grad_run *run, const grad_rows *rows, int64_t first, int64_t n, int64_t begin, int64_t end)
{
    static const float ones[] = {1, 1};
    const product_kernels *kernels = &run->layer->kernels;
    for (int64_t t = 0; t < n; t++) {
        const void *const sides[] = {(const float *)rows->gate[t] + begin, (const float *)rows->up[t] + begin};
        const product_combine sum = {
            .part_dtype = TN_F32, .dtype = kernels->dtype, .count = 2, .part = sides, .weight = ones};
        kernels->combine(&sum, end - begin, (char *)product_row(run->to->dx, first + t) + begin * element(run->layer));
    }
}

/* Few rows of both sides take the place of those of x and dy. Two products, though one over da and du side by side
 * would do: its panel would not fit into the second cache. Their sums take the place of those of gate and up. */
static void block_dx(grad_run *run, grad_rows *rows, int64_t first, int64_t n, int32_t thread, int32_t threads)
{
    const swiglu_layer *layer = run->layer;
    const product_kernels *kernels = &layer->kernels;
    const grad_memory *m = &run->memory;
    const product_matrix gate = {layer->mlp.gate.data, 1, layer->mlp.gate.row_stride, NULL};
    const product_matrix up = {layer->mlp.up.data, 1, layer->mlp.up.row_stride, NULL};
    int64_t inter = layer->mlp.inter, begin, end;
    product_rows piece;
    product_share(product_tiles(kernels, n), thread, threads, &begin, &end);
    for (int side = 0; side < 2; side++) {
        for (int64_t t = 0; t < n; t++)
            rows->out[t] = side_of(run, first + t, side == 1);
        const void *const *from = (const void *const *)rows->out;
        if (rows->few)
            product_native_rows(kernels, from, n, inter, side ? rows->native_dy : rows->native_x,
                                side ? rows->dy : rows->x);
        else
            product_pack(kernels, from, n, inter, begin, end, side ? m->d_up : m->d_gate);
    }
    if (!rows->few)
        product_wait(threads);
    while (product_take_rows(&run->dx, layer->hidden, thread, threads, &piece)) {
        multiply(run, rows, &gate, inter, rows->x, m->d_gate, n, piece, rows->gate);
        multiply(run, rows, &up, inter, rows->dy, m->d_up, n, piece, rows->up);
        add_sides(run, rows, first, n, piece.begin, piece.end);
    }
}

static void block_of_tokens(grad_run *run, int64_t first, int64_t n, int32_t thread, int32_t threads)
{
    const swiglu_layer *layer = run->layer;
    const product_kernels *kernels = &layer->kernels;
    int64_t begin, end;
    grad_rows rows = rows_of_block(run, thread, first, n);
    if (rows.few) {
        product_native_rows(kernels, rows.x, n, layer->hidden, rows.native_x, rows.x);
        product_native_rows(kernels, rows.dy, n, layer->hidden, rows.native_dy, rows.dy);
    } else {
        product_share(product_tiles(kernels, n), thread, threads, &begin, &end);
        product_pack(kernels, rows.x, n, layer->hidden, begin, end, run->memory.x);
        product_pack(kernels, rows.dy, n, layer->hidden, begin, end, run->memory.dy);
    }
    if (!rows.few || first > 0) /* others may still be with the block before */
        product_wait(threads);
    block_middle(run, &rows, first, n, thread, threads);
    product_wait(threads);
    if (thread == 0)
        product_ranges_reset(&run->middle);
    if (wanted(run->to->dx))
        block_dx(run, &rows, first, n, thread, threads);
}

/* ---- sums over tokens ---------------------------------------------------------------------------------------- */

/* Tensors whose rows are not at one distance become matrices. */
static void copy_rows(const grad_run *run, const tn_tensor *from, char *to, int32_t thread, int32_t threads)
{
    const swiglu_layer *layer = run->layer;
    int64_t begin, end;
    product_share(run->tokens, thread, threads, &begin, &end);
    for (int64_t t = begin; t < end; t++)
        memcpy(kept_row(to, t, layer->hidden, layer), product_row(from, t), (size_t)(layer->hidden * element(layer)));
}

static int list_weights(const grad_run *run, weight_job jobs[JOBS])
{
    const swiglu_layer *layer = run->layer;
    const swiglu_gradients *to = run->to;
    int64_t inter = layer->mlp.inter, hidden = layer->hidden;
    const char *first = run->memory.kept_sides, *second = first + inter * element(layer);
    const product_tokens_matrix both = {first, 2 * inter}, h = {run->memory.kept_h, inter};
    const product_tokens_matrix gate = {layer->up_first ? second : first, 2 * inter};
    const product_tokens_matrix up = {layer->up_first ? first : second, 2 * inter};
    const weight_job all[] = {{to->gate, gate, run->all_x, inter, hidden},
                              {to->up, up, run->all_x, inter, hidden},
                              {to->gate_up, both, run->all_x, 2 * inter, hidden},
                              {to->down, run->all_dy, h, hidden, inter}};
    int count = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (wanted(all[i].dw))
            jobs[count++] = all[i];
    return count;
}

static int list_biases(const grad_run *run, sum_job jobs[SUMS])
{
    const swiglu_layer *layer = run->layer;
    const swiglu_gradients *to = run->to;
    int64_t inter = layer->mlp.inter;
    const char *first = run->memory.kept_sides, *second = first + inter * element(layer);
    const sum_job all[SUMS] = {{to->gate_bias, {layer->up_first ? second : first, 2 * inter}, inter},
                               {to->up_bias, {layer->up_first ? first : second, 2 * inter}, inter},
                               {to->gate_up_bias, {first, 2 * inter}, 2 * inter},
                               {to->down_bias, run->all_dy, layer->hidden}};
    int count = 0;
    for (int i = 0; i < SUMS; i++)
        if (wanted(all[i].db))
            jobs[count++] = all[i];
    return count;
}

/* Sixteen columns at a time, token after token. */
static void sum_columns(const grad_run *run, const sum_job *job, int32_t thread, int32_t threads)
{
    const product_kernels *kernels = &run->layer->kernels;
    const product_finish finish = {.dtype = kernels->dtype};
    int64_t size = element(run->layer), begin, end;
    product_share_rows(job->columns, thread, threads, &begin, &end);
    for (int64_t c = begin; c < end; c += PRODUCT_FEW_ROWS) {
        int32_t n = (int32_t)swiglu_least(end - c, PRODUCT_FEW_ROWS);
        float sums[PRODUCT_FEW_ROWS] = {0}, one[PRODUCT_FEW_ROWS];
        for (int64_t t = 0; t < run->tokens; t++) {
            kernels->widen((const char *)job->a.data + (t * job->a.stride + c) * size, n, one);
            for (int32_t i = 0; i < n; i++)
                sums[i] += one[i];
        }
        kernels->row_out(sums, &finish, n, (char *)job->db->data + c * size);
    }
}

static void over_tokens(grad_run *run, int32_t thread, int32_t threads)
{
    const swiglu_layer *layer = run->layer;
    char *scratch = run->memory.thread + (size_t)thread * run->memory.thread_size + run->memory.product;
    weight_job weights[JOBS];
    sum_job sums[SUMS];
    int weight_count = list_weights(run, weights), sum_count = list_biases(run, sums);
    for (int i = 0; i < weight_count; i++) {
        const weight_job *job = &weights[i];
        for (product_rows p; product_take_rows(&run->weights[i], job->rows, thread, threads, &p);)
            product_weight_grad(&layer->kernels, &job->a, &job->b, run->tokens, p.begin, p.end, job->columns,
                                job->dw->data, job->dw->stride[0], scratch);
    }
    for (int i = 0; i < sum_count; i++)
        sum_columns(run, &sums[i], thread, threads);
}

static void body(void *ctx, int32_t thread, int32_t threads)
{
    grad_run *run = ctx;
    int64_t block = grad_block(run->layer);
    for (int64_t first = 0; first < run->tokens; first += block)
        block_of_tokens(run, first, swiglu_least(block, run->tokens - first), thread, threads);
    if (run->all_x.data == run->memory.kept_x)
        copy_rows(run, run->x, run->memory.kept_x, thread, threads);
    if (run->all_dy.data == run->memory.kept_dy)
        copy_rows(run, run->to->dy, run->memory.kept_dy, thread, threads);
    product_wait(threads);
    over_tokens(run, thread, threads);
}

static void clear(const tn_tensor *t)
{
    if (!wanted(t))
        return;
    for (int64_t row = 0, rows = product_tokens(t), last = t->shape[t->ndim - 1]; row < rows; row++)
        memset(product_row(t, row), 0, (size_t)last * tn_dtype_size(t->dtype));
}

void swiglu_backward(const swiglu_layer *layer, const tn_tensor *x, const swiglu_gradients *to, void *scratch)
{
    grad_run run = {.layer = layer, .x = x, .to = to, .tokens = product_tokens(x), .memory = layout(layer, scratch)};
    if (run.tokens == 0 || !wanted(to->dy)) {
        const tn_tensor *const all[] = {to->dx,        to->gate,    to->up,           to->gate_up,  to->down,
                                        to->gate_bias, to->up_bias, to->gate_up_bias, to->down_bias};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            clear(all[i]);
        return;
    }
    run.all_x = product_all_rows(x);
    run.all_dy = product_all_rows(to->dy);
    if (!run.all_x.data)
        run.all_x = (product_tokens_matrix){run.memory.kept_x, layer->hidden};
    if (!run.all_dy.data)
        run.all_dy = (product_tokens_matrix){run.memory.kept_dy, layer->hidden};
    swiglu_start(layer, run.tokens, body, &run);
}
