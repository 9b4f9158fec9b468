/* The product of a call, in one parallel section. Few tokens stream the weights, each thread a share of its own; more
 * go by blocks, whose panel all threads pack together and then take rows of weights for, piece by piece. Quantised rows
 * meet tokens that were rounded to int8 as they lie, or laid for many of them, or are unpacked into scratch, so few at
 * a time that they are multiplied out of the caches. */
#include "linear.h"
#include "product_parts.h"
#include "scratch.h"

#include <string.h>

typedef struct linear_memory {
    char *panel;
    char *wild; /* 1 for each token of a block that cannot be rounded                              */
    char *thread;
    size_t x_rows, y_rows, native, product, strip, rounded, laid; /* within one thread's memory                */
    size_t thread_size, total;
} linear_memory;

typedef struct linear_run {
    const linear_layer *layer;
    const tn_tensor *x, *y;
    int64_t tokens, begin, end; /* of many tokens: rows of weights of this region                           */
    linear_memory memory;
    product_ranges rows[2]; /* of this block and of the next                                            */
} linear_run;

/* Rows of weights by many tokens that are a region of their own: of a thread that was asleep when one began nothing is
 * seen before the next. */
enum { REGION_ROWS = 16384 };

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Rows that are unpacked at once: whole tiles, and whole blocks of dots. */
enum { STRIP = 32 };

/* Bytes from one of them to the next: odd in cache lines, so that they do not fall into the same sets. */
static int64_t strip_space(const linear_layer *layer)
{
    int64_t bytes = layer->in * (layer->kernels.dtype == TN_F32 ? 4 : 2);
    return ((bytes + 63) / 64 | 1) * 64;
}

/* Tokens that go through all weights before the next ones. */
static int64_t block_tokens(const linear_layer *layer)
{
    return least(layer->max_tokens, layer->kernels.variant->block);
}

/* Rows of codes are laid for many tokens: this instruction set can, of this type. */
static bool lays_codes(const linear_layer *layer)
{
    return layer->many_ints && layer->unpacks.many_dtypes >> layer->codes.dtype & 1;
}

/* Tokens of a call that meet rows of weights one by one. */
static int64_t few_limit(const linear_layer *layer)
{
    return lays_codes(layer) ? (CODES_LAID_FROM - 1) / layer->terms : layer->kernels.variant->few_tokens;
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
    m.strip = scratch_take(&at, layer->codes.dtype ? STRIP * (size_t)strip_space(layer) : 0);
    m.rounded = scratch_take(&at, (size_t)layer->terms * PRODUCT_FEW_TOKENS * (size_t)ints_space(layer->in));
    m.laid = scratch_take(&at, lays_codes(layer) ? (size_t)many_laid_bytes(layer->in) : 0);
    m.thread_size = at;
    at = 0;
    size_t panel_bytes = block * (size_t)product_panel_token(kernels, layer->in);
    size_t rounded_bytes = layer->many_ints ? block * (size_t)(layer->terms * ints_space(layer->in)) : 0;
    size_t panel = scratch_take(&at, panel_bytes > rounded_bytes ? panel_bytes : rounded_bytes);
    size_t wild = scratch_take(&at, layer->many_ints ? block : 0);
    size_t thread = scratch_take(&at, m.thread_size * (size_t)layer->threads);
    m.total = at;
    if (scratch) {
        m.panel = scratch + panel;
        m.wild = scratch + wild;
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

/* Rows row .. row + n - 1 of quantised weights, as numbers of the activations' type. */
static product_matrix unpack_strip(const linear_layer *layer, int64_t row, int64_t n, char *to)
{
    int64_t space = strip_space(layer), size = layer->kernels.dtype == TN_F32 ? 4 : 2;
    const char *bias = layer->weight.bias;
    for (int64_t r = 0; r < n; r++)
        layer->unpacks.unpack(&layer->codes, row + r, 0, layer->in, layer->kernels.dtype, to + r * space);
    return (product_matrix){to, space / size, 1, bias ? bias + row * size : NULL};
}

/* What a call's tokens are multiplied from: rows of native type, or the panel. */
typedef struct linear_tokens {
    const void *const *x; /* NULL: the panel                                                       */
    const void *panel;
    int64_t count;
    void **y;
} linear_tokens;

/* Outputs are counted as the rows of w and the elements of y are. */
static void multiply(const linear_layer *layer, const product_matrix *w, const linear_tokens *t, product_rows outputs,
                     char *scratch)
{
    const product_kernels *kernels = &layer->kernels;
    if (t->x)
        product_out_few(kernels, w, layer->in, t->x, (int32_t)t->count, outputs, kernels->dtype, t->y);
    else
        product_out_tiles(kernels, w, layer->in, t->panel, t->count, outputs, kernels->dtype, t->y, scratch);
}

static void move_rows(void **y, int64_t count, int64_t bytes)
{
    for (int64_t t = 0; t < count; t++)
        y[t] = (char *)y[t] + bytes;
}

/* The same of weights of any type. */
static void multiply_any(const linear_run *run, const linear_tokens *t, product_rows outputs, char *mine)
{
    const linear_layer *layer = run->layer;
    char *scratch = mine + run->memory.product;
    int64_t size = layer->kernels.dtype == TN_F32 ? 4 : 2;
    if (!layer->codes.dtype) {
        multiply(layer, &layer->weight, t, outputs, scratch);
        return;
    }
    for (int64_t row = outputs.begin; row < outputs.end; row += STRIP) {
        int64_t n = least(STRIP, outputs.end - row);
        const product_matrix strip = unpack_strip(layer, row, n, mine + run->memory.strip);
        move_rows(t->y, t->count, row * size);
        multiply(layer, &strip, t, product_rows_of(0, n), scratch);
        move_rows(t->y, t->count, -row * size);
    }
}

/* Tokens of a call, and where their results go. */
typedef struct token_list {
    const void *x[PRODUCT_FEW_TOKENS];
    void *y[PRODUCT_FEW_TOKENS];
    int32_t count;
} token_list;

static void list_token(token_list *list, const void *x, void *y)
{
    list->x[list->count] = x;
    list->y[list->count++] = y;
}

/* Few tokens as they are. */
static void multiply_plain(const linear_run *run, const token_list *list, int64_t begin, int64_t end, char *mine)
{
    const void *x[PRODUCT_FEW_TOKENS];
    void *y[PRODUCT_FEW_TOKENS];
    if (list->count == 0)
        return;
    memcpy(y, list->y, sizeof y);
    product_native_rows(&run->layer->kernels, list->x, list->count, run->layer->in, mine + run->memory.native, x);
    const linear_tokens tokens = {.x = x, .count = list->count, .y = y};
    multiply_any(run, &tokens, product_rows_of(begin, end), mine);
}

/* The terms of a token behind each other, by way of the strip's memory; false: it is not finite. */
static bool round_token(const linear_run *run, const void *x, char *mine, ints_group *to)
{
    const linear_layer *layer = run->layer;
    float *wide = (float *)(void *)(mine + run->memory.strip);
    layer->kernels.widen(x, layer->in, wide);
    for (int32_t term = 0; term < layer->terms; term++, to += layer->in / CODES_GROUP) {
        if (!layer->unpacks.round(wide, layer->in, sizeof *to, to))
            return false;
        if (term + 1 < layer->terms)
            codes_leave_rest(wide, layer->in, sizeof *to, to);
    }
    return true;
}

/* The sums of a block of rows become results. */
static void store_sums(const linear_layer *layer, const float *sums, const float *bias, int32_t n, int64_t row, void *y)
{
    const product_finish finish = {layer->kernels.dtype, TN_ACT_LINEAR, bias};
    layer->kernels.row_out(sums, &finish, n, (char *)y + row * product_element(&layer->kernels));
}

/* rounded: the terms of every token. */
static void multiply_ints(const linear_layer *layer, const ints_group *const *rounded, int32_t tokens, int64_t begin,
                          int64_t end, void *const *y)
{
    float sums[2 * PRODUCT_FEW_TOKENS * PRODUCT_FEW_ROWS] = {0}, wide[PRODUCT_FEW_ROWS];
    for (int64_t row = begin; row < end && tokens > 0; row += PRODUCT_FEW_ROWS) {
        int32_t n = (int32_t)least(PRODUCT_FEW_ROWS, end - row);
        const float *bias = product_widen_bias(&layer->kernels, layer->weight.bias, row, n, wide);
        layer->unpacks.ints(&layer->codes, row, n, layer->in, rounded, layer->terms * tokens, sums);
        if (layer->terms == 2)
            codes_add_terms(sums, tokens, PRODUCT_FEW_ROWS);
        for (int32_t t = 0; t < tokens; t++)
            store_sums(layer, sums + t * PRODUCT_FEW_ROWS, bias, n, row, y[t]);
    }
}

/* Every thread converts the tokens for itself, which is cheaper than waiting for another to do it, and reads one
 * stretch of the weights from its beginning to its end. */
static void few_tokens(const linear_run *run, char *mine, int32_t thread, int32_t threads)
{
    const linear_layer *layer = run->layer;
    const ints_group *rounded[2 * PRODUCT_FEW_TOKENS];
    ints_group *to = (ints_group *)(void *)(mine + run->memory.rounded);
    token_list tame = {.count = 0}, plain = {.count = 0};
    int64_t begin, end, groups = layer->in / CODES_GROUP;
    for (int64_t t = 0; t < run->tokens; t++) {
        const void *x = product_row(run->x, t);
        if (layer->terms == 0 || !round_token(run, x, mine, to)) {
            list_token(&plain, x, product_row(run->y, t));
            continue;
        }
        for (int32_t term = 0; term < layer->terms; term++, to += groups)
            rounded[layer->terms * tame.count + term] = to;
        list_token(&tame, x, product_row(run->y, t));
    }
    product_share_rows(layer->out, thread, threads, &begin, &end);
    multiply_ints(layer, rounded, tame.count, begin, end, tame.y);
    multiply_plain(run, &plain, begin, end, mine);
}

/* ---- many tokens of integers ----------------------------------------------------------------------------------- */

/* Where the first group of a token's term is among n tokens, and what lies from each to its next. */
static ints_group *rounded_term(const linear_run *run, int64_t t, int32_t term, int64_t n, int64_t *step)
{
    const linear_layer *layer = run->layer;
    return codes_tile_row((ints_group *)(void *)run->memory.panel, layer->in, t * layer->terms + term, n * layer->terms,
                          lays_codes(layer) ? CODES_TOKENS : 1, step);
}

/* Token t of n, whose numbers are used up; false: it is not finite. */
static bool round_among(const linear_run *run, float *wide, int64_t t, int64_t n)
{
    const linear_layer *layer = run->layer;
    for (int32_t term = 0; term < layer->terms; term++) {
        int64_t step;
        ints_group *to = rounded_term(run, t, term, n, &step);
        if (!layer->unpacks.round(wide, layer->in, step, to))
            return false;
        if (term + 1 < layer->terms)
            codes_leave_rest(wide, layer->in, step, to);
    }
    return true;
}

/* A thread's share of a block; zeros are in the place of what cannot be rounded. */
static void round_share(const linear_run *run, const void *const *x, int64_t n, char *mine, int32_t thread,
                        int32_t threads)
{
    const linear_layer *layer = run->layer;
    float *wide = (float *)(void *)(mine + run->memory.strip);
    int64_t begin, end;
    product_share(n, thread, threads, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        layer->kernels.widen(x[t], layer->in, wide);
        run->memory.wild[t] = !round_among(run, wide, t, n);
        if (run->memory.wild[t]) {
            memset(wide, 0, (size_t)layer->in * sizeof *wide);
            round_among(run, wide, t, n);
        }
    }
}

/* Outputs begin .. end - 1 of n rounded tokens, of rows that are laid. */
static void multiply_laid(const linear_run *run, int64_t n, int64_t begin, int64_t end, void *const *y, char *mine)
{
    const linear_layer *layer = run->layer;
    char *laid = mine + run->memory.laid;
    const int64_t tile = CODES_TOKENS / layer->terms;
    float sums[CODES_TOKENS * CODES_ROWS], wide[CODES_ROWS];
    for (int64_t row = begin; row < end; row += CODES_ROWS) {
        int32_t rows = (int32_t)least(CODES_ROWS, end - row);
        const float *bias = product_widen_bias(&layer->kernels, layer->weight.bias, row, rows, wide);
        layer->unpacks.many_lay(&layer->codes, row, rows, layer->in, laid);
        for (int64_t t = 0; t < n; t++) {
            int64_t in_tile = t % tile, step;
            if (in_tile == 0) {
                int64_t width = least(tile, n - t);
                layer->unpacks.many_multiply(&layer->codes, laid, rows, layer->in, rounded_term(run, t, 0, n, &step),
                                             (int32_t)width * layer->terms, sums);
                if (layer->terms == 2)
                    codes_add_terms(sums, width, CODES_ROWS);
            }
            for (int32_t r = 0; r < rows; r += PRODUCT_FEW_ROWS)
                store_sums(layer, sums + in_tile * CODES_ROWS + r, bias ? bias + r : NULL,
                           (int32_t)least(PRODUCT_FEW_ROWS, rows - r), row + r, y[t]);
        }
    }
}

/* The same of rows as they lie, some tokens at a time. */
static void multiply_unlaid(const linear_run *run, int64_t n, int64_t begin, int64_t end, void *const *y)
{
    const ints_group *rounded[2 * PRODUCT_FEW_TOKENS];
    const int32_t terms = run->layer->terms;
    for (int64_t first = 0, step; first < n; first += PRODUCT_FEW_TOKENS) {
        int32_t tokens = (int32_t)least(PRODUCT_FEW_TOKENS, n - first);
        for (int32_t i = 0; i < terms * tokens; i++)
            rounded[i] = rounded_term(run, first + i / terms, i % terms, n, &step);
        multiply_ints(run->layer, rounded, tokens, begin, end, y + first);
    }
}

static void multiply_rounded(const linear_run *run, const void *const *x, int64_t n, int64_t begin, int64_t end,
                             void *const *y, char *mine)
{
    if (lays_codes(run->layer))
        multiply_laid(run, n, begin, end, y, mine);
    else
        multiply_unlaid(run, n, begin, end, y);
    for (int64_t t = 0; t < n; t++)
        if (run->memory.wild[t])
            multiply_plain(run, &(const token_list){{x[t]}, {y[t]}, 1}, begin, end, mine);
}

/* ---- a call ----------------------------------------------------------------------------------------------------- */

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
        if (thread == 0)
            product_ranges_reset(&run->rows[(i + 1) % 2]);
        const linear_tokens tokens = {.panel = run->memory.panel, .count = n, .y = y};
        product_share(product_tiles(kernels, n), thread, threads, &begin, &end);
        if (layer->many_ints)
            round_share(run, x, n, mine, thread, threads);
        else
            product_pack(kernels, x, n, layer->in, begin, end, run->memory.panel);
        product_wait(threads);
        for (product_rows p; product_take_rows(&run->rows[i % 2], run->end - run->begin, thread, threads, &p);) {
            p = (product_rows){run->begin + p.begin, run->begin + p.end, run->begin + p.far};
            if (layer->many_ints)
                multiply_rounded(run, x, n, p.begin, p.end, y, mine);
            else
                multiply_any(run, &tokens, p, mine);
        }
    }
}

static void body(void *ctx, int32_t thread, int32_t threads)
{
    linear_run *run = ctx;
    char *mine = run->memory.thread + (size_t)thread * run->memory.thread_size;
    if (run->tokens <= few_limit(run->layer))
        few_tokens(run, mine, thread, threads);
    else
        many_tokens(run, mine, thread, threads);
}

void linear_forward(const linear_layer *layer, const tn_tensor *x, const tn_tensor *y, void *scratch)
{
    linear_run run = {.layer = layer, .x = x, .y = y, .tokens = product_tokens(x), .memory = layout(layer, scratch)};
    if (run.tokens == 0)
        return;
    bool few = run.tokens <= few_limit(layer);
    for (run.end = 0; run.end < layer->out; run.begin = run.end) {
        run.end = few ? layer->out : least(run.begin + REGION_ROWS, layer->out);
        product_ranges_reset(&run.rows[0]);
        product_ranges_reset(&run.rows[1]);
        if (run.tokens * layer->in * (run.end - run.begin) < linear_serial_work)
            body(&run, 0, 1);
        else
            tn_parallel(body, &run);
    }
}
