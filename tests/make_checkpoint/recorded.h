/* A checkpoint for a config.json that somebody published: the tensors are those that the architecture asks for. */
#ifndef MAKE_CHECKPOINT_RECORDED_H
#define MAKE_CHECKPOINT_RECORDED_H

#include "weights.h"

#include <stddef.h>

/* All tensors that the model of folder/config.json has. Owned: free(). NULL: said why on stderr. */
weights_tensor *recorded_tensors(const char *folder, size_t *count);

#endif
