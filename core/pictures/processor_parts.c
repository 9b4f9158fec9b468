/* What kinds of processors share: sizes in config, room for results, bytes to numbers. */
#include "pictures/processor.h"

#include <stdlib.h>

enum { MAX_EDGE = 1 << 15 };

void processor_release(processed *p)
{
    free(p->pixels);
    free(p->grids);
    free(p->sizes);
    free(p->places);
    free(p->parts);
    free(p->tiles);
    free(p->tokens);
    *p = (processed){0};
}

/* An edge, or a number of pixels. */
static int64_t edge(const config_reader *c, const char *key, int64_t fallback)
{
    return config_i64(c, key, fallback, 1, INT64_C(1) << 40);
}

void processor_size(const config_reader *c, const char *key, int64_t out[2], int64_t *shortest, int64_t *longest)
{
    if (!config_has(c, key))
        return;
    if (!config_is_object(c, key)) {
        *shortest = out[0] = out[1] = config_i64(c, key, 0, 1, MAX_EDGE);
        return;
    }
    config_reader size = config_child(c, key);
    *shortest = config_has(&size, "shortest_edge") ? edge(&size, "shortest_edge", 1) : 0;
    *longest = config_has(&size, "longest_edge") ? edge(&size, "longest_edge", 1) : 0;
    out[0] = config_i64(&size, "height", *shortest && *shortest <= MAX_EDGE ? *shortest : 0, 0, MAX_EDGE);
    out[1] = config_i64(&size, "width", *shortest && *shortest <= MAX_EDGE ? *shortest : 0, 0, MAX_EDGE);
}

void processor_need_size(const config_reader *c, const char *key, const int64_t size[2], int64_t most)
{
    if (size[0] < 1 || size[1] < 1 || size[0] > most || size[1] > most)
        config_fail(c, key, "must say height and width, or an edge, of 1 to %lld pixels", (long long)most);
}

tn_status processor_room(processor_job *j, int32_t ndim, const int64_t *shape)
{
    int64_t count = 1;
    j->out->ndim = ndim;
    for (int32_t i = 0; i < ndim; i++) {
        j->out->shape[i] = shape[i];
        if (shape[i] > (INT64_C(1) << 31) / count)
            return tn_fail(j->err, TN_E_INPUT, "pictures",
                           "make more numbers than one call may have; give fewer or smaller ones");
        count *= shape[i];
    }
    j->out->pixels = calloc((size_t)count + 1, sizeof *j->out->pixels);
    return j->out->pixels ? TN_OK : tn_fail(j->err, TN_E_MEMORY, "pictures", "out of memory; give fewer at once");
}

void processor_planes(const processor *p, const picture *from, int64_t top, int64_t left, int64_t height, int64_t width,
                      float *to, int64_t line, int64_t plane)
{
    for (int64_t y = 0; y < height; y++) {
        const uint8_t *pixel = from->rgb + ((top + y) * from->width + left) * 3;
        for (int64_t x = 0; x < width; x++, pixel += 3)
            for (int c = 0; c < 3; c++)
                to[c * plane + y * line + x] = p->level[c][pixel[c]];
    }
}
