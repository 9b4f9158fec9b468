/* Blocks of 256 values, whose groups have scales of their own, which are codes too. The scale of a group is searched
 * for (encode_fit.c). */
#include "base/clones.h"

#include "base/blocks_types.h"
#include "quantize/encode.h"
#include "quantize/encode_fit.h"

#include <math.h>

enum { VALUES = 256 };

static void put_f16(uint8_t *at, float value)
{
    uint16_t bits = tn_f32_to_f16(value);
    at[0] = (uint8_t)bits;
    at[1] = (uint8_t)(bits >> 8);
}

/* ---- scale * code - minimum, of groups of 32 -------------------------------------------------------------- */

enum { GROUP = ENCODE_FIT_GROUP, GROUPS = VALUES / GROUP, SIX_BITS = 63 };

/* Scales and minima of 6 bits, in 12 bytes. */
static void put_six_bits(const uint8_t *sc, const uint8_t *m, uint8_t *s)
{
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(sc[j] | sc[j + 4] >> 4 << 6);
        s[j + 4] = (uint8_t)(m[j] | m[j + 4] >> 4 << 6);
        s[j + 8] = (uint8_t)((sc[j + 4] & 15) | m[j + 4] << 4);
    }
}

/* Of a group; w NULL: none are given. */
static const float *weights_of(const float *w, int first)
{
    return w ? w + first : NULL;
}

/* d, dmin and the scales at b; all codes. */
static void affine_block(const float *x, const float *w, float most, int tries, uint8_t *b, uint8_t *q)
{
    encode_affine fit[GROUPS];
    uint8_t sc[GROUPS], m[GROUPS];
    float scale = 0, minimum = 0;
    for (int j = 0; j < GROUPS; j++) {
        fit[j] = encode_fit_affine(x + (ptrdiff_t)j * GROUP, weights_of(w, j * GROUP), most, tries);
        scale = fmaxf(scale, fit[j].scale);
        minimum = fmaxf(minimum, fit[j].minimum);
    }
    put_f16(b, scale / SIX_BITS);
    put_f16(b + 2, minimum / SIX_BITS);
    for (int j = 0; j < GROUPS; j++) {
        sc[j] = (uint8_t)encode_fit_code(scale > 0 ? SIX_BITS * fit[j].scale / scale : 0, 0, SIX_BITS);
        m[j] = (uint8_t)encode_fit_code(minimum > 0 ? SIX_BITS * fit[j].minimum / minimum : 0, 0, SIX_BITS);
        float d = blocks_half(b) * (float)sc[j], above = blocks_half(b + 2) * (float)m[j];
        for (int i = j * GROUP; i < (j + 1) * GROUP; i++)
            q[i] = (uint8_t)(d > 0 ? encode_fit_code((x[i] + above) / d, 0, most) : 0);
    }
    put_six_bits(sc, m, b + 4);
}

static void put_nibbles(const uint8_t *q, uint8_t *qs)
{
    for (int i = 0; i < VALUES; i += 2 * GROUP)
        for (int l = 0; l < GROUP; l++)
            *qs++ = (uint8_t)((q[i + l] & 15) | q[i + l + GROUP] << 4);
}

void encode_q4_k(const float *x, const float *w, uint8_t *b)
{
    uint8_t q[VALUES];
    affine_block(x, w, 15, 10, b, q);
    put_nibbles(q, b + 16);
}

void encode_q5_k(const float *x, const float *w, uint8_t *b)
{
    uint8_t q[VALUES];
    affine_block(x, w, 31, 7, b, q);
    memset(b + 16, 0, GROUP);
    for (int i = 0; i < VALUES; i++)
        b[16 + i % GROUP] |= (uint8_t)(q[i] >> 4 << i / GROUP);
    put_nibbles(q, b + 48);
}

/* ---- scale * code, of groups of 16 -------------------------------------------------------------------------- */

enum { SMALL = 16, SMALLS = VALUES / SMALL };

/* Codes of 6 bits: the low four in ql, the upper two in qh. */
static void put_parts(const uint8_t *q, uint8_t *ql, uint8_t *qh)
{
    memset(ql, 0, VALUES / 2 + VALUES / 4);
    for (int i = 0; i < VALUES; i++) {
        int h = i / 128, k = i / 32 % 4, l = i % 32;
        ql[64 * h + 32 * (k & 1) + l] |= (uint8_t)((q[i] & 15) << (k < 2 ? 0 : 4));
        qh[32 * h + l] |= (uint8_t)(q[i] >> 4 << 2 * k);
    }
}

void encode_q6_k(const float *x, const float *w, uint8_t *b)
{
    uint8_t q[VALUES], *sc = b + 192, *d = b + 208;
    float scale[SMALLS], far = 0;
    for (int j = 0; j < SMALLS; j++) {
        scale[j] = encode_fit_symmetric(x + (ptrdiff_t)j * SMALL, weights_of(w, j * SMALL), SMALL, 32);
        far = fabsf(scale[j]) > fabsf(far) ? scale[j] : far;
    }
    put_f16(d, far / -128);
    for (int j = 0; j < SMALLS; j++) {
        float code = far != 0 ? encode_fit_code(-128 * scale[j] / far, -128, 127) : 0, unit = blocks_half(d) * code;
        sc[j] = (uint8_t)(int8_t)code;
        for (int i = j * SMALL; i < (j + 1) * SMALL; i++)
            q[i] = (uint8_t)(32 + (unit != 0 ? encode_fit_code(x[i] / unit, -32, 31) : 0));
    }
    put_parts(q, b, b + 128);
}
