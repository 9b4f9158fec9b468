/* The tower of Gemma 4 at work, one picture after the other. Patches that are padding are left out from the start. */
#include "models/gemma4_vision.h"

#include "base/convert.h"
#include "models/vit.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* ---- what there is ------------------------------------------------------------------------------- */

/* A picture's patches that are no padding. */
typedef struct gemma4_picture {
    int64_t count;
    int64_t *patch;  /* [count]: which of those that are given; the block of memory of all of these       */
    int64_t *place;  /* [count, 2]: x, y                                                              */
    int64_t *square; /* [count]: what each is a part of                                               */
    int64_t *row;    /* [squares]: how many patches a square has, then which row of the text model it is       */
    int64_t squares, rows, most; /* most: patches of a row                                            */
} gemma4_picture;

static bool fail(tn_error *err, const char *where, const char *what)
{
    tn_fail(err, TN_E_INPUT, where, "%s", what);
    return false;
}

static bool check_shape(const gemma4_tower *t, const tower_media *media, tn_error *err)
{
    const tn_tensor *x = &media->pixels;
    int64_t width = 3 * t->spec.patch * t->spec.patch, square = t->spec.pool * t->spec.pool;
    if (x->ndim != 3)
        return fail(err, "pixel_values", "must be [pictures, patches, 3 * patch_size * patch_size]");
    if (!media->places)
        return fail(err, "image_position_ids", "is missing: where the patches of the pictures lie");
    if (x->shape[0] == media->count && x->shape[1] % square == 0 && x->shape[2] == width)
        return true;
    tn_fail(err, TN_E_INPUT, "pixel_values",
            "is [%" PRId64 ", %" PRId64 ", %" PRId64 "]; it must be %" PRId64 " pictures of a multiple of %" PRId64
            " patches of %" PRId64 " numbers",
            x->shape[0], x->shape[1], x->shape[2], media->count, square, width);
    return false;
}

/* Takes the patches of a picture, places [patches, 2], into p. */
static bool take_patches(const gemma4_vision_spec *s, const int64_t *places, int64_t patches, gemma4_picture *p,
                         tn_error *err)
{
    for (int64_t i = 0; i < patches; i++) {
        int64_t x = places[2 * i], y = places[2 * i + 1];
        if (x == -1 && y == -1)
            continue;
        if (x < 0 || y < 0 || x >= s->places || y >= s->places) {
            tn_fail(err, TN_E_INPUT, "image_position_ids",
                    "patch %" PRId64 " lies at %" PRId64 ", %" PRId64 "; it must be within %" PRId64 " by %" PRId64
                    ", or -1, -1",
                    i, x, y, s->places, s->places);
            return false;
        }
        p->patch[p->count] = i;
        p->place[2 * p->count] = x;
        p->place[2 * p->count++ + 1] = y;
    }
    return p->count > 0 || fail(err, "image_position_ids", "has a picture without patches");
}

/* Which squares there are, as the modeling file numbers them, and the rows that they become, in that order. */
static bool find_rows(const gemma4_vision_spec *s, gemma4_picture *p, tn_error *err)
{
    int64_t side = s->pool, each = side * side, widest = 0;
    bool fits = true;
    for (int64_t i = 0; i < p->count; i++)
        widest = p->place[2 * i] > widest ? p->place[2 * i] : widest;
    for (int64_t i = 0; i < p->count && fits; i++) {
        int64_t square = p->place[2 * i] / side + (widest + 1) / side * (p->place[2 * i + 1] / side);
        fits = square < p->squares;
        if (fits) {
            p->square[i] = square;
            p->row[square]++;
        }
    }
    for (int64_t i = 0; i < p->squares; i++) {
        p->most = p->row[i] > p->most ? p->row[i] : p->most;
        p->row[i] = p->row[i] > 0 ? p->rows++ : -1;
    }
    /* A column that is left over at the right falls into the squares of the lines below, so there may be twice as many
     * patches. */
    if (fits && p->rows == p->count / each && p->most <= 2 * each)
        return true;
    tn_fail(err, TN_E_INPUT, "image_position_ids",
            "the %" PRId64 " patches of a picture make no squares of %" PRId64 " by %" PRId64 ", pooling_kernel_size",
            p->count, side, side);
    return false;
}

/* Picture i; false: it does not fit. p->patch is owned: free(). */
static bool read_picture(const gemma4_tower *t, const tower_media *media, int64_t i, gemma4_picture *p, tn_error *err)
{
    int64_t patches = media->pixels.shape[1], squares = patches / (t->spec.pool * t->spec.pool);
    int64_t *memory = calloc((size_t)(4 * patches + squares), sizeof *memory);
    *p = (gemma4_picture){.patch = memory, .squares = squares};
    if (!memory) {
        tn_fail(err, TN_E_MEMORY, "pixels", "out of memory for the places of patches; free some memory");
        return false;
    }
    p->place = memory + patches;
    p->square = memory + 3 * patches;
    p->row = memory + 4 * patches;
    return take_patches(&t->spec, media->places + 2 * i * patches, patches, p, err) && find_rows(&t->spec, p, err);
}

int64_t gemma4_vision_tokens(const void *state, const tower_media *media, tn_error *err)
{
    const gemma4_tower *t = state;
    int64_t total = 0;
    bool fits = check_shape(t, media, err);
    for (int64_t i = 0; i < media->count && fits; i++) {
        gemma4_picture p;
        fits = read_picture(t, media, i, &p, err);
        total += p.rows;
        free(p.patch);
    }
    return fits ? total : -1;
}

int64_t gemma4_vision_largest(const void *state, const tower_media *media)
{
    (void)state;
    return media->pixels.ndim == 3 ? media->pixels.shape[1] : 0;
}

/* ---- patches --------------------------------------------------------------------------------------- */

typedef struct gemma4_pass {
    graph_run *r;
    const gemma4_tower *t;
    gemma4_picture picture;
    tn_tensor h;                  /* [count, hidden]                                                   */
    tn_tensor cosine[2], sine[2]; /* [1, count, head / 2]: along x and y                                */
} gemma4_pass;

/* Memory of the host for n numbers of the size; NULL while the arena is measured, and after an error. */
static void *host(graph_run *r, int64_t n, size_t size)
{
    void *memory = r->status == TN_OK && !r->arena->measuring ? malloc((size_t)n * size) : NULL;
    if (!memory && r->status == TN_OK && !r->arena->measuring)
        r->status = tn_fail(r->err, TN_E_MEMORY, "pixels", "out of memory for the places of patches; free some memory");
    return memory;
}

/* The product of the patches' pixels, and the rows that are learnt for their columns and lines. */
static void embed(gemma4_pass *p, const tn_tensor *pixels)
{
    graph_run *r = p->r;
    const gemma4_vision_spec *s = &p->t->spec;
    int64_t count = p->picture.count, two[] = {count, 2}, *ids = host(r, 2 * count, sizeof *ids);
    float *ones = host(r, 2 * count, sizeof *ones);
    size_t mark = arena_mark(r->arena);
    for (int64_t i = 0; ids && ones && i < 2 * count; i++) {
        ids[i] = p->picture.place[i] + i % 2 * s->places;
        ones[i] = 1;
    }
    tn_tensor which = steps_upload(r, TN_I64, 1, &count, p->picture.patch);
    tn_tensor rows = steps_take(r, r->dtype, 2, (int64_t[]){count, pixels->shape[1]});
    tn_tensor learnt = steps_take(r, r->dtype, 2, p->h.shape);
    tn_tensor places = steps_upload(r, TN_I64, 2, two, ids), factors = steps_upload(r, TN_F32, 2, two, ones);
    steps_gather(r, pixels, &which, &rows);
    vit_linear(r, p->t->patch, &rows, &p->h);
    steps_gather_sums(r, &p->t->positions, &places, &factors, &learnt);
    steps_add(r, &p->h, &learnt);
    arena_release(r->arena, mark);
    free(ids);
    free(ones);
}

/* Angles along an axis: half a head's frequencies, twice. */
static void send_rotation(gemma4_pass *p, int axis)
{
    graph_run *r = p->r;
    int64_t rows = p->picture.count, dim = p->t->spec.head_dim / 2, shape[] = {1, rows, dim}, count = rows * dim;
    float *value = host(r, count, sizeof *value);
    char *table = host(r, count, tn_dtype_size(r->dtype));
    for (int turn = 0; turn < 2; turn++) {
        for (int64_t i = 0; value && table && i < count; i++) {
            int64_t f = i % dim % (dim / 2);
            float inverse = 1.0f / powf((float)p->t->spec.theta, (float)(2 * f) / (float)dim);
            float angle = (float)p->picture.place[2 * (i / dim) + axis] * inverse;
            value[i] = turn ? sinf(angle) : cosf(angle);
        }
        if (value && table)
            convert_from_f32(value, r->dtype, table, count);
        *(turn ? &p->sine[axis] : &p->cosine[axis]) = steps_upload(r, r->dtype, 3, shape, table);
    }
    free(value);
    free(table);
}

/* ---- blocks ---------------------------------------------------------------------------------------- */

/* y = the product of x, which stays as it is, some rows at a time. */
static void linear(const gemma4_pass *p, const gemma4_linear *l, const tn_tensor *x, const tn_tensor *y)
{
    graph_run *r = p->r;
    for (int64_t at = 0; at < x->shape[0] && r->status == TN_OK; at += TOWER_PIECE) {
        size_t mark = arena_mark(r->arena);
        int64_t left = x->shape[0] - at, count = left < TOWER_PIECE ? left : TOWER_PIECE;
        tn_tensor from = steps_part(x, 0, at, count), to = steps_part(y, 0, at, count);
        if (l->in) {
            tn_tensor within = steps_take(r, r->dtype, 2, from.shape);
            steps_copy(r, p->t->copy, &from, &within);
            steps_change(r, l->in, &within);
            from = within;
        }
        steps_linear_into(r, l->site, &from, &to);
        steps_change(r, l->out, &to);
        arena_release(r->arena, mark);
    }
}

/* What attention gives, to y. */
static void attend(const gemma4_pass *p, const gemma4_block *b, const tn_tensor *x, const tn_tensor *y)
{
    const gemma4_vision_spec *s = &p->t->spec;
    graph_run *r = p->r;
    const gemma4_linear *const products[] = {&b->q, &b->k, &b->v};
    graph_site *const norms[] = {b->q_norm, b->k_norm, b->v_norm};
    tn_tensor heads[3];
    for (int i = 0; i < 3; i++) {
        int64_t count = i ? s->kv_heads : s->heads, shape[] = {1, x->shape[0], count, s->head_dim};
        tn_tensor rows = steps_take(r, r->dtype, 2, (int64_t[]){x->shape[0], count * s->head_dim});
        linear(p, products[i], x, &rows);
        heads[i] = steps_view(&rows, 4, shape);
        steps_norm_in_place(r, norms[i], &heads[i]);
    }
    for (int axis = 0; axis < 2; axis++) {
        tn_tensor q = steps_part(&heads[0], 3, axis * s->head_dim / 2, s->head_dim / 2);
        tn_tensor k = steps_part(&heads[1], 3, axis * s->head_dim / 2, s->head_dim / 2);
        steps_rope_by(r, p->t->rope, &q, &k, &p->cosine[axis], &p->sine[axis]);
    }
    tn_tensor o = steps_take(r, r->dtype, 4, heads[0].shape);
    steps_attend(r, b->attention, &heads[0], &heads[1], &heads[2], &o);
    tn_tensor rows = steps_view(&o, 2, (int64_t[]){x->shape[0], s->heads * s->head_dim});
    linear(p, &b->o, &rows, y);
}

/* What the MLP makes of some rows. */
static void feed(const gemma4_pass *p, const gemma4_block *b, const tn_tensor *x, const tn_tensor *y)
{
    graph_run *r = p->r;
    int64_t shape[] = {x->shape[0], p->t->spec.inter};
    if (b->mlp) {
        steps_mlp(r, b->mlp, x, y);
        return;
    }
    tn_tensor gate = steps_take(r, r->dtype, 2, shape), up = steps_take(r, r->dtype, 2, shape);
    linear(p, &b->gate, x, &gate);
    linear(p, &b->up, x, &up);
    steps_glu(r, b->act, &gate, &up);
    linear(p, &b->down, &up, y);
}

static void run_block(const gemma4_pass *p, const gemma4_block *b)
{
    graph_run *r = p->r;
    size_t mark = arena_mark(r->arena);
    tn_tensor x = steps_norm(r, b->norm[0], &p->h), y = steps_take(r, r->dtype, 2, x.shape);
    attend(p, b, &x, &y);
    steps_norm_in_place(r, b->norm[1], &y);
    x = steps_add_norm(r, b->norm[2], &p->h, &y);
    for (int64_t at = 0; at < x.shape[0] && r->status == TN_OK; at += TOWER_PIECE) {
        size_t inner = arena_mark(r->arena);
        int64_t left = x.shape[0] - at, count = left < TOWER_PIECE ? left : TOWER_PIECE;
        tn_tensor from = steps_part(&x, 0, at, count), to = steps_part(&y, 0, at, count);
        feed(p, b, &from, &to);
        arena_release(r->arena, inner);
    }
    steps_norm_in_place(r, b->norm[3], &y);
    steps_add(r, &p->h, &y);
    arena_release(r->arena, mark);
}

/* ---- rows of the text model ------------------------------------------------------------------------- */

/* The mean of each square's patches, in the order of the squares: y [rows, hidden]. */
static void pool(const gemma4_pass *p, const tn_tensor *y)
{
    graph_run *r = p->r;
    const gemma4_picture *of = &p->picture;
    int64_t shape[] = {of->rows, of->most}, all = of->rows * of->most, *ids = host(r, all, sizeof *ids);
    float *weights = host(r, all, sizeof *weights), each = 1.0f / (float)(p->t->spec.pool * p->t->spec.pool);
    for (int64_t i = 0; ids && weights && i < all; i++) {
        ids[i] = -1;
        weights[i] = 0;
    }
    for (int64_t i = 0; ids && weights && i < of->count; i++) {
        int64_t at = of->row[of->square[i]] * of->most;
        while (ids[at] >= 0)
            at++;
        ids[at] = i;
        weights[at] = each;
    }
    for (int64_t i = 0; ids && weights && i < all; i++)
        ids[i] = ids[i] < 0 ? 0 : ids[i];
    tn_tensor places = steps_upload(r, TN_I64, 2, shape, ids), factors = steps_upload(r, TN_F32, 2, shape, weights);
    steps_gather_sums(r, &p->h, &places, &factors, y);
    free(ids);
    free(weights);
}

/* x becomes (x * root - mean) * factor, all of it in f32. */
static void standardise(const gemma4_pass *p, const tn_tensor *x)
{
    const gemma4_tower *t = p->t;
    graph_run *r = p->r;
    int64_t one[] = {1, x->shape[1]};
    tn_tensor wide = steps_take(r, TN_F32, 2, x->shape), vectors[2];
    const tn_tensor *const from[] = {&t->mean, &t->factor};
    steps_copy(r, t->copy, x, &wide);
    steps_change(r, t->root, &wide);
    for (int i = 0; i < 2; i++) {
        tn_tensor row = steps_view(from[i], 2, one);
        vectors[i] = steps_take(r, TN_F32, 2, one);
        steps_copy(r, t->copy, &row, &vectors[i]);
    }
    steps_change(r, t->minus, &vectors[0]);
    for (int i = 0; i < 2; i++) {
        tn_tensor flat = steps_view(&vectors[i], 1, &one[1]);
        vectors[i] = steps_repeat(&flat, x->shape[0], x->shape[1]);
    }
    steps_add(r, &wide, &vectors[0]);
    steps_glu(r, t->times, &vectors[1], &wide);
    steps_copy(r, t->copy, &wide, x);
}

static void run_picture(gemma4_pass *p, const tn_tensor *pixels, const tn_tensor *y)
{
    const gemma4_tower *t = p->t;
    graph_run *r = p->r;
    size_t mark = arena_mark(r->arena);
    p->h = steps_take(r, r->dtype, 2, (int64_t[]){p->picture.count, t->spec.hidden});
    send_rotation(p, 0);
    send_rotation(p, 1);
    embed(p, pixels);
    for (int64_t i = 0; i < t->spec.depth && r->status == TN_OK; i++)
        run_block(p, &t->blocks[i]);
    tn_tensor rows = steps_take(r, r->dtype, 2, (int64_t[]){p->picture.rows, t->spec.hidden});
    pool(p, &rows);
    if (t->spec.standard)
        standardise(p, &rows);
    else
        steps_change(r, t->root, &rows);
    steps_norm_in_place(r, t->norm, &rows);
    vit_linear(r, t->projection, &rows, y);
    arena_release(r->arena, mark);
}

void gemma4_vision_forward(graph_run *r, const void *state, const tower_media *media, tower_rows *out)
{
    const gemma4_tower *t = state;
    *out = (tower_rows){0};
    int64_t total = r->status == TN_OK ? gemma4_vision_tokens(state, media, r->err) : -1, at = 0;
    if (r->status == TN_OK && total < 0)
        r->status = TN_E_INPUT;
    if (r->status != TN_OK)
        return;
    out->features = steps_take(r, r->dtype, 2, (int64_t[]){total, t->text_hidden});
    const tn_tensor *all = &media->pixels;
    for (int64_t i = 0; i < media->count && r->status == TN_OK; i++) {
        gemma4_pass p = {.r = r, .t = t};
        tn_tensor one = steps_part(all, 0, i, 1), pixels = steps_view(&one, 2, all->shape + 1);
        if (!read_picture(t, media, i, &p.picture, r->err))
            r->status = TN_E_INPUT;
        tn_tensor y = steps_part(&out->features, 0, at, p.picture.rows);
        if (r->status == TN_OK)
            run_picture(&p, &pixels, &y);
        at += p.picture.rows;
        free(p.picture.patch);
    }
}
