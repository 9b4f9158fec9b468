/* Inside core: what a tn_model holds. */
#ifndef TENON_CORE_MODEL_H
#define TENON_CORE_MODEL_H

#include "graph/graph.h"
#include "models/models.h"

struct tn_model {
    char *folder;
    config_file *config;
    shards *weights;
    graph *graph;
    const tn_device *device;
    const model_arch *arch;
    void *arch_state; /* what arch->build returned                                               */
    tn_dtype dtype;
    void **converted; /* host or device memory that tensors were copied to                        */
    size_t *converted_size;
    size_t converted_count;
    int64_t converted_bytes;
    int64_t session_count; /* open sessions: kernels may not change meanwhile                      */
    struct apply_state *applied; /* apply.c: packed memory, or NULL                               */
    int64_t packed_bytes;
    double load_seconds;
    tn_model_info info;
};

#endif
