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
    bool training;               /* only kernels with gradients are taken                               */
    build_copies copies;         /* tensors that could not be used where they are mapped                */
    int64_t session_count;       /* open sessions: kernels may not change meanwhile                     */
    struct apply_state *applied; /* apply.c: packed memory, or NULL                               */
    int64_t packed_bytes;
    tn_model_info info;
};

/* apply.c: frees what applying kernels allocated. Called by tn_model_close after everything else stopped. */
void apply_state_free(struct tn_model *model);

#endif
