/* Qwen-VL and GLM-4V: pictures keep their shape and become as many patches as limits of pixels allow, each of them
 * twice in time; rows of patches in the order of groups that become one row of the text model. */
#include "pictures/processor.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_RATIO = 200, MAX_PATCH = 256, MAX_MERGE = 16, MAX_FRAMES = 16 };

static void read_limits(const config_reader *c, processor *p, int64_t least, int64_t most)
{
    int64_t side[2] = {0, 0};
    processor_size(c, "size", side, &p->shortest, &p->longest);
    p->shortest = config_i64(c, "min_pixels", p->shortest ? p->shortest : least, 1, INT64_C(1) << 40);
    p->longest = config_i64(c, "max_pixels", p->longest ? p->longest : most, 1, INT64_C(1) << 40);
    if (p->longest < p->shortest)
        config_fail(c, "max_pixels", "is %lld, below the least number of pixels, %lld", (long long)p->longest,
                    (long long)p->shortest);
    p->patch = config_i64(c, "patch_size", 14, 1, MAX_PATCH);
    p->merge = config_i64(c, "merge_size", 2, 1, MAX_MERGE);
    p->frames = config_i64(c, "temporal_patch_size", 2, 1, MAX_FRAMES);
}

static void read_qwen(const config_reader *c, processor *p)
{
    read_limits(c, p, 56 * 56, 28 * 28 * 1280);
}

static void read_glm(const config_reader *c, processor *p)
{
    read_limits(c, p, 112 * 112, 28 * 28 * 15000);
}

/* Multiples of a group's side, near the picture's own, within the limits. frames: what limits count each pixel. */
static tn_status new_size(const processor *p, const picture *from, bool glm, int64_t out[2], tn_error *err)
{
    double factor = (double)(p->patch * p->merge), frames = glm ? (double)p->frames : 1;
    double side[2] = {(double)from->height, (double)from->width}, least = (double)p->shortest,
           most = (double)p->longest;
    if (glm && (side[0] < factor || side[1] < factor)) {
        double scale = fmax(factor / side[0], factor / side[1]);
        side[0] = floor(side[0] * scale);
        side[1] = floor(side[1] * scale);
    }
    if (fmax(side[0], side[1]) / fmin(side[0], side[1]) > MAX_RATIO)
        return tn_fail(err, TN_E_INPUT, "picture", "is %lld by %lld pixels; one side may be %d times the other",
                       (long long)from->width, (long long)from->height, (int)MAX_RATIO);
    double now[2] = {nearbyint(side[0] / factor) * factor, nearbyint(side[1] / factor) * factor};
    double pixels = frames * side[0] * side[1], rounded = frames * now[0] * now[1];
    for (int i = 0; i < 2; i++) {
        if (rounded > most)
            now[i] = fmax(factor, floor(side[i] / sqrt(pixels / most) / factor) * factor);
        else if (rounded < least)
            now[i] = ceil(side[i] * sqrt(least / pixels) / factor) * factor;
    }
    if (!(now[0] >= 1 && now[1] >= 1 && now[0] * now[1] <= (double)PICTURES_MAX_PIXELS))
        return tn_fail(err, TN_E_INPUT, "picture", "would become %g by %g pixels", now[1], now[0]);
    out[0] = (int64_t)now[0];
    out[1] = (int64_t)now[1];
    return TN_OK;
}

/* Rows of (channel, time, line, column) in the order of groups. */
static void cut(const processor *p, const picture *from, float *to)
{
    int64_t n = p->patch, m = p->merge, h = from->height / n, w = from->width / n, plane = n * n * p->frames;
    for (int64_t i = 0; i < h * w; i++, to += 3 * plane) {
        int64_t group = i / (m * m), within = i % (m * m);
        int64_t line = group / (w / m) * m + within / m, column = group % (w / m) * m + within % m;
        for (int64_t t = 0; t < p->frames; t++)
            processor_planes(p, from, line * n, column * n, n, n, to + t * n * n, n, plane);
    }
}

static tn_status run(processor_job *j, bool glm)
{
    const processor *p = j->p;
    processed *out = j->out;
    int64_t patches = 0, width = 3 * p->frames * p->patch * p->patch;
    out->grids = calloc((size_t)j->count * 3 + 1, sizeof *out->grids);
    out->tokens = calloc((size_t)j->count + 1, sizeof *out->tokens);
    tn_status status = out->grids && out->tokens ? TN_OK : tn_fail(j->err, TN_E_MEMORY, "pictures", "out of memory");
    for (int64_t i = 0; i < j->count && status == TN_OK; i++) {
        int64_t size[2] = {0, 0}, *grid = out->grids + 3 * i;
        status = new_size(p, &j->pictures[i], glm, size, j->err);
        if (status != TN_OK)
            return status;
        grid[0] = 1;
        grid[1] = size[0] / p->patch;
        grid[2] = size[1] / p->patch;
        out->tokens[i] = grid[1] * grid[2] / (p->merge * p->merge);
        patches += grid[1] * grid[2];
    }
    if (status == TN_OK)
        status = processor_room(j, 2, (int64_t[]){patches, width});
    float *to = out->pixels;
    for (int64_t i = 0; i < j->count && status == TN_OK; i++) {
        picture now;
        const int64_t *grid = out->grids + 3 * i;
        status = resize_picture(&j->pictures[i], grid[1] * p->patch, grid[2] * p->patch, p->filter, &now, j->err);
        if (status == TN_OK)
            cut(p, &now, to);
        to += grid[1] * grid[2] * width;
        pictures_release(&now);
    }
    return status;
}

static tn_status run_qwen(processor_job *j)
{
    return run(j, false);
}

static tn_status run_glm(processor_job *j)
{
    return run(j, true);
}

const processor_kind processor_qwen = {"Qwen2VLImageProcessor", RESIZE_BICUBIC, LEVELS_CLIP, read_qwen, run_qwen};
const processor_kind processor_glm = {"Glm4vImageProcessor", RESIZE_BICUBIC, LEVELS_CLIP, read_glm, run_glm};
