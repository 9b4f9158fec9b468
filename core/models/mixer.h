/* Inside core: what a layer of a decoder consists of where it is not plain attention and a plain MLP. */
#ifndef TENON_CORE_MIXER_H
#define TENON_CORE_MIXER_H

#include "graph/build.h"
#include "run/steps.h"

/* Where in the model a piece runs. */
typedef struct mixer_place {
    graph_site *const *ropes;   /* ROPE sites of the model, by kind                               */
    graph_site *const *queries; /* those of layers that borrow keys and rotate queries alone        */
    int64_t layer;
    int64_t wanted; /* what it gives is read for the last so many tokens only; attention narrows the run to them */
} mixer_place;

/* What mixes the tokens of a layer: latent attention, a recurrence, a convolution. */
typedef struct mixer_kind {
    size_t state_size; /* of what build fills; zeroed before                                      */
    /* Its module inside layer. spec is the architecture's (decoder_layer_spec.mixer_spec). Errors stick in b. */
    void (*build)(graph_builder *b, graph_module *layer, const void *spec, void *state);
    model_layer (*cache)(const graph_builder *b, const void *spec); /* what a session keeps for it   */
    tn_tensor (*forward)(graph_run *r, const void *state, const mixer_place *at, const tn_tensor *x);
    int64_t (*heads)(const graph_builder *b,
                     const void *spec); /* this rank's, that the first rotation turns; or NULL */
} mixer_kind;

/* What stands in the place of a layer's MLP, or comes behind the layer's second sum. */
typedef struct feed_kind {
    size_t state_size;
    void (*build)(graph_builder *b, graph_module *layer, const void *spec, void *state);
    /* In an MLP's place: x [T,H] the normed rows, h the residual as it is (not to be changed), y [T,H] for the result.
     * Behind a layer: h may be changed; x and y are h. */
    void (*forward)(graph_run *r, const void *state, const mixer_place *at, const tn_tensor *h, const tn_tensor *x,
                    const tn_tensor *y);
} feed_kind;

/* A layer that is no attention and MLP, each added to h. */
struct decoder_layer_spec;
typedef struct layer_kind {
    size_t state_size;
    /* Its modules inside layer; cache: what a session keeps for it. */
    void (*build)(graph_builder *b, graph_module *layer, const struct decoder_layer_spec *spec, void *state,
                  model_layer *cache);
    void (*forward)(graph_run *r, const void *state, const mixer_place *at, const tn_tensor *h); /* changes h */
} layer_kind;

/* What comes between the embedding and the first layer, or between the last layer and the final norm. */
typedef struct stage_kind {
    size_t state_size;
    void (*build)(graph_builder *b, graph_module *model, const void *spec, void *state);
    tn_tensor (*forward)(graph_run *r, const void *state, const tn_tensor *h); /* h or what takes its place */
} stage_kind;

#endif
