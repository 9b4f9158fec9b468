/* Products of experts' codes with rounded activations: few rows of them meet the codes as they lie, more in tiles rows
 * of codes that are laid for them, with the same bits. */
#include "experts.h"

#include "product_parts.h"

#include <string.h>

static bool lays(const experts_layer *layer, int64_t tokens)
{
    return layer->unpacks.many_dtypes && tokens * layer->terms >= CODES_LAID_FROM;
}

int64_t experts_tile(const experts_layer *layer, int64_t tokens)
{
    return lays(layer, tokens) ? CODES_TOKENS : 1;
}

bool experts_round(const experts_layer *layer, const float *x, int64_t k, int64_t i, int64_t n, float *rest,
                   ints_group *tiles)
{
    int64_t most = experts_tile(layer, n), step;
    memcpy(rest, x, (size_t)k * sizeof *rest);
    for (int32_t term = 0; term < layer->terms; term++) {
        ints_group *to = codes_tile_row(tiles, k, i * layer->terms + term, n * layer->terms, most, &step);
        if (!layer->unpacks.round(rest, k, step, to)) {
            memset(rest, 0, (size_t)k * sizeof *rest);
            for (term = 0; term < layer->terms; term++)
                layer->unpacks.round(rest, k, step,
                                     codes_tile_row(tiles, k, i * layer->terms + term, n * layer->terms, most, &step));
            return false;
        }
        if (term + 1 < layer->terms)
            codes_leave_rest(rest, k, step, to);
    }
    return true;
}

static void multiply_laid(const experts_layer *layer, const codes *c, int64_t row, int64_t rows, int64_t k,
                          ints_group *tiles, int64_t n, void *laid, float *sums)
{
    int64_t all = n * layer->terms, step;
    layer->unpacks.many_lay(c, row, (int32_t)rows, k, laid);
    for (int64_t i = 0; i < all; i += CODES_TOKENS) {
        int64_t width = product_least(all - i, CODES_TOKENS);
        float *to = sums + i / layer->terms * CODES_ROWS;
        layer->unpacks.many_multiply(c, laid, (int32_t)rows, k, codes_tile_row(tiles, k, i, all, CODES_TOKENS, &step),
                                     (int32_t)width, to);
        if (layer->terms == 2)
            codes_add_terms(to, width / 2, CODES_ROWS);
    }
}

static void multiply_few(const experts_layer *layer, const codes *c, int64_t row, int64_t rows, int64_t k,
                         const ints_group *tiles, int64_t n, float *sums)
{
    const ints_group *x[2 * PRODUCT_FEW_TOKENS];
    float part[2 * PRODUCT_FEW_TOKENS * PRODUCT_FEW_ROWS] = {0};
    for (int64_t i = 0; i < n * layer->terms; i++)
        x[i] = tiles + i * (k / CODES_GROUP);
    for (int64_t r = 0; r < rows; r += PRODUCT_FEW_ROWS) {
        int64_t m = product_least(rows - r, PRODUCT_FEW_ROWS);
        layer->unpacks.ints(c, row + r, (int32_t)m, k, x, (int32_t)n * layer->terms, part);
        if (layer->terms == 2)
            codes_add_terms(part, n, PRODUCT_FEW_ROWS);
        for (int64_t i = 0; i < n; i++)
            memcpy(sums + i * CODES_ROWS + r, part + i * PRODUCT_FEW_ROWS, (size_t)m * sizeof *sums);
    }
}

void experts_multiply(const experts_layer *layer, const codes *c, int64_t row, int64_t rows, int64_t k,
                      ints_group *tiles, int64_t n, void *laid, float *sums)
{
    if (lays(layer, n)) {
        multiply_laid(layer, c, row, rows, k, tiles, n, laid, sums);
        return;
    }
    for (int64_t i = 0; i < n; i += PRODUCT_FEW_TOKENS)
        multiply_few(layer, c, row, rows, k, tiles + i * layer->terms * (k / CODES_GROUP),
                     product_least(n - i, PRODUCT_FEW_TOKENS), sums + i * CODES_ROWS);
}

void experts_multiply_plain(const experts_layer *layer, const codes *c, int64_t row, int64_t n, const float *x,
                            int64_t k, float *unpacked, float *sums)
{
    for (int64_t r = 0; r < n; r++) {
        float sum = 0.0f;
        layer->unpacks.unpack(c, row + r, 0, k, TN_F32, unpacked);
        for (int64_t i = 0; i < k; i++)
            sum += unpacked[i] * x[i];
        sums[r] = sum;
    }
}
