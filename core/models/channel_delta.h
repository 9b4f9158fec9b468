/* Inside core: the gated delta rule of Kimi Linear as a layer: each channel of a key forgets at its own rate, which two
 * narrow matrices make; a convolution each for queries, keys and values; a norm of heads that a sigmoid gate
 * multiplies. */
#ifndef TENON_CORE_CHANNEL_DELTA_H
#define TENON_CORE_CHANNEL_DELTA_H

#include "models/mixer.h"
#include "models/parts.h"

typedef struct channel_delta_spec {
    const char *class_name, *norm_class, *gate_class;
    int64_t hidden, heads, dim, taps;
    double eps; /* of the norm                                                                    */
    tn_act act; /* of the convolutions                                                             */
} channel_delta_spec;

/* The module self_attn. Its spec is a channel_delta_spec. */
extern const mixer_kind channel_delta;

#endif
