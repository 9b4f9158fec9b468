/* Inside core: the mixer of Mamba-2: one projection to a gate z, x, b, c and dt, a short convolution over x, b and c,
 * the scan, a norm with the gate, and a projection back. */
#ifndef TENON_CORE_MAMBA_MIXER_H
#define TENON_CORE_MAMBA_MIXER_H

#include "models/mixer.h"
#include "models/parts.h"

enum { MAMBA_PARTS = 5 }; /* z, x, b, c, dt                                                          */

typedef struct mamba_mixer_spec {
    const char *name, *class_name; /* of the module; NULL: mamba                                       */
    const char *norm_class;        /* NULL: no norm, y times silu(z)                                   */
    int64_t hidden, heads, head, groups, state, taps;
    bool norm_first; /* the norm comes before the gate                                            */
    double eps;      /* of the norm                                                               */
    tn_act act;      /* of the convolution                                                        */
    bool conv_bias, in_bias, out_bias;
    double least, limit;         /* steps are within these                                            */
    double factors[MAMBA_PARTS]; /* of what in_proj gives; 0: none                                      */
} mamba_mixer_spec;

/* The keys of one family: what stands behind its prefix ("mamba_n_heads", or "num_heads"). 0: what the class has. */
typedef struct mamba_mixer_keys {
    const char *heads, *head, *groups, *state, *taps, *expand, *conv_bias;
    int64_t default_heads, default_head, default_groups, default_state; /* default_head 0: hidden * expand / heads */
} mamba_mixer_keys;

/* The keys "mamba_n_heads" and its like. */
extern const mamba_mixer_keys mamba_mixer_usual;

/* Dimensions, steps' limits and the convolution's bias; s->hidden is given. inner: heads times their size must be this
 * (0: hidden times "expand"). Errors stick in config. */
void mamba_mixer_read(const config_reader *config, const mamba_mixer_keys *keys, int64_t inner, mamba_mixer_spec *s);

typedef struct mamba_mixer_state {
    graph_site *in, *conv, *scan, *norm, *out;
    tn_site *act, *gate;         /* instead of norm                                                  */
    tn_site *copy;               /* to f32 and back; NULL: the model's type is f32                   */
    tn_site *scale[MAMBA_PARTS]; /* or NULL                                                          */
    int64_t heads, head, groups, state;
} mamba_mixer_state;

/* What a session keeps for a layer that has it beside attention, whose share is given. */
model_layer mamba_mixer_beside(const mamba_mixer_spec *s, model_layer attention);

/* Its spec is a mamba_mixer_spec, its state a mamba_mixer_state. */
extern const mixer_kind mamba_mixer;

#endif
