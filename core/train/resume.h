/* Inside core/train: all that the next step depends on, in a file. */
#ifndef TENON_CORE_TRAIN_RESUME_H
#define TENON_CORE_TRAIN_RESUME_H

#include "train/optimiser.h"

/* tn_trainer_save_state, tn_trainer_load_state. */
tn_status resume_save(const train_params *params, const optimiser *o, const char *file, tn_error *err);
tn_status resume_load(train_params *params, optimiser *o, const tn_model *model, const char *file, tn_error *err);

#endif
