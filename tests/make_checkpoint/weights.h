/* Random weights, written to safetensors files as a stream. */
#ifndef MAKE_CHECKPOINT_WEIGHTS_H
#define MAKE_CHECKPOINT_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>
#include <tenon/tensor.h>

/* Values are normal: around 0 with a small deviation in matrices, as a vector says in vectors. */
typedef struct weights_tensor {
    char name[192];
    tn_dtype dtype;
    int32_t ndim;
    int64_t shape[TN_MAX_DIMS];
    bool vector;
    float mean, scale; /* of a vector's values                                                      */
} weights_tensor;
#define WEIGHTS_VECTOR_SCALE 0.1f /* of a norm's weights around their mean */

typedef struct weights_summary {
    int64_t parameters, bytes;
    size_t files;
} weights_summary;

/* Writes model.safetensors, or several files of at most shard_bytes (unless one tensor alone is larger) with an index,
 * into folder. false: said why on stderr. */
bool weights_write(const weights_tensor *tensors, size_t count, uint64_t seed, int64_t shard_bytes, const char *folder,
                   weights_summary *summary);

#endif
