/* Inside core: the rotary parameters of a config.json, in each form that files have. */
#ifndef TENON_CORE_ROPE_CONFIG_H
#define TENON_CORE_ROPE_CONFIG_H

#include "checkpoint/checkpoint.h"
#include "run/rope_tables.h"
#include "run/steps.h"

/* What an architecture's class makes of them. */
typedef struct rope_config_spec {
    const char *layer_type; /* key of rope_parameters where it has one object per layer type; NULL: it has none      */
    int64_t head_dim;       /* D                                                                                 */
    double partial;         /* default of partial_rotary_factor; 0: the class does not read it for rope_type default */
    double theta;           /* where the file has none                                                           */
    /* What the class takes where the file has no object at all: the parameters of its rope_type, their angles and theta
     * included; NULL: rope_type default. */
    const rope_params *absent;
    int64_t positions; /* instead of max_position_embeddings; or 0                                              */
    int64_t original;  /* original_max_position_embeddings beside the object, where the class has a default; or 0   */
    bool ntk_alpha;    /* HunYuan's: dynamic with alpha is rope_type default with theta alpha^(R / (R - 2))         */
    bool old_names;    /* Phi-3's: the types su and yarn mean longrope                                              */
    bool mscales;      /* PhiMoE's longrope: short_mscale and long_mscale are the factor, frequencies the short ones */
} rope_config_spec;

/* Reads rope_parameters, or rope_scaling with rope_theta and partial_rotary_factor beside it, and makes the
 * frequencies; rope->dim becomes R. Of files that have one set of parameters for all layer types, rope_scaling is for
 * full_attention alone, and sliding_attention has its theta from rope_local_base_freq. */
void rope_config_read(const config_reader *config, const rope_config_spec *spec, rope_params *rope);

/* The object of the file that they lie in; one without keys where there is none. */
config_reader rope_config_object(const config_reader *config, const char *layer_type);

/* The factor of queries that llama_4_scaling_beta in that object asks for: it must be there, but where there is no
 * object at all and it is beta. */
q_scale_params rope_config_q_scale(const config_reader *config, const rope_config_spec *spec, double beta);

#endif
