/* A chunk's inputs on their way to the device. */
#include "generate/chunk.h"

#include "base/convert.h"

#include <math.h>
#include <stdlib.h>

static tn_dtype table_dtype(const chunk_inputs *in, int32_t rope)
{
    return in->shape->rope[rope].f32_tables ? TN_F32 : in->dtype;
}

static size_t table_bytes(const chunk_inputs *in, int32_t rope)
{
    return (size_t)(in->rows * in->chunk * in->shape->rope[rope].dim) * tn_dtype_size(table_dtype(in, rope));
}

void chunk_show(const chunk_inputs *in, int64_t tokens, graph_run *r)
{
    r->rows = in->rows;
    r->tokens = tokens;
    r->ids = tn_tensor_dense(in->device_ids, TN_I64, 1, (int64_t[]){in->rows * tokens});
    r->index = tn_tensor_dense(in->device_index, TN_I32, 2, (int64_t[]){in->rows, tokens});
    for (int32_t i = 0; i < in->shape->rope_count; i++) {
        int64_t shape[3] = {in->rows, tokens, in->shape->rope[i].dim};
        r->cos[i] = tn_tensor_dense(in->device_cos[i], table_dtype(in, i), 3, shape);
        r->sin[i] = tn_tensor_dense(in->device_sin[i], table_dtype(in, i), 3, shape);
    }
    r->near =
        in->has_near ? tn_tensor_dense(in->device_near, TN_I32, 2, (int64_t[]){in->rows, tokens}) : (tn_tensor){0};
    if (in->shape->q_scale.kind)
        r->q_scale = tn_tensor_dense(in->device_scale, TN_F32, 1, (int64_t[]){in->rows * tokens});
    if (in->shape->learnt.count)
        r->learnt = tn_tensor_dense(in->device_learnt, TN_I64, 1, (int64_t[]){in->rows * tokens});
    /* Memory is asked for as if all tokens were marks. */
    int64_t marked = !in->shape->marks.count ? 0 : r->arena->measuring ? in->rows * tokens : in->marked;
    r->marks = tn_tensor_dense(in->device_marks, TN_I64, 1, &marked);
    r->mark_slot = tn_tensor_dense(in->device_mark_slot, TN_I32, 2, (int64_t[]){1, marked});
}

/* Which tokens are marks. */
static void put_marks(chunk_inputs *in, int64_t tokens)
{
    const marked_ids *m = &in->shape->marks;
    in->marked = 0;
    for (int64_t i = 0; i < in->rows * tokens; i++)
        if (in->ids[i] >= m->first && in->ids[i] - m->first < m->count) {
            in->marks[in->marked] = in->ids[i] - m->first;
            in->mark_slot[in->marked++] = (int32_t)i;
        }
    size_t count = (size_t)in->marked;
    in->device_marks = inbox_put(&in->box, in->marks, count * sizeof *in->marks);
    in->device_mark_slot = inbox_put(&in->box, in->mark_slot, count * sizeof *in->mark_slot);
}

void chunk_near(chunk_inputs *in, int64_t at, int64_t tokens, int64_t first)
{
    int64_t window = 0, most = INT32_MAX;
    for (int64_t i = 0; i < in->shape->layers && window == 0 && !in->shape->near_pictures; i++)
        window = in->shape->layer[i].window;
    if (first < INT32_MAX && window > 0)
        most = first + window - 1;
    in->has_near |= most < INT32_MAX;
    for (int64_t i = at; i < at + tokens; i++)
        in->near[i] = in->index[i] > most ? (int32_t)most : in->index[i];
}

/* The factors of a chunk's queries. */
static void put_scale(chunk_inputs *in, const chunk_part *parts, int64_t count)
{
    const q_scale_params *p = &in->shape->q_scale;
    int64_t i = 0;
    for (int64_t n = 0; n < count; n++)
        for (int64_t t = 0; t < in->rows * parts[n].tokens; t++, i++) {
            bool column = p->kind == Q_SCALE_COLUMN;
            int64_t at = column ? parts[n].columns + t % parts[n].tokens + 1 : (int64_t)in->positions[i][0];
            in->scale[i] = p->kind == Q_SCALE_REAL ? (float)(in->index[i] >= 0)
                                                   : 1 + (float)p->beta * logf(1 + floorf((float)at / (float)p->span));
        }
    in->device_scale = inbox_put(&in->box, in->scale, (size_t)i * sizeof(float));
}

/* The rows of a chunk's learnt positions, which session_check found to be there; what padding has is not read. */
static void put_learnt(chunk_inputs *in, int64_t tokens)
{
    const learnt_positions *p = &in->shape->learnt;
    int64_t count = in->rows * tokens;
    for (int64_t i = 0; i < count; i++)
        in->learnt[i] = (in->index[i] >= 0 ? (int64_t)in->positions[i][0] : 0) + p->offset;
    in->device_learnt = inbox_put(&in->box, in->learnt, (size_t)count * sizeof *in->learnt);
}

/* cos and sin of a chunk's positions for every kind of table, rounded to the tables' dtype. */
static void put_tables(chunk_inputs *in, const chunk_part *parts, int64_t count)
{
    float frequencies[ROPE_MAX_DIM / 2], cosine[ROPE_MAX_DIM], sine[ROPE_MAX_DIM];
    for (int32_t i = 0; i < in->shape->rope_count; i++) {
        const rope_params *rope = &in->shape->rope[i];
        tn_dtype dtype = table_dtype(in, i);
        size_t row = (size_t)rope->dim * tn_dtype_size(dtype), at = 0;
        char *host_sin = in->tables + table_bytes(in, i);
        for (int64_t n = 0, token = 0; n < count; n++) {
            rope_tables_frequencies(rope, parts[n].lengths[i], frequencies);
            for (int64_t t = 0; t < in->rows * parts[n].tokens; t++, token++, at += row) {
                rope_tables_row(rope, frequencies, in->positions[token], cosine, sine);
                convert_from_f32(cosine, dtype, in->tables + at, rope->dim);
                convert_from_f32(sine, dtype, host_sin + at, rope->dim);
            }
        }
        in->device_cos[i] = inbox_put(&in->box, in->tables, at);
        in->device_sin[i] = inbox_put(&in->box, host_sin, at);
    }
}

tn_status chunk_upload(chunk_inputs *in, const chunk_part *parts, int64_t part_count, tn_error *err)
{
    int64_t tokens = 0;
    for (int64_t i = 0; i < part_count; i++)
        tokens += parts[i].tokens;
    size_t count = (size_t)(in->rows * tokens);
    /* The tables come last: a device that knows what it was given may know the beginning alone. */
    in->device_ids = inbox_put(&in->box, in->ids, count * sizeof(int64_t));
    in->device_index = inbox_put(&in->box, in->index, count * sizeof(int32_t));
    if (in->has_near)
        in->device_near = inbox_put(&in->box, in->near, count * sizeof(int32_t));
    if (in->shape->q_scale.kind)
        put_scale(in, parts, part_count);
    if (in->shape->learnt.count)
        put_learnt(in, tokens);
    if (in->shape->marks.count)
        put_marks(in, tokens);
    put_tables(in, parts, part_count);
    return inbox_send(&in->box, err);
}

/* Until something is sent, for runs that only measure. */
static void show_box(chunk_inputs *in)
{
    in->device_ids = in->device_index = in->device_near = in->device_scale = in->device_learnt = in->device_marks =
        in->device_mark_slot = in->box.there;
    for (int32_t i = 0; i < in->shape->rope_count; i++)
        in->device_cos[i] = in->device_sin[i] = in->box.there;
}

static size_t box_bytes(const chunk_inputs *in)
{
    size_t count = (size_t)(in->rows * in->chunk);
    size_t bytes = inbox_piece(count * sizeof *in->ids) + 2 * inbox_piece(count * sizeof *in->index);
    bytes += inbox_piece(count * sizeof *in->scale) + 2 * inbox_piece(count * sizeof *in->learnt) +
             inbox_piece(count * sizeof *in->mark_slot);
    for (int32_t i = 0; i < in->shape->rope_count; i++)
        bytes += 2 * inbox_piece(table_bytes(in, i));
    return bytes;
}

tn_status chunk_init(chunk_inputs *in, const device *device, tn_dtype dtype, const model_shape *shape, int64_t rows,
                     int64_t chunk, size_t beside, tn_error *err)
{
    *in = (chunk_inputs){.device = device, .dtype = dtype, .shape = shape, .rows = rows, .chunk = chunk};
    size_t count = (size_t)(rows * chunk), tables = 1;
    for (int32_t i = 0; i < shape->rope_count; i++)
        tables = table_bytes(in, i) > tables ? table_bytes(in, i) : tables;
    in->ids = malloc(count * sizeof *in->ids);
    in->positions = malloc(count * sizeof *in->positions);
    in->index = malloc(count * sizeof *in->index);
    in->tables = malloc(2 * tables);
    in->scale = malloc(count * sizeof *in->scale);
    in->learnt = malloc(count * sizeof *in->learnt);
    in->near = malloc(count * sizeof *in->near);
    in->marks = malloc(count * sizeof *in->marks);
    in->mark_slot = malloc(count * sizeof *in->mark_slot);
    if (!in->ids || !in->positions || !in->index || !in->tables || !in->scale || !in->learnt || !in->near ||
        !in->marks || !in->mark_slot)
        return tn_fail(err, TN_E_MEMORY, "session", "out of memory; use fewer rows or a smaller chunk");
    tn_status status = inbox_init(&in->box, device, box_bytes(in) + beside, err);
    show_box(in);
    return status;
}

void chunk_close(chunk_inputs *in)
{
    if (!in->device)
        return;
    inbox_close(&in->box);
    free(in->ids);
    free(in->positions);
    free(in->index);
    free(in->tables);
    free(in->scale);
    free(in->learnt);
    free(in->near);
    free(in->marks);
    free(in->mark_slot);
    *in = (chunk_inputs){0};
}
