/* What a call has beside tokens: which of them stand for pictures and sounds, and every token's positions. */
#include "generate/media.h"

#include "base/structs.h"

#include <stdlib.h>
#include <string.h>

static size_t row_bytes(const media *m)
{
    return (size_t)m->shape->hidden * tn_dtype_size(m->dtype);
}

tn_status media_init(media *m, const device *device, tn_dtype dtype, const model_shape *shape, int64_t rows,
                     int64_t chunk, tn_error *err)
{
    *m = (media){.device = device, .dtype = dtype, .shape = shape, .rows = rows, .chunk = chunk};
    m->ahead = calloc((size_t)rows, sizeof *m->ahead);
    return m->ahead ? TN_OK : tn_fail(err, TN_E_MEMORY, "session", "out of memory; use fewer rows");
}

void media_close(media *m)
{
    free(m->ahead);
    *m = (media){0};
}

void media_reset(media *m)
{
    memset(m->ahead, 0, (size_t)m->rows * sizeof *m->ahead);
}

media media_none(const media *m, const int64_t *positions, int64_t tokens)
{
    return (media){.device = m->device,
                   .dtype = m->dtype,
                   .shape = m->shape,
                   .observer = m->observer,
                   .rows = m->rows,
                   .chunk = m->chunk,
                   .ahead = m->ahead,
                   .positions = positions,
                   .tokens = tokens};
}

void media_drop(media *m)
{
    int64_t rows = media_rows(m);
    if (m->device_features)
        device_sync(m->device, NULL);
    free(m->slot);
    free(m->deep_row);
    device_free(m->device, m->device_features, (size_t)rows * row_bytes(m));
    device_free(m->device, m->device_slot, (size_t)rows * sizeof *m->slot);
    device_free(m->device, m->device_deep_row, (size_t)(m->rows * m->chunk) * sizeof *m->deep_row);
    for (int j = 0; j < RUN_DEEP; j++) {
        device_free(m->device, m->device_deep[j], (size_t)(media_pictures(m) + 1) * row_bytes(m));
        m->device_deep[j] = NULL;
    }
    m->slot = NULL;
    m->deep_row = NULL;
    m->device_features = m->device_slot = m->device_deep_row = NULL;
}

void media_end(media *m)
{
    media_drop(m);
    free(m->axes);
    free(m->kinds);
    free(m->feature);
    *m = media_none(m, NULL, 0);
}

/* ---- what stands for what ------------------------------------------------------------------------ */

/* Are positions on three axes? */
static bool has_axes(const media *m)
{
    return m->shape->media && !m->shape->media->one_axis;
}

tn_status media_take(media *m, const tn_batch *batch, tn_error *err)
{
    m->tokens = batch->tokens;
    m->positions = batch->positions;
    tn_pictures *pictures = m->pictures;
    tn_status status = TN_OK;
    if (batch->images)
        status = structs_take(&pictures[MULTIMODAL_IMAGE], sizeof *pictures, batch->images, "tn_pictures", err);
    if (status == TN_OK && batch->videos)
        status = structs_take(&pictures[MULTIMODAL_VIDEO], sizeof *pictures, batch->videos, "tn_pictures", err);
    if (status == TN_OK && batch->sounds)
        status = structs_take(&m->sounds, sizeof m->sounds, batch->sounds, "tn_sounds", err);
    m->given[MULTIMODAL_IMAGE] = batch->images;
    m->given[MULTIMODAL_VIDEO] = batch->videos;
    m->given[MULTIMODAL_SOUND] = batch->sounds;
    static const char *const what[] = {"", "images", "videos", "sounds"};
    for (int kind = MULTIMODAL_IMAGE; kind < MULTIMODAL_KINDS && status == TN_OK; kind++)
        if (m->given[kind] && !(m->shape->media && m->shape->media->token_key[kind]))
            status = tn_fail(err, TN_E_INPUT, what[kind], "the model has no tokens for %s; leave them out", what[kind]);
    if (status == TN_OK && batch->axes && !has_axes(m))
        status = tn_fail(err, TN_E_INPUT, "axes", "the model's positions have one axis; give positions");
    return status;
}

/* Convolutions have more places than there are frames, but go through in pieces. */
static int64_t largest_of_sounds(const media *m)
{
    int64_t frames = m->sounds.count * m->sounds.frames, places = frames * m->sounds.bins;
    places = places < TOWER_PIECE ? places : TOWER_PIECE;
    return frames > places ? frames : places;
}

static int64_t largest_of_pictures(const media *m, int kind)
{
    const tn_pictures *p = &m->pictures[kind];
    const multimodal *model = m->shape->media;
    tower_media media;
    if (!model->vision || !model->vision->largest)
        return p->patches;
    return media_whole_pictures(m, p, &media, NULL) == TN_OK ? model->vision->largest(model->vision_state, &media) : 0;
}

int64_t media_largest_call(const media *m)
{
    int64_t most = m->sounds.mel ? largest_of_sounds(m) : 0;
    for (int kind = MULTIMODAL_IMAGE; kind <= MULTIMODAL_VIDEO; kind++)
        if (m->pictures[kind].pixels && largest_of_pictures(m, kind) > most)
            most = largest_of_pictures(m, kind);
    return most < GRAPH_MAX_TOKENS ? most : GRAPH_MAX_TOKENS;
}

/* Of a model whose videos consist of image tokens: is this one part of a video? */
static multimodal_kind shared_kind(const media *m, const int64_t *type, bool inside)
{
    if (!m->given[MULTIMODAL_IMAGE] || !m->given[MULTIMODAL_VIDEO])
        return m->given[MULTIMODAL_IMAGE] ? MULTIMODAL_IMAGE : MULTIMODAL_VIDEO;
    return (type ? *type == 2 : inside) ? MULTIMODAL_VIDEO : MULTIMODAL_IMAGE;
}

static void find_kinds(media *m, const tn_batch *batch)
{
    const multimodal *model = m->shape->media;
    bool inside = false;
    for (int64_t i = 0; i < m->rows * m->tokens; i++) {
        int64_t id = batch->ids[i];
        multimodal_kind kind = MULTIMODAL_TEXT;
        inside = i % m->tokens == 0 ? false : inside;
        inside = id == model->video_start ? true : id == model->video_end ? false : inside;
        for (int k = MULTIMODAL_IMAGE; k < MULTIMODAL_KINDS; k++)
            if (id == model->token[k] && !(k == MULTIMODAL_VIDEO && model->one_picture_token))
                kind = (multimodal_kind)k;
        if (kind == MULTIMODAL_IMAGE && model->one_picture_token)
            kind = shared_kind(m, batch->token_types ? &batch->token_types[i] : NULL, inside);
        if (!m->given[kind] || (batch->mask && batch->mask[i] == 0))
            kind = MULTIMODAL_TEXT;
        m->kinds[i] = (int8_t)kind;
        m->count[kind]++;
    }
    m->count[MULTIMODAL_TEXT] = 0;
}

/* Features lie by kind, and by the order of the tokens in each. */
static void number_features(media *m)
{
    int64_t next[MULTIMODAL_KINDS] = {0, 0, m->count[MULTIMODAL_IMAGE], media_pictures(m)};
    for (int64_t i = 0; i < m->rows * m->tokens; i++)
        m->feature[i] = m->kinds[i] == MULTIMODAL_TEXT ? -1 : next[m->kinds[i]]++;
}

/* ---- positions ----------------------------------------------------------------------------------- */

/* What a token is as far as positions go: mm_token_type_ids may say so. */
static int8_t position_kind(const media *m, const tn_batch *batch, int64_t i)
{
    int64_t type = batch->token_types ? batch->token_types[i] : m->kinds[i];
    return type == MULTIMODAL_IMAGE || type == MULTIMODAL_VIDEO ? (int8_t)(m->given[type] ? type : 0) : 0;
}

/* Positions of row b, as grids say or as given. at, kinds: room for the row. */
static tn_status find_row(media *m, const tn_batch *batch, int64_t b, int64_t length, multimodal_grids *grids,
                          int64_t *at, int8_t *kinds, tn_error *err)
{
    int64_t n = 0, all = m->rows * m->tokens;
    float *const axes[ROPE_AXES] = {m->axes, m->axes + all, m->axes + 2 * all};
    float highest = 0;
    for (int64_t i = b * m->tokens; i < (b + 1) * m->tokens; i++) {
        bool real = !batch->mask || batch->mask[i] != 0;
        for (int a = 0; a < ROPE_AXES && real && batch->axes; a++) {
            axes[a][i] = batch->axes[a * all + i];
            highest = axes[a][i] > highest ? axes[a][i] : highest;
        }
        if (real) {
            kinds[n] = position_kind(m, batch, i);
            at[n++] = i;
        }
    }
    tn_status status = TN_OK;
    if (!batch->axes)
        status = multimodal_positions(m->shape->media, grids, kinds, at, n, (float)length + m->ahead[b], axes, &highest,
                                      err);
    if (n > 0)
        m->ahead[b] = highest + 1 - (float)(length + n);
    return status;
}

static tn_status find_positions(media *m, const tn_batch *batch, const int64_t *lengths, tn_error *err)
{
    multimodal_grids grids = {.seconds = m->pictures[MULTIMODAL_VIDEO].grid_seconds};
    for (int kind = MULTIMODAL_IMAGE; kind <= MULTIMODAL_VIDEO; kind++) {
        grids.grids[kind] = m->pictures[kind].grids;
        grids.count[kind] = m->pictures[kind].grids ? m->pictures[kind].count : 0;
    }
    m->axes = calloc((size_t)(ROPE_AXES * m->rows * m->tokens), sizeof *m->axes);
    int64_t *at = malloc((size_t)m->tokens * sizeof *at);
    int8_t *kinds = malloc((size_t)m->tokens * sizeof *kinds);
    tn_status status = m->axes && at && kinds ? TN_OK : tn_fail(err, TN_E_MEMORY, "session", "out of memory");
    for (int64_t b = 0; b < m->rows && status == TN_OK; b++)
        status = find_row(m, batch, b, lengths[b], &grids, at, kinds, err);
    free(at);
    free(kinds);
    return status;
}

int64_t media_id(const media *m, int64_t id)
{
    const multimodal *model = m->shape->media;
    bool stands = false;
    for (int kind = MULTIMODAL_IMAGE; model && model->replaced && kind < MULTIMODAL_KINDS; kind++)
        stands |= id == model->token[kind];
    return stands ? model->pad : id;
}

void media_position(const media *m, int64_t b, int64_t t, int64_t index, float position[ROPE_AXES])
{
    int64_t i = b * m->tokens + t;
    float counted = index < 0 ? 0 : (float)index + m->ahead[b];
    for (int a = 0; a < ROPE_AXES; a++)
        position[a] = m->axes ? m->axes[a * m->rows * m->tokens + i] : m->positions ? (float)m->positions[i] : counted;
}

/* ---- calls and chunks ------------------------------------------------------------------------------ */

tn_status media_begin(media *m, const tn_batch *batch, const tn_outputs *outputs, const int64_t *lengths, tn_error *err)
{
    bool more = batch->images || batch->videos || batch->sounds;
    if (!more && !batch->axes)
        return TN_OK;
    size_t all = (size_t)(m->rows * m->tokens);
    m->kinds = calloc(all, sizeof *m->kinds);
    m->feature = malloc(all * sizeof *m->feature);
    if (!m->kinds || !m->feature)
        return tn_fail(err, TN_E_MEMORY, "session", "out of memory");
    find_kinds(m, batch);
    number_features(m);
    tn_status status = more && outputs ? media_features(m, outputs, err) : TN_OK;
    if (status == TN_OK && has_axes(m) && (batch->axes || !batch->positions))
        status = find_positions(m, batch, lengths, err);
    return status;
}

static bool is_picture(const media *m, int64_t b, int64_t t)
{
    int8_t kind = m->kinds ? m->kinds[b * m->tokens + t] : MULTIMODAL_TEXT;
    return kind == MULTIMODAL_IMAGE || kind == MULTIMODAL_VIDEO;
}

/* How many tokens from begin on see each other, or (negative) come before any that do. */
static int64_t mutual_run(const media *m, multimodal_sight sight, int64_t b, int64_t begin, int64_t left, bool begins)
{
    int64_t n = 1;
    if (sight != SIGHT_PICTURE && sight != SIGHT_NEAR)
        return sight == SIGHT_PROMPT && begins ? left : -left;
    while (n < left && is_picture(m, b, begin + n) == is_picture(m, b, begin))
        n++;
    return is_picture(m, b, begin) ? n : -n;
}

tn_status media_cut(const media *m, int64_t begin, int64_t left, int64_t most, media_before before, int64_t *first,
                    int64_t *count, tn_error *err)
{
    multimodal_sight sight = m->shape->media ? m->shape->media->sight : SIGHT_BACK;
    const char *what = sight == SIGHT_PROMPT ? "prompt" : "picture";
    *count = left < most ? left : most;
    for (int64_t b = 0; b < m->rows; b++) {
        int64_t n = mutual_run(m, sight, b, begin, left, before == MEDIA_NOTHING);
        first[b] = n > 0 ? n : -1;
        if (n > most)
            return tn_fail(err, TN_E_INPUT, what,
                           "its %lld tokens see each other, and a chunk has %lld; raise --chunk (chunk of "
                           "tn_session_options)",
                           (long long)n, (long long)most);
        if (n > 0 && before == MEDIA_PICTURE)
            return tn_fail(err, TN_E_INPUT, what, "the tokens of a picture see each other: give them in one call");
        if (sight == SIGHT_PROMPT && n < 0 && m->count[MULTIMODAL_IMAGE] > 0)
            return tn_fail(err, TN_E_INPUT, what, "pictures belong to the first call, all of whose tokens see them");
        n = n < 0 ? -n : n;
        *count = n < *count ? n : *count;
    }
    for (int64_t b = 0; b < m->rows; b++)
        if (first[b] > *count)
            return tn_fail(err, TN_E_INPUT, what,
                           "its tokens see each other: those of a batch's rows must begin and end at the same columns");
    return TN_OK;
}

int64_t media_mutual(const media *m, int64_t begin, int64_t left)
{
    return mutual_run(m, m->shape->media ? m->shape->media->sight : SIGHT_BACK, 0, begin, left, false);
}

int64_t media_plain(const media *m, int64_t begin, int64_t left)
{
    int64_t n = 0;
    while (n < left && media_kind(m, begin + n) == MULTIMODAL_TEXT)
        n++;
    return n;
}

multimodal_kind media_kind(const media *m, int64_t t)
{
    return m->kinds ? (multimodal_kind)m->kinds[t] : MULTIMODAL_TEXT;
}

tn_status media_chunk(media *m, int64_t begin, int64_t tokens, run_media *out, tn_error *err)
{
    return media_part(m, begin, tokens, 0, m->rows * tokens, out, err);
}

tn_status media_part(media *m, int64_t begin, int64_t tokens, int64_t at, int64_t all, run_media *out, tn_error *err)
{
    int64_t rows = media_rows(m), pictures = media_pictures(m), some = 0, hidden = m->shape->hidden;
    *out = (run_media){0};
    if (rows == 0)
        return TN_OK;
    memset(m->slot, 0xff, (size_t)rows * sizeof *m->slot);
    for (int64_t i = 0; i < all; i++)
        m->deep_row[i] = pictures;
    for (int64_t i = 0; i < m->rows * tokens; i++) {
        int64_t feature = m->feature[i / tokens * m->tokens + begin + i % tokens];
        some += feature >= 0;
        if (feature >= 0 && feature < pictures)
            m->deep_row[at + i] = feature;
        if (feature >= 0)
            m->slot[feature] = (int32_t)(at + i);
    }
    if (some == 0)
        return TN_OK;
    tn_status status = device_upload(m->device, m->device_slot, m->slot, (size_t)rows * sizeof *m->slot, err);
    size_t bytes = (size_t)all * sizeof *m->deep_row;
    if (status == TN_OK)
        status = device_upload(m->device, m->device_deep_row, m->deep_row, bytes, err);
    out->features = tn_tensor_dense(m->device_features, m->dtype, 2, (int64_t[]){rows, hidden});
    out->slot = tn_tensor_dense(m->device_slot, TN_I32, 2, (int64_t[]){1, rows});
    out->deep_row = tn_tensor_dense(m->device_deep_row, TN_I64, 1, (int64_t[]){all});
    while (out->deep_count < RUN_DEEP && m->device_deep[out->deep_count]) {
        void *deep = m->device_deep[out->deep_count];
        out->deep[out->deep_count++] = tn_tensor_dense(deep, m->dtype, 2, (int64_t[]){pictures + 1, hidden});
    }
    return status;
}

void media_measure(const media *m, int64_t tokens, run_media *out)
{
    const multimodal *model = m->shape->media;
    int64_t all = m->rows * tokens, hidden = m->shape->hidden;
    *out = (run_media){.deep_count = model ? model->deep_count : 0};
    out->features = tn_tensor_dense(NULL, m->dtype, 2, (int64_t[]){model ? all : 0, hidden});
    out->slot = tn_tensor_dense(NULL, TN_I32, 2, (int64_t[]){1, all});
    out->deep_row = tn_tensor_dense(NULL, TN_I64, 1, (int64_t[]){all});
    for (int32_t j = 0; j < out->deep_count; j++)
        out->deep[j] = tn_tensor_dense(NULL, m->dtype, 2, (int64_t[]){all + 1, hidden});
}
