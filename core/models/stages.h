/* Inside core: layers dealt out to ranks (--parallel pipeline), neighbours to one rank. Each rank computes its own,
 * with their caches, and hands on what the next one's begin with. */
#ifndef TENON_CORE_STAGES_H
#define TENON_CORE_STAGES_H

#include "models/decoder.h"

/* Which rank has each of s's layers: as many bytes of weights as can be for each, and layers that use another one's
 * keys with it. Owned by the caller; NULL where b->stages is, or after an error, which sticks. */
int32_t *stages_deal(graph_builder *b, const config_reader *c, const decoder_spec *s);

/* Is the layer this rank's? */
bool stages_here(const model_shape *shape, int64_t layer);

/* Behind a layer: where another rank goes on, what it goes on with is passed to it, and what the last one gives to all
 * that go on with the norm and the head. */
void stages_hand_on(graph_run *r, const model_shape *shape, int64_t layer, model_walk *walk);

#endif
