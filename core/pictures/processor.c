/* Reading preprocessor_config.json, and what all kinds of processors do. */
#include "pictures/processor.h"

#include "base/file.h"
#include "base/nearest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/half.h>

static const processor_kind *const kinds[] = {
    &processor_qwen,       &processor_glm,      &processor_clip,   &processor_siglip, &processor_pixtral,
    &processor_llava_next, &processor_internvl, &processor_gemma3, &processor_gemma4, &processor_llama4};
enum { KINDS = sizeof kinds / sizeof *kinds };

void processor_cut_at(processor *p, int64_t patch)
{
    p->patch = patch;
}

void processor_free(processor *p)
{
    free(p);
}

/* ---- reading --------------------------------------------------------------------------------------- */

/* "Fast" and "Pil" say how, not what. */
static const processor_kind *find_kind(const config_reader *c)
{
    const char *name = config_str(c, "image_processor_type", config_str(c, "feature_extractor_type", ""));
    const char *names[KINDS];
    size_t length = strlen(name);
    for (int i = 0; i < 2; i++) {
        const char *end = i ? "Pil" : "Fast";
        if (length > strlen(end) && !strcmp(name + length - strlen(end), end))
            length -= strlen(end);
    }
    for (int i = 0; i < KINDS; i++) {
        if (strlen(kinds[i]->name) == length && !strncmp(kinds[i]->name, name, length))
            return kinds[i];
        names[i] = kinds[i]->name;
    }
    const char *near = nearest_of(name, names, KINDS);
    if (*c->status == TN_OK)
        config_fail(c, "image_processor_type", "is '%s', which is not supported%s%s", name,
                    near ? "; the nearest that is: " : "", near ? near : "");
    return NULL;
}

static void read_three(const config_reader *c, const char *key, const float *usual, float *out)
{
    int64_t n = config_list(c, key);
    if (n >= 0 && n != 1 && n != 3)
        config_fail(c, key, "has %lld numbers, must have 3", (long long)n);
    for (int i = 0; i < 3; i++) {
        out[i] = n < 0 || *c->status != TN_OK ? usual[i] : (float)config_list_f64(c, key, n == 1 ? 0 : i);
        if (!isfinite(out[i]))
            config_fail(c, key, "has a number that is none");
    }
}

static float in_bf16(float x)
{
    return tn_bf16_to_f32(tn_f32_to_bf16(x));
}

/* What each byte becomes, rescaling and normalising being one step: mean and deviation are those of bytes. */
static void make_levels(float mean, float deviation, float level[256])
{
    for (int x = 0; x < 256; x++)
        level[x] = ((float)x - mean) / deviation;
}

/* The same in three steps, rounded behind each. */
static void make_bf16_levels(float factor, float mean, float deviation, float level[256])
{
    for (int x = 0; x < 256; x++) {
        float rescaled = in_bf16((float)x * factor), moved = in_bf16(rescaled - in_bf16(mean));
        level[x] = in_bf16(moved / in_bf16(deviation));
    }
}

static void read_levels(const config_reader *c, processor *p)
{
    static const float means[][3] = {[LEVELS_CLIP] = {0.48145466f, 0.4578275f, 0.40821073f},
                                     [LEVELS_HALF] = {0.5f, 0.5f, 0.5f},
                                     [LEVELS_PLAIN] = {0}};
    static const float deviations[][3] = {[LEVELS_CLIP] = {0.26862954f, 0.26130258f, 0.27577711f},
                                          [LEVELS_HALF] = {0.5f, 0.5f, 0.5f},
                                          [LEVELS_PLAIN] = {1, 1, 1}};
    float mean[3] = {0, 0, 0}, deviation[3] = {1, 1, 1};
    processor_levels usual = p->kind->levels;
    bool normal = config_bool(c, "do_normalize", usual != LEVELS_PLAIN), rescaled = config_bool(c, "do_rescale", true);
    double factor = config_f64(c, "rescale_factor", 1.0 / 255.0);
    if (!(factor > 0 && factor <= 1))
        config_fail(c, "rescale_factor", "is %g, must be above 0 and at most 1", factor);
    if (p->bf16 && !(normal && rescaled))
        config_fail(c, normal ? "do_rescale" : "do_normalize", "is false, which is not supported");
    float level = rescaled ? (float)(1.0 / factor) : 1.0f;
    if (normal) {
        read_three(c, "image_mean", means[usual], mean);
        read_three(c, "image_std", deviations[usual], deviation);
    }
    for (int i = 0; i < 3; i++) {
        float of_bytes[2] = {level * mean[i], level * deviation[i]};
        if (!(fabsf(of_bytes[1]) > 1e-6f))
            config_fail(c, "image_std", "has a 0");
        else if (!isfinite(of_bytes[0]) || !isfinite(of_bytes[1]))
            config_fail(c, "rescale_factor", "is %g, too small for image_mean and image_std", factor);
        if (p->bf16)
            make_bf16_levels((float)factor, mean[i], deviation[i], p->level[i]);
        else
            make_levels(of_bytes[0], of_bytes[1], p->level[i]);
    }
}

static void read(const config_reader *c, processor *p)
{
    if (!(p->kind = find_kind(c)))
        return;
    p->filter = (resize_filter)config_i64(c, "resample", (int64_t)p->kind->filter, 0, 3);
    if (!config_bool(c, "do_resize", true))
        config_fail(c, "do_resize", "is false, which is not supported");
    p->kind->read(c, p);
    read_levels(c, p);
}

processor *processor_open(const char *folder, tn_error *err)
{
    tn_status status = TN_OK;
    char *path = file_join(folder, "preprocessor_config.json");
    processor *p = calloc(1, sizeof *p);
    config_file *file = path && p ? config_open(path, err) : NULL;
    if (!path || !p)
        tn_fail(err, TN_E_MEMORY, folder, "out of memory");
    if (file) {
        config_reader c = config_root(file, &status, err);
        read(&c, p);
        config_close(file);
    }
    free(path);
    if (file && status == TN_OK && p->kind)
        return p;
    free(p);
    return NULL;
}

/* ---- running --------------------------------------------------------------------------------------- */

/* What shines through what is transparent is white. */
static void whiten(picture *p)
{
    for (int64_t i = 0; p->keyed && i < p->height * p->width; i++)
        if (!memcmp(p->rgb + 3 * i, p->key, 3))
            memset(p->rgb + 3 * i, 255, 3);
    p->keyed = false;
}

tn_status processor_run(const processor *p, picture *pictures, int64_t count, processed *out, tn_error *err)
{
    *out = (processed){.count = count};
    for (int64_t i = 0; i < count; i++)
        whiten(&pictures[i]);
    processor_job job = {p, pictures, count, out, err};
    tn_status status = p->kind->run(&job);
    if (status != TN_OK)
        processor_release(out);
    return status;
}
