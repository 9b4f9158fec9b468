/* Inside core: rotary position tables. Which parameters a model has is said in
 * models/rope_config.c. */
#ifndef TENON_CORE_ROPE_TABLES_H
#define TENON_CORE_ROPE_TABLES_H

#include <stdbool.h>
#include <stdint.h>

typedef enum rope_kind {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_DYNAMIC,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_LONG,
    ROPE_PROPORTIONAL
} rope_kind;

enum { ROPE_MAX_DIM = 1024 };
enum { ROPE_AXES = 3 }; /* positions of a token in time, height and width; those of text are equal   */

typedef struct rope_params {
    rope_kind kind;
    int64_t dim;    /* R, even                                                                       */
    double partial; /* share of the head that rotates; proportional: the rest of R stands still      */
    double theta, factor;
    int64_t max_positions;          /* max_position_embeddings: where dynamic scaling begins                  */
    double original;                /* llama3, yarn, longrope: positions of the model that was extended       */
    double low, high;               /* llama3: low_freq_factor, high_freq_factor                              */
    double fast, slow;              /* yarn: beta_fast, beta_slow                                             */
    bool truncate;                  /* yarn: to whole frequencies                                             */
    double mscale_all;              /* mscale_all_dim of any scaled kind, which scales some models' scores    */
    bool f32_tables;                /* whatever the model's dtype is                                          */
    uint8_t axis[ROPE_MAX_DIM / 2]; /* [R/2]: whose position each frequency turns by; all 0: of one axis     */
    /* Made by rope_tables_init, but scaling where scaling_given. */
    bool scaling_given;
    float scaling;                     /* factor of both cos and sin                                 */
    float inv_freq[ROPE_MAX_DIM / 2];  /* [R/2]; dynamic: within max_positions; longrope: within original. Before
                                          rope_tables_init: longrope's short_factor                  */
    float long_freq[ROPE_MAX_DIM / 2]; /* longrope: beyond original. Before: long_factor             */
} rope_params;

/* Makes the frequencies and scaling of the parameters above, which must be sound. */
void rope_tables_init(rope_params *rope);

/* yarn's factor of cos and sin for a context that is scale times as long. */
double rope_tables_yarn_scale(double scale, double mscale);

/* Do the frequencies depend on the length of the call? */
bool rope_tables_follow(const rope_params *rope);

/* Have they changed at that length? Keys that were rotated then fit no shorter text. */
bool rope_tables_moved(const rope_params *rope, int64_t length);

/* The length whose frequencies a call gets whose largest position is length - 1, after calls that had before. */
int64_t rope_tables_length(const rope_params *rope, int64_t before, int64_t length);

/* The frequencies for that length: [R/2] floats. */
void rope_tables_frequencies(const rope_params *rope, int64_t length, float *inv_freq);

/* One row of a table: cos and sin of R values each, both halves equal. */
void rope_tables_row(const rope_params *rope, const float *inv_freq, const float position[ROPE_AXES], float *cosine,
                     float *sine);

#endif
