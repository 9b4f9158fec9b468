/* Elements against eager's: what a row is measured by, and what counts as an end of a type's range. */
#include "check/compare_row.h"

#include "base/convert.h"
#include "base/tensor.h"
#include "base/text.h"
#include "check/fence.h"

#include <float.h>
#include <math.h>
#include <tenon/services.h>

enum { BLOCK = 256, LANES = 16 };

/* Large tensors are gone through by the team, in parts whose number does not depend on it: what is found does not
 * either. */
enum { PARTS = 16, LARGE_TENSOR = 1 << 18 };

static int64_t part_begin(int64_t rows, int64_t part)
{
    return rows * part / PARTS;
}

/* What a row of this size is measured by: where its type ends numbers are as far apart as those above it, so rounding
 * there is no smaller, and a row of zeros may be one whose numbers were rounded away. f32 and bf16 end with the range
 * of f32, whose end is met by what sums and products hold on the way: it is rounded there, or, by the dot products of
 * bf16, taken for zero, each of the terms of a sum. 2^-100 is so far above the smallest normal number, 2^-126, that a
 * few ulps of it cover a million of those. */
double compare_size(const compare_place *at, double largest)
{
    return fmax(largest, at->site == TN_F16 ? 0x1p-14 : 0x1p-100);
}

bool compare_never_written(const char *element, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)element[i] != FENCE_FILL)
            return false;
    return true;
}

/* Zeros behind n elements of a block, to whole lanes; returns how many there are then. */
static int64_t fill_lanes(float *block, int64_t n)
{
    while (n % LANES != 0)
        block[n++] = 0;
    return n;
}

static float largest_lane(const float lane[LANES])
{
    float largest = 0;
    for (int64_t l = 0; l < LANES; l++)
        largest = lane[l] > largest ? lane[l] : largest;
    return largest;
}

double compare_row_max(const char *row, tn_dtype dtype, int64_t width)
{
    size_t size = tn_dtype_size(dtype);
    float block[BLOCK], largest[LANES] = {0};
    for (int64_t i = 0; i < width; i += BLOCK) {
        int64_t n = width - i < BLOCK ? width - i : BLOCK;
        convert_to_f32(row + (size_t)i * size, dtype, block, n);
        n = fill_lanes(block, n);
        for (int64_t j = 0; j < n; j += LANES)
            for (int64_t l = 0; l < LANES; l++) {
                float size_of = fabsf(block[j + l]), finite = size_of <= FLT_MAX ? size_of : 0;
                largest[l] = finite > largest[l] ? finite : largest[l];
            }
    }
    return (double)largest_lane(largest);
}

/* The root mean square of the finite elements. */
double compare_row_rms(const char *row, tn_dtype dtype, int64_t width)
{
    size_t size = tn_dtype_size(dtype);
    float block[BLOCK];
    double sum = 0;
    for (int64_t i = 0; i < width; i += BLOCK) {
        int64_t n = width - i < BLOCK ? width - i : BLOCK;
        convert_to_f32(row + (size_t)i * size, dtype, block, n);
        for (int64_t j = 0; j < n; j++)
            sum += fabsf(block[j]) <= FLT_MAX ? (double)block[j] * (double)block[j] : 0;
    }
    return width > 0 ? sqrt(sum / (double)width) : 0;
}

typedef struct max_pass {
    const tn_tensor *t;
    int64_t rows;
    double largest[PARTS];
} max_pass;

static void max_parts(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    max_pass *m = ctx;
    (void)thread;
    for (int64_t part = begin; part < end; part++)
        for (int64_t row = part_begin(m->rows, part); row < part_begin(m->rows, part + 1); row++)
            m->largest[part] = fmax(m->largest[part],
                                    compare_row_max(tensor_row(m->t, row), m->t->dtype, m->t->shape[m->t->ndim - 1]));
}

double compare_tensor_max(const tn_tensor *t)
{
    int64_t width = t->shape[t->ndim - 1];
    max_pass m = {.t = t, .rows = width > 0 ? tn_tensor_count(t) / width : 0};
    double largest = 0;
    if (m.rows * width < LARGE_TENSOR)
        max_parts(&m, 0, PARTS, 0);
    else
        tn_parallel_for(PARTS, 1, max_parts, &m);
    for (int64_t part = 0; part < PARTS; part++)
        largest = fmax(largest, m.largest[part]);
    return largest;
}

/* An infinity stands right behind the largest number of its type: results that differ by their rounding may lie on
 * either side of it. */
static double place_of(float x, tn_dtype dtype)
{
    return isinf(x) ? copysign(dtype == TN_F16 ? 0x1p16 : 0x1p128, (double)x) : (double)x;
}

bool compare_is_large(const compare_place *at, double x)
{
    return !(fabs(x) <= (at->site == TN_F16 ? 0x1p12 : 0x1p64));
}

bool compare_is_small(const compare_place *at)
{
    return at->site == TN_F16 && at->size <= 0x1p-6;
}

bool compare_at_an_end(const compare_place *at, float want, float got)
{
    return compare_is_large(at, (double)want) || compare_is_large(at, (double)got) || compare_is_small(at);
}

void compare_worse(compare_figures *to, const compare_figures *one)
{
    double ulps = one->ulps > to->ulps ? one->ulps : to->ulps;
    if (one->worst > to->worst)
        *to = *one;
    to->ulps = ulps;
}

/* An element against eager's. A NaN is right only where eager has one. */
void compare_element(const compare_place *at, int64_t column, float want, float got, bool unwritten, compare_figures *f)
{
    if ((isnan(want) && isnan(got) && !unwritten) || want == got)
        return;
    double distance = fabs(place_of(got, at->dtype) - place_of(want, at->dtype));
    double ulps = isfinite(distance) && at->unit > 0 ? distance / at->unit : INFINITY;
    double worst = at->ulps > 0 ? ulps / at->ulps : INFINITY;
    if (at->doubtful && worst > 1 && !unwritten && compare_at_an_end(at, want, got)) {
        *at->doubtful = true;
        return;
    }
    if (ulps > f->ulps)
        f->ulps = ulps;
    if (worst <= f->worst)
        return;
    f->worst = worst;
    if (unwritten)
        text_cut(f->detail, sizeof f->detail, "%s, row %lld, element %lld was never written", at->name,
                 (long long)at->row, (long long)column);
    else
        text_cut(f->detail, sizeof f->detail, "%s, row %lld, element %lld is %.6g, eager has %.6g", at->name,
                 (long long)at->row, (long long)column, (double)got, (double)want);
}

/* Most blocks hold nothing worse than what was met already. Both have room for whole lanes. */
static bool is_no_worse(const compare_place *at, float *a, float *b, int64_t n, const compare_figures *f)
{
    float lane[LANES] = {0}, sum[LANES] = {0}, any = 0;
    fill_lanes(a, n);
    n = fill_lanes(b, n);
    for (int64_t j = 0; j < n; j += LANES)
        for (int64_t l = 0; l < LANES; l++) {
            float distance = fabsf(b[j + l] - a[j + l]);
            lane[l] = distance > lane[l] ? distance : lane[l];
            sum[l] += distance; /* a NaN, where there is one */
        }
    for (int64_t l = 0; l < LANES; l++)
        any += sum[l];
    if (!isfinite(any))
        return false;
    float largest = largest_lane(lane);
    /* In the same units as compare_element, with room for float's rounding of the distance. */
    double ulps = at->unit > 0 ? 1.000001 * (double)largest / at->unit : largest > 0 ? INFINITY : 0;
    return ulps <= f->ulps && (at->ulps > 0 ? ulps / at->ulps : ulps) <= f->worst;
}

void compare_row(const compare_place *at, const char *want, const char *got, int64_t width, compare_figures *f)
{
    size_t size = tn_dtype_size(at->dtype);
    float a[BLOCK], b[BLOCK];
    for (int64_t i = 0; i < width; i += BLOCK) {
        int64_t n = width - i < BLOCK ? width - i : BLOCK;
        convert_to_f32(want + (size_t)i * size, at->dtype, a, n);
        convert_to_f32(got + (size_t)i * size, at->dtype, b, n);
        if (is_no_worse(at, a, b, n, f))
            continue;
        for (int64_t j = 0; j < n; j++)
            compare_element(at, i + j, a[j], b[j],
                            isnan(b[j]) && compare_never_written(got + (size_t)(i + j) * size, size), f);
    }
}

typedef struct rows_pass {
    const tn_tensor *want, *got;
    const compare_place *like;
    const bool *skip;
    int64_t rows;
    compare_figures figures[PARTS];
    bool doubtful[PARTS];
} rows_pass;

static void compare_one_row(const rows_pass *p, int64_t row, bool *doubtful, compare_figures *f)
{
    int64_t width = p->want->shape[p->want->ndim - 1];
    const char *a = tensor_row(p->want, row);
    compare_place at = *p->like;
    at.row = row;
    at.dtype = p->want->dtype;
    at.doubtful = at.doubtful ? doubtful : NULL;
    double least =
        at.least > 0 ? at.least * compare_row_rms(tensor_row(at.x, row), at.x->dtype, at.x->shape[at.x->ndim - 1]) : 0;
    double largest = at.largest > 0 ? at.largest : fmax(compare_row_max(a, p->want->dtype, width), least);
    at.size = compare_size(&at, largest);
    at.unit *= at.size;
    compare_row(&at, a, tensor_row(p->got, row), width, f);
}

static void compare_parts(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    rows_pass *p = ctx;
    (void)thread;
    for (int64_t part = begin; part < end; part++)
        for (int64_t row = part_begin(p->rows, part); row < part_begin(p->rows, part + 1); row++)
            if (!p->skip || !p->skip[row])
                compare_one_row(p, row, &p->doubtful[part], &p->figures[part]);
}

void compare_rows(const tn_tensor *want, const tn_tensor *got, const compare_place *like, const bool *skip,
                  compare_figures *f)
{
    int64_t width = want->shape[want->ndim - 1];
    rows_pass p = {.want = want, .got = got, .like = like, .skip = skip};
    p.rows = width > 0 ? tn_tensor_count(want) / width : 0;
    for (int64_t part = 0; part < PARTS; part++)
        p.figures[part] = *f;
    if (p.rows * width < LARGE_TENSOR)
        compare_parts(&p, 0, PARTS, 0);
    else
        tn_parallel_for(PARTS, 1, compare_parts, &p);
    for (int64_t part = 0; part < PARTS; part++) {
        compare_worse(f, &p.figures[part]);
        if (like->doubtful && p.doubtful[part])
            *like->doubtful = true;
    }
}
