/* Elements at the ends of a type's range, where eager once more, in f32, says what is right. docs/numerics.md has the
 * rules. */
#include "check/compare_row.h"

#include "base/convert.h"
#include "base/tensor.h"

#include <math.h>

/* Sums of terms that are larger than that may leave the range of f32 on the way, in one order and not in another, or
 * where a kernel divides after it added up and not before. */
static const double LARGE_SUM = 0x1p112;

/* The same inside an operation that rounds to f16 on the way, where kernels round other products than eager does. */
static const double LARGE_SUM_F16 = 0x1p10;

/* One element. */
typedef struct element {
    float want, got;
    float look[RANGE_KINDS];
    bool narrow; /* magnitudes are those of an operation that rounds to f16                       */
} element;

static float read_element(const tn_tensor *t, int64_t row, int64_t i)
{
    float value;
    convert_to_f32(tensor_row(t, row) + i * (int64_t)tn_dtype_size(t->dtype), t->dtype, &value, 1);
    return value;
}

/* Where a NaN reaches, both must have one. Where the sum of magnitudes is so large that the order of adding decides
 * what leaves the range on the way, nothing can be said. Where an infinity meets what eager rounded to zero, and the
 * kernel did not, it stays one. Everywhere else the result is eager's, or eager's in f32 rounded once: in 16 bits eager
 * may leave the range on the way, and lose what is small, where a kernel, which may keep more, does not. Returns what
 * got is to be compared with; got itself: nothing can be said. */
static float fair_want(const compare_place *at, const element *e)
{
    double most = e->narrow ? LARGE_SUM_F16 : LARGE_SUM;
    char rounded[sizeof(float)];
    float wide;
    if (isnan(e->look[RANGE_NANS]))
        return e->want;
    if (!(fabs((double)e->look[RANGE_MAGNITUDES]) <= most) || (isnan(e->look[RANGE_WIDE]) && isinf(e->got)))
        return e->got;
    convert_from_f32(&e->look[RANGE_WIDE], at->dtype, rounded, 1);
    convert_to_f32(rounded, at->dtype, &wide, 1);
    return fabsf(e->want - e->got) < fabsf(wide - e->got) ? e->want : wide;
}

/* What is at no end of the range was judged before. */
static void judge_row(const compare_doubt *d, const compare_place *at, compare_figures *f)
{
    int64_t width = d->want->shape[d->want->ndim - 1];
    for (int64_t i = 0; i < width; i++) {
        element e = {.want = read_element(d->want, at->row, i), .got = read_element(d->got, at->row, i)};
        const char *got = tensor_row(d->got, at->row) + i * (int64_t)tn_dtype_size(at->dtype);
        if (!compare_at_an_end(at, e.want, e.got) ||
            (isnan(e.got) && compare_never_written(got, tn_dtype_size(at->dtype))) || (d->zeros && e.got == 0) ||
            (d->nans && isnan(e.got)))
            continue;
        e.narrow = d->look[0] && at->site == TN_F16 && d->look[RANGE_MAGNITUDES]->dtype != TN_F32;
        for (int kind = 0; kind < RANGE_KINDS; kind++)
            e.look[kind] = d->look[kind] ? read_element(d->look[kind], at->row, i) : NAN;
        compare_element(at, i, fair_want(at, &e), e.got, false, f);
    }
}

/* What a row, or all of them, may be measured by. */
typedef struct sizes {
    double result;     /* the largest of eager's, in f32, too                                      */
    double magnitudes; /* of sums that may cancel                                                 */
    double own;        /* how far eager is from itself in f32 at most                              */
} sizes;

static sizes sizes_of(const compare_doubt *d, int64_t row)
{
    sizes s = {0};
    for (int64_t i = 0, width = d->want->shape[d->want->ndim - 1]; i < width; i++) {
        double want = fabs((double)read_element(d->want, row, i));
        double magnitude = d->look[0] ? (double)read_element(d->look[RANGE_MAGNITUDES], row, i) : 0;
        double wide = d->look[0] ? fabs((double)read_element(d->look[RANGE_WIDE], row, i)) : want;
        s.result = isfinite(want) ? fmax(s.result, want) : s.result;
        s.result = isfinite(wide) ? fmax(s.result, wide) : s.result;
        s.own = isfinite(want - wide) ? fmax(s.own, fabs(want - wide)) : s.own;
        s.magnitudes = isfinite(magnitude) ? fmax(s.magnitudes, magnitude) : s.magnitudes;
    }
    return s;
}

static sizes larger_sizes(sizes a, sizes b)
{
    return (sizes){fmax(a.result, b.result), fmax(a.magnitudes, b.magnitudes), fmax(a.own, b.own)};
}

/* What is large is measured by magnitudes; small results in f16 are right where they are no further from f32 than
 * eager's. */
static void measure_by(compare_place *at, const compare_place *like, sizes s)
{
    at->size = compare_size(at, s.result);
    at->unit = like->unit * (compare_is_large(at, at->size) ? fmax(at->size, s.magnitudes) : at->size);
    if (compare_is_small(at))
        at->unit = fmax(at->unit, s.own / at->ulps);
}

void compare_doubtful(const compare_doubt *d, const compare_place *like, const bool *skip, compare_figures *f)
{
    int64_t width = d->want->shape[d->want->ndim - 1], rows = width > 0 ? tn_tensor_count(d->want) / width : 0;
    compare_place at = *like;
    sizes all = {0};
    at.doubtful = NULL;
    at.dtype = d->want->dtype;
    for (int64_t row = 0; like->largest > 0 && row < rows; row++)
        all = larger_sizes(all, sizes_of(d, row));
    for (at.row = 0; at.row < rows; at.row++) {
        if (skip && skip[at.row])
            continue;
        measure_by(&at, like, like->largest > 0 ? all : sizes_of(d, at.row));
        judge_row(d, &at, f);
    }
}
