/* Inside core/train: a model's weights as they are now, as a checkpoint. */
#ifndef TENON_CORE_TRAIN_SAVE_H
#define TENON_CORE_TRAIN_SAVE_H

#include "open/model.h"

/* tn_trainer_save, or (merges) tn_model_merge. */
tn_status save_model(const tn_model *model, bool merges, const char *out, tn_error *err);

/* tn_trainer_save_adapter. */
tn_status save_adapter(const tn_model *model, const char *out, tn_error *err);

#endif
