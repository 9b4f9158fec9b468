/* The pieces of a gated MLP: loops over tiles and rows around the products of one instruction set. */
#include "product_mlp.h"
#include <string.h>

static int64_t element(const product_kernels *kernels)
{
    return kernels->dtype == TN_F32 ? 4 : 2;
}

static int64_t native_element(const product_kernels *kernels)
{
    return kernels->native == TN_BF16 ? 2 : 4;
}

/* Distance of rows brought into scratch: odd in cache lines, so that they do not fall into the same sets. */
static int64_t row_space(int64_t k)
{
    return ((k * 4 + 63) / 64 | 1) * 64;
}

size_t product_scratch_size(const product_kernels *kernels, int64_t k)
{
    (void)kernels;
    return (size_t)((PRODUCT_FEW_ROWS + 1) * row_space(k));
}

static const char *at(const product_kernels *kernels, const product_matrix *w, int64_t row)
{
    return (const char *)w->data + row * w->row_stride * element(kernels);
}

/* count <= 16 rows whose elements lie k_stride apart become dense rows `space` bytes apart. Neighbouring rows are
 * neighbours in memory, so each line is used for all of them at once. */
static void gather_rows(const product_kernels *kernels, const product_matrix *w, int64_t row, int32_t count, int64_t k,
                        char *dst, int64_t space)
{
    const char *src = at(kernels, w, row);
    int64_t size = element(kernels), step = w->k_stride * size, next = w->row_stride * size;
    for (int64_t i = 0; i < k; i++)
        for (int32_t r = 0; r < count; r++) {
            if (size == 2)
                memcpy(dst + r * space + i * 2, src + i * step + r * next, 2);
            else
                memcpy(dst + r * space + i * 4, src + i * step + r * next, 4);
        }
}

/* Pointers to count rows of native type for a tile: where they lie, or in scratch. Rows past the last one that counts
 * repeat it: their sums are thrown away. Returns whether they are used where they lie. */
static bool tile_rows(const product_kernels *kernels, const product_matrix *w, int64_t row, int32_t valid,
                      int32_t count, int64_t k, char *scratch, const void **rows)
{
    bool direct = w->k_stride == 1 && kernels->native == kernels->dtype;
    int64_t space = row_space(k);
    char *gathered = scratch + PRODUCT_MAX_ROWS * space; /* behind all rows of the tile */
    if (w->k_stride != 1)
        gather_rows(kernels, w, row, valid, k, kernels->native == kernels->dtype ? scratch : gathered, space);
    for (int32_t r = 0; r < count; r++) {
        int32_t use = r < valid ? r : valid - 1;
        rows[r] = direct ? at(kernels, w, row + use) : scratch + use * space;
        if (r < valid && kernels->native != kernels->dtype)
            kernels->widen(w->k_stride == 1 ? at(kernels, w, row + r) : gathered + r * space, k,
                           (float *)(void *)(scratch + r * space));
    }
    return direct;
}

static const float *widen_bias(const product_kernels *kernels, const void *bias, int64_t row, int64_t n, float *dst)
{
    if (!bias)
        return NULL;
    kernels->widen((const char *)bias + row * element(kernels), n, dst);
    return dst;
}

static int32_t vectors_of(const product_kernels *kernels, int64_t tokens)
{
    int64_t v = (tokens + kernels->lanes - 1) / kernels->lanes;
    return (int32_t)(v < kernels->max_vectors ? v : kernels->max_vectors);
}

void product_pack(const product_kernels *kernels, const void *const *x, int64_t tokens, int64_t k, int64_t begin,
                  int64_t end, void *panel)
{
    int64_t tile = product_tile_tokens(kernels), token = product_panel_token(kernels, k);
    for (int64_t t = begin * tile; t < end * tile && t < tokens; t += tile) {
        int32_t n = (int32_t)(tokens - t < tile ? tokens - t : tile);
        kernels->pack(x + t, n, vectors_of(kernels, n), k, (char *)panel + t * token);
    }
}

void product_glu_tiles(const product_kernels *kernels, const product_mlp *mlp, int64_t hidden, tn_act act,
                       const void *x, int64_t tokens, int64_t begin, int64_t end, void *h, void *scratch)
{
    int32_t half = kernels->rows / 2;
    int64_t tile = product_tile_tokens(kernels), native = native_element(kernels);
    int64_t x_token = product_panel_token(kernels, hidden), h_token = product_panel_token(kernels, mlp->inter);
    for (int64_t f = begin; f < end; f += half) {
        const void *rows[PRODUCT_MAX_ROWS];
        float bias[PRODUCT_MAX_ROWS] = {0};
        int32_t n = (int32_t)(end - f < half ? end - f : half);
        bool direct = tile_rows(kernels, &mlp->gate, f, n, half, hidden, scratch, rows);
        tile_rows(kernels, &mlp->up, f, n, half, hidden, (char *)scratch + half * row_space(hidden), rows + half);
        product_finish finish = {kernels->dtype, act, widen_bias(kernels, mlp->gate.bias, f, n, bias)};
        if (widen_bias(kernels, mlp->up.bias, f, n, bias + half))
            finish.bias = bias;
        int64_t ahead = direct && f + half < end ? half * mlp->gate.row_stride * element(kernels) : 0;
        for (int64_t t = 0; t < tokens; t += tile) {
            int32_t vectors = vectors_of(kernels, tokens - t);
            kernels->tile_glu(rows, ahead, hidden, (const char *)x + t * x_token, vectors, &finish, n,
                              (char *)h + t * h_token + f * vectors * kernels->lanes * native);
            ahead = 0;
        }
    }
}

void product_out_tiles(const product_kernels *kernels, const product_matrix *w, int64_t k, const void *x,
                       int64_t tokens, int64_t begin, int64_t end, void *const *y, void *scratch)
{
    int64_t tile = product_tile_tokens(kernels), x_token = product_panel_token(kernels, k);
    for (int64_t row = begin; row < end; row += kernels->rows) {
        const void *rows[PRODUCT_MAX_ROWS];
        float bias[PRODUCT_MAX_ROWS];
        int32_t n = (int32_t)(end - row < kernels->rows ? end - row : kernels->rows);
        bool direct = tile_rows(kernels, w, row, n, kernels->rows, k, scratch, rows);
        product_finish finish = {kernels->dtype, TN_ACT_LINEAR, widen_bias(kernels, w->bias, row, n, bias)};
        int64_t ahead = direct && row + n < end ? kernels->rows * w->row_stride * element(kernels) : 0;
        for (int64_t t = 0; t < tokens; t += tile) {
            void *out[PRODUCT_MAX_TOKENS];
            int32_t m = (int32_t)(tokens - t < tile ? tokens - t : tile);
            for (int32_t i = 0; i < m; i++)
                out[i] = (char *)y[t + i] + row * element(kernels);
            kernels->tile_out(rows, ahead, k, (const char *)x + t * x_token, vectors_of(kernels, m), &finish, n, out,
                              m);
            ahead = 0;
        }
    }
}

/* Sums of count <= 16 rows with all tokens. next: the row of a matrix that follows, for prefetching. */
static void few_sums(const product_kernels *kernels, const product_matrix *w, int64_t row, int32_t count, int64_t k,
                     const void *const *x, int32_t tokens, const char *next, char *scratch, float *sums)
{
    const void *rows = at(kernels, w, row);
    int64_t stride = w->row_stride * element(kernels);
    if (w->k_stride != 1) {
        stride = row_space(k);
        gather_rows(kernels, w, row, count, k, scratch, stride);
        rows = scratch;
        next = NULL;
    }
    kernels->dots(rows, stride, next, count, k, x, tokens, sums);
}

void product_glu_few(const product_kernels *kernels, const product_mlp *mlp, int64_t hidden, tn_act act,
                     const void *const *x, int32_t tokens, int64_t begin, int64_t end, void *const *h, void *scratch)
{
    float gate[PRODUCT_FEW_TOKENS * PRODUCT_FEW_ROWS], up[PRODUCT_FEW_TOKENS * PRODUCT_FEW_ROWS];
    float gate_bias[PRODUCT_FEW_ROWS], up_bias[PRODUCT_FEW_ROWS];
    for (int64_t f = begin; f < end; f += PRODUCT_FEW_ROWS) {
        int32_t n = (int32_t)(end - f < PRODUCT_FEW_ROWS ? end - f : PRODUCT_FEW_ROWS);
        const char *next = f + n < end ? at(kernels, &mlp->gate, f + n) : NULL;
        few_sums(kernels, &mlp->gate, f, n, hidden, x, tokens, at(kernels, &mlp->up, f), scratch, gate);
        few_sums(kernels, &mlp->up, f, n, hidden, x, tokens, next, scratch, up);
        product_finish finish = {kernels->dtype, act, widen_bias(kernels, mlp->gate.bias, f, n, gate_bias)};
        const float *ups = widen_bias(kernels, mlp->up.bias, f, n, up_bias);
        for (int32_t t = 0; t < tokens; t++)
            kernels->row_glu(gate + t * PRODUCT_FEW_ROWS, up + t * PRODUCT_FEW_ROWS, ups, &finish, n,
                             (char *)h[t] + f * native_element(kernels));
    }
}

void product_out_few(const product_kernels *kernels, const product_matrix *w, int64_t k, const void *const *x,
                     int32_t tokens, int64_t begin, int64_t end, void *const *y, void *scratch)
{
    float sums[PRODUCT_FEW_TOKENS * PRODUCT_FEW_ROWS], bias[PRODUCT_FEW_ROWS];
    for (int64_t row = begin; row < end; row += PRODUCT_FEW_ROWS) {
        int32_t n = (int32_t)(end - row < PRODUCT_FEW_ROWS ? end - row : PRODUCT_FEW_ROWS);
        const char *next = row + n < end ? at(kernels, w, row + n) : NULL;
        few_sums(kernels, w, row, n, k, x, tokens, next, scratch, sums);
        product_finish finish = {kernels->dtype, TN_ACT_LINEAR, widen_bias(kernels, w->bias, row, n, bias)};
        for (int32_t t = 0; t < tokens; t++)
            kernels->row_out(sums + t * PRODUCT_FEW_ROWS, &finish, n, (char *)y[t] + row * element(kernels));
    }
}

void product_native_rows(const product_kernels *kernels, const void *const *x, int64_t n, int64_t k, void *memory,
                         const void **rows)
{
    for (int64_t t = 0; t < n; t++) {
        rows[t] = x[t];
        if (kernels->native == kernels->dtype)
            continue;
        float *copy = (float *)memory + t * k;
        kernels->widen(x[t], k, copy);
        rows[t] = copy;
    }
}

void *product_row(const tn_tensor *tensor, int64_t t)
{
    int64_t offset = 0;
    for (int32_t d = tensor->ndim - 2; d >= 0; d--) {
        offset += t % tensor->shape[d] * tensor->stride[d];
        t /= tensor->shape[d];
    }
    return (char *)tensor->data + offset * (int64_t)tn_dtype_size(tensor->dtype);
}

int64_t product_tokens(const tn_tensor *tensor)
{
    int64_t n = 1;
    for (int32_t d = 0; d < tensor->ndim - 1; d++)
        n *= tensor->shape[d];
    return n;
}
