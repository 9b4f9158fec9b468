/* Logits: made of a run's result in blocks, fetched, and looked at. */
#include "generate/head.h"

#include "base/convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tn_status head_init(head *h, const tn_model *model, const model_shape *shape, int64_t rows, tn_error *err)
{
    *h = (head){.model = model, .shape = shape};
    if (model->target.device->ops->host_memory)
        return TN_OK;
    size_t row = (size_t)(shape->vocab > shape->hidden ? shape->vocab : shape->hidden);
    h->staging_bytes = (size_t)(rows > HEAD_ROWS ? rows : HEAD_ROWS) * row * tn_dtype_size(model->dtype);
    h->staging = malloc(h->staging_bytes);
    return h->staging ? TN_OK : tn_fail(err, TN_E_MEMORY, "session", "out of memory; use fewer rows");
}

void head_close(head *h)
{
    free(h->staging);
    *h = (head){0};
}

/* In the pieces that staging holds. */
tn_status head_fetch(const head *h, const void *from, float *to, int64_t n, tn_error *err)
{
    const device *device = h->model->target.device;
    tn_dtype dtype = h->model->dtype;
    size_t element = tn_dtype_size(dtype);
    if (!h->staging) {
        tn_status ready = device_sync(device, err);
        if (ready == TN_OK)
            convert_to_f32(from, dtype, to, n);
        return ready;
    }
    int64_t piece = (int64_t)(h->staging_bytes / element);
    tn_status status = TN_OK;
    for (int64_t i = 0; i < n && status == TN_OK; i += piece) {
        int64_t count = n - i < piece ? n - i : piece;
        status =
            device_download(device, h->staging, (const char *)from + (size_t)i * element, (size_t)count * element, err);
        if (status == TN_OK)
            convert_to_f32(h->staging, dtype, to + i, count);
    }
    return status;
}

void head_move(const head *h, graph_run *r, int64_t from, int64_t to)
{
    const device *device = h->model->target.device;
    size_t size = (size_t)h->shape->hidden * tn_dtype_size(r->result.dtype);
    if (r->status != TN_OK || r->arena->measuring || from == to)
        return;
    char *rows = r->result.data;
    if (!h->staging) {
        r->status = device_sync(device, r->err);
        if (r->status == TN_OK)
            memcpy(rows + (size_t)to * size, rows + (size_t)from * size, size);
        return;
    }
    r->status = device_download(device, h->staging, rows + (size_t)from * size, size, r->err);
    if (r->status == TN_OK)
        r->status = device_upload(device, rows + (size_t)to * size, h->staging, size, r->err);
}

void head_block(const head *h, graph_run *r, int64_t row, int64_t count, float *out)
{
    size_t mark = arena_mark(r->arena);
    tn_tensor x = steps_view(&r->result, 2, (int64_t[]){count, h->shape->hidden});
    if (x.data)
        x.data = (char *)x.data + (size_t)(row * h->shape->hidden) * tn_dtype_size(x.dtype);
    tn_tensor y = h->model->flow->logits(r, h->model->arch_state, &x);
    if (r->status == TN_OK && !r->arena->measuring)
        r->status = head_fetch(h, y.data, out, count * h->shape->vocab, r->err);
    arena_release(r->arena, mark);
}

void head_check(const head *h, graph_run *r, const float *logits, int64_t row, int64_t token)
{
    if (r->status != TN_OK || !convert_has_broken_logit(logits, h->shape->vocab))
        return;
    char where[80] = "the output head gives";
    int64_t layers = h->shape->layers;
    if (r->broken == 1)
        snprintf(where, sizeof where, "the embeddings give");
    else if (r->broken > 1)
        snprintf(where, sizeof where, "layer %lld%s", (long long)(r->broken - 1 < layers ? r->broken - 2 : layers - 1),
                 r->broken - 1 >= layers ? " or the norm behind it gives" : " gives");
    r->status = tn_fail(r->err, TN_E_VERIFY, "logits",
                        "NaN or infinity for token %lld of row %lld; the first stand in what %s; is the "
                        "checkpoint whole? Try --kernels=none, and --dtype f32",
                        (long long)token, (long long)row, where);
}
