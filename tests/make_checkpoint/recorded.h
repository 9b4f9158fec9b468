/* A checkpoint for a config.json that somebody published: the tensors are those that the architecture asks for. */
#ifndef MAKE_CHECKPOINT_RECORDED_H
#define MAKE_CHECKPOINT_RECORDED_H

#include "weights.h"

#include <stddef.h>

/* 0, or NULL: as the file says. */
typedef struct recorded_changes {
    int64_t layers, vocab;
    const char *dtype;
} recorded_changes;

/* Copies file to folder/config.json with these changes, and without a quantization_config: the weights will be plain.
 * false: said why on stderr. */
bool recorded_config(const char *file, const recorded_changes *changes, const char *folder);

/* All tensors that the model of folder/config.json has. Owned: free(). NULL: said why on stderr. */
weights_tensor *recorded_tensors(const char *folder, size_t *count);

#endif
