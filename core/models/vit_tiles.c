/* LLaVA-NeXT's pictures: the whole one, made small, and tiles of one that is larger, whose rows are put together line
 * by line, without what was added to fill the canvas, a row "image_newline" behind each line. */
#include "models/vit.h"

#include "checkpoint/canvas.h"

#include <math.h>
#include <stdlib.h>

struct vit_tiles {
    canvas_list canvases;
    int64_t size; /* of a tile's side in pixels                                                         */
    int64_t side; /* in rows of the text model                                                          */
    tn_tensor newline;
    const tn_site *copy;
};

struct vit_tiles *vit_tiles_build(graph_builder *b, graph_module *root, const config_reader *c, const vit_tower *v)
{
    struct vit_tiles *t = b->status == TN_OK ? calloc(1, sizeof *t) : NULL;
    if (!t)
        return b->status == TN_OK ? build_fail(b, TN_E_MEMORY, "graph", "out of memory for tiles") : NULL;
    t->size = v->spec.rows * v->spec.patch;
    t->side = v->spec.rows;
    if (v->spec.rows != v->spec.columns || !v->family->positions || (v->family->class_token && !v->drop))
        config_fail(c, "vision_feature_select_strategy", "must be 'default', and tiles squares of patches");
    canvas_read(c, (int64_t[]){t->size, t->size}, &t->canvases);
    t->copy = build_step(b, root, TN_OP_COPY, v->text_hidden);
    build_tensor(b, root, "image_newline", 1, &v->text_hidden, &t->newline);
    if (b->status == TN_OK)
        return t;
    free(t);
    return NULL;
}

void vit_tiles_grid(const struct vit_tiles *t, const int64_t size[2], int64_t grid[2])
{
    const int64_t *canvas = canvas_best(&t->canvases, size);
    for (int axis = 0; axis < 2; axis++)
        grid[axis] = canvas[axis] / t->size;
}

/* What of the tiles' lines and columns is the picture: the rest was added on both sides alike. */
typedef struct vit_shown {
    int64_t grid[2], begin[2], end[2];
} vit_shown;

/* As Python rounds to seven digits, of which whole numbers are what counts. */
static int64_t whole(double value)
{
    return (int64_t)(nearbyint(value * 1e7) / 1e7);
}

static vit_shown shown_of(const struct vit_tiles *t, const int64_t size[2])
{
    vit_shown s = {0};
    vit_tiles_grid(t, size, s.grid);
    int64_t all[2] = {s.grid[0] * t->side, s.grid[1] * t->side};
    bool wide = (double)size[1] / (double)size[0] > (double)all[1] / (double)all[0];
    int cut = wide ? 0 : 1;
    double scale = (double)all[!cut] / (double)size[!cut];
    int64_t added = (all[cut] - whole((double)size[cut] * scale)) / 2;
    for (int axis = 0; axis < 2; axis++) {
        s.begin[axis] = axis == cut ? added : 0;
        s.end[axis] = all[axis] - s.begin[axis];
    }
    return s;
}

int64_t vit_tiles_rows(const struct vit_tiles *t, const int64_t size[2])
{
    vit_shown s = shown_of(t, size);
    return t->side * t->side + (s.end[0] - s.begin[0]) * (s.end[1] - s.begin[1] + 1);
}

/* Which of the rows each of those of the picture is; newline: the one behind the tiles'. */
static int64_t *order_of(const struct vit_tiles *t, const vit_shown *s, int64_t newline, int64_t count)
{
    int64_t *order = malloc((size_t)count * sizeof *order), n = 0, each = t->side * t->side;
    if (!order)
        return NULL;
    for (; n < each; n++)
        order[n] = n;
    for (int64_t y = s->begin[0]; y < s->end[0]; y++) {
        for (int64_t x = s->begin[1]; x < s->end[1]; x++) {
            int64_t tile = 1 + y / t->side * s->grid[1] + x / t->side;
            order[n++] = tile * each + y % t->side * t->side + x % t->side;
        }
        order[n++] = newline;
    }
    return order;
}

void vit_tiles_run(graph_run *r, const struct vit_tiles *t, const int64_t size[2], const tn_tensor *rows,
                   const tn_tensor *y)
{
    vit_shown s = shown_of(t, size);
    int64_t count = y->shape[0], newline = rows->shape[0] - 1;
    tn_tensor last = steps_part(rows, 0, newline, 1), line = steps_view(&t->newline, 2, (int64_t[]){1, y->shape[1]});
    int64_t *order = r->status == TN_OK ? order_of(t, &s, newline, count) : NULL;
    if (r->status == TN_OK && !order)
        r->status = tn_fail(r->err, TN_E_MEMORY, "pixels", "out of memory for the order of rows; free some memory");
    steps_copy(r, t->copy, &line, &last);
    tn_tensor ids = steps_upload(r, TN_I64, 1, &count, order);
    steps_gather(r, rows, &ids, y);
    free(order);
}
