/* The factors of a chunk of 256 columns, whatever the instruction set: scales and zero points that lie beside codes,
 * and the primitives that find those inside of blocks (codes_x86.h has faster ones). */
#ifndef TENON_COMMON_CODES_FACTORS_H
#define TENON_COMMON_CODES_FACTORS_H

#include "codes.h"
#include "product.h"

#include <string.h>

enum {
    CHUNK = 256,
    PARTS = CHUNK / 16,
    GROUPS = CHUNK / CODES_GROUP,
    VECS = CODES_GROUP / VEC_LANES,
    AHEAD = 4096 /* bytes from what is decoded to what is fetched                         */
};

typedef struct chunk {
    _Alignas(64) float s[PARTS], b[PARTS]; /* factors of 16 columns each; what is added to or taken from them */
    const uint8_t *p;                      /* its first byte                                               */
    int8_t code[CHUNK];
    uint16_t half[CHUNK]; /* or, where rows end within a pair of groups, their last blocks                */
} chunk;

typedef void open_fn(const codes *c, int64_t row, int64_t column, int groups, chunk *k);
/* ---- primitives ----------------------------------------------------------------------------------------------- */

#ifndef CODES_FACTORS
/* As in codes_x86.h. */
typedef struct sixteen {
    uint8_t b[PARTS];
} sixteen;

VEC_INLINE sixteen sixteen_of(uint64_t low, uint64_t high)
{
    sixteen a;
    for (int i = 0; i < PARTS; i++)
        a.b[i] = (uint8_t)((i < 8 ? low : high) >> i % 8 * 8);
    return a;
}

VEC_INLINE sixteen sixteen_load(const void *p)
{
    sixteen a;
    memcpy(&a, p, sizeof a);
    return a;
}

VEC_INLINE void factors_of(sixteen byte, bool below, const int8_t *order, float factor, float out[PARTS])
{
    for (int i = 0; i < PARTS; i++)
        out[i] = factor * (below ? (float)(int8_t)byte.b[order[i]] : (float)byte.b[order[i]]);
}

VEC_INLINE void powers_of(sixteen exponent, const int8_t *order, float factor, float out[PARTS])
{
    for (int i = 0; i < PARTS; i++) {
        uint32_t e = exponent.b[order[i]], bits = e << 23 | (e == 0 || e == 255 ? 0x400000u : 0);
        float value;
        memcpy(&value, &bits, sizeof value);
        out[i] = value * factor;
    }
}

VEC_INLINE sixteen block_halves(const uint8_t *p, int apart)
{
    sixteen a;
    for (int g = 0; g < GROUPS; g++)
        memcpy(a.b + 2 * g, p + apart * g, 2);
    return a;
}

VEC_INLINE void parts_spread(const float *each, int shift, float out[PARTS])
{
    for (int i = 0; i < PARTS; i++)
        out[i] = each[i >> shift];
}

VEC_INLINE sixteen six_bits(const uint8_t *p)
{
    uint32_t a[3], six[4];
    memcpy(a, p, sizeof a);
    six[0] = a[0] & 0x3f3f3f3f;
    six[1] = (a[2] & 0x0f0f0f0f) | (a[0] >> 6 & 0x03030303) << 4;
    six[2] = a[1] & 0x3f3f3f3f;
    six[3] = (a[2] >> 4 & 0x0f0f0f0f) | (a[1] >> 6 & 0x03030303) << 4;
    return sixteen_load(six);
}
#endif

static const int8_t in_order[PARTS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const int8_t twice_first[PARTS] = {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7};
static const int8_t twice_last[PARTS] = {8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15};

/* n <= 16 bytes, zeros behind them; in registers, since what is stored in pieces is waited for. */
VEC_INLINE sixteen sixteen_part(const uint8_t *p, int n)
{
    uint64_t part[2] = {0, 0};
    if (n == 16)
        return sixteen_load(p);
    if (n == 8)
        memcpy(part, p, 8);
    else
        for (int i = 0; i < n; i++)
            part[i / 8] |= (uint64_t)p[i] << i % 8 * 8;
    return sixteen_of(part[0], part[1]);
}

/* Each byte, below 64, less 32. */
VEC_INLINE uint64_t bytes_less_32(uint64_t a)
{
    return ((a | UINT64_C(0x8080808080808080)) - UINT64_C(0x2020202020202020)) ^ UINT64_C(0x8080808080808080);
}

/* ---- beside codes ---------------------------------------------------------------------------------------------- */

/* E4M3 as a half that is 2^8 times too small. */
VEC_INLINE uint16_t half_of_e4m3(uint8_t f)
{
    uint16_t rest = f & 0x7f, sign = (uint16_t)((f & 0x80) << 8);
    return (uint16_t)((rest == 0x7f ? 0x7e00 : rest << 7) | sign);
}

/* n <= PARTS numbers from p on as f32, zeros behind them; `apart` elements from each to the next. */
VEC_INLINE void scales_load(const char *p, tn_dtype dtype, int64_t apart, int n, float each[PARTS])
{
    int64_t size = (int64_t)tn_dtype_size(dtype);
    uint16_t half[PARTS];
    char side_by_side[4 * PARTS];
    if (apart != 1 && n > 1) {
        for (int i = 0; i < n; i++)
            memcpy(side_by_side + i * size, p + i * apart * size, (size_t)size);
        p = side_by_side;
    }
    if (dtype == TN_F8_E8M0) {
        powers_of(sixteen_part((const uint8_t *)p, n), in_order, 1.0f, each);
        return;
    }
    if (dtype == TN_F8_E4M3) {
        sixteen all = sixteen_part((const uint8_t *)p, n);
        uint8_t byte[PARTS];
        memcpy(byte, &all, sizeof byte);
        for (int i = 0; i < PARTS; i++)
            half[i] = half_of_e4m3(byte[i]);
        for (int i = 0; i < PARTS; i += VEC_LANES)
            vec_store((char *)(each + i), TN_F32, vec_mul(vec_load((const char *)(half + i), TN_F16), vec_set(256.0f)));
        return;
    }
    for (int i = 0; i < PARTS; i += VEC_LANES) {
        const char *at = p + i * size;
        vec v = vec_set(0.0f);
        if (n - i >= VEC_LANES)
            v = vec_load(at, dtype);
#if VEC_LANES > 1
        else if (n > i)
            v = vec_load_part(at, dtype, n - i);
#endif
        vec_store((char *)(each + i), TN_F32, v);
    }
}

/* The zero points of n groups; what is not stored is 8 or nothing. */
VEC_INLINE void zeros_load(const codes *c, int64_t row, int64_t group, int n, float each[PARTS])
{
    uint64_t nothing = c->dtype == TN_U4 ? UINT64_C(0x0808080808080808) : 0;
    sixteen zero = sixteen_of(nothing, nothing);
    if (c->zero)
        zero = sixteen_part((const uint8_t *)c->zero->data + row * c->zero->stride[0] + group, n);
    factors_of(zero, c->dtype == TN_I8, in_order, 1.0f, each);
}

/* Scales and zero points that lie beside the codes, the scales times factor. */
VEC_OUTLINE void open_beside(const codes *c, int64_t row, int64_t column, int groups, float factor, chunk *k)
{
    const tn_tensor *t = c->scale;
    int64_t group = column >> c->group_shift;
    int n = (int)(((column + CODES_GROUP * groups - 1) >> c->group_shift) - group) + 1;
    int shift = c->group_shift < 8 ? c->group_shift - 4 : 4;
    _Alignas(64) float each[PARTS] = {1.0f};
    float divisor = 1.0f;
    if (t) {
        int64_t apart = t->stride[t->ndim - 1];
        int64_t size = (int64_t)tn_dtype_size(t->dtype);
        scales_load((const char *)t->data + (row * t->stride[0] + group * apart) * size, t->dtype, apart, n, each);
    }
    if (c->dtype == TN_E2M1 && c->zero)
        memcpy(&divisor, c->zero->data, sizeof divisor);
    for (int i = 0; i < PARTS; i += VEC_LANES) {
        vec s = vec_load((const char *)(each + i), TN_F32);
        s = divisor == 1.0f ? s : vec_div(s, vec_set(divisor));
        vec_store((char *)(each + i), TN_F32, vec_mul(s, vec_set(factor)));
    }
    parts_spread(each, shift, k->s);
    if (c->dtype != TN_U4 && c->dtype != TN_I8)
        return;
    zeros_load(c, row, group, n, each);
    parts_spread(each, shift, k->b);
}

#endif
