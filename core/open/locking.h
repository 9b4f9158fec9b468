/* Inside core: comparing a model that is being opened with a lock. Without one these do nothing. */
#ifndef TENON_CORE_LOCKING_H
#define TENON_CORE_LOCKING_H

#include "open/model.h"

/* Reads the lock and compares the code that will compute. */
tn_status locking_begin(tn_model *m, const tn_model_options *options, tn_error *err);

/* What stands beside the weights, before it is read; beside false: it is a .gguf, beside which nothing stands. */
tn_status locking_folder(const tn_model *m, bool beside, tn_error *err);

/* All weights, which are open; before anything is made of them. Of a rank nothing yet. */
tn_status locking_weights(const tn_model *m, tn_error *err);

/* Of a rank: from here on it is noted what is read, and then that is compared. */
tn_status locking_watch(const tn_model *m, tn_error *err);
tn_status locking_end(const tn_model *m, tn_error *err);

#endif
