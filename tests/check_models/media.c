/* Pictures, sound and positions of a case, for calls over all or a part of its tokens. */
#include "check.h"

#include "models/multimodal.h"
#include "open/model.h"

#include <stdlib.h>
#include <string.h>

int32_t media_deep(const tn_model *model)
{
    const multimodal *media = model->flow->shape(model->arch_state)->media;
    return media ? media->deep_count : 0;
}

int64_t *media_columns(const tn_tensor *t, int64_t rows, int64_t tokens, int64_t begin, int64_t count)
{
    int64_t *out = t->data ? malloc((size_t)(rows * count) * sizeof *out) : NULL;
    for (int64_t i = 0; out && i < rows; i++)
        memcpy(out + i * count, (const int64_t *)t->data + i * tokens + begin, (size_t)count * sizeof *out);
    return out;
}

/* As the model's processor hands it over. */
static void fill_raw(const golden *g, media *m)
{
    m->images.pixels = g->pixels.data;
    m->images.patches = g->pixels.shape[0];
    m->images.width = g->pixels.shape[1];
    m->images.grids = g->grid.data;
    m->images.count = g->grid.data ? g->grid.shape[0] : g->sizes.data ? g->sizes.shape[0] : g->pixels.shape[0];
    m->images.pixel_ndim = g->grid.data ? 0 : g->pixels.ndim;
    m->images.pixel_shape = g->pixels.shape;
    m->images.sizes = g->sizes.data;
    m->videos.pixels = g->videos.data;
    m->videos.patches = g->videos.shape[0];
    m->videos.width = g->videos.shape[1];
    m->videos.grids = g->video_grid.data;
    m->videos.count = g->video_grid.shape[0];
    m->videos.grid_seconds = g->video_seconds.data;
    m->images.places = g->places.data;
    m->sounds.mel = g->sound.data;
    m->sounds.count = g->sound.shape[0];
    m->sounds.bins = g->sound.shape[1];
    m->sounds.frames = g->sound.shape[2];
    m->sounds.mask = g->sound_mask.data;
}

/* How many of the tokens before end stand for media. */
static int64_t count_tokens(const golden *g, int64_t id, int64_t end)
{
    int64_t n = 0;
    for (int64_t i = 0; i < end && id >= 0; i++)
        n += ((const int64_t *)g->ids.data)[i] == id;
    return n;
}

static const float *rows_from(const tn_tensor *t, int64_t row)
{
    return t->data ? (const float *)t->data + row * t->shape[1] : NULL;
}

static void fill_pictures(const golden *g, int64_t id, const tn_tensor *features, const tn_tensor *deep, int64_t begin,
                          int64_t count, tn_pictures *p, const float **to)
{
    int64_t before = count_tokens(g, id, begin);
    p->features = rows_from(features, before);
    p->feature_count = count_tokens(g, id, begin + count) - before;
    while (p->deep_count < GOLDEN_DEEP && deep[p->deep_count].data) {
        to[p->deep_count] = rows_from(&deep[p->deep_count], before);
        p->deep_count++;
    }
    p->deep = p->deep_count ? to : NULL;
}

/* What the towers should have made of it, for the tokens of the call. Cases with media have one row. */
static void fill_features(const golden *g, int64_t begin, int64_t count, media *m)
{
    int64_t sound = count_tokens(g, g->audio_token, begin);
    fill_pictures(g, g->image_token, &g->image_features, g->deepstack, begin, count, &m->images, m->deep);
    fill_pictures(g, g->video_token, &g->video_features, g->video_deep, begin, count, &m->videos, m->video_deep);
    m->sounds.features = rows_from(&g->audio_features, sound);
    m->sounds.feature_count = count_tokens(g, g->audio_token, begin + count) - sound;
}

static void fill_axes(const golden *g, int64_t begin, int64_t count, media *m)
{
    int64_t rows = 3 * g->ids.shape[0], tokens = g->ids.shape[1];
    m->axes = g->positions.data ? malloc((size_t)(rows * count) * sizeof(float)) : NULL;
    for (int64_t i = 0; m->axes && i < rows * count; i++)
        m->axes[i] = golden_position(g, i / count * tokens + begin + i % count);
}

static void fill_types(const golden *g, int64_t begin, int64_t count, media *m)
{
    int64_t rows = g->ids.shape[0], tokens = g->ids.shape[1];
    m->types = g->token_types.data ? malloc((size_t)(rows * count) * sizeof *m->types) : NULL;
    for (int64_t i = 0; m->types && i < rows * count; i++)
        m->types[i] = ((const int32_t *)g->token_types.data)[i / count * tokens + begin + i % count];
}

void media_fill(const golden *g, run_mode mode, int64_t begin, int64_t count, media *m, tn_batch *batch)
{
    *m = (media){.images.size = sizeof m->images, .videos.size = sizeof m->videos, .sounds.size = sizeof m->sounds};
    if (!golden_has_media(g))
        return;
    if (mode == RUN_GIVEN) {
        fill_features(g, begin, count, m);
        fill_axes(g, begin, count, m);
    } else {
        fill_raw(g, m);
    }
    fill_types(g, begin, count, m);
    batch->images = m->images.pixels || m->images.feature_count ? &m->images : NULL;
    batch->videos = m->videos.pixels || m->videos.feature_count ? &m->videos : NULL;
    batch->sounds = m->sounds.mel || m->sounds.feature_count ? &m->sounds : NULL;
    batch->token_types = m->types;
    batch->axes = m->axes;
}

void media_free(media *m)
{
    free(m->types);
    free(m->axes);
}

const golden *media_remember(golden *g, const run_results *r)
{
    for (int i = 0; i < GOLDEN_DEEP; i++)
        if (r->video_deep[i])
            g->video_deep[i] = tn_tensor_dense(r->video_deep[i], TN_F32, 2, g->video_features.shape);
    return g;
}
