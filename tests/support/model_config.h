/* Published configurations, cut down to what fits a test. */
#ifndef TEST_MODEL_CONFIG_H
#define TEST_MODEL_CONFIG_H

#include <tenon/tenon.h>

/* 0, or NULL: as the file says. */
typedef struct model_config_changes {
    int64_t layers, vocab;
    const char *dtype;
} model_config_changes;

/* Copies file to folder/config.json with these changes, and without a quantization_config: random weights are plain. */
tn_status model_config_copy(const char *file, const model_config_changes *changes, const char *folder, tn_error *err);

#endif
