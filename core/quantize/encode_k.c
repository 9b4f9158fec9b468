/* Blocks of 256 values, whose groups have scales of their own, which are codes too. The scale of a group is searched
 * for around the one that its farthest value asks for: for the codes that each of these gives, the best scale follows.
 */
#include "base/clones.h"

#include "base/blocks_types.h"
#include "quantize/encode.h"

#include <math.h>

enum { VALUES = 256 };

static void put_f16(uint8_t *at, float value)
{
    uint16_t bits = tn_f32_to_f16(value);
    at[0] = (uint8_t)bits;
    at[1] = (uint8_t)(bits >> 8);
}

static float clamped(float x, float least, float most)
{
    float rounded = rintf(x);
    return rounded < least ? least : rounded > most ? most : rounded;
}

/* ---- scale * code - minimum, of groups of 32 -------------------------------------------------------------- */

enum { GROUP = 32, GROUPS = VALUES / GROUP, SIX_BITS = 63 };

typedef struct affine {
    float scale, minimum; /* minimum is subtracted, and not below 0                                       */
} affine;

/* Sums over a group: of weights, and of weights times value x, code q and their products. */
typedef struct moments {
    float w, x, q, qq, qx;
} moments;

/* The best that these codes can do, in the sum of weighed squares. */
static affine affine_best(const moments *s)
{
    float divisor = s->w * s->qq - s->q * s->q;
    float scale = divisor > 0 ? (s->w * s->qx - s->x * s->q) / divisor : 0;
    float above = divisor > 0 ? (s->qq * s->x - s->q * s->qx) / divisor : 0;
    if (divisor > 0 && above <= 0)
        return (affine){scale, -above};
    return (affine){s->qq > 0 ? s->qx / s->qq : 0, 0};
}

/* Codes of x by 1 / id and its minimum, and what is best for them. */
static affine affine_try(const float *x, const float *w, moments *s, affine from, float id, float most, float *error)
{
    float q[GROUP], sum = 0;
    s->q = s->qq = s->qx = 0;
    for (int i = 0; i < GROUP; i++)
        q[i] = clamped((x[i] + from.minimum) * id, 0, most);
    for (int i = 0; i < GROUP; i++) {
        s->q += w[i] * q[i];
        s->qq += w[i] * q[i] * q[i];
        s->qx += w[i] * q[i] * x[i];
    }
    affine best = affine_best(s);
    for (int i = 0; i < GROUP; i++) {
        float off = best.scale * q[i] - best.minimum - x[i];
        sum += w[i] * off * off;
    }
    *error = sum;
    return best;
}

/* Large values count more than small ones, which count too. */
static moments affine_weights(const float *x, float *w)
{
    float squares = 0;
    moments s = {0};
    for (int i = 0; i < GROUP; i++)
        squares += x[i] * x[i];
    for (int i = 0; i < GROUP; i++) {
        w[i] = sqrtf(squares / GROUP) + fabsf(x[i]);
        s.w += w[i];
        s.x += w[i] * x[i];
    }
    return s;
}

/* tries: distances from the usual scale, in steps of a tenth of a code over the whole range. */
static affine affine_fit(const float *x, float most, int tries)
{
    float w[GROUP], high = x[0], error, least = INFINITY;
    moments s = affine_weights(x, w);
    affine from = {0}, best;
    for (int i = 0; i < GROUP; i++) {
        high = x[i] > high ? x[i] : high;
        from.minimum = -x[i] > from.minimum ? -x[i] : from.minimum;
    }
    best = from;
    float range = high + from.minimum;
    for (int t = -tries; t <= tries && range > 0; t++) {
        affine found = affine_try(x, w, &s, from, (most + 0.1f * (float)t) / range, most, &error);
        if (error < least && found.scale > 0) {
            best = found;
            least = error;
        }
    }
    return best;
}

/* Scales and minima of 6 bits, in 12 bytes. */
static void put_six_bits(const uint8_t *sc, const uint8_t *m, uint8_t *s)
{
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(sc[j] | sc[j + 4] >> 4 << 6);
        s[j + 4] = (uint8_t)(m[j] | m[j + 4] >> 4 << 6);
        s[j + 8] = (uint8_t)((sc[j + 4] & 15) | m[j + 4] << 4);
    }
}

/* d, dmin and the scales at b; all codes. */
static void affine_block(const float *x, float most, int tries, uint8_t *b, uint8_t *q)
{
    affine fit[GROUPS];
    uint8_t sc[GROUPS], m[GROUPS];
    float scale = 0, minimum = 0;
    for (int j = 0; j < GROUPS; j++) {
        fit[j] = affine_fit(x + (ptrdiff_t)j * GROUP, most, tries);
        scale = fmaxf(scale, fit[j].scale);
        minimum = fmaxf(minimum, fit[j].minimum);
    }
    put_f16(b, scale / SIX_BITS);
    put_f16(b + 2, minimum / SIX_BITS);
    for (int j = 0; j < GROUPS; j++) {
        sc[j] = (uint8_t)clamped(scale > 0 ? SIX_BITS * fit[j].scale / scale : 0, 0, SIX_BITS);
        m[j] = (uint8_t)clamped(minimum > 0 ? SIX_BITS * fit[j].minimum / minimum : 0, 0, SIX_BITS);
        float d = blocks_half(b) * (float)sc[j], above = blocks_half(b + 2) * (float)m[j];
        for (int i = j * GROUP; i < (j + 1) * GROUP; i++)
            q[i] = (uint8_t)(d > 0 ? clamped((x[i] + above) / d, 0, most) : 0);
    }
    put_six_bits(sc, m, b + 4);
}

static void put_nibbles(const uint8_t *q, uint8_t *qs)
{
    for (int i = 0; i < VALUES; i += 2 * GROUP)
        for (int l = 0; l < GROUP; l++)
            *qs++ = (uint8_t)((q[i + l] & 15) | q[i + l + GROUP] << 4);
}

void encode_q4_k(const float *x, uint8_t *b)
{
    uint8_t q[VALUES];
    affine_block(x, 15, 10, b, q);
    put_nibbles(q, b + 16);
}

void encode_q5_k(const float *x, uint8_t *b)
{
    uint8_t q[VALUES];
    affine_block(x, 31, 7, b, q);
    memset(b + 16, 0, GROUP);
    for (int i = 0; i < VALUES; i++)
        b[16 + i % GROUP] |= (uint8_t)(q[i] >> 4 << i / GROUP);
    put_nibbles(q, b + 48);
}

/* ---- scale * code, of groups of 16 -------------------------------------------------------------------------- */

enum { SMALL = 16, SMALLS = VALUES / SMALL };

/* The best scale for the codes that 1 / id gives, and by how much it lessens the sum of squares, each weighed by its
 * value's own. */
static float symmetric_try(const float *x, float id, float *gain)
{
    float qx = 0, qq = 0;
    for (int i = 0; i < SMALL; i++) {
        float q = clamped(x[i] * id, -32, 31), w = x[i] * x[i];
        qx += w * q * x[i];
        qq += w * q * q;
    }
    *gain = qq > 0 ? qx * qx / qq : 0;
    return qq > 0 ? qx / qq : 0;
}

static float symmetric_fit(const float *x)
{
    float far = x[0], best = 0, scale = 0, gain;
    for (int i = 1; i < SMALL; i++)
        far = fabsf(x[i]) > fabsf(far) ? x[i] : far;
    for (int t = -9; t <= 9 && far != 0; t++) {
        float found = symmetric_try(x, -(32 + 0.1f * (float)t) / far, &gain);
        scale = gain > best ? found : scale;
        best = gain > best ? gain : best;
    }
    return scale;
}

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

void encode_q6_k(const float *x, uint8_t *b)
{
    uint8_t q[VALUES], *sc = b + 192, *d = b + 208;
    float scale[SMALLS], far = 0;
    for (int j = 0; j < SMALLS; j++) {
        scale[j] = symmetric_fit(x + (ptrdiff_t)j * SMALL);
        far = fabsf(scale[j]) > fabsf(far) ? scale[j] : far;
    }
    put_f16(d, far / -128);
    for (int j = 0; j < SMALLS; j++) {
        float code = far != 0 ? clamped(-128 * scale[j] / far, -128, 127) : 0, unit = blocks_half(d) * code;
        sc[j] = (uint8_t)(int8_t)code;
        for (int i = j * SMALL; i < (j + 1) * SMALL; i++)
            q[i] = (uint8_t)(32 + (unit != 0 ? clamped(x[i] / unit, -32, 31) : 0));
    }
    put_parts(q, b, b + 128);
}
