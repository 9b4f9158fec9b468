/* Resizing bytes with antialiasing. A slow twin without fixed point stands in tests/pictures. */
#include "pictures/pictures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- filters, of the distance in pixels of the smaller picture ---- */

static double bicubic(double x)
{
    static const double a = -0.5;
    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double bilinear(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

static double sinc(double x)
{
    x *= M_PI;
    return x == 0 ? 1 : sin(x) / x;
}

static double lanczos(double x)
{
    return x > -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0;
}

static const struct {
    double (*weight)(double x);
    double reach; /* 0: the nearest pixel                                                              */
} filters[] = {[RESIZE_LANCZOS] = {lanczos, 3}, [RESIZE_BILINEAR] = {bilinear, 1}, [RESIZE_BICUBIC] = {bicubic, 2}};

/* ---- weights ---- */

/* What each of count results is made of. */
typedef struct taps {
    int64_t count, most;
    int64_t *first, *length;
    int16_t *weight; /* [count, most], times 2^bits                                                    */
    double *exact;
    int bits;
} taps;

static void taps_free(taps *t)
{
    free(t->first);
    free(t->length);
    free(t->weight);
    free(t->exact);
}

static void find_taps(taps *t, int64_t in, resize_filter filter)
{
    double scale = (double)in / (double)t->count, wide = scale > 1 ? scale : 1, largest = 0;
    double reach = filters[filter].reach * wide;
    for (int64_t i = 0; i < t->count; i++) {
        double centre = scale * ((double)i + 0.5), sum = 0, *w = t->exact + i * t->most;
        int64_t from = (int64_t)(centre - reach + 0.5), to = (int64_t)(centre + reach + 0.5);
        from = from > 0 ? from : 0;
        to = to < in ? to : in;
        t->first[i] = from;
        t->length[i] = to - from < t->most ? to - from : t->most;
        for (int64_t j = 0; j < t->length[i]; j++)
            sum += w[j] = filters[filter].weight(((double)(from + j) - centre + 0.5) / wide);
        for (int64_t j = 0; j < t->length[i]; j++) {
            w[j] = sum != 0 ? w[j] / sum : w[j];
            largest = fmax(largest, w[j]);
        }
    }
    /* As many bits as the largest weight leaves in 16. */
    for (t->bits = 0; t->bits < 22 && (int)(0.5 + largest * (double)(1 << (t->bits + 1))) < 1 << 15;)
        t->bits++;
    for (int64_t i = 0; i < t->count * t->most; i++) {
        double value = t->exact[i] * (double)(1 << t->bits);
        t->weight[i] = (int16_t)(value < 0 ? value - 0.5 : value + 0.5);
    }
}

static bool make_taps(taps *t, int64_t in, int64_t out, resize_filter filter)
{
    double scale = (double)in / (double)out;
    *t = (taps){.count = out, .most = (int64_t)ceil(filters[filter].reach * (scale > 1 ? scale : 1)) * 2 + 1};
    t->first = calloc((size_t)out, sizeof *t->first);
    t->length = calloc((size_t)out, sizeof *t->length);
    t->weight = calloc((size_t)(out * t->most), sizeof *t->weight);
    t->exact = calloc((size_t)(out * t->most), sizeof *t->exact);
    if (!t->first || !t->length || !t->weight || !t->exact)
        return false;
    find_taps(t, in, filter);
    return true;
}

/* ---- passes ---- */

static uint8_t clamped(int32_t sum, int bits)
{
    sum >>= bits;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

static void along_lines(const picture *from, const taps *t, const picture *to)
{
    for (int64_t y = 0; y < from->height; y++) {
        const uint8_t *line = from->rgb + y * from->width * 3;
        uint8_t *out = to->rgb + y * to->width * 3;
        for (int64_t x = 0; x < to->width; x++) {
            const int16_t *w = t->weight + x * t->most;
            const uint8_t *at = line + t->first[x] * 3;
            int32_t sum[3] = {1 << (t->bits - 1), 1 << (t->bits - 1), 1 << (t->bits - 1)};
            for (int64_t j = 0; j < t->length[x]; j++)
                for (int c = 0; c < 3; c++)
                    sum[c] += w[j] * at[3 * j + c];
            for (int c = 0; c < 3; c++)
                out[3 * x + c] = clamped(sum[c], t->bits);
        }
    }
}

static void along_columns(const picture *from, const taps *t, const picture *to)
{
    int64_t width = from->width * 3;
    for (int64_t y = 0; y < to->height; y++) {
        const int16_t *w = t->weight + y * t->most;
        for (int64_t x = 0; x < width; x++) {
            const uint8_t *at = from->rgb + t->first[y] * width + x;
            int32_t sum = 1 << (t->bits - 1);
            for (int64_t j = 0; j < t->length[y]; j++)
                sum += w[j] * at[j * width];
            to->rgb[y * width + x] = clamped(sum, t->bits);
        }
    }
}

static void nearest(const picture *from, const picture *to)
{
    for (int64_t y = 0; y < to->height; y++)
        for (int64_t x = 0; x < to->width; x++) {
            int64_t line = y * from->height / to->height, column = x * from->width / to->width;
            memcpy(to->rgb + (y * to->width + x) * 3, from->rgb + (line * from->width + column) * 3, 3);
        }
}

static tn_status no_memory(tn_error *err, int64_t height, int64_t width)
{
    return tn_fail(err, TN_E_MEMORY, "picture", "out of memory for %lld by %lld pixels", (long long)width,
                   (long long)height);
}

static bool allocate(picture *p, int64_t height, int64_t width)
{
    *p = (picture){.height = height, .width = width, .rgb = malloc((size_t)(height * width) * 3)};
    return p->rgb != NULL;
}

/* One axis, or a copy where its length stays. */
static bool pass(const picture *from, int64_t length, bool lines, resize_filter filter, picture *to)
{
    taps t = {0};
    int64_t now = lines ? from->width : from->height;
    bool ok = allocate(to, lines ? from->height : length, lines ? length : from->width);
    if (ok && now == length) {
        memcpy(to->rgb, from->rgb, (size_t)(from->height * from->width) * 3);
        return true;
    }
    ok = ok && make_taps(&t, now, length, filter);
    if (ok)
        (lines ? along_lines : along_columns)(from, &t, to);
    taps_free(&t);
    return ok;
}

tn_status resize_picture(const picture *from, int64_t height, int64_t width, resize_filter filter, picture *to,
                         tn_error *err)
{
    picture between = {0};
    *to = (picture){0};
    bool ok;
    if (filter == RESIZE_NEAREST) {
        ok = allocate(to, height, width);
        if (ok)
            nearest(from, to);
    } else {
        ok = pass(from, width, true, filter, &between) && pass(&between, height, false, filter, to);
    }
    pictures_release(&between);
    if (ok)
        return TN_OK;
    pictures_release(to);
    return no_memory(err, height, width);
}
