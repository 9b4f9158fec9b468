/* A sound's file decoded in a child process. */
#include "sounds/sounds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void sounds_release(sound *s)
{
    free(s->samples);
    *s = (sound){0};
}

typedef struct question {
    int64_t rate;
    sound *out;
} question;

static void begin(decoding *d, const void *ctx)
{
    const question *q = ctx;
    sound_job *job = (sound_job *)d;
    job->rate = q->rate;
    job->most = SOUNDS_MAX_SECONDS * q->rate;
}

static void read_sound(decoding *d)
{
    sounds_read((sound_job *)d);
}

static tn_status take(const decoding *d, const char *path, void *ctx, tn_error *err)
{
    const sound_job *job = (const sound_job *)d;
    const question *q = ctx;
    int64_t count = job->count;
    if (count < 1 || count > SOUNDS_MAX_SECONDS * q->rate)
        return tn_fail(err, TN_E_INPUT, path, "has no sound");
    float *samples = malloc((size_t)count * sizeof *samples);
    if (!samples)
        return tn_fail(err, TN_E_MEMORY, path, "out of memory for %lld samples", (long long)count);
    memcpy(samples, job->samples, (size_t)count * sizeof *samples);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(samples[i])) {
            free(samples);
            return tn_fail(err, TN_E_INPUT, path, "has samples that are no numbers, the first one at %.3f s",
                           (double)i / (double)q->rate);
        }
    *q->out = (sound){count, samples};
    return TN_OK;
}

tn_status sounds_decode(const char *path, int64_t rate, sound *out, tn_error *err)
{
    const decoding_kind kind = {.most = (size_t)1 << 30,
                                .bytes = sizeof(sound_job) + (size_t)(SOUNDS_MAX_SECONDS * rate) * sizeof(float),
                                .begin = begin,
                                .read = read_sound,
                                .take = take};
    *out = (sound){0};
    return decoding_run(&kind, path, &(question){rate, out}, err);
}
