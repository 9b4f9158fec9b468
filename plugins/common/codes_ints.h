/* Products of quantised weights with activations that were rounded to int8, 32 to a factor. Products of 32 columns (of
 * 16, where factors are those of 16) are summed as integers; the sums, which no order changes, are multiplied by the
 * factor of the activations and by that of the codes and added along k, and behind each what is added to codes times
 * the sum of the activations. So the bits of a result follow from its own row and token. Written once, over `bytes`
 * (codes_avx2.h), which hold BYTES_GROUPS groups of a row; lanes of sums are rows. */
#ifndef TENON_COMMON_CODES_INTS_H
#define TENON_COMMON_CODES_INTS_H

#include "codes_turned.h"

#if !INTS_RAISED
VEC_INLINE bytes bytes_raise(bytes a)
{
    return a;
}

VEC_INLINE bytes bytes_nibbles(bytes a, int g)
{
    (void)g;
    return a;
}
#endif

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

/* Bits 2 i and 2 i + 1 of each byte as bits 4 and 5, i growing by one from group to group. */
VEC_INLINE bytes bytes_two(bytes a, int i)
{
    return bytes_left(bytes_and(bytes_right(a, 2 * i), 3), 4);
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

static bool ints_round(const float *x, int64_t k, int64_t step, void *to)
{
    for (int64_t from = 0; from < k; from += CODES_GROUP) {
        ints_group *group = (ints_group *)(void *)((char *)to + from / CODES_GROUP * step);
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

/* ---- codes -------------------------------------------------------------------------------------------------- */

typedef bytes ints_fn(const uint8_t *p, int g);

/* How a type is taken: `turn` finds a chunk's factors; codes of the groups from g on; the bytes of 256 columns; may
 * codes be negative, are there factors for 16 columns each, and is something added to the products. */
typedef struct ints_type {
    turn_fn *turn;
    ints_fn *codes;
    int64_t bytes;
    bool below, halves, adds;
} ints_type;

VEC_INLINE bytes ints_q4_0(const uint8_t *p, int g)
{
    return bytes_and(bytes_split(p + 18 * g + 2, 18), 15);
}

VEC_INLINE bytes ints_iq4_nl(const uint8_t *p, int g)
{
    return bytes_look_up(iq4_levels, bytes_and(bytes_split(p + 18 * g + 2, 18), 15));
}

VEC_INLINE bytes ints_iq4_xs(const uint8_t *p, int g)
{
    return bytes_look_up(iq4_levels, bytes_and(bytes_split(p + 8 + 16 * g, 16), 15));
}

VEC_INLINE bytes ints_mxfp4(const uint8_t *p, int g)
{
    return bytes_look_up(e2m1_levels, bytes_and(bytes_split(p + 17 * g + 1, 17), 15));
}

VEC_INLINE bytes ints_q8_0(const uint8_t *p, int g)
{
    return bytes_apart(p + 34 * g + 2, 34);
}

VEC_INLINE bytes ints_i8(const uint8_t *p, int g)
{
    return bytes_raise(bytes_load(p + CODES_GROUP * g)); /* where it does: codes_raised */
}

VEC_INLINE bytes ints_u4(const uint8_t *p, int g)
{
    return bytes_and(bytes_pairs(p + 16 * g), 15);
}

/* Twice the values and 12: codes_raised. */
VEC_INLINE bytes ints_e2m1(const uint8_t *p, int g)
{
    static const int8_t levels[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    return bytes_look_up(levels, bytes_and(bytes_pairs(p + 16 * g), 15));
}

VEC_INLINE bytes ints_q5_0(const uint8_t *p, int g)
{
    return bytes_or(bytes_and(bytes_split(p + 22 * g + 6, 22), 15), bytes_bits(p + 22 * g + 2, 22, 16));
}

/* High halves that stay where they are make codes 16 times as high: turn_q4_k has the factors. */
VEC_INLINE bytes ints_q4_k(const uint8_t *p, int g)
{
    bytes both = bytes_same(p + 16 + g / 2 * 32);
    return INTS_RAISED ? bytes_nibbles(both, g) : bytes_and(bytes_right_by(both, g % 2 * 4, 4), 15);
}

/* Bit g of each byte, further left. */
VEC_INLINE bytes bit_of_group(const uint8_t *p, int g, int left)
{
    return bytes_left(bytes_and(bytes_right_by(bytes_same(p), g, 1), 1), left);
}

VEC_INLINE bytes ints_q5_k(const uint8_t *p, int g)
{
    bytes low = bytes_and(bytes_right_by(bytes_same(p + 48 + g / 2 * 32), g % 2 * 4, 4), 15);
    return bytes_or(low, bit_of_group(p + 16, g, 4));
}

VEC_INLINE bytes ints_q6_k(const uint8_t *p, int g)
{
    int h = g / 4, part = g % 4;
    bytes low = bytes_and(bytes_right(bytes_load(p + 64 * h + 32 * (part & 1)), part / 2 * 4), 15);
    return bytes_or(low, bytes_two(bytes_same(p + 128 + 32 * h), part));
}

VEC_INLINE bytes ints_q2_k(const uint8_t *p, int g)
{
    return bytes_and(bytes_right_by(bytes_same(p + 16 + g / 4 * 32), g % 4 * 2, 2), 3);
}

VEC_INLINE bytes ints_q3_k(const uint8_t *p, int g)
{
    bytes low = bytes_and(bytes_right_by(bytes_same(p + 32 + g / 4 * 32), g % 4 * 2, 2), 3);
    return bytes_or(low, bit_of_group(p, g, 2));
}

/* ---- loops -------------------------------------------------------------------------------------------------- */

#if VEC_LANES > 1
#define INTS_ROWS VEC_INLINE
#define INTS_UNROLLED _Pragma("GCC unroll 8")
#else
#define INTS_ROWS __attribute__((noinline)) static /* plain C is not written for speed, and compiled in seconds */
#define INTS_UNROLLED
#endif

/* Tokens that share codes. */
enum { INTS_TOKENS = 2 };

/* The chunks at a column, and their factors; those of the next rows are fetched. */
VEC_INLINE void open_lanes(const ints_type *type, const codes *c, int64_t row, int32_t rows, int64_t column, int64_t n,
                           lanes *at, turned *f)
{
    *at = (lanes){.c = c, .row = row, .column = column, .rows = rows, .groups = groups_of(n - column)};
    for (int r = 0; r < VEC_LANES; r++) {
        at->p[r] =
            (const uint8_t *)c->data + (row + (r < rows ? r : rows - 1)) * c->row_bytes + column / CHUNK * type->bytes;
        for (int64_t i = 0; i < type->bytes; i += 64)
            __builtin_prefetch(at->p[r] + VEC_LANES * c->row_bytes + i, 0, 2);
    }
    type->turn(at, f);
}

/* Rows of a type whose blocks are chunks end with one. */
VEC_INLINE bool whole_blocks(const ints_type *type)
{
    return type->turn == turn_q4_k || type->turn == turn_q5_k || type->turn == turn_q6_k || type->turn == turn_q2_k ||
           type->turn == turn_q3_k || type->turn == turn_iq4_xs;
}

/* Codes of a row from group g on; behind its last there is nothing of the row. */
VEC_INLINE bytes codes_of(const ints_type *type, const lanes *at, int groups, int r, int g)
{
    int64_t each = type->bytes / GROUPS;
    if (BYTES_GROUPS == 1 || g + 1 < groups)
        return type->codes(at->p[r], g);
    uint8_t block[CHUNK + CODES_GROUP] = {0};
    memcpy(block, at->p[r] + g * each, (size_t)each);
    return type->codes(block, 0);
}

/* Codes that may be negative are taken 128 higher, where that is faster, and the sum of 32 columns is as much less. */
VEC_INLINE bool raised(const ints_type *type)
{
    return INTS_RAISED && type->below && !type->halves;
}

/* sum and the products of some columns of VEC_LANES rows. */
VEC_INLINE vec add_scaled(ints_vec products, float factor, vec s, vec sum)
{
    return vec_fma(vec_mul(vec_of_ints(products), vec_set(factor)), s, sum);
}

VEC_INLINE vec ints_token(const ints_type *type, const bytes code[VEC_LANES], const ints_group *x, int groups, int g,
                          const turned *f, vec sum)
{
    quads q[VEC_LANES];
    ints_vec part[2 * BYTES_GROUPS];
    bytes all = bytes_apart((const uint8_t *)x->q, g + 1 < groups ? (int)sizeof *x : 0);
    for (int r = 0; r < VEC_LANES; r++)
        q[r] = quads_dot(code[r], all, type->below && !raised(type));
    quads_turn(q, part);
    for (int i = 0; i < BYTES_GROUPS && g + i < groups; i++) {
        const int at = 2 * (g + i);
        if (!type->halves) {
            ints_vec both = part[2 * i] + part[2 * i + 1];
            sum = add_scaled(raised(type) ? both + x[i].start : both, x[i].factor, f->s[at], sum);
            if (type->adds)
                sum = vec_fma(f->b[at], vec_set(x[i].sum), sum);
            continue;
        }
        for (int p = 0; p < 2; p++) {
            sum = add_scaled(part[2 * i + p], x[i].factor, f->s[at + p], sum);
            if (type->adds)
                sum = vec_fma(f->b[at + p], vec_set(x[i].halves[p]), sum);
        }
    }
    return sum;
}

/* A chunk of VEC_LANES rows with some tokens. */
VEC_INLINE void ints_chunk(const ints_type *type, const lanes *at, int groups, const turned *f,
                           const ints_group *const *x, int tokens, vec *sum)
{
    for (int g = 0; g < groups; g += BYTES_GROUPS) {
        bytes code[VEC_LANES];
        for (int r = 0; r < VEC_LANES; r++)
            code[r] = raised(type) ? bytes_raise(codes_of(type, at, groups, r, g)) : codes_of(type, at, groups, r, g);
        for (int t = 0; t < tokens; t++)
            sum[t] = ints_token(type, code, x[t] + at->column / CODES_GROUP + g, groups, g, f, sum[t]);
    }
}

INTS_ROWS void ints_lanes(const ints_type *type, const codes *c, int64_t row, int32_t rows, int64_t n,
                          const ints_group *const *x, int tokens, float *to)
{
    vec sum[INTS_TOKENS];
    for (int t = 0; t < tokens; t++)
        sum[t] = vec_set(0.0f);
    for (int64_t column = 0; column < n; column += CHUNK) {
        lanes at;
        turned f;
        open_lanes(type, c, row, rows, column, n, &at, &f);
        if (whole_blocks(type) || at.groups == GROUPS)
            ints_chunk(type, &at, GROUPS, &f, x, tokens, sum);
        else
            ints_chunk(type, &at, at.groups, &f, x, tokens, sum);
    }
    for (int t = 0; t < tokens; t++)
        vec_store((char *)(to + t * PRODUCT_FEW_ROWS), TN_F32, sum[t]);
}

INTS_ROWS void ints_rows(const ints_type *type, const codes *c, int64_t row, int32_t rows, int64_t n,
                         const ints_group *const *x, int32_t tokens, float *sums)
{
    for (int32_t r = 0; r < rows; r += VEC_LANES) {
        int32_t t = 0;
        for (; t + INTS_TOKENS <= tokens; t += INTS_TOKENS)
            ints_lanes(type, c, row + r, rows - r, n, x + t, INTS_TOKENS, sums + t * PRODUCT_FEW_ROWS + r);
        for (; t < tokens; t++)
            ints_lanes(type, c, row + r, rows - r, n, x + t, 1, sums + t * PRODUCT_FEW_ROWS + r);
    }
}

/* Type, `turn`, codes, bytes of 256 columns; below, halves, adds. */
#define INTS_TYPES(X)                                                                                                  \
    X(TN_Q4_0, turn_q4_0, ints_q4_0, 144, false, false, true)                                                          \
    X(TN_Q8_0, turn_q8_0, ints_q8_0, 272, true, false, false)                                                          \
    X(TN_Q4_K, turn_q4_k, ints_q4_k, 144, false, false, true)                                                          \
    X(TN_Q5_K, turn_q5_k, ints_q5_k, 176, false, false, true)                                                          \
    X(TN_Q6_K, turn_q6_k, ints_q6_k, 210, false, true, true)                                                           \
    X(TN_Q2_K, turn_q2_k, ints_q2_k, 84, false, true, true)                                                            \
    X(TN_Q3_K, turn_q3_k, ints_q3_k, 110, false, true, true)                                                           \
    X(TN_Q5_0, turn_q5_0, ints_q5_0, 176, false, false, true)                                                          \
    X(TN_IQ4_NL, turn_iq4_nl, ints_iq4_nl, 144, true, false, false)                                                    \
    X(TN_IQ4_XS, turn_iq4_xs, ints_iq4_xs, 136, true, false, false)                                                    \
    X(TN_MXFP4, turn_mxfp4, ints_mxfp4, 136, true, false, false)                                                       \
    X(TN_E2M1, turn_e2m1, ints_e2m1, 128, false, true, true)                                                           \
    X(TN_U4, turn_plain, ints_u4, 128, false, true, true)                                                              \
    X(TN_I8, turn_plain, ints_i8, 256, !INTS_RAISED, true, true)

/* Scales beside codes may be those of 16 columns; most are those of 32 and more, and such groups are summed whole. */
VEC_INLINE bool whole_groups(const codes *c, tn_dtype dtype)
{
    return (dtype == TN_U4 || dtype == TN_I8) && c->group_shift >= 5;
}

/* USE of a type. */
#define INTS_USE(use, type, turn, codes_of, size, below, halves, adds)                                                 \
    if (whole_groups(c, type))                                                                                         \
        use(((const ints_type){turn, codes_of, size, below, false, adds}));                                            \
    else                                                                                                               \
        use(((const ints_type){turn, codes_of, size, below, halves, adds}));

#define INTS_ROWS_OF(each) ints_rows(&each, c, row, rows, k, x, tokens, sums)
#define INTS_CASE(type, ...)                                                                                           \
    case type:                                                                                                         \
        INTS_USE(INTS_ROWS_OF, type, __VA_ARGS__)                                                                      \
        break;

static void ints(const codes *c, int64_t row, int32_t rows, int64_t k, const ints_group *const *x, int32_t tokens,
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
