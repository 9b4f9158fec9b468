/* Gemma 4: pictures keep their ratio and become as many patches as fit, each with its column and line; what is left up
 * to the most is padding. */
#include "pictures/processor.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_PATCH = 256, MAX_POOL = 16 };

static void read_gemma4(const config_reader *c, processor *p)
{
    static const int64_t supported[] = {70, 140, 280, 560, 1120};
    static const char key[] = "max_soft_tokens";
    int64_t tokens = config_i64(c, key, 280, 1, INT32_MAX);
    bool known = false;
    for (size_t i = 0; i < sizeof supported / sizeof *supported; i++)
        known |= tokens == supported[i];
    if (!known)
        config_fail(c, key, "is %lld, must be 70, 140, 280, 560 or 1120", (long long)tokens);
    p->patch = config_i64(c, "patch_size", 16, 1, MAX_PATCH);
    p->merge = config_i64(c, "pooling_kernel_size", 3, 1, MAX_POOL);
    p->longest = tokens * p->merge * p->merge;
    if (known && p->longest * p->patch * p->patch > PICTURES_MAX_PIXELS)
        config_fail(c, key, "is %lld, which makes pictures of more than %lld pixels", (long long)tokens,
                    (long long)PICTURES_MAX_PIXELS);
}

/* The largest multiples of a square's side that keep the ratio, so that there are at most p->longest patches. */
static tn_status new_size(const processor *p, const picture *from, int64_t out[2], tn_error *err)
{
    const int64_t square = p->patch * p->merge, side[2] = {from->height, from->width},
                  most = p->longest / (p->merge * p->merge);
    const double pixels = (double)(p->longest * p->patch * p->patch);
    const double factor = sqrt(pixels / (double)(side[0] * side[1]));
    for (int i = 0; i < 2; i++)
        out[i] = (int64_t)floor(factor * (double)side[i] / (double)square);
    for (int i = 0; i < 2; i++)
        if (out[i] == 0 && out[!i] > 0) {
            int64_t ratio = side[!i] / side[i];
            out[i] = 1;
            out[!i] = ratio < most ? ratio : most;
        }
    if (out[0] < 1 || out[1] < 1 || out[0] * out[1] > most)
        return tn_fail(err, TN_E_INPUT, "picture",
                       "is %lld by %lld pixels and would become %lld by %lld squares of %lld; there must be 1 to %lld",
                       (long long)from->width, (long long)from->height, (long long)out[1], (long long)out[0],
                       (long long)square, (long long)most);
    out[0] *= square;
    out[1] *= square;
    return TN_OK;
}

/* Rows of (line, column, channel) of the patches, and where these lie. */
static void cut(const processor *p, const picture *from, float *to, int64_t *place)
{
    int64_t n = p->patch, down = from->height / n, across = from->width / n;
    for (int64_t i = 0; i < p->longest; i++) {
        bool real = i < down * across;
        *place++ = real ? i % across : -1;
        *place++ = real ? i / across : -1;
        for (int64_t y = 0; real && y < n; y++) {
            const uint8_t *line = from->rgb + ((i / across * n + y) * from->width + i % across * n) * 3;
            for (int64_t x = 0; x < 3 * n; x++)
                *to++ = p->level[x % 3][line[x]];
        }
    }
}

static tn_status run_gemma4(processor_job *j)
{
    const processor *p = j->p;
    processed *out = j->out;
    int64_t width = 3 * p->patch * p->patch, size[2];
    tn_status status = processor_room(j, 3, (int64_t[]){j->count, p->longest, width});
    if (status != TN_OK)
        return status;
    out->places = calloc((size_t)(j->count * p->longest * 2) + 1, sizeof *out->places);
    out->tokens = calloc((size_t)j->count + 1, sizeof *out->tokens);
    if (!out->places || !out->tokens)
        return tn_fail(j->err, TN_E_MEMORY, "pictures", "out of memory; give fewer at once");
    for (int64_t i = 0; i < j->count && status == TN_OK; i++) {
        picture now = {0};
        status = new_size(p, &j->pictures[i], size, j->err);
        if (status == TN_OK)
            status = resize_picture(&j->pictures[i], size[0], size[1], p->filter, &now, j->err);
        if (status == TN_OK) {
            cut(p, &now, out->pixels + i * p->longest * width, out->places + i * p->longest * 2);
            out->tokens[i] = size[0] * size[1] / (p->patch * p->patch * p->merge * p->merge);
        }
        pictures_release(&now);
    }
    return status;
}

const processor_kind processor_gemma4 = {.name = "Gemma4ImageProcessor",
                                         .filter = RESIZE_BICUBIC,
                                         .levels = LEVELS_PLAIN,
                                         .read = read_gemma4,
                                         .run = run_gemma4};
