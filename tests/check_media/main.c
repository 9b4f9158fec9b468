/* Pictures, sounds and what processors make of them against what transformers makes of the same files.
 *   check_media DIR: DIR/files, DIR/decoded and a folder for each processor, as ../shared/media/README.md describes.
 * Ends with "N passed, N failed, N skipped"; status 1 when something failed. */
#include "checkpoint/checkpoint.h"
#include "pictures/processor.h"
#include "sounds/sounds.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/half.h>
#include <tenon/tenon.h>
#include <unistd.h>

static int passed, failed, skipped;

static void report(bool ok, const char *what, const char *file, const char *text)
{
    printf("%s %-20s %-24s %s\n", ok ? "ok  " : "FAIL", what, file, text);
    fflush(stdout);
    ok ? passed++ : failed++;
}

/* ---- what is expected ------------------------------------------------------------------------------ */

/* The tensor, whole or as a sample: places and values. */
typedef struct wanted {
    tn_tensor shape, at, values, sums;
    bool whole;
} wanted;

static bool get(const tn_safetensors *file, const char *name, const char *end, tn_tensor *t)
{
    char full[300];
    snprintf(full, sizeof full, "%s%s", name, end);
    return tn_safetensors_get(file, full, t);
}

static bool find(const tn_safetensors *file, const char *name, wanted *w)
{
    *w = (wanted){0};
    w->whole = get(file, name, "", &w->values);
    if (w->whole)
        return true;
    get(file, name, ".sums", &w->sums);
    return get(file, name, ".shape", &w->shape) && get(file, name, ".at", &w->at) &&
           get(file, name, ".values", &w->values);
}

/* Of a tensor of f32 or bf16. */
static double number(const tn_tensor *t, int64_t i)
{
    return t->dtype == TN_BF16 ? (double)tn_bf16_to_f32(((const uint16_t *)t->data)[i])
                               : (double)((const float *)t->data)[i];
}

static int64_t dims(const wanted *w, int64_t shape[8])
{
    int64_t n = w->whole ? w->values.ndim : w->shape.shape[0];
    for (int64_t i = 0; i < n; i++)
        shape[i] = w->whole ? w->values.shape[i] : ((const int64_t *)w->shape.data)[i];
    return n;
}

static int64_t place(const wanted *w, int64_t i)
{
    return w->whole ? i : ((const int32_t *)w->at.data)[i];
}

static bool same_shape(const wanted *w, int64_t ndim, const int64_t *shape, char text[200])
{
    int64_t other[8], n = dims(w, other);
    bool same = n == ndim;
    for (int64_t i = 0; i < n && same; i++)
        same = shape[i] == other[i];
    if (!same)
        snprintf(text, 200, "has another shape: %lld dimensions, [%lld, %lld, ...], expected %lld, [%lld, %lld, ...]",
                 (long long)ndim, (long long)shape[0], (long long)shape[1], (long long)n, (long long)other[0],
                 (long long)other[1]);
    return same;
}

/* ---- decoding ---------------------------------------------------------------------------------------- */

/* PNG exactly; JPEG within a level. 16 bits of gray are read in another way than Pillow does, on purpose. */
static void check_decoded(const tn_safetensors *file, const char *folder, const char *name)
{
    char path[1024], key[300], text[200] = "";
    tn_error err = TN_ERROR_INIT;
    picture p;
    wanted w;
    snprintf(key, sizeof key, "%s:rgb", name);
    if (!find(file, key, &w))
        return;
    if (strstr(name, "gray16")) {
        printf("SKIPPED %s: 16 bits of gray are read in another way on purpose\n", name);
        skipped++;
        return;
    }
    snprintf(path, sizeof path, "%s/files/%s", folder, name);
    if (pictures_decode(path, &p, &err) != TN_OK) {
        report(false, "decoded", name, err.message);
        return;
    }
    int most = 0, allowed = strstr(name, ".jpg") ? 1 : 0;
    bool ok = same_shape(&w, 3, (int64_t[]){p.height, p.width, 3}, text);
    for (int64_t i = 0; i < tn_tensor_count(&w.values) && ok; i++) {
        int off = abs((int)p.rgb[place(&w, i)] - (int)((const uint8_t *)w.values.data)[i]);
        most = off > most ? off : most;
    }
    if (ok)
        snprintf(text, sizeof text, "%lld by %lld pixels, off by at most %d levels", (long long)p.width,
                 (long long)p.height, most);
    report(ok && most <= allowed, "decoded", name, text);
    pictures_release(&p);
}

/* ---- processors -------------------------------------------------------------------------------------- */

/* No element off by more than 1.01 levels, at most 1 % of them by more than 0.01; sums within 1e-3. */
static bool same_pixels(const wanted *w, const processed *x, const processor *p, char text[200])
{
    int64_t shape[8], n = dims(w, shape), many = 0, count = tn_tensor_count(&w->values), all = 1;
    int64_t plane = n == 2 ? shape[1] / 3 : shape[n - 1] * shape[n - 2];
    double most = 0, sums[2] = {0, 0};
    for (int64_t i = 0; i < count; i++) {
        int64_t at = place(w, i), channel = n == 2 ? at % shape[1] / plane : at / plane % 3;
        double byte = (double)(p->level[channel][255] - p->level[channel][0]) / 255;
        double off = fabs((double)x->pixels[at] - number(&w->values, i)) / byte;
        most = off <= most ? most : off; /* a NaN stays */
        many += !(off <= 0.01);
    }
    for (int64_t i = 0; i < n; i++)
        all *= shape[i];
    for (int64_t i = 0; i < all; i++) {
        sums[0] += (double)x->pixels[i];
        sums[1] += (double)x->pixels[i] * (double)x->pixels[i];
    }
    bool sound = true;
    for (int i = 0; i < 2 && w->sums.data; i++) {
        double wanted_sum = ((const double *)w->sums.data)[i];
        sound = sound && fabs(sums[i] - wanted_sum) <= 1e-3 * fmax(fabs(wanted_sum), 1);
    }
    snprintf(text, 200, "off by at most %.3f levels, %.2f %% by more than 0.01%s", most,
             100.0 * (double)many / (double)count, sound ? "" : "; the sums are others");
    return sound && most <= 1.01 && (double)many <= 0.01 * (double)count;
}

static void check_integers(const tn_safetensors *file, const char *what, const char *name, const char *output,
                           const int64_t *own, int64_t count, int64_t subtract)
{
    char key[300], text[200] = "another number of elements";
    tn_tensor t;
    snprintf(key, sizeof key, "%s:%s", name, output);
    if (!tn_safetensors_get(file, key, &t))
        return;
    bool ok = own && tn_tensor_count(&t) == count;
    for (int64_t i = 0; i < count && ok; i++) {
        int64_t value = t.dtype == TN_I64 ? ((const int64_t *)t.data)[i] : ((const int32_t *)t.data)[i];
        if (value != own[i] - subtract) {
            ok = false;
            snprintf(text, sizeof text, "%s: %lld instead of %lld", output, (long long)(own[i] - subtract),
                     (long long)value);
        }
    }
    report(ok, what, key, ok ? "the same" : own ? text : "is not given");
}

static void check_file(const processor *p, const tn_safetensors *file, const char *folder, const char *what,
                       const char *name)
{
    char path[1024], key[300], text[200] = "";
    tn_error err = TN_ERROR_INIT;
    picture from;
    processed x;
    wanted w;
    snprintf(key, sizeof key, "%s:pixel_values", name);
    if (strstr(name, "gray16") || !find(file, key, &w))
        return;
    snprintf(path, sizeof path, "%s/files/%s", folder, name);
    if (pictures_decode(path, &from, &err) != TN_OK || processor_run(p, &from, 1, &x, &err) != TN_OK) {
        report(false, what, name, err.message);
        return;
    }
    bool ok = same_shape(&w, x.ndim, x.shape, text) && same_pixels(&w, &x, p, text);
    report(ok, what, name, text);
    check_integers(file, what, name, "image_grid_thw", x.grids, 3, 0);
    check_integers(file, what, name, "image_sizes", x.sizes, 2, 0);
    check_integers(file, what, name, "image_position_ids", x.places, 2 * x.shape[0] * x.shape[1], 0);
    check_integers(file, what, name, "num_soft_tokens_per_image", x.tokens, 1, 0);
    check_integers(file, what, name, "num_patches", x.parts, 1, 0);
    check_integers(file, what, name, "num_crops", x.parts, 1, 1);
    check_integers(file, what, name, "aspect_ratios", x.tiles, 2, 0);
    processor_release(&x);
    pictures_release(&from);
}

/* ---- sounds -------------------------------------------------------------------------------------------- */

/* What is expected of a file of another rate may be off by more; its first and last 10 ms are not compared. */
typedef struct sound_case {
    const char *what, *name;
    bool resampled;
    int64_t edge;
} sound_case;

static bool same_waveform(const sound_case *c, const tn_tensor *t, const sound *s, char text[200])
{
    double most = 0, squares = 0;
    int64_t compared = s->count - 2 * c->edge;
    bool ok = t->ndim == 1 && t->shape[0] == s->count;
    for (int64_t i = c->edge; i < s->count - c->edge && ok; i++) {
        double off = fabs((double)s->samples[i] - (double)((const float *)t->data)[i]);
        most = fmax(most, off);
        squares += off * off;
    }
    double rms = compared > 0 ? sqrt(squares / (double)compared) : 0;
    snprintf(text, 200, "waveform of %lld samples, expected %lld, off by at most %.2g, rms %.2g", (long long)s->count,
             (long long)t->shape[0], most, rms);
    return ok && most <= (c->resampled ? 1e-3 : 1e-6) && rms <= (c->resampled ? 1e-4 : 1e-6);
}

/* sums: of all elements and of their squares, each of which is off by as much as one of them, relatively. */
static bool same_features(const sound_case *c, const wanted *w, const float *own, int64_t count, char text[200])
{
    double most = 0, limit = c->resampled ? 2e-2 : 1e-4, sums[2] = {0, 0};
    for (int64_t i = 0; i < tn_tensor_count(&w->values); i++)
        most = fmax(most, fabs((double)own[place(w, i)] - (double)((const float *)w->values.data)[i]));
    for (int64_t i = 0; i < count; i++) {
        sums[0] += (double)own[i];
        sums[1] += (double)own[i] * (double)own[i];
    }
    bool sound = true;
    for (int i = 0; i < 2 && w->sums.data; i++)
        sound = sound && fabs(sums[i] - ((const double *)w->sums.data)[i]) <=
                             fmax(1e-3 * fabs(((const double *)w->sums.data)[i]), limit * (double)count);
    snprintf(text, 200, "features off by at most %.2g%s", most, sound ? "" : "; the sums are others");
    return sound && most <= limit;
}

/* The first real frames, [bins, frames]. */
static bool same_head(const sound_case *c, const tn_tensor *t, const extracted *x, char text[200])
{
    double most = 0;
    bool ok = t->ndim == 2 && t->shape[0] == x->bins && t->shape[1] <= x->frames;
    for (int64_t i = 0; i < tn_tensor_count(t) && ok; i++)
        most = fmax(most, fabs((double)x->mel[i / t->shape[1] * x->frames + i % t->shape[1]] -
                               (double)((const float *)t->data)[i]));
    snprintf(text, 200, "first frames off by at most %.2g", most);
    return ok && most <= (c->resampled ? 2e-2 : 1e-4);
}

static void check_features(const sound_case *c, const extractor *e, const tn_safetensors *file, const sound *s)
{
    char key[300], text[200] = "";
    tn_error err = TN_ERROR_INIT;
    extracted x;
    wanted w;
    tn_tensor head;
    snprintf(key, sizeof key, "%s:input_features", c->name);
    bool given = find(file, key, &w);
    tn_status status = extractor_run(e, s, 1, true, &x, &err);
    if (!given || status != TN_OK) {
        report(!given && status == TN_E_INPUT, c->what, c->name, given ? err.message : "is refused, as it should be");
        if (status == TN_OK)
            extractor_release(&x);
        return;
    }
    bool ok = same_shape(&w, 3, (int64_t[]){1, x.bins, x.frames}, text) &&
              same_features(c, &w, x.mel, x.bins * x.frames, text);
    report(ok, c->what, c->name, text);
    snprintf(key, sizeof key, "%s:mask_head", c->name);
    if (tn_safetensors_get(file, key, &head)) {
        ok = same_head(c, &head, &x, text);
        report(ok, c->what, c->name, text);
    }
    check_integers(file, c->what, c->name, "frames", x.lengths, 1, 0);
    extractor_release(&x);
}

static void check_sound(const extractor *e, const tn_safetensors *file, const char *folder, const char *what,
                        const char *name)
{
    char path[1024], key[300], text[200] = "";
    sound_case c = {.what = what, .name = name, .resampled = !strstr(name, "16k")};
    tn_error err = TN_ERROR_INIT;
    sound s;
    tn_tensor t;
    snprintf(key, sizeof key, "%s:waveform", name);
    if (!tn_safetensors_get(file, key, &t))
        return;
    c.edge = c.resampled ? extractor_rate(e) / 100 : 0;
    snprintf(path, sizeof path, "%s/files/%s", folder, name);
    if (sounds_decode(path, extractor_rate(e), &s, &err) != TN_OK) {
        report(false, what, name, err.message);
        return;
    }
    bool ok = same_waveform(&c, &t, &s, text);
    report(ok, what, name, text);
    check_features(&c, e, file, &s);
    sounds_release(&s);
}

/* Folders of sounds are called audio_..., and of those that are padded to the longest audio_longest. */
static void check_sounds(const tn_safetensors *file, const char *folder, const char *what, char *files[], int count)
{
    char path[1024];
    tn_error err = TN_ERROR_INIT;
    snprintf(path, sizeof path, "%s/%s", folder, what);
    extractor *e = extractor_open(path, &err);
    if (!e)
        report(false, what, "", err.message);
    if (e && !strcmp(what, "audio_longest"))
        extractor_pad_to_longest(e);
    for (int i = 0; i < count && e; i++)
        check_sound(e, file, folder, what, files[i]);
    extractor_free(e);
}

/* ---- folders ------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names in folder, in order; each is owned. */
static int list(const char *folder, char *names[], int most)
{
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d)) && n < most;)
        if (e->d_name[0] != '.')
            names[n++] = strdup(e->d_name);
    if (d)
        closedir(d);
    qsort(names, (size_t)n, sizeof *names, by_name);
    return n;
}

/* A picture that the processor refuses by its shape is refused here, too. */
static void check_refused(const processor *p, const char *folder, const char *what, const char *name)
{
    char path[1024];
    tn_error err = TN_ERROR_INIT;
    picture from;
    processed x;
    snprintf(path, sizeof path, "%s/files/%s", folder, name);
    if (strcmp(name, "flat_260x1.png") != 0 || p->kind != &processor_qwen ||
        pictures_decode(path, &from, &err) != TN_OK)
        return;
    bool refused = processor_run(p, &from, 1, &x, &err) == TN_E_INPUT;
    report(refused, what, name, refused ? err.message : "is not refused");
    if (!refused)
        processor_release(&x);
    pictures_release(&from);
}

static void check_folder(const char *folder, const char *what, char *files[], int count)
{
    char path[1024];
    tn_error err = TN_ERROR_INIT;
    snprintf(path, sizeof path, "%s/%s/expected.safetensors", folder, what);
    tn_safetensors *file = tn_safetensors_open(path, &err);
    if (!file && access(path, F_OK) == 0)
        report(false, what, "", err.message);
    if (!file)
        return;
    if (!strcmp(what, "decoded")) {
        for (int i = 0; i < count; i++)
            check_decoded(file, folder, files[i]);
        tn_safetensors_close(file);
        return;
    }
    if (!strncmp(what, "audio_", 6)) {
        check_sounds(file, folder, what, files, count);
        tn_safetensors_close(file);
        return;
    }
    snprintf(path, sizeof path, "%s/%s", folder, what);
    tn_error refused = TN_ERROR_INIT;
    processor *p = processor_open(path, &refused);
    if (!p && strstr(refused.message, "which is not supported")) {
        printf("SKIPPED %s: %s\n", what, refused.message);
        skipped++;
    } else if (!p) {
        report(false, what, "", refused.message);
    }
    for (int i = 0; i < count && p; i++) {
        check_file(p, file, folder, what, files[i]);
        check_refused(p, folder, what, files[i]);
    }
    processor_free(p);
    tn_safetensors_close(file);
}

int main(int argc, char **argv)
{
    enum { MOST = 512 };
    char *folders[MOST], *files[MOST], path[1024];
    if (argc != 2 || argv[1][0] == '-') {
        fprintf(stderr, "usage: check_media DIR\n");
        return 2;
    }
    snprintf(path, sizeof path, "%s/files", argv[1]);
    int file_count = list(path, files, MOST), folder_count = list(argv[1], folders, MOST);
    for (int i = 0; i < folder_count; i++)
        check_folder(argv[1], folders[i], files, file_count);
    for (int i = 0; i < folder_count; i++)
        free(folders[i]);
    for (int i = 0; i < file_count; i++)
        free(files[i]);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed > 0 || passed == 0;
}
