/* Products of quantised weights with activations that were rounded to int8, 32 to a factor: sums of integers for 32 or
 * 64 columns at a time, whose factors are multiplied in f32. Written once, over `bytes` (codes_avx2.h), which hold
 * BYTES_GROUPS groups. What is added to codes, or taken from them, is multiplied with sums of 16 activations instead.
 */
#ifndef TENON_COMMON_CODES_INTS_H
#define TENON_COMMON_CODES_INTS_H

#include "codes_vec.h"

/* ---- bytes ---------------------------------------------------------------------------------------------------- */

#ifndef BYTES_GROUPS
#define BYTES_GROUPS 1

/* The same 32 bytes for every group; a group's own, `apart` from those of the next. */
VEC_INLINE bytes bytes_same(const uint8_t *p)
{
    return bytes_load(p);
}

VEC_INLINE bytes bytes_apart(const uint8_t *p, int apart)
{
    (void)apart;
    return bytes_load(p);
}

/* As bytes_right, by `step` bits more from group to group. */
VEC_INLINE bytes bytes_right_by(bytes a, int bits, int step)
{
    (void)step;
    return bytes_right(a, bits);
}
#endif

/* ---- rounding ----------------------------------------------------------------------------------------------- */

/* The largest magnitude; NaN and infinities are above all numbers. */
VEC_INLINE float largest_of(const float *x)
{
    uint32_t most = 0, bits[CODES_GROUP];
    float value;
    memcpy(bits, x, sizeof bits);
    for (int i = 0; i < CODES_GROUP; i++) {
        uint32_t one = bits[i] & 0x7fffffff;
        most = one > most ? one : most;
    }
    memcpy(&value, &most, sizeof value);
    return value;
}

/* CODES_GROUP numbers to the nearest multiples of their factor, and the sums of each sixteen; false: not all of them
 * are finite, or products might not be. */
VEC_INLINE bool round_group(const float *x, int8_t *q, float *factor, int sums[2])
{
    float d = largest_of(x) / 127.0f, inverse = 1.0f / (d > 0x1p-126f ? d : 0x1p-126f);
    if (!(d < 0x1p120f))
        return false;
    for (int i = 0; i < CODES_GROUP; i++) { /* to the nearest: what is added rounds to whole numbers */
        float rounded = (x[i] * inverse + 0x1.8p23f) - 0x1.8p23f;
        q[i] = (int8_t)(int)rounded;
    }
    sums[0] = sums[1] = 0;
    for (int i = 0; i < CODES_GROUP; i++)
        sums[i / 16] += q[i];
    *factor = d;
    return true;
}

static bool ints_round(const float *x, int64_t k, void *row)
{
    int8_t *q = row;
    float *factor = (float *)(void *)((char *)row + ints_bytes(k)), *sum = factor + ints_parts(k);
    memset(factor, 0, 2 * sizeof *factor * (size_t)ints_parts(k));
    for (int64_t from = 0; from < k; from += CODES_GROUP) {
        int sums[2];
        float d;
        if (!round_group(x + from, q + from, &d, sums))
            return false;
        for (int i = 0; i < 2; i++) {
            factor[from / 16 + i] = d;
            sum[from / 16 + i] = d * (float)sums[i];
        }
    }
    return true;
}

/* ---- codes -------------------------------------------------------------------------------------------------- */

typedef bytes ints_fn(const chunk *k, int g);

/* How a type is taken: `open` finds a chunk's factors; codes of the groups from g on; the bytes of 256 columns; may
 * codes be negative, are there factors for 16 columns each, and is something added to the products. */
typedef struct ints_type {
    open_fn *open;
    ints_fn *codes;
    int64_t bytes;
    bool below, halves, adds;
} ints_type;

/* Factors of blocks of 32 that begin with a half; zero times them is added. */
VEC_INLINE void each_block(chunk *k, int groups, int bytes, float zero)
{
    if (groups == GROUPS) {
        block_factors(k->p, bytes, 1.0f, k->s);
        if (zero < 0.0f)
            block_factors(k->p, bytes, zero, k->b);
        return;
    }
    for (int g = 0; g < groups; g++) {
        float d = half_value((const char *)k->p + bytes * g);
        k->s[2 * g] = k->s[2 * g + 1] = d;
        k->b[2 * g] = k->b[2 * g + 1] = d * zero;
    }
}

VEC_INLINE void ints_open_q4_0(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    (void)c, (void)row, (void)column;
    each_block(k, groups, 18, -8.0f);
}

VEC_INLINE void ints_open_q8_0(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    (void)c, (void)row, (void)column;
    each_block(k, groups, 34, 0.0f);
}

/* (code - zero) s = code s - zero s. */
VEC_INLINE void ints_open_u4(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    open_plain(c, row, column, groups, k);
    for (int i = 0; i < 2 * groups; i++)
        k->b[i] *= -k->s[i];
}

VEC_INLINE void ints_open_q6_k(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    (void)c, (void)row, (void)column, (void)groups;
    float d = half_value((const char *)k->p + 208);
    factors_of(sixteen_load(k->p + 192), true, in_order, d, k->s);
    factors_of(sixteen_load(k->p + 192), true, in_order, -32.0f * d, k->b);
}

VEC_INLINE void ints_open_q5_0(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    (void)c, (void)row, (void)column;
    each_block(k, groups, 22, -16.0f);
}

VEC_INLINE void ints_open_q3_k(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    (void)c, (void)row, (void)column, (void)groups;
    factors_q3_k(k);
    for (int i = 0; i < PARTS; i++)
        k->b[i] = -4.0f * k->s[i];
}

VEC_INLINE void ints_open_q2_k(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    (void)c, (void)row, (void)column, (void)groups;
    float d = half_value((const char *)k->p + 80), dmin = half_value((const char *)k->p + 82);
    for (int i = 0; i < PARTS; i++) {
        k->s[i] = d * (float)(k->p[i] & 15);
        k->b[i] = -(dmin * (float)(k->p[i] >> 4));
    }
}

VEC_INLINE void ints_open_iq4_nl(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    (void)c, (void)row, (void)column;
    each_block(k, groups, 18, 0.0f);
}

VEC_INLINE bytes ints_q4_0(const chunk *k, int g)
{
    return bytes_and(bytes_split(k->p + 18 * g + 2, 18), 15);
}

VEC_INLINE bytes ints_iq4_nl(const chunk *k, int g)
{
    return bytes_look_up(iq4_levels, bytes_and(bytes_split(k->p + 18 * g + 2, 18), 15));
}

VEC_INLINE bytes ints_iq4_xs(const chunk *k, int g)
{
    return bytes_look_up(iq4_levels, bytes_and(bytes_split(k->p + 8 + 16 * g, 16), 15));
}

VEC_INLINE bytes ints_mxfp4(const chunk *k, int g)
{
    return bytes_look_up(e2m1_levels, bytes_and(bytes_split(k->p + 17 * g + 1, 17), 15));
}

VEC_INLINE bytes ints_q8_0(const chunk *k, int g)
{
    return bytes_apart(k->p + 34 * g + 2, 34);
}

VEC_INLINE bytes ints_i8(const chunk *k, int g)
{
    return bytes_load(k->p + CODES_GROUP * g);
}

VEC_INLINE bytes ints_u4(const chunk *k, int g)
{
    return bytes_and(bytes_pairs(k->p + 16 * g), 15);
}

VEC_INLINE bytes ints_e2m1(const chunk *k, int g)
{
    return bytes_look_up(e2m1_levels, bytes_and(bytes_pairs(k->p + 16 * g), 15));
}

VEC_INLINE bytes ints_q5_0(const chunk *k, int g)
{
    const uint8_t *p = k->p + 22 * g;
    return bytes_or(bytes_and(bytes_split(p + 6, 22), 15), bytes_bits(p + 2, 22, 16));
}

VEC_INLINE bytes ints_q4_k(const chunk *k, int g)
{
    return bytes_and(bytes_right_by(bytes_same(k->p + 16 + g / 2 * 32), g % 2 * 4, 4), 15);
}

/* Bit g of each byte, further left. */
VEC_INLINE bytes bit_of_group(const uint8_t *p, int g, int left)
{
    return bytes_left(bytes_and(bytes_right_by(bytes_same(p), g, 1), 1), left);
}

VEC_INLINE bytes ints_q5_k(const chunk *k, int g)
{
    bytes low = bytes_and(bytes_right_by(bytes_same(k->p + 48 + g / 2 * 32), g % 2 * 4, 4), 15);
    return bytes_or(low, bit_of_group(k->p + 16, g, 4));
}

VEC_INLINE bytes ints_q6_k(const chunk *k, int g)
{
    int h = g / 4, part = g % 4;
    bytes low = bytes_and(bytes_right(bytes_load(k->p + 64 * h + 32 * (part & 1)), part / 2 * 4), 15);
    bytes high = bytes_and(bytes_right_by(bytes_same(k->p + 128 + 32 * h), 2 * part, 2), 3);
    return bytes_or(low, bytes_left(high, 4));
}

VEC_INLINE bytes ints_q2_k(const chunk *k, int g)
{
    return bytes_and(bytes_right_by(bytes_same(k->p + 16 + g / 4 * 32), g % 4 * 2, 2), 3);
}

VEC_INLINE bytes ints_q3_k(const chunk *k, int g)
{
    bytes low = bytes_and(bytes_right_by(bytes_same(k->p + 32 + g / 4 * 32), g % 4 * 2, 2), 3);
    return bytes_or(low, bit_of_group(k->p, g, 2));
}

/* ---- loops -------------------------------------------------------------------------------------------------- */

#if VEC_LANES > 1
#define INTS_ROWS VEC_INLINE
#define INTS_UNROLLED _Pragma("GCC unroll 8")
#else
#define INTS_ROWS __attribute__((noinline)) static /* plain C is not written for speed, and compiled in seconds */
#define INTS_UNROLLED
#endif

enum { INTS_TOKENS = 4 };

/* a[i] b[i], for PARTS numbers; and their sum added to the lanes of sum. */
VEC_INLINE void parts_times(const float *a, const float *b, float *to)
{
    for (int i = 0; i < PARTS; i += VEC_LANES)
        vec_store((char *)(to + i), TN_F32,
                  vec_mul(vec_load((const char *)(a + i), TN_F32), vec_load((const char *)(b + i), TN_F32)));
}

VEC_INLINE vec parts_sum(const float *a, const float *b, vec sum)
{
    for (int i = 0; i < PARTS; i += VEC_LANES)
        sum = vec_fma(vec_load((const char *)(a + i), TN_F32), vec_load((const char *)(b + i), TN_F32), sum);
    return sum;
}

/* A chunk of a row with some tokens, whose rounded rows and factors begin there. Behind the last column factors are 0.
 */
INTS_ROWS void ints_chunk(const ints_type *type, const chunk *k, int groups, const int8_t *const *x,
                          const float *const *factor, int64_t all, int64_t column, int tokens, vec sums[][2])
{
    _Alignas(64) float s[INTS_TOKENS][PARTS];
    for (int t = 0; t < tokens; t++) {
        const float *f = factor[t] + column / 16;
        parts_times(k->s, f, s[t]);
        if (type->adds)
            sums[t][0] = parts_sum(k->b, f + all, sums[t][0]);
    }
    INTS_UNROLLED
    for (int g = 0; g < groups; g += BYTES_GROUPS) {
        bytes code = type->codes(k, g);
        for (int t = 0; t < tokens; t++)
            sums[t][g / BYTES_GROUPS % 2] = bytes_dot(code, bytes_load(x[t] + column + CODES_GROUP * g), type->below,
                                                      type->halves, s[t], 2 * g, sums[t][g / BYTES_GROUPS % 2]);
    }
}

/* The last columns of a row, where they are no whole chunk: zeros are the factors of what is read behind them, which
 * is no longer the row's. */
VEC_INLINE void close_chunk(const ints_type *type, int groups, chunk *k)
{
    int64_t bytes = type->bytes / GROUPS * groups;
    for (int i = 2 * groups; i < PARTS; i++)
        k->s[i] = k->b[i] = 0.0f;
    if (groups % BYTES_GROUPS) {
        memset((char *)k->half + bytes, 0, (size_t)(type->bytes / GROUPS));
        k->p = memcpy(k->half, k->p, (size_t)bytes);
    }
}

INTS_ROWS void ints_row(const ints_type *type, const codes *c, int64_t row, int64_t n, const void *const *x, int tokens,
                        float *to)
{
    vec sums[INTS_TOKENS][2];
    const int8_t *from[INTS_TOKENS];
    const float *factor[INTS_TOKENS];
    int64_t all = ints_parts(n);
    for (int t = 0; t < tokens; t++) {
        sums[t][0] = sums[t][1] = vec_set(0.0f);
        from[t] = x[t];
        factor[t] = (const float *)(const void *)(from[t] + ints_bytes(n));
    }
    for (int64_t column = 0; column < n; column += CHUNK) {
        chunk k;
        int groups = groups_of(n - column);
        k.p = (const uint8_t *)c->data + row * c->row_bytes + column / CHUNK * type->bytes;
        for (int64_t i = 0; i < type->bytes; i += 64)
            __builtin_prefetch(k.p + AHEAD + i, 0, 2);
        type->open(c, row, column, groups, &k);
        if (groups < GROUPS) {
            close_chunk(type, groups, &k);
            ints_chunk(type, &k, groups, from, factor, all, column, tokens, sums);
            break;
        }
        ints_chunk(type, &k, GROUPS, from, factor, all, column, tokens, sums);
    }
    for (int t = 0; t < tokens; t++)
        to[t * PRODUCT_FEW_ROWS] = vec_sum(vec_add(sums[t][0], sums[t][1]));
}

INTS_ROWS void ints_rows(const ints_type *type, const codes *c, int64_t row, int32_t rows, int64_t n,
                         const void *const *x, int32_t tokens, float *sums)
{
    for (int32_t r = 0; r < rows; r++) {
        int32_t t = 0;
        for (; t + 4 <= tokens; t += 4)
            ints_row(type, c, row + r, n, x + t, 4, sums + t * PRODUCT_FEW_ROWS + r);
        for (; t + 2 <= tokens; t += 2)
            ints_row(type, c, row + r, n, x + t, 2, sums + t * PRODUCT_FEW_ROWS + r);
        for (; t < tokens; t++)
            ints_row(type, c, row + r, n, x + t, 1, sums + t * PRODUCT_FEW_ROWS + r);
    }
}

/* Type, `open`, codes, bytes of 256 columns; below, halves, adds. */
#define INTS_TYPES(X)                                                                                                  \
    X(TN_Q4_0, ints_open_q4_0, ints_q4_0, 144, false, false, true)                                                     \
    X(TN_Q8_0, ints_open_q8_0, ints_q8_0, 272, true, false, false)                                                     \
    X(TN_Q4_K, open_q4_k, ints_q4_k, 144, false, false, true)                                                          \
    X(TN_Q5_K, open_q4_k, ints_q5_k, 176, false, false, true)                                                          \
    X(TN_Q6_K, ints_open_q6_k, ints_q6_k, 210, false, true, true)                                                      \
    X(TN_Q2_K, ints_open_q2_k, ints_q2_k, 84, false, true, true)                                                       \
    X(TN_Q3_K, ints_open_q3_k, ints_q3_k, 110, false, true, true)                                                      \
    X(TN_Q5_0, ints_open_q5_0, ints_q5_0, 176, false, false, true)                                                     \
    X(TN_IQ4_NL, ints_open_iq4_nl, ints_iq4_nl, 144, true, false, false)                                               \
    X(TN_IQ4_XS, open_iq4_xs, ints_iq4_xs, 136, true, false, false)                                                    \
    X(TN_MXFP4, open_mxfp4, ints_mxfp4, 136, true, false, false)                                                       \
    X(TN_E2M1, open_e2m1, ints_e2m1, 128, true, true, false)                                                           \
    X(TN_U4, ints_open_u4, ints_u4, 128, false, true, true)                                                            \
    X(TN_I8, ints_open_u4, ints_i8, 256, true, true, true)

#define INTS_CASE(type, open, codes_of, size, below, halves, adds)                                                     \
    case type:                                                                                                         \
        ints_rows(&(const ints_type){open, codes_of, size, below, halves, adds}, c, row, rows, k, x, tokens, sums);    \
        break;

static void ints(const codes *c, int64_t row, int32_t rows, int64_t k, const void *const *x, int32_t tokens,
                 float *sums)
{
    switch (c->dtype) {
        INTS_TYPES(INTS_CASE)
    default:
        break;
    }
}

static void init_ints(codes_kernels *kernels)
{
    kernels->round = ints_round;
    kernels->ints = ints;
}

#endif
