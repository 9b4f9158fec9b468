/* cpu_attention by the tiles of AMX: keys as they lie in the cache, or turned values, are the left operand; queries or
 * probabilities by pairs the other. Of the eight tiles four hold sums, of 32 rows by two groups of lanes. What else
 * there is belongs to AVX-512. */
#include "amx.h"

#include "attention.h"

enum { TILE = 16, STEP = 32, LINE = 64, GROUP = ATTENTION_LANES };

/* Tiles 0 to 3 are sums (first rows by first lanes, by second lanes; second rows likewise), 4 and 5 rows, 6 and 7
 * lanes. */
static const amx_config config = {.palette = 1,
                                  .row_bytes = {LINE, LINE, LINE, LINE, LINE, LINE, LINE, LINE},
                                  .rows = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE}};

static void begin(void)
{
    amx_load_config(&config);
}

static void end(void)
{
    amx_release();
}

/* 16 or 32 rows by one or two groups of lanes; row and out_group in bytes. */
static inline __attribute__((always_inline)) void product(const char *w, int64_t row, int tiles, int64_t depth,
                                                          const char *panel, int64_t panel_group, int groups, bool add,
                                                          char *out, int64_t out_group)
{
    if (add) {
        amx_load(0, out, LINE);
        if (groups == 2)
            amx_load(1, out + out_group, LINE);
        if (tiles == 2)
            amx_load(2, out + TILE * LINE, LINE);
        if (tiles == 2 && groups == 2)
            amx_load(3, out + out_group + TILE * LINE, LINE);
    } else {
        amx_zero(0);
        amx_zero(1);
        amx_zero(2);
        amx_zero(3);
    }
    for (int64_t i = 0; i < depth; i += STEP, w += LINE, panel += TILE * LINE) {
        amx_load(4, w, row);
        amx_load(6, panel, LINE);
        amx_dot_bf16(0, 4, 6);
        if (groups == 2) {
            amx_load(7, panel + panel_group, LINE);
            amx_dot_bf16(1, 4, 7);
        }
        if (tiles == 2) {
            amx_load(5, w + TILE * row, row);
            amx_dot_bf16(2, 5, 6);
        }
        if (tiles == 2 && groups == 2)
            amx_dot_bf16(3, 5, 7);
    }
    amx_store(0, out, LINE);
    if (groups == 2)
        amx_store(1, out + out_group, LINE);
    if (tiles == 2)
        amx_store(2, out + TILE * LINE, LINE);
    if (tiles == 2 && groups == 2)
        amx_store(3, out + out_group + TILE * LINE, LINE);
}

/* Rows stay in the first cache while all groups of lanes meet them. */
static inline __attribute__((always_inline)) void products_of(const char *w, int64_t row, int tiles, int64_t depth,
                                                              const char *panel, int64_t panel_group, int32_t groups,
                                                              bool add, char *out, int64_t out_group)
{
    for (; groups >= 2; groups -= 2, panel += 2 * panel_group, out += 2 * out_group)
        product(w, row, tiles, depth, panel, panel_group, 2, add, out, out_group);
    if (groups)
        product(w, row, tiles, depth, panel, panel_group, 1, add, out, out_group);
}

static void products(const attention_operand *operand, int64_t rows, int64_t depth, const char *panel,
                     int64_t panel_group, int32_t groups, bool add, char *out, int64_t out_group)
{
    const char *w = operand->data;
    int64_t r = 0, row = operand->row * 2;
    amx_written();
    for (; r + TILE < rows; r += 2 * TILE) {
        for (int64_t next = r + 2 * TILE; next < r + 4 * TILE && next < rows; next++)
            for (int64_t i = 0; i < depth * 2; i += LINE)
                __builtin_prefetch(w + next * row + i);
        products_of(w + r * row, row, 2, depth, panel, panel_group, groups, add, out + r * LINE, out_group);
    }
    if (r < rows)
        products_of(w + r * row, row, 1, depth, panel, panel_group, groups, add, out + r * LINE, out_group);
    amx_written();
}

static void scores(const attention_operand *keys, int64_t count, int64_t depth, const void *panel, int32_t groups,
                   float *to)
{
    products(keys, count, depth, panel, depth * GROUP * 2, groups, false, (char *)to, ATTENTION_KEYS * LINE);
}

static void mix(const attention_operand *values, int64_t dv, int64_t count, const void *panel, int64_t panel_group,
                int32_t groups, float *o, int64_t o_group)
{
    products(values, dv, count, panel, panel_group * 2, groups, true, (char *)o, o_group * 4);
}

void attention_init_amx(attention_kernels *kernels)
{
    attention_init_avx512bf16(kernels);
    kernels->rows = TILE;
    kernels->few_rows = 0; /* the order of a tile's sums is its own */
    kernels->begin = begin;
    kernels->end = end;
    kernels->scores = scores;
    kernels->mix = mix;
}
