/* Pictures that become several of one size: LLaVA-NeXT's tiles behind the whole one, InternVL's and Llama 4's before
 * it, Gemma 3's crops behind it. */
#include "pictures/processor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_EDGE = 1 << 13, MAX_TILES = 64 };

/* A part of a picture as one of its own. Owned. */
static tn_status crop(const picture *from, int64_t top, int64_t left, int64_t height, int64_t width, picture *to,
                      tn_error *err)
{
    *to = (picture){.height = height, .width = width, .rgb = malloc((size_t)(height * width) * 3 + 1)};
    if (!to->rgb)
        return tn_fail(err, TN_E_MEMORY, "picture", "out of memory for a part of it");
    for (int64_t y = 0; y < height; y++)
        memcpy(to->rgb + y * width * 3, from->rgb + ((top + y) * from->width + left) * 3, (size_t)width * 3);
    return TN_OK;
}

/* Resizes to height x width and stores parts of tile's size of it, line by line, from *to on. */
static tn_status store_tiles(processor_job *j, const picture *from, int64_t rows, int64_t columns, float **to)
{
    const processor *p = j->p;
    int64_t h = p->size[0], w = p->size[1];
    picture now;
    tn_status status = resize_picture(from, rows * h, columns * w, p->filter, &now, j->err);
    for (int64_t i = 0; i < rows * columns && status == TN_OK; i++, *to += 3 * h * w)
        processor_planes(p, &now, i / columns * h, i % columns * w, h, w, *to, w, h * w);
    pictures_release(&now);
    return status;
}

/* ---- LLaVA-NeXT ------------------------------------------------------------------------------------- */

static void read_llava_next(const config_reader *c, processor *p)
{
    int64_t none = 0;
    p->size[0] = p->size[1] = 224;
    processor_size(c, "size", p->size, &p->shortest, &none);
    processor_need_size(c, "size", p->size, MAX_EDGE);
    memcpy(p->crop, p->size, sizeof p->crop);
    processor_size(c, "crop_size", p->crop, &none, &none);
    if (memcmp(p->crop, p->size, sizeof p->crop) != 0)
        config_fail(c, "crop_size", "is another than size, which is not supported");
    canvas_read(c, p->size, &p->canvases);
    for (int64_t i = 0; i < p->canvases.count && *c->status == TN_OK; i++)
        if (p->canvases.size[i][0] % p->size[0] || p->canvases.size[i][1] % p->size[1])
            config_fail(c, "image_grid_pinpoints",
                        "has a canvas of %lld by %lld pixels, which tiles of %lld do not fill",
                        (long long)p->canvases.size[i][0], (long long)p->canvases.size[i][1], (long long)p->size[0]);
}

static const int64_t *best_canvas(const processor *p, const picture *from)
{
    return canvas_best(&p->canvases, (int64_t[]){from->height, from->width});
}

/* The picture at size (height, width) on a black canvas, with so much of it above and to the left. */
static tn_status put_on_canvas(processor_job *j, const picture *from, const int64_t size[2], const int64_t canvas[2],
                               int64_t top, int64_t left, picture *to)
{
    picture now;
    *to = (picture){.height = canvas[0], .width = canvas[1], .rgb = calloc((size_t)(canvas[0] * canvas[1]), 3)};
    if (!to->rgb)
        return tn_fail(j->err, TN_E_MEMORY, "picture", "out of memory for its canvas");
    tn_status status = resize_picture(from, size[0], size[1], j->p->filter, &now, j->err);
    for (int64_t y = 0; y < size[0] && status == TN_OK; y++)
        memcpy(to->rgb + ((top + y) * canvas[1] + left) * 3, now.rgb + y * size[1] * 3, (size_t)size[1] * 3);
    pictures_release(&now);
    return status;
}

/* The picture in the middle of a canvas. */
static tn_status on_canvas(processor_job *j, const picture *from, const int64_t canvas[2], picture *to)
{
    double across = (double)canvas[1] / (double)from->width, down = (double)canvas[0] / (double)from->height;
    double scale = across < down ? across : down;
    int64_t h = across < down ? (int64_t)ceil((double)from->height * scale) : canvas[0];
    int64_t w = across < down ? canvas[1] : (int64_t)ceil((double)from->width * scale);
    h = h < canvas[0] ? h : canvas[0];
    w = w < canvas[1] ? w : canvas[1];
    return put_on_canvas(j, from, (int64_t[]){h, w}, canvas, (canvas[0] - h) / 2, (canvas[1] - w) / 2, to);
}

static tn_status run_llava_next(processor_job *j)
{
    const processor *p = j->p;
    int64_t h = p->size[0], w = p->size[1], most = 0, *sizes;
    sizes = j->out->sizes = calloc((size_t)j->count * 2 + 1, sizeof *sizes);
    if (!sizes)
        return tn_fail(j->err, TN_E_MEMORY, "pictures", "out of memory");
    for (int64_t i = 0; i < j->count; i++) {
        const int64_t *canvas = best_canvas(p, &j->pictures[i]);
        int64_t tiles = canvas[0] / h * (canvas[1] / w) + 1;
        most = tiles > most ? tiles : most;
        sizes[2 * i] = j->pictures[i].height;
        sizes[2 * i + 1] = j->pictures[i].width;
    }
    tn_status status = processor_room(j, 5, (int64_t[]){j->count, most, 3, h, w});
    for (int64_t i = 0; i < j->count && status == TN_OK; i++) {
        const picture *from = &j->pictures[i];
        const int64_t *canvas = best_canvas(p, from);
        float *to = j->out->pixels + i * most * 3 * h * w;
        picture whole = {0};
        status = store_tiles(j, from, 1, 1, &to);
        if (status == TN_OK)
            status = on_canvas(j, from, canvas, &whole);
        if (status == TN_OK)
            status = store_tiles(j, &whole, canvas[0] / h, canvas[1] / w, &to);
        pictures_release(&whole);
    }
    return status;
}

/* ---- InternVL --------------------------------------------------------------------------------------- */

static void read_internvl(const config_reader *c, processor *p)
{
    p->size[0] = p->size[1] = 384;
    processor_size(c, "size", p->size, &p->shortest, &p->longest);
    processor_need_size(c, "size", p->size, MAX_EDGE);
    p->tiles = config_bool(c, "crop_to_patches", false);
    p->thumbnail = config_bool(c, "use_thumbnail", true);
    p->least_tiles = config_i64(c, "min_patches", 1, 1, MAX_TILES);
    p->most_tiles = config_i64(c, "max_patches", 12, p->least_tiles, MAX_TILES);
}

/* Rows and columns of tiles, in the ratio nearest to the picture's; where two are as near, the larger grid if the
 * picture has more than half of its pixels. */
static void best_grid(const processor *p, const picture *from, int64_t out[2])
{
    double ratio = (double)from->width / (double)from->height, nearest = INFINITY;
    int64_t own = from->width * from->height;
    out[0] = out[1] = 1;
    for (int64_t area = p->least_tiles; area <= p->most_tiles; area++)
        for (int64_t columns = 1; columns <= area; columns++) {
            if (area % columns)
                continue;
            int64_t rows = area / columns;
            double distance = fabs(ratio - (double)columns / (double)rows);
            bool larger = distance == nearest && (double)own > 0.5 * (double)(p->size[0] * p->size[1] * area);
            if (distance < nearest || larger) {
                nearest = distance;
                out[0] = rows;
                out[1] = columns;
            }
        }
}

static int64_t internvl_count(const processor *p, const picture *from, int64_t grid[2])
{
    grid[0] = grid[1] = 1;
    if (p->tiles)
        best_grid(p, from, grid);
    int64_t tiles = grid[0] * grid[1];
    return tiles + (p->thumbnail && tiles > 1);
}

static tn_status run_internvl(processor_job *j)
{
    const processor *p = j->p;
    int64_t grid[2], all = 0, *parts = j->out->parts = calloc((size_t)j->count + 1, sizeof *parts);
    if (!parts)
        return tn_fail(j->err, TN_E_MEMORY, "pictures", "out of memory");
    for (int64_t i = 0; i < j->count; i++)
        all += internvl_count(p, &j->pictures[i], grid);
    tn_status status = processor_room(j, 4, (int64_t[]){all, 3, p->size[0], p->size[1]});
    float *to = j->out->pixels;
    for (int64_t i = 0; i < j->count && status == TN_OK; i++) {
        int64_t count = internvl_count(p, &j->pictures[i], grid);
        status = store_tiles(j, &j->pictures[i], grid[0], grid[1], &to);
        if (status == TN_OK && count > grid[0] * grid[1])
            status = store_tiles(j, &j->pictures[i], 1, 1, &to);
        parts[i] = count;
    }
    return status;
}

/* ---- Gemma 3 ---------------------------------------------------------------------------------------- */

static void read_gemma3(const config_reader *c, processor *p)
{
    p->size[0] = p->size[1] = 224;
    processor_size(c, "size", p->size, &p->shortest, &p->longest);
    processor_need_size(c, "size", p->size, MAX_EDGE);
    p->tiles = config_bool(c, "do_pan_and_scan", false);
    p->least_crop = config_i64(c, "pan_and_scan_min_crop_size", 256, 1, MAX_EDGE);
    p->most_tiles = config_i64(c, "pan_and_scan_max_num_crops", 4, 1, MAX_TILES);
    p->least_ratio = config_f64(c, "pan_and_scan_min_ratio_to_activate", 1.2);
}

/* Into how many parts its longer side is cut; 0: it is not. */
static int64_t crops_of(const processor *p, const picture *from)
{
    bool tall = from->height > from->width;
    int64_t longer = tall ? from->height : from->width, shorter = tall ? from->width : from->height;
    double ratio = (double)longer / (double)shorter;
    if (!p->tiles || ratio < p->least_ratio)
        return 0;
    int64_t n = (int64_t)floor(ratio + 0.5), fit = longer / p->least_crop;
    n = n < fit ? n : fit;
    n = n > 2 ? n : 2;
    n = n < p->most_tiles ? n : p->most_tiles;
    int64_t length = (longer + n - 1) / n;
    return (length < shorter ? length : shorter) < p->least_crop ? 0 : n;
}

static tn_status store_crops(processor_job *j, const picture *from, int64_t n, float **to)
{
    bool tall = from->height > from->width;
    int64_t longer = tall ? from->height : from->width, length = (longer + n - 1) / n;
    tn_status status = TN_OK;
    for (int64_t i = 0; i < n && status == TN_OK; i++) {
        int64_t at = i * length, left = longer - at < length ? longer - at : length;
        picture part;
        if (left < 1)
            return tn_fail(j->err, TN_E_INPUT, "picture", "cannot be cut into %lld parts", (long long)n);
        status = crop(from, tall ? at : 0, tall ? 0 : at, tall ? left : from->height, tall ? from->width : left, &part,
                      j->err);
        if (status == TN_OK)
            status = store_tiles(j, &part, 1, 1, to);
        pictures_release(&part);
    }
    return status;
}

static tn_status run_gemma3(processor_job *j)
{
    const processor *p = j->p;
    int64_t all = j->count, *parts = j->out->parts = calloc((size_t)j->count + 1, sizeof *parts);
    if (!parts)
        return tn_fail(j->err, TN_E_MEMORY, "pictures", "out of memory");
    for (int64_t i = 0; i < j->count; i++)
        all += crops_of(p, &j->pictures[i]);
    tn_status status = processor_room(j, 4, (int64_t[]){all, 3, p->size[0], p->size[1]});
    float *to = j->out->pixels;
    for (int64_t i = 0; i < j->count && status == TN_OK; i++) {
        int64_t crops = crops_of(p, &j->pictures[i]);
        status = store_tiles(j, &j->pictures[i], 1, 1, &to);
        if (status == TN_OK && crops > 0)
            status = store_crops(j, &j->pictures[i], crops, &to);
        parts[i] = 1 + crops;
    }
    return status;
}

/* ---- Llama 4 ---------------------------------------------------------------------------------------- */

static void read_llama4(const config_reader *c, processor *p)
{
    p->size[0] = p->size[1] = 336;
    processor_size(c, "size", p->size, &p->shortest, &p->longest);
    processor_need_size(c, "size", p->size, MAX_EDGE);
    if (p->size[0] != p->size[1])
        config_fail(c, "size", "is %lld by %lld pixels, tiles must be squares", (long long)p->size[0],
                    (long long)p->size[1]);
    p->most_tiles = config_i64(c, "max_patches", 16, 1, MAX_TILES);
    p->bf16 = true;
    p->largest = config_bool(c, "resize_to_max_canvas", false);
}

/* Rows and columns of tiles: of the canvases on which the picture need not become smaller that where it grows least, or
 * most where it is made as large as can be; else that where it shrinks least; of equal ones the smallest. Factors in
 * single precision, as they are compared there. */
static void best_tiles(const processor *p, const picture *from, int64_t grid[2])
{
    float best = 0;
    grid[0] = grid[1] = 0;
    for (int64_t rows = 1; rows <= p->most_tiles; rows++)
        for (int64_t columns = 1; rows * columns <= p->most_tiles; columns++) {
            float down = (float)(rows * p->size[0]) / (float)from->height;
            float across = (float)(columns * p->size[1]) / (float)from->width, factor = fminf(down, across);
            bool grows = factor >= 1 && best >= 1 && !p->largest, better = grows ? factor < best : factor > best;
            if (better || (factor == best && rows * columns < grid[0] * grid[1])) {
                best = factor;
                grid[0] = rows;
                grid[1] = columns;
            }
        }
}

/* The size at which the picture lies on its canvas; it grows to a tile at most. */
static void llama4_size(const processor *p, const picture *from, const int64_t canvas[2], int64_t size[2])
{
    const int64_t own[2] = {from->height, from->width};
    double scale[2];
    int64_t most[2];
    for (int axis = 0; axis < 2; axis++) {
        int64_t grown = own[axis] > p->size[axis] ? own[axis] : p->size[axis];
        most[axis] = p->largest || grown > canvas[axis] ? canvas[axis] : grown;
        scale[axis] = (double)most[axis] / (double)own[axis];
    }
    int full = scale[1] < scale[0];
    size[full] = most[full];
    size[!full] = (int64_t)floor((double)own[!full] * scale[full]);
    size[!full] = size[!full] > most[!full] ? most[!full] : size[!full] < 1 ? 1 : size[!full];
}

static tn_status run_llama4(processor_job *j)
{
    const processor *p = j->p;
    int64_t h = p->size[0], w = p->size[1], all = 0,
            *parts = j->out->parts = calloc((size_t)j->count + 1, sizeof *parts);
    int64_t *grids = j->out->tiles = calloc((size_t)j->count * 2 + 1, sizeof *grids);
    if (!parts || !grids)
        return tn_fail(j->err, TN_E_MEMORY, "pictures", "out of memory");
    for (int64_t i = 0; i < j->count; i++) {
        best_tiles(p, &j->pictures[i], grids + 2 * i);
        int64_t tiles = grids[2 * i] * grids[2 * i + 1];
        all += parts[i] = tiles + (tiles > 1);
    }
    tn_status status = processor_room(j, 4, (int64_t[]){all, 3, h, w});
    float *to = j->out->pixels;
    for (int64_t i = 0; i < j->count && status == TN_OK; i++) {
        const picture *from = &j->pictures[i];
        const int64_t *grid = grids + 2 * i, canvas[2] = {grid[0] * h, grid[1] * w};
        int64_t size[2];
        picture whole;
        llama4_size(p, from, canvas, size);
        status = put_on_canvas(j, from, size, canvas, 0, 0, &whole);
        if (status == TN_OK)
            status = store_tiles(j, &whole, grid[0], grid[1], &to);
        if (status == TN_OK && parts[i] > 1)
            status = store_tiles(j, from, 1, 1, &to);
        pictures_release(&whole);
    }
    return status;
}

const processor_kind processor_llava_next = {"LlavaNextImageProcessor", RESIZE_BICUBIC, LEVELS_CLIP, read_llava_next,
                                             run_llava_next};
const processor_kind processor_internvl = {"GotOcr2ImageProcessor", RESIZE_BICUBIC, LEVELS_CLIP, read_internvl,
                                           run_internvl};
const processor_kind processor_gemma3 = {"Gemma3ImageProcessor", RESIZE_BILINEAR, LEVELS_HALF, read_gemma3, run_gemma3};
const processor_kind processor_llama4 = {"Llama4ImageProcessor", RESIZE_BILINEAR, LEVELS_HALF, read_llama4, run_llama4};
