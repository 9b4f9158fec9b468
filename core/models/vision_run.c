/* A vision tower at work. Rows go through its products piece by piece, as those of a text do, and attention sees one
 * frame or window at a time: memory grows with the patches, and nothing with their square but a span's scores. */
#include "models/vision.h"

#include <stdlib.h>

/* Rows of one call: those of a session's chunk, which is what kernels were tried with. */
enum { PIECE = 512 };

typedef struct vision_pass {
    graph_run *r;
    const vision_tower *v;
    const tower_media *media;
    vision_tables tables;
    int64_t piece;          /* rows of one call that hold whole groups                            */
    bool trailing;          /* more is still to be added to h                                     */
    tn_tensor h, more, o;   /* [patches, hidden]                                                  */
    tn_tensor qkv;          /* [patches, 3 hidden]                                                */
    tn_tensor cosine, sine; /* [patches, head] f32                                                */
    tn_tensor place, order; /* [groups] i32, with windows: to the blocks' order and back          */
    tn_tensor ids, weights; /* [patches, taps], with learnt positions                             */
} vision_pass;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* count rows of x [rows, width] from begin on. */
static tn_tensor rows_of(const tn_tensor *x, int64_t begin, int64_t count)
{
    tn_tensor t = *x;
    t.shape[0] = count;
    if (t.data)
        t.data = (char *)t.data + (size_t)(begin * t.stride[0]) * tn_dtype_size(t.dtype);
    return t;
}

/* ---- tables --------------------------------------------------------------------------------------- */

static bool is_live(const vision_pass *p)
{
    return p->r->status == TN_OK && !p->r->arena->measuring;
}

/* The host's memory for a table of n elements; NULL: out of memory, or there is nothing to send yet. */
static void *host_table(vision_pass *p, int64_t n, tn_dtype dtype)
{
    if (!is_live(p))
        return NULL;
    void *host = malloc((size_t)n * tn_dtype_size(dtype) + 1);
    if (!host)
        p->r->status =
            tn_fail(p->r->err, TN_E_MEMORY, "pixels", "out of memory for the tables of pictures; free some memory");
    return host;
}

static void send_rotation(vision_pass *p)
{
    const vision_spec *s = &p->v->spec;
    const int64_t shape[] = {p->tables.patches, s->head_dim}, count = shape[0] * shape[1];
    float *cosine = host_table(p, count, TN_F32), *sine = host_table(p, count, TN_F32);
    if (cosine && sine && !vision_tables_rotation(&p->tables, p->media, s->merge, s->head_dim, s->theta, cosine, sine))
        p->r->status = tn_fail(p->r->err, TN_E_MEMORY, "pixels", "out of memory for angles; free some memory");
    p->cosine = steps_upload(p->r, TN_F32, 2, shape, cosine);
    p->sine = steps_upload(p->r, TN_F32, 2, shape, sine);
    free(cosine);
    free(sine);
}

static void send_positions(vision_pass *p)
{
    const vision_spec *s = &p->v->spec;
    vision_positions kind = p->v->family->positions;
    if (kind == VISION_NO_POSITIONS)
        return;
    const int64_t shape[] = {p->tables.patches, vision_tables_taps(kind)}, count = shape[0] * shape[1];
    int64_t *ids = host_table(p, count, TN_I64);
    float *weights = host_table(p, count, TN_F32);
    if (ids && weights)
        vision_tables_positions(p->media, kind, s->merge, s->side, ids, weights);
    p->ids = steps_upload(p->r, TN_I64, 2, shape, ids);
    p->weights = steps_upload(p->r, TN_F32, 2, shape, weights);
    free(ids);
    free(weights);
}

static void send_order(vision_pass *p)
{
    const int64_t groups = p->tables.groups;
    if (!p->v->spec.window)
        return;
    int32_t *place = host_table(p, groups, TN_I32);
    if (place)
        vision_tables_places(&p->tables, place);
    p->place = steps_upload(p->r, TN_I32, 1, &groups, place);
    p->order = steps_upload(p->r, TN_I32, 1, &groups, p->tables.order);
    free(place);
}

/* ---- rows ------------------------------------------------------------------------------------------- */

/* Groups of x [rows, width] go to their places among those of to; unit: rows of a group. */
static void place_groups(vision_pass *p, const tn_tensor *x, int64_t unit, const tn_tensor *places, int64_t first,
                         const tn_tensor *to)
{
    int64_t width = x->shape[1], groups = x->shape[0] / unit;
    tn_tensor from = steps_view(x, 4, (int64_t[]){1, groups, unit, width});
    tn_tensor all = steps_view(to, 4, (int64_t[]){1, to->shape[0] / unit, unit, width});
    tn_tensor slot = rows_of(places, first, groups);
    slot = steps_view(&slot, 2, (int64_t[]){1, groups});
    steps_place(p->r, &from, &slot, &all);
}

/* Pixels to rows, with their learnt positions, in the order of the blocks. */
static void embed_piece(vision_pass *p, const vision_block *b, int64_t begin, int64_t count)
{
    (void)b;
    const vision_spec *s = &p->v->spec;
    const int64_t shape[] = {count, s->hidden};
    tn_tensor x = rows_of(&p->media->pixels, begin, count);
    tn_tensor y = s->window ? steps_take(p->r, p->r->dtype, 2, shape) : rows_of(&p->h, begin, count);
    steps_linear_into(p->r, p->v->patch, &x, &y);
    if (p->v->patch_norm)
        steps_norm_in_place(p->r, p->v->patch_norm, &y);
    if (p->v->positions) {
        tn_tensor where = steps_take(p->r, p->r->dtype, 2, shape);
        tn_tensor ids = rows_of(&p->ids, begin, count), weights = rows_of(&p->weights, begin, count);
        steps_embedding_bag(p->r, p->v->positions, &ids, &weights, &where);
        steps_add(p->r, &y, &where);
    }
    if (s->window)
        place_groups(p, &y, s->merge * s->merge, &p->place, begin / (s->merge * s->merge), &p->h);
}

/* Columns of rows of qkv as heads: 0 queries, 1 keys, 2 values; batch spans of length rows each. */
static tn_tensor heads_of(const vision_pass *p, const tn_tensor *rows, int which, int64_t batch, int64_t length)
{
    const vision_spec *s = &p->v->spec;
    tn_tensor part = steps_columns(rows, which * s->hidden, s->hidden);
    tn_tensor t = steps_view(&part, 4, (int64_t[]){batch, length, s->heads, s->head_dim});
    t.stride[1] = rows->stride[0];
    t.stride[0] = length * rows->stride[0];
    return t;
}

static void qkv_piece(vision_pass *p, const vision_block *b, int64_t begin, int64_t count)
{
    tn_tensor h = rows_of(&p->h, begin, count), more = rows_of(&p->more, begin, count);
    tn_tensor x = p->trailing ? steps_add_norm(p->r, b->norm1, &h, &more) : steps_norm(p->r, b->norm1, &h);
    tn_tensor qkv = rows_of(&p->qkv, begin, count), cosine = rows_of(&p->cosine, begin, count);
    tn_tensor sine = rows_of(&p->sine, begin, count);
    for (int i = 0; i < 3 && b->qkv[i]; i++) {
        tn_tensor y = b->qkv[1] ? steps_columns(&qkv, i * p->v->spec.hidden, p->v->spec.hidden) : qkv;
        steps_linear_into(p->r, b->qkv[i], &x, &y);
    }
    tn_tensor q = heads_of(p, &qkv, 0, 1, count), k = heads_of(p, &qkv, 1, 1, count);
    cosine = steps_view(&cosine, 3, (int64_t[]){1, count, cosine.shape[1]});
    sine = steps_view(&sine, 3, cosine.shape);
    steps_rope_by(p->r, p->v->rope, &q, &k, &cosine, &sine);
}

/* What attention adds, and the MLP, whose own rows trail behind. */
static void mlp_piece(vision_pass *p, const vision_block *b, int64_t begin, int64_t count)
{
    tn_tensor h = rows_of(&p->h, begin, count), o = rows_of(&p->o, begin, count);
    tn_tensor more = rows_of(&p->more, begin, count), x = steps_linear(p->r, b->proj, &o);
    x = steps_add_norm(p->r, b->norm2, &h, &x);
    steps_mlp(p->r, b->mlp, &x, &more);
}

/* Neighbours of one length together. */
static void attend(vision_pass *p, const vision_block *b, const vision_spans *spans)
{
    const vision_spec *s = &p->v->spec;
    int64_t begin = 0;
    for (int64_t i = 0, batch; i < spans->count; i += batch) {
        int64_t length = spans->length[i];
        for (batch = 1; i + batch < spans->count && spans->length[i + batch] == length;)
            batch++;
        tn_tensor rows = rows_of(&p->qkv, begin, batch * length), o = rows_of(&p->o, begin, batch * length);
        tn_tensor q = heads_of(p, &rows, 0, batch, length), k = heads_of(p, &rows, 1, batch, length);
        tn_tensor v = heads_of(p, &rows, 2, batch, length);
        o = steps_view(&o, 4, (int64_t[]){batch, length, s->heads, s->head_dim});
        steps_attend(p->r, b->attention, &q, &k, &v, &o);
        begin += batch * length;
    }
}

/* ---- the tower -------------------------------------------------------------------------------------- */

typedef void piece_fn(vision_pass *p, const vision_block *b, int64_t begin, int64_t count);

static void for_pieces(vision_pass *p, piece_fn *run, const vision_block *b)
{
    for (int64_t at = 0; at < p->tables.patches && p->r->status == TN_OK; at += p->piece) {
        size_t mark = arena_mark(p->r->arena);
        run(p, b, at, least(p->piece, p->tables.patches - at));
        arena_release(p->r->arena, mark);
    }
}

static void settle_piece(vision_pass *p, const vision_block *b, int64_t begin, int64_t count)
{
    (void)b;
    tn_tensor h = rows_of(&p->h, begin, count), more = rows_of(&p->more, begin, count);
    steps_add(p->r, &h, &more);
}

/* Rows as they are now to those of the text model. */
static void merge(vision_pass *p, const vision_merger *m, const tn_tensor *to)
{
    int64_t unit = p->v->spec.merge * p->v->spec.merge;
    for (int64_t at = 0; at < p->tables.patches && p->r->status == TN_OK; at += p->piece) {
        size_t mark = arena_mark(p->r->arena);
        int64_t count = least(p->piece, p->tables.patches - at), groups = count / unit;
        const int64_t shape[] = {groups, p->v->spec.out};
        tn_tensor h = rows_of(&p->h, at, count), more = rows_of(&p->more, at, count);
        bool moves = p->v->spec.window != 0;
        tn_tensor y = moves ? steps_take(p->r, p->r->dtype, 2, shape) : rows_of(to, at / unit, groups);
        vision_merger_run(p->r, p->v, m, &h, p->trailing ? &more : NULL, &y);
        if (moves)
            place_groups(p, &y, 1, &p->order, at / unit, to);
        arena_release(p->r->arena, mark);
    }
}

static void run_blocks(vision_pass *p, tower_rows *out)
{
    int32_t deep = 0;
    for (int64_t i = 0; i < p->v->spec.depth && p->r->status == TN_OK; i++) {
        const vision_block *b = &p->v->blocks[i];
        for_pieces(p, qkv_piece, b);
        attend(p, b, b->whole ? &p->tables.frames : &p->tables.windows);
        for_pieces(p, mlp_piece, b);
        p->trailing = true;
        if (b->deep < 0)
            continue;
        for_pieces(p, settle_piece, b);
        p->trailing = false;
        merge(p, &p->v->deep[b->deep], &out->deep[deep++]);
    }
}

static void take_memory(vision_pass *p)
{
    const vision_spec *s = &p->v->spec;
    const int64_t rows[] = {p->tables.patches, s->hidden}, wide[] = {p->tables.patches, 3 * s->hidden};
    p->h = steps_take(p->r, p->r->dtype, 2, rows);
    p->more = steps_take(p->r, p->r->dtype, 2, rows);
    p->o = steps_take(p->r, p->r->dtype, 2, rows);
    p->qkv = steps_take(p->r, p->r->dtype, 2, wide);
    send_rotation(p);
    send_positions(p);
    send_order(p);
}

void vision_forward(graph_run *r, const void *state, const tower_media *media, tower_rows *out)
{
    const vision_tower *v = state;
    int64_t unit = v->spec.merge * v->spec.merge;
    vision_pass p = {.r = r, .v = v, .media = media, .piece = unit > PIECE ? unit : PIECE / unit * unit};
    *out = (tower_rows){.deep_count = v->deep_count};
    if (r->status != TN_OK)
        return;
    if (!vision_tables_make(&p.tables, media, v->spec.merge, v->spec.window)) {
        r->status = tn_fail(r->err, TN_E_MEMORY, "pixels", "out of memory for the order of patches; free some memory");
        return;
    }
    const int64_t shape[] = {p.tables.groups, v->spec.out};
    out->features = steps_take(r, r->dtype, 2, shape);
    for (int32_t i = 0; i < v->deep_count; i++)
        out->deep[i] = steps_take(r, r->dtype, 2, shape);
    size_t mark = arena_mark(r->arena);
    take_memory(&p);
    for_pieces(&p, embed_piece, NULL);
    run_blocks(&p, out);
    merge(&p, &v->merger, &out->features);
    arena_release(r->arena, mark);
    vision_tables_free(&p.tables);
}
