/* Pictures and sounds from files for a model, as its processor and its extractor make them. */
#include "media/media_files.h"

#include "base/notices.h"
#include "models/vit.h"
#include "open/model.h"

#include <stdlib.h>

enum { MOST_FILES = 4096 };

/* ---- pictures ---------------------------------------------------------------------------------------- */

static tn_status decode_all(const char *const *files, int64_t count, picture *pictures, tn_error *err)
{
    tn_status status = TN_OK;
    for (int64_t i = 0; i < count && status == TN_OK; i++)
        status = files[i] ? pictures_decode(files[i], &pictures[i], err)
                          : tn_fail(err, TN_E_USAGE, "files", "file %lld is NULL", (long long)i);
    return status;
}

/* Whole pictures are numbered as they lie in pixels, of which several may be of one file. */
static void describe_pictures(tn_media *m)
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
    m->pictures.places = x->places;
}

static tn_status make_pictures(tn_media *m, const multimodal *sees, const char *const *files, int64_t count,
                               tn_error *err)
{
    if (!sees || !sees->vision || sees->token[MULTIMODAL_IMAGE] < 0)
        return tn_fail(err, TN_E_INPUT, "pictures", "%s sees none; leave them out", m->model->info.class_name);
    processor *p = processor_open(m->model->folder, err);
    if (!p)
        return err->code;
    if (sees->marks && sees->marks->line)
        processor_cut_at(p, vit_unit(sees->vision_state));
    picture *pictures = calloc((size_t)count, sizeof *pictures);
    tn_status status = pictures ? decode_all(files, count, pictures, err)
                                : tn_fail(err, TN_E_MEMORY, "pictures", "out of memory; give fewer at once");
    if (status == TN_OK)
        status = processor_run(p, pictures, count, &m->made, err);
    if (status == TN_OK)
        describe_pictures(m);
    for (int64_t i = 0; pictures && i < count; i++)
        pictures_release(&pictures[i]);
    free(pictures);
    processor_free(p);
    return status;
}

/* ---- sounds ------------------------------------------------------------------------------------------ */

/* As transformers cuts it, which says nothing of it. */
static void tell_cut(const extractor *e, const char *file, const sound *s)
{
    double rate = (double)extractor_rate(e);
    if (s->count > extractor_most(e))
        notices_add("%s: of its %.1f s the model's processor takes the first %g", file, (double)s->count / rate,
                    (double)extractor_most(e) / rate);
}

static tn_status hear_all(const extractor *e, const char *const *files, int64_t count, sound *sounds, tn_error *err)
{
    tn_status status = TN_OK;
    for (int64_t i = 0; i < count && status == TN_OK; i++) {
        status = files[i] ? sounds_decode(files[i], extractor_rate(e), &sounds[i], err)
                          : tn_fail(err, TN_E_USAGE, "files", "file %lld is NULL", (long long)i);
        if (status == TN_OK)
            tell_cut(e, files[i], &sounds[i]);
    }
    return status;
}

static void describe_sounds(tn_media *m)
{
    const extracted *x = &m->heard;
    m->sounds = (tn_sounds){.size = sizeof m->sounds,
                            .count = x->count,
                            .mel = x->mel,
                            .bins = x->bins,
                            .frames = x->frames,
                            .lengths = x->lengths};
}

static tn_status make_sounds(tn_media *m, const multimodal *hears, const char *const *files, int64_t count,
                             tn_error *err)
{
    if (!hears || !hears->audio || hears->token[MULTIMODAL_SOUND] < 0)
        return tn_fail(err, TN_E_INPUT, "sounds", "%s hears none; leave them out", m->model->info.class_name);
    extractor *e = extractor_open(m->model->folder, err);
    if (!e)
        return err->code;
    if (hears->audio->whole_clips)
        extractor_pad_to_longest(e);
    sound *sounds = calloc((size_t)count, sizeof *sounds);
    tn_status status = sounds ? hear_all(e, files, count, sounds, err)
                              : tn_fail(err, TN_E_MEMORY, "sounds", "out of memory; give fewer at once");
    if (status == TN_OK)
        status = extractor_run(e, sounds, count, false, &m->heard, err);
    if (status == TN_OK)
        describe_sounds(m);
    for (int64_t i = 0; sounds && i < count; i++)
        sounds_release(&sounds[i]);
    free(sounds);
    extractor_free(e);
    return status;
}

/* ---- both -------------------------------------------------------------------------------------------- */

static bool good_list(const char *const *files, int64_t count)
{
    return count == 0 || (files && count > 0 && count <= MOST_FILES);
}

tn_media *tn_media_files(const tn_model *model, const char *const *images, int64_t image_count,
                         const char *const *sounds, int64_t sound_count, tn_error *err)
{
    tn_error own = TN_ERROR_INIT;
    err = err ? err : &own;
    if (!model || !good_list(images, image_count) || !good_list(sounds, sound_count) || image_count + sound_count < 1) {
        tn_fail(err, TN_E_USAGE, "tn_media_files",
                "takes a model and the names of 0 to %d pictures and of as many sounds, at least one in all",
                (int)MOST_FILES);
        return NULL;
    }
    const multimodal *media = model->flow->shape(model->arch_state)->media;
    tn_media *m = calloc(1, sizeof *m);
    if (!m) {
        tn_fail(err, TN_E_MEMORY, "media", "out of memory; give fewer files at once");
        return NULL;
    }
    tn_status status = TN_OK;
    m->model = model;
    if (image_count > 0)
        status = make_pictures(m, media, images, image_count, err);
    if (status == TN_OK && sound_count > 0)
        status = make_sounds(m, media, sounds, sound_count, err);
    if (status == TN_OK)
        return m;
    tn_media_free(m);
    return NULL;
}

tn_media *tn_media_images(const tn_model *model, const char *const *files, int64_t count, tn_error *err)
{
    if (!model || !files || count < 1 || count > MOST_FILES) {
        tn_fail(err, TN_E_USAGE, "tn_media_images", "takes a model and the names of 1 to %d files", (int)MOST_FILES);
        return NULL;
    }
    return tn_media_files(model, files, count, NULL, 0, err);
}

void tn_media_free(tn_media *media)
{
    if (media) {
        processor_release(&media->made);
        extractor_release(&media->heard);
    }
    free(media);
}

const tn_pictures *tn_media_pictures(const tn_media *media)
{
    return media && media->made.count > 0 ? &media->pictures : NULL;
}

const tn_sounds *tn_media_sounds(const tn_media *media)
{
    return media && media->heard.count > 0 ? &media->sounds : NULL;
}
