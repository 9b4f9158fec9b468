/* A plain computation of what the towers of the two omni cases hear, in double precision and with all the padding of
 * the modeling files. */
#ifndef TEST_AUDIO_PLAIN_H
#define TEST_AUDIO_PLAIN_H

#include "checkpoint/checkpoint.h"

enum { AUDIO_PLAIN_MEL = 16, AUDIO_PLAIN_OUT = 64 };

typedef struct audio_plain_tower {
    const shards *weights;
    const char *outer; /* the module around audio_tower, or ""                                    */
    bool planes;       /* Qwen3-Omni's convolutions, which are in two dimensions, and its spans   */
    int64_t n_window, n_window_infer;
} audio_plain_tower;

/* features [clips, mel, frames] f32. [rows, AUDIO_PLAIN_OUT], owned: free(). */
double *audio_plain(const audio_plain_tower *tower, const tn_tensor *features, const int64_t *frames, int64_t clips,
                    int64_t *rows);

#endif
