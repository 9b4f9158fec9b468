/* The tower of Gemma 3n at work, one picture after the other. Products, norms and activations go through in pieces of
 * rows, which are places of a picture. */
#include "models/gemma3n_vision.h"

#include "models/vit.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Places of a picture, line by line: x [high * wide, channels]. */
typedef struct plane {
    tn_tensor x;
    int64_t high, wide;
} plane;

/* ---- what there is --------------------------------------------------------------------------------- */

static int64_t shrink(int64_t size, int64_t stride)
{
    return (size + stride - 1) / stride;
}

int64_t gemma3n_vision_tokens(const void *state, const tower_media *media, tn_error *err)
{
    const gemma3n_tower *t = state;
    const tn_tensor *x = &media->pixels;
    if (x->ndim == 4 && x->shape[0] == media->count && x->shape[1] == 3)
        return media->count * t->side * t->side;
    tn_fail(err, TN_E_INPUT, "pixel_values", "must be [pictures, 3, height, width]");
    return -1;
}

int64_t gemma3n_vision_largest(const void *state, const tower_media *media)
{
    const gemma3n_tower *t = state;
    int64_t most = TOWER_PIECE;
    if (gemma3n_vision_tokens(state, media, NULL) < 0)
        return 0;
    int64_t high = shrink(media->pixels.shape[2], t->stem.stride),
            wide = shrink(media->pixels.shape[3], t->stem.stride);
    for (int64_t i = 0; i < t->count; i++) {
        high = shrink(high, t->blocks[i].spec.stride);
        wide = shrink(wide, t->blocks[i].spec.stride);
        if (t->blocks[i].attention && high * wide > most)
            most = high * wide;
    }
    return most;
}

/* ---- convolutions ---------------------------------------------------------------------------------- */

static plane take_plane(graph_run *r, int64_t high, int64_t wide, int64_t channels)
{
    return (plane){steps_take(r, r->dtype, 2, (int64_t[]){high * wide, channels}), high, wide};
}

/* The plane that conv makes of one like x. */
static plane take_result(graph_run *r, const gemma3n_conv *conv, const plane *x)
{
    return take_plane(r, shrink(x->high, conv->stride), shrink(x->wide, conv->stride), conv->out);
}

static void finish(graph_run *r, const gemma3n_conv *conv, const tn_tensor *rows)
{
    if (conv->norm)
        steps_norm_in_place(r, conv->norm, rows);
    steps_change(r, conv->act, rows);
}

/* Rows of a piece that begins at row at. */
static int64_t piece(const tn_tensor *x, int64_t at)
{
    return x->shape[0] - at < TOWER_PIECE ? x->shape[0] - at : TOWER_PIECE;
}

/* y: the product of each place, x; NULL: y holds it already. */
static void multiply(graph_run *r, const gemma3n_conv *conv, const tn_tensor *x, const tn_tensor *y)
{
    for (int64_t at = 0; at < y->shape[0] && r->status == TN_OK; at += TOWER_PIECE) {
        size_t mark = arena_mark(r->arena);
        tn_tensor to = steps_part(y, 0, at, piece(y, at));
        if (x) {
            tn_tensor from = steps_part(x, 0, at, piece(y, at));
            steps_linear_into(r, conv->site, &from, &to);
        }
        finish(r, conv, &to);
        arena_release(r->arena, mark);
    }
}

static void filter(graph_run *r, const gemma3n_conv *conv, const plane *x, const plane *y)
{
    tn_tensor from = steps_view(&x->x, 3, (int64_t[]){x->high, x->wide, x->x.shape[1]});
    tn_tensor to = steps_view(&y->x, 3, (int64_t[]){y->high, y->wide, y->x.shape[1]});
    steps_depthwise(r, conv->filter, &from, &to);
    multiply(r, conv, NULL, &y->x);
}

/* The element of x at an offset. */
static void move_to(tn_tensor *x, int64_t offset)
{
    if (x->data)
        x->data = (char *)x->data + (size_t)offset * tn_dtype_size(x->dtype);
}

/* x [high, wide, channels], strided, in the middle of zeros as convolutions with "same" padding have them: as many as
 * y's filters reach, one more behind than before where they are odd. Dense. */
static tn_tensor pad(graph_run *r, const gemma3n_tower *t, const gemma3n_conv *conv, const tn_tensor *x, const plane *y)
{
    int64_t shape[3] = {(y->high - 1) * conv->stride + conv->side, (y->wide - 1) * conv->stride + conv->side,
                        x->shape[2]};
    int64_t before[2];
    for (int i = 0; i < 2; i++) {
        shape[i] = shape[i] > x->shape[i] ? shape[i] : x->shape[i];
        before[i] = (shape[i] - x->shape[i]) / 2;
    }
    tn_tensor padded = steps_upload(r, r->dtype, 3, shape, NULL);
    tn_tensor to = tn_tensor_dense(padded.data, x->dtype, 4, (int64_t[]){x->shape[0], x->shape[1], 1, x->shape[2]});
    tn_tensor from = to;
    bool dense = x->stride[2] == 1;
    if (!dense) { /* rows of one element each                                                            */
        from.shape[2] = to.shape[2] = x->shape[2];
        from.shape[3] = to.shape[3] = 1;
    }
    for (int i = 0; i < 2; i++) {
        from.stride[i] = x->stride[i];
        to.stride[i] = padded.stride[i];
    }
    from.stride[2] = x->stride[2];
    to.stride[2] = 1;
    from.data = x->data;
    move_to(&to, before[0] * padded.stride[0] + before[1] * padded.stride[1]);
    steps_copy(r, t->copy, &from, &to);
    return padded;
}

/* The product of what the filters of places see, some lines of y at a time. x as pad has it. */
static void convolve_around(graph_run *r, const gemma3n_tower *t, const gemma3n_conv *conv, const tn_tensor *x,
                            const plane *y)
{
    int64_t lines = y->wide < TOWER_PIECE ? TOWER_PIECE / y->wide : 1, width = conv->side * x->shape[2];
    size_t mark = arena_mark(r->arena);
    tn_tensor padded = pad(r, t, conv, x, y);
    for (int64_t at = 0; at < y->high && r->status == TN_OK; at += lines) {
        int64_t count = y->high - at < lines ? y->high - at : lines;
        size_t inner = arena_mark(r->arena);
        tn_tensor columns = steps_take(r, r->dtype, 4, (int64_t[]){count, y->wide, conv->side, width}), seen = columns;
        seen.data = padded.data;
        seen.stride[0] = conv->stride * padded.stride[0];
        seen.stride[1] = conv->stride * padded.stride[1];
        seen.stride[2] = padded.stride[0];
        move_to(&seen, at * seen.stride[0]);
        steps_copy(r, t->copy, &seen, &columns);
        tn_tensor rows = steps_view(&columns, 2, (int64_t[]){count * y->wide, conv->side * width});
        tn_tensor to = steps_part(&y->x, 0, at * y->wide, count * y->wide);
        multiply(r, conv, &rows, &to);
        arena_release(r->arena, inner);
    }
    arena_release(r->arena, mark);
}

/* y as take_result gives it. */
static void convolve(graph_run *r, const gemma3n_tower *t, const gemma3n_conv *conv, const plane *x, const plane *y)
{
    tn_tensor places = steps_view(&x->x, 3, (int64_t[]){x->high, x->wide, x->x.shape[1]});
    if (conv->filter)
        filter(r, conv, x, y);
    else if (conv->side > 1)
        convolve_around(r, t, conv, &places, y);
    else
        multiply(r, conv, &x->x, &y->x);
}

/* ---- blocks ---------------------------------------------------------------------------------------- */

/* What those convolutions of a block that there are make of x, to y: the last one's. */
static void run_convolutions(graph_run *r, const gemma3n_tower *t, const gemma3n_block *b, const plane *x,
                             const plane *y)
{
    plane now = *x;
    int last = GEMMA3N_CONVS - 1;
    while (!b->conv[last].site)
        last--;
    for (int i = 0; i <= last; i++) {
        const gemma3n_conv *conv = &b->conv[i];
        if (!conv->site && !conv->filter)
            continue;
        plane next = i == last ? *y : take_result(r, conv, &now);
        convolve(r, t, conv, &now, &next);
        now = next;
    }
}

/* Keys or values: of all places, or of those that remain of them. */
static tn_tensor one_head(graph_run *r, const gemma3n_tower *t, const gemma3n_conv *thin, const gemma3n_conv *conv,
                          const plane *x)
{
    plane now = *x;
    if (thin->filter) {
        now = take_result(r, thin, x);
        convolve(r, t, thin, x, &now);
    }
    plane y = take_result(r, conv, &now);
    convolve(r, t, conv, &now, &y);
    return steps_view(&y.x, 4, (int64_t[]){1, y.x.shape[0], 1, conv->out});
}

static void run_attention(graph_run *r, const gemma3n_tower *t, const gemma3n_block *b, const plane *x, const plane *y)
{
    const gemma3n_block_spec *s = &b->spec;
    int64_t count = x->x.shape[0];
    plane normed = take_plane(r, x->high, x->wide, x->x.shape[1]);
    const gemma3n_conv norm = {.norm = b->norm};
    steps_copy(r, t->copy, &x->x, &normed.x);
    multiply(r, &norm, NULL, &normed.x);
    plane q = take_result(r, &b->conv[0], &normed);
    convolve(r, t, &b->conv[0], &normed, &q);
    tn_tensor k = one_head(r, t, &b->thin[0], &b->conv[1], &normed);
    tn_tensor v = one_head(r, t, &b->thin[1], &b->conv[2], &normed);
    plane o = take_plane(r, x->high, x->wide, s->heads * s->value);
    tn_tensor queries = steps_view(&q.x, 4, (int64_t[]){1, count, s->heads, s->key});
    tn_tensor to = steps_view(&o.x, 4, (int64_t[]){1, count, s->heads, s->value});
    steps_attend(r, b->attention, &queries, &k, &v, &to);
    convolve(r, t, &b->conv[3], &o, y);
}

static void scale(graph_run *r, const tn_site *step, const tn_tensor *x)
{
    if (!step)
        return;
    tn_tensor factors = steps_repeat(step->param[TN_ROLE_WEIGHT].tensors, x->shape[0], x->shape[1]);
    steps_glu(r, step, &factors, x);
}

/* x becomes what the block gives: in its own memory where it is added to. */
static void run_block(graph_run *r, const gemma3n_tower *t, const gemma3n_block *b, plane *x)
{
    const gemma3n_conv like = {.out = b->spec.out, .stride = b->spec.stride};
    size_t before = arena_mark(r->arena);
    plane y = take_result(r, &like, x);
    size_t mark = arena_mark(r->arena);
    if (b->attention)
        run_attention(r, t, b, x, &y);
    else
        run_convolutions(r, t, b, x, &y);
    arena_release(r->arena, mark);
    scale(r, b->scale, &y.x);
    if (!b->skip) {
        *x = y;
        return;
    }
    steps_add(r, &x->x, &y.x);
    arena_release(r->arena, before);
}

/* ---- fusing ---------------------------------------------------------------------------------------- */

/* A place that another is made of, and its weight. */
typedef struct tap {
    int64_t place;
    float weight;
} tap;

/* The k-th of those that place `at` of an axis of length `to` is made of, where there are `from`: all that it covers,
 * or (not mean) the two that it lies between. */
static tap tap_of(int64_t at, int64_t k, int64_t from, int64_t to, bool mean)
{
    if (mean)
        return (tap){at * (from / to) + k, 1.0f / (float)(from / to)};
    float where = ((float)at + 0.5f) * ((float)from / (float)to) - 0.5f;
    where = where > 0 ? where : 0;
    int64_t first = (int64_t)where < from - 1 ? (int64_t)where : from - 1;
    float behind = where - (float)first;
    return k == 0 ? (tap){first, 1 - behind} : (tap){first + (first < from - 1), behind};
}

/* A table of the host; NULL: out of memory, or the arena is measured. */
static void *host(graph_run *r, int64_t count, size_t size)
{
    if (r->status != TN_OK || r->arena->measuring)
        return NULL;
    void *memory = calloc((size_t)count + 1, size);
    if (!memory)
        r->status =
            tn_fail(r->err, TN_E_MEMORY, "pixels", "out of memory for the places of a picture; free some memory");
    return memory;
}

/* x as a square of t->side by side: means where both of its sides are multiples of that. */
static tn_tensor resize(graph_run *r, const gemma3n_tower *t, const plane *x)
{
    int64_t side = t->side, rows = side * side;
    bool mean = x->high % side == 0 && x->wide % side == 0;
    int64_t down = mean ? x->high / side : 2, across = mean ? x->wide / side : 2, shape[] = {rows, down * across};
    tn_tensor y = steps_take(r, r->dtype, 2, (int64_t[]){rows, x->x.shape[1]});
    int64_t *ids = host(r, shape[0] * shape[1], sizeof *ids);
    float *weights = host(r, shape[0] * shape[1], sizeof *weights);
    for (int64_t i = 0; ids && weights && i < shape[0] * shape[1]; i++) {
        int64_t row = i / shape[1], k = i % shape[1];
        tap line = tap_of(row / side, k / across, x->high, side, mean);
        tap column = tap_of(row % side, k % across, x->wide, side, mean);
        ids[i] = line.place * x->wide + column.place;
        weights[i] = line.weight * column.weight;
    }
    tn_tensor places = steps_upload(r, TN_I64, 2, shape, ids), factors = steps_upload(r, TN_F32, 2, shape, weights);
    steps_gather_sums(r, &x->x, &places, &factors, &y);
    free(ids);
    free(weights);
    return y;
}

/* The nearest place of x for each of `to`, whose rows are as long as those of x. */
static void enlarge(graph_run *r, const plane *x, const plane *to)
{
    int64_t rows = to->high * to->wide, *ids = host(r, rows, sizeof *ids);
    float high = (float)x->high / (float)to->high, wide = (float)x->wide / (float)to->wide;
    for (int64_t i = 0; ids && i < rows; i++) {
        int64_t line = (int64_t)((float)(i / to->wide) * high), column = (int64_t)((float)(i % to->wide) * wide);
        line = line < x->high ? line : x->high - 1;
        ids[i] = line * x->wide + (column < x->wide ? column : x->wide - 1);
    }
    tn_tensor places = steps_upload(r, TN_I64, 1, &rows, ids);
    steps_gather(r, &x->x, &places, &to->x);
    free(ids);
}

/* The last two stages become rows of the tower: y [side * side, GEMMA3N_VISION_WIDTH]. */
static tn_tensor fuse(graph_run *r, const gemma3n_tower *t, const plane stage[2])
{
    plane both = take_plane(r, stage[0].high, stage[0].wide, t->fused), first = both, second = both;
    int64_t width = stage[0].x.shape[1];
    first.x = steps_columns(&both.x, 0, width);
    second.x = steps_columns(&both.x, width, t->fused - width);
    steps_copy(r, t->copy, &stage[0].x, &first.x);
    enlarge(r, &stage[1], &second);
    plane wide = take_result(r, &t->widen, &both);
    convolve(r, t, &t->widen, &both, &wide);
    plane narrow = take_result(r, &t->narrow, &wide);
    convolve(r, t, &t->narrow, &wide, &narrow);
    tn_tensor y = resize(r, t, &narrow);
    steps_norm_in_place(r, t->norm, &y);
    return y;
}

/* ---- rows of the text model ------------------------------------------------------------------------ */

/* x normed by norm, to rows of the text model. */
static void project(graph_run *r, const gemma3n_tower *t, graph_site *norm, const tn_tensor *x, const tn_tensor *y)
{
    steps_norm_in_place(r, norm, x);
    vit_linear(r, t->projection, x, y);
    steps_norm_in_place(r, t->plain, y);
}

tn_tensor gemma3n_vision_embed(graph_run *r, const void *state, const tn_tensor *ids)
{
    const gemma3n_tower *t = state;
    int64_t count = ids->shape[0];
    tn_tensor y = steps_take(r, r->dtype, 2, (int64_t[]){count, t->text_hidden});
    size_t mark = arena_mark(r->arena);
    tn_tensor x = steps_take(r, r->dtype, 2, (int64_t[]){count, GEMMA3N_VISION_WIDTH});
    steps_gather(r, &t->marks, ids, &x);
    project(r, t, t->hard, &x, &y);
    arena_release(r->arena, mark);
    return y;
}

/* pixels [3, high, wide]. */
static void run_picture(graph_run *r, const gemma3n_tower *t, const tn_tensor *pixels, const tn_tensor *y)
{
    size_t mark = arena_mark(r->arena);
    tn_tensor last = *pixels; /* channels last                                                            */
    plane stage[2], x = take_plane(r, shrink(pixels->shape[1], t->stem.stride),
                                   shrink(pixels->shape[2], t->stem.stride), t->stem.out);
    for (int i = 0; i < 3; i++) {
        last.shape[i] = pixels->shape[(i + 1) % 3];
        last.stride[i] = pixels->stride[(i + 1) % 3];
    }
    convolve_around(r, t, &t->stem, &last, &x);
    stage[0] = stage[1] = x;
    for (int64_t i = 0; i < t->count && r->status == TN_OK; i++) {
        run_block(r, t, &t->blocks[i], &x);
        if (t->blocks[i].ends) {
            stage[0] = stage[1];
            stage[1] = x;
        }
    }
    tn_tensor rows = fuse(r, t, stage);
    steps_change(r, t->root, &rows);
    project(r, t, t->soft, &rows, y);
    arena_release(r->arena, mark);
}

void gemma3n_vision_forward(graph_run *r, const void *state, const tower_media *media, tower_rows *out)
{
    const gemma3n_tower *t = state;
    *out = (tower_rows){0};
    int64_t total = r->status == TN_OK ? gemma3n_vision_tokens(state, media, r->err) : -1;
    if (r->status == TN_OK && total < 0)
        r->status = TN_E_INPUT;
    if (r->status != TN_OK)
        return;
    out->features = steps_take(r, r->dtype, 2, (int64_t[]){total, t->text_hidden});
    for (int64_t i = 0; i < media->count && r->status == TN_OK; i++) {
        tn_tensor one = steps_part(&media->pixels, 0, i, 1), pixels = steps_view(&one, 3, media->pixels.shape + 1);
        tn_tensor y = steps_part(&out->features, 0, i * t->side * t->side, t->side * t->side);
        run_picture(r, t, &pixels, &y);
    }
}
