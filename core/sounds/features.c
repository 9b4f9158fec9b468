/* Log-mel features of a sound, in double precision as far as the powers of frequencies go. */
#include "sounds/sounds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct complex_number {
    double re, im;
} complex_number;

/* A triangle's weights, of the frequencies from first on. */
typedef struct triangle {
    int64_t first, count;
    const float *weight;
} triangle;

struct features_plan {
    int64_t window, hop, bins;
    double *shape;         /* [window]: hann                                                            */
    complex_number *turns; /* [window]: exp(-2 pi i k / window)                                          */
    triangle *mel;         /* [bins]                                                                    */
    float *weights;        /* theirs                                                                    */
};

/* ---- tables ----------------------------------------------------------------------------------------- */

static int64_t factor_of(int64_t n)
{
    return n % 5 == 0 ? 5 : n % 3 == 0 ? 3 : 2;
}

bool features_window(int64_t window)
{
    if (window < FEATURES_LEAST_WINDOW || window > FEATURES_MOST_WINDOW || window % 2)
        return false;
    while (window % factor_of(window) == 0 && window > 1)
        window /= factor_of(window);
    return window == 1;
}

/* Slaney's scale: even steps up to 1000 Hz, even ratios above. */
static double mel_of(double hertz)
{
    return hertz < 1000 ? 3 * hertz / 200 : 15 + log(hertz / 1000) * 27 / log(6.4);
}

static double hertz_of(double mel)
{
    return mel < 15 ? 200 * mel / 3 : 1000 * exp((mel - 15) * log(6.4) / 27);
}

/* A triangle between its neighbours' peaks, whose area is the same for all. weight: room for all frequencies. */
static triangle make_triangle(const features_plan *p, int64_t bin, double rate, float *weight)
{
    int64_t half = p->window / 2;
    double most = mel_of(8000), peak[3];
    triangle t = {.weight = weight};
    for (int i = 0; i < 3; i++)
        peak[i] = hertz_of(most * (double)(bin + i) / (double)(p->bins + 1));
    for (int64_t k = 0; k <= half; k++) {
        double hertz = floor(rate / 2) * (double)k / (double)half;
        double up = (hertz - peak[0]) / (peak[1] - peak[0]), down = (peak[2] - hertz) / (peak[2] - peak[1]);
        if (fmin(up, down) <= 0)
            continue;
        t.first = t.count ? t.first : k;
        weight[t.count++] = (float)(fmin(up, down) * 2 / (peak[2] - peak[0]));
    }
    return t;
}

features_plan *features_open(int64_t window, int64_t hop, int64_t bins, int64_t rate, tn_error *err)
{
    features_plan *p = calloc(1, sizeof *p);
    if (p) {
        *p = (features_plan){.window = window,
                             .hop = hop,
                             .bins = bins,
                             .shape = malloc((size_t)window * sizeof *p->shape),
                             .turns = malloc((size_t)window * sizeof *p->turns),
                             .mel = malloc((size_t)bins * sizeof *p->mel),
                             .weights = malloc((size_t)(bins * (window / 2 + 1)) * sizeof *p->weights)};
    }
    if (!p || !p->shape || !p->turns || !p->mel || !p->weights) {
        tn_fail(err, TN_E_MEMORY, "sounds", "out of memory for tables of %lld frequencies", (long long)window);
        features_close(p);
        return NULL;
    }
    for (int64_t i = 0; i < window; i++) {
        double angle = 2 * M_PI * (double)i / (double)window;
        p->shape[i] = 0.5 - 0.5 * cos(angle);
        p->turns[i] = (complex_number){cos(angle), -sin(angle)};
    }
    for (int64_t b = 0; b < bins; b++)
        p->mel[b] = make_triangle(p, b, (double)rate, p->weights + b * (window / 2 + 1));
    return p;
}

void features_close(features_plan *plan)
{
    if (!plan)
        return;
    free(plan->shape);
    free(plan->turns);
    free(plan->mel);
    free(plan->weights);
    free(plan);
}

/* ---- frequencies -------------------------------------------------------------------------------------- */

/* The transform of n numbers that lie step apart, step being window / n: those of its parts of every factor-th one, put
 * together. */
static void transform(const features_plan *p, int64_t n, int64_t step, const complex_number *from, complex_number *to)
{
    if (n == 1) {
        *to = *from;
        return;
    }
    int64_t factor = factor_of(n), part = n / factor;
    for (int64_t q = 0; q < factor; q++)
        transform(p, part, step * factor, from + q * step, to + q * part);
    for (int64_t k = 0; k < part; k++) {
        complex_number turned[5];
        for (int64_t q = 0; q < factor; q++) {
            complex_number x = to[q * part + k], w = p->turns[q * k * step];
            turned[q] = (complex_number){x.re * w.re - x.im * w.im, x.re * w.im + x.im * w.re};
        }
        for (int64_t j = 0; j < factor; j++) {
            complex_number sum = turned[0];
            for (int64_t q = 1; q < factor; q++) {
                complex_number w = p->turns[j * q % factor * (part * step)];
                sum.re += turned[q].re * w.re - turned[q].im * w.im;
                sum.im += turned[q].re * w.im + turned[q].im * w.re;
            }
            to[j * part + k] = sum;
        }
    }
}

/* The sample at i of length, before the first and behind the last of which they come back. */
static double sample_at(const sound *s, int64_t length, int64_t i)
{
    i = i < 0 ? -i : i >= length ? 2 * (length - 1) - i : i;
    return i < s->count ? (double)s->samples[i] : 0;
}

/* What a call works on. */
typedef struct features_work {
    const features_plan *plan;
    const sound *s;
    int64_t length;
    complex_number *frame, *made; /* [window]                                                           */
    double *power[2];             /* [window / 2 + 1]                                                   */
} features_work;

/* Powers of the frequencies of two frames: one is the real part of what is transformed, the other the imaginary. */
static void transform_frames(const features_work *w, int64_t column)
{
    const features_plan *p = w->plan;
    int64_t n = p->window, begin = column * p->hop - n / 2;
    for (int64_t i = 0; i < n; i++)
        w->frame[i] = (complex_number){p->shape[i] * sample_at(w->s, w->length, begin + i),
                                       p->shape[i] * sample_at(w->s, w->length, begin + p->hop + i)};
    transform(p, n, 1, w->frame, w->made);
    for (int64_t k = 0; k <= n / 2; k++) {
        complex_number z = w->made[k], y = w->made[k ? n - k : 0];
        double re[2] = {z.re + y.re, z.im + y.im}, im[2] = {z.im - y.im, y.re - z.re};
        for (int i = 0; i < 2; i++)
            w->power[i][k] = (re[i] * re[i] + im[i] * im[i]) / 4;
    }
}

static float bin_of(const triangle *t, const double *power)
{
    double sum = 0;
    for (int64_t k = 0; k < t->count; k++)
        sum += (double)t->weight[k] * power[t->first + k];
    return (float)log10(fmax(sum, 1e-10));
}

/* Frames that hear something of the sound; the others are -10 throughout. */
static int64_t columns_heard(const features_work *w)
{
    int64_t n = w->plan->window / 2, all = w->length / w->plan->hop;
    int64_t heard = (w->s->count + n) / w->plan->hop + 1;
    return w->s->count + n < w->length && heard < all ? heard : all;
}

static void make(const features_work *w, int64_t columns, float *out, int64_t stride)
{
    const features_plan *p = w->plan;
    int64_t heard = columns_heard(w);
    float loudest = -10;
    for (int64_t column = 0; column < heard; column += 2) {
        transform_frames(w, column);
        for (int64_t i = column; i < column + 2 && i < heard; i++)
            for (int64_t b = 0; b < p->bins; b++) {
                float value = bin_of(&p->mel[b], w->power[i - column]);
                loudest = value > loudest ? value : loudest;
                if (i < columns)
                    out[b * stride + i] = value;
            }
    }
    for (int64_t b = 0; b < p->bins; b++)
        for (int64_t i = 0; i < columns; i++) {
            float value = i < heard ? out[b * stride + i] : -10;
            out[b * stride + i] = ((value > loudest - 8 ? value : loudest - 8) + 4) / 4;
        }
}

tn_status features_make(const features_plan *plan, const sound *s, int64_t length, int64_t columns, float *out,
                        int64_t stride, tn_error *err)
{
    size_t n = (size_t)plan->window;
    complex_number *numbers = calloc(2 * n, sizeof *numbers);
    double *powers = malloc((n + 2) * sizeof *powers);
    if (numbers && powers) {
        const features_work w = {.plan = plan,
                                 .s = s,
                                 .length = length,
                                 .frame = numbers,
                                 .made = numbers + n,
                                 .power = {powers, powers + n / 2 + 1}};
        make(&w, columns, out, stride);
    }
    tn_status status = numbers && powers ? TN_OK : tn_fail(err, TN_E_MEMORY, "sounds", "out of memory");
    free(numbers);
    free(powers);
    return status;
}
