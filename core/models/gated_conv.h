/* Inside core: convolutions of a few taps: as a module, and as the layer that multiplies by two gates around it. */
#ifndef TENON_CORE_GATED_CONV_H
#define TENON_CORE_GATED_CONV_H

#include "models/mixer.h"
#include "models/parts.h"

/* A causal Conv1d with one filter for each channel, and its SHORT_CONV site; of the share's channels, or, where it is
 * of nothing, of all. */
graph_site *gated_conv_site(graph_builder *b, graph_module *parent, const char *name, int64_t width, int64_t taps,
                            tn_act act, bool bias, const parts_share *share);

typedef struct gated_conv_spec {
    const char *class_name;
    int64_t hidden, taps;
    bool bias; /* of both projections and the convolution; then the model's q_scale is Q_SCALE_REAL, since what the
                  projection makes of padding, the bias alone, reaches the first tokens behind it   */
} gated_conv_spec;

/* The module conv: in_proj gives B, C and x; out_proj(C * conv(B * x)). Its spec is a gated_conv_spec. */
extern const mixer_kind gated_conv;

#endif
