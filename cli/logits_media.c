/* Pictures, sounds, types of tokens and positions on three axes as a processor of transformers stores them. */
#include "logits_media.h"

#include "cli.h"

#include <stdlib.h>
#include <string.h>
#include <tenon/half.h>

typedef struct reader {
    const tn_safetensors *file;
    const char *path;
    logits_media *media;
    tn_status status;
    tn_error *err;
} reader;

static void *keep(reader *r, const char *name, size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    if (memory)
        r->media->kept[r->media->kept_count++] = memory;
    else
        r->status = tn_fail(r->err, TN_E_MEMORY, r->path, "out of memory for %s; split the input", name);
    return memory;
}

static double value_at(const tn_tensor *t, int64_t i)
{
    const char *at = (const char *)t->data + (size_t)i * tn_dtype_size(t->dtype);
    float single;
    double twice;
    int64_t wide;
    int32_t narrow;
    uint16_t half;
    switch (t->dtype) {
    case TN_F32:
        memcpy(&single, at, sizeof single);
        return (double)single;
    case TN_F64:
        memcpy(&twice, at, sizeof twice);
        return twice;
    case TN_BF16:
        memcpy(&half, at, sizeof half);
        return (double)tn_bf16_to_f32(half);
    case TN_F16:
        memcpy(&half, at, sizeof half);
        return (double)tn_f16_to_f32(half);
    case TN_I64:
        memcpy(&wide, at, sizeof wide);
        return (double)wide;
    case TN_I32:
        memcpy(&narrow, at, sizeof narrow);
        return (double)narrow;
    default: /* bool and u8 */
        return (double)(unsigned char)*at;
    }
}

/* The tensor called name, of that many dimensions, the least and the most; false: there is none, or an error. */
static bool find(reader *r, const char *name, int least, int most, bool whole, tn_tensor *t)
{
    if (r->status != TN_OK || !tn_safetensors_get(r->file, name, t))
        return false;
    bool floating = t->dtype == TN_F32 || t->dtype == TN_F64 || t->dtype == TN_BF16 || t->dtype == TN_F16;
    bool integer = t->dtype == TN_I64 || t->dtype == TN_I32 || t->dtype == TN_U8 || t->dtype == TN_BOOL;
    if (!integer && (whole || !floating))
        r->status = tn_fail(r->err, TN_E_INPUT, r->path, "%s has the type %s; store it as %s", name,
                            tn_dtype_name(t->dtype), whole ? "i64 or i32" : "f32");
    else if (t->ndim < least || t->ndim > most)
        r->status = tn_fail(r->err, TN_E_INPUT, r->path, "%s has %d dimensions, must have %d%s", name, (int)t->ndim,
                            least, most > least ? " or more" : "");
    return r->status == TN_OK;
}

static float *numbers(reader *r, const char *name, int least, int most, tn_tensor *t)
{
    if (!find(r, name, least, most, false, t))
        return NULL;
    int64_t count = tn_tensor_count(t);
    float *out = keep(r, name, (size_t)count * sizeof *out);
    for (int64_t i = 0; out && i < count; i++)
        out[i] = (float)value_at(t, i);
    return out;
}

static int64_t *integers(reader *r, const char *name, int ndim, tn_tensor *t)
{
    if (!find(r, name, ndim, ndim, true, t))
        return NULL;
    int64_t count = tn_tensor_count(t);
    int64_t *out = keep(r, name, (size_t)count * sizeof *out);
    for (int64_t i = 0; out && i < count; i++)
        out[i] = (int64_t)value_at(t, i);
    return out;
}

/* [count, columns], or an error. */
static void check_rows(reader *r, const char *name, const tn_tensor *t, int64_t count, int64_t columns)
{
    if (r->status == TN_OK && (t->shape[0] != count || t->shape[1] != columns))
        r->status = tn_fail(r->err, TN_E_INPUT, r->path, "%s is [%lld, %lld], must be [%lld, %lld]", name,
                            (long long)t->shape[0], (long long)t->shape[1], (long long)count, (long long)columns);
}

static bool read_pictures(reader *r, const char *pixels, const char *grid, const char *places, tn_pictures *p)
{
    tn_tensor x = {0}, g = {0}, s = {0}, at = {0};
    p->size = sizeof *p;
    p->pixels = numbers(r, pixels, 2, 5, &x);
    p->grids = integers(r, grid, 2, &g);
    if (p->grids) {
        check_rows(r, grid, &g, g.shape[0], 3);
        p->count = g.shape[0];
        p->patches = x.shape[0];
        p->width = x.ndim > 1 ? tn_tensor_count(&x) / (x.shape[0] > 0 ? x.shape[0] : 1) : 0;
        return true;
    }
    if (!p->pixels)
        return false;
    p->sizes = integers(r, "image_sizes", 2, &s);
    p->count = p->sizes ? s.shape[0] : x.shape[0];
    if (p->sizes)
        check_rows(r, "image_sizes", &s, p->count, 2);
    p->places = integers(r, places, 3, &at);
    if (p->places && (at.shape[0] != x.shape[0] || at.shape[1] != x.shape[1] || at.shape[2] != 2))
        r->status = tn_fail(r->err, TN_E_INPUT, r->path, "%s is [%lld, %lld, %lld], must be [%lld, %lld, 2]", places,
                            (long long)at.shape[0], (long long)at.shape[1], (long long)at.shape[2],
                            (long long)x.shape[0], (long long)x.shape[1]);
    int64_t *shape = keep(r, pixels, sizeof x.shape);
    if (shape)
        memcpy(shape, x.shape, sizeof x.shape);
    p->pixel_shape = shape;
    p->pixel_ndim = x.ndim;
    p->patches = x.shape[0];
    p->width = x.shape[1];
    return true;
}

static bool read_sounds(reader *r, tn_sounds *s)
{
    tn_tensor mel = {0}, mask = {0};
    s->size = sizeof *s;
    s->mel = numbers(r, "input_features", 3, 3, &mel);
    s->mask = integers(r, "feature_attention_mask", 2, &mask);
    if (!s->mel && !s->mask)
        return false;
    s->count = mel.shape[0];
    s->bins = mel.shape[1];
    s->frames = mel.shape[2];
    if (s->mask)
        check_rows(r, "feature_attention_mask", &mask, s->count, s->frames);
    return true;
}

static void read_seconds(reader *r)
{
    static const char *const names[] = {"video_second_per_grid", "second_per_grid_ts"};
    tn_tensor t = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names && !r->media->videos.grid_seconds; i++) {
        r->media->videos.grid_seconds = numbers(r, names[i], 1, 1, &t);
        if (r->media->videos.grid_seconds && t.shape[0] != r->media->videos.count)
            r->status = tn_fail(r->err, TN_E_INPUT, r->path, "%s has %lld numbers, there are %lld videos", names[i],
                                (long long)t.shape[0], (long long)r->media->videos.count);
    }
}

static void read_tokens(reader *r, int64_t rows, int64_t tokens)
{
    static const char *const names[] = {"mm_token_type_ids", "token_type_ids"};
    tn_tensor t = {0};
    for (size_t i = 0; i < sizeof names / sizeof *names && !r->media->types; i++)
        if ((r->media->types = integers(r, names[i], 2, &t)) != NULL)
            check_rows(r, names[i], &t, rows, tokens);
    if (!tn_safetensors_get(r->file, "position_ids", &t) || t.ndim != 3)
        return;
    r->media->axes = numbers(r, "position_ids", 3, 3, &t);
    if (r->media->axes && (t.shape[0] != 3 || t.shape[1] != rows || t.shape[2] != tokens))
        r->status = tn_fail(r->err, TN_E_INPUT, r->path,
                            "position_ids is [%lld, %lld, %lld], must be [rows, tokens] or [3, %lld, %lld]",
                            (long long)t.shape[0], (long long)t.shape[1], (long long)t.shape[2], (long long)rows,
                            (long long)tokens);
}

tn_status logits_media_read(const tn_safetensors *file, const char *path, int64_t rows, int64_t tokens,
                            logits_media *media, tn_error *err)
{
    reader r = {.file = file, .path = path, .media = media, .err = err};
    *media = (logits_media){0};
    media->has_images = read_pictures(&r, "pixel_values", "image_grid_thw", "image_position_ids", &media->images);
    media->has_videos =
        read_pictures(&r, "pixel_values_videos", "video_grid_thw", "video_position_ids", &media->videos);
    media->has_sounds = read_sounds(&r, &media->sounds);
    read_seconds(&r);
    read_tokens(&r, rows, tokens);
    return r.status;
}

void logits_media_free(logits_media *media)
{
    for (int i = 0; i < media->kept_count; i++)
        free(media->kept[i]);
    *media = (logits_media){0};
}

void logits_media_give(const logits_media *media, tn_batch *batch)
{
    batch->images = media->has_images ? &media->images : NULL;
    batch->videos = media->has_videos ? &media->videos : NULL;
    batch->sounds = media->has_sounds ? &media->sounds : NULL;
    batch->token_types = media->types;
    batch->axes = media->axes;
}
