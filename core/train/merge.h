/* Inside core/train: a model's adapter in its weights. */
#ifndef TENON_CORE_TRAIN_MERGE_H
#define TENON_CORE_TRAIN_MERGE_H

#include "open/model.h"

/* Adds to copy, the values of a tensor that the model has at `at` in memory, what the adapter has beside the products
 * whose weights lie in it: W + s B A in f32, rounded once. (Factors of a
 * stacked parameter of experts: s B A is rounded before, as peft does it.) */
void merge_into(const tn_model *model, const char *at, size_t bytes, char *copy);
/* Is there anything of that? */
bool merge_touches(const tn_model *model, const char *at, size_t bytes);

/* May the adapter be merged at all? TN_E_USAGE, naming what has a weight in common with something that has no adapter.
 */
tn_status merge_check(const tn_model *model, tn_error *err);

#endif
