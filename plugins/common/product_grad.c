/* Gradients of weights by the tiles of product.h: the sum runs over tokens, the lanes are rows of dw, and the columns
 * of b take the place of weight rows. Both lie side by side in memory and are turned in scratch: a's into the panel of
 * a block of rows, which then stays in the second cache while b's come by, sixteen at a time. */
#include "product_grad.h"
#include <string.h>

/* What a block's panel may take of the second cache: three quarters of the smallest one among those with AVX-512. */
#define PANEL_BYTES (768 * 1024)

/* Tiles of a block: beyond eight, turning b for each block costs nothing any more beside the products. */
#define MOST_TILES 8

typedef struct grad_memory {
    char *panel;
    char *lanes;   /* a's columns of one tile, as rows of dtype                                      */
    char *columns; /* PRODUCT_FEW_ROWS columns of b, as rows of dtype                                 */
    char *wide;    /* the same as rows of native type, when that is another                           */
    int64_t space; /* from one of these rows to the next                                               */
    size_t total;
} grad_memory;

static int64_t block_tiles(const product_kernels *kernels, int64_t tokens)
{
    int64_t tile = kernels->variant->tile_tokens * product_panel_token(kernels, tokens);
    int64_t tiles = tile > 0 ? PANEL_BYTES / tile : MOST_TILES;
    return tiles < 1 ? 1 : tiles > MOST_TILES ? MOST_TILES : tiles;
}

/* scratch NULL: only the total counts. */
static grad_memory layout(const product_kernels *kernels, int64_t tokens, char *scratch)
{
    grad_memory m = {.space = product_row_space(tokens)};
    int64_t rows = (block_tiles(kernels, tokens) - 1) * kernels->variant->tile_tokens + kernels->variant->max_tokens;
    int64_t lanes = (kernels->variant->max_tokens + PRODUCT_FEW_ROWS - 1) / PRODUCT_FEW_ROWS * PRODUCT_FEW_ROWS;
    size_t panel = (size_t)((rows * product_panel_token(kernels, tokens) + 63) / 64 * 64);
    size_t turned = (size_t)(lanes * m.space), sixteen = (size_t)(PRODUCT_FEW_ROWS * m.space);
    m.total = panel + turned + 2 * sixteen;
    if (scratch) {
        m.panel = scratch;
        m.lanes = m.panel + panel;
        m.columns = m.lanes + turned;
        m.wide = m.columns + sixteen;
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

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Columns first .. first + n - 1 of a matrix become rows. */
static void turn(const product_kernels *kernels, const product_tokens_matrix *from, int64_t tokens, int64_t first,
                 int64_t n, char *to, int64_t space)
{
    for (int64_t i = 0; i < n; i += PRODUCT_FEW_ROWS)
        kernels->gather((const char *)from->data + (first + i) * element(kernels), from->stride * element(kernels),
                        (int32_t)least(n - i, PRODUCT_FEW_ROWS), tokens, to + i * space, space);
}

/* The panel of rows first .. first + n - 1 of dw. */
static void pack_block(const product_kernels *kernels, const product_tokens_matrix *a, int64_t tokens, int64_t first,
                       int64_t n, const grad_memory *m)
{
    for (int64_t r = 0; r < n;) {
        const void *rows[PRODUCT_MAX_TOKENS];
        int32_t width = product_tile_width(kernels, n - r), valid = (int32_t)least(width, n - r);
        turn(kernels, a, tokens, first + r, valid, m->lanes, m->space);
        for (int32_t i = 0; i < valid; i++)
            rows[i] = m->lanes + i * m->space;
        kernels->pack(rows, valid, width, tokens, m->panel + r * product_panel_token(kernels, tokens));
        r += width;
    }
}

/* count columns of b, which begin at `first` and lie in `rows`, for n rows of dw, each from dw on. */
static void block_columns(const product_kernels *kernels, int64_t tokens, int64_t n, const void *const *rows,
                          int32_t count, char *dw, int64_t dw_stride, const grad_memory *m)
{
    const product_finish finish = {kernels->dtype, TN_ACT_LINEAR, NULL};
    for (int32_t c = 0; c < count; c += kernels->variant->rows) {
        const void *use[PRODUCT_MAX_ROWS]; /* behind the last one it is repeated: those sums are thrown away */
        for (int32_t i = 0; i < kernels->variant->rows; i++)
            use[i] = rows[c + i < count ? c + i : count - 1];
        for (int64_t r = 0; r < n;) {
            void *out[PRODUCT_MAX_TOKENS];
            int32_t width = product_tile_width(kernels, n - r), valid = (int32_t)least(width, n - r);
            for (int32_t i = 0; i < valid; i++)
                out[i] = dw + (r + i) * dw_stride + c * element(kernels);
            const product_tile tile = {
                .w = use, .k = tokens, .panel = m->panel + r * product_panel_token(kernels, tokens), .width = width};
            kernels->tile_out(&tile, &finish, (int32_t)least(count - c, kernels->variant->rows), out, valid);
            r += width;
        }
    }
}

void product_weight_grad(const product_kernels *kernels, const product_tokens_matrix *a, const product_tokens_matrix *b,
                         int64_t tokens, int64_t begin, int64_t end, int64_t columns, void *dw, int64_t stride,
                         void *scratch)
{
    const grad_memory m = layout(kernels, tokens, scratch);
    int64_t size = element(kernels), block = block_tiles(kernels, tokens) * kernels->variant->tile_tokens;
    char *to = dw;
    for (int64_t r = begin; r < end && tokens == 0; r++)
        memset(to + r * stride * size, 0, (size_t)(columns * size));
    kernels->tiles_begin();
    for (int64_t first = begin; first < end && tokens > 0; first += block) {
        int64_t n = least(end - first, block);
        pack_block(kernels, a, tokens, first, n, &m);
        for (int64_t c = 0; c < columns; c += PRODUCT_FEW_ROWS) {
            const void *rows[PRODUCT_FEW_ROWS];
            int32_t count = (int32_t)least(columns - c, PRODUCT_FEW_ROWS);
            turn(kernels, b, tokens, c, count, m.columns, m.space);
            for (int32_t i = 0; i < count; i++) {
                rows[i] = m.columns + i * m.space;
                if (kernels->variant->native == kernels->dtype)
                    continue;
                kernels->widen(rows[i], tokens, (float *)(void *)(m.wide + i * m.space));
                rows[i] = m.wide + i * m.space;
            }
            block_columns(kernels, tokens, n, rows, count, to + (first * stride + c) * size, stride * size, &m);
        }
    }
    kernels->tiles_end();
}
