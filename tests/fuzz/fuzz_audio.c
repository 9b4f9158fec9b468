/* Any bytes as a sound: decoded where a child would, and taken by an extractor, whose numbers must be some. */
#include "fuzz.h"
#include "sounds/sounds.h"

#include <math.h>

FUZZ_ENTRY(fuzz_audio)

enum { RATE = 16000, SAMPLES = 4 * RATE }; /* so that one input takes no second                         */

/* Made anew for each input: what it keeps would be found here. */
static void extract(const sound *s)
{
    tn_error err = TN_ERROR_INIT;
    extracted x;
    extractor *e = extractor_open("tests/data/media/audio_longest", &err);
    fuzz_require(e != NULL, "an extractor's own config is refused");
    extractor_pad_to_longest(e);
    tn_status status = extractor_run(e, s, 1, false, &x, &err);
    fuzz_agree(status == TN_OK, &err);
    fuzz_require(status == TN_OK || s->count <= 200, "a sound is too short that is not");
    for (int64_t i = 0; status == TN_OK && i < x.count * x.bins * x.frames; i++)
        fuzz_require(isfinite(x.mel[i]), "a feature is no number");
    if (status == TN_OK)
        extractor_release(&x);
    extractor_free(e);
}

static bool all_finite(const sound *s)
{
    for (int64_t i = 0; i < s->count; i++)
        if (!isfinite(s->samples[i]))
            return false;
    return true;
}

int fuzz_audio(const uint8_t *data, size_t size)
{
    static sound_job *job;
    if (!job && !(job = malloc(sizeof *job + SAMPLES * sizeof(float))))
        abort();
    memset(job, 0, sizeof *job + SAMPLES * sizeof(float));
    job->in.file = data;
    job->in.size = size;
    job->rate = RATE;
    job->most = SAMPLES;
    sounds_read(job);
    fuzz_require(!strchr(job->in.what, '\n'), "what is wrong is not one line");
    fuzz_require(job->count <= SAMPLES, "a sound is longer than was allowed");
    const sound s = {job->count, job->samples};
    if (!job->in.what[0] && s.count > 0 && all_finite(&s))
        extract(&s);
    return 0;
}
