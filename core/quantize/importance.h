/* Inside core/quantize: how much each column of a matrix counts, which is the mean square of what it is multiplied
 * with while the model reads a text. */
#ifndef TENON_CORE_IMPORTANCE_H
#define TENON_CORE_IMPORTANCE_H

#include "quantize/quantize.h"

typedef struct importance importance;

/* Runs the model over the options' ids, in windows that know nothing of each other, and looks at what goes into each
 * matrix of the plan whose type can use it. Owned. */
tn_status importance_collect(const quantize_plan *p, const tn_quantize_options *options, importance **collected,
                             tn_error *err);
void importance_free(importance *collected);

/* Of matrix number of a tensor: [columns], around 1, above 0. NULL: no token came to it, as to an expert that none
 * chose, or it is looked up and not multiplied with. */
const float *importance_of(const importance *collected, const quantize_tensor *t, int64_t number);

#endif
