/* An adapter's tensors on their way from a file, or from nothing, to where the model computes. */
#include "open/peft.h"

#include "base/convert.h"
#include "base/tensor.h"
#include "graph/placing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for one more; the list as it was where there is none. */
static void *grown(attaching *t, void *list, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity)
        return list;
    size_t more = *capacity ? 2 * *capacity : 64;
    void *larger = realloc(list, more * size);
    if (!larger) {
        build_fail(t->b, TN_E_MEMORY, "adapter", "out of memory");
        return list;
    }
    *capacity = more;
    return larger;
}

bool peft_new_tensor(attaching *t, int64_t rows, int64_t columns, tn_tensor *out)
{
    peft_adapter *a = t->a;
    placing p;
    a->tensors = grown(t, a->tensors, a->count, &a->capacity, sizeof *a->tensors);
    size_t bytes = (size_t)(rows * columns) * sizeof(float);
    if (t->b->status != TN_OK || !placing_begin(t->b, "adapter", bytes, &p))
        return false;
    memset(p.host, 0, bytes);
    a->tensors[a->count++] = *out = tn_tensor_dense(p.memory, TN_F32, 2, (int64_t[]){rows, columns});
    return placing_end(t->b, &p);
}

/* A row as peft begins with it: evenly drawn between -bound and bound, rounded as the model's weights are. */
static void draw(attaching *t, float *row, int64_t n)
{
    double bound = 1 / sqrt((double)n);
    for (int64_t i = 0; i < n; i++) {
        float value = (float)(bound * (2 * random_uniform(&t->random) - 1));
        uint32_t bits = 0;
        convert_from_f32(&value, t->b->dtype, &bits, 1);
        convert_to_f32(&bits, t->b->dtype, &row[i], 1);
    }
}

static void read_row(const tn_tensor *from, int64_t i, float *row)
{
    const char *at = (const char *)from->data + (size_t)(i * from->stride[0]) * tn_dtype_size(from->dtype);
    for (int64_t k = 0; from->dtype == TN_F64 && k < from->shape[1]; k++) {
        double value;
        memcpy(&value, at + (size_t)k * sizeof value, sizeof value);
        row[k] = (float)value;
    }
    if (from->dtype != TN_F64)
        convert_to_f32(at, from->dtype, row, from->shape[1]);
}

/* Memory of the device is written row by row. */
static bool put_row(attaching *t, const tn_tensor *to, int64_t i, const float *row)
{
    float *at = (float *)to->data + i * to->stride[0];
    if (t->b->device->ops->host_memory)
        for (int64_t k = 0; k < to->shape[1]; k++)
            at[k * to->stride[1]] = row[k];
    else
        t->b->status = device_upload(t->b->device, at, row, (size_t)to->shape[1] * sizeof *row, t->b->err);
    return t->b->status == TN_OK;
}

static bool add_view(attaching *t, const char *name, const tn_tensor *to)
{
    peft_adapter *a = t->a;
    a->views = grown(t, a->views, a->view_count, &a->view_capacity, sizeof *a->views);
    char *own = t->b->status == TN_OK ? strdup(name) : NULL;
    if (!own) {
        build_fail(t->b, TN_E_MEMORY, name, "out of memory");
        return false;
    }
    a->views[a->view_count++] = (peft_view){own, *to};
    return true;
}

bool peft_fill(attaching *t, const char *name, peft_factor which, const tn_tensor *to)
{
    tn_tensor from;
    float *row = malloc((size_t)to->shape[1] * sizeof *row);
    if (!row) {
        build_fail(t->b, TN_E_MEMORY, name, "out of memory");
        return false;
    }
    bool fine = add_view(t, name, to);
    if (!t->fresh && fine) {
        shards_get(t->file, name, &from);
        shards_take(t->file, name, to->data, TN_F32);
    }
    for (int64_t i = 0; i < to->shape[0] && fine && !(t->fresh && which == PEFT_B); i++) {
        if (t->fresh)
            draw(t, row, to->shape[1]);
        else
            read_row(&from, i, row);
        fine = put_row(t, to, i, row);
    }
    free(row);
    return fine;
}

bool peft_has(attaching *t, const graph_module *m, const char *what, int64_t rows, int64_t columns, char *name,
              int64_t shape[2])
{
    tn_tensor tensor;
    if (!build_find(&t->of, m, what, name, PEFT_NAME, &tensor) || t->b->status != TN_OK)
        return false;
    bool fits =
        tensor.ndim == 2 && (rows < 0 || tensor.shape[0] == rows) && (columns < 0 || tensor.shape[1] == columns);
    char has[96], wants[2][32];
    tensor_shape_text(tensor.ndim, tensor.shape, has, sizeof has);
    snprintf(wants[0], sizeof wants[0], rows < 0 ? "any" : "%lld", (long long)rows);
    snprintf(wants[1], sizeof wants[1], columns < 0 ? "any" : "%lld", (long long)columns);
    if (!fits)
        build_fail(t->b, TN_E_INPUT, name, "has shape %s, the model takes [%s,%s] there", has, wants[0], wants[1]);
    else if (!tensor_is_float(tensor.dtype) && tensor.dtype != TN_F64)
        build_fail(t->b, TN_E_INPUT, name, "has dtype %s, expected f32, bf16 or f16", tn_dtype_name(tensor.dtype));
    memcpy(shape, tensor.shape, 2 * sizeof *shape);
    return t->b->status == TN_OK;
}

bool peft_agrees(attaching *t, const char *path, const char *name, int64_t rank, peft_scale *scale)
{
    const peft_config *config = &t->a->config;
    *scale = peft_scale_of(config, path, &t->b->status, t->b->err);
    if (t->b->status == TN_OK && rank != scale->rank)
        build_fail(t->b, TN_E_INPUT, name, "is of rank %lld, adapter_config.json says %lld", (long long)rank,
                   (long long)scale->rank);
    return t->b->status == TN_OK;
}

void peft_tell_outer(graph_site *site)
{
    for (graph_site *outer = site->outer; outer; outer = outer->outer)
        outer->site.features |= TN_HAS_ADAPTER;
}
