/* Inside core: the modules that most architectures consist of, with the names and classes of transformers. Every
 * function builds a module and its sites, reads its tensors, and gives NULL after an error, which sticks in b. */
#ifndef TENON_CORE_PARTS_H
#define TENON_CORE_PARTS_H

#include "graph/build.h"

/* A Linear and its LINEAR site, inside outer (or NULL). */
graph_site *parts_linear(graph_builder *b, graph_module *parent, const char *name, int64_t in, int64_t out, bool bias,
                         graph_site *outer);

/* The RMS norm of a modeling file. */
typedef struct parts_norm_kind {
    const char *class_name;
    tn_norm variant;
    double eps;
} parts_norm_kind;

/* A norm with its RMS_NORM site. of_sum: the model adds a residual right before it, so that an ADD_RMS_NORM site of the
 * same module encloses it. */
graph_site *parts_norm(graph_builder *b, graph_module *parent, const char *name, const parts_norm_kind *kind,
                       int64_t width, bool of_sum);

/* down_proj(act(gate_proj) * up_proj): module, MLP site and the LINEAR sites inside. */
typedef struct parts_mlp_spec {
    const char *class_name;
    int64_t hidden, inter;
    tn_act act;
    bool bias;
} parts_mlp_spec;
graph_site *parts_mlp(graph_builder *b, graph_module *parent, const char *name, const parts_mlp_spec *spec,
                      graph_site *outer);

/* The function of a modeling file that rotates q and k, as a site of the file's scope: one per file. */
typedef struct parts_rope_spec {
    const char *function;
    tn_rope style;
    int64_t heads, kv_heads, head_dim, rotary;
} parts_rope_spec;
graph_site *parts_rope(graph_builder *b, const char *scope, const parts_rope_spec *spec);

/* What an activation's name in config.json means. */
tn_act parts_act(const config_reader *config, const char *key, const char *fallback);

#endif
