/* Quantised matrices on their way from files to sites: as codes with what belongs to them, or as values. */
#include "graph/codes.h"

#include "base/blocks.h"
#include "graph/placing.h"
#include "op/weight.h"

#include <stdlib.h>

bool codes_beside(const shards_parts *parts)
{
    return parts->scale.dtype || parts->zero.dtype || parts->group.dtype;
}

/* Remembers what belongs to codes, which are known by where they lie. */
static void remember(graph_builder *b, const void *data, const shards_parts *parts)
{
    if (!codes_beside(parts))
        return;
    if (b->quantised_count == b->quantised_capacity) {
        size_t capacity = b->quantised_capacity ? 2 * b->quantised_capacity : 256;
        build_quantised *more = realloc(b->quantised, capacity * sizeof *more);
        if (!more) {
            build_fail(b, TN_E_MEMORY, "graph", "out of memory while loading weights; free some memory");
            return;
        }
        b->quantised = more;
        b->quantised_capacity = capacity;
    }
    b->quantised[b->quantised_count++] = (build_quantised){data, *parts};
}

/* The latest come first: what is asked for was mostly read just before. */
shards_parts codes_parts(const graph_builder *b, const tn_tensor *t)
{
    for (size_t i = b->quantised_count; i > 0 && blocks_is_quantised(t->dtype); i--)
        if (b->quantised[i - 1].data == t->data)
            return b->quantised[i - 1].parts;
    return (shards_parts){0};
}

typedef struct value_job {
    weight w;
    char *to;
    tn_dtype dtype;
    int64_t first, columns;
} value_job;

static void value_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const value_job *job = ctx;
    (void)thread;
    for (int64_t row = begin; row < end; row++)
        weight_read(&job->w, row, job->first, job->columns, job->dtype,
                    job->to + (size_t)(row * job->columns) * tn_dtype_size(job->dtype));
}

static const tn_tensor *or_null(const tn_tensor *t)
{
    return t->dtype ? t : NULL;
}

static weight weight_with(const tn_tensor *t, const shards_parts *parts)
{
    return weight_make(t, or_null(&parts->scale), or_null(&parts->zero), or_null(&parts->group));
}

/* Copies the values of t's columns [first, first + columns) into the device's memory. */
static bool place_values(graph_builder *b, const char *name, tn_dtype dtype, const shards_parts *parts, int64_t first,
                         int64_t columns, tn_tensor *t)
{
    const int64_t shape[2] = {t->shape[0], columns};
    placing p;
    if (!placing_begin(b, name, (size_t)(shape[0] * columns) * tn_dtype_size(dtype), &p))
        return false;
    value_job job = {weight_with(t, parts), p.host, dtype, first, columns};
    tn_parallel_for(shape[0], 1 + (1 << 16) / (columns + 1), value_rows, &job);
    *t = tn_tensor_dense(p.memory, dtype, 2, shape);
    return placing_end(b, &p);
}

/* Codes stay where they lie, except where values are asked for. */
bool codes_place(graph_builder *b, const char *name, const build_form *form, tn_tensor *t)
{
    shards_parts parts = shards_parts_of(b->weights, name);
    if (form->turned)
        build_fail(b, TN_E_INPUT, name,
                   "is quantised (%s) and has its dimensions changed over; use the plain checkpoint",
                   tn_dtype_name(t->dtype));
    else if (b->dequantise || form->dtype)
        place_values(b, name, form->dtype ? form->dtype : b->dtype, &parts, 0, t->shape[1], t);
    else if (!b->device->ops->host_memory)
        build_fail(b, TN_E_INPUT, name, "is quantised (%s), which device '%s' cannot take; open it with --dequantise",
                   tn_dtype_name(t->dtype), b->device->ops->name);
    else
        remember(b, t->data, &parts);
    return b->status == TN_OK;
}

tn_tensor build_rows(graph_builder *b, const tn_tensor *of, int64_t first, int64_t count)
{
    tn_tensor t = *of;
    shards_parts parts = codes_parts(b, of);
    tn_tensor *scales[] = {&parts.scale, &parts.zero};
    t.data = (char *)of->data + tn_dtype_bytes(of->dtype, first * of->stride[0]);
    t.shape[0] = count;
    for (int i = 0; i < 2; i++)
        if (scales[i]->ndim == 2) {
            scales[i]->data = (char *)scales[i]->data + tn_dtype_bytes(scales[i]->dtype, first * scales[i]->stride[0]);
            scales[i]->shape[0] = count;
        }
    remember(b, t.data, &parts);
    return t;
}

void build_end(graph_builder *b)
{
    free(b->quantised);
    b->quantised = NULL;
    b->quantised_count = b->quantised_capacity = 0;
}

bool codes_are(const tn_tensor *t)
{
    return blocks_is_quantised(t->dtype) && t->ndim == 2;
}

/* In how many columns codes go together, with what belongs to them: 0: nowhere. */
int64_t codes_columns_unit(const tn_tensor *t, const shards_parts *parts)
{
    int64_t unit = tn_dtype_block_elements(t->dtype), group = weight_with(t, parts).group_columns;
    const tn_tensor *const beside[] = {&parts->scale, &parts->zero};
    for (int i = 0; i < 2; i++) {
        if (t->stride[0] != t->shape[1])
            return 0;
        bool by_group = beside[i]->dtype && beside[i]->ndim == 2 && beside[i]->shape[1] > 1;
        if (by_group && (beside[i]->stride[0] != beside[i]->shape[1] || tn_dtype_block_elements(beside[i]->dtype) > 1))
            return 0;
        if (by_group && !parts->group.dtype)
            while (unit % group) /* the blocks that groups end with                                   */
                unit += tn_dtype_block_elements(t->dtype);
    }
    return unit;
}

/* Columns of codes with what belongs to them, where they begin and end with blocks and groups; else their values. */
bool codes_columns(graph_builder *b, const char *full, const build_form *form, tn_tensor *t)
{
    shards_parts parts = shards_parts_of(b->weights, full);
    const struct build_range *own = &form->ranges->at[0];
    int64_t all = t->shape[1], unit = codes_columns_unit(t, &parts), group = weight_with(t, &parts).group_columns;
    if (form->dtype || b->dequantise || unit == 0 || own->first % unit ||
        (own->rows % unit && own->first + own->rows != all))
        return place_values(b, full, form->dtype ? form->dtype : b->dtype, &parts, own->first, own->rows, t);
    tn_tensor *const beside[] = {&parts.scale, &parts.zero};
    const build_ranges groups = {1, {{own->first / group, (own->rows + group - 1) / group}}};
    for (int i = 0; i < 2 && !parts.group.dtype; i++)
        if (beside[i]->dtype && beside[i]->shape[1] > 1 &&
            !placing_ranges(b, full, beside[i]->dtype, &groups, 1, beside[i]))
            return false;
    if (parts.group.dtype) {
        parts.group.data = (int32_t *)parts.group.data + own->first;
        parts.group.shape[0] = own->rows;
    }
    if (!placing_ranges(b, full, t->dtype, form->ranges, 1, t))
        return false;
    remember(b, t->data, &parts);
    return b->status == TN_OK;
}
