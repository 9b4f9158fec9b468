/* Pictures from files for a model: its processor's, and the tokens that stand for them. */
#include "models/multimodal.h"
#include "models/vit.h"
#include "open/model.h"
#include "pictures/pictures.h"

#include <stdlib.h>
#include <string.h>
#include <tenon/media.h>

struct tn_media {
    processed made;
    tn_pictures pictures;
};

static tn_status decode_all(const char *const *files, int64_t count, picture *pictures, tn_error *err)
{
    tn_status status = TN_OK;
    for (int64_t i = 0; i < count && status == TN_OK; i++)
        status = files[i] ? pictures_decode(files[i], &pictures[i], err)
                          : tn_fail(err, TN_E_USAGE, "files", "file %lld is NULL", (long long)i);
    return status;
}

/* Whole pictures are numbered as they lie in pixels, of which several may be of one file. */
static void describe(tn_media *m)
{
    const processed *x = &m->made;
    m->pictures = (tn_pictures){.size = sizeof m->pictures, .count = x->count, .grids = x->grids, .pixels = x->pixels};
    if (x->grids) {
        m->pictures.patches = x->shape[0];
        m->pictures.width = x->shape[1];
        return;
    }
    m->pictures.count = x->parts ? x->shape[0] : x->count;
    m->pictures.pixel_ndim = x->ndim;
    m->pictures.pixel_shape = x->shape;
    m->pictures.sizes = x->sizes;
}

tn_media *tn_media_images(const tn_model *model, const char *const *files, int64_t count, tn_error *err)
{
    if (!model || !files || count < 1 || count > 4096) {
        tn_fail(err, TN_E_USAGE, "tn_media_images", "takes a model and the names of 1 to 4096 files");
        return NULL;
    }
    const multimodal *sees = model->flow->shape(model->arch_state)->media;
    if (!sees || !sees->vision) {
        tn_fail(err, TN_E_INPUT, "pictures", "%s sees none; leave them out", model->info.class_name);
        return NULL;
    }
    processor *p = processor_open(model->folder, err);
    picture *pictures = p ? calloc((size_t)count, sizeof *pictures) : NULL;
    tn_media *m = pictures ? calloc(1, sizeof *m) : NULL;
    tn_status status = m ? decode_all(files, count, pictures, err) : TN_E_MEMORY;
    if (p && !m)
        tn_fail(err, TN_E_MEMORY, "pictures", "out of memory; give fewer at once");
    if (status == TN_OK)
        status = processor_run(p, pictures, count, &m->made, err);
    for (int64_t i = 0; pictures && i < count; i++)
        pictures_release(&pictures[i]);
    free(pictures);
    processor_free(p);
    if (status == TN_OK) {
        describe(m);
        return m;
    }
    free(m);
    return NULL;
}

void tn_media_free(tn_media *media)
{
    if (media)
        processor_release(&media->made);
    free(media);
}

const tn_pictures *tn_media_pictures(const tn_media *media)
{
    return media ? &media->pictures : NULL;
}

/* ---- tokens ------------------------------------------------------------------------------------------ */

/* Rows of picture i; -1 after an error. */
static int64_t rows_of(const tn_media *media, const multimodal *model, int64_t i, tn_error *err)
{
    const processed *x = &media->made;
    if (x->tokens)
        return x->tokens[i];
    tower_media one = {.count = x->parts ? x->parts[i] : 1, .sizes = x->sizes ? x->sizes + 2 * i : NULL};
    int64_t shape[6];
    memcpy(shape, x->shape, sizeof shape);
    shape[0] = one.count;
    one.pixels = tn_tensor_dense(NULL, TN_F32, x->ndim, shape);
    return model->vision->tokens(model->vision_state, &one, err);
}

static tn_status expand(const tn_media *media, const multimodal *model, const int64_t *ids, size_t count, int64_t *to,
                        size_t *total, tn_error *err)
{
    int64_t next = 0, token = model->token[MULTIMODAL_IMAGE];
    *total = 0;
    for (size_t i = 0; i < count; i++) {
        int64_t rows = 1;
        if (ids[i] < 0)
            return tn_fail(err, TN_E_INPUT, "prompt", "has the token id %lld", (long long)ids[i]);
        if (ids[i] == token && next < media->made.count && (rows = rows_of(media, model, next, err)) < 0)
            return TN_E_INPUT;
        next += ids[i] == token;
        for (int64_t r = 0; to && r < rows; r++)
            to[*total + (size_t)r] = ids[i];
        *total += (size_t)rows;
    }
    if (next == media->made.count)
        return TN_OK;
    return tn_fail(err, TN_E_INPUT, "prompt", "has %lld places for pictures (%s %lld), and %lld pictures are given",
                   (long long)next, model->token_key[MULTIMODAL_IMAGE], (long long)token, (long long)media->made.count);
}

tn_status tn_media_expand(const tn_media *media, const tn_model *model, const int64_t *ids, size_t count, int64_t **out,
                          size_t *out_count, tn_error *err)
{
    if (!media || !model || (!ids && count > 0) || !out || !out_count)
        return tn_fail(err, TN_E_USAGE, "tn_media_expand", "takes media, a model, ids, and places for the result");
    const multimodal *m = model->flow->shape(model->arch_state)->media;
    *out = NULL;
    *out_count = 0;
    if (!m || !m->vision || m->token[MULTIMODAL_IMAGE] < 0)
        return tn_fail(err, TN_E_INPUT, "pictures", "are given, and %s sees none", model->info.class_name);
    if (m->vision->largest && !vit_repeats(m->vision_state))
        return tn_fail(err, TN_DECLINED, "pictures",
                       "of %s have marks between their rows, which are not set here; give the processor's tensors to "
                       "tenon logits --input",
                       model->wrapper ? model->wrapper->class_name : model->info.class_name);
    tn_status status = expand(media, m, ids, count, NULL, out_count, err);
    if (status == TN_OK && !(*out = malloc((*out_count + 1) * sizeof **out)))
        status = tn_fail(err, TN_E_MEMORY, "prompt", "out of memory for %zu tokens", *out_count);
    return status == TN_OK ? expand(media, m, ids, count, *out, out_count, err) : status;
}
