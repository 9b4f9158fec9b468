/* Eager once more in f32, where its results are not finite: compare.c judges by it. It costs three calls and a copy of
 * the parameters, which is why nobody asks before a result differs from eager's in being finite. */
#include "check/range.h"

#include "base/convert.h"
#include "base/tensor.h"
#include "eager/eager.h"
#include "op/op.h"
#include "run/run.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 256 };

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

static float number_of(range_kind kind, float x)
{
    if (kind == RANGE_NANS)
        return isnan(x) ? x : 0;
    if (kind == RANGE_MAGNITUDES)
        return isfinite(x) ? fabsf(x) : 0;
    return x;
}

static void copy_row(range_kind kind, const tn_tensor *from, const char *row, tn_dtype dtype, char *to)
{
    int64_t width = from->shape[from->ndim - 1];
    size_t size = tn_dtype_size(from->dtype), wide = tn_dtype_size(dtype);
    float block[BLOCK];
    if (!tensor_is_float(from->dtype)) {
        memcpy(to, row, (size_t)width * size);
        return;
    }
    for (int64_t i = 0; i < width; i += BLOCK) {
        int64_t n = width - i < BLOCK ? width - i : BLOCK;
        convert_to_f32(row + (size_t)i * size, from->dtype, block, n);
        for (int64_t j = 0; j < n; j++)
            block[j] = number_of(kind, block[j]);
        convert_from_f32(block, dtype, to + (size_t)i * wide, n);
    }
}

/* What to holds from now on; to is dense. */
static void copy_as(range_kind kind, const tn_tensor *from, const tn_tensor *to)
{
    int64_t width = from->ndim > 0 ? from->shape[from->ndim - 1] : 0;
    int64_t rows = width > 0 && from->data ? tn_tensor_count(from) / width : 0;
    size_t bytes = (size_t)width * tn_dtype_size(to->dtype);
    for (int64_t row = 0; row < rows; row++)
        copy_row(kind, from, tensor_row(from, row), to->dtype, (char *)to->data + (size_t)row * bytes);
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

typedef struct placing {
    char *base; /* NULL: counts only                                                              */
    size_t used;
    bool wide; /* what is float is f32 there                                                     */
} placing;

/* Gives to its shape, and its place where from has one. */
static void place(placing *p, const tn_tensor *from, tn_tensor *to)
{
    if (from->dtype == TN_DTYPE_NONE)
        return;
    *to =
        tn_tensor_dense(NULL, p->wide && tensor_is_float(from->dtype) ? TN_F32 : from->dtype, from->ndim, from->shape);
    if (!from->data)
        return;
    to->data = p->base ? p->base + p->used : NULL;
    p->used += tensor_padded_bytes(to);
}

static void place_params(placing *p, const tn_param from[TN_ROLE_MAX], tn_param to[TN_ROLE_MAX], tn_tensor **next)
{
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        to[role] = (tn_param){*next, from[role].count};
        for (int64_t i = 0; i < from[role].count; i++)
            place(p, &from[role].tensors[i], (*next)++);
    }
}

static size_t count_params(const tn_param params[TN_ROLE_MAX])
{
    size_t count = 0;
    for (int role = 0; role < TN_ROLE_MAX; role++)
        count += (size_t)params[role].count;
    return count;
}

/* Gives every tensor its place behind base; NULL: counts only. Returns the bytes. */
static size_t place_all(range_look *r, const tn_call *call, bool wide, char *base)
{
    placing p = {.base = base, .wide = wide};
    tn_tensor *next = r->params;
    place_params(&p, call->site->param, r->site.param, &next);
    for (int i = 0; i < call->in_count; i++)
        place(&p, &call->in[i], &r->call.in[i]);
    for (int i = 0; i < call->out_count; i++)
        place(&p, &call->out[i], &r->call.out[i]);
    for (int i = 0; call->grads && i < TN_CALL_TENSORS; i++) {
        place(&p, &call->grads->out[i], &r->grads.out[i]);
        place(&p, &call->grads->in[i], &r->grads.in[i]);
    }
    if (call->grads)
        place_params(&p, call->grads->param, r->grads.param, &next);
    return p.used;
}

/* ---- the call --------------------------------------------------------------------------------------------------- */

static void fill(range_look *r, range_kind kind, const tn_call *from)
{
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < from->site->param[role].count; i++)
            copy_as(kind, &from->site->param[role].tensors[i], &r->site.param[role].tensors[i]);
    for (int i = 0; i < from->in_count; i++)
        copy_as(kind, &from->in[i], &r->call.in[i]);
    if (kind == RANGE_AT_KEYS)
        copy_as(kind, &from->in[3], &r->call.in[2]);
    for (int i = 0; from->grads && i < TN_CALL_TENSORS; i++)
        if (from->grads->out[i].data)
            copy_as(kind, &from->grads->out[i], &r->grads.out[i]);
}

/* Is one rounded result the input of the next? */
static bool rounds_on_the_way(tn_op op)
{
    return op_find(op)->composed || op == TN_OP_MOE_EXPERTS;
}

static bool has_nan(const tn_tensor *t)
{
    int64_t width = t->ndim > 0 ? t->shape[t->ndim - 1] : 0, rows = width > 0 ? tn_tensor_count(t) / width : 0;
    float value;
    for (int64_t i = 0; tensor_is_float(t->dtype) && i < rows * width; i++) {
        convert_to_f32(tensor_row(t, i / width) + i % width * (int64_t)tn_dtype_size(t->dtype), t->dtype, &value, 1);
        if (isnan(value))
            return true;
    }
    return false;
}

bool range_params_have_nan(const tn_site *site)
{
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < site->param[role].count; i++)
            if (has_nan(&site->param[role].tensors[i]))
                return true;
    return false;
}

tn_status range_look_open(range_look *r, range_kind kind, const tn_call *call, tn_error *err)
{
    bool wide = kind != RANGE_MAGNITUDES || !rounds_on_the_way(call->op);
    int32_t *weight = &r->site.meaning[TN_AXIS_WEIGHT];
    *r = (range_look){.site = *call->site, .call = *call, .grads = {.size = sizeof r->grads}};
    r->call.site = &r->site;
    r->call.grads = call->grads ? &r->grads : NULL;
    if (wide)
        r->site.meaning[TN_AXIS_DTYPE] = TN_F32;
    if (wide && (*weight == TN_BF16 || *weight == TN_F16))
        *weight = TN_F32;
    if (kind == RANGE_MAGNITUDES) {
        r->site.features &= ~TN_HAS_SPARSITY;
        r->site.num[TN_NUM_LIMIT] = r->site.num[TN_NUM_LIMIT] > 0 ? (double)FLT_MAX : 0;
    }
    r->params = calloc(count_params(call->site->param) + (call->grads ? count_params(call->grads->param) : 0) + 1,
                       sizeof *r->params);
    size_t bytes = r->params ? place_all(r, call, wide, NULL) : 0;
    r->memory = r->params ? aligned_alloc(64, bytes ? bytes : 64) : NULL;
    if (!r->memory)
        return tn_fail(err, TN_E_MEMORY, call->site->path, "out of memory for a closer look; free some memory");
    place_all(r, call, wide, r->memory);
    fill(r, kind, call);
    return run_alone(&cpu_device, NULL, NULL, &r->call, err);
}

void range_look_close(range_look *r)
{
    free(r->params);
    free(r->memory);
    *r = (range_look){0};
}
