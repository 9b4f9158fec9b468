/* Products of quantised weights with many tokens that were rounded to int8: lanes are rows of weights, whose codes are
 * laid so that each instruction multiplies four columns of VEC_LANES rows with the same four of a token. Sums of 32
 * columns (of 16, where factors are those of 16) are integers; they are multiplied by the factor of the activations and
 * by that of the codes and added along k, what is added to codes behind them. Codes that may be negative are taken 128
 * higher, and sums begin with as much less. Behind codes_ints.h, with bytes_zero, bytes_flip, bytes_four and quads_add.
 */
#ifndef TENON_COMMON_CODES_MANY_H
#define TENON_COMMON_CODES_MANY_H

#include "codes_ints.h"

/* Rows whose sums with MANY_TOKENS tokens stay in registers. */
enum {
    MANY_VECTORS = VEC_LANES == 16 ? 2 : 1,
    MANY_ROWS = MANY_VECTORS * VEC_LANES,
    VECTOR_BYTES = 4 * VEC_LANES,
    QUADS = CODES_GROUP / 4
};

/* ---- tokens -------------------------------------------------------------------------------------------------- */

static bool many_round(const float *x, int64_t k, int64_t step, void *to)
{
    for (int64_t from = 0; from < k; from += CODES_GROUP) {
        many_token *group = (many_token *)(void *)((char *)to + from / CODES_GROUP * step);
        int sums[2];
        if (!round_group(x + from, group->q, &group->factor, sums))
            return false;
        for (int i = 0; i < 2; i++)
            group->halves[i] = group->factor * (float)sums[i];
        group->sum = group->factor * (float)(sums[0] + sums[1]);
        group->start = -128 * (sums[0] + sums[1]);
    }
    return true;
}

/* ---- weights --------------------------------------------------------------------------------------------------- */

/* Of MANY_ROWS rows a group is QUADS times MANY_VECTORS vectors of codes, then as many of factors, and of what is
 * added, for each of its `parts`. */
VEC_INLINE int64_t laid_group(int parts)
{
    return (int64_t)MANY_ROWS * (CODES_GROUP + 8 * parts);
}

VEC_INLINE int many_parts(const ints_type *type)
{
    return type->halves ? 2 : 1;
}

/* What is `from` of each of VEC_LANES chunks, PARTS numbers, turned; at: where those of the chunk's first group go. */
VEC_INLINE void lay_factors(const chunk *k, const float *from, int parts, int groups, char *at)
{
    int64_t offset = (const char *)from - (const char *)k;
    for (int p = 0; p < PARTS; p += VEC_LANES) {
        vec v[VEC_LANES];
        for (int r = 0; r < VEC_LANES; r++)
            v[r] = vec_load((const char *)&k[r] + offset + p * (int)sizeof(float), TN_F32);
        vec_transpose(v);
        for (int i = 0; i < VEC_LANES; i += 3 - parts) {
            int g = (p + i) / 2, half = (p + i) % 2;
            if (g < groups)
                vec_store(at + g * laid_group(parts) + half * MANY_VECTORS * VECTOR_BYTES, TN_F32, v[i]);
        }
    }
}

/* VEC_LANES rows from `row` on, of which `rows` count; vector: which of a group's they are. */
INTS_ROWS void lay_rows(const ints_type *type, const codes *c, int64_t row, int32_t rows, int64_t n, int vector,
                        char *to)
{
    int parts = many_parts(type);
    int64_t group = laid_group(parts), added = (int64_t)parts * MANY_VECTORS * VECTOR_BYTES;
    to += vector * VECTOR_BYTES;
    for (int64_t column = 0; column < n; column += CHUNK, to += GROUPS * group) {
        chunk k[VEC_LANES];
        int groups = groups_of(n - column);
        for (int r = 0; r < VEC_LANES; r++) {
            int64_t at = row + (r < rows ? r : rows - 1);
            k[r].p = (const uint8_t *)c->data + at * c->row_bytes + column / CHUNK * type->bytes;
            for (int64_t i = 0; i < type->bytes; i += 64)
                __builtin_prefetch(k[r].p + VEC_LANES * c->row_bytes + i, 0, 2);
            type->open(c, at, column, groups, &k[r]);
            if (groups < GROUPS)
                close_chunk(type, groups, &k[r]);
        }
        for (int g = 0; g < groups; g += BYTES_GROUPS) {
            vec v[VEC_LANES];
            for (int r = 0; r < VEC_LANES; r++)
                v[r] = (vec)(type->below ? bytes_flip(type->codes(&k[r], g)) : type->codes(&k[r], g));
            vec_transpose(v);
            for (int i = 0; i < VEC_LANES && g + i / QUADS < groups; i++)
                vec_store(to + (g + i / QUADS) * group + i % QUADS * MANY_VECTORS * VECTOR_BYTES, TN_F32, v[i]);
        }
        char *factors = to + QUADS * MANY_VECTORS * VECTOR_BYTES;
        lay_factors(k, k->s, parts, groups, factors);
        if (type->adds)
            lay_factors(k, k->b, parts, groups, factors + added);
    }
}

#define LAY_CASE(type, open, codes_of, size, below, halves, adds)                                                      \
    case type:                                                                                                         \
        lay_rows(&(const ints_type){open, codes_of, size, below, halves, adds}, c, row, rows, k, vector, to);          \
        break;

static void lay_vector(const codes *c, int64_t row, int32_t rows, int64_t k, int vector, char *to)
{
    switch (c->dtype) {
        INTS_TYPES(LAY_CASE)
    default:
        break;
    }
}

/* The types that are multiplied so, and those of them whose codes are never negative: all but the few that have both,
 * signs and factors of 16 columns. */
#define MANY_CASE(type, open, codes_of, size, below, halves, adds) ((below) && (halves) ? 0 : TN_TAKES(type)) |
#define POSITIVE_CASE(type, open, codes_of, size, below, halves, adds) ((below) ? 0 : TN_TAKES(type)) |
#define MANY_DTYPES (INTS_TYPES(MANY_CASE) 0)
#define MANY_POSITIVE (INTS_TYPES(POSITIVE_CASE) 0)

/* Which loop a type takes. */
typedef enum many_kind { MANY_UNSIGNED, MANY_SIGNED, MANY_HALVES } many_kind;

#define KIND_CASE(type, open, codes_of, size, below, halves, adds)                                                     \
    case type:                                                                                                         \
        return (halves) ? MANY_HALVES : (below) ? MANY_SIGNED : MANY_UNSIGNED;

static many_kind many_kind_of(tn_dtype dtype)
{
    switch (dtype) {
        INTS_TYPES(KIND_CASE)
    default:
        return MANY_UNSIGNED;
    }
}

VEC_INLINE int64_t laid_block(const codes *c, int64_t k)
{
    return k / CODES_GROUP * laid_group(many_kind_of(c->dtype) == MANY_HALVES ? 2 : 1);
}

static void many_lay(const codes *c, int64_t row, int32_t rows, int64_t k, void *laid)
{
    char *to = laid;
    for (int32_t r = 0; r < CODES_ROWS; r += VEC_LANES)
        if (r < rows)
            lay_vector(c, row + r, rows - r, k, r / VEC_LANES % MANY_VECTORS, to + r / MANY_ROWS * laid_block(c, k));
}

/* ---- products ------------------------------------------------------------------------------------------------- */

/* One group of MANY_ROWS rows with `width` tokens. */
VEC_INLINE void many_group(many_kind kind, int width, const char *laid, const many_token *x, vec sum[][CODES_TOKENS])
{
    const int parts = kind == MANY_HALVES ? 2 : 1;
    const char *factors = laid + QUADS * MANY_VECTORS * VECTOR_BYTES;
    const char *added = factors + parts * MANY_VECTORS * VECTOR_BYTES;
    for (int p = 0; p < parts; p++) {
        bytes quads[MANY_VECTORS][CODES_TOKENS];
        for (int t = 0; t < width; t++)
            for (int v = 0; v < MANY_VECTORS; v++)
                quads[v][t] = kind == MANY_SIGNED ? bytes_four(&x[t].start) : bytes_zero();
        INTS_UNROLLED
        for (int j = p * QUADS / parts; j < (p + 1) * QUADS / parts; j++)
            for (int t = 0; t < width; t++)
                for (int v = 0; v < MANY_VECTORS; v++)
                    quads[v][t] = quads_add(quads[v][t], bytes_load(laid + (j * MANY_VECTORS + v) * VECTOR_BYTES),
                                            bytes_four(x[t].q + 4 * j));
        for (int v = 0; v < MANY_VECTORS; v++) {
            vec s = vec_load(factors + (p * MANY_VECTORS + v) * VECTOR_BYTES, TN_F32), b = s;
            if (kind != MANY_SIGNED)
                b = vec_load(added + (p * MANY_VECTORS + v) * VECTOR_BYTES, TN_F32);
            for (int t = 0; t < width; t++) {
                vec scaled = vec_mul(vec_of_quads(quads[v][t]), vec_set(x[t].factor));
                sum[v][t] = vec_fma(scaled, s, sum[v][t]);
                if (kind != MANY_SIGNED)
                    sum[v][t] = vec_fma(b, vec_set(parts == 1 ? x[t].sum : x[t].halves[p]), sum[v][t]);
            }
        }
    }
}

/* All groups of `rows` rows, 1 to CODES_ROWS. */
VEC_INLINE void many_tile(many_kind kind, int width, const char *laid, int64_t groups, int32_t rows,
                          const many_token *x, float *sums)
{
    const int64_t group = laid_group(kind == MANY_HALVES ? 2 : 1);
    for (int32_t r = 0; r < rows; r += MANY_ROWS) {
        vec sum[MANY_VECTORS][CODES_TOKENS];
        for (int v = 0; v < MANY_VECTORS; v++)
            for (int t = 0; t < width; t++)
                sum[v][t] = vec_set(0.0f);
        for (int64_t g = 0; g < groups; g++, laid += group)
            many_group(kind, width, laid, x + g * width, sum);
        for (int v = 0; v < MANY_VECTORS; v++)
            for (int t = 0; t < width; t++)
                vec_store((char *)(sums + t * CODES_ROWS + r + v * VEC_LANES), TN_F32, sum[v][t]);
    }
}

/* Each number of tokens is code of its own. */
#define MANY_TILE(kind, width)                                                                                         \
    case 8 * (kind) + (width):                                                                                         \
        many_tile(kind, width, laid, k / CODES_GROUP, rows, x, sums);                                                  \
        break;
#define MANY_TILES(width) MANY_TILE(MANY_UNSIGNED, width) MANY_TILE(MANY_SIGNED, width) MANY_TILE(MANY_HALVES, width)

static void many_multiply(const codes *c, const void *laid, int32_t rows, int64_t k, const many_token *x, int32_t width,
                          float *sums)
{
    switch (8 * (int)many_kind_of(c->dtype) + width) {
        MANY_TILES(1)
        MANY_TILES(2)
        MANY_TILES(3)
        MANY_TILES(4)
        MANY_TILES(5)
        MANY_TILES(6)
    default:
        break;
    }
}

static void init_many(codes_kernels *kernels, uint64_t dtypes)
{
    kernels->many_dtypes = dtypes;
    kernels->many_round = many_round;
    kernels->many_lay = many_lay;
    kernels->many_multiply = many_multiply;
}

#endif
