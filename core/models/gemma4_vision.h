/* Inside core: the tower of Gemma 4: patches with places of their own, each learnt and turned along two axes, and rows
 * of the text model that are means of the patches of a square. */
#ifndef TENON_CORE_GEMMA4_VISION_H
#define TENON_CORE_GEMMA4_VISION_H

#include "models/parts.h"
#include "models/tower.h"

typedef struct gemma4_vision_spec {
    int64_t depth, hidden, heads, kv_heads, head_dim, inter, patch;
    int64_t places; /* rows of the table of positions of an axis                                      */
    int64_t pool;   /* patches by side of what becomes one row of the text model                      */
    double theta;
    tn_act act;
    bool clipped, standard; /* products within limits of their own; rows less a mean, times a factor           */
    parts_norm_kind norm;
} gemma4_vision_spec;

/* A product, and what it is given and gives kept within limits; CLAMPs, or NULL. */
typedef struct gemma4_linear {
    graph_site *site;
    const tn_site *in, *out;
} gemma4_linear;

typedef struct gemma4_block {
    graph_site *norm[4]; /* before and behind attention, before and behind the MLP                    */
    gemma4_linear q, k, v, o;
    graph_site *q_norm, *k_norm, *v_norm, *attention;
    graph_site *mlp; /* or, clipped:                                                             */
    gemma4_linear gate, up, down;
    const tn_site *act;
} gemma4_block;

typedef struct gemma4_tower {
    gemma4_vision_spec spec;
    multimodal_sight sight;
    tower_marks marks;
    graph_site *patch, *rope, *norm, *projection; /* rope: of half a head                                     */
    tn_tensor positions;                          /* [2 places, hidden]: x, then y                                */
    gemma4_block *blocks;
    const tn_site *copy, *root; /* root: times the root of hidden                                        */
    /* Where rows are standardised. */
    const tn_site *minus, *times;
    tn_tensor mean, factor; /* [hidden]                                                              */
    int64_t text_hidden;
} gemma4_tower;

/* gemma4_vision_run.c */
int64_t gemma4_vision_tokens(const void *state, const tower_media *media, tn_error *err);
int64_t gemma4_vision_largest(const void *state, const tower_media *media);
void gemma4_vision_forward(graph_run *r, const void *state, const tower_media *media, tower_rows *out);

#endif
