/* Pictures from files for a model: its processor's, and what stands for them in a prompt. */
#include "models/multimodal.h"
#include "models/vit.h"
#include "open/model.h"
#include "pictures/pictures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenon/media.h>

struct tn_media {
    const tn_model *model;
    processed made;
    tn_pictures pictures;
};

static const vit_marks *marks_of(const multimodal *m)
{
    return m->vision->largest ? vit_marks_of(m->vision_state) : NULL;
}

static tn_status decode_all(const char *const *files, int64_t count, picture *pictures, tn_error *err)
{
    tn_status status = TN_OK;
    for (int64_t i = 0; i < count && status == TN_OK; i++)
        status = files[i] ? pictures_decode(files[i], &pictures[i], err)
                          : tn_fail(err, TN_E_USAGE, "files", "file %lld is NULL", (long long)i);
    return status;
}

/* Whole pictures are numbered as they lie in pixels, of which several may be of one file. */
static void describe(tn_media *m, const tn_model *model)
{
    m->model = model;
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
    if (!sees || !sees->vision || sees->token[MULTIMODAL_IMAGE] < 0) {
        tn_fail(err, TN_E_INPUT, "pictures", "%s sees none; leave them out", model->info.class_name);
        return NULL;
    }
    processor *p = processor_open(model->folder, err);
    const vit_marks *marks = marks_of(sees);
    if (p && marks && marks->line)
        processor_cut_at(p, vit_unit(sees->vision_state));
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
        describe(m, model);
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

/* ---- prompts ----------------------------------------------------------------------------------------- */

typedef struct expansion {
    const tn_media *media;
    const multimodal *model;
    const vit_marks *marks; /* NULL: none                                                              */
    char *token;            /* the text of the picture's token                                         */
    FILE *out;
} expansion;

/* Rows of picture i; -1 after an error. */
static int64_t rows_of(const expansion *e, int64_t i, tn_error *err)
{
    const processed *x = &e->media->made;
    if (x->tokens)
        return x->tokens[i];
    tower_media one = {.count = x->parts ? x->parts[i] : 1, .sizes = x->sizes ? x->sizes + 2 * i : NULL};
    int64_t shape[6];
    memcpy(shape, x->shape, sizeof shape);
    shape[0] = one.count;
    one.pixels = tn_tensor_dense(NULL, TN_F32, x->ndim, shape);
    return e->model->vision->tokens(e->model->vision_state, &one, err);
}

static void write_rows(const expansion *e, int64_t rows, int64_t columns)
{
    const vit_marks *marks = e->marks;
    fputs(marks ? marks->before : "", e->out);
    for (int64_t r = 1; r <= rows; r++) {
        fputs(e->token, e->out);
        if (marks && marks->line && r % columns == 0 && r < rows)
            fputs(marks->line, e->out);
    }
    fputs(marks ? marks->after : "", e->out);
}

/* Tiles stand line by line before the whole picture, of which there is only that where it is one tile. */
static tn_status write_tiles(const expansion *e, int64_t i, int64_t rows, tn_error *err)
{
    const processed *x = &e->media->made;
    if (!x->tiles)
        return tn_fail(err, TN_E_INPUT, "preprocessor_config.json",
                       "makes no tiles, which pictures of this model have; is the file another model's?");
    int64_t columns = x->tiles[2 * i + 1], last = x->parts[i] - 1;
    fputs(e->marks->before, e->out);
    for (int64_t t = 0; t <= last; t++) {
        fputs(t == last ? e->marks->whole : "", e->out);
        for (int64_t r = 0; r < rows / x->parts[i]; r++)
            fputs(e->token, e->out);
        fputs(t == last ? e->marks->after : (t + 1) % columns ? e->marks->across : e->marks->down, e->out);
    }
    return TN_OK;
}

/* Crops of a picture stand behind the whole one, each with its own marks. */
static tn_status write_picture(const expansion *e, int64_t i, tn_error *err)
{
    const processed *x = &e->media->made;
    int64_t rows = rows_of(e, i, err), parts = 1, columns = rows;
    if (rows < 0)
        return TN_E_INPUT;
    if (e->marks && e->marks->across)
        return write_tiles(e, i, rows, err);
    if (e->marks && e->marks->line && !x->sizes)
        return tn_fail(err, TN_E_INPUT, "preprocessor_config.json",
                       "makes pictures of one size, those of this model have their own; is the file another model's?");
    if (e->marks && e->marks->line)
        columns = x->sizes[2 * i + 1] / vit_unit(e->model->vision_state);
    if (e->marks && e->marks->crops && x->parts)
        parts = x->parts[i];
    for (int64_t p = 0; p < parts; p++) {
        fputs(parts == 1 ? "" : p == 0 ? e->marks->whole : p == 1 ? e->marks->crops : " ", e->out);
        write_rows(e, rows / parts, columns);
    }
    return TN_OK;
}

static tn_status write_prompt(const expansion *e, const char *text, size_t length, tn_error *err)
{
    const char *place = e->marks && e->marks->place ? e->marks->place : e->token, *end = text + length, *at;
    int64_t count = e->media->made.count, next = 0;
    size_t size = strlen(place);
    tn_status status = TN_OK;
    for (; status == TN_OK && (at = memmem(text, (size_t)(end - text), place, size)); text = at + size) {
        fwrite(text, 1, (size_t)(at - text), e->out);
        status = next < count ? write_picture(e, next, err) : TN_OK;
        next++;
    }
    fwrite(text, 1, (size_t)(end - text), e->out);
    if (status == TN_OK && next != count)
        status = tn_fail(err, TN_E_INPUT, "prompt", "has %lld places for pictures ('%s'), and %lld pictures are given",
                         (long long)next, place, (long long)count);
    return status;
}

tn_status tn_media_expand(const tn_media *media, const tn_tokenizer *tokenizer, const char *text, size_t length,
                          char **out, size_t *out_length, tn_error *err)
{
    if (!media || !tokenizer || !text || !out || !out_length)
        return tn_fail(err, TN_E_USAGE, "tn_media_expand",
                       "takes media, the model's tokenizer, a text, and places for the result");
    const multimodal *m = media->model->flow->shape(media->model->arch_state)->media;
    expansion e = {.media = media, .model = m, .marks = marks_of(m)};
    *out = NULL;
    *out_length = 0;
    tn_status status = tn_tokenizer_decode(tokenizer, &m->token[MULTIMODAL_IMAGE], 1, false, &e.token, NULL, err);
    if (status == TN_OK && !e.token[0])
        status = tn_fail(err, TN_E_INPUT, "prompt", "the tokenizer has no text for %s %lld",
                         m->token_key[MULTIMODAL_IMAGE], (long long)m->token[MULTIMODAL_IMAGE]);
    if (status == TN_OK && !(e.out = open_memstream(out, out_length)))
        status = tn_fail(err, TN_E_MEMORY, "prompt", "out of memory for its text");
    if (status == TN_OK) {
        status = write_prompt(&e, text, length, err);
        bool lost = ferror(e.out) != 0;
        if ((fclose(e.out) || lost) && status == TN_OK)
            status = tn_fail(err, TN_E_MEMORY, "prompt", "out of memory for its text");
    }
    if (status != TN_OK) {
        free(*out);
        *out = NULL;
    }
    free(e.token);
    return status;
}
