/* Sounds from files: what is broken, too long or no sound; what preprocessor_config.json may say; log-mel features
 * against a slow twin. What is read right is compared with transformers' in check_media. */
#include "sounds/sounds.h"

#include "base/random.h"
#include "suite.h"
#include "tempdir.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <sndfile.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILES "tests/data/media/files/"

enum { RATE = 16000 };

static void refused(const char *path, const char *words)
{
    tn_error err = TN_ERROR_INIT;
    sound s;
    ck_assert_msg(sounds_decode(path, RATE, &s, &err) == TN_E_INPUT, "%s: %d %s", words, (int)err.code, err.message);
    ck_assert_ptr_null(s.samples);
    suite_expect_in(err.message, words);
    ck_assert_ptr_null(strchr(err.message, '\n'));
}

static sound heard(const char *path)
{
    tn_error err = TN_ERROR_INIT;
    sound s;
    ck_assert_msg(sounds_decode(path, RATE, &s, &err) == TN_OK, "%s: %s", err.where, err.message);
    suite_keep(s.samples, free);
    return s;
}

static char *file_with(const void *data, size_t size)
{
    char *path = tempdir_at(tempdir_new(), "sound");
    tempdir_write(path, data, size);
    return path;
}

static void put_little(uint8_t *to, uint32_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (uint8_t)(value >> 8 * i);
}

/* A WAV of f32 whose head says what it is told; data is what there really is. */
typedef struct wav {
    uint32_t rate, channels, length;
} wav;

static char *wav_of(wav w, const float *data, size_t count)
{
    uint8_t *file = calloc(1, 44 + 4 * count);
    memcpy(file, "RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x03\0", 22);
    put_little(file + 4, (uint32_t)(36 + 4 * count), 4);
    put_little(file + 22, w.channels, 2);
    put_little(file + 24, w.rate, 4);
    put_little(file + 28, w.rate * w.channels * 4, 4);
    put_little(file + 32, w.channels * 4, 2);
    put_little(file + 34, 32, 2);
    memcpy(file + 36, "data", 4);
    put_little(file + 40, w.length, 4);
    memcpy(file + 44, data, 4 * count);
    char *path = file_with(file, 44 + 4 * count);
    free(file);
    return path;
}

static sound draw(int64_t count, uint64_t seed)
{
    sound s = {count, malloc((size_t)count * sizeof(float))};
    random_state r = {.state = seed};
    for (int64_t i = 0; i < count; i++)
        s.samples[i] = 0.3f * sinf((float)i * 0.05f) + 1e-3f * (float)(random_bits(&r) % 200) - 0.1f;
    suite_keep(s.samples, free);
    return s;
}

/* As libsndfile writes it. */
static char *written(int format, int rate, int channels, const sound *s)
{
    char *path = tempdir_at(tempdir_new(), "sound");
    SF_INFO info = {.samplerate = rate, .channels = channels, .format = format};
    SNDFILE *file = sf_open(path, SFM_WRITE, &info);
    ck_assert_msg(file != NULL, "%s", sf_strerror(NULL));
    ck_assert_int_eq(sf_writef_float(file, s->samples, s->count / channels), s->count / channels);
    sf_close(file);
    return path;
}

/* ---- what is read ---- */

START_TEST(formats)
{
    static const struct {
        int format;
        double off; /* of what loses something: in the mean                                             */
    } all[] = {{SF_FORMAT_WAV | SF_FORMAT_PCM_16, 1.0 / 32768},
               {SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 1.0 / 32768},
               {SF_FORMAT_OGG | SF_FORMAT_VORBIS, 0.05},
               {SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 0.05}};
    sound from = draw(RATE / 2, 1);
    char *path = written(all[_i].format, RATE, 1, &from);
    sound s = heard(path);
    ck_assert_int_ge(s.count, from.count); /* MP3 has whole frames                                      */
    ck_assert_int_lt(s.count, from.count + 4000);
    double sum = 0;
    for (int64_t i = 0; i < from.count; i++)
        sum += fabs((double)s.samples[i] - (double)from.samples[i]);
    ck_assert_double_le(sum / (double)from.count, all[_i].off);
}
END_TEST

START_TEST(channels_are_averaged)
{
    sound from = draw(3000, 2), s = heard(written(SF_FORMAT_WAV | SF_FORMAT_FLOAT, RATE, 3, &from));
    ck_assert_int_eq(s.count, 1000);
    for (int64_t i = 0; i < s.count; i++) {
        const float *x = from.samples + 3 * i;
        ck_assert(s.samples[i] == (float)(((double)x[0] + (double)x[1] + (double)x[2]) / 3));
    }
}
END_TEST

/* A tone keeps its pitch and its size, whatever the rate of the file; there are as many samples as there should be. */
START_TEST(rates)
{
    static const int rates[] = {8000, 11025, 22050, 44100, 48000, 96000, 384000};
    int rate = rates[_i];
    sound from = {rate / 4 + 7, malloc(sizeof(float) * (size_t)(rate / 4 + 7))};
    for (int64_t i = 0; i < from.count; i++)
        from.samples[i] = (float)(0.5 * sin(2 * M_PI * 440 * (double)i / rate));
    sound s = heard(written(SF_FORMAT_WAV | SF_FORMAT_FLOAT, rate, 1, &from));
    free(from.samples);
    ck_assert_int_eq(s.count, (from.count * RATE + rate - 1) / rate);
    for (int64_t i = 400; i < s.count - 400; i++)
        ck_assert_double_le(fabs((double)s.samples[i] - 0.5 * sin(2 * M_PI * 440 * (double)i / RATE)), 2e-3);
}
END_TEST

/* ---- what is not ---- */

START_TEST(no_sounds)
{
    refused("tests/data/media/README.md", "is no WAV, FLAC, OGG or MP3 file");
    refused(FILES "tiny_3x5.png", "is no WAV, FLAC, OGG or MP3 file");
    refused(file_with("", 0), "is no WAV, FLAC, OGG or MP3 file");
    sound from = draw(RATE, 3);
    refused(written(SF_FORMAT_AIFF | SF_FORMAT_PCM_16, RATE, 1, &from), "is no WAV, FLAC, OGG or MP3 file");
    tn_error err = TN_ERROR_INIT;
    sound s;
    ck_assert_int_eq(sounds_decode("tests/data/no/such.wav", RATE, &s, &err), TN_E_INPUT);
}
END_TEST

START_TEST(heads_that_lie)
{
    static const float data[4] = {0, 0.5f, 0.25f, 1};
    refused(wav_of((wav){0, 1, 16}, data, 4), "is");
    refused(wav_of((wav){999, 1, 16}, data, 4), "has 999 samples in a second; 1000 to 384000 are read");
    refused(wav_of((wav){2000000, 1, 16}, data, 4), "has 2000000 samples in a second");
    refused(wav_of((wav){RATE, 0, 16}, data, 4), "is");
    refused(wav_of((wav){RATE, 65, 16}, data, 4), "has 65 channels; 1 to 64 are read");
    refused(wav_of((wav){RATE, 65535, 16}, data, 4), "is");
    refused(wav_of((wav){RATE, 1, 17}, data, 4), "ends too early");
    refused(wav_of((wav){RATE, 1, 0x7ff00000u - 1}, data, 4), "ends too early");
    refused(wav_of((wav){RATE, 1, 0}, data, 0), "has no samples");
    size_t size;
    sound from = draw(RATE, 8);
    char *swapped = tempdir_read(written(SF_FORMAT_WAV | SF_FORMAT_PCM_16 | SF_ENDIAN_BIG, RATE, 1, &from), &size);
    ck_assert(memcmp(swapped, "RIFX", 4) == 0 && size == 44 + 2 * RATE);
    ck_assert_int_eq(heard(file_with(swapped, size)).count, RATE);
    refused(file_with(swapped, size - 2), "ends too early");
    free(swapped);
    ck_assert_int_eq(heard(wav_of((wav){RATE, 1, UINT32_MAX}, data, 4)).count, 4); /* written into a pipe      */
    ck_assert_int_eq(heard(wav_of((wav){RATE, 1, 16}, data, 4)).count, 4);
}
END_TEST

/* A FLAC whose head claims 2^36 - 1 frames, of which it has no more than before, or none, which it does not mean. */
START_TEST(a_length_that_lies)
{
    size_t size;
    sound from = draw(RATE, 4);
    uint8_t *file = tempdir_read(written(SF_FORMAT_FLAC | SF_FORMAT_PCM_16, RATE, 1, &from), &size);
    file[21] |= 0x0f;
    memset(file + 22, 0xff, 4);
    refused(file_with(file, size), "is longer than 1800 s; cut it");
    file[21] &= 0xf0; /* twice as many as there are                                                      */
    memcpy(file + 22, (uint8_t[]){0, 0, 2 * RATE >> 8, 2 * RATE & 255}, 4);
    refused(file_with(file, size), "ends too early");
    memset(file + 22, 0, 4); /* written into a pipe                                                      */
    ck_assert_int_eq(heard(file_with(file, size)).count, RATE);
    free(file);
}
END_TEST

START_TEST(numbers_that_are_none)
{
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        float data[4] = {0, 0, bad[i], 0};
        refused(wav_of((wav){RATE, 1, 16}, data, 4), "has samples that are no numbers, the first one at 0.000 s");
    }
    float large[4] = {FLT_MAX, -FLT_MAX, FLT_MAX, FLT_MAX};
    sound s = heard(wav_of((wav){RATE, 1, 16}, large, 4));
    ck_assert(s.samples[0] == FLT_MAX);
}
END_TEST

/* More than half an hour, though nothing says so before it is there. */
START_TEST(too_long)
{
    int rate = SOUNDS_LEAST_RATE;
    sound s = {.count = (int64_t)rate * SOUNDS_MAX_SECONDS + 1};
    s.samples = calloc((size_t)s.count, sizeof *s.samples);
    refused(written(SF_FORMAT_WAV | SF_FORMAT_PCM_U8, rate, 1, &s), "is longer than 1800 s");
    s.count--;
    sound longest = heard(written(SF_FORMAT_WAV | SF_FORMAT_PCM_U8, rate, 1, &s));
    ck_assert_int_eq(longest.count, (int64_t)RATE * SOUNDS_MAX_SECONDS);
    free(s.samples);
}
END_TEST

/* Each file cut anywhere, and with bytes that were changed, is refused or read, but ends nobody. */
START_TEST(broken_files)
{
    static const int all[] = {SF_FORMAT_WAV | SF_FORMAT_PCM_16, SF_FORMAT_WAV | SF_FORMAT_ULAW,
                              SF_FORMAT_FLAC | SF_FORMAT_PCM_16, SF_FORMAT_OGG | SF_FORMAT_VORBIS,
                              SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III};
    size_t size;
    sound from = draw(4000, 5), s;
    char *file = tempdir_read(written(all[_i], RATE, 1, &from), &size);
    random_state r = {.state = (uint64_t)_i};
    tn_error err = TN_ERROR_INIT;
    for (int change = 0; change < 30; change++) {
        char *other = malloc(size);
        memcpy(other, file, size);
        for (int n = 0; n < 5 && change >= 8; n++)
            other[random_bits(&r) % (change % 2 ? size : 64)] = (char)random_bits(&r);
        if (sounds_decode(file_with(other, change < 8 ? size * (size_t)change / 8 : size), RATE, &s, &err) == TN_OK)
            sounds_release(&s);
        else
            ck_assert_int_eq(err.code, TN_E_INPUT);
        tn_error_clear(&err);
        free(other);
    }
    free(file);
}
END_TEST

/* ---- features: a slow twin, from the formulas ---- */

static double mel(double hertz)
{
    return hertz < 1000 ? hertz / (200.0 / 3) : 15 + log(hertz / 1000) / (log(6.4) / 27);
}

static double hertz(double m)
{
    return m < 15 ? m * (200.0 / 3) : 1000 * exp((m - 15) * (log(6.4) / 27));
}

static double weight(int64_t bin, int64_t bins, double at)
{
    double step = mel(8000) / (double)(bins + 1), low = hertz(step * (double)bin);
    double peak = hertz(step * (double)(bin + 1)), high = hertz(step * (double)(bin + 2));
    double side = at < peak ? (at - low) / (peak - low) : (high - at) / (high - peak);
    return side > 0 ? side * 2 / (high - low) : 0;
}

/* The padded and reflected sample at i. */
static double slow_sample(const sound *s, int64_t length, int64_t i)
{
    i = llabs(i);
    i = i < length ? i : 2 * length - 2 - i;
    return i < s->count ? (double)s->samples[i] : 0;
}

static double slow_power(const sound *s, int64_t length, int64_t begin, int64_t window, int64_t k)
{
    double re = 0, im = 0;
    for (int64_t i = 0; i < window; i++) {
        double x = slow_sample(s, length, begin + i) * pow(sin(M_PI * (double)i / (double)window), 2);
        re += x * cos(2 * M_PI * (double)(i * k % window) / (double)window);
        im += x * sin(2 * M_PI * (double)(i * k % window) / (double)window);
    }
    return re * re + im * im;
}

typedef struct shape {
    int64_t window, hop, bins, rate, count, length;
} shape;

static void slow_features(const shape *p, const sound *s, double *out)
{
    int64_t frames = p->length / p->hop;
    double loudest = -INFINITY, *power = malloc((size_t)(p->window / 2 + 1) * sizeof *power);
    for (int64_t t = 0; t < frames; t++) {
        for (int64_t k = 0; k <= p->window / 2; k++)
            power[k] = slow_power(s, p->length, t * p->hop - p->window / 2, p->window, k);
        for (int64_t b = 0; b < p->bins; b++) {
            double sum = 0;
            for (int64_t k = 0; k <= p->window / 2; k++)
                sum += power[k] * weight(b, p->bins, (double)(p->rate / 2 * k) / (double)(p->window / 2));
            out[b * frames + t] = log10(fmax(sum, 1e-10));
            loudest = fmax(loudest, out[b * frames + t]);
        }
    }
    for (int64_t i = 0; i < p->bins * frames; i++)
        out[i] = (fmax(out[i], loudest - 8) + 4) / 4;
    free(power);
}

/* Both work in double, where what cancels is some 2^-48 of the loudest amplitude, which is at most 10^4 times what
 * counts. The fast way rounds weights, logarithms (below 16 in size) and results to f32: each of the latter two is off
 * by 2^-24 of 16 at most, and a quarter of the first counts. */
START_TEST(features_as_slowly)
{
    static const shape shapes[] = {
        {400, 160, 80, 16000, 1234, 1234}, {400, 160, 128, 16000, 1500, 4000}, {400, 160, 128, 16000, 2900, 3000},
        {16, 1, 5, 8000, 40, 60},          {250, 250, 20, 16000, 700, 1000},   {512, 100, 40, 22050, 1100, 1100},
        {360, 50, 17, 48000, 400, 1000},   {400, 160, 80, 16000, 1, 201},      {486, 486, 3, 11025, 486, 486}};
    const shape *p = &shapes[_i];
    int64_t frames = p->length / p->hop, part = frames > 2 ? frames - 2 : frames;
    tn_error err = TN_ERROR_INIT;
    sound s = draw(p->count, (uint64_t)_i);
    double *slow = malloc((size_t)(frames * p->bins) * sizeof *slow);
    float *fast = malloc((size_t)(frames * p->bins) * sizeof *fast);
    ck_assert(features_window(p->window));
    features_plan *plan = features_open(p->window, p->hop, p->bins, p->rate, &err);
    slow_features(p, &s, slow);
    for (int64_t columns = part; columns <= frames; columns += 2) {
        ck_assert_int_eq(features_make(plan, &s, p->length, columns, fast, columns, &err), TN_OK);
        for (int64_t i = 0; i < p->bins * columns; i++)
            ck_assert_double_le(fabs((double)fast[i] - slow[i / columns * frames + i % columns]), 1.5e-6);
    }
    features_close(plan);
    free(slow);
    free(fast);
}
END_TEST

START_TEST(windows)
{
    static const int64_t good[] = {16, 400, 512, 4096, 3750}, bad[] = {-2, 0, 14, 15, 225, 401, 402, 4098, 8192, 22};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        ck_assert_msg(features_window(good[i]), "%d", (int)good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(!features_window(bad[i]), "%d", (int)bad[i]);
}
END_TEST

/* ---- preprocessor_config.json ---- */

#define WHISPER "\"feature_extractor_type\": \"WhisperFeatureExtractor\""

static extractor *extractor_of(const char *config, tn_error *err)
{
    char *folder = tempdir_new();
    tempdir_put(folder, "preprocessor_config.json", config);
    return extractor_open(folder, err);
}

static const struct {
    const char *config, *words; /* NULL: it opens                                                         */
} configs[] = {
    {"{" WHISPER "}", NULL},
    {"{" WHISPER ", \"padding\": \"longest\", \"do_normalize\": true, \"return_attention_mask\": false}", NULL},
    {"{}", "feature_extractor_type"},
    {"{\"feature_extractor_type\": \"EncodecFeatureExtractor\"}", "WhisperFeatureExtractor is"},
    {"{" WHISPER ", \"feature_size\": 0}", "feature_size"},
    {"{" WHISPER ", \"feature_size\": -80}", "feature_size"},
    {"{" WHISPER ", \"feature_size\": 1e99}", "feature_size"},
    {"{" WHISPER ", \"feature_size\": 1000000000000}", "feature_size"},
    {"{" WHISPER ", \"sampling_rate\": 0}", "sampling_rate"},
    {"{" WHISPER ", \"sampling_rate\": \"16000\"}", "sampling_rate"},
    {"{" WHISPER ", \"n_fft\": 0}", "n_fft"},
    {"{" WHISPER ", \"n_fft\": 401}", "must be even and a product of 2, 3 and 5"},
    {"{" WHISPER ", \"n_fft\": 1000000}", "n_fft"},
    {"{" WHISPER ", \"hop_length\": 0}", "hop_length"},
    {"{" WHISPER ", \"hop_length\": 1}", "hop_length"},
    {"{" WHISPER ", \"hop_length\": 401}", "hop_length"},
    {"{" WHISPER ", \"chunk_length\": 0}", "chunk_length"},
    {"{" WHISPER ", \"chunk_length\": 1801}", "chunk_length"},
    {"{" WHISPER ", \"dither\": 0.1}", "'dither' is 0.1, must be 0"},
    {"{" WHISPER ", \"dither\": NaN}", "preprocessor_config.json"},
    {"{" WHISPER ", \"padding_value\": 1}", "padding_value"},
    {"{" WHISPER ", \"padding_side\": \"left\"}", "padding_side"},
    {"{" WHISPER ", \"padding\": \"shortest\"}", "padding"},
    {"{" WHISPER ", \"return_attention_mask\": 3}", "return_attention_mask"},
    {"[]", "object"},
    {"{", "JSON"},
};

START_TEST(a_config)
{
    tn_error err = TN_ERROR_INIT;
    char said[sizeof err.where + sizeof err.message + 2];
    extractor *e = extractor_of(configs[_i].config, &err);
    snprintf(said, sizeof said, "%s: %s", err.where, err.message);
    if (configs[_i].words) {
        ck_assert_ptr_null(e);
        ck_assert_int_eq(err.code, TN_E_INPUT);
        suite_expect_in(said, configs[_i].words);
    } else {
        ck_assert_msg(e, "%s", said);
    }
    extractor_free(e);
}
END_TEST

/* Frames of a sound, alone and beside a longer one, cut to a chunk and whole. */
START_TEST(lengths)
{
    tn_error err = TN_ERROR_INIT;
    sound both[] = {draw(RATE + 1, 6), draw(3 * RATE, 7)};
    extracted x;
    extractor *e = extractor_of("{" WHISPER ", \"chunk_length\": 2, \"feature_size\": 4}", &err);
    ck_assert_int_eq(extractor_run(e, both, 2, false, &x, &err), TN_OK);
    ck_assert_int_eq(x.frames, 200);
    ck_assert_int_eq(x.lengths[0], 101);
    ck_assert_int_eq(x.lengths[1], 200);
    extractor_release(&x);
    ck_assert_int_eq(extractor_run(e, both, 1, false, &x, &err), TN_OK);
    ck_assert_int_eq(x.frames, 101);
    extractor_release(&x);
    ck_assert_int_eq(extractor_run(e, both, 1, true, &x, &err), TN_OK);
    ck_assert_int_eq(x.frames, 200);
    extractor_release(&x);
    extractor_pad_to_longest(e);
    ck_assert_int_eq(extractor_run(e, both, 2, false, &x, &err), TN_OK);
    ck_assert_int_eq(x.frames, 300);
    ck_assert_int_eq(x.lengths[0], 101);
    extractor_release(&x);
    ck_assert_int_eq(extractor_run(e, both, 1, false, &x, &err), TN_OK);
    ck_assert_int_eq(x.lengths[0], 100); /* the last frame has its middle behind the end                  */
    extractor_release(&x);
    both[0].count = 200;
    ck_assert_int_eq(extractor_run(e, both, 1, false, &x, &err), TN_E_INPUT);
    suite_expect_in(err.message, "are too short: 200 samples at 16000 in a second, more than 200 are needed");
    extractor_free(e);
    tn_error_clear(&err);
    e = extractor_of("{" WHISPER ", \"padding\": \"max_length\"}", &err);
    extractor_pad_to_longest(e); /* the file has the last word                                              */
    both[0].count = RATE;
    ck_assert_int_eq(extractor_run(e, both, 1, true, &x, &err), TN_OK);
    ck_assert_int_eq(x.frames, 3000);
    extractor_release(&x);
    extractor_free(e);
}
END_TEST

/* 70 sounds of half an hour each are 2^28 numbers and more; nothing of them is made.                        */
START_TEST(too_many)
{
    enum { MANY = 70 };
    tn_error err = TN_ERROR_INIT;
    sound all[MANY];
    extracted x;
    float none = 0;
    extractor *e = extractor_of("{" WHISPER ", \"feature_size\": 512, \"padding\": \"longest\"}", &err);
    for (int i = 0; i < MANY; i++)
        all[i] = (sound){(int64_t)SOUNDS_MAX_SECONDS * RATE, &none};
    ck_assert_int_eq(extractor_run(e, all, MANY, false, &x, &err), TN_E_INPUT);
    suite_expect_in(err.message, "make more numbers than one call may have");
    ck_assert_ptr_null(x.lengths);
    extractor_free(e);
}
END_TEST

int main(void)
{
    TCase *c = suite_open("sounds", 120);
    tcase_add_loop_test(c, formats, 0, 4);
    tcase_add_loop_test(c, rates, 0, 7);
    tcase_add_loop_test(c, broken_files, 0, 5);
    tcase_add_loop_test(c, features_as_slowly, 0, 9);
    tcase_add_loop_test(c, a_config, 0, sizeof configs / sizeof *configs);
    suite_add(c, channels_are_averaged, no_sounds, heads_that_lie, a_length_that_lies, numbers_that_are_none, too_long,
              windows, lengths, too_many);
    return suite_run();
}
