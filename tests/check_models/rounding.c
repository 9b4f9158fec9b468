/* Logits in bf16: rounding, or an error? docs/numerics.md derives the numbers. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The logarithm of one token's distance over transformers' spreads by so much. */
static const double SPREAD = 0.35;

/* Distances of each token from the truth, ours and transformers' own, of tokens that are no padding. */
typedef struct distances {
    double *ours, *theirs;
    bool *clean;
    int64_t count, clean_count;
} distances;

static double rms_of(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sqrt(sum / (double)n);
}

static double rms_over(const double *d, const bool *clean, int64_t count)
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++)
        if (clean[i]) {
            sum += d[i] * d[i];
            n++;
        }
    return n ? sqrt(sum / (double)n) : 0;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The element at part of count, sorted: 0.5 is the median. d is sorted. A NaN is larger than all others. */
static double quantile(double *d, int64_t count, double part)
{
    for (int64_t i = 0; i < count; i++)
        d[i] = isnan(d[i]) ? INFINITY : d[i];
    qsort(d, (size_t)count, sizeof *d, compare_doubles);
    return d[(int64_t)((double)(count - 1) * part)];
}

static void measure(const golden *g, const run_results *r, const near_tokens *n, bool rounds, distances *d)
{
    int64_t width = g->logits.shape[2];
    const float *truth = g->truth.data, *bf16 = g->bf16.data, *act = g->act.data;
    for (int64_t i = 0; i < n->positions; i++) {
        if (golden_masked(g, i))
            continue;
        double theirs = rms_of(bf16 + i * width, truth + i * width, width);
        d->ours[d->count] = rms_of(r->logits + i * width, truth + i * width, width);
        d->theirs[d->count] = rounds ? hypot(theirs, rms_of(act + i * width, truth + i * width, width)) : theirs;
        d->clean_count += d->clean[d->count] = n->routers == 0 || n->clean[i];
        d->count++;
    }
}

/* Tokens that are further off than roundings alone bring them; what is no number, near another choice or not, counts
 * among the clean ones. */
static int64_t count_off(const distances *d, double median, bool clean)
{
    int64_t off = 0;
    for (int64_t i = 0; i < d->count; i++) {
        double most = 8 * (d->theirs[i] > median ? d->theirs[i] : median);
        off += (d->clean[i] || !isfinite(d->ours[i])) == clean && !(d->ours[i] <= most);
    }
    return off;
}

static bool cannot_say(char text[static 192], const char *why)
{
    snprintf(text, 192, "%s", why);
    return false;
}

/* Where experts are picked: clean tokens as everywhere, one by one, too; the others by what most of them do. */
static bool routed_is_right(const near_tokens *n, distances *d, double ratio, char text[static 192])
{
    double factor = d->clean_count ? fmax(1.5, exp(3 * SPREAD / sqrt((double)d->clean_count))) : 1.5;
    double *ours = malloc((size_t)d->count * sizeof *ours), *theirs = malloc((size_t)d->count * sizeof *theirs);
    if (!ours || !theirs) {
        free(ours);
        free(theirs);
        return cannot_say(text, "out of memory");
    }
    for (int64_t i = 0; i < d->count; i++) {
        ours[i] = d->ours[i];
        theirs[i] = d->theirs[i];
    }
    double median = quantile(theirs, d->count, 0.5), half = quantile(ours, d->count, 0.5) / median;
    double most = quantile(ours, d->count, 0.9) / quantile(theirs, d->count, 0.9);
    free(ours);
    free(theirs);
    int64_t off = count_off(d, median, false), wrong = count_off(d, median, true);
    int64_t may = 2 + (int64_t)(0.1 * (double)(d->count * n->routers));
    char clean[96];
    snprintf(clean, sizeof clean, "none of %lld tokens clean", (long long)d->count);
    if (d->clean_count)
        snprintf(clean, sizeof clean, "%.2f times transformers' over %lld of %lld tokens (bound %.2f)", ratio,
                 (long long)d->clean_count, (long long)d->count, factor);
    snprintf(text, 192, "%s, median %.2f, ninth decile %.2f, %lld far off (bound %lld)", clean, half, most,
             (long long)(off + wrong), (long long)may);
    return ratio <= factor && half <= 1.5 && wrong == 0 && off <= may && (d->count < 64 || most <= 3);
}

bool rounding_is_right(const golden *g, const run_results *r, const near_tokens *n, bool rounds, char text[static 192])
{
    size_t positions = (size_t)n->positions;
    distances d = {calloc(positions, sizeof(double)), calloc(positions, sizeof(double)), calloc(positions, 1), 0, 0};
    bool right = d.ours && d.theirs && d.clean;
    if (right)
        measure(g, r, n, rounds, &d);
    double ours = rms_over(d.ours, d.clean, d.count), theirs = rms_over(d.theirs, d.clean, d.count);
    double ratio = ours == 0 ? 0 : ours / theirs;
    if (!right)
        cannot_say(text, "out of memory");
    else if (d.count == 0)
        right = cannot_say(text, "no token counts");
    else if (n->routers > 0)
        right = routed_is_right(n, &d, ratio, text);
    else {
        right = ours <= 1.5 * theirs;
        snprintf(text, 192, "rms error %.3e, bound %.3e (%.2f times transformers')", ours, 1.5 * theirs, ratio);
    }
    free(d.ours);
    free(d.theirs);
    free(d.clean);
    return right;
}
