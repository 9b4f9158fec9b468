/* Runs of the device: measured and performed; the host's copies, and views. */
#include "operators.h"
#include "queue.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- runs ------------------------------------------------------------------------------------------------- */

size_t npu_measure(npu_body *body, const tn_call *call)
{
    npu_run r = {.call = call, .measuring = true};
    body(&r);
    return r.most;
}

tn_status npu_perform(npu_body *body, const tn_call *call, tn_error *err)
{
    npu_run r = {.call = call,
                 .queue = call->queue,
                 .api = call->queue->api,
                 .err = err,
                 .scratch = call->scratch,
                 .bytes = SIZE_MAX}; /* what was measured */
    body(&r);
    return r.status;
}

const void *npu_host_copy(npu_run *r, const tn_tensor *t, void **owned)
{
    size_t bytes = npu_reach(t);
    *owned = NULL;
    if (r->status != TN_OK)
        return NULL;
    const void *shadow = r->queue->shadow(r->queue, t->data, bytes);
    if (shadow)
        return shadow;
    *owned = malloc(bytes > 0 ? bytes : 1);
    r->status = *owned ? npu_download(r->queue, *owned, t->data, bytes, r->err)
                       : tn_fail(r->err, TN_E_MEMORY, "npu", "out of memory");
    return r->status == TN_OK ? *owned : NULL;
}

void npu_put(npu_run *r, void *device, const void *host, size_t bytes)
{
    if (!r->measuring && r->status == TN_OK)
        r->status = npu_upload(r->queue, device, host, bytes, r->err);
}

void npu_put_numbers(npu_run *r, tn_tensor *out)
{
    int64_t count = tn_tensor_count(out);
    float *numbers = r->measuring ? NULL : malloc((size_t)count * sizeof *numbers);
    for (int64_t i = 0; numbers && i < count; i++)
        numbers[i] = (float)i;
    void *kept = numbers ? npu_mask_of(r, numbers, (size_t)count * sizeof *numbers) : NULL;
    if (kept)
        out->data = kept;
    else if (numbers)
        npu_put(r, out->data, numbers, (size_t)count * sizeof *numbers);
    else if (!r->measuring)
        npu_no_memory(r);
    free(numbers);
}

void npu_no_memory(npu_run *r)
{
    if (r->status == TN_OK)
        r->status = tn_fail(r->err, TN_E_MEMORY, "npu", "out of memory on the host; free some memory");
}

/* ---- views ------------------------------------------------------------------------------------------------ */

tn_tensor npu_part(tn_tensor t, int64_t first, int64_t step, int64_t count)
{
    tn_tensor part = t;
    int32_t last = t.ndim - 1;
    part.shape[last] = count;
    part.stride[last] = step * t.stride[last];
    if (t.data)
        part.data = (char *)t.data + (size_t)(first * t.stride[last]) * tn_dtype_size(t.dtype);
    return part;
}

tn_tensor npu_member(const tn_tensor *t, int64_t index)
{
    tn_tensor from = npu_narrow(*t, 0, index, 1);
    return npu_view(from.data, t->dtype, t->ndim - 1, &t->shape[1], &t->stride[1]);
}

tn_tensor npu_tokens(const tn_tensor *t, int64_t row, int64_t rows, int64_t first, int64_t count)
{
    return npu_narrow(npu_narrow(*t, 0, row, rows), 1, first, count);
}

tn_tensor npu_as_rows(const tn_tensor *t, int64_t rows, int64_t width)
{
    return npu_view(t->data, t->dtype, width > 0 ? 2 : 1, (int64_t[]){rows, width}, NULL);
}

tn_tensor npu_folded(const tn_tensor *t)
{
    tn_tensor once = *t;
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->stride[i] == 0)
            once.shape[i] = once.stride[i] = 1;
    return once;
}

bool npu_rows(const tn_tensor *t, tn_tensor *rows)
{
    int64_t stride = -1, count = 1, width = t->ndim > 0 ? t->shape[t->ndim - 1] : 1;
    for (int32_t i = t->ndim - 2; i >= 0; i--) {
        if (t->shape[i] == 1)
            continue;
        if (stride >= 0 && t->stride[i] != stride * count)
            return false;
        stride = stride < 0 ? t->stride[i] : stride;
        count *= t->shape[i];
    }
    *rows = tn_tensor_dense(t->data, t->dtype, 2, (int64_t[]){count, width});
    if (stride >= 0)
        rows->stride[0] = stride;
    return true;
}

/* ---- what supports asks -------------------------------------------------------------------------------------------
 */

tn_status npu_needs(const char *operators, tn_error *err)
{
    char name[64];
    int length = 0;
    if (!ascend_load(err))
        return TN_DECLINED;
    for (const char *at = operators; at && sscanf(at, "%63s%n", name, &length) == 1; at += length)
        if (!ascend_has(name))
            return tn_fail(err, TN_DECLINED, "npu", "the installation of CANN has no %s for %s", name, npu_soc());
    return TN_OK;
}

const tn_tensor *npu_param(const tn_site *site, tn_role role)
{
    return site->param[role].count > 0 ? site->param[role].tensors : NULL;
}

tn_status npu_supports_param(const tn_site *site, tn_role role, tn_error *err)
{
    const tn_param *p = &site->param[role];
    for (int64_t i = 0; i < p->count; i++) {
        tn_dtype dtype = p->tensors[i].dtype;
        if (dtype != TN_F32 && dtype != TN_BF16 && dtype != TN_F16)
            return tn_fail(err, TN_DECLINED, "npu",
                           "weight: %s is not there yet, the npu device takes f32, bf16, f16; see --dequantise",
                           tn_dtype_name(dtype));
    }
    if (site->features & (TN_HAS_SCALES | TN_HAS_ZERO_POINTS))
        return tn_fail(err, TN_DECLINED, "npu", "quantised weights are not there yet; see --dequantise");
    return TN_OK;
}

tn_status npu_supports_weights(const tn_site *site, tn_error *err)
{
    tn_status status = npu_supports_param(site, TN_ROLE_WEIGHT, err);
    return status == TN_OK ? npu_supports_param(site, TN_ROLE_BIAS, err) : status;
}

/* ---- steps ------------------------------------------------------------------------------------------------ */

void npu_rms(npu_run *r, tn_tensor x, tn_tensor gamma, double eps, tn_tensor y)
{
    npu_rms_norm(r, x, gamma, eps, y, npu_take_column(r, x)); /* the operator wants to tell it             */
}

void npu_divide_by(npu_run *r, tn_tensor x, float number, tn_tensor y)
{
    tn_tensor divisor = npu_take(r, TN_F32, 1, &(int64_t){1});
    npu_fill(r, divisor, number);
    npu_divide(r, x, divisor, y);
}

void npu_round(npu_run *r, tn_tensor wide, tn_tensor narrow)
{
    if (narrow.dtype == TN_F32)
        return;
    npu_copy(r, wide, narrow);
    npu_copy(r, narrow, wide);
}

tn_tensor npu_in_type(npu_run *r, tn_dtype type, const tn_tensor *t)
{
    if (t->dtype == type)
        return *t;
    tn_tensor copy = npu_take_like(r, type, *t);
    npu_copy(r, *t, copy);
    return copy;
}
