/* What the methods of quantisation share: tensors found by name and checked, scales brought into one form. */
#include "checkpoint/quantised.h"

#include "base/blocks.h"
#include "base/convert.h"
#include "base/mapped.h"
#include "base/tensor.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* ---- names --------------------------------------------------------------------------------------- */

static bool join(char out[QUANTISED_NAME], const char *stem, const char *leaf)
{
    int n = snprintf(out, QUANTISED_NAME, "%s%s", stem, leaf);
    return n > 0 && n < QUANTISED_NAME;
}

bool quantised_find(const quantised *q, const char *stem, const char *leaf, quantised_part *part)
{
    if (!join(part->name, stem, leaf) || !shards_get(q->set, part->name, &part->tensor))
        return false;
    part->file = shards_file_of(q->set, part->name);
    return true;
}

tn_status quantised_need(const quantised *q, const char *stem, const char *leaf, const quantised_part *beside,
                         quantised_part *part)
{
    if (quantised_find(q, stem, leaf, part))
        return TN_OK;
    return tn_fail(q->err, TN_E_INPUT, beside->file,
                   "tensor '%s%s' is not there, which '%s' needs; fetch the files again", stem, leaf, beside->name);
}

tn_status quantised_fail(const quantised *q, const quantised_part *part, const char *format, ...)
{
    char text[sizeof((tn_error *)0)->message];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return tn_fail(q->err, TN_E_INPUT, part->file, "tensor '%s': %s", part->name, text);
}

static bool is_wanted(const tn_tensor *t, tn_dtype dtype, int32_t ndim, const int64_t *shape)
{
    bool same = t->ndim == ndim && (dtype == TN_DTYPE_NONE || t->dtype == dtype);
    for (int32_t i = 0; same && i < ndim; i++)
        same = shape[i] < 0 ? t->shape[i] > 0 : t->shape[i] == shape[i];
    return same;
}

tn_status quantised_want(const quantised *q, const quantised_part *part, tn_dtype dtype, int32_t ndim,
                         const int64_t *shape)
{
    char got[128], wanted[128];
    if (is_wanted(&part->tensor, dtype, ndim, shape))
        return TN_OK;
    tensor_shape_text(part->tensor.ndim, part->tensor.shape, got, sizeof got);
    tensor_shape_text(ndim, shape, wanted, sizeof wanted);
    return quantised_fail(q, part, "has dtype %s and shape %s, expected %s%s%s (-1: any); fetch the files again",
                          tn_dtype_name(part->tensor.dtype), got, dtype ? tn_dtype_name(dtype) : "", dtype ? " " : "",
                          wanted);
}

void *quantised_keep(const quantised *q, const quantised_part *part, size_t bytes)
{
    void *memory = shards_keep(q->set, bytes);
    if (!memory)
        tn_fail(q->err, TN_E_MEMORY, part->file, "out of memory for tensor '%s' of %zu bytes; free some memory",
                part->name, bytes);
    return memory;
}

tn_status quantised_align(const quantised *q, const quantised_part *part, tn_tensor *t)
{
    if (shards_aligned(t))
        return TN_OK;
    size_t bytes = tn_dtype_bytes(t->dtype, tn_tensor_count(t));
    void *copy = quantised_keep(q, part, bytes);
    if (!copy)
        return TN_E_MEMORY;
    memcpy(copy, t->data, bytes);
    t->data = copy;
    return TN_OK;
}

tn_status quantised_add(const quantised *q, const char *stem, const char *leaf, const quantised_part *from,
                        const tn_tensor *codes, const shards_parts *parts)
{
    char name[QUANTISED_NAME];
    if (!join(name, stem, leaf))
        return quantised_fail(q, from, "its name is too long");
    shards_hide(q->set, from->name);
    return shards_add(q->set, name, from->file, codes, parts, q->err);
}

void quantised_drop(const quantised *q, const quantised_part *part, bool spent)
{
    shards_hide(q->set, part->name);
    if (spent)
        mapped_forget(part->tensor.data, tn_dtype_bytes(part->tensor.dtype, tn_tensor_count(&part->tensor)));
}

tn_status quantised_ignore(quantised *q, const char *stem, quantised_part *part)
{
    (void)stem;
    quantised_drop(q, part, false);
    return TN_OK;
}

/* ---- scales that are numbers --------------------------------------------------------------------- */

typedef struct finite_job {
    const char *data;
    tn_dtype dtype;
    atomic_bool bad;
} finite_job;

/* All but the sign of E4M3's NaN, and E8M0's: they have no infinity. */
static bool has_byte(const uint8_t *bytes, int64_t n, uint8_t mask, uint8_t nan)
{
    unsigned found = 0;
    for (int64_t i = 0; i < n; i++)
        found |= (bytes[i] & mask) == nan;
    return found;
}

static void look(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    finite_job *job = ctx;
    const char *at = job->data + (size_t)begin * tn_dtype_size(job->dtype);
    bool bad = job->dtype == TN_F8_E4M3   ? has_byte((const uint8_t *)at, end - begin, 0x7f, 0x7f)
               : job->dtype == TN_F8_E8M0 ? has_byte((const uint8_t *)at, end - begin, 0xff, 0xff)
                                          : convert_has_unfinite(at, job->dtype, end - begin);
    (void)thread;
    if (bad)
        atomic_store(&job->bad, true);
}

tn_status quantised_check_scales(const quantised *q, quantised_part *part)
{
    tn_tensor *t = &part->tensor;
    if (t->dtype == TN_U8)
        t->dtype = TN_F8_E8M0;
    if (!tensor_is_float(t->dtype) && t->dtype != TN_F8_E4M3 && t->dtype != TN_F8_E8M0)
        return quantised_fail(q, part, "has dtype %s; scales are f32, bf16, f16, f8_e4m3 or f8_e8m0",
                              tn_dtype_name(t->dtype));
    if (tn_tensor_count(t) == 0)
        return quantised_fail(q, part, "is empty; fetch the files again");
    finite_job job = {.data = t->data, .dtype = t->dtype};
    q->loop(tn_tensor_count(t), 1 << 18, look, &job);
    return atomic_load(&job.bad) ? quantised_fail(q, part, "holds a NaN or an infinity; fetch the files again") : TN_OK;
}

/* ---- groups of columns --------------------------------------------------------------------------- */

static int64_t parts_of(int64_t whole, int64_t each)
{
    return whole / each + (whole % each != 0);
}

/* The least 2^n of which count cover all; 0: there is none. */
static int64_t power_of(int64_t whole, int64_t count)
{
    if (count == 1)
        return whole;
    for (int64_t each = 1; each < whole; each *= 2)
        if (parts_of(whole, each) == count)
            return each;
    return 0;
}

int64_t quantised_columns(int64_t columns, int64_t count, int64_t asked)
{
    if (asked > 0 && parts_of(columns, asked) == count)
        return asked;
    int64_t power = power_of(columns, count);
    return power ? power : columns % count == 0 ? columns / count : 0;
}

tn_status quantised_group_list(const quantised *q, const quantised_part *part, int64_t columns, int64_t count,
                               int64_t each, tn_tensor *group)
{
    if (count == 1 || power_of(columns, count) == each)
        return TN_OK;
    int32_t *list = count <= INT32_MAX ? quantised_keep(q, part, (size_t)columns * sizeof *list) : NULL;
    if (!list)
        return TN_E_MEMORY;
    for (int64_t i = 0; i < columns; i++)
        list[i] = (int32_t)(i / each);
    *group = tn_tensor_dense(list, TN_I32, 1, &columns);
    return TN_OK;
}

/* ---- scales of a matrix -------------------------------------------------------------------------- */

typedef struct grid_job {
    const tn_tensor *grid; /* [grid rows, groups]                                                       */
    float *to;             /* [rows, groups]                                                            */
    int64_t each;          /* rows of a block                                                           */
} grid_job;

static void spread_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const grid_job *job = ctx;
    int64_t groups = job->grid->shape[1];
    (void)thread;
    for (int64_t row = begin; row < end; row++)
        blocks_to_f32(job->grid->dtype, job->grid->data, row / job->each * groups, groups, job->to + row * groups);
}

/* [rows,groups] in f32 of a grid whose blocks have that many rows. */
static tn_status spread(const quantised *q, const quantised_part *part, tn_tensor *scale, int64_t rows, int64_t each)
{
    const int64_t shape[2] = {rows, scale->shape[1]};
    grid_job job = {.grid = scale, .each = each};
    job.to = quantised_keep(q, part, (size_t)(shape[0] * shape[1]) * sizeof *job.to);
    if (!job.to)
        return TN_E_MEMORY;
    q->loop(rows, 256, spread_rows, &job);
    *scale = tn_tensor_dense(job.to, TN_F32, 2, shape);
    return TN_OK;
}

/* Rows of a block; 0: the scale fits no blocks. Where config says nothing, a scale for each row is that. */
static int64_t block_rows(const quantised *q, int64_t rows, int64_t count)
{
    if (q->block[0])
        return parts_of(rows, q->block[0]) == count ? q->block[0] : 0;
    return count == rows ? 1 : power_of(rows, count);
}

static tn_status misfit(const quantised *q, const quantised_part *scale, int64_t rows, int64_t columns)
{
    char got[128], blocks[64] = "";
    tensor_shape_text(scale->tensor.ndim, scale->tensor.shape, got, sizeof got);
    if (q->block[0])
        snprintf(blocks, sizeof blocks, " in blocks of [%lld,%lld]", (long long)q->block[0], (long long)q->block[1]);
    return quantised_fail(q, scale, "its shape %s does not fit a weight of [%lld,%lld]%s", got, (long long)rows,
                          (long long)columns, blocks);
}

tn_status quantised_scales(const quantised *q, quantised_part *scale, int64_t rows, int64_t columns,
                           shards_parts *parts)
{
    tn_tensor *out = &parts->scale;
    tn_status status = quantised_check_scales(q, scale);
    *out = scale->tensor;
    if (status != TN_OK || (status = quantised_align(q, scale, out)) != TN_OK)
        return status;
    if (tn_tensor_count(out) == 1 && (out->ndim < 2 || !q->block[0])) {
        *out = (tn_tensor){
            .data = out->data, .dtype = out->dtype, .ndim = 2, .shape = {rows, 1}, .stride = {rows > 1 ? 0 : 1, 1}};
        return TN_OK;
    }
    if (out->ndim == 1)
        *out = tn_tensor_dense(out->data, out->dtype, 2, (int64_t[]){out->shape[0], 1});
    if (out->ndim != 2)
        return misfit(q, scale, rows, columns);
    int64_t groups = out->shape[1], each = block_rows(q, rows, out->shape[0]);
    int64_t wide = quantised_columns(columns, groups, q->block[1]);
    if (!each || !wide || (q->block[1] && wide != q->block[1]))
        return misfit(q, scale, rows, columns);
    if (each > 1 && (status = spread(q, scale, out, rows, each)) != TN_OK)
        return status;
    return quantised_group_list(q, scale, columns, groups, wide, &parts->group);
}

tn_status quantised_turned_scales(const quantised *q, quantised_part *scale, tn_tensor *turned)
{
    tn_status status = quantised_check_scales(q, scale);
    if (status != TN_OK)
        return status;
    const tn_tensor *t = &scale->tensor;
    size_t size = tn_dtype_size(t->dtype);
    const int64_t shape[2] = {t->shape[1], t->shape[0]};
    char *to = quantised_keep(q, scale, (size_t)tn_tensor_count(t) * size);
    if (!to)
        return TN_E_MEMORY;
    for (int64_t row = 0; row < shape[0]; row++)
        for (int64_t i = 0; i < shape[1]; i++, to += size)
            memcpy(to, (const char *)t->data + (size_t)(i * shape[0] + row) * size, size);
    *turned = tn_tensor_dense(to - (size_t)tn_tensor_count(t) * size, t->dtype, 2, shape);
    return TN_OK;
}
