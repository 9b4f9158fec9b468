/* Gradients of weights by the tiles of product.h: the sum runs over tokens, the lanes are rows of dw, and the columns
 * of b take the place of weight rows. Both lie side by side in memory and are turned in scratch: a's into the panel of
 * a block of rows, b's as many as stay beside it in the second cache; of few tokens these are all, and turned once. A
 * tile's rows of dw are then written along: lines whole, and few pages at a time. */
#include "product_grad.h"
#include <string.h>

/* What a block's panel may take of the second cache: three quarters of the smallest one among those with AVX-512. */
#define PANEL_BYTES (768 * 1024)

/* And the columns of b, at least as many as a tile's rows. */
#define HELD_BYTES (512 * 1024)

/* Tiles of a block: beyond eight, turning b for each block costs nothing any more beside the products. */
#define MOST_TILES 8

typedef struct grad_memory {
    char *panel;
    char *lanes;   /* a's columns of one tile, as rows of dtype                                      */
    char *columns; /* `held` columns of b, as rows of dtype                                           */
    char *wide;    /* the same as rows of native type, when that is another                           */
    int64_t held;
    int64_t k;     /* tokens that are added up: tiles of AMX take 32 at a time, and copy what is less */
    int64_t space; /* from one of these rows to the next                                               */
    size_t total;
} grad_memory;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t block_tiles(const product_kernels *kernels, int64_t tokens)
{
    int64_t tile = kernels->variant->tile_tokens * product_panel_token(kernels, tokens);
    return tile > 0 ? least(most(PANEL_BYTES / tile, 1), MOST_TILES) : MOST_TILES;
}

/* scratch NULL: only the total counts, which does not get smaller with more tokens. */
static grad_memory layout(const product_kernels *kernels, int64_t tokens, char *scratch)
{
    bool whole_steps = kernels->variant->rows == PRODUCT_MAX_ROWS;
    grad_memory m = {.k = whole_steps ? (tokens + 31) / 32 * 32 : tokens};
    int64_t token = product_panel_token(kernels, m.k), tile = kernels->variant->tile_tokens * token;
    int64_t lanes = (kernels->variant->max_tokens + PRODUCT_FEW_ROWS - 1) / PRODUCT_FEW_ROWS * PRODUCT_FEW_ROWS;
    int64_t wider = kernels->variant->max_tokens - kernels->variant->tile_tokens; /* the last tile may be         */
    m.space = product_row_space(m.k);
    m.held = most(HELD_BYTES / m.space / PRODUCT_MAX_ROWS * PRODUCT_MAX_ROWS, PRODUCT_MAX_ROWS);
    size_t panel = (size_t)((least(MOST_TILES * tile, most(PANEL_BYTES, tile)) + wider * token + 63) / 64 * 64);
    size_t turned = (size_t)(lanes * m.space), held = (size_t)most(HELD_BYTES, PRODUCT_MAX_ROWS * m.space);
    m.total = panel + turned + (kernels->variant->native == kernels->dtype ? 1 : 2) * held;
    if (scratch) {
        m.panel = scratch;
        m.lanes = m.panel + panel;
        m.columns = m.lanes + turned;
        m.wide = m.columns + held;
    }
    return m;
}

size_t product_grad_scratch_size(const product_kernels *kernels, int64_t tokens)
{
    return layout(kernels, tokens, NULL).total;
}

static int64_t element(const product_kernels *kernels)
{
    return kernels->dtype == TN_F32 ? 4 : 2;
}

/* Columns first .. first + n - 1 of a matrix become rows, with zeros behind the last token. */
static void turn(const product_kernels *kernels, const product_tokens_matrix *from, int64_t tokens, int64_t first,
                 int64_t n, const grad_memory *m, char *to)
{
    int64_t size = element(kernels);
    for (int64_t i = 0; i < n; i += PRODUCT_FEW_ROWS)
        kernels->gather((const char *)from->data + (first + i) * size, from->stride * size,
                        (int32_t)least(n - i, PRODUCT_FEW_ROWS), tokens, to + i * m->space, m->space);
    for (int64_t i = 0; i < n && tokens < m->k; i++)
        memset(to + i * m->space + tokens * size, 0, (size_t)((m->k - tokens) * size));
}

/* The panel of rows first .. first + n - 1 of dw. */
static void pack_block(const product_kernels *kernels, const product_tokens_matrix *a, int64_t tokens, int64_t first,
                       int64_t n, const grad_memory *m)
{
    for (int64_t r = 0; r < n;) {
        const void *rows[PRODUCT_MAX_TOKENS];
        int32_t width = product_tile_width(kernels, n - r), valid = (int32_t)least(width, n - r);
        turn(kernels, a, tokens, first + r, valid, m, m->lanes);
        for (int32_t i = 0; i < valid; i++)
            rows[i] = m->lanes + i * m->space;
        kernels->pack(rows, valid, width, m->k, m->panel + r * product_panel_token(kernels, m->k));
        r += width;
    }
}

/* Columns first .. first + n - 1 of b. Returns where they are as rows of native type. */
static const char *hold_columns(const product_kernels *kernels, const product_tokens_matrix *b, int64_t tokens,
                                int64_t first, int64_t n, const grad_memory *m)
{
    turn(kernels, b, tokens, first, n, m, m->columns);
    if (kernels->variant->native == kernels->dtype)
        return m->columns;
    for (int64_t i = 0; i < n; i++)
        kernels->widen(m->columns + i * m->space, m->k, (float *)(void *)(m->wide + i * m->space));
    return m->wide;
}

/* The held columns for n rows of dw, each from dw on. */
static void block_columns(const product_kernels *kernels, const grad_memory *m, int64_t n, const char *held,
                          int64_t columns, char *dw, int64_t dw_stride)
{
    const product_finish finish = {kernels->dtype, TN_ACT_LINEAR, NULL};
    for (int64_t r = 0; r < n;) {
        void *out[PRODUCT_MAX_TOKENS];
        int32_t width = product_tile_width(kernels, n - r), valid = (int32_t)least(width, n - r);
        const char *panel = m->panel + r * product_panel_token(kernels, m->k);
        for (int64_t c = 0; c < columns; c += kernels->variant->rows) {
            const void *use[PRODUCT_MAX_ROWS]; /* behind the last one it is repeated: those sums are thrown away */
            for (int32_t i = 0; i < kernels->variant->rows; i++)
                use[i] = held + least(c + i, columns - 1) * m->space;
            for (int32_t i = 0; i < valid; i++)
                out[i] = dw + (r + i) * dw_stride + c * element(kernels);
            const product_tile tile = {.w = use, .k = m->k, .panel = panel, .width = width};
            kernels->tile_out(&tile, &finish, (int32_t)least(columns - c, kernels->variant->rows), out, valid);
        }
        r += width;
    }
}

void product_weight_grad(const product_kernels *kernels, const product_tokens_matrix *a, const product_tokens_matrix *b,
                         int64_t tokens, int64_t begin, int64_t end, int64_t columns, void *dw, int64_t stride,
                         void *scratch)
{
    const grad_memory m = layout(kernels, tokens, scratch);
    int64_t size = element(kernels), block = block_tiles(kernels, m.k) * kernels->variant->tile_tokens;
    const char *held = NULL;
    char *to = dw;
    for (int64_t r = begin; r < end && tokens == 0; r++)
        memset(to + r * stride * size, 0, (size_t)(columns * size));
    kernels->tiles_begin();
    for (int64_t first = begin; first < end && tokens > 0; first += block) {
        int64_t n = least(end - first, block);
        pack_block(kernels, a, tokens, first, n, &m);
        for (int64_t c = 0; c < columns; c += m.held) {
            int64_t some = least(columns - c, m.held);
            if (first == begin || m.held < columns)
                held = hold_columns(kernels, b, tokens, c, some, &m);
            block_columns(kernels, &m, n, held, some, to + (first * stride + c) * size, stride * size);
        }
    }
    kernels->tiles_end();
}
