/* One golden case: a folder with config.json and weights, or a .gguf, and expected.safetensors, whose tensors the
 * README beside the golden data describes. */
#ifndef CHECK_MODELS_GOLDEN_H
#define CHECK_MODELS_GOLDEN_H

#include <stdbool.h>
#include <tenon/tenon.h>

enum { GOLDEN_DEEP = 8 };

/* What to feed and what must come out. A tensor that the file lacks has data NULL. */
typedef struct golden {
    const char *name;
    char model[4096]; /* the folder, or the .gguf in it                                              */
    tn_safetensors *expected;
    tn_tensor ids, mask, positions;             /* positions [B,T], or [3,B,T] that the model computes by itself, too */
    tn_tensor logits, bf16, act, truth, greedy; /* act: by kernels that round their activations        */
    tn_tensor pixels, grid, sizes, places, sound, sound_mask, token_types, mutual; /* media */
    tn_tensor videos, video_grid, video_seconds;
    tn_tensor image_features, video_features, audio_features, deepstack[GOLDEN_DEEP];
    tn_tensor video_deep[GOLDEN_DEEP]; /* of no file: what the tower made in one pass                        */
    tn_tensor embedding, embedding_bf16, last_hidden; /* in place of logits: of what makes vectors of texts   */
    int32_t deep_count;
    int64_t image_token, video_token, audio_token; /* that media features replace; -1: none */
    double bound;         /* of f32, relative to the largest logit                                          */
    int64_t steady_until; /* one pass over at most this many tokens is what steps give, and              */
    int64_t steady_from;  /* ... from this position on (rotary frequencies that follow the length)       */
} golden;

/* false with err filled: it is no such case. The tensors are views into the file: golden_close. */
bool golden_open(golden *g, const char *folder, const char *name, tn_error *err);
void golden_close(golden *g);

/* Is folder one? */
bool golden_is_case(const char *folder);

/* hidden.i as the model's hidden states are, [B,T,H]; false: the file has none that fits. */
bool golden_hidden(const golden *g, int64_t i, int64_t width, tn_tensor *hidden);

/* Has it pictures or sound? */
bool golden_has_media(const golden *g);

/* Is position i of all rows' one that is padding? */
bool golden_masked(const golden *g, int64_t i);

/* Number i of position_ids. */
float golden_position(const golden *g, int64_t i);

#endif
