/* Inside core: building a model graph from a checkpoint. */
#ifndef TENON_CORE_BUILD_H
#define TENON_CORE_BUILD_H

#include "graph/graph.h"

/* Memory that weights were copied to because they were asked for in another dtype, were not aligned to their elements,
 * or had to go to a device. Owned by the model. */
typedef struct build_copies {
    const device *device;
    void **memory;
    size_t *bytes;
    size_t count, capacity;
    int64_t total;
} build_copies;

void build_copies_free(build_copies *copies);

/* The first error sticks: after it every function below does nothing and returns NULL or false, so an architecture's
 * build can be written as a straight line and look at status once. */
typedef struct graph_builder {
    graph *graph;
    const shards *weights;
    const device *device;
    build_copies *copies;
    tn_dtype dtype;
    int (*progress)(void *ctx, const char *what, int64_t done, int64_t total); /* or NULL         */
    void *progress_ctx;
    int64_t done_bytes, total_bytes;
    tn_status status;
    tn_error *err;
} graph_builder;

/* Records a failure; returns NULL so that callers can `return build_fail(...)`. */
void *build_fail(graph_builder *b, tn_status code, const char *where, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

graph_module *build_module(graph_builder *b, graph_module *parent, const char *name, const char *class_name);

/* Is there a tensor "<module path>.<name>" in the checkpoint? */
bool build_has(const graph_builder *b, const graph_module *module, const char *name);

/* The tensor "<module path>.<name>", checked to have the shape and to be floating, in the model's dtype. */
bool build_tensor(graph_builder *b, graph_module *module, const char *name, int32_t ndim, const int64_t *shape,
                  tn_tensor *out);

/* A Linear module and its LINEAR site, inside outer (or NULL). */
graph_site *build_linear(graph_builder *b, graph_module *parent, const char *name, int64_t in, int64_t out, bool bias,
                         graph_site *outer);

/* A norm module with its RMS_NORM site. of_sum: the model adds a residual right before it, so that an ADD_RMS_NORM site
 * of the same module encloses it. */
typedef struct build_norm_spec {
    const char *name, *class_name;
    int64_t width;
    double eps;
    tn_norm variant;
    bool of_sum;
} build_norm_spec;
graph_site *build_norm(graph_builder *b, graph_module *parent, const build_norm_spec *spec);

/* down(act(gate) * up) with separate projections: module, MLP site and the LINEAR sites inside. */
typedef struct build_mlp_spec {
    const char *name, *class_name;
    int64_t hidden, inter;
    tn_act act;
    bool bias;
} build_mlp_spec;
graph_site *build_mlp(graph_builder *b, graph_module *parent, const build_mlp_spec *spec, graph_site *outer);

/* A softmax-routed block of SwiGLU experts, one tensor per expert and projection or stacked. */
typedef struct build_moe_spec {
    const char *name, *block_class, *router_class, *experts_class;
    int64_t hidden, inter, experts, top_k;
    tn_act act;
    bool renorm;
} build_moe_spec;
graph_site *build_moe(graph_builder *b, graph_module *parent, const build_moe_spec *spec);

/* The function of a modeling file, as a site of the scope: one per file. */
graph_site *build_function(graph_builder *b, const char *scope, const char *name, tn_op op);

/* The value of an activation's config key; 0 with an error when it is not known. */
tn_act build_act(graph_builder *b, const config_node *config, const char *key, const char *fallback);

#endif
