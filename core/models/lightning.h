/* Inside core: MiniMax's linear attention, a layer's mixer. */
#ifndef TENON_CORE_LIGHTNING_H
#define TENON_CORE_LIGHTNING_H

#include "models/mixer.h"

typedef struct lightning_spec {
    int64_t hidden, heads, head, layers;
    tn_act act; /* of queries, keys and values                                                     */
} lightning_spec;

extern const mixer_kind lightning;

#endif
