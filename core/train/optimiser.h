/* Inside core/train: changing parameters by their gradients. */
#ifndef TENON_CORE_TRAIN_OPTIMISER_H
#define TENON_CORE_TRAIN_OPTIMISER_H

#include "train/params.h"

#include <tenon/train.h>

/* Moments of all parameters in the types that these are trained in, each from where its sum lies; pages that are
 * written to take memory. */
typedef struct optimiser {
    float *first, *second; /* NULL before the first step                                          */
    size_t bytes;          /* of each                                                             */
    int64_t steps;
    int64_t drawn; /* backward calls in which an adapter dropped something                         */
} optimiser;

/* Those of a block, in o's first or second. */
static inline void *optimiser_moment(float *of, const train_params *params, const train_block *b)
{
    return (char *)(of + (b->of->sums - params->sums)) + (size_t)b->first * tn_dtype_size(b->of->dtype);
}

/* Zero moments, where there are none yet. */
tn_status optimiser_open(optimiser *o, const train_params *params, tn_error *err);
void optimiser_close(optimiser *o);

/* May parameters change? TN_E_USAGE. */
tn_status optimiser_check(const tn_model *model, const train_params *params, tn_error *err);

/* tn_trainer_step, with all of step filled in. */
tn_status optimiser_step(optimiser *o, const tn_model *model, train_params *params, const tn_train_step *step,
                         double *norm, tn_error *err);

#endif
