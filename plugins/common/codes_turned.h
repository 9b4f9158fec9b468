/* The factors of quantised weights for VEC_LANES rows at once, turned so that lanes are rows: found from the words of
 * sixteen bytes of each row, or, where they lie beside codes, row by row. A tier says what quads, ints_vec and
 * words_vec are, and how words are turned. */
#ifndef TENON_COMMON_CODES_TURNED_H
#define TENON_COMMON_CODES_TURNED_H

#include "codes_vec.h"

/* 1: products of unsigned bytes of any size are summed as they are. A tier has bytes_raise then, each byte plus 128,
 * and bytes_nibbles, the low halves of bytes for groups of even number, and the high ones, which stay where they are.
 */
#ifndef INTS_RAISED
#define INTS_RAISED 0
#endif

/* VEC_LANES rows at a column, of which `rows` count (the last one stands for those behind it), and where their chunks
 * are. */
typedef struct lanes {
    const codes *c;
    int64_t row, column;
    int32_t rows;
    int groups;
    const uint8_t *p[VEC_LANES];
} lanes;

/* Factors of 16 columns each, and what is added to codes; of types whose factors are those of 32 only each second is
 * there. Lanes are rows. */
typedef struct turned {
    vec s[PARTS], b[PARTS];
} turned;

typedef void turn_fn(const lanes *at, turned *f);

VEC_INLINE vec times_ints(ints_vec a, vec factor)
{
    return vec_mul(vec_of_ints(a), factor);
}

VEC_INLINE vec times_number(vec a, float number)
{
    return vec_mul(a, vec_set(number));
}

#if VEC_LANES < 8
VEC_INLINE void words_turn(const sixteen row[VEC_LANES], words_vec out[4])
{
    uint32_t word[4][VEC_LANES];
    for (int r = 0; r < VEC_LANES; r++)
        for (int i = 0; i < 4; i++)
            memcpy(&word[i][r], row[r].b + 4 * i, sizeof(uint32_t));
    memcpy(out, word, sizeof word);
}
#endif

/* Sixteen bytes of each row, as four words. */
VEC_INLINE void words_at(const lanes *at, int offset, words_vec w[4])
{
    sixteen row[VEC_LANES];
    for (int r = 0; r < VEC_LANES; r++)
        row[r] = sixteen_load(at->p[r] + offset);
    words_turn(row, w);
}

/* Of blocks of 32 that begin with a half; zero times them is added. */
VEC_INLINE void turn_blocks(const lanes *at, int bytes, float zero, turned *f)
{
    sixteen row[VEC_LANES];
    words_vec w[4];
    for (int r = 0; r < VEC_LANES; r++) {
        uint16_t half[GROUPS] = {0};
        if (at->groups == GROUPS) {
            row[r] = block_halves(at->p[r], bytes);
            continue;
        }
        for (int g = 0; g < at->groups; g++)
            memcpy(&half[g], at->p[r] + bytes * g, sizeof *half);
        row[r] = sixteen_load(half);
    }
    words_turn(row, w);
    for (int g = 0; g < GROUPS; g++) {
        f->s[2 * g] = vec_of_halves(w[g / 2] >> 16 * (g % 2) & 0xffff);
        if (zero < 0.0f)
            f->b[2 * g] = times_number(f->s[2 * g], zero);
    }
}

VEC_INLINE void turn_q4_0(const lanes *at, turned *f)
{
    turn_blocks(at, 18, -8.0f, f);
}

VEC_INLINE void turn_q5_0(const lanes *at, turned *f)
{
    turn_blocks(at, 22, -16.0f, f);
}

VEC_INLINE void turn_q8_0(const lanes *at, turned *f)
{
    turn_blocks(at, 34, 0.0f, f);
}

VEC_INLINE void turn_iq4_nl(const lanes *at, turned *f)
{
    turn_blocks(at, 18, 0.0f, f);
}

/* As open_q4_k; of each second group the factors are `odd` times that. */
VEC_INLINE void turn_six_bits(const lanes *at, float odd, turned *f)
{
    words_vec w[4];
    words_at(at, 0, w);
    const vec d = vec_of_halves(w[0] & 0xffff), dmin = times_number(vec_of_halves(w[0] >> 16), -1.0f);
    const vec factor[2] = {d, times_number(d, odd)};
    const words_vec six[4] = {w[1] & 0x3f3f3f3f, (w[3] & 0x0f0f0f0f) | (w[1] >> 6 & 0x03030303) << 4, w[2] & 0x3f3f3f3f,
                              (w[3] >> 4 & 0x0f0f0f0f) | (w[2] >> 6 & 0x03030303) << 4};
    for (int g = 0; g < GROUPS; g++) {
        f->s[2 * g] = times_ints((ints_vec)(six[g / 4] >> 8 * (g % 4) & 255), factor[g % 2]);
        f->b[2 * g] = times_ints((ints_vec)(six[2 + g / 4] >> 8 * (g % 4) & 255), dmin);
    }
}

VEC_INLINE void turn_q4_k(const lanes *at, turned *f)
{
    turn_six_bits(at, INTS_RAISED ? 0x1p-4f : 1.0f, f);
}

VEC_INLINE void turn_q5_k(const lanes *at, turned *f)
{
    turn_six_bits(at, 1.0f, f);
}

/* As open_iq4_xs. */
VEC_INLINE void turn_iq4_xs(const lanes *at, turned *f)
{
    words_vec w[4];
    words_at(at, 0, w);
    const vec d = vec_of_halves(w[0] & 0xffff);
    for (int g = 0; g < GROUPS; g++)
        f->s[2 * g] = times_ints((ints_vec)((w[1] >> 4 * g & 15) | (w[0] >> (16 + 2 * g) & 3) << 4) - 32, d);
}

/* As open_q6_k. */
VEC_INLINE void turn_q6_k(const lanes *at, turned *f)
{
    words_vec w[4], last[4];
    words_at(at, 192, w);
    words_at(at, 194, last);
    const vec d = vec_of_halves(last[3] >> 16);
    for (int p = 0; p < PARTS; p++) {
        f->s[p] = times_ints((ints_vec)(w[p / 4] << (24 - 8 * (p % 4))) >> 24, d);
        f->b[p] = times_number(f->s[p], -32.0f);
    }
}

/* As open_q2_k. */
VEC_INLINE void turn_q2_k(const lanes *at, turned *f)
{
    words_vec w[4], last[4];
    words_at(at, 0, w);
    words_at(at, 68, last);
    const vec d = vec_of_halves(last[3] & 0xffff), dmin = times_number(vec_of_halves(last[3] >> 16), -1.0f);
    for (int p = 0; p < PARTS; p++) {
        f->s[p] = times_ints((ints_vec)(w[p / 4] >> 8 * (p % 4) & 15), d);
        f->b[p] = times_ints((ints_vec)(w[p / 4] >> (8 * (p % 4) + 4) & 15), dmin);
    }
}

/* As factors_q3_k. */
VEC_INLINE void turn_q3_k(const lanes *at, turned *f)
{
    words_vec w[4], last[4];
    words_at(at, 92, w);
    words_at(at, 94, last);
    const vec d = vec_of_halves(last[3] >> 16);
    for (int p = 0; p < PARTS; p++) {
        words_vec low = w[1 + p / 4 % 2] >> (8 * (p % 4) + p / 8 * 4) & 15;
        words_vec high = w[3] >> (8 * (p % 4) + p / 4 * 2) & 3;
        f->s[p] = times_ints((ints_vec)(low | high << 4) - 32, d);
        f->b[p] = times_number(f->s[p], -4.0f);
    }
}

/* Codes of types with scales beside them are taken so much higher than they are: none is negative then, where products
 * of such are faster. */
VEC_INLINE float codes_raised(tn_dtype dtype)
{
    return dtype == TN_E2M1 ? 12.0f : dtype == TN_I8 && INTS_RAISED ? 128.0f : 0.0f;
}

/* Those that `open` finds row by row; zero points are taken away, (code - zero) s = code s - zero s. */
VEC_INLINE void turn_rows(const lanes *at, open_fn *open, turned *f)
{
    const vec raised = vec_set(codes_raised(at->c->dtype));
    chunk k[VEC_LANES];
    for (int r = 0; r < VEC_LANES; r++) {
        k[r].p = at->p[r];
        open(at->c, at->row + (r < at->rows ? r : at->rows - 1), at->column, at->groups, &k[r]);
    }
    for (int p = 0; p < PARTS; p += VEC_LANES) {
        for (int r = 0; r < VEC_LANES; r++) {
            vec zero = at->c->dtype == TN_E2M1 ? vec_set(0.0f) : vec_load((const char *)(k[r].b + p), TN_F32);
            f->s[p + r] = vec_load((const char *)(k[r].s + p), TN_F32);
            f->b[p + r] = vec_mul(vec_add(zero, raised), times_number(f->s[p + r], -1.0f));
        }
        vec_transpose(f->s + p);
        vec_transpose(f->b + p);
    }
}

/* As open_mxfp4: halves of powers of two, the least subnormal; 255 is no number. */
VEC_INLINE void turn_mxfp4(const lanes *at, turned *f)
{
    sixteen row[VEC_LANES];
    words_vec w[4];
    for (int r = 0; r < VEC_LANES; r++) {
        uint64_t exponents = 0;
        for (int g = 0; g < at->groups; g++)
            exponents |= (uint64_t)at->p[r][17 * g] << 8 * g;
        row[r] = sixteen_of(exponents, 0);
    }
    words_turn(row, w);
    for (int g = 0; g < GROUPS; g++) {
        words_vec e = w[g / 4] >> 8 * (g % 4) & 255, bits = e << 23 | ((e - 1) >> 31 | (e + 1) >> 8) << 22;
        vec power;
        memcpy(&power, &bits, sizeof power);
        f->s[2 * g] = times_number(power, 0.5f);
    }
}

#define SCALES_READ (TN_TAKES(TN_F32) | TN_TAKES(TN_F16) | TN_TAKES(TN_BF16))

/* The scales `at` bytes behind p. */
VEC_INLINE vec scales_at(const char *const p[VEC_LANES], int64_t at, tn_dtype dtype)
{
    uint32_t bits[VEC_LANES];
    words_vec words;
    vec scales;
    for (int r = 0; r < VEC_LANES; r++) {
        uint16_t half;
        memcpy(&half, p[r] + at, sizeof half);
        bits[r] = half;
        if (dtype == TN_F32)
            memcpy(&bits[r], p[r] + at, sizeof bits[r]);
    }
    memcpy(&words, bits, sizeof words);
    if (dtype == TN_F16)
        return vec_of_halves(words);
    words <<= dtype == TN_BF16 ? 16 : 0;
    memcpy(&scales, &words, sizeof scales);
    return scales;
}

/* What is taken away from codes as they are multiplied: zero points `group` groups behind p, or the type's own. */
VEC_INLINE vec zeros_at(const lanes *at, const uint8_t *const p[VEC_LANES], int64_t group)
{
    const tn_dtype dtype = at->c->dtype;
    int32_t each[VEC_LANES];
    ints_vec zeros;
    if (!at->c->zero)
        return vec_set((dtype == TN_U4 ? 8.0f : 0.0f) + codes_raised(dtype));
    for (int r = 0; r < VEC_LANES; r++)
        each[r] = dtype == TN_I8 ? (int8_t)p[r][group] : p[r][group];
    memcpy(&zeros, each, sizeof zeros);
    return vec_add(vec_of_ints(zeros), vec_set(codes_raised(dtype)));
}

/* Scales beside codes that are those of 32 columns or more, in the usual types: few, so they are read one by one. */
VEC_INLINE bool turn_few(const lanes *at, float factor, turned *f)
{
    const codes *c = at->c;
    const tn_tensor *t = c->scale;
    const int64_t group = at->column >> c->group_shift;
    const int n = (int)(((at->column + CODES_GROUP * at->groups - 1) >> c->group_shift) - group) + 1;
    const char *scale[VEC_LANES];
    const uint8_t *zero[VEC_LANES] = {0};
    vec s[GROUPS], b[GROUPS];
    if (c->group_shift < 5 || !t || (c->dtype == TN_E2M1 && c->zero) || !(SCALES_READ >> t->dtype & 1))
        return false;
    const int64_t apart = t->stride[t->ndim - 1], size = t->dtype == TN_F32 ? 4 : 2;
    for (int r = 0; r < VEC_LANES; r++) {
        int64_t row = at->row + (r < at->rows ? r : at->rows - 1);
        scale[r] = (const char *)t->data + (row * t->stride[0] + group * apart) * size;
        if (c->zero)
            zero[r] = (const uint8_t *)c->zero->data + row * c->zero->stride[0] + group;
    }
    for (int i = 0; i < n; i++) {
        s[i] = times_number(scales_at(scale, i * apart * size, t->dtype), factor);
        b[i] = vec_mul(zeros_at(at, zero, i), times_number(s[i], -1.0f));
    }
    for (int p = 0; p < 2 * at->groups; p++) {
        int64_t i = ((at->column + 16 * p) >> c->group_shift) - group;
        f->s[p] = s[i];
        f->b[p] = b[i];
    }
    return true;
}

VEC_INLINE void turn_e2m1(const lanes *at, turned *f)
{
    if (!turn_few(at, 0.5f, f))
        turn_rows(at, open_e2m1, f);
}

VEC_INLINE void turn_plain(const lanes *at, turned *f)
{
    if (!turn_few(at, 1.0f, f))
        turn_rows(at, open_plain, f);
}

#endif
