/* Inside core/quantize: searching for the scale of a group. The one that its farthest value asks for is tried, and some
 * around it: for the codes that each of these gives, the best scale follows. */
#ifndef TENON_CORE_ENCODE_FIT_H
#define TENON_CORE_ENCODE_FIT_H

#include <math.h>

enum { ENCODE_FIT_GROUP = 32 };

/* scale * code - minimum, which is not below 0. */
typedef struct encode_affine {
    float scale, minimum;
} encode_affine;

/* Of ENCODE_FIT_GROUP values and codes 0 to most. w: how much the square of what each is off by counts; NULL: large
 * values more than small ones. tries: distances from the usual scale, in steps of a tenth of a code over the range. */
encode_affine encode_fit_affine(const float *x, const float *w, float most, int tries);

/* The scale of count values, whose codes are -low to low - 1. */
float encode_fit_symmetric(const float *x, const float *w, int count, float low);

/* The nearest code. */
static inline float encode_fit_code(float x, float least, float most)
{
    float rounded = rintf(x);
    return rounded < least ? least : rounded > most ? most : rounded;
}

#endif
