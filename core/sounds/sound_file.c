/* In the child: WAV, FLAC, OGG and MP3 by libsndfile, another rate by libsoxr. */
#include "sounds/sounds.h"

#include <sndfile.h>
#include <soxr.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 4096 }; /* frames that are read at once                                              */

/* SF_FORMAT_MPEG, which the headers before libsndfile 1.1 do not have. */
enum { FORMAT_MPEG = 0x230000 };

typedef struct reader {
    sound_job *job;
    size_t at; /* in the file                                                                        */
    SNDFILE *file;
    SF_INFO info;
    soxr_t resampler;   /* NULL: the rate is what is wanted                                           */
    float *frames;      /* [BLOCK, channels]                                                          */
    float mono[BLOCK];  /* their means                                                                */
    int64_t seen, made; /* frames of the file; samples in the job, or that would be                    */
} reader;

/* ---- the file's bytes ------------------------------------------------------------------------------ */

static sf_count_t file_length(void *user)
{
    return (sf_count_t)((const reader *)user)->job->in.size;
}

static sf_count_t file_seek(sf_count_t offset, int whence, void *user)
{
    reader *r = user;
    sf_count_t size = file_length(r), from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? (sf_count_t)r->at : size;
    if (offset < -from || offset > size - from)
        return -1;
    r->at = (size_t)(from + offset);
    return (sf_count_t)r->at;
}

static sf_count_t file_bytes(void *to, sf_count_t count, void *user)
{
    reader *r = user;
    sf_count_t left = file_length(r) - (sf_count_t)r->at;
    count = count < 0 ? 0 : count < left ? count : left;
    memcpy(to, r->job->in.file + r->at, (size_t)count);
    r->at += (size_t)count;
    return count;
}

static sf_count_t file_tell(void *user)
{
    return (sf_count_t)((const reader *)user)->at;
}

/* ---- what it says of itself -------------------------------------------------------------------------- */

static bool is_flac(const SF_INFO *info)
{
    return (info->format & SF_FORMAT_TYPEMASK) == SF_FORMAT_FLAC;
}

static bool is_known(const SF_INFO *info)
{
    int format = info->format & SF_FORMAT_TYPEMASK;
    return is_flac(info) || format == SF_FORMAT_WAV || format == SF_FORMAT_WAVEX || format == SF_FORMAT_OGG ||
           format == FORMAT_MPEG;
}

static uint32_t number_at(const uint8_t *from, bool highest_first)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; i++)
        value |= (uint32_t)from[i] << 8 * (highest_first ? 3 - i : i);
    return value;
}

/* libsndfile takes what there is of a WAV that was cut. Who wrote it into a pipe knew no length. */
static bool is_cut(const uint8_t *file, size_t size)
{
    static const uint32_t unknown = 0x7fff0000;
    bool swapped = size >= 12 && !memcmp(file, "RIFX", 4), wav = swapped || (size >= 12 && !memcmp(file, "RIFF", 4));
    for (size_t at = 12; wav && size - at >= 8;) {
        uint32_t length = number_at(file + at + 4, swapped);
        bool fits = length <= size - at - 8;
        if (!memcmp(file + at, "data", 4))
            return !fits && length < unknown;
        if (!fits || length + length % 2 > size - at - 8)
            return false;
        at += 8 + length + length % 2;
    }
    return false;
}

static int64_t samples_of(const reader *r, int64_t frames)
{
    return (frames * r->job->rate + r->info.samplerate - 1) / r->info.samplerate;
}

static bool is_long(reader *r, int64_t frames)
{
    int64_t most = r->job->most / r->job->rate;
    if (frames <= (most + 1) * r->info.samplerate && samples_of(r, frames) <= r->job->most)
        return false;
    decoding_fail(&r->job->in, "is longer than %lld s; cut it", (long long)most);
    return true;
}

static bool is_sound(reader *r)
{
    decoding *d = &r->job->in;
    if (!is_known(&r->info))
        decoding_fail(d, "is no WAV, FLAC, OGG or MP3 file");
    else if (r->info.samplerate < SOUNDS_LEAST_RATE || r->info.samplerate > SOUNDS_MOST_RATE)
        decoding_fail(d, "has %d samples in a second; %d to %d are read", r->info.samplerate, SOUNDS_LEAST_RATE,
                      SOUNDS_MOST_RATE);
    else if (r->info.channels < 1 || r->info.channels > SOUNDS_MAX_CHANNELS)
        decoding_fail(d, "has %d channels; 1 to %d are read", r->info.channels, SOUNDS_MAX_CHANNELS);
    else if (is_cut(d->file, d->size))
        decoding_fail(d, "ends too early: its head says that there is more");
    else if (r->info.frames != SF_COUNT_MAX && is_long(r, r->info.frames))
        return false;
    return !d->what[0];
}

/* ---- samples ---------------------------------------------------------------------------------------- */

/* n samples of mono (0: those that are still on their way) to the job, as far as there is room. */
static void put(reader *r, size_t n)
{
    sound_job *job = r->job;
    for (size_t used = 0;;) {
        size_t took = n - used, gave = job->most > r->made ? (size_t)(job->most - r->made) : 0;
        if (gave == 0)
            return;
        if (!r->resampler) {
            gave = gave < took ? gave : took;
            memcpy(job->samples + r->made, r->mono + used, gave * sizeof *r->mono);
        } else if (soxr_process(r->resampler, n ? r->mono + used : NULL, n - used, &took, job->samples + r->made, gave,
                                &gave)) {
            decoding_fail(&job->in, "cannot be brought to %lld samples in a second", (long long)job->rate);
            return;
        }
        r->made += (int64_t)gave;
        used += took;
        if ((n > 0 && used == n) || (took == 0 && gave == 0))
            return;
    }
}

static void average(reader *r, size_t n)
{
    int channels = r->info.channels;
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (int c = 0; c < channels; c++)
            sum += (double)r->frames[i * (size_t)channels + (size_t)c];
        r->mono[i] = (float)(sum / channels);
    }
}

static void read_samples(reader *r)
{
    sound_job *job = r->job;
    for (sf_count_t n; (n = sf_readf_float(r->file, r->frames, BLOCK)) > 0 && !job->in.what[0];) {
        r->seen += n;
        if (is_long(r, r->seen))
            return;
        average(r, (size_t)n);
        put(r, (size_t)n);
    }
    if (sf_error(r->file) != SF_ERR_NO_ERROR)
        decoding_fail(&job->in, "is broken: %.100s", sf_strerror(r->file));
    if (is_flac(&r->info) && r->info.frames != SF_COUNT_MAX && r->seen < r->info.frames)
        decoding_fail(&job->in, "ends too early: its head says that there is more");
    if (r->seen == 0)
        decoding_fail(&job->in, "has no samples");
    if (r->resampler)
        put(r, 0);
    job->count = samples_of(r, r->seen); /* what was not made is 0                                       */
    if (r->made > job->count)
        memset(job->samples + job->count, 0, (size_t)(r->made - job->count) * sizeof *job->samples);
}

static bool prepare(reader *r)
{
    r->frames = malloc(sizeof *r->frames * BLOCK * (size_t)r->info.channels);
    soxr_error_t failed = NULL;
    if (r->info.samplerate != r->job->rate) {
        const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
        r->resampler = soxr_create((double)r->info.samplerate, (double)r->job->rate, 1, &failed, NULL, &quality, NULL);
    }
    if (!r->frames || failed)
        decoding_fail(&r->job->in, "cannot be decoded: out of memory");
    return r->frames && !failed;
}

void sounds_read(sound_job *job)
{
    reader *r = calloc(1, sizeof *r);
    SF_VIRTUAL_IO bytes = {file_length, file_seek, file_bytes, NULL, file_tell};
    if (!r) {
        decoding_fail(&job->in, "cannot be decoded: out of memory");
        return;
    }
    r->job = job;
    r->file = sf_open_virtual(&bytes, SFM_READ, &r->info, r);
    if (!r->file)
        decoding_fail(&job->in, "is no WAV, FLAC, OGG or MP3 file that can be read: %.80s", sf_strerror(NULL));
    else if (is_sound(r) && prepare(r))
        read_samples(r);
    if (r->resampler)
        soxr_delete(r->resampler);
    if (r->file)
        sf_close(r->file);
    free(r->frames);
    free(r);
}
