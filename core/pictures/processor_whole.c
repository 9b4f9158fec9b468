/* Pictures that become planes of one size (CLIP, SigLIP), or of sizes of their own, padded to the largest (Pixtral). */
#include "pictures/processor.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_PATCH = 1024, MAX_EDGE = 1 << 14 };

/* ---- CLIP ------------------------------------------------------------------------------------------ */

static void read_clip(const config_reader *c, processor *p)
{
    int64_t none = 0;
    p->size[0] = p->size[1] = p->shortest = 224;
    p->crop[0] = p->crop[1] = 224;
    processor_size(c, "size", p->size, &p->shortest, &p->longest);
    processor_size(c, "crop_size", p->crop, &none, &none);
    if (p->shortest > MAX_EDGE)
        config_fail(c, "size", "has a shortest_edge of %lld, at most %d is supported", (long long)p->shortest,
                    (int)MAX_EDGE);
    processor_need_size(c, "size", p->size, MAX_EDGE);
    processor_need_size(c, "crop_size", p->crop, MAX_EDGE);
    if (!config_bool(c, "do_center_crop", true))
        config_fail(c, "do_center_crop", "is false, which is not supported");
}

static tn_status run_clip(processor_job *j)
{
    const processor *p = j->p;
    int64_t h = p->crop[0], w = p->crop[1];
    tn_status status = processor_room(j, 4, (int64_t[]){j->count, 3, h, w});
    for (int64_t i = 0; i < j->count && status == TN_OK; i++) {
        const picture *from = &j->pictures[i];
        int64_t size[2] = {p->size[0], p->size[1]};
        bool tall = from->height > from->width;
        if (p->shortest) /* the other side follows, rounded down */
            size[!tall] = (int64_t)((double)p->shortest * (double)(tall ? from->height : from->width) /
                                    (double)(tall ? from->width : from->height));
        if (p->shortest)
            size[tall] = p->shortest;
        picture now;
        if (size[0] < h || size[1] < w || size[0] * size[1] > PICTURES_MAX_PIXELS)
            return tn_fail(j->err, TN_E_INPUT, "picture",
                           "of %lld by %lld pixels would become %lld by %lld, crop_size is %lld by %lld",
                           (long long)from->width, (long long)from->height, (long long)size[1], (long long)size[0],
                           (long long)w, (long long)h);
        status = resize_picture(from, size[0], size[1], p->filter, &now, j->err);
        int64_t top = (size[0] - h) / 2, left = (size[1] - w) / 2;
        if (status == TN_OK)
            processor_planes(p, &now, top, left, h, w, j->out->pixels + i * 3 * h * w, w, h * w);
        pictures_release(&now);
    }
    return status;
}

/* ---- SigLIP ---------------------------------------------------------------------------------------- */

static void read_siglip(const config_reader *c, processor *p)
{
    p->size[0] = p->size[1] = 224;
    processor_size(c, "size", p->size, &p->shortest, &p->longest);
    processor_need_size(c, "size", p->size, MAX_EDGE);
}

static tn_status run_siglip(processor_job *j)
{
    const processor *p = j->p;
    int64_t h = p->size[0], w = p->size[1];
    tn_status status = processor_room(j, 4, (int64_t[]){j->count, 3, h, w});
    for (int64_t i = 0; i < j->count && status == TN_OK; i++) {
        picture now;
        status = resize_picture(&j->pictures[i], h, w, p->filter, &now, j->err);
        if (status == TN_OK)
            processor_planes(p, &now, 0, 0, h, w, j->out->pixels + i * 3 * h * w, w, h * w);
        pictures_release(&now);
    }
    return status;
}

/* ---- Pixtral --------------------------------------------------------------------------------------- */

static void read_pixtral(const config_reader *c, processor *p)
{
    int64_t patch[2] = {16, 16}, none = 0;
    p->longest = 1024;
    processor_size(c, "size", p->size, &p->shortest, &p->longest);
    processor_size(c, "patch_size", patch, &none, &none);
    if (!p->longest)
        p->longest = p->size[0] > p->size[1] ? p->size[0] : p->size[1];
    p->patch = patch[0];
    if (p->longest < 1 || p->longest > MAX_EDGE)
        config_fail(c, "size", "must say a longest_edge of 1 to %d pixels", (int)MAX_EDGE);
    if (patch[0] < 1 || patch[0] != patch[1] || patch[0] > MAX_PATCH)
        config_fail(c, "patch_size", "must be a square of 1 to %d pixels by side", (int)MAX_PATCH);
}

/* Only ever smaller, sides rounded up to whole patches. */
static void pixtral_size(const processor *p, const picture *from, int64_t out[2])
{
    double most = (double)p->longest, h = (double)from->height, w = (double)from->width;
    double ratio = fmax(h / most, w / most);
    int64_t side[2] = {ratio > 1 ? (int64_t)floor(h / ratio) : from->height,
                       ratio > 1 ? (int64_t)floor(w / ratio) : from->width};
    for (int i = 0; i < 2; i++)
        out[i] = side[i] < 1 ? p->patch : (side[i] + p->patch - 1) / p->patch * p->patch;
}

static tn_status run_pixtral(processor_job *j)
{
    const processor *p = j->p;
    int64_t h = 0, w = 0, *sizes = j->out->sizes = calloc((size_t)j->count * 2 + 1, sizeof *sizes);
    if (!sizes)
        return tn_fail(j->err, TN_E_MEMORY, "pictures", "out of memory");
    for (int64_t i = 0; i < j->count; i++) {
        pixtral_size(p, &j->pictures[i], sizes + 2 * i);
        h = sizes[2 * i] > h ? sizes[2 * i] : h;
        w = sizes[2 * i + 1] > w ? sizes[2 * i + 1] : w;
    }
    tn_status status = processor_room(j, 4, (int64_t[]){j->count, 3, h, w});
    for (int64_t i = 0; i < j->count && status == TN_OK; i++) {
        picture now;
        status = resize_picture(&j->pictures[i], sizes[2 * i], sizes[2 * i + 1], p->filter, &now, j->err);
        if (status == TN_OK)
            processor_planes(p, &now, 0, 0, now.height, now.width, j->out->pixels + i * 3 * h * w, w, h * w);
        pictures_release(&now);
    }
    return status;
}

const processor_kind processor_clip = {"CLIPImageProcessor", RESIZE_BICUBIC, LEVELS_CLIP, read_clip, run_clip};
const processor_kind processor_siglip = {"SiglipImageProcessor", RESIZE_BICUBIC, LEVELS_HALF, read_siglip, run_siglip};
const processor_kind processor_pixtral = {"PixtralImageProcessor", RESIZE_BICUBIC, LEVELS_CLIP, read_pixtral,
                                          run_pixtral};
