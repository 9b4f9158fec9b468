/* Inside core/train: a forward layer by layer, and the way back, for which layers are kept or run again. */
#ifndef TENON_CORE_TRAIN_WALK_H
#define TENON_CORE_TRAIN_WALK_H

#include "open/model.h"

#include <tenon/train.h>

/* What a layer that is run again begins with, in copies. */
typedef struct walk_layer {
    tn_tensor h, sum, chosen;
    bool trails;
} walk_layer;

/* Layers below on_tape are remembered call by call. The others run without the tape, and what crosses between them lies
 * in memory of their own; on the way back each runs again, on the tape. */
typedef struct train_walk {
    const tn_model *model;
    const model_shape *shape;
    tn_keep keep;
    size_t budget; /* TN_KEEP_AUTO: bytes for activations and their gradients                      */
    bool lends;    /* layers may use keys of others: there is room for those of all                  */
    int64_t on_tape;
    model_walk own, now;              /* what crosses: where the tape left it, and where the others have it */
    tn_tensor own_inputs, own_chosen; /* graph_run.layer_inputs, chosen                                */
    walk_layer *layers;
    size_t calls, mark; /* of tape and arena, where end begins                                      */
    run_cache *cache;   /* of all layers, for each text                                              */
    int64_t texts;
} train_walk;

tn_status walk_open(train_walk *w, const tn_model *model, tn_keep keep, tn_error *err);
void walk_close(train_walk *w);

/* Before a run of texts: keys, values and states of each as of one that begins with nothing before it. The caches of
 * text i are from i times the number of layers on. */
tn_status walk_enter(train_walk *w, graph_run *r, const tn_train_texts *texts);

/* model_flow.forward; then, on a tape, backward of all that was not performed yet. */
void walk_forward(train_walk *w, graph_run *r);
void walk_backward(train_walk *w, graph_run *r);

#endif
