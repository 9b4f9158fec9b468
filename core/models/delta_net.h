/* Inside core: layers that mix tokens by the gated delta rule: a short convolution over queries, keys and values, the
 * recurrence, and a norm that a gate multiplies. */
#ifndef TENON_CORE_DELTA_NET_H
#define TENON_CORE_DELTA_NET_H

#include "models/mixer.h"
#include "models/parts.h"

typedef struct delta_net_spec {
    const char *class_name, *norm_class;
    int64_t hidden, k_heads, v_heads, head_k, head_v, taps;
    double eps; /* of the norm                                                                    */
    tn_act act; /* of the convolution                                                              */
    bool fused; /* two projections, in which each key head has its share of everything side by side */
} delta_net_spec;

/* The dimensions, from linear_num_key_heads and its like; the rest is left as it is. Errors stick in config. */
void delta_net_read(const config_reader *config, delta_net_spec *spec);

/* The module linear_attn. Its spec is a delta_net_spec. */
extern const mixer_kind delta_net;

/* Is layer i one of them, as "layer_types" or "full_attention_interval" (4) say? */
bool delta_net_is_layer(const config_reader *config, int64_t i);

#endif
