/* The plain C reference of the products, and the choice among instruction sets. */
#include "product.h"
#include "activation.h"
#include "scalar.h"

#include <string.h>

#define ROWS 8
#define LANES 8

static float glu(float gate, float up, const product_finish *f)
{
    return (float)activation(f->act, (double)gate) * up;
}

static void pack_as_f32(const void *const *x, tn_dtype dtype, int32_t tokens, int32_t width, int64_t k, float *panel)
{
    for (int64_t i = 0; i < k; i++)
        for (int32_t t = 0; t < width; t++)
            panel[i * width + t] = t < tokens ? scalar_load(x[t], i, dtype) : 0.0f;
}

static void pack_f32_c(const void *const *x, int32_t tokens, int32_t width, int64_t k, void *panel)
{
    pack_as_f32(x, TN_F32, tokens, width, k, panel);
}

static void pack_bf16_c(const void *const *x, int32_t tokens, int32_t width, int64_t k, void *panel)
{
    pack_as_f32(x, TN_BF16, tokens, width, k, panel);
}

static void pack_f16_c(const void *const *x, int32_t tokens, int32_t width, int64_t k, void *panel)
{
    pack_as_f32(x, TN_F16, tokens, width, k, panel);
}

static void lay_as_f32(const void *src, tn_dtype dtype, int64_t step, int32_t lanes, int32_t width, int64_t k,
                       float *panel)
{
    for (int64_t i = 0; i < k; i++)
        for (int32_t t = 0; t < width; t++)
            panel[i * width + t] = t < lanes ? scalar_load((const char *)src + i * step, t, dtype) : 0.0f;
}

static void lay_f32_c(const void *src, int64_t step, int32_t lanes, int32_t width, int64_t k, void *panel)
{
    lay_as_f32(src, TN_F32, step, lanes, width, k, panel);
}

static void lay_bf16_c(const void *src, int64_t step, int32_t lanes, int32_t width, int64_t k, void *panel)
{
    lay_as_f32(src, TN_BF16, step, lanes, width, k, panel);
}

static void lay_f16_c(const void *src, int64_t step, int32_t lanes, int32_t width, int64_t k, void *panel)
{
    lay_as_f32(src, TN_F16, step, lanes, width, k, panel);
}

/* sums[t] = those before + w . x_t for every token of a panel; r: the row among those of the tile. */
static void row_sums(const product_tile *tile, int32_t r, float *sums)
{
    const float *panel = tile->panel;
    int32_t width = tile->width;
    if (!tile->before)
        memset(sums, 0, sizeof(float) * (size_t)width);
    else if (tile->before + r * width != sums)
        memcpy(sums, tile->before + r * width, sizeof(float) * (size_t)width);
    for (int64_t i = 0; i < tile->k; i++) {
        float one = scalar_load(tile->w[r], i, TN_F32);
        for (int32_t t = 0; t < width; t++)
            sums[t] += one * panel[i * width + t];
    }
}

static float bias_of(const product_finish *finish, int32_t r)
{
    return finish->bias ? finish->bias[r] : 0.0f;
}

static void tile_part_c(const product_tile *tile, float *sums)
{
    for (int32_t r = 0; r < ROWS; r++)
        row_sums(tile, r, sums + r * tile->width);
}

static void tile_glu_c(const product_tile *tile, const product_finish *finish, int32_t features, void *h)
{
    for (int32_t f = 0; f < ROWS / 2; f++) {
        float gate[PRODUCT_MAX_TOKENS], up[PRODUCT_MAX_TOKENS], *to = (float *)h + f * tile->width;
        row_sums(tile, f, gate);
        row_sums(tile, ROWS / 2 + f, up);
        for (int32_t t = 0; t < tile->width; t++)
            to[t] =
                f < features ? glu(gate[t] + bias_of(finish, f), up[t] + bias_of(finish, ROWS / 2 + f), finish) : 0.0f;
    }
}

static void tile_out_c(const product_tile *tile, const product_finish *finish, int32_t rows, void *const *y,
                       int32_t tokens)
{
    for (int32_t r = 0; r < rows; r++) {
        float sums[PRODUCT_MAX_TOKENS];
        row_sums(tile, r, sums);
        for (int32_t t = 0; t < tokens; t++)
            scalar_store(y[t], r, finish->dtype, sums[t] + bias_of(finish, r));
    }
}

static void tile_lines_c(const product_tile *tile, const product_finish *finish, int32_t rows, void *const *y,
                         int32_t lanes)
{
    for (int32_t r = 0; r < rows; r++) {
        float sums[PRODUCT_MAX_TOKENS];
        row_sums(tile, r, sums);
        for (int32_t t = 0; t < lanes; t++)
            scalar_store(y[r], t, finish->dtype, sums[t]);
    }
}

static void dots_as_f32(const product_block *block, tn_dtype dtype, int64_t k, const void *const *x, int32_t tokens,
                        float *sums)
{
    for (int32_t i = 0; i < tokens * PRODUCT_FEW_ROWS; i++) {
        int32_t t = i / PRODUCT_FEW_ROWS, r = i % PRODUCT_FEW_ROWS;
        float sum = 0.0f;
        for (int64_t e = 0; e < k && r < block->rows; e++)
            sum += scalar_load(block->w + r * block->step, e, dtype) * scalar_load(x[t], e, TN_F32);
        sums[i] = sum;
    }
}

static void dots_f32_c(const product_block *block, int64_t k, const void *const *x, int32_t tokens, float *sums)
{
    dots_as_f32(block, TN_F32, k, x, tokens, sums);
}

static void dots_bf16_c(const product_block *block, int64_t k, const void *const *x, int32_t tokens, float *sums)
{
    dots_as_f32(block, TN_BF16, k, x, tokens, sums);
}

static void dots_f16_c(const product_block *block, int64_t k, const void *const *x, int32_t tokens, float *sums)
{
    dots_as_f32(block, TN_F16, k, x, tokens, sums);
}

static void columns_as_f32(const void *w, tn_dtype dtype, int64_t step, int32_t rows, int64_t k, const void *const *x,
                           int32_t tokens, float *sums, int64_t space)
{
    for (int64_t i = 0; i < k; i++) {
        for (int32_t r = 0; r < rows; r++) {
            float one = scalar_load((const char *)w + i * step, r, dtype);
            for (int32_t t = 0; t < tokens; t++)
                sums[t * space + r] += one * scalar_load(x[t], i, TN_F32);
        }
    }
}

static void columns_f32_c(const void *w, int64_t step, int32_t rows, int64_t k, const void *const *x, int32_t tokens,
                          float *sums, int64_t space)
{
    columns_as_f32(w, TN_F32, step, rows, k, x, tokens, sums, space);
}

static void columns_bf16_c(const void *w, int64_t step, int32_t rows, int64_t k, const void *const *x, int32_t tokens,
                           float *sums, int64_t space)
{
    columns_as_f32(w, TN_BF16, step, rows, k, x, tokens, sums, space);
}

static void columns_f16_c(const void *w, int64_t step, int32_t rows, int64_t k, const void *const *x, int32_t tokens,
                          float *sums, int64_t space)
{
    columns_as_f32(w, TN_F16, step, rows, k, x, tokens, sums, space);
}

static void row_glu_c(const float *gate, const float *up, const float *up_bias, const product_finish *finish, int32_t n,
                      void *h)
{
    for (int32_t i = 0; i < n; i++)
        ((float *)h)[i] =
            glu(gate[i] + (finish->bias ? finish->bias[i] : 0.0f), up[i] + (up_bias ? up_bias[i] : 0.0f), finish);
}

static void row_out_c(const float *sums, const product_finish *finish, int32_t n, void *y)
{
    for (int32_t i = 0; i < n; i++)
        scalar_store(y, i, finish->dtype, finish->bias ? sums[i] + finish->bias[i] : sums[i]);
}

static void combine_c(const product_combine *c, int64_t n, void *y)
{
    for (int64_t i = 0; i < n; i++) {
        float sum = 0.0f;
        for (int32_t j = 0; j < c->count; j++)
            sum += scalar_load(c->part[j], i, c->part_dtype) * c->weight[j];
        if (c->extra)
            sum += scalar_load(c->extra, i, c->part_dtype) * c->extra_weight;
        scalar_store(y, i, c->dtype, sum);
    }
}

static void gather_4_c(const void *src, int64_t step, int32_t rows, int64_t k, void *dst, int64_t space)
{
    for (int64_t i = 0; i < k; i++)
        for (int32_t r = 0; r < rows; r++)
            memcpy((char *)dst + r * space + i * 4, (const char *)src + i * step + r * 4, 4);
}

static void gather_2_c(const void *src, int64_t step, int32_t rows, int64_t k, void *dst, int64_t space)
{
    for (int64_t i = 0; i < k; i++)
        for (int32_t r = 0; r < rows; r++)
            memcpy((char *)dst + r * space + i * 2, (const char *)src + i * step + r * 2, 2);
}

static void widen_f32_c(const void *src, int64_t n, float *dst)
{
    memcpy(dst, src, (size_t)n * 4);
}

static void widen_bf16_c(const void *src, int64_t n, float *dst)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = scalar_load(src, i, TN_BF16);
}

static void widen_f16_c(const void *src, int64_t n, float *dst)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = scalar_load(src, i, TN_F16);
}

static void nothing(void)
{
}

static void nothing_waits(product_later *later)
{
    (void)later;
}

void product_init_c(product_kernels *kernels)
{
    tn_dtype dtype = kernels->dtype;
    kernels->pack = dtype == TN_BF16 ? pack_bf16_c : dtype == TN_F16 ? pack_f16_c : pack_f32_c;
    kernels->lay = dtype == TN_BF16 ? lay_bf16_c : dtype == TN_F16 ? lay_f16_c : lay_f32_c;
    kernels->tiles_begin = kernels->tiles_end = nothing;
    kernels->finish_later = nothing_waits;
    kernels->tile_part = tile_part_c;
    kernels->tile_glu = tile_glu_c;
    kernels->tile_out = tile_out_c;
    kernels->tile_lines = tile_lines_c;
    kernels->dots = dtype == TN_BF16 ? dots_bf16_c : dtype == TN_F16 ? dots_f16_c : dots_f32_c;
    kernels->turned = NULL;
    kernels->columns = dtype == TN_BF16 ? columns_bf16_c : dtype == TN_F16 ? columns_f16_c : columns_f32_c;
    kernels->row_glu = row_glu_c;
    kernels->row_out = row_out_c;
    kernels->combine = combine_c;
    kernels->gather = dtype == TN_F32 ? gather_4_c : gather_2_c;
    kernels->widen = dtype == TN_BF16 ? widen_bf16_c : dtype == TN_F16 ? widen_f16_c : widen_f32_c;
}

#define F32 TN_TAKES(TN_F32)
#define BF16 TN_TAKES(TN_BF16)
#define F16 TN_TAKES(TN_F16)
#define AVX512 (TN_CPU_AVX2 | TN_CPU_AVX512)
#define AVX512_BF16 (AVX512 | TN_CPU_AVX512_BF16)

/* What runs where: the first row that takes the type and whose processor this is. Calls of up to `dots` tokens stream
 * the weights through dot products, more go by tiles. A function that a variant does not have is that of the next row
 * below which fits; so AMX, which has only tiles, packs and finishes as AVX-512 does. tiles: the fewest, the usual and
 * the most tokens of one. */
/* clang-format off */
static const product_variant variants[] = {
/*   name          dtypes            processor                      unless            native   dots rows lanes tiles    stretch block copies copied functions */
#if defined(__x86_64__)
    {"amx",        BF16,             AVX512_BF16 | TN_CPU_AMX_BF16, 0,                TN_BF16, 4,   32,  16, 16, 32, 32, 1024, 512, 256, 512, product_init_amx},
    {"avx512bf16", BF16,             AVX512_BF16,                   TN_CPU_SLOW_BF16, TN_BF16, 8,   8,   8,  16, 32, 40, 1024, 256, 0, 0, product_init_avx512bf16},
    {"avx512",     BF16 | F16,       AVX512,                        0,                TN_F32,  8,   8,   8,  16, 32, 40, 512,  256, 0, 0, product_init_avx512},
    {"avx512",     F32,              AVX512,                        0,                TN_F32,  8,   8,   8,  16, 32, 40, 512,  256, 0, 0, product_init_avx512},
    {"avx2",       F32 | BF16 | F16, TN_CPU_AVX2,                   0,                TN_F32,  8,   4,   8,  8,  24, 24, 512,  256, 0, 0, product_init_avx2},
#elif defined(__aarch64__)
    {"neon",       F32 | BF16 | F16, TN_CPU_NEON,                   0,                TN_F32,  8,   8,   4,  4,  12, 12, 512,  256, 0, 0, product_init_neon},
#endif
    {"c",          F32 | BF16 | F16, 0,                             0,                TN_F32,  8,   8,   8,  8,  16, 16, 512,  256, 0, 0, product_init_c},
};
/* clang-format on */

enum { VARIANTS = sizeof variants / sizeof *variants };

static bool variant_fits(const product_variant *v, tn_dtype dtype, uint64_t cpu_flags)
{
    return (v->dtypes & TN_TAKES(dtype)) && !(v->processor & ~cpu_flags) && !(v->unless & cpu_flags);
}

product_choice product_choose(tn_dtype dtype, int64_t tokens, uint64_t cpu_flags)
{
    int i = 0;
    while (i < VARIANTS - 1 && !variant_fits(&variants[i], dtype, cpu_flags))
        i++;
    return (product_choice){&variants[i], tokens <= variants[i].few_tokens ? "dots" : "tiles"};
}

void product_kernels_init(product_kernels *kernels, tn_dtype dtype, uint64_t cpu_flags)
{
    *kernels = (product_kernels){.variant = product_choose(dtype, 1, cpu_flags).variant, .dtype = dtype};
    for (int i = VARIANTS - 1; i >= 0; i--)
        if (variant_fits(&variants[i], dtype, cpu_flags))
            variants[i].init(kernels);
}
