/* Inside core: sounds from files: decoding them in a child, and the log-mel features that a model's extractor makes. */
#ifndef TENON_CORE_SOUNDS_H
#define TENON_CORE_SOUNDS_H

#include "checkpoint/checkpoint.h"
#include "device/decoding.h"

#include <tenon/error.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is read. */
#define SOUNDS_MAX_SECONDS 1800
#define SOUNDS_MAX_CHANNELS 64
#define SOUNDS_LEAST_RATE 1000
#define SOUNDS_MOST_RATE 384000
/* Samples in a second that an extractor may ask for. */
#define SOUNDS_MOST_WANTED 48000

/* The mean of all channels, about -1 to 1. Owned: sounds_release. */
typedef struct sound {
    int64_t count;
    float *samples;
} sound;
void sounds_release(sound *s);

/* sound.c: a WAV, FLAC, OGG or MP3 file with rate samples in a second (1000 to SOUNDS_MOST_WANTED), in a child
 * (device/decoding.h). As transformers' load_audio with soundfile: another rate becomes this one by soxr's high
 * quality, cut or filled with zeros to ceil(count * rate / its own rate). TN_E_INPUT with one line on what is wrong
 * with the file. */
tn_status sounds_decode(const char *path, int64_t rate, sound *out, tn_error *err);

/* ---- in the child ---- */

typedef struct sound_job {
    decoding in;
    int64_t rate; /* wanted                                                                            */
    int64_t most; /* samples that there is room for                                                     */
    int64_t count;
    float samples[]; /* most                                                                            */
} sound_job;

/* sound_file.c: leaves the samples in the job, or says what is wrong. */
void sounds_read(sound_job *job);

/* ---- features.c ---- */

/* Tables of short Fourier transforms and of triangles on the mel scale. */
typedef struct features_plan features_plan;

enum { FEATURES_LEAST_WINDOW = 16, FEATURES_MOST_WINDOW = 4096, FEATURES_MOST_BINS = 512 };

/* May windows have that many samples: even, and a product of 2, 3 and 5? */
bool features_window(int64_t window);

/* window: n_fft, one that may be; hop: 1 to window; bins: feature_size. Owned: features_close. NULL with TN_E_MEMORY.
 */
features_plan *features_open(int64_t window, int64_t hop, int64_t bins, int64_t rate, tn_error *err);
void features_close(features_plan *plan);

/* Log-mel features of a sound that is followed by zeros up to length samples, of which there must be more than half a
 * window, as WhisperFeatureExtractor makes them: the first columns of length / hop, as out[bin * stride + column]. They
 * are told from the loudest of all of them. TN_E_MEMORY. */
tn_status features_make(const features_plan *plan, const sound *s, int64_t length, int64_t columns, float *out,
                        int64_t stride, tn_error *err);

/* ---- extractor.c ---- */

/* What a model takes. Owned: extractor_release. */
typedef struct extracted {
    int64_t count, bins, frames;
    float *mel;       /* [count, bins, frames]: input_features                                          */
    int64_t *lengths; /* [count]: those of them that are the sound's                                    */
} extracted;
void extractor_release(extracted *x);

typedef struct extractor extractor;

/* Reads folder/preprocessor_config.json. NULL with an error: none there, or of a kind that is not known. */
extractor *extractor_open(const char *folder, tn_error *err);
void extractor_free(extractor *e);
int64_t extractor_rate(const extractor *e);

/* Samples of a sound that are taken: what is behind them is cut off. INT64_MAX: all. */
int64_t extractor_most(const extractor *e);

/* Unless the file says how: sounds are as long as the longest of a call, and none is cut to chunk_length. */
void extractor_pad_to_longest(extractor *e);

/* All of a call's sounds. padded: with the frames behind the longest, too, as transformers gives them. TN_E_INPUT: one
 * is too short, or all make more numbers than a call may have. */
tn_status extractor_run(const extractor *e, const sound *sounds, int64_t count, bool padded, extracted *out,
                        tn_error *err);

#endif
