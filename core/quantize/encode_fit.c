/* Searching for the scale of a group of values. */
#include "base/clones.h"

#include "quantize/encode_fit.h"

#include <stddef.h>

enum { GROUP = ENCODE_FIT_GROUP };

/* ---- scale * code - minimum ------------------------------------------------------------------------------- */

/* Sums over a group: of weights, and of weights times value x, code q and their products. */
typedef struct moments {
    float w, x, q, qq, qx;
} moments;

/* The best that these codes can do, in the sum of weighed squares. */
static encode_affine affine_best(const moments *s)
{
    float divisor = s->w * s->qq - s->q * s->q;
    float scale = divisor > 0 ? (s->w * s->qx - s->x * s->q) / divisor : 0;
    float above = divisor > 0 ? (s->qq * s->x - s->q * s->qx) / divisor : 0;
    if (divisor > 0 && above <= 0)
        return (encode_affine){scale, -above};
    return (encode_affine){s->qq > 0 ? s->qx / s->qq : 0, 0};
}

/* Codes of x by 1 / id and its minimum, and what is best for them. */
static encode_affine affine_try(const float *x, const float *w, moments *s, encode_affine from, float id, float most,
                                float *error)
{
    float q[GROUP], sum = 0;
    s->q = s->qq = s->qx = 0;
    for (int i = 0; i < GROUP; i++)
        q[i] = encode_fit_code((x[i] + from.minimum) * id, 0, most);
    for (int i = 0; i < GROUP; i++) {
        s->q += w[i] * q[i];
        s->qq += w[i] * q[i] * q[i];
        s->qx += w[i] * q[i] * x[i];
    }
    encode_affine best = affine_best(s);
    for (int i = 0; i < GROUP; i++) {
        float off = best.scale * q[i] - best.minimum - x[i];
        sum += w[i] * off * off;
    }
    *error = sum;
    return best;
}

/* Large values count more than small ones, which count too. */
static void usual_weights(const float *x, float *w)
{
    float squares = 0;
    for (int i = 0; i < GROUP; i++)
        squares += x[i] * x[i];
    for (int i = 0; i < GROUP; i++)
        w[i] = sqrtf(squares / GROUP) + fabsf(x[i]);
}

encode_affine encode_fit_affine(const float *x, const float *w, float most, int tries)
{
    float usual[GROUP], high = x[0], error, least = INFINITY;
    moments s = {0};
    encode_affine from = {0}, best;
    if (!w)
        usual_weights(x, usual);
    w = w ? w : usual;
    for (int i = 0; i < GROUP; i++) {
        s.w += w[i];
        s.x += w[i] * x[i];
        high = x[i] > high ? x[i] : high;
        from.minimum = -x[i] > from.minimum ? -x[i] : from.minimum;
    }
    best = from;
    float range = high + from.minimum;
    for (int t = -tries; t <= tries && range > 0; t++) {
        encode_affine found = affine_try(x, w, &s, from, (most + 0.1f * (float)t) / range, most, &error);
        if (error < least && found.scale > 0) {
            best = found;
            least = error;
        }
    }
    return best;
}

/* ---- scale * code ----------------------------------------------------------------------------------------- */

/* The best scale for the codes that 1 / id gives, and by how much it lessens the sum of weighed squares. */
static float symmetric_try(const float *x, const float *w, int count, float low, float id, float *gain)
{
    float qx = 0, qq = 0;
    for (int i = 0; i < count; i++) {
        float q = encode_fit_code(x[i] * id, -low, low - 1);
        qx += w[i] * q * x[i];
        qq += w[i] * q * q;
    }
    *gain = qq > 0 ? qx * qx / qq : 0;
    return qq > 0 ? qx / qq : 0;
}

/* Without weights every square is weighed by its value's own. */
float encode_fit_symmetric(const float *x, const float *w, int count, float low)
{
    float squares[GROUP], far = x[0], best = 0, scale = 0, gain;
    for (int i = 0; i < count; i++) {
        far = fabsf(x[i]) > fabsf(far) ? x[i] : far;
        squares[i] = x[i] * x[i];
    }
    for (int t = -9; t <= 9 && far != 0; t++) {
        float found = symmetric_try(x, w ? w : squares, count, low, -(low + 0.1f * (float)t) / far, &gain);
        scale = gain > best ? found : scale;
        best = gain > best ? gain : best;
    }
    return scale;
}
