/* Rotary tables and factors of queries. */
#include "generate/tables.h"

#include "base/convert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static tn_dtype dtype_of(const position_tables *t, int32_t rope)
{
    return t->shape->rope[rope].f32_tables ? TN_F32 : t->dtype;
}

static size_t bytes_of(const position_tables *t, int32_t rope)
{
    return (size_t)(t->most * t->shape->rope[rope].dim) * tn_dtype_size(dtype_of(t, rope));
}

tn_status tables_init(position_tables *t, const device *device, const model_shape *shape, tn_dtype dtype, int64_t most,
                      tn_error *err)
{
    *t = (position_tables){.device = device, .shape = shape, .dtype = dtype, .most = most};
    size_t largest = 1, scales = (size_t)most * sizeof *t->host_scale;
    for (int32_t i = 0; i < shape->rope_count; i++)
        largest = bytes_of(t, i) > largest ? bytes_of(t, i) : largest;
    t->host = malloc(2 * largest);
    t->host_scale = malloc(scales);
    if (!t->host || !t->host_scale)
        return tn_fail(err, TN_E_MEMORY, "session", "out of memory; use fewer rows or a smaller chunk");
    tn_status status = shape->q_scale.kind ? device_alloc(device, scales, &t->scale, err) : TN_OK;
    for (int32_t i = 0; i < shape->rope_count && status == TN_OK; i++) {
        status = device_alloc(device, bytes_of(t, i), &t->cos[i], err);
        if (status == TN_OK)
            status = device_alloc(device, bytes_of(t, i), &t->sin[i], err);
    }
    return status;
}

void tables_close(position_tables *t)
{
    if (!t->device)
        return;
    device_free(t->device, t->scale, (size_t)t->most * sizeof *t->host_scale);
    for (int32_t i = 0; i < t->shape->rope_count; i++) {
        device_free(t->device, t->cos[i], bytes_of(t, i));
        device_free(t->device, t->sin[i], bytes_of(t, i));
    }
    free(t->host);
    free(t->host_scale);
    *t = (position_tables){0};
}

void tables_follow(position_tables *t, int64_t length)
{
    for (int32_t i = 0; i < t->shape->rope_count; i++)
        t->length[i] = rope_tables_length(&t->shape->rope[i], t->length[i], length);
}

void tables_reset(position_tables *t)
{
    memset(t->length, 0, sizeof t->length);
}

/* cos and sin for one kind of table, rounded to its dtype. */
static tn_status upload_rope(position_tables *t, int32_t which, int64_t count, float (*positions)[ROPE_AXES],
                             tn_error *err)
{
    float frequencies[ROPE_MAX_DIM / 2], cosine[ROPE_MAX_DIM], sine[ROPE_MAX_DIM];
    const rope_params *rope = &t->shape->rope[which];
    tn_dtype dtype = dtype_of(t, which);
    size_t row = (size_t)rope->dim * tn_dtype_size(dtype), bytes = (size_t)count * row;
    char *host_sin = t->host + bytes_of(t, which);
    rope_tables_frequencies(rope, t->length[which], frequencies);
    for (int64_t i = 0; i < count; i++) {
        rope_tables_row(rope, frequencies, positions[i], cosine, sine);
        convert_from_f32(cosine, dtype, t->host + (size_t)i * row, rope->dim);
        convert_from_f32(sine, dtype, host_sin + (size_t)i * row, rope->dim);
    }
    tn_status status = device_upload(t->device, t->cos[which], t->host, bytes, err);
    return status == TN_OK ? device_upload(t->device, t->sin[which], host_sin, bytes, err) : status;
}

static tn_status upload_scale(position_tables *t, int64_t rows, int64_t tokens, float (*positions)[ROPE_AXES],
                              int64_t column, tn_error *err)
{
    const q_scale_params *p = &t->shape->q_scale;
    int64_t count = rows * tokens;
    for (int64_t i = 0; i < count; i++) {
        float at = p->kind == Q_SCALE_COLUMN ? (float)(column + i % tokens + 1) : positions[i][0];
        t->host_scale[i] = 1 + (float)p->beta * logf(1 + floorf(at / (float)p->span));
    }
    return device_upload(t->device, t->scale, t->host_scale, (size_t)count * sizeof(float), err);
}

tn_status tables_upload(position_tables *t, int64_t rows, int64_t tokens, float (*positions)[ROPE_AXES], int64_t column,
                        tn_error *err)
{
    tn_status status = TN_OK;
    for (int32_t i = 0; i < t->shape->rope_count && status == TN_OK; i++)
        status = upload_rope(t, i, rows * tokens, positions, err);
    if (status == TN_OK && t->shape->q_scale.kind)
        status = upload_scale(t, rows, tokens, positions, column, err);
    return status;
}

void tables_set(const position_tables *t, graph_run *r)
{
    for (int32_t i = 0; i < t->shape->rope_count; i++) {
        int64_t shape[3] = {r->rows, r->tokens, t->shape->rope[i].dim};
        r->cos[i] = tn_tensor_dense(t->cos[i], dtype_of(t, i), 3, shape);
        r->sin[i] = tn_tensor_dense(t->sin[i], dtype_of(t, i), 3, shape);
    }
    if (t->shape->q_scale.kind)
        r->q_scale = tn_tensor_dense(t->scale, TN_F32, 1, (int64_t[]){r->rows * r->tokens});
}
