/* A tower of whole pictures at work, one picture or tile after the other: memory is that of the largest. */
#include "models/vit.h"

#include "base/convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct vit_pass {
    graph_run *r;
    const vit_tower *v;
    tn_tensor planes; /* [channels, height, width] of the picture                             */
    vit_picture picture;
    tn_tensor h;            /* [rows, hidden]                                                        */
    tn_tensor cosine, sine; /* [1, rows, head]                                                      */
    tn_tensor taken;        /* [rows, taken_count * hidden], where several blocks' rows are taken         */
} vit_pass;

/* ---- what there is ------------------------------------------------------------------------------- */

/* Pictures of a call [n, C, H, W], or [n, tiles, C, H, W] of which each has its first few. */
typedef struct vit_media {
    int64_t count, tiles, height, width; /* tiles: by picture, the most                             */
    bool nested;
} vit_media;

static bool fail(tn_error *err, const char *where, const char *what)
{
    tn_fail(err, TN_E_INPUT, where, "%s", what);
    return false;
}

static bool read_media(const vit_tower *v, const tower_media *media, vit_media *m, tn_error *err)
{
    const tn_tensor *x = &media->pixels;
    const vit_spec *s = &v->spec;
    bool nested = x->ndim == 5 && v->projector->tiled;
    *m = (vit_media){.count = media->count, .tiles = nested ? x->shape[1] : 1, .nested = nested};
    if (x->ndim != 4 && !nested)
        return fail(err, "pixel_values",
                    v->projector->tiled ? "must be [pictures, tiles, channels, height, width], or "
                                          "[tiles, channels, height, width]"
                                        : "must be [pictures, channels, height, width]");
    m->height = x->shape[x->ndim - 2];
    m->width = x->shape[x->ndim - 1];
    if (x->shape[x->ndim - 3] != s->channels) {
        tn_fail(err, TN_E_INPUT, "pixel_values", "has %lld channels, the tower %lld", (long long)x->shape[x->ndim - 3],
                (long long)s->channels);
        return false;
    }
    if (v->positions.data || v->family->positions) {
        if (m->height / s->patch == s->rows && m->width / s->patch == s->columns)
            return true;
        tn_fail(err, TN_E_INPUT, "pixel_values",
                "pictures are %lld by %lld pixels, the tower takes %lld by %lld; let the model's processor make them",
                (long long)m->height, (long long)m->width, (long long)(s->rows * s->patch),
                (long long)(s->columns * s->patch));
        return false;
    }
    return true;
}

/* Size of picture i: as it is given, or that of its planes. */
static const int64_t *size_of(const tower_media *media, const vit_media *m, int64_t i, int64_t own[2])
{
    own[0] = media->sizes ? media->sizes[2 * i] : m->height;
    own[1] = media->sizes ? media->sizes[2 * i + 1] : m->width;
    return own;
}

/* The patches of picture i; false: it has none, or more than its planes hold. */
static bool picture_of(const vit_tower *v, const tower_media *media, const vit_media *m, int64_t i, vit_picture *out,
                       tn_error *err)
{
    int64_t size[2];
    bool own = v->family->may_differ;
    size_of(media, m, i, size);
    *out = (vit_picture){.index = i,
                         .rows = (own ? size[0] : m->height) / v->spec.patch,
                         .columns = (own ? size[1] : m->width) / v->spec.patch};
    bool fits = !own || (size[0] <= m->height && size[1] <= m->width);
    if (fits && out->rows > 0 && out->columns > 0 && out->rows <= v->spec.rows && out->columns <= v->spec.columns)
        return true;
    tn_fail(err, TN_E_INPUT, "image_sizes",
            "picture %lld is %lld by %lld pixels, its planes %lld by %lld; it must have 1 to %lld by %lld patches of "
            "%lld",
            (long long)i, (long long)size[0], (long long)size[1], (long long)m->height, (long long)m->width,
            (long long)v->spec.rows, (long long)v->spec.columns, (long long)v->spec.patch);
    return false;
}

/* Rows of a picture inside the tower, and those that go on to the projector. */
static int64_t rows_inside(const vit_tower *v, const vit_picture *p)
{
    return p->rows * p->columns + (v->family->class_token != NULL);
}

static int64_t rows_projected(const vit_tower *v, const vit_picture *p, tn_error *err)
{
    int64_t inside = rows_inside(v, p) - v->drop, rows = vit_project_rows(v->project, p, inside);
    if (rows > 0)
        return rows;
    tn_fail(err, TN_E_INPUT, "pixel_values", "a picture of %lld by %lld patches (%lld rows) cannot be projected",
            (long long)p->rows, (long long)p->columns, (long long)inside);
    return -1;
}

/* Tiles of picture i, the whole one included. */
static int64_t tiles_of(const vit_tower *v, const tower_media *media, const vit_media *m, int64_t i)
{
    int64_t size[2], grid[2];
    if (!v->projector->tiled)
        return 1;
    vit_tiles_grid(v->tiles, size_of(media, m, i, size), grid);
    return grid[0] * grid[1] + 1;
}

static bool check_sizes(const vit_tower *v, const tower_media *media, const vit_media *m, tn_error *err)
{
    if (v->projector->tiled && !media->sizes)
        return fail(err, "image_sizes", "is missing: the sizes of the pictures that tiles were made of");
    for (int64_t i = 0; media->sizes && i < m->count; i++)
        if (media->sizes[2 * i] < 1 || media->sizes[2 * i + 1] < 1 || media->sizes[2 * i] > 1 << 24 ||
            media->sizes[2 * i + 1] > 1 << 24)
            return fail(err, "image_sizes", "has a picture without pixels, or with more than any has");
    return true;
}

int64_t vit_tokens(const void *state, const tower_media *media, tn_error *err)
{
    const vit_tower *v = state;
    vit_media m;
    vit_picture p;
    int64_t total = 0, tiles = 0;
    if (!read_media(v, media, &m, err) || !check_sizes(v, media, &m, err))
        return -1;
    for (int64_t i = 0; i < m.count; i++) {
        int64_t size[2], own = tiles_of(v, media, &m, i), rows = 0;
        if (!picture_of(v, media, &m, i, &p, err) || (rows = rows_projected(v, &p, err)) < 0)
            return -1;
        if (m.nested && own > m.tiles) {
            tn_fail(err, TN_E_INPUT, "image_sizes", "picture %lld is made of %lld tiles, pixel_values has %lld of each",
                    (long long)i, (long long)own, (long long)m.tiles);
            return -1;
        }
        total += v->projector->tiled ? vit_tiles_rows(v->tiles, size_of(media, &m, i, size)) : rows;
        tiles += own;
    }
    if (m.nested ? media->pixels.shape[0] == m.count : media->pixels.shape[0] == tiles)
        return total;
    tn_fail(err, TN_E_INPUT, "pixel_values", "has %lld pictures or tiles, there should be %lld",
            (long long)media->pixels.shape[0], (long long)(m.nested ? m.count : tiles));
    return -1;
}

multimodal_sight vit_sight(const void *state)
{
    return ((const vit_tower *)state)->projector->sight;
}

const tower_marks *vit_marks(const void *state)
{
    const vit_tower *v = state;
    return v->family->marks ? v->family->marks : v->projector->marks;
}

int64_t vit_largest(const void *state, const tower_media *media)
{
    const vit_tower *v = state;
    vit_media m;
    if (!read_media(v, media, &m, NULL))
        return 0;
    vit_picture whole = {0, m.height / v->spec.patch, m.width / v->spec.patch};
    return rows_inside(v, &whole);
}

/* ---- rows ----------------------------------------------------------------------------------------- */

void vit_linear(graph_run *r, const graph_site *site, const tn_tensor *x, const tn_tensor *y)
{
    for (int64_t at = 0; at < x->shape[0] && r->status == TN_OK; at += TOWER_PIECE) {
        int64_t left = x->shape[0] - at, count = left < TOWER_PIECE ? left : TOWER_PIECE;
        tn_tensor from = steps_part(x, 0, at, count), to = steps_part(y, 0, at, count);
        steps_linear_into(r, site, &from, &to);
    }
}

/* The pixels of each patch as a row: channel by channel, each line by line. */
static tn_tensor unfold(const vit_pass *p)
{
    const vit_spec *s = &p->v->spec;
    int64_t n = s->patch, width = s->channels * n * n, across = p->picture.columns;
    tn_tensor rows = steps_take(p->r, p->r->dtype, 2, (int64_t[]){p->picture.rows * across, width});
    for (int64_t c = 0; c < s->channels; c++) {
        tn_tensor from = steps_part(&p->planes, 0, c, 1), to = steps_columns(&rows, c * n * n, n * n);
        int64_t line = p->planes.stride[1];
        from = tn_tensor_dense(from.data, from.dtype, 4, (int64_t[]){p->picture.rows, across, n, n});
        memcpy(from.stride, (int64_t[]){n * line, n, line, 1}, 4 * sizeof *from.stride);
        to = tn_tensor_dense(to.data, to.dtype, 4, from.shape);
        memcpy(to.stride, (int64_t[]){across * width, width, n, 1}, 4 * sizeof *to.stride);
        steps_copy(p->r, p->v->copy, &from, &to);
    }
    return rows;
}

static void embed(vit_pass *p)
{
    const vit_tower *v = p->v;
    int64_t token = v->family->class_token != NULL, rows = p->h.shape[0];
    bool last = v->family->class_last;
    size_t mark = arena_mark(p->r->arena);
    tn_tensor patches = unfold(p), to = steps_part(&p->h, 0, last ? 0 : token, rows - token);
    vit_linear(p->r, v->patch, &patches, &to);
    if (token) {
        tn_tensor own = steps_part(&p->h, 0, last ? rows - 1 : 0, 1);
        steps_copy(p->r, v->copy, &v->class_token, &own);
    }
    if (v->family->positions)
        steps_add(p->r, &p->h, &v->positions);
    if (v->pre_norm)
        steps_norm_in_place(p->r, v->pre_norm, &p->h);
    arena_release(p->r->arena, mark);
}

/* ---- rotation: by row and column --------------------------------------------------------------------- */

/* Of frequency i of half a head at row `at`. Row and column have every second frequency of a head each; of pairs, all
 * of half a head. What is no patch stands still. */
static float angle_of(const vit_pass *p, int64_t at, int64_t i)
{
    const vit_spec *s = &p->v->spec;
    bool pairs = p->v->family->pairs, second = i >= s->head_dim / 4, down = pairs == second;
    int64_t step = second ? i - s->head_dim / 4 : i, columns = p->picture.columns;
    int64_t place = (down ? at / columns : at % columns) + pairs, frequency = 2 * step + (second && !pairs);
    float inverse = 1.0f / powf((float)s->theta, (float)(2 * frequency) / (float)s->head_dim);
    return at < p->picture.rows * columns ? (float)place * inverse : 0;
}

static void send_rotation(vit_pass *p)
{
    const vit_spec *s = &p->v->spec;
    graph_run *r = p->r;
    tn_dtype dtype = p->v->family->pairs ? TN_F32 : r->dtype;
    int64_t rows = p->h.shape[0], half = s->head_dim / 2, shape[] = {1, rows, s->head_dim};
    int64_t count = rows * s->head_dim;
    float *angle = NULL, *value = NULL;
    char *cosine = NULL, *sine = NULL;
    if (r->status == TN_OK && !r->arena->measuring) {
        angle = malloc((size_t)count * sizeof *angle);
        value = malloc((size_t)count * sizeof *value);
        cosine = malloc((size_t)count * tn_dtype_size(dtype));
        sine = malloc((size_t)count * tn_dtype_size(dtype));
        if (!angle || !value || !cosine || !sine)
            r->status = tn_fail(r->err, TN_E_MEMORY, "pixels", "out of memory for angles; free some memory");
    }
    for (int64_t i = 0; i < count && sine && r->status == TN_OK; i++)
        angle[i] = angle_of(p, i / s->head_dim, i % s->head_dim % half);
    for (int turn = 0; turn < 2 && sine && r->status == TN_OK; turn++) {
        for (int64_t i = 0; i < count; i++)
            value[i] = turn ? sinf(angle[i]) : cosf(angle[i]);
        convert_from_f32(value, dtype, turn ? sine : cosine, count);
    }
    p->cosine = steps_upload(r, dtype, 3, shape, cosine);
    p->sine = steps_upload(r, dtype, 3, shape, sine);
    free(angle);
    free(value);
    free(cosine);
    free(sine);
}

/* ---- blocks --------------------------------------------------------------------------------------- */

/* What attention gives, rows as of h. */
static tn_tensor attend(vit_pass *p, const vit_block *b, const tn_tensor *x)
{
    const vit_spec *s = &p->v->spec;
    graph_run *r = p->r;
    const int64_t shape[] = {1, x->shape[0], s->heads, s->head_dim};
    graph_site *const sites[] = {b->q, b->k, b->v};
    tn_tensor rows[3], heads[3], o = steps_take(r, r->dtype, 2, x->shape);
    for (int i = 0; i < 3; i++) {
        rows[i] = steps_take(r, r->dtype, 2, x->shape);
        vit_linear(r, sites[i], x, &rows[i]);
    }
    if (b->q_norm) {
        steps_norm_in_place(r, b->q_norm, &rows[0]);
        steps_norm_in_place(r, b->k_norm, &rows[1]);
    }
    for (int i = 0; i < 3; i++)
        heads[i] = steps_view(&rows[i], 4, shape);
    if (p->v->rope)
        steps_rope_by(r, p->v->rope, &heads[0], &heads[1], &p->cosine, &p->sine);
    tn_tensor to = steps_view(&o, 4, shape);
    steps_attend(r, b->attention, &heads[0], &heads[1], &heads[2], &to);
    vit_linear(r, b->o, &o, &rows[0]);
    return rows[0];
}

static void scale(graph_run *r, const tn_site *step, const tn_tensor *x)
{
    if (!step)
        return;
    tn_tensor factors = steps_repeat(step->param[TN_ROLE_WEIGHT].tensors, x->shape[0], x->shape[1]);
    steps_glu(r, step, &factors, x);
}

static void run_block(vit_pass *p, const vit_block *b)
{
    graph_run *r = p->r;
    size_t mark = arena_mark(r->arena);
    tn_tensor x = steps_norm(r, b->norm1, &p->h);
    x = attend(p, b, &x);
    scale(r, b->scale[0], &x);
    x = steps_add_norm(r, b->norm2, &p->h, &x);
    for (int64_t at = 0; at < x.shape[0] && r->status == TN_OK; at += TOWER_PIECE) {
        size_t inner = arena_mark(r->arena);
        int64_t left = x.shape[0] - at, count = left < TOWER_PIECE ? left : TOWER_PIECE;
        tn_tensor from = steps_part(&x, 0, at, count), to = steps_part(&p->h, 0, at, count);
        tn_tensor y = steps_take(r, r->dtype, 2, from.shape);
        steps_mlp(r, b->mlp, &from, &y);
        scale(r, b->scale[1], &y);
        steps_add(r, &to, &y);
        arena_release(r->arena, inner);
    }
    arena_release(r->arena, mark);
}

/* Rows behind so many blocks, to their columns of what is taken. */
static void take(vit_pass *p, int64_t blocks)
{
    const vit_tower *v = p->v;
    for (int64_t i = 0; v->taken_count > 1 && i < v->taken_count; i++)
        if (v->taken[i] == blocks) {
            tn_tensor to = steps_columns(&p->taken, i * v->spec.hidden, v->spec.hidden);
            steps_copy(p->r, v->copy, &p->h, &to);
        }
}

/* The picture or tile to rows of the text model. */
static void run_picture(vit_pass *p, const tn_tensor *y)
{
    const vit_tower *v = p->v;
    graph_run *r = p->r;
    size_t mark = arena_mark(r->arena);
    int64_t rows = rows_inside(v, &p->picture);
    p->h = steps_take(r, r->dtype, 2, (int64_t[]){rows, v->spec.hidden});
    if (v->taken_count > 1)
        p->taken = steps_take(r, r->dtype, 2, (int64_t[]){rows, v->taken_count * v->spec.hidden});
    if (v->rope)
        send_rotation(p);
    embed(p);
    take(p, 0);
    for (int64_t i = 0; i < v->spec.depth && r->status == TN_OK; i++) {
        run_block(p, &v->blocks[i]);
        take(p, i + 1);
    }
    if (v->post_norm)
        steps_norm_in_place(r, v->post_norm, &p->h);
    int64_t first = v->drop && !v->family->class_last;
    tn_tensor x = steps_part(v->taken_count > 1 ? &p->taken : &p->h, 0, first, rows - v->drop);
    vit_project_run(r, v->project, &p->picture, &x, y);
    arena_release(r->arena, mark);
}

/* ---- the tower -------------------------------------------------------------------------------------- */

/* The planes at index of all that lie behind each other. */
static tn_tensor planes_at(const tower_media *media, int64_t index)
{
    const tn_tensor *x = &media->pixels;
    int64_t each = x->shape[x->ndim - 3] * x->shape[x->ndim - 2] * x->shape[x->ndim - 1];
    tn_tensor t = tn_tensor_dense(NULL, x->dtype, 3, x->shape + x->ndim - 3);
    if (x->data)
        t.data = (char *)x->data + (size_t)(index * each) * tn_dtype_size(x->dtype);
    return t;
}

static void run_tiles(vit_pass *p, const tower_media *media, const int64_t size[2], int64_t first, int64_t count,
                      const tn_tensor *y)
{
    size_t mark = arena_mark(p->r->arena);
    int64_t each = rows_projected(p->v, &p->picture, p->r->err);
    tn_tensor rows = steps_take(p->r, p->r->dtype, 2, (int64_t[]){count * each + 1, p->v->text_hidden});
    for (int64_t t = 0; t < count && p->r->status == TN_OK; t++) {
        tn_tensor to = steps_part(&rows, 0, t * each, each);
        p->planes = planes_at(media, first + t);
        run_picture(p, &to);
    }
    vit_tiles_run(p->r, p->v->tiles, size, &rows, y);
    arena_release(p->r->arena, mark);
}

void vit_forward(graph_run *r, const void *state, const tower_media *media, tower_rows *out)
{
    const vit_tower *v = state;
    vit_pass p = {.r = r, .v = v};
    vit_media m;
    *out = (tower_rows){0};
    int64_t total = r->status == TN_OK ? vit_tokens(state, media, r->err) : -1, at = 0, planes = 0;
    if (r->status == TN_OK && total < 0)
        r->status = TN_E_INPUT;
    if (r->status != TN_OK || !read_media(v, media, &m, r->err))
        return;
    out->features = steps_take(r, r->dtype, 2, (int64_t[]){total, v->text_hidden});
    for (int64_t i = 0; i < m.count && r->status == TN_OK; i++) {
        int64_t own[2], tiles = tiles_of(v, media, &m, i), rows;
        const int64_t *size = size_of(media, &m, i, own);
        if (!picture_of(v, media, &m, i, &p.picture, r->err)) {
            r->status = TN_E_INPUT;
            return;
        }
        rows = v->projector->tiled ? vit_tiles_rows(v->tiles, size) : rows_projected(v, &p.picture, r->err);
        tn_tensor y = steps_part(&out->features, 0, at, rows);
        if (v->projector->tiled) {
            run_tiles(&p, media, size, m.nested ? i * m.tiles : planes, tiles, &y);
        } else {
            p.planes = planes_at(media, i);
            run_picture(&p, &y);
        }
        at += rows;
        planes += tiles;
    }
}
