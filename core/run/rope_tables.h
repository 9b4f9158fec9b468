/* Inside core: rotary position tables (ARCHITECTURES.md, part B). */
#ifndef TENON_CORE_ROPE_TABLES_H
#define TENON_CORE_ROPE_TABLES_H

#include "checkpoint/checkpoint.h"

typedef enum rope_kind { ROPE_DEFAULT, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_LLAMA3, ROPE_YARN } rope_kind;

enum { ROPE_MAX_DIM = 1024 };

typedef struct rope_params {
    rope_kind kind;
    int64_t dim; /* R, even                                                           */
    double theta, factor;
    int64_t max_positions;            /* max_position_embeddings: where dynamic scaling begins             */
    float scaling;                    /* factor of both cos and sin                                        */
    float inv_freq[ROPE_MAX_DIM / 2]; /* [R/2]; for dynamic: within max_positions                 */
} rope_params;

/* Reads rope_parameters, or rope_scaling with rope_theta, of config. dim: R; default_theta: the class's. */
tn_status rope_init(rope_params *rope, const config_node *config, int64_t dim, double default_theta, tn_error *err);

/* The frequencies of a call whose largest position is length - 1: [R/2] floats. */
void rope_frequencies(const rope_params *rope, int64_t length, float *inv_freq);

/* One row of a table: cos and sin of R values each, both halves equal. */
void rope_row(const rope_params *rope, const float *inv_freq, int64_t position, float *cosine, float *sine);

#endif
