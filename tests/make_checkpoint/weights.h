/* Random weights, written to safetensors files as a stream. */
#ifndef MAKE_CHECKPOINT_WEIGHTS_H
#define MAKE_CHECKPOINT_WEIGHTS_H

#include "spec.h"

typedef struct weights_summary {
    int64_t parameters, bytes;
    size_t files;
} weights_summary;

/* Writes model.safetensors, or several files of at most shard_bytes (unless one tensor alone is larger) with an index,
 * into folder. false: said why on stderr. */
bool weights_write(const spec_tensor *tensors, size_t count, tn_dtype dtype, uint64_t seed, int64_t shard_bytes,
                   const char *folder, weights_summary *summary);

#endif
