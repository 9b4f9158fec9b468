/* Decoding quantised weights, written once for every instruction set: vec_<isa>.h and a few primitives come first
 * (codes_avx512.h says what they promise). A row is taken in chunks of 256 columns: `open` finds a chunk's factors and,
 * where codes are neither bytes nor nibbles, makes them bytes; `values` makes numbers of 32 columns at a time. All of
 * it is inlined into one loop for each type. */
#ifndef TENON_COMMON_CODES_VEC_H
#define TENON_COMMON_CODES_VEC_H

#include "codes_factors.h"

typedef void values_fn(const chunk *k, int g, vec v[VECS]);

/* ---- with factors ------------------------------------------------------------------------------------------- */

/* v times the factors of group g; plus what is added; the codes less zero points, times the factors. */
VEC_INLINE void times(const chunk *k, int g, vec v[VECS])
{
    for (int i = 0; i < VECS; i++)
        v[i] = vec_mul(v[i], vec_set(k->s[2 * g + i * VEC_LANES / 16]));
}

VEC_INLINE void times_plus(const chunk *k, int g, vec v[VECS])
{
    for (int i = 0; i < VECS; i++)
        v[i] = vec_fma(v[i], vec_set(k->s[2 * g + i * VEC_LANES / 16]), vec_set(k->b[2 * g + i * VEC_LANES / 16]));
}

VEC_INLINE void less_times(const chunk *k, int g, vec v[VECS])
{
    for (int i = 0; i < VECS; i++)
        v[i] = vec_sub(v[i], vec_set(k->b[2 * g + i * VEC_LANES / 16]));
    times(k, g, v);
}

VEC_INLINE void by_one(float s, vec v[VECS])
{
    for (int i = 0; i < VECS; i++)
        v[i] = vec_mul(v[i], vec_set(s));
}

VEC_INLINE void open_nothing(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    (void)c, (void)row, (void)column, (void)groups, (void)k;
}

VEC_INLINE void open_plain(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    open_beside(c, row, column, groups, 1.0f, k);
}

/* ---- nibbles ------------------------------------------------------------------------------------------------ */

static const int8_t count_levels[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const int8_t q4_0_levels[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
static const int8_t iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t e2m1_levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}; /* twice the values */
static const float nf4_levels[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

/* Where 32 nibbles lie: elements 0 to 15 in the low halves of 16 bytes and the others in the high ones; all in the low,
 * or the high halves of 32 bytes; pairs of neighbours in 16 bytes, the first low. */
typedef enum places { SPLIT, LOW, HIGH, PAIRS } places;

#if VEC_LANES == 16
VEC_INLINE void look_up(vec levels, const uint8_t *q, places where, vec v[VECS])
{
    v[0] = vec_look_up(levels, q, where == HIGH);
    v[1] = vec_look_up(levels, where == LOW || where == HIGH ? q + 16 : q, where != LOW);
    if (where == PAIRS)
        vec_interleave(v);
}

VEC_INLINE void levels_of(const int8_t *levels, const uint8_t *q, places where, vec v[VECS])
{
    look_up(vec_of_bytes(levels), q, where, v);
}
#else
VEC_INLINE void levels_of(const int8_t *levels, const uint8_t *q, places where, vec v[VECS])
{
    int8_t code[CODES_GROUP];
    if (where == PAIRS) {
        bytes_of_pairs(levels, q, code);
    } else {
        bytes_of_nibbles(levels, q, where == HIGH, code);
        bytes_of_nibbles(levels, where == SPLIT ? q : q + 16, where != LOW, code + 16);
    }
    for (int i = 0; i < VECS; i++)
        v[i] = vec_of_bytes(code + i * VEC_LANES);
}
#endif

VEC_INLINE void values_q4_0(const chunk *k, int g, vec v[VECS])
{
    const uint8_t *p = k->p + 18 * g;
    levels_of(q4_0_levels, p + 2, SPLIT, v);
    by_one(half_value((const char *)p), v);
}

VEC_INLINE void values_q4_1(const chunk *k, int g, vec v[VECS])
{
    const uint8_t *p = k->p + 20 * g;
    vec s = vec_set(half_value((const char *)p)), b = vec_set(half_value((const char *)p + 2));
    levels_of(count_levels, p + 4, SPLIT, v);
    for (int i = 0; i < VECS; i++)
        v[i] = vec_fma(v[i], s, b);
}

VEC_INLINE void values_iq4_nl(const chunk *k, int g, vec v[VECS])
{
    const uint8_t *p = k->p + 18 * g;
    levels_of(iq4_levels, p + 2, SPLIT, v);
    by_one(half_value((const char *)p), v);
}

/* Halves of powers of two, since levels are twice the values. */
VEC_INLINE void open_mxfp4(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    uint64_t exponents = 0;
    (void)c, (void)row, (void)column;
    if (groups == GROUPS)
        for (int g = 0; g < GROUPS; g++)
            exponents |= (uint64_t)k->p[17 * g] << 8 * g;
    else
        for (int g = 0; g < groups; g++)
            exponents |= (uint64_t)k->p[17 * g] << 8 * g;
    powers_of(sixteen_of(exponents, 0), twice_first, 0.5f, k->s);
}

VEC_INLINE void values_mxfp4(const chunk *k, int g, vec v[VECS])
{
    levels_of(e2m1_levels, k->p + 17 * g + 1, SPLIT, v);
    times(k, g, v);
}

VEC_INLINE void values_q4_k(const chunk *k, int g, vec v[VECS])
{
    levels_of(count_levels, k->p + 16 + g / 2 * 32, g % 2 ? HIGH : LOW, v);
    times_plus(k, g, v);
}

VEC_INLINE void values_iq4_xs(const chunk *k, int g, vec v[VECS])
{
    levels_of(iq4_levels, k->p + 8 + 16 * g, SPLIT, v);
    times(k, g, v);
}

VEC_INLINE void values_u4(const chunk *k, int g, vec v[VECS])
{
    levels_of(count_levels, k->p + 16 * g, PAIRS, v);
    less_times(k, g, v);
}

VEC_INLINE void open_e2m1(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    open_beside(c, row, column, groups, 0.5f, k);
}

VEC_INLINE void values_e2m1(const chunk *k, int g, vec v[VECS])
{
    levels_of(e2m1_levels, k->p + 16 * g, PAIRS, v);
    times(k, g, v);
}

/* The first of a pair is in the high half. */
VEC_INLINE void values_nf4(const chunk *k, int g, vec v[VECS])
{
    const uint8_t *q = k->p + 16 * g;
#if VEC_LANES == 16
    vec levels = vec_load((const char *)nf4_levels, TN_F32);
    v[0] = vec_look_up(levels, q, true);
    v[1] = vec_look_up(levels, q, false);
    vec_interleave(v);
#else
    float value[CODES_GROUP];
    for (int i = 0; i < 16; i++) {
        value[2 * i] = nf4_levels[q[i] >> 4];
        value[2 * i + 1] = nf4_levels[q[i] & 15];
    }
    for (int i = 0; i < VECS; i++)
        v[i] = vec_load((const char *)(value + i * VEC_LANES), TN_F32);
#endif
    times(k, g, v);
}

/* ---- bytes -------------------------------------------------------------------------------------------------- */

VEC_INLINE void bytes_at(const int8_t *code, vec v[VECS])
{
    for (int i = 0; i < VECS; i++)
        v[i] = vec_of_bytes(code + i * VEC_LANES);
}

VEC_INLINE void values_q8_0(const chunk *k, int g, vec v[VECS])
{
    const uint8_t *p = k->p + 34 * g;
    bytes_at((const int8_t *)p + 2, v);
    by_one(half_value((const char *)p), v);
}

VEC_INLINE void values_i8(const chunk *k, int g, vec v[VECS])
{
    bytes_at((const int8_t *)k->p + CODES_GROUP * g, v);
    less_times(k, g, v);
}

/* code = nibble | bit << 4, less what is taken away: bit j of the word is that of element j. */
VEC_INLINE void fifth_bits(const uint8_t *bits, const uint8_t *q, int less, int8_t *code)
{
    uint32_t word;
    memcpy(&word, bits, sizeof word);
    for (int j = 0; j < 16; j++) {
        code[j] = (int8_t)(((q[j] & 15) | (int)(word >> j & 1) << 4) - less);
        code[j + 16] = (int8_t)(((q[j] >> 4) | (int)(word >> (j + 16) & 1) << 4) - less);
    }
}

VEC_INLINE void open_q5_0(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    (void)c, (void)row, (void)column;
    for (int g = 0; g < groups; g++) {
        const uint8_t *p = k->p + 22 * g;
        k->s[2 * g] = k->s[2 * g + 1] = half_value((const char *)p);
        fifth_bits(p + 2, p + 6, 16, k->code + CODES_GROUP * g);
    }
}

VEC_INLINE void open_q5_1(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    (void)c, (void)row, (void)column;
    for (int g = 0; g < groups; g++) {
        const uint8_t *p = k->p + 24 * g;
        k->s[2 * g] = k->s[2 * g + 1] = half_value((const char *)p);
        k->b[2 * g] = k->b[2 * g + 1] = half_value((const char *)p + 2);
        fifth_bits(p + 4, p + 8, 0, k->code + CODES_GROUP * g);
    }
}

VEC_INLINE void values_code(const chunk *k, int g, vec v[VECS])
{
    bytes_at(k->code + CODES_GROUP * g, v);
    times(k, g, v);
}

VEC_INLINE void values_code_plus(const chunk *k, int g, vec v[VECS])
{
    bytes_at(k->code + CODES_GROUP * g, v);
    times_plus(k, g, v);
}

/* ---- blocks of 256 ------------------------------------------------------------------------------------------- */

/* Eight scales and eight minima of six bits in twelve bytes. */
VEC_INLINE void open_q4_k(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    (void)c, (void)row, (void)column, (void)groups;
    float d = half_value((const char *)k->p), dmin = half_value((const char *)k->p + 2);
    sixteen six = six_bits(k->p + 4);
    factors_of(six, false, twice_first, d, k->s);
    factors_of(six, false, twice_last, -dmin, k->b);
}

VEC_INLINE void open_q5_k(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    const uint8_t *high = k->p + 16, *q = k->p + 48;
    open_q4_k(c, row, column, groups, k);
    for (int g = 0; g < GROUPS; g += 2)
        for (int l = 0; l < 32; l++) {
            k->code[32 * g + l] = (int8_t)((q[16 * g + l] & 15) | (high[l] >> g & 1) << 4);
            k->code[32 * g + 32 + l] = (int8_t)((q[16 * g + l] >> 4) | (high[l] >> (g + 1) & 1) << 4);
        }
}

VEC_INLINE void open_q6_k(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    (void)c, (void)row, (void)column, (void)groups;
    factors_of(sixteen_load(k->p + 192), true, in_order, half_value((const char *)k->p + 208), k->s);
    for (int h = 0; h < 2; h++) {
        const uint8_t *low = k->p + 64 * h, *high = k->p + 128 + 32 * h;
        int8_t *code = k->code + 128 * h;
        for (int l = 0; l < 32; l++) {
            code[l] = (int8_t)(((low[l] & 15) | (high[l] & 3) << 4) - 32);
            code[l + 32] = (int8_t)(((low[l + 32] & 15) | (high[l] >> 2 & 3) << 4) - 32);
            code[l + 64] = (int8_t)(((low[l] >> 4) | (high[l] >> 4 & 3) << 4) - 32);
            code[l + 96] = (int8_t)(((low[l + 32] >> 4) | (high[l] >> 6) << 4) - 32);
        }
    }
}

VEC_INLINE void open_q2_k(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    (void)c, (void)row, (void)column, (void)groups;
    float d = half_value((const char *)k->p + 80), dmin = half_value((const char *)k->p + 82);
    for (int i = 0; i < PARTS; i++) {
        k->s[i] = d * (float)(k->p[i] & 15);
        k->b[i] = -(dmin * (float)(k->p[i] >> 4));
    }
    for (int h = 0; h < 2; h++)
        for (int j = 0; j < 4; j++)
            for (int l = 0; l < 32; l++)
                k->code[128 * h + 32 * j + l] = (int8_t)(k->p[16 + 32 * h + l] >> 2 * j & 3);
}

/* The low four bits of sixteen in eight bytes, the upper two in four. */
VEC_INLINE void factors_q3_k(chunk *k)
{
    const uint64_t four = UINT64_C(0x0f0f0f0f0f0f0f0f), two = UINT64_C(0x0303030303030303);
    uint64_t low;
    uint32_t high;
    memcpy(&low, k->p + 96, sizeof low);
    memcpy(&high, k->p + 104, sizeof high);
    uint64_t first = (low & four) | ((high | (uint64_t)(high >> 2) << 32) & two) << 4;
    uint64_t last = (low >> 4 & four) | ((high >> 4 | (uint64_t)(high >> 6) << 32) & two) << 4;
    factors_of(sixteen_of(bytes_less_32(first), bytes_less_32(last)), true, in_order,
               half_value((const char *)k->p + 108), k->s);
}

VEC_INLINE void open_q3_k(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    (void)c, (void)row, (void)column, (void)groups;
    const uint8_t *mask = k->p, *q = k->p + 32;
    factors_q3_k(k);
    for (int h = 0; h < 2; h++)
        for (int j = 0; j < 4; j++)
            for (int l = 0; l < 32; l++)
                k->code[128 * h + 32 * j + l] =
                    (int8_t)((q[32 * h + l] >> 2 * j & 3) + ((mask[l] >> (4 * h + j) & 1) << 2) - 4);
}

/* The low four bits of eight in four bytes, the upper two in a word. */
VEC_INLINE void open_iq4_xs(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    uint32_t low;
    uint16_t high;
    (void)c, (void)row, (void)column, (void)groups;
    memcpy(&low, k->p + 4, sizeof low);
    memcpy(&high, k->p + 2, sizeof high);
    uint64_t four = low, two = high; /* spread, half of them at a time */
    four = (four | four << 16) & UINT64_C(0x0000ffff0000ffff);
    four = (four | four << 8) & UINT64_C(0x00ff00ff00ff00ff);
    four = (four | four << 4) & UINT64_C(0x0f0f0f0f0f0f0f0f);
    two = (two | two << 24) & UINT64_C(0x000000ff000000ff);
    two = (two | two << 12) & UINT64_C(0x000f000f000f000f);
    two = (two | two << 6) & UINT64_C(0x0303030303030303);
    factors_of(sixteen_of(bytes_less_32(four | two << 4), 0), true, twice_first, half_value((const char *)k->p), k->s);
}

/* ---- floating codes --------------------------------------------------------------------------------------------- */

VEC_INLINE void open_e4m3(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    open_beside(c, row, column, groups, 256.0f, k);
    for (int i = 0; i < CODES_GROUP * groups; i++)
        k->half[i] = half_of_e4m3(k->p[i]);
}

VEC_INLINE void open_e5m2(const codes *c, int64_t row, int64_t column, int groups, chunk *k)
{
    open_beside(c, row, column, groups, 1.0f, k);
    for (int i = 0; i < CODES_GROUP * groups; i++)
        k->half[i] = (uint16_t)(k->p[i] << 8);
}

VEC_INLINE void values_half(const chunk *k, int g, vec v[VECS])
{
    for (int i = 0; i < VECS; i++)
        v[i] = vec_load((const char *)(k->half + CODES_GROUP * g + i * VEC_LANES), TN_F16);
    times(k, g, v);
}

/* ---- loops ------------------------------------------------------------------------------------------------------ */

VEC_INLINE int groups_of(int64_t left)
{
    return left < CHUNK ? (int)(left / CODES_GROUP) : GROUPS;
}

/* bytes: of a chunk. */
VEC_INLINE void unpack_as(open_fn *open, values_fn *values, int64_t bytes, const codes *c, int64_t row, int64_t from,
                          int64_t n, tn_dtype to, char *out)
{
    int64_t size = to == TN_F32 ? 4 : 2, end = from + n;
    for (int64_t column = from / CHUNK * CHUNK; column < end; column += CHUNK) {
        chunk k = {.p = (const uint8_t *)c->data + row * c->row_bytes + column / CHUNK * bytes};
        int g = column < from ? (int)(from - column) / CODES_GROUP : 0, groups = groups_of(end - column);
        open(c, row, column, groups, &k);
        for (; g < groups; g++) {
            vec v[VECS];
            values(&k, g, v);
            for (int i = 0; i < VECS; i++, out += VEC_LANES * size)
                vec_store(out, to, v[i]);
        }
    }
}

/* Every type: its `open` and `values`, and the bytes of 256 columns. */
#define CODES_TYPES(X)                                                                                                 \
    X(TN_Q4_0, open_nothing, values_q4_0, 144)                                                                         \
    X(TN_Q4_1, open_nothing, values_q4_1, 160)                                                                         \
    X(TN_Q5_0, open_q5_0, values_code, 176)                                                                            \
    X(TN_Q5_1, open_q5_1, values_code_plus, 192)                                                                       \
    X(TN_Q8_0, open_nothing, values_q8_0, 272)                                                                         \
    X(TN_Q2_K, open_q2_k, values_code_plus, 84)                                                                        \
    X(TN_Q3_K, open_q3_k, values_code, 110)                                                                            \
    X(TN_Q4_K, open_q4_k, values_q4_k, 144)                                                                            \
    X(TN_Q5_K, open_q5_k, values_code_plus, 176)                                                                       \
    X(TN_Q6_K, open_q6_k, values_code, 210)                                                                            \
    X(TN_IQ4_NL, open_nothing, values_iq4_nl, 144)                                                                     \
    X(TN_IQ4_XS, open_iq4_xs, values_iq4_xs, 136)                                                                      \
    X(TN_MXFP4, open_mxfp4, values_mxfp4, 136)                                                                         \
    X(TN_F8_E4M3, open_e4m3, values_half, 256)                                                                         \
    X(TN_F8_E5M2, open_e5m2, values_half, 256)                                                                         \
    X(TN_I8, open_plain, values_i8, 256)                                                                               \
    X(TN_U4, open_plain, values_u4, 128)                                                                               \
    X(TN_E2M1, open_e2m1, values_e2m1, 128)                                                                            \
    X(TN_NF4, open_plain, values_nf4, 128)

#define UNPACK_CASE(type, open, values, bytes)                                                                         \
    case type:                                                                                                         \
        unpack_as(open, values, bytes, c, row, from, n, to, out);                                                      \
        break;

VEC_INLINE void unpack_to(const codes *c, int64_t row, int64_t from, int64_t n, tn_dtype to, void *out)
{
    switch (c->dtype) {
        CODES_TYPES(UNPACK_CASE)
    default:
        break;
    }
}

__attribute__((unused)) static void unpack(const codes *c, int64_t row, int64_t from, int64_t n, tn_dtype to, void *out)
{
    if (to == TN_F32)
        unpack_to(c, row, from, n, TN_F32, out);
    else if (to == TN_BF16)
        unpack_to(c, row, from, n, TN_BF16, out);
    else
        unpack_to(c, row, from, n, TN_F16, out);
}

#endif
