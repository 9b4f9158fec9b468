/* Inside core: comparing the elements of one tensor, for compare.c and compare_range.c. */
#ifndef TENON_CORE_COMPARE_ROW_H
#define TENON_CORE_COMPARE_ROW_H

#include "check/compare.h"
#include "check/range.h"

typedef struct compare_place {
    char name[48]; /* "output 0" */
    int64_t row;
    tn_dtype dtype; /* the tensor's */
    tn_dtype site;  /* that of the site, which it may have been rounded to on the way */
    double unit;    /* eps(dt), then times max|eager row| */
    double size;    /* that maximum, at least the smallest that counts */
    double largest; /* to be used instead of that maximum; 0: none */
    double ulps;
    const tn_tensor *x; /* whose rows, times least, count as well; not read where least is 0 */
    double least;
    bool *doubtful; /* set where the range of the type may explain the distance; NULL: nothing does  */
} compare_place;

/* The largest finite absolute value of a row, and of a tensor; the root mean square of a row's finite elements. */
double compare_row_max(const char *row, tn_dtype dtype, int64_t width);
double compare_tensor_max(const tn_tensor *t);
double compare_row_rms(const char *row, tn_dtype dtype, int64_t width);

/* Keeps the worse figures. */
void compare_worse(compare_figures *to, const compare_figures *one);

/* What a row whose largest element is that large is measured by. */
double compare_size(const compare_place *at, double largest);

/* Does an element hold what it held before the call? */
bool compare_never_written(const char *element, size_t size);

/* Is an element, eager's or the kernel's, near an end of the range: larger than 2^64, in f16 than 2^12, or of a row of
 * f16 so small that what it was computed from may have lost its digits? */
bool compare_at_an_end(const compare_place *at, float want, float got);
bool compare_is_large(const compare_place *at, double x);
bool compare_is_small(const compare_place *at);

/* An element against eager's. A NaN is right only where eager has one. */
void compare_element(const compare_place *at, int64_t column, float want, float got, bool unwritten,
                     compare_figures *f);

/* n elements of a row, and all rows of a tensor but those in skip. */
void compare_row(const compare_place *at, const char *want, const char *got, int64_t width, compare_figures *f);
void compare_rows(const tn_tensor *want, const tn_tensor *got, const compare_place *like, const bool *skip,
                  compare_figures *f);

/* ---- compare_range.c ---- */

/* A result, eager's and a kernel's, and what range.h says of it. */
typedef struct compare_doubt {
    const tn_tensor *want, *got;
    const tn_tensor *look[RANGE_KINDS]; /* NULL: they could not be had                             */
    bool zeros;                         /* or zeros: no gradient came from above                    */
    bool nans;                          /* or NaN: a gradient where a parameter has one             */
} compare_doubt;

/* What compare_rows left as doubtful. */
void compare_doubtful(const compare_doubt *d, const compare_place *like, const bool *skip, compare_figures *f);

#endif
