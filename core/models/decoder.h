/* Inside core: what the models with the plain decoder skeleton share: h += attention(norm(h)); h += mlp(norm(h)), with
 * grouped-query attention (ARCHITECTURES.md, A.7 "pre"). An architecture fills a decoder_spec. */
#ifndef TENON_CORE_DECODER_H
#define TENON_CORE_DECODER_H

#include "models/models.h"

typedef struct decoder_layer {
    graph_site *input_norm, *post_norm;
    graph_site *q, *k, *v, *o;
    graph_site *q_norm, *k_norm; /* or NULL                                                       */
    graph_site *attention;
    graph_site *mlp; /* MLP or MOE_BLOCK                                                          */
} decoder_layer;

typedef struct decoder {
    model_shape shape;
    model_layer *cache;
    decoder_layer *layers;
    tn_site embed; /* EMBEDDING, a step and so no site of the graph                               */
    tn_tensor embed_weight;
    graph_site *norm, *rope;
    int64_t heads, kv_heads, head_dim;
} decoder;

/* Class names of one modeling file. */
typedef struct decoder_classes {
    const char *scope, *model, *layer, *attention, *mlp, *norm, *rotary;
} decoder_classes;

typedef struct decoder_spec {
    const decoder_classes *classes;
    /* Read from config.json by decoder_read; an architecture changes what differs. */
    int64_t hidden, inter, layers, heads, kv_heads, head_dim, vocab;
    double eps, theta;
    tn_act act;
    bool q_bias, k_bias, v_bias, o_bias, mlp_bias, qk_norm, tied;
    int64_t sliding_window; /* 0: none                                                            */
    /* Does layer i slide? NULL: every layer does where there is a window. Errors stick in b. */
    bool (*slides)(graph_builder *b, const config_node *config, const struct decoder_spec *spec, int64_t layer);
    /* Builds the MLP of layer i; NULL: the plain one. */
    graph_site *(*mlp)(graph_builder *b, graph_module *layer_module, const struct decoder_spec *spec, int64_t layer);
    const void *extra; /* of the architecture, for slides and mlp                                 */
} decoder_spec;

/* Reads what all of these models have in common. default_head_dim 0: hidden / heads. */
bool decoder_read(graph_builder *b, const config_node *config, const decoder_classes *classes, int64_t default_head_dim,
                  decoder_spec *spec);

/* Qwen's rule: a window only with "use_sliding_window"; fills sliding_window. */
bool decoder_read_window(graph_builder *b, const config_node *config, decoder_spec *spec);

/* "layer_types" where the file has it, else layers from "max_window_layers" (28) on slide: for decoder_spec.slides. */
bool decoder_upper_slides(graph_builder *b, const config_node *config, const decoder_spec *spec, int64_t layer);

/* The plain MLP of class mlp. */
graph_site *decoder_plain_mlp(graph_builder *b, graph_module *layer_module, const decoder_spec *spec);

void *decoder_build(graph_builder *b, const config_node *config, const decoder_spec *spec);
void decoder_free(void *state);
void decoder_forward(graph_run *r, const void *state);
const model_shape *decoder_shape(const void *state);

#endif
