/* Inside core: a dataset without a model, of any tokenizer and template. */
#ifndef TENON_CORE_DATASET_H
#define TENON_CORE_DATASET_H

#include "dataset/record.h"

/* tn_dataset_open with what records are read by. err is not NULL. */
tn_dataset *dataset_open(const record_reader *reader, const char *const *paths, int64_t count, tn_error *err);

int64_t dataset_max_length(const tn_dataset *dataset);

#endif
