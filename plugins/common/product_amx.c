/* Products of bf16 by the tiles of AMX: one instruction adds 16 rows times 32 elements times 16 tokens to 16 x 16 sums.
 * Rows of weights at equal distances are loaded from where they are mapped, or from a copy in the order of tiles; a
 * panel of pairs is what the instruction wants of its other operand. Of the eight tiles four hold sums, of 32 rows and
 * 32 tokens, so that each tile loaded is used twice: 4 products (64 cycles) for 4 loads (32 cycles). What comes again
 * with the next tile stays in the first cache, past which the other operand is loaded: rows where they are mapped stay,
 * and copied ones go by while the tokens stay. What becomes of a full tile's sums is done between the products of the
 * next one. Few tokens take the same instruction, so that their sums have its order. What else there is is AVX-512's.
 */
#include "amx.h"
#include "product_avx512.h"

#include <stddef.h>

#define TILE 16                 /* rows, pairs and tokens                                            */
#define STEP 32                 /* elements along k                                                  */
#define BOTH (2 * TILE)         /* rows and tokens of a whole set of sums                            */
#define LINE (4 * TILE)         /* bytes of a tile's row                                             */
#define SUMS_LINE (2 * LINE)    /* bytes from one row of sums to the next                            */
#define COPY_STEP (BOTH * LINE) /* bytes of a tile's rows in their copy, for every step along k       */

/* Tiles 0 to 3 are sums (first rows by first tokens, by second tokens; second rows likewise), 4 and 5 are weights,
 * 6 and 7 tokens. */
static const amx_config config = {.palette = 1,
                                  .row_bytes = {LINE, LINE, LINE, LINE, LINE, LINE, LINE, LINE},
                                  .rows = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE}};

static void tiles_begin_amx(void)
{
    amx_load_config(&config);
}

static void tiles_end_amx(void)
{
    amx_release();
}

/* Where a tile's rows are at the moment. */
typedef struct tile_place {
    const char *first;
    int64_t stride;
} tile_place;

/* n elements of each row, from element i on, and zeros behind them. */
static void copy_rows(const void *const *row, int64_t i, int64_t n, char to[TILE][LINE])
{
    __mmask32 m = n >= STEP ? 0xffffffffu : (1u << n) - 1;
    for (int r = 0; r < TILE; r++)
        _mm512_store_si512(to[r], _mm512_maskz_loadu_epi16(m, (const uint16_t *)row[r] + i));
}

/* The last pairs of a panel, and zeros behind them: n elements, odd or even, of which pack has filled up the last pair.
 */
static void copy_pairs(const char *panel, int64_t n, int64_t line, char *to)
{
    int64_t bytes = (n + 1) / 2 * line;
    memcpy(to, panel, (size_t)bytes);
    memset(to + bytes, 0, (size_t)(TILE * line - bytes));
}

/* Where a tile's rows come from: from where they lie; from there, and they are copied; from the copy. */
typedef enum rows_way { IN_PLACE, COPYING, COPIED } rows_way;

static rows_way way_of(const product_tile *tile)
{
    return !tile->copy ? IN_PLACE : tile->copied ? COPIED : COPYING;
}

/* 16 or 32 rows (groups) by 16 or 32 tokens (vectors) by 32 elements. */
INLINE void step(rows_way way, const tile_place a[2], char *copy, int groups, const char *b, int64_t line, int vectors)
{
    if (way == COPIED)
        amx_load_past(4, copy, LINE);
    else
        amx_load(4, a[0].first, a[0].stride);
    if (way == COPYING)
        amx_store(4, copy, LINE);
    if (way == IN_PLACE)
        amx_load_past(6, b, line);
    else
        amx_load(6, b, line);
    amx_dot_bf16(0, 4, 6);
    if (vectors == 2) {
        if (way == IN_PLACE)
            amx_load_past(7, b + LINE, line);
        else
            amx_load(7, b + LINE, line);
        amx_dot_bf16(1, 4, 7);
    }
    if (groups == 2) {
        if (way == COPIED)
            amx_load_past(5, copy + COPY_STEP / 2, LINE);
        else
            amx_load(5, a[1].first, a[1].stride);
        if (way == COPYING)
            amx_store(5, copy + COPY_STEP / 2, LINE);
        amx_dot_bf16(2, 5, 6);
    }
    if (groups == 2 && vectors == 2)
        amx_dot_bf16(3, 5, 7);
}

/* Tiles 0 to 3 take up the sums before, or begin with zeros. */
INLINE void sums_before(const float *before, int groups, int vectors)
{
    amx_zero(0);
    amx_zero(1);
    amx_zero(2);
    amx_zero(3);
    if (!before)
        return;
    amx_written();
    amx_load(0, before, SUMS_LINE);
    if (vectors == 2)
        amx_load(1, before + TILE, SUMS_LINE);
    if (groups == 2)
        amx_load(2, before + TILE * BOTH, SUMS_LINE);
    if (groups == 2 && vectors == 2)
        amx_load(3, before + TILE * BOTH + TILE, SUMS_LINE);
}

/* Pairs of bf16 as `pair` makes them, by the processor's own rounding: like the tiles' sums it takes denormals for
 * zeros. */
static inline __m512i rounded_pair(__m512 a, __m512 b)
{
    const __m512i words = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                           21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(words, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

/* A pair of features f and f + 1 of sixteen tokens, gates before ups; those behind the valid ones are zeros. */
INLINE __m512i glu_pair(float sums[BOTH][BOTH], int f, int v, const product_finish *finish, int32_t features)
{
    __m512 r[2];
    for (int i = 0; i < 2; i++) {
        __m512 gate = _mm512_load_ps(sums[f + i] + v * LANES), up = _mm512_load_ps(sums[TILE + f + i] + v * LANES);
        if (finish->bias) {
            gate = _mm512_add_ps(gate, _mm512_set1_ps(finish->bias[f + i]));
            up = _mm512_add_ps(up, _mm512_set1_ps(finish->bias[TILE + f + i]));
        }
        r[i] = f + i < features ? glu(gate, up, finish) : _mm512_setzero_ps();
    }
    return rounded_pair(r[0], r[1]);
}

INLINE void glu_by_pairs(float sums[BOTH][BOTH], int vectors, const product_finish *finish, int32_t features, float *h)
{
    for (int f = 0; f < TILE; f += 2)
        for (int v = 0; v < vectors; v++)
            _mm512_storeu_si512(h + (f / 2 * vectors + v) * LANES, glu_pair(sums, f, v, finish, features));
}

/* Results that wait: sums of a whole set, of which a unit at a time is finished between the products of the next one.
 */
typedef struct waiting {
    int32_t units, done;
    int32_t pace;     /* a power of two: steps of products for each unit                                 */
    int32_t which;    /* of the sums                                                                  */
    bool glu, stream; /* stream: whole lines go past the caches                                      */
    product_finish finish;
    float *h;
    _Alignas(64) float bias[BOTH];
    void *y[BOTH];
    _Alignas(64) float sums[2][BOTH][BOTH];
} waiting;

_Static_assert(sizeof(waiting) <= sizeof(product_later) && offsetof(waiting, bias) <= PRODUCT_LATER_HEAD,
               "results that wait have their place");

/* Four rows, at distances of four, of four tokens. */
static inline __m512 four_rows(const float *at)
{
    __m512 v = _mm512_castps128_ps512(_mm_load_ps(at));
    v = _mm512_insertf32x4(v, _mm_load_ps(at + 4 * BOTH), 1);
    v = _mm512_insertf32x4(v, _mm_load_ps(at + 8 * BOTH), 2);
    return _mm512_insertf32x4(v, _mm_load_ps(at + 12 * BOTH), 3);
}

/* Sixteen rows of four tokens, each token's in a vector. */
static inline void turn_four(const float *at, const float *bias, __m512 out[4])
{
    __m512 v[4];
    for (int i = 0; i < 4; i++)
        v[i] = four_rows(at + i * BOTH);
    __m512d a = (__m512d)_mm512_unpacklo_ps(v[0], v[1]), b = (__m512d)_mm512_unpackhi_ps(v[0], v[1]);
    __m512d c = (__m512d)_mm512_unpacklo_ps(v[2], v[3]), d = (__m512d)_mm512_unpackhi_ps(v[2], v[3]);
    out[0] = (__m512)_mm512_unpacklo_pd(a, c);
    out[1] = (__m512)_mm512_unpackhi_pd(a, c);
    out[2] = (__m512)_mm512_unpacklo_pd(b, d);
    out[3] = (__m512)_mm512_unpackhi_pd(b, d);
    for (int t = 0; t < 4 && bias; t++)
        out[t] = _mm512_add_ps(out[t], _mm512_load_ps(bias));
}

/* A line of results. Past the caches it need not be fetched only to be overwritten. */
static inline void put_line(const waiting *w, void *to, __m512i line)
{
    if (w->stream && (uintptr_t)to % LINE == 0)
        _mm512_stream_si512(to, line);
    else
        _mm512_storeu_si512(to, line);
}

/* All rows of four tokens. */
static void out_unit(const waiting *w, int unit)
{
    const float *at = w->sums[w->which][0] + 4 * unit, *bias = w->finish.bias ? w->bias : NULL;
    __m512 first[4], second[4];
    turn_four(at, bias, first);
    turn_four(at + TILE * BOTH, bias ? bias + TILE : NULL, second);
    for (int t = 0; t < 4; t++) {
        char *y = w->y[4 * unit + t];
        if (w->finish.dtype == TN_BF16) {
            put_line(w, y, (__m512i)_mm512_cvtne2ps_pbh(second[t], first[t]));
        } else {
            put_line(w, y, _mm512_castps_si512(first[t]));
            put_line(w, y + LINE, _mm512_castps_si512(second[t]));
        }
    }
}

static __attribute__((noinline)) void finish_unit(waiting *w)
{
    int unit = w->done++;
    if (w->glu)
        put_line(w, w->h + unit * LANES, glu_pair(w->sums[w->which], unit / 2 * 2, unit % 2, &w->finish, TILE));
    else
        out_unit(w, unit);
}

static void finish_later_amx(product_later *later)
{
    waiting *w = (waiting *)(void *)later;
    while (w->done < w->units)
        finish_unit(w);
    if (w->stream)
        _mm_sfence();
    w->stream = false;
}

static inline __m512 row_sums(float sums[BOTH][BOTH], const product_finish *finish, int32_t r, int32_t rows, int v)
{
    if (r >= rows)
        return _mm512_setzero_ps();
    __m512 sum = _mm512_loadu_ps(sums[r] + v * LANES);
    return finish->bias ? _mm512_add_ps(sum, _mm512_set1_ps(finish->bias[r])) : sum;
}

/* Each token's rows in one piece: rows of y are often at distances of which the first cache holds few lines. */
INLINE void out_by_tokens(float sums[BOTH][BOTH], int vectors, const product_finish *finish, tn_dtype dtype,
                          int32_t rows, void *const *y, int32_t tokens)
{
    int32_t words = dtype == TN_F32 ? 1 : 2; /* rows in a word */
    for (int v = 0; v < vectors; v++) {
        for (int32_t first = 0; first < rows; first += words * TILE) {
            __m512i w[TILE];
            for (int32_t i = 0; i < TILE; i++) {
                __m512 even = row_sums(sums, finish, first + words * i, rows, v);
                w[i] = words == 1 ? _mm512_castps_si512(even)
                                  : rounded_pair(even, row_sums(sums, finish, first + 2 * i + 1, rows, v));
            }
            transpose_16x16(w);
            int32_t left = rows - first < words * TILE ? rows - first : words * TILE;
            __mmask64 bytes = ~UINT64_C(0) >> (LINE - left * 4 / words);
            if (tokens >= (v + 1) * LANES && left == words * TILE) {
                for (int32_t t = 0; t < LANES; t++)
                    _mm512_storeu_si512((char *)y[v * LANES + t] + first * 4 / words, w[t]);
                continue;
            }
            for (int32_t t = 0; t < LANES && v * LANES + t < tokens; t++)
                _mm512_mask_storeu_epi8((char *)y[v * LANES + t] + first * 4 / words, bytes, w[t]);
        }
    }
}

/* sums[r][t] of 16 * groups rows and 16 * vectors tokens; even: all rows are at the tile's distance. What waits is
 * finished meanwhile. */
INLINE void tile_sums(const product_tile *tile, rows_way way, bool even, int groups, int vectors, float *sums)
{
    waiting *later = (waiting *)(void *)tile->later;
    const void *const *w = tile->w;
    const char *b = tile->panel;
    char *copy = tile->copy;
    int64_t k = tile->k, line = vectors * LINE;
    _Alignas(64) char rows[2][TILE][LINE], pairs[TILE * SUMS_LINE];
    sums_before(tile->before, groups, vectors);
    for (int64_t i = 0; i < k; i += STEP) {
        int64_t n = k - i < STEP ? k - i : STEP;
        tile_place a[2] = {{NULL, 0}, {NULL, 0}};
        for (int g = 0; g < groups && way != COPIED; g++) {
            a[g] = (tile_place){(const char *)w[g * TILE] + 2 * i, tile->row_step};
            if (even && n == STEP)
                continue;
            copy_rows(w + g * TILE, i, n, rows[g]);
            a[g] = (tile_place){rows[g][0], LINE};
        }
        if (n < STEP) {
            copy_pairs(b, n, line, pairs);
            b = pairs;
        }
        product_fetch_lines(tile, 2 * i);
        if (later->done < later->units && i / STEP % later->pace == 0)
            finish_unit(later);
        amx_written();
        step(way, a, copy, groups, b, line, vectors);
        b += TILE * line;
        copy += copy ? COPY_STEP : 0;
    }
    amx_store(0, sums, SUMS_LINE);
    if (vectors == 2)
        amx_store(1, sums + TILE, SUMS_LINE);
    if (groups == 2)
        amx_store(2, sums + TILE * BOTH, SUMS_LINE);
    if (groups == 2 && vectors == 2)
        amx_store(3, sums + TILE * BOTH + TILE, SUMS_LINE);
    amx_written();
}

static bool is_full(const product_tile *tile)
{
    return tile->width == BOTH && (tile->row_step || way_of(tile) == COPIED);
}

static void full_tile(const product_tile *tile, float *sums)
{
    rows_way way = way_of(tile);
    if (way == IN_PLACE)
        tile_sums(tile, IN_PLACE, true, 2, 2, sums);
    else if (way == COPYING)
        tile_sums(tile, COPYING, true, 2, 2, sums);
    else
        tile_sums(tile, COPIED, true, 2, 2, sums);
}

/* The sums of a whole tile; only_first: of its first sixteen rows. */
static void whole_tile(const product_tile *tile, bool only_first, float sums[BOTH][BOTH])
{
    rows_way way = way_of(tile);
    bool even = tile->row_step != 0;
    if (!only_first && is_full(tile))
        full_tile(tile, sums[0]);
    else if (!only_first && tile->width == BOTH)
        tile_sums(tile, way, even, 2, 2, sums[0]);
    else if (!only_first)
        tile_sums(tile, way, even, 2, 1, sums[0]);
    else if (tile->width == BOTH)
        tile_sums(tile, way, even, 1, 2, sums[0]);
    else
        tile_sums(tile, way, even, 1, 1, sums[0]);
}

/* Products whose results wait. */
static waiting *put_off(const product_tile *tile, const product_finish *finish)
{
    waiting *w = (waiting *)(void *)tile->later;
    full_tile(tile, w->sums[!w->which][0]);
    while (w->done < w->units)
        finish_unit(w);
    w->which = !w->which;
    w->done = 0;
    w->stream = tile->copy != NULL;
    w->finish = *finish;
    if (finish->bias) {
        memcpy(w->bias, finish->bias, sizeof w->bias);
        w->finish.bias = w->bias;
    }
    return w;
}

static void tile_part_amx(const product_tile *tile, float *sums)
{
    whole_tile(tile, false, (float(*)[BOTH])sums);
}

static void tile_glu_amx(const product_tile *tile, const product_finish *finish, int32_t features, void *h)
{
    _Alignas(64) float sums[BOTH][BOTH];
    if (is_full(tile) && features == TILE) {
        waiting *w = put_off(tile, finish);
        w->glu = true;
        w->units = TILE;
        w->pace = 1;
        w->h = h;
        return;
    }
    whole_tile(tile, false, sums);
    if (tile->width == BOTH)
        glu_by_pairs(sums, 2, finish, features, h);
    else
        glu_by_pairs(sums, 1, finish, features, h);
}

static void tile_out_amx(const product_tile *tile, const product_finish *finish, int32_t rows, void *const *y,
                         int32_t tokens)
{
    _Alignas(64) float sums[BOTH][BOTH];
    if (is_full(tile) && rows == BOTH && tokens == BOTH) {
        waiting *w = put_off(tile, finish);
        w->glu = false;
        w->units = BOTH / 4;
        w->pace = 2;
        memcpy(w->y, y, sizeof w->y);
        return;
    }
    whole_tile(tile, rows <= TILE, sums);
    if (tile->width == BOTH)
        out_by_tokens(sums, 2, finish, finish->dtype, rows, y, tokens);
    else
        out_by_tokens(sums, 1, finish, finish->dtype, rows, y, tokens);
}

/* A token is a column of pairs as it lies, loaded with its neighbours for fifteen more, whose sums are not used: every
 * sum is formed as in tile_sums. 32 elements from i on, of which there are n. */
INLINE void dots_step(const char *const *row, bool even, const void *const *x, int64_t i, int64_t n, int tokens)
{
    _Alignas(64) char rows[TILE][LINE], pairs[2][2 * LINE] = {{0}};
    const char *w = row[0] + 2 * i;
    int64_t stride = row[1] - row[0];
    if (!even || n < STEP) {
        copy_rows((const void *const *)row, i, n, rows);
        w = rows[0];
        stride = LINE;
    }
    for (int t = 0; t < tokens; t++)
        memcpy(pairs[t], (const uint16_t *)x[t] + i, (size_t)(2 * n));
    amx_written();
    amx_load(4, w, stride);
    amx_load(6, pairs[0], 4);
    amx_dot_bf16(0, 4, 6);
    if (tokens == 2) {
        amx_load(7, pairs[1], 4);
        amx_dot_bf16(1, 4, 7);
    }
}

INLINE void dots_of_tokens(const product_block *b, const char *const *row, bool even, int64_t k, const void *const *x,
                           int tokens, bool fetch, float *sums)
{
    _Alignas(64) float all[2][TILE][TILE];
    amx_zero(0);
    amx_zero(1);
    for (int64_t i = 0; i < k; i += STEP) {
        for (int r = 0; r < TILE && fetch; r++)
            _mm_prefetch(row[r] + 2 * i + b->next, _MM_HINT_T1);
        dots_step(row, even, x, i, k - i < STEP ? k - i : STEP, tokens);
    }
    amx_store(0, all[0], LINE);
    if (tokens == 2)
        amx_store(1, all[1], LINE);
    for (int t = 0; t < tokens; t++)
        for (int r = 0; r < TILE; r++)
            sums[t * PRODUCT_FEW_ROWS + r] = all[t][r][0];
}

static void dots_amx(const product_block *block, int64_t k, const void *const *x, int32_t tokens, float *sums)
{
    const char *row[TILE];
    for (int r = 0; r < TILE; r++)
        row[r] = block->w + (r < block->rows ? r : block->rows - 1) * block->step;
    bool even = block->rows == TILE;
    for (int32_t t = 0; t < tokens; t += 2)
        if (t + 1 < tokens)
            dots_of_tokens(block, row, even, k, x + t, 2, t == 0, sums + t * PRODUCT_FEW_ROWS);
        else
            dots_of_tokens(block, row, even, k, x + t, 1, t == 0, sums + t * PRODUCT_FEW_ROWS);
}

/* Pairs of up to 32 columns of n elements along k, and zeros behind them: the right operand of two products. */
static void column_pairs(const char *w, int64_t step, int32_t columns, int64_t n, char pairs[2][TILE][LINE])
{
    _Alignas(64) uint16_t order[2][STEP];
    for (int i = 0; i < STEP; i++) {
        order[0][i] = (uint16_t)(i / 2 + i % 2 * STEP);
        order[1][i] = (uint16_t)(TILE + i / 2 + i % 2 * STEP);
    }
    __mmask32 m = columns >= STEP ? 0xffffffffu : (1u << columns) - 1;
    for (int64_t p = 0; p < TILE; p++) {
        const char *at = w + 2 * p * step;
        __m512i even = _mm512_maskz_loadu_epi16(2 * p < n ? m : 0, at);
        __m512i odd = _mm512_maskz_loadu_epi16(2 * p + 1 < n ? m : 0, at + step);
        for (int h = 0; h < 2; h++)
            _mm512_store_si512(pairs[h][p], _mm512_permutex2var_epi16(even, _mm512_load_si512(order[h]), odd));
    }
}

/* Tokens are the rows of the left operand, columns the lanes of the right one. */
static void columns_amx(const void *w, int64_t step, int32_t rows, int64_t k, const void *const *x, int32_t tokens,
                        float *sums, int64_t space)
{
    _Alignas(64) char left[TILE][LINE] = {{0}}, pairs[2][TILE][LINE];
    _Alignas(64) float sum[TILE][TILE] = {{0}};
    for (int64_t i = 0; i < k; i += STEP) {
        int64_t n = k - i < STEP ? k - i : STEP;
        for (int32_t t = 0; t < tokens; t++)
            _mm512_store_si512(
                left[t], _mm512_maskz_loadu_epi16(n >= STEP ? 0xffffffffu : (1u << n) - 1, (const uint16_t *)x[t] + i));
        for (int32_t r = 0; r < rows; r += TILE) {
            const char *at = (const char *)w + i * step + 2 * r;
            if (r % STEP == 0)
                column_pairs(at, step, rows - r, n, pairs);
            for (int64_t e = 0; e < n && r % STEP == 0; e++)
                _mm_prefetch(at + (k + e) * step, _MM_HINT_T1);
            for (int32_t t = 0; t < tokens; t++)
                memcpy(sum[t], sums + t * space + r, sizeof sum[t]);
            amx_written();
            amx_load(0, sum, LINE);
            amx_load(4, left, LINE);
            amx_load(6, pairs[r / TILE % 2], LINE);
            amx_dot_bf16(0, 4, 6);
            amx_store(0, sum, LINE);
            amx_written();
            for (int32_t t = 0; t < tokens; t++)
                memcpy(sums + t * space + r, sum[t], sizeof sum[t]);
        }
    }
}

static void tile_lines_amx(const product_tile *tile, const product_finish *finish, int32_t rows, void *const *y,
                           int32_t lanes)
{
    _Alignas(64) float sums[BOTH][BOTH];
    int64_t line = finish->dtype == TN_F32 ? LINE : LINE / 2;
    whole_tile(tile, rows <= TILE, sums);
    for (int32_t r = 0; r < rows; r++)
        for (int32_t v = 0; v * LANES < lanes; v++)
            store_from_f32((char *)y[r] + v * line, finish->dtype, first_lanes(lanes - v * LANES),
                           _mm512_load_ps(sums[r] + v * LANES));
}

void product_init_amx(product_kernels *kernels)
{
    kernels->columns = columns_amx;
    kernels->dots = dots_amx;
    kernels->tiles_begin = tiles_begin_amx;
    kernels->tiles_end = tiles_end_amx;
    kernels->finish_later = finish_later_amx;
    kernels->tile_part = tile_part_amx;
    kernels->tile_glu = tile_glu_amx;
    kernels->tile_out = tile_out_amx;
    kernels->tile_lines = tile_lines_amx;
}
