/* Reading canvases, and choosing one for a picture. */
#include "checkpoint/canvas.h"

void canvas_read(const config_reader *c, const int64_t tile[2], canvas_list *out)
{
    static const char key[] = "image_grid_pinpoints";
    static const int64_t usual[][2] = {{336, 672}, {672, 336}, {672, 672}, {1008, 336}, {336, 1008}};
    int64_t n = config_list(c, key);
    out->count = n < 0 ? (int64_t)(sizeof usual / sizeof *usual) : n;
    if (out->count < 1 || out->count > CANVAS_MOST) {
        config_fail(c, key, "has %lld entries, must have 1 to %d", (long long)n, (int)CANVAS_MOST);
        out->count = 1;
    }
    for (int64_t i = 0; i < out->count && *c->status == TN_OK; i++)
        for (int axis = 0; axis < 2; axis++) {
            int64_t length = n < 0 ? usual[i][axis] : config_list_pair(c, key, i, axis);
            out->size[i][axis] = length;
            if (length < tile[axis] || length > tile[axis] * CANVAS_TILES)
                config_fail(c, key, "has a canvas of %lld pixels by side, tiles have %lld; 1 to %d of them must fit",
                            (long long)length, (long long)tile[axis], (int)CANVAS_TILES);
        }
}

const int64_t *canvas_best(const canvas_list *list, const int64_t picture[2])
{
    const int64_t *best = list->size[0];
    int64_t most = -1, least = INT64_MAX, own = picture[0] * picture[1];
    for (int64_t i = 0; i < list->count; i++) {
        const int64_t *size = list->size[i];
        double down = (double)size[0] / (double)picture[0], across = (double)size[1] / (double)picture[1];
        double scale = across < down ? across : down;
        int64_t kept = (int64_t)((double)picture[1] * scale) * (int64_t)((double)picture[0] * scale);
        kept = kept < own ? kept : own;
        if (kept > most || (kept == most && size[0] * size[1] - kept < least)) {
            most = kept;
            least = size[0] * size[1] - kept;
            best = size;
        }
    }
    return best;
}
