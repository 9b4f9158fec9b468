/* Inside core: made-up quantised weights. */
#ifndef TENON_CORE_DRAW_WEIGHT_H
#define TENON_CORE_DRAW_WEIGHT_H

#include "base/random.h"

#include <stdbool.h>
#include <tenon/operation.h>

/* Can weights of this quantised type be drawn? Do scales lie beside them, and can zero points? */
bool draw_weight_can(tn_dtype dtype);
bool draw_weight_has_scales(tn_dtype dtype);
bool draw_weight_has_zeros(tn_dtype dtype);

/* Any codes; those that carry their scales have values of about this size. */
void draw_weight_codes(const tn_tensor *t, float size, random_state *r);

/* Type and shape of the scales and zero points of a weight [out,in]. */
tn_tensor draw_weight_scale(const tn_tensor *weight);
tn_tensor draw_weight_zero(const tn_tensor *weight);

/* Fills them, so that values have about this size. zero may be NULL. */
void draw_weight_parts(const tn_tensor *weight, const tn_tensor *scale, const tn_tensor *zero, float size,
                       random_state *r);

#endif
