/* Features of pictures and sounds: made by the model's towers, or taken as they are given. */
#include "generate/media.h"

#include "base/convert.h"

#include <stdlib.h>
#include <string.h>

/* What one kind of medium is called in errors. */
typedef struct media_names {
    const char *one, *many, *grids, *data;
} media_names;
static const media_names names[MULTIMODAL_KINDS] = {
    [MULTIMODAL_IMAGE] = {"image", "images", "image_grid_thw", "pixel_values"},
    [MULTIMODAL_VIDEO] = {"video", "videos", "video_grid_thw", "pixel_values_videos"},
    [MULTIMODAL_SOUND] = {"sound", "sounds", "feature_attention_mask", "input_features"}};

enum { MAX_PIXELS = 1 << 30 }; /* of a call, all channels                                       */

/* One kind of medium on its way to features. */
typedef struct feature_job {
    media *m;
    multimodal_kind kind;
    int64_t first; /* of its rows among all                                                  */
    float *out;    /* where the caller wants them; or NULL                                    */
    float *const *deep_out;
    char *block; /* [rows of the kind, H] in the model's dtype, on the host                     */
    void *device_pixels;
    size_t pixel_bytes;
    arena arena;
    tn_error *err;
} feature_job;

static size_t row_bytes(const media *m)
{
    return (size_t)m->shape->hidden * tn_dtype_size(m->dtype);
}

static tn_status no_memory(tn_error *err)
{
    return tn_fail(err, TN_E_MEMORY, "session", "out of memory for pictures and sounds; give fewer at once");
}

static tn_status check_count(const feature_job *j, int64_t features, tn_error *err)
{
    const multimodal *model = j->m->shape->media;
    const media_names *n = &names[j->kind];
    int64_t tokens = j->m->count[j->kind];
    int which = j->kind == MULTIMODAL_VIDEO && model->one_picture_token ? MULTIMODAL_IMAGE : (int)j->kind;
    if (tokens == features && tokens > 0)
        return TN_OK;
    if (tokens == 0)
        return tn_fail(err, TN_E_INPUT, n->many, "%s are given, but no token of the batch is their %s, %lld", n->many,
                       model->token_key[which], (long long)model->token[which]);
    return tn_fail(err, TN_E_INPUT, n->many, "%lld tokens stand for %s (%s %lld), whose features are %lld",
                   (long long)tokens, n->many, model->token_key[which], (long long)model->token[which],
                   (long long)features);
}

/* ---- from the host to the device and back ----------------------------------------------------------- */

/* The kind's rows, which lie in block in the model's dtype, into a table on the device; and to the caller. */
static tn_status store(const feature_job *j, void *table, int64_t first, float *out)
{
    const media *m = j->m;
    int64_t rows = m->count[j->kind];
    if (out)
        convert_to_f32(j->block, m->dtype, out, rows * m->shape->hidden);
    return device_upload(m->device, (char *)table + (size_t)first * row_bytes(m), j->block, (size_t)rows * row_bytes(m),
                         j->err);
}

static tn_status store_given(const feature_job *j, const float *from, void *table, int64_t first, float *out)
{
    convert_from_f32(from, j->m->dtype, j->block, j->m->count[j->kind] * j->m->shape->hidden);
    return store(j, table, first, out);
}

static tn_status store_made(const feature_job *j, const tn_tensor *from, void *table, int64_t first, float *out)
{
    size_t bytes = (size_t)j->m->count[j->kind] * row_bytes(j->m);
    tn_status status = device_download(j->m->device, j->block, from->data, bytes, j->err);
    return status == TN_OK ? store(j, table, first, out) : status;
}

/* ---- running a tower ----------------------------------------------------------------------------------- */

/* Pixels in the model's dtype; with centred as 2 (x - 0.5). */
static void convert_pixels(const float *from, bool centred, tn_dtype dtype, char *to, int64_t count)
{
    enum { BLOCK = 1024 };
    float block[BLOCK];
    if (!centred) {
        convert_from_f32(from, dtype, to, count);
        return;
    }
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t n = count - at < BLOCK ? count - at : BLOCK;
        for (int64_t i = 0; i < n; i++)
            block[i] = 2 * (from[at + i] - 0.5f);
        convert_from_f32(block, dtype, to + (size_t)at * tn_dtype_size(dtype), n);
    }
}

static tn_status upload_pixels(feature_job *j, const float *from, bool centred, tower_media *media)
{
    const tn_dtype dtype = j->m->dtype;
    int64_t count = tn_tensor_count(&media->pixels);
    j->pixel_bytes = (size_t)count * tn_dtype_size(dtype);
    void *host = malloc(j->pixel_bytes ? j->pixel_bytes : 1);
    if (!host)
        return no_memory(j->err);
    convert_pixels(from, centred, dtype, host, count);
    tn_status status = device_alloc(j->m->device, j->pixel_bytes, &j->device_pixels, j->err);
    if (status == TN_OK)
        status = device_upload(j->m->device, j->device_pixels, host, j->pixel_bytes, j->err);
    free(host);
    media->pixels.data = j->device_pixels;
    return status;
}

static tn_status forward(feature_job *j, const tower_kind *tower, const void *state, const tower_media *media,
                         tower_rows *rows)
{
    graph_run r = {.device = j->m->device,
                   .arena = &j->arena,
                   .dtype = j->m->dtype,
                   .rows = 1,
                   .tokens = media->pixels.shape[0],
                   .err = j->err};
    *rows = (tower_rows){0};
    tower->forward(&r, state, media, rows);
    return r.status;
}

/* Makes the features of media, whose pixels lie on the host at from, and stores them. */
static tn_status run_tower(feature_job *j, const tower_kind *tower, const void *state, const float *from,
                           tower_media *media)
{
    media_names n = names[j->kind];
    if (!tower)
        return tn_fail(j->err, TN_E_INPUT, n.data, "the model has no tower for %s; give their features", n.many);
    int64_t features = tower->tokens(state, media, j->err);
    if (features < 0)
        return TN_E_INPUT;
    tn_status status = check_count(j, features, j->err);
    tower_rows rows = {0};
    if (status == TN_OK)
        status = arena_init(&j->arena, j->m->device, 0, j->err);
    if (status == TN_OK) {
        status = forward(j, tower, state, media, &rows);
        size_t size = j->arena.peak;
        arena_close(&j->arena);
        if (status == TN_OK)
            status = arena_init(&j->arena, j->m->device, size + 4096, j->err);
        j->arena.observer = j->m->observer;
    }
    if (status == TN_OK)
        status = upload_pixels(j, from, tower->beside && tower->beside->centred, media);
    if (status == TN_OK)
        status = forward(j, tower, state, media, &rows);
    if (status == TN_OK)
        status = store_made(j, &rows.features, j->m->device_features, j->first, j->out);
    for (int32_t i = 0; i < rows.deep_count && status == TN_OK; i++)
        status = store_made(j, &rows.deep[i], j->m->device_deep[i], j->first, j->deep_out ? j->deep_out[i] : NULL);
    return status;
}

/* ---- pictures -------------------------------------------------------------------------------------------- */

/* Patches of all grids together; -1 after an error. */
static int64_t count_patches(const feature_job *j, const tn_pictures *p)
{
    const media_names *n = &names[j->kind];
    int64_t merge = j->m->shape->media->merge, total = 0;
    for (int64_t i = 0; i < p->count; i++) {
        const int64_t *g = p->grids + 3 * i, most = 1 << 15;
        bool sound = g[0] > 0 && g[1] > 0 && g[2] > 0 && g[0] < most && g[1] < most && g[2] < most;
        if (!sound || g[1] % merge || g[2] % merge) {
            tn_fail(j->err, TN_E_INPUT, n->grids,
                    "%s %lld is %lld by %lld by %lld patches; height and width must be multiples of "
                    "spatial_merge_size, %lld",
                    n->one, (long long)i, (long long)g[0], (long long)g[1], (long long)g[2], (long long)merge);
            return -1;
        }
        total += g[0] * g[1] * g[2];
    }
    return total;
}

static tn_status given_pictures(feature_job *j, const tn_pictures *p)
{
    const multimodal *model = j->m->shape->media;
    tn_status status = check_count(j, p->feature_count, j->err);
    if (status == TN_OK && (p->deep_count != model->deep_count || (p->deep_count && !p->deep)))
        status = tn_fail(j->err, TN_E_INPUT, names[j->kind].many,
                         "have %lld deepstack features beside their own, the model wants %d", (long long)p->deep_count,
                         (int)model->deep_count);
    if (status == TN_OK)
        status = store_given(j, p->features, j->m->device_features, j->first, j->out);
    for (int32_t i = 0; i < model->deep_count && status == TN_OK; i++)
        status = store_given(j, p->deep[i], j->m->device_deep[i], j->first, j->deep_out ? j->deep_out[i] : NULL);
    return status;
}

tn_status media_whole_pictures(const media *m, const tn_pictures *p, tower_media *out, tn_error *err)
{
    int64_t count = 1;
    bool sound = p->pixel_shape && p->pixel_ndim >= 1 && p->pixel_ndim <= TN_MAX_DIMS && p->count >= 1;
    for (int32_t i = 0; i < p->pixel_ndim && sound; i++) {
        sound = p->pixel_shape[i] >= 1 && p->pixel_shape[i] <= MAX_PIXELS / count;
        count *= sound ? p->pixel_shape[i] : 1;
    }
    if (!sound)
        return tn_fail(err, TN_E_INPUT, "pixel_values",
                       "needs the shape of whole pictures, [pictures, channels, height, width], and at least one");
    *out = (tower_media){.count = p->count, .sizes = p->sizes, .places = p->places};
    out->pixels = tn_tensor_dense(NULL, m->dtype, p->pixel_ndim, p->pixel_shape);
    return TN_OK;
}

static tn_status make_whole_pictures(feature_job *j, const tn_pictures *p)
{
    const multimodal *model = j->m->shape->media;
    tower_media media;
    if (p->features)
        return given_pictures(j, p);
    if (!p->pixels)
        return tn_fail(j->err, TN_E_INPUT, names[j->kind].data, "%s need %s, or features", names[j->kind].many,
                       names[j->kind].data);
    tn_status status = media_whole_pictures(j->m, p, &media, j->err);
    return status == TN_OK ? run_tower(j, model->vision, model->vision_state, p->pixels, &media) : status;
}

static tn_status make_pictures(feature_job *j)
{
    const tn_pictures *p = &j->m->pictures[j->kind];
    const multimodal *model = j->m->shape->media;
    const media_names *n = &names[j->kind];
    if (model->vision && model->vision->largest)
        return make_whole_pictures(j, p);
    int64_t patches = p->grids ? count_patches(j, p) : 0, merged = model->merge * model->merge;
    if (patches < 0)
        return TN_E_INPUT;
    if (p->grids && p->features && patches / merged != p->feature_count)
        return tn_fail(j->err, TN_E_INPUT, n->grids, "the grids make %lld features, %lld are given",
                       (long long)(patches / merged), (long long)p->feature_count);
    if (p->features)
        return given_pictures(j, p);
    if (!p->pixels || !p->grids)
        return tn_fail(j->err, TN_E_INPUT, p->pixels ? n->grids : n->data, "%s need both %s and %s, or features",
                       n->many, n->data, n->grids);
    if (patches != p->patches)
        return tn_fail(j->err, TN_E_INPUT, n->grids, "the grids hold %lld patches, %s has %lld", (long long)patches,
                       n->data, (long long)p->patches);
    tower_grid *grids = malloc((size_t)p->count * sizeof *grids + 1);
    if (!grids)
        return no_memory(j->err);
    for (int64_t i = 0; i < p->count; i++)
        grids[i] = (tower_grid){p->grids[3 * i], p->grids[3 * i + 1], p->grids[3 * i + 2]};
    tower_media media = {.grids = grids, .grid_count = p->count};
    media.pixels = tn_tensor_dense(NULL, j->m->dtype, 2, (int64_t[]){p->patches, p->width});
    tn_status status = run_tower(j, model->vision, model->vision_state, p->pixels, &media);
    free(grids);
    return status;
}

/* ---- sounds ---------------------------------------------------------------------------------------------- */

/* The real frames of each clip; they go to the front of packed, where a mask leaves holes. */
static tn_status pack_frames(const tn_sounds *s, int64_t *lengths, float *packed, tn_error *err)
{
    for (int64_t c = 0; c < s->count; c++) {
        int64_t n = 0;
        for (int64_t f = 0; f < s->frames; f++) {
            bool real = s->mask ? s->mask[c * s->frames + f] != 0 : !s->lengths || f < s->lengths[c];
            for (int64_t bin = 0; bin < s->bins && real; bin++)
                packed[(c * s->bins + bin) * s->frames + n] = s->mel[(c * s->bins + bin) * s->frames + f];
            n += real;
        }
        if (n == 0 || (s->lengths && !s->mask && s->lengths[c] != n))
            return tn_fail(err, TN_E_INPUT, names[MULTIMODAL_SOUND].grids,
                           "clip %lld has %lld real frames, its input_features %lld", (long long)c,
                           (long long)(s->lengths && !s->mask ? s->lengths[c] : n), (long long)s->frames);
        lengths[c] = n;
    }
    return TN_OK;
}

static tn_status make_sounds(feature_job *j)
{
    const tn_sounds *s = &j->m->sounds;
    const multimodal *model = j->m->shape->media;
    if (s->features) {
        tn_status status = check_count(j, s->feature_count, j->err);
        return status == TN_OK ? store_given(j, s->features, j->m->device_features, j->first, j->out) : status;
    }
    if (!s->mel || s->count < 1 || s->bins < 1 || s->frames < 1)
        return tn_fail(j->err, TN_E_INPUT, "input_features", "sounds need input_features [clips, bins, frames]");
    int64_t *lengths = malloc((size_t)s->count * sizeof *lengths);
    float *packed = calloc((size_t)(s->count * s->bins * s->frames), sizeof *packed);
    tower_media media = {.frames = lengths};
    media.pixels = tn_tensor_dense(NULL, j->m->dtype, 3, (int64_t[]){s->count, s->bins, s->frames});
    tn_status status = lengths && packed ? pack_frames(s, lengths, packed, j->err) : no_memory(j->err);
    if (status == TN_OK)
        status = run_tower(j, model->audio, model->audio_state, packed, &media);
    free(lengths);
    free(packed);
    return status;
}

/* ---- all --------------------------------------------------------------------------------------------------- */

static tn_status allocate(media *m, tn_error *err)
{
    int64_t rows = media_rows(m), pictures = media_pictures(m), all = m->rows * m->chunk;
    size_t deep_bytes = (size_t)(pictures + 1) * row_bytes(m);
    m->slot = malloc((size_t)rows * sizeof *m->slot + 1);
    m->deep_row = malloc((size_t)all * sizeof *m->deep_row);
    char *zeros = calloc(1, row_bytes(m));
    tn_status status = m->slot && m->deep_row && zeros ? TN_OK : no_memory(err);
    if (status == TN_OK && rows > 0)
        status = device_alloc(m->device, (size_t)rows * row_bytes(m), &m->device_features, err);
    if (status == TN_OK && rows > 0)
        status = device_alloc(m->device, (size_t)rows * sizeof *m->slot, &m->device_slot, err);
    if (status == TN_OK)
        status = device_alloc(m->device, (size_t)all * sizeof *m->deep_row, &m->device_deep_row, err);
    for (int32_t j = 0; j < m->shape->media->deep_count && pictures > 0 && status == TN_OK; j++) {
        status = device_alloc(m->device, deep_bytes, &m->device_deep[j], err);
        if (status == TN_OK)
            status = device_upload(m->device, (char *)m->device_deep[j] + deep_bytes - row_bytes(m), zeros,
                                   row_bytes(m), err);
    }
    free(zeros);
    return status;
}

static tn_status make_features(feature_job *j)
{
    size_t bytes = (size_t)j->m->count[j->kind] * row_bytes(j->m);
    j->block = malloc(bytes ? bytes : 1);
    tn_status status = !j->block ? no_memory(j->err) : j->kind == MULTIMODAL_SOUND ? make_sounds(j) : make_pictures(j);
    free(j->block);
    if (j->arena.device)
        arena_close(&j->arena);
    device_free(j->m->device, j->device_pixels, j->pixel_bytes);
    return status;
}

tn_status media_features(media *m, const tn_outputs *outputs, tn_error *err)
{
    float *const out[] = {NULL, outputs->image_features, outputs->video_features, outputs->sound_features};
    float *const *const deep[] = {NULL, outputs->image_deep, outputs->video_deep, NULL};
    int64_t first = 0;
    tn_status status = allocate(m, err);
    for (int kind = MULTIMODAL_IMAGE; kind < MULTIMODAL_KINDS && status == TN_OK; kind++) {
        feature_job j = {.m = m,
                         .kind = (multimodal_kind)kind,
                         .first = first,
                         .out = out[kind],
                         .deep_out = deep[kind],
                         .err = err};
        first += m->count[kind];
        if (m->given[kind])
            status = make_features(&j);
    }
    return status;
}

/* ---- as they lie on the device ------------------------------------------------------------------------------ */

static tn_status read_table(const media *m, const void *table, float *const to[MULTIMODAL_KINDS], char *block,
                            tn_error *err)
{
    tn_status status = TN_OK;
    int64_t first = 0;
    for (int kind = MULTIMODAL_IMAGE; kind < MULTIMODAL_KINDS && status == TN_OK; first += m->count[kind++]) {
        if (!to[kind])
            continue;
        const char *from = (const char *)table + (size_t)first * row_bytes(m);
        status = device_download(m->device, block, from, (size_t)m->count[kind] * row_bytes(m), err);
        if (status == TN_OK)
            convert_to_f32(block, m->dtype, to[kind], m->count[kind] * m->shape->hidden);
    }
    return status;
}

tn_status media_read(const media *m, float *const features[MULTIMODAL_KINDS],
                     float *const deep[RUN_DEEP][MULTIMODAL_KINDS], tn_error *err)
{
    int64_t rows = media_rows(m);
    char *block = rows > 0 ? malloc((size_t)rows * row_bytes(m)) : NULL;
    tn_status status = rows > 0 && !block ? no_memory(err) : TN_OK;
    if (status == TN_OK)
        status = read_table(m, m->device_features, features, block, err);
    for (int j = 0; j < RUN_DEEP && status == TN_OK; j++)
        status = read_table(m, m->device_deep[j], deep[j], block, err);
    free(block);
    return status;
}
