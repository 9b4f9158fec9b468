/* The products of codes_ints.h for many tokens: rows of codes are laid so that each instruction multiplies four columns
 * of VEC_LANES rows with the same four of a token. Behind codes_ints.h, with bytes_zero, bytes_four and, where
 * INTS_RAISED, quads_add. */
#ifndef TENON_COMMON_CODES_MANY_H
#define TENON_COMMON_CODES_MANY_H

#include "codes_ints.h"

/* Rows whose sums with CODES_TOKENS tokens stay in registers. */
enum {
    MANY_VECTORS = VEC_LANES == 16 ? 2 : 1,
    MANY_ROWS = MANY_VECTORS * VEC_LANES,
    VECTOR_BYTES = 4 * VEC_LANES,
    QUADS = CODES_GROUP / 4
};

/* ---- weights --------------------------------------------------------------------------------------------------- */

/* Of MANY_ROWS rows a group is QUADS times MANY_VECTORS vectors of codes, then as many of factors, and of what is
 * added, for each of its `parts`. */
VEC_INLINE int64_t laid_group(int parts)
{
    return (int64_t)MANY_ROWS * (CODES_GROUP + 8 * parts);
}

/* at: where factors of the chunk's first group go. */
VEC_INLINE void lay_factors(const vec factor[PARTS], int parts, int groups, char *at)
{
    for (int i = 0; i < parts * groups; i++)
        vec_store(at + i / parts * laid_group(parts) + i % parts * MANY_VECTORS * VECTOR_BYTES, TN_F32,
                  factor[i * 2 / parts]);
}

/* A chunk of VEC_LANES rows. */
VEC_INLINE void lay_chunk(const ints_type *type, const lanes *at, int groups, const turned *f, char *to)
{
    int parts = type->halves ? 2 : 1;
    char *factors = to + QUADS * MANY_VECTORS * VECTOR_BYTES;
    for (int g = 0; g < groups; g += BYTES_GROUPS) {
        vec v[VEC_LANES];
        for (int r = 0; r < VEC_LANES; r++) {
            bytes code = codes_of(type, at, groups, r, g);
            v[r] = (vec)(raised(type) ? bytes_raise(code) : code);
        }
        vec_transpose(v);
        for (int i = 0; i < VEC_LANES && g + i / QUADS < groups; i++)
            vec_store(to + (g + i / QUADS) * laid_group(parts) + i % QUADS * MANY_VECTORS * VECTOR_BYTES, TN_F32, v[i]);
    }
    lay_factors(f->s, parts, groups, factors);
    if (type->adds)
        lay_factors(f->b, parts, groups, factors + parts * MANY_VECTORS * VECTOR_BYTES);
}

/* VEC_LANES rows from `row` on, of which `rows` count; vector: which of a group's they are. */
INTS_ROWS void lay_rows(const ints_type *type, const codes *c, int64_t row, int32_t rows, int64_t n, int vector,
                        char *to)
{
    to += vector * VECTOR_BYTES;
    for (int64_t column = 0; column < n; column += CHUNK, to += GROUPS * laid_group(type->halves ? 2 : 1)) {
        lanes at;
        turned f;
        open_lanes(type, c, row, rows, column, n, &at, &f);
        if (whole_blocks(type) || at.groups == GROUPS)
            lay_chunk(type, &at, GROUPS, &f, to);
        else
            lay_chunk(type, &at, at.groups, &f, to);
    }
}

#define LAY_ROWS_OF(each) lay_rows(&each, c, row, rows, k, vector, to)
#define LAY_CASE(type, ...)                                                                                            \
    case type:                                                                                                         \
        INTS_USE(LAY_ROWS_OF, type, __VA_ARGS__)                                                                       \
        break;

static void lay_vector(const codes *c, int64_t row, int32_t rows, int64_t k, int vector, char *to)
{
    switch (c->dtype) {
        INTS_TYPES(LAY_CASE)
    default:
        break;
    }
}

/* Which loop a type takes, after ints_type. */
typedef enum many_kind { MANY_BELOW = 1, MANY_HALVES = 2, MANY_ADDS = 4 } many_kind;

#define KIND_OF(each)                                                                                                  \
    return (each.below ? MANY_BELOW : 0) | (each.halves ? MANY_HALVES : 0) | (each.adds ? MANY_ADDS : 0)
#define KIND_CASE(type, ...)                                                                                           \
    case type:                                                                                                         \
        INTS_USE(KIND_OF, type, __VA_ARGS__)

static int many_kind_of(const codes *c)
{
    switch (c->dtype) {
        INTS_TYPES(KIND_CASE)
    default:
        return 0;
    }
}

VEC_INLINE int64_t laid_block(const codes *c, int64_t k)
{
    return k / CODES_GROUP * laid_group(many_kind_of(c) & MANY_HALVES ? 2 : 1);
}

static void many_lay(const codes *c, int64_t row, int32_t rows, int64_t k, void *laid)
{
    char *to = laid;
    for (int32_t r = 0; r < CODES_ROWS; r += VEC_LANES)
        if (r < rows)
            lay_vector(c, row + r, rows - r, k, r / VEC_LANES % MANY_VECTORS, to + r / MANY_ROWS * laid_block(c, k));
}

/* ---- products ------------------------------------------------------------------------------------------------- */

/* sums and the products of four columns of each row with those of a token. */
VEC_INLINE quads many_add(int kind, quads sums, bytes code, bytes x)
{
#if INTS_RAISED
    (void)kind;
    return quads_add(sums, code, x);
#else
    return (quads)((ints_vec)sums + (ints_vec)quads_dot(code, x, kind & MANY_BELOW));
#endif
}

/* One group of MANY_ROWS rows with `width` tokens. */
VEC_INLINE void many_group(int kind, int width, const char *laid, const ints_group *x, vec sum[][CODES_TOKENS])
{
    const int parts = kind & MANY_HALVES ? 2 : 1;
    const char *factors = laid + QUADS * MANY_VECTORS * VECTOR_BYTES;
    const char *added = factors + parts * MANY_VECTORS * VECTOR_BYTES;
    for (int p = 0; p < parts; p++) {
        quads products[MANY_VECTORS][CODES_TOKENS];
        for (int t = 0; t < width; t++)
            for (int v = 0; v < MANY_VECTORS; v++)
                products[v][t] = kind & MANY_BELOW && INTS_RAISED ? bytes_four(&x[t].start) : bytes_zero();
        INTS_UNROLLED
        for (int j = p * QUADS / parts; j < (p + 1) * QUADS / parts; j++)
            for (int t = 0; t < width; t++)
                for (int v = 0; v < MANY_VECTORS; v++)
                    products[v][t] =
                        many_add(kind, products[v][t], bytes_load(laid + (j * MANY_VECTORS + v) * VECTOR_BYTES),
                                 bytes_four(x[t].q + 4 * j));
        for (int v = 0; v < MANY_VECTORS; v++) {
            vec s = vec_load(factors + (p * MANY_VECTORS + v) * VECTOR_BYTES, TN_F32), b = s;
            if (kind & MANY_ADDS)
                b = vec_load(added + (p * MANY_VECTORS + v) * VECTOR_BYTES, TN_F32);
            for (int t = 0; t < width; t++) {
                sum[v][t] = add_scaled((ints_vec)products[v][t], x[t].factor, s, sum[v][t]);
                if (kind & MANY_ADDS)
                    sum[v][t] = vec_fma(b, vec_set(parts == 1 ? x[t].sum : x[t].halves[p]), sum[v][t]);
            }
        }
    }
}

/* All groups of `rows` rows, 1 to CODES_ROWS. */
VEC_INLINE void many_tile(int kind, int width, const char *laid, int64_t groups, int32_t rows, const ints_group *x,
                          float *sums)
{
    const int64_t group = laid_group(kind & MANY_HALVES ? 2 : 1);
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

/* Each number of tokens is code of its own. Codes that may be negative and have something added are raised, or not. */
#define MANY_TILE(kind, width)                                                                                         \
    case 8 * (kind) + (width):                                                                                         \
        many_tile(kind, width, laid, k / CODES_GROUP, rows, x, sums);                                                  \
        break;
#if INTS_RAISED
#define MANY_TILES_BELOW(width)
#else
#define MANY_TILES_BELOW(width)                                                                                        \
    MANY_TILE(MANY_BELOW | MANY_ADDS, width) MANY_TILE(MANY_BELOW | MANY_ADDS | MANY_HALVES, width)
#endif
#define MANY_TILES(width)                                                                                              \
    MANY_TILE(MANY_ADDS, width)                                                                                        \
    MANY_TILE(MANY_BELOW, width) MANY_TILE(MANY_ADDS | MANY_HALVES, width) MANY_TILES_BELOW(width)

static void many_multiply(const codes *c, const void *laid, int32_t rows, int64_t k, const ints_group *x, int32_t width,
                          float *sums)
{
    switch (8 * many_kind_of(c) + width) {
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

static void init_many(codes_kernels *kernels)
{
    kernels->many_dtypes = INTS_DTYPES;
    kernels->many_lay = many_lay;
    kernels->many_multiply = many_multiply;
}

#endif
