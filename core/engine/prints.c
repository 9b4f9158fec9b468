/* Tokens that stand for pictures and sounds. Their ids are all the same; two texts begin alike only where the pictures
 * do. */
#include "engine/prints.h"

#include "base/clock.h"

#include <string.h>
#include <sys/random.h>

/* A polynomial in the key, modulo the prime 2^61 - 1: of two different lists of n words the values are the same for at
 * most n of all keys. The numbers that stand for them may be a little above the prime. */
static const uint64_t prime = (UINT64_C(1) << 61) - 1;

static uint64_t mix(uint64_t key, uint64_t hash, uint32_t word)
{
    __extension__ unsigned __int128 product = (unsigned __int128)hash * key;
    uint64_t sum = (uint64_t)(product & prime) + (uint64_t)(product >> 61) + word + 1;
    return (sum & prime) + (sum >> 61);
}

static uint64_t mix_all(uint64_t key, uint64_t hash, const void *data, int64_t bytes)
{
    const char *at = data;
    for (int64_t i = 0; at && i + 4 <= bytes; i += 4) {
        uint32_t word;
        memcpy(&word, at + i, sizeof word);
        hash = mix(key, hash, word);
    }
    return mix(key, hash, (uint32_t)bytes);
}

uint64_t prints_draw_key(void)
{
    uint64_t key = 0;
    if (getrandom(&key, sizeof key, GRND_NONBLOCK) != (ssize_t)sizeof key)
        key = (uint64_t)(clock_seconds() * 1e9);
    return key % (prime - 2) + 2;
}

/* Goes over the tokens of one kind. */
typedef struct stamping {
    held_text *t;
    const media *m;
    uint64_t key;
    multimodal_kind kind;
    int64_t at; /* the next token to look at                                                         */
} stamping;

/* The next tokens of the kind are rows of what has that hash. */
static void stamp(stamping *k, int64_t rows, uint64_t hash)
{
    for (int64_t row = 0; row < rows && k->at < k->m->tokens; k->at++)
        if (media_kind(k->m, k->at) == k->kind)
            k->t->tokens[k->at] = -1 - (int64_t)mix(k->key, hash, (uint32_t)row++);
}

static void stamp_features(stamping *k, const float *features, int64_t count)
{
    int64_t width = k->m->shape->hidden;
    for (int64_t i = 0; i < count; i++)
        stamp(k, 1, mix_all(k->key, k->kind, features + i * width, width * (int64_t)sizeof *features));
}

/* Patches that lie by grids. */
static void stamp_grids(stamping *k, const tn_pictures *p)
{
    int64_t merge = k->m->shape->media->merge, most = 1 << 15, first = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const int64_t *g = p->grids + 3 * i;
        bool sound = g[0] > 0 && g[1] > 0 && g[2] > 0 && g[0] < most && g[1] < most && g[2] < most;
        int64_t patches = sound ? g[0] * g[1] * g[2] : 0;
        if (!sound || patches > p->patches - first)
            return; /* which media_features refuses                                                   */
        uint64_t hash = mix_all(k->key, k->kind, g, 3 * (int64_t)sizeof *g);
        if (p->grid_seconds)
            hash = mix_all(k->key, hash, p->grid_seconds + i, sizeof *p->grid_seconds);
        hash = mix_all(k->key, hash, p->pixels + first * p->width, patches * p->width * (int64_t)sizeof *p->pixels);
        stamp(k, patches / (merge * merge), hash);
        first += patches;
    }
}

/* Whole pictures, or tiles. */
static void stamp_whole(stamping *k, const tn_pictures *p)
{
    const multimodal *model = k->m->shape->media;
    tower_media all, one;
    if (media_whole_pictures(k->m, p, &all, NULL) != TN_OK)
        return;
    int64_t count = all.pixels.shape[0], each = tn_tensor_count(&all.pixels) / count;
    int64_t places = p->pixel_ndim > 1 ? 2 * p->pixel_shape[1] : 0;
    for (int64_t i = 0; i < count; i++) {
        one = all;
        one.pixels.shape[0] = one.count = 1;
        one.sizes = p->sizes ? p->sizes + 2 * i : NULL;
        one.places = p->places ? p->places + places * i : NULL;
        uint64_t hash = mix_all(k->key, k->kind, one.sizes, 2 * (int64_t)sizeof *p->sizes);
        hash = mix_all(k->key, hash, one.places, places * (int64_t)sizeof *p->places);
        hash = mix_all(k->key, hash, p->pixels + i * each, each * (int64_t)sizeof *p->pixels);
        stamp(k, model->vision->tokens(model->vision_state, &one, NULL), hash);
    }
}

static void stamp_pictures(stamping *k)
{
    const tn_pictures *p = &k->m->pictures[k->kind];
    const multimodal *model = k->m->shape->media;
    if (p->features)
        stamp_features(k, p->features, p->feature_count);
    else if (p->pixels && model->vision && model->vision->largest)
        stamp_whole(k, p);
    else if (p->pixels && p->grids)
        stamp_grids(k, p);
}

/* All clips together: they are as long as the longest. */
static void stamp_sounds(stamping *k)
{
    const tn_sounds *s = &k->m->sounds;
    int64_t each = (int64_t)sizeof *s->mask, frames = s->count * s->frames;
    if (s->features) {
        stamp_features(k, s->features, s->feature_count);
        return;
    }
    uint64_t hash = mix_all(k->key, k->kind, s->mel, frames * s->bins * (int64_t)sizeof *s->mel);
    hash = mix_all(k->key, hash, s->mask, frames * each);
    hash = mix_all(k->key, hash, s->lengths, s->count * each);
    stamp(k, media_rows(k->m), hash);
}

void prints_set(held_text *t, const media *m, uint64_t key)
{
    for (int kind = MULTIMODAL_IMAGE; kind < MULTIMODAL_KINDS; kind++) {
        stamping k = {t, m, key, (multimodal_kind)kind, 0};
        if (m->given[kind] && kind == MULTIMODAL_SOUND)
            stamp_sounds(&k);
        else if (m->given[kind])
            stamp_pictures(&k);
    }
}

int64_t prints_token(const media *m, int64_t token, int64_t place)
{
    if (token >= 0)
        return token;
    const multimodal *model = m->shape->media;
    multimodal_kind kind = media_kind(m, place);
    return model->token[kind == MULTIMODAL_VIDEO && model->one_picture_token ? MULTIMODAL_IMAGE : kind];
}
