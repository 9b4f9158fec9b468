/* Products in f32, written once for every instruction set whose vectors have a vec_<isa>.h: f32 itself, and bf16 and
 * f16 after conversion. Included by one file per instruction set after that header; ROWS weight rows by MAX_VECTORS
 * vectors of tokens, those vectors and a weight must fit into its registers. */
#ifndef PRODUCT_F32_H
#define PRODUCT_F32_H

#include <string.h>

#include "activation_vec.h"
#include "product.h"
#include "product_turned.h"

enum { LANES = VEC_LANES };

VEC_INLINE int64_t size_of(tn_dtype dtype)
{
    return dtype == TN_F32 ? 4 : 2;
}

VEC_INLINE vec glu(vec gate, vec up, const product_finish *f)
{
    return vec_mul(vec_activation(f->act, gate), up);
}

/* Elements beyond the first n are zeros. */
VEC_INLINE vec load_up_to(const void *p, tn_dtype dtype, int64_t n)
{
    return n >= LANES ? vec_load(p, dtype) : vec_load_part(p, dtype, n);
}

VEC_INLINE void store_up_to(void *p, tn_dtype dtype, int64_t n, vec v)
{
    if (dtype == TN_BF16) /* sums of infinities are NaNs of any kind */
        v = vec_quiet(v);
    if (n >= LANES)
        vec_store(p, dtype, v);
    else
        vec_store_part(p, dtype, v, n);
}

VEC_INLINE void pack_as_f32(const void *const *x, tn_dtype dtype, int32_t tokens, int32_t vectors, int64_t k,
                            float *panel)
{
    for (int32_t v = 0; v < vectors; v++) {
        for (int64_t i = 0; i < k; i += LANES) {
            vec r[LANES];
            for (int t = 0; t < LANES; t++) {
                int32_t token = v * LANES + t;
                r[t] = vec_set(0.0f);
                if (token < tokens)
                    r[t] = load_up_to((const char *)x[token] + i * size_of(dtype), dtype, k - i);
            }
            vec_transpose(r);
            int64_t n = k - i < LANES ? k - i : LANES;
            for (int64_t p = 0; p < n; p++)
                vec_store((char *)(panel + ((i + p) * vectors + v) * LANES), TN_F32, r[p]);
        }
    }
}

static void pack_f32(const void *const *x, int32_t tokens, int32_t width, int64_t k, void *panel)
{
    pack_as_f32(x, TN_F32, tokens, width / LANES, k, panel);
}

static void pack_from_bf16(const void *const *x, int32_t tokens, int32_t width, int64_t k, void *panel)
{
    pack_as_f32(x, TN_BF16, tokens, width / LANES, k, panel);
}

static void pack_from_f16(const void *const *x, int32_t tokens, int32_t width, int64_t k, void *panel)
{
    pack_as_f32(x, TN_F16, tokens, width / LANES, k, panel);
}

VEC_INLINE void lay_as_f32(const char *src, tn_dtype dtype, int64_t step, int32_t lanes, int32_t width, int64_t k,
                           float *panel)
{
    for (int64_t i = 0; i < k; i++)
        for (int32_t t = 0; t < width; t += LANES)
            vec_store((char *)(panel + i * width + t), TN_F32,
                      t < lanes ? load_up_to(src + i * step + t * size_of(dtype), dtype, lanes - t) : vec_set(0.0f));
}

static void lay_f32(const void *src, int64_t step, int32_t lanes, int32_t width, int64_t k, void *panel)
{
    lay_as_f32(src, TN_F32, step, lanes, width, k, panel);
}

static void lay_from_bf16(const void *src, int64_t step, int32_t lanes, int32_t width, int64_t k, void *panel)
{
    lay_as_f32(src, TN_BF16, step, lanes, width, k, panel);
}

static void lay_from_f16(const void *src, int64_t step, int32_t lanes, int32_t width, int64_t k, void *panel)
{
    lay_as_f32(src, TN_F16, step, lanes, width, k, panel);
}

VEC_INLINE float load_one(const char *p)
{
    float one;
    memcpy(&one, p, sizeof one);
    return one;
}

VEC_INLINE void sums_of(const product_tile *tile, int vectors, float *out)
{
    vec sums[ROWS][MAX_VECTORS];
    const char *row[ROWS];
    const float *panel = tile->panel;
    for (int r = 0; r < ROWS; r++) {
        row[r] = tile->w[r];
        for (int v = 0; v < vectors; v++)
            sums[r][v] = tile->before ? vec_load((const char *)(tile->before + (r * vectors + v) * LANES), TN_F32)
                                      : vec_set(0.0f);
    }
    for (int64_t line = 0; line < tile->k; line += 16) {
        int64_t end = line + 16 < tile->k ? line + 16 : tile->k;
        product_fetch_lines(tile, line * 4);
        for (int64_t i = line; i < end; i++) {
            vec x[MAX_VECTORS];
            for (int v = 0; v < vectors; v++)
                x[v] = vec_load((const char *)(panel + (i * vectors + v) * LANES), TN_F32);
            for (int r = 0; r < ROWS; r++) {
                vec one = vec_set(load_one(row[r] + i * 4));
                for (int v = 0; v < vectors; v++)
                    sums[r][v] = vec_fma(x[v], one, sums[r][v]);
            }
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++)
            vec_store((char *)(out + (r * vectors + v) * LANES), TN_F32, sums[r][v]);
}

/* out[r * vectors + v] holds row r and tokens LANES v .. LANES v + LANES - 1: the sums pass through the first cache. */
static void tile_part(const product_tile *tile, float *out)
{
    int32_t vectors = tile->width / LANES;
    if (vectors == 3)
        sums_of(tile, 3, out);
    else if (vectors == 2)
        sums_of(tile, 2, out);
    else
        sums_of(tile, 1, out);
}

static void tile_glu(const product_tile *tile, const product_finish *finish, int32_t features, void *h)
{
    int32_t vectors = tile->width / LANES;
    float sums[ROWS * MAX_VECTORS * LANES];
    tile_part(tile, sums);
    for (int i = 0; i < ROWS / 2; i++) {
        for (int v = 0; v < vectors; v++) {
            vec gate = vec_load((const char *)(sums + (i * vectors + v) * LANES), TN_F32), r = vec_set(0.0f);
            vec up = vec_load((const char *)(sums + ((ROWS / 2 + i) * vectors + v) * LANES), TN_F32);
            if (finish->bias && i < features) {
                gate = vec_add(gate, vec_set(finish->bias[i]));
                up = vec_add(up, vec_set(finish->bias[ROWS / 2 + i]));
            }
            if (i < features)
                r = glu(gate, up, finish);
            vec_store((char *)((float *)h + (i * vectors + v) * LANES), TN_F32, r);
        }
    }
}

static void tile_out(const product_tile *tile, const product_finish *finish, int32_t rows, void *const *y,
                     int32_t tokens)
{
    float sums[ROWS * MAX_VECTORS * LANES];
    tile_part(tile, sums);
    for (int32_t t = 0; t < tokens; t++) {
        float one[ROWS + LANES] = {0};
        for (int32_t r = 0; r < rows; r++)
            one[r] = sums[r * tile->width + t] + (finish->bias ? finish->bias[r] : 0.0f);
        for (int32_t r = 0; r < rows; r += LANES)
            store_up_to((char *)y[t] + r * size_of(finish->dtype), finish->dtype, rows - r,
                        vec_load((const char *)(one + r), TN_F32));
    }
}

static void tile_lines(const product_tile *tile, const product_finish *finish, int32_t rows, void *const *y,
                       int32_t lanes)
{
    float sums[ROWS * MAX_VECTORS * LANES];
    tile_part(tile, sums);
    for (int32_t r = 0; r < rows; r++)
        for (int32_t t = 0; t < lanes; t += LANES)
            store_up_to((char *)y[r] + t * size_of(finish->dtype), finish->dtype, lanes - t,
                        vec_load((const char *)(sums + r * tile->width + t), TN_F32));
}

/* Columns: up to two tokens by four vectors, whose lanes are rows. */
enum { COLUMN_TOKENS = 2, COLUMN_VECTORS = 4, COLUMN_ROWS = COLUMN_VECTORS * LANES };

VEC_INLINE void columns_part(const char *w, tn_dtype dtype, int64_t step, int32_t rows, int64_t k, const void *const *x,
                             int tokens, float *sums, int64_t space)
{
    vec sum[COLUMN_TOKENS][COLUMN_VECTORS];
    for (int t = 0; t < tokens; t++)
        for (int v = 0; v < COLUMN_VECTORS; v++)
            sum[t][v] = vec_load((const char *)(sums + t * space + v * LANES), TN_F32);
    for (int64_t i = 0; i < k; i++) {
        for (int64_t line = 0; line < COLUMN_ROWS * size_of(dtype); line += 64)
            __builtin_prefetch(w + (k + i) * step + line, 0, 2);
        for (int v = 0; v < COLUMN_VECTORS; v++) {
            vec a = vec_set(0.0f);
            if (v * LANES < rows)
                a = load_up_to(w + i * step + v * LANES * size_of(dtype), dtype, rows - v * LANES);
            for (int t = 0; t < tokens; t++)
                sum[t][v] = vec_fma(a, vec_set(((const float *)x[t])[i]), sum[t][v]);
        }
    }
    for (int t = 0; t < tokens; t++)
        for (int v = 0; v < COLUMN_VECTORS; v++)
            vec_store((char *)(sums + t * space + v * LANES), TN_F32, sum[t][v]);
}

VEC_INLINE void columns_as_f32(const void *w, tn_dtype dtype, int64_t step, int32_t rows, int64_t k,
                               const void *const *x, int32_t tokens, float *sums, int64_t space)
{
    for (int32_t r = 0; r < rows; r += COLUMN_ROWS) {
        const char *first = (const char *)w + r * size_of(dtype);
        int32_t n = rows - r, t = 0;
        for (; t + COLUMN_TOKENS <= tokens; t += COLUMN_TOKENS)
            if (n >= COLUMN_ROWS)
                columns_part(first, dtype, step, COLUMN_ROWS, k, x + t, COLUMN_TOKENS, sums + t * space + r, space);
            else
                columns_part(first, dtype, step, n, k, x + t, COLUMN_TOKENS, sums + t * space + r, space);
        for (; t < tokens; t++)
            columns_part(first, dtype, step, n, k, x + t, 1, sums + t * space + r, space);
    }
}

static void columns_f32(const void *w, int64_t step, int32_t rows, int64_t k, const void *const *x, int32_t tokens,
                        float *sums, int64_t space)
{
    columns_as_f32(w, TN_F32, step, rows, k, x, tokens, sums, space);
}

static void columns_from_bf16(const void *w, int64_t step, int32_t rows, int64_t k, const void *const *x,
                              int32_t tokens, float *sums, int64_t space)
{
    columns_as_f32(w, TN_BF16, step, rows, k, x, tokens, sums, space);
}

static void columns_from_f16(const void *w, int64_t step, int32_t rows, int64_t k, const void *const *x, int32_t tokens,
                             float *sums, int64_t space)
{
    columns_as_f32(w, TN_F16, step, rows, k, x, tokens, sums, space);
}

static void row_glu(const float *gate, const float *up, const float *up_bias, const product_finish *finish, int32_t n,
                    void *h)
{
    for (int32_t i = 0; i < n; i += LANES) {
        vec g = load_up_to(gate + i, TN_F32, n - i), u = load_up_to(up + i, TN_F32, n - i);
        if (finish->bias)
            g = vec_add(g, load_up_to(finish->bias + i, TN_F32, n - i));
        if (up_bias)
            u = vec_add(u, load_up_to(up_bias + i, TN_F32, n - i));
        store_up_to((float *)h + i, TN_F32, n - i, glu(g, u, finish));
    }
}

static void row_out(const float *sums, const product_finish *finish, int32_t n, void *y)
{
    for (int32_t i = 0; i < n; i += LANES) {
        vec v = load_up_to(sums + i, TN_F32, n - i);
        if (finish->bias)
            v = vec_add(v, load_up_to(finish->bias + i, TN_F32, n - i));
        store_up_to((char *)y + i * size_of(finish->dtype), finish->dtype, n - i, v);
    }
}

static void combine(const product_combine *c, int64_t n, void *y)
{
    int64_t from = size_of(c->part_dtype);
    for (int64_t i = 0; i < n; i += LANES) {
        vec sum = vec_set(0.0f);
        for (int32_t j = 0; j < c->count; j++)
            sum = vec_fma(load_up_to((const char *)c->part[j] + i * from, c->part_dtype, n - i), vec_set(c->weight[j]),
                          sum);
        if (c->extra)
            sum = vec_fma(load_up_to((const char *)c->extra + i * from, c->part_dtype, n - i), vec_set(c->extra_weight),
                          sum);
        store_up_to((char *)y + i * size_of(c->dtype), c->dtype, n - i, sum);
    }
}

static void widen_bf16(const void *src, int64_t n, float *dst)
{
    for (int64_t i = 0; i < n; i += LANES)
        store_up_to(dst + i, TN_F32, n - i, load_up_to((const uint16_t *)src + i, TN_BF16, n - i));
}

static void widen_f16(const void *src, int64_t n, float *dst)
{
    for (int64_t i = 0; i < n; i += LANES)
        store_up_to(dst + i, TN_F32, n - i, load_up_to((const uint16_t *)src + i, TN_F16, n - i));
}

/* Turning a matrix whose rows are side by side is left to what was there before. */
static void product_init_f32(product_kernels *kernels)
{
    bool half = kernels->dtype == TN_F16, brain = kernels->dtype == TN_BF16;
    kernels->pack = brain ? pack_from_bf16 : half ? pack_from_f16 : pack_f32;
    kernels->tile_part = tile_part;
    kernels->tile_glu = tile_glu;
    kernels->lay = brain ? lay_from_bf16 : half ? lay_from_f16 : lay_f32;
    kernels->tile_out = tile_out;
    kernels->tile_lines = tile_lines;
    kernels->dots = brain ? dots_from_bf16 : half ? dots_from_f16 : dots_f32;
    kernels->turned = brain ? turned_from_bf16 : half ? turned_from_f16 : NULL;
    kernels->columns = brain ? columns_from_bf16 : half ? columns_from_f16 : columns_f32;
    kernels->row_glu = row_glu;
    kernels->row_out = row_out;
    kernels->combine = combine;
    if (brain || half)
        kernels->widen = brain ? widen_bf16 : widen_f16;
}

#endif
