/* Blocks of 32 values: a scale of the block, and codes that are the nearest to it. Every step rounds to f32 where
 * gguf-py does, so that the bits are the same. Of types that gguf-py writes, scales are searched for with weights only.
 */
#include "base/clones.h"

#include "base/blocks_types.h"
#include "quantize/encode.h"
#include "quantize/encode_fit.h"

#include <math.h>

enum { VALUES = 32, HALF = 16 };

static void put_f16(uint8_t *at, float value)
{
    uint16_t bits = tn_f32_to_f16(value);
    at[0] = (uint8_t)bits;
    at[1] = (uint8_t)(bits >> 8);
}

/* A scale below the normal numbers is 0 as f16. */
static float inverse(float d)
{
    return fabsf(d) < 0x1p-126f ? 0 : 1 / d;
}

/* The first of the values that are farthest from 0. */
static float farthest(const float *x)
{
    float found = x[0];
    for (int i = 1; i < VALUES; i++)
        found = fabsf(x[i]) > fabsf(found) ? x[i] : found;
    return found;
}

static void put_codes(const uint8_t *q, uint8_t *qs)
{
    for (int i = 0; i < HALF; i++)
        qs[i] = (uint8_t)((q[i] & 15) | q[i + HALF] << 4);
}

static void put_fifth_bits(const uint8_t *q, uint8_t *qh)
{
    uint32_t bits = 0;
    for (int i = 0; i < VALUES; i++)
        bits |= (uint32_t)(q[i] >> 4) << i;
    for (int i = 0; i < 4; i++)
        qh[i] = (uint8_t)(bits >> 8 * i);
}

/* (x - from) id + middle, cut to a code. */
static void find_codes(const float *x, float from, float id, float middle, int most, uint8_t *q)
{
    for (int i = 0; i < VALUES; i++) {
        int code = (int)((x[i] - from) * id + middle);
        q[i] = (uint8_t)(code < most ? code : most);
    }
}

/* d and codes around middle. The farthest value gets the code 0, which is the only one so far from the middle; with
 * weights the scale is searched for, and codes are those of what f16 makes of it. */
static void put_symmetric(const float *x, const float *w, int middle, uint8_t *b, uint8_t *q)
{
    float low = (float)middle, d = w ? encode_fit_symmetric(x, w, VALUES, low) : farthest(x) / -low;
    put_f16(b, d);
    if (!w) {
        find_codes(x, 0, inverse(d), low + 0.5f, 2 * middle - 1, q);
        return;
    }
    float id = inverse(blocks_half(b));
    for (int i = 0; i < VALUES; i++)
        q[i] = (uint8_t)(encode_fit_code(x[i] * id, -low, low - 1) + low);
}

void encode_q4_0(const float *x, const float *w, uint8_t *b)
{
    uint8_t q[VALUES];
    put_symmetric(x, w, 8, b, q);
    put_codes(q, b + 2);
}

void encode_q5_0(const float *x, const float *w, uint8_t *b)
{
    uint8_t q[VALUES];
    put_symmetric(x, w, 16, b, q);
    put_fifth_bits(q, b + 2);
    put_codes(q, b + 6);
}

/* d, m and codes by a search. */
static void put_affine(const float *x, const float *w, uint8_t *b, uint8_t *q)
{
    encode_affine fit = encode_fit_affine(x, w, 31, 9);
    put_f16(b, fit.scale);
    put_f16(b + 2, -fit.minimum);
    float id = inverse(blocks_half(b)), least = blocks_half(b + 2);
    for (int i = 0; i < VALUES; i++)
        q[i] = (uint8_t)encode_fit_code((x[i] - least) * id, 0, 31);
}

static void put_range(const float *x, uint8_t *b, uint8_t *q)
{
    float least = x[0], most = x[0];
    for (int i = 1; i < VALUES; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
    }
    float d = (most - least) / 31;
    find_codes(x, least, inverse(d), 0.5f, 31, q);
    put_f16(b, d);
    put_f16(b + 2, least);
}

void encode_q5_1(const float *x, const float *w, uint8_t *b)
{
    uint8_t q[VALUES];
    if (w)
        put_affine(x, w, b, q);
    else
        put_range(x, b, q);
    put_fifth_bits(q, b + 4);
    put_codes(q, b + 8);
}

/* Halves are rounded away from 0. Weights would change next to nothing. */
void encode_q8_0(const float *x, const float *w, uint8_t *b)
{
    (void)w;
    float d = fabsf(farthest(x)) / 127, id = inverse(d);
    put_f16(b, d);
    for (int i = 0; i < VALUES; i++)
        b[2 + i] = (uint8_t)(int8_t)roundf(x[i] * id);
}

/* ---- types whose codes name levels ---------------------------------------------------------------------- */

/* Of levels of equal distance the one of the lowest code. */
static uint8_t nearest(const int8_t *levels, float d, float x)
{
    int best = 0;
    for (int i = 1; i < 16; i++)
        best = fabsf(d * (float)levels[i] - x) < fabsf(d * (float)levels[best] - x) ? i : best;
    return (uint8_t)best;
}

/* Codes by the scale 2^(e - 128) of doubled levels, and their weighed squares. */
static float find_levels(const int8_t *levels, const float *x, const float *w, int e, uint8_t *q)
{
    float d = ldexpf(1, e - 128), sum = 0;
    for (int i = 0; i < VALUES; i++) {
        q[i] = nearest(levels, d, x[i]);
        float off = d * (float)levels[q[i]] - x[i];
        sum += w ? w[i] * off * off : 0;
    }
    return sum;
}

/* The scale's exponent makes the farthest value 4 to 8 of its units; with weights its neighbours are tried, too. */
void encode_mxfp4(const float *x, const float *w, uint8_t *b)
{
    static const int8_t doubled[16] = {BLOCKS_E2M1_DOUBLED};
    uint8_t q[VALUES];
    float most = fabsf(farthest(x)), exponent = most > 0 ? floorf(log2f(most)) + 125 : 0, least = INFINITY;
    int usual = exponent > 0 ? (int)exponent : 0, e = usual;
    for (int t = usual > 0 ? usual - 1 : 0; w && t <= usual + 1; t++) {
        float error = find_levels(doubled, x, w, t, q);
        e = error < least ? t : e;
        least = error < least ? error : least;
    }
    find_levels(doubled, x, NULL, e, q);
    b[0] = (uint8_t)e;
    put_codes(q, b + 1);
}

/* The code of the level nearest to x, by halving. */
static int level_of(const int8_t *levels, float x)
{
    int low = 0;
    for (int step = 8; step > 0; step /= 2)
        low = (float)(levels[low + step - 1] + levels[low + step]) < 2 * x ? low + step : low;
    return low;
}

/* How well values in units of d = 1 / id are levels: the scale that makes the sum of squares, each weighed by w or by
 * its value's own square, the least, and by how much that scale lessens it. */
static float level_scale(const int8_t *levels, const float *x, const float *w, float id, float *gain)
{
    float lx = 0, ll = 0;
    for (int i = 0; i < VALUES; i++) {
        float level = levels[level_of(levels, x[i] * id)], weight = w ? w[i] : x[i] * x[i];
        lx += weight * level * x[i];
        ll += weight * level * level;
    }
    *gain = ll > 0 ? lx * lx / ll : 0;
    return ll > 0 ? lx / ll : 0;
}

/* The farthest value is tried as levels around the lowest and the highest. */
void encode_iq4_nl(const float *x, const float *w, uint8_t *b)
{
    static const int8_t levels[16] = {BLOCKS_IQ4_LEVELS};
    uint8_t q[VALUES];
    float far = farthest(x), best = 0, d = 0, gain;
    for (int t = -7; t <= 7 && far != 0; t++)
        for (int end = 0; end < 16; end += 15) {
            float scale = level_scale(levels, x, w, ((float)levels[end] + (float)t) / far, &gain);
            d = gain > best ? scale : d;
            best = gain > best ? gain : best;
        }
    put_f16(b, d);
    for (int i = 0; i < VALUES; i++)
        q[i] = (uint8_t)level_of(levels, x[i] * inverse(blocks_half(b)));
    put_codes(q, b + 2);
}
