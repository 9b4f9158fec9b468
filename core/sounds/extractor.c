/* preprocessor_config.json of a WhisperFeatureExtractor, and a call's sounds as it makes them. */
#include "sounds/sounds.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

/* Numbers of a call. */
static const int64_t MOST = INT64_C(1) << 28;

struct extractor {
    int64_t bins, rate, hop, window;
    int64_t chunk; /* samples that sounds are cut or padded to                                          */
    bool longest, said;
    features_plan *plan;
};

void extractor_release(extracted *x)
{
    free(x->mel);
    free(x->lengths);
    *x = (extracted){0};
}

void extractor_free(extractor *e)
{
    if (e)
        features_close(e->plan);
    free(e);
}

int64_t extractor_rate(const extractor *e)
{
    return e->rate;
}

int64_t extractor_most(const extractor *e)
{
    return e->longest ? INT64_MAX : e->chunk;
}

void extractor_pad_to_longest(extractor *e)
{
    e->longest = e->said ? e->longest : true;
}

/* ---- reading --------------------------------------------------------------------------------------- */

static void read_kind(const config_reader *c)
{
    static const char known[] = "WhisperFeatureExtractor";
    const char *name = config_str(c, "feature_extractor_type", "");
    if (*c->status == TN_OK && strcmp(name, known) != 0)
        config_fail(c, "feature_extractor_type", "is '%s', which is not supported; %s is", name, known);
}

/* What would change the numbers, and is not done. */
static void refuse(const config_reader *c)
{
    static const char *const zero[] = {"dither", "padding_value"};
    for (size_t i = 0; i < sizeof zero / sizeof *zero; i++) {
        double value = config_f64(c, zero[i], 0);
        if (!(value == 0))
            config_fail(c, zero[i], "is %g, must be 0", value);
    }
    if (strcmp(config_str(c, "padding_side", "right"), "right") != 0)
        config_fail(c, "padding_side", "must be \"right\"");
    config_bool(c, "return_attention_mask", true); /* which frames are a sound's is told in any case */
}

static void read(const config_reader *c, extractor *e)
{
    static const config_word ways[] = {{"max_length", 0}, {"longest", 1}, {NULL, 0}};
    read_kind(c);
    e->bins = config_i64(c, "feature_size", 80, 1, FEATURES_MOST_BINS);
    e->rate = config_i64(c, "sampling_rate", 16000, 8000, SOUNDS_MOST_WANTED);
    e->window = config_i64(c, "n_fft", 400, FEATURES_LEAST_WINDOW, FEATURES_MOST_WINDOW);
    if (!features_window(e->window))
        config_fail(c, "n_fft", "is %lld, must be even and a product of 2, 3 and 5", (long long)e->window);
    e->hop = config_i64(c, "hop_length", 160, (e->window + 15) / 16, e->window);
    e->chunk = config_i64(c, "chunk_length", 30, 1, SOUNDS_MAX_SECONDS) * e->rate;
    e->said = config_has(c, "padding");
    e->longest = config_choice(c, "padding", "max_length", ways) != 0;
    refuse(c);
}

extractor *extractor_open(const char *folder, tn_error *err)
{
    tn_status status = TN_OK;
    char *path = file_join(folder, "preprocessor_config.json");
    extractor *e = calloc(1, sizeof *e);
    config_file *file = path && e ? config_open(path, err) : NULL;
    if (!path || !e)
        tn_fail(err, TN_E_MEMORY, folder, "out of memory");
    if (file) {
        config_reader c = config_root(file, &status, err);
        read(&c, e);
        config_close(file);
    }
    free(path);
    if (file && status == TN_OK && (e->plan = features_open(e->window, e->hop, e->bins, e->rate, err)))
        return e;
    free(e);
    return NULL;
}

/* ---- running --------------------------------------------------------------------------------------- */

/* Samples of a sound that are looked at. */
static int64_t taken(const extractor *e, const sound *s)
{
    return s->count < extractor_most(e) ? s->count : extractor_most(e);
}

/* Samples that each sound is padded to. */
static int64_t padded_length(const extractor *e, const sound *sounds, int64_t count)
{
    int64_t most = 0;
    for (int64_t i = 0; i < count && e->longest; i++)
        most = sounds[i].count > most ? sounds[i].count : most;
    return e->longest ? most : e->chunk;
}

/* Frames of each sound, and those that are made of all. */
static tn_status count_frames(const extractor *e, const sound *sounds, int64_t length, bool padded, extracted *out,
                              tn_error *err)
{
    int64_t all = length / e->hop;
    if (length <= e->window / 2 || all < 1)
        return tn_fail(err, TN_E_INPUT, "sounds",
                       "are too short: %lld samples at %lld in a second, more than %lld "
                       "are needed",
                       (long long)length, (long long)e->rate,
                       (long long)(e->window / 2 > e->hop ? e->window / 2 : e->hop - 1));
    for (int64_t i = 0; i < out->count; i++) {
        int64_t frames = (taken(e, &sounds[i]) + e->hop - 1) / e->hop;
        out->lengths[i] = frames < all ? frames : all;
        out->frames = out->lengths[i] > out->frames ? out->lengths[i] : out->frames;
    }
    out->frames = padded ? all : out->frames;
    if (out->frames * e->bins > MOST / out->count)
        return tn_fail(err, TN_E_INPUT, "sounds",
                       "make more numbers than one call may have; give fewer or shorter ones");
    return TN_OK;
}

tn_status extractor_run(const extractor *e, const sound *sounds, int64_t count, bool padded, extracted *out,
                        tn_error *err)
{
    int64_t length = padded_length(e, sounds, count);
    *out = (extracted){.count = count, .bins = e->bins, .lengths = malloc((size_t)count * sizeof *out->lengths + 1)};
    tn_status status = out->lengths ? count_frames(e, sounds, length, padded, out, err)
                                    : tn_fail(err, TN_E_MEMORY, "sounds", "out of memory; give fewer at once");
    if (status == TN_OK && !(out->mel = malloc((size_t)(count * e->bins * out->frames) * sizeof *out->mel)))
        status = tn_fail(err, TN_E_MEMORY, "sounds", "out of memory; give fewer at once");
    for (int64_t i = 0; i < count && status == TN_OK; i++) {
        sound heard = {taken(e, &sounds[i]), sounds[i].samples};
        status =
            features_make(e->plan, &heard, length, out->frames, out->mel + i * e->bins * out->frames, out->frames, err);
    }
    if (status != TN_OK)
        extractor_release(out);
    return status;
}
