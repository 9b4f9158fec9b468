/* Inside core: inputs of each layer beside h, made of the token and its embedding once per call (Gemma 3n and 4), and
 * what a layer does with its own. */
#ifndef TENON_CORE_LAYER_INPUTS_H
#define TENON_CORE_LAYER_INPUTS_H

#include "models/mixer.h"
#include "models/parts.h"

typedef struct layer_inputs_spec {
    const char *embedding_class;
    const parts_norm_kind *norm;
    int64_t hidden, layers, vocab;
    int64_t width; /* P, of one layer's input                                                    */
    bool partial;  /* tokens beyond the table count as the first                                 */
    bool rounded;  /* factors are rounded to the model's type                                    */
    tn_act act;
} layer_inputs_spec;

/* Of the model: what makes r->layer_inputs, [B*T, layers * P]. */
typedef struct layer_inputs {
    tn_site *embed, *scale, *half; /* steps                                                      */
    graph_site *projection, *norm;
    int64_t width, layers;
} layer_inputs;

void layer_inputs_build(graph_builder *b, graph_module *model, const layer_inputs_spec *spec, layer_inputs *out);
void layer_inputs_forward(graph_run *r, const layer_inputs *in, const tn_tensor *h);

/* Of a layer: norm(projection(act(gate(x)) * input)). */
typedef struct layer_input {
    graph_site *gate, *projection, *norm;
    tn_site *act;
    int64_t width;
} layer_input;

void layer_inputs_build_layer(graph_builder *b, graph_module *layer, const layer_inputs_spec *spec, layer_input *out);

/* Once per call and layer: the layer's share of r->layer_inputs is used up. */
tn_tensor layer_inputs_of_layer(graph_run *r, const layer_input *in, int64_t layer, const tn_tensor *x);

#endif
