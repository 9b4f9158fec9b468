/* Inside core/train: ranks that have the whole model each, and take turns at the batches of a step. */
#ifndef TENON_CORE_TRAIN_REPLICAS_H
#define TENON_CORE_TRAIN_REPLICAS_H

#include "train/optimiser.h"

/* Deals blocks out. Without a group, here as below: nothing. All ranks call all of these. */
void replicas_open(train_params *params);

/* Behind a call of backward, in which this rank had texts or not: each rank's sums get what all ranks have made of its
 * blocks, in the order of ranks. *calls: how many had texts, which are the first. */
tn_status replicas_add(train_params *params, bool had, int64_t *calls, tn_error *err);

/* By block, of which each rank has made its own; and its own blocks of what is read. */
tn_status replicas_join_squares(const train_params *params, double *squares, tn_error *err);
tn_status replicas_join_weights(const train_params *params, tn_error *err);

/* Rank 0 gets all moments of what was moved; and forgets those of others again. */
tn_status replicas_collect(const train_params *params, const optimiser *o, tn_error *err);
void replicas_forget(const train_params *params, const optimiser *o);

/* What rank 0 has: parameters that were moved, and of their moments each rank its own. */
tn_status replicas_deal(train_params *params, optimiser *o, const tn_model *model, tn_error *err);

/* Is it rank 0, which reads and writes files? */
bool replicas_writes(const train_params *params);

/* The outcome of every rank becomes that of all; ranks wait for rank 0 for as long as it lives. */
tn_status replicas_agree(const train_params *params, tn_status status, tn_error *err);

#endif
