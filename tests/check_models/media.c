/* Pictures, sound and positions of a case, for calls over all or a part of its tokens. */
#include "check.h"

#include <stdlib.h>
#include <string.h>

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

/* What the towers should have made of it, for the tokens of the call. Cases with media have one row. */
static void fill_features(const golden *g, int64_t begin, int64_t count, media *m)
{
    int64_t image = count_tokens(g, g->image_token, begin), sound = count_tokens(g, g->audio_token, begin);
    m->images.features = rows_from(&g->image_features, image);
    m->images.feature_count = count_tokens(g, g->image_token, begin + count) - image;
    for (int i = 0; i < GOLDEN_DEEP; i++)
        m->deep[i] = rows_from(&g->deepstack[i], image);
    m->images.deep = g->deep_count ? m->deep : NULL;
    m->images.deep_count = g->deep_count;
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
    m->types = g->token_types.data ? malloc((size_t)count * sizeof *m->types) : NULL;
    for (int64_t i = 0; m->types && i < count; i++)
        m->types[i] = ((const int32_t *)g->token_types.data)[begin + i];
}

void media_fill(const golden *g, run_mode mode, int64_t begin, int64_t count, media *m, tn_batch *batch)
{
    *m = (media){.images.size = sizeof m->images, .sounds.size = sizeof m->sounds};
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
    batch->sounds = m->sounds.mel || m->sounds.feature_count ? &m->sounds : NULL;
    batch->token_types = m->types;
    batch->axes = m->axes;
}

void media_free(media *m)
{
    free(m->types);
    free(m->axes);
}
