/* Writing a .safetensors file. */
#include "checkpoint/safetensors.h"

#include "base/json_memory.h"
#include "base/output.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 24 }; /* bytes that are written at a time                                               */
#define DATA_ALIGN 8      /* the header is padded so that the data start at a multiple, as the reference library does */

static tn_status check_tensor(const char *path, const tn_named_tensor *named, tn_error *err)
{
    const tn_tensor *t = &named->tensor;
    if (!named->name || !strcmp(named->name, "__metadata__"))
        return tn_fail(err, TN_E_USAGE, path, "a tensor to write has no name or a reserved one");
    if (!safetensors_dtype_name(t->dtype) || t->ndim < 0 || t->ndim > TN_MAX_DIMS)
        return tn_fail(err, TN_E_USAGE, path, "tensor '%s' has no dtype or shape that can be written", named->name);
    int64_t bytes = (int64_t)tn_dtype_size(t->dtype);
    for (int32_t i = 0; i < t->ndim; i++)
        if (t->shape[i] < 0 || __builtin_mul_overflow(bytes, t->shape[i], &bytes))
            return tn_fail(err, TN_E_USAGE, path, "tensor '%s': its shape cannot be written", named->name);
    int64_t stride = 1;
    for (int32_t i = t->ndim - 1; i >= 0 && bytes; i--) {
        if (t->shape[i] != 1 && t->stride[i] != stride)
            return tn_fail(err, TN_E_USAGE, path, "tensor '%s' is not dense; copy it first", named->name);
        stride *= t->shape[i];
    }
    if (bytes && !t->data)
        return tn_fail(err, TN_E_USAGE, path, "tensor '%s' has no data", named->name);
    return TN_OK;
}

static int64_t byte_count(const tn_tensor *t)
{
    return tn_tensor_count(t) * (int64_t)tn_dtype_size(t->dtype);
}

/* Large elements first, then by name: so every tensor is aligned to its type without gaps. */
static int compare_size_name(const void *a, const void *b)
{
    const tn_named_tensor *x = *(const tn_named_tensor *const *)a, *y = *(const tn_named_tensor *const *)b;
    size_t nx = tn_dtype_size(x->tensor.dtype), ny = tn_dtype_size(y->tensor.dtype);
    if (nx != ny)
        return nx > ny ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* {"dtype": .., "shape": [..], "data_offsets": [..]} or NULL when out of memory. */
static json_t *describe(const tn_tensor *t, int64_t begin)
{
    json_t *shape = json_array(), *value = json_object();
    int failed = 0;
    for (int32_t i = 0; i < t->ndim; i++)
        failed |= json_array_append_new(shape, json_integer(t->shape[i]));
    failed |= json_object_set_new(value, "dtype", json_string(safetensors_dtype_name(t->dtype)));
    failed |= json_object_set_new(value, "shape", shape);
    failed |= json_object_set_new(value, "data_offsets",
                                  json_pack("[I, I]", (json_int_t)begin, begin + (json_int_t)byte_count(t)));
    if (!failed)
        return value;
    json_decref(value);
    return NULL;
}

/* The header with its length in front and padding behind. Owned: free(). */
static char *make_header(const char *path, const tn_named_tensor **order, size_t count, size_t *size, tn_error *err)
{
    json_memory_watch();
    json_t *header = json_object();
    int64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (json_object_get(header, order[i]->name)) {
            tn_fail(err, TN_E_USAGE, path, "tensor '%s' is given twice", order[i]->name);
            json_decref(header);
            return NULL;
        }
        if (json_object_set_new(header, order[i]->name, describe(&order[i]->tensor, at)) != 0) {
            if (json_memory_failed())
                tn_fail(err, TN_E_MEMORY, path, "out of memory for the header");
            else
                tn_fail(err, TN_E_USAGE, path, "tensor '%s': the name is not UTF-8", order[i]->name);
            json_decref(header);
            return NULL;
        }
        at += byte_count(&order[i]->tensor);
    }
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    if (json_memory_failed()) { /* a text that was cut short is among what comes of it                    */
        free(text);
        text = NULL;
    }
    size_t length = text ? strlen(text) : 0, padded = (length + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
    char *block = text ? malloc(8 + padded) : NULL;
    if (block) {
        for (int i = 0; i < 8; i++)
            block[i] = (char)(padded >> (8 * i));
        memcpy(block + 8, text, length); // NOLINT(bugprone-not-null-terminated-result): bytes of a file
        memset(block + 8 + length, ' ', padded - length);
        *size = 8 + padded;
    } else {
        tn_fail(err, TN_E_MEMORY, path, "out of memory for the header");
    }
    free(text);
    return block;
}

typedef struct writer {
    output out;
    int (*progress)(void *ctx, int64_t done, int64_t total);
    void *ctx;
    int64_t done, total;
} writer;

static tn_status write_data(writer *w, const tn_tensor *t, tn_error *err)
{
    tn_status status = TN_OK;
    for (int64_t at = 0, bytes = byte_count(t), n; at < bytes && status == TN_OK; at += n, w->done += n) {
        n = bytes - at < PIECE ? bytes - at : PIECE;
        status = output_write(&w->out, (const char *)t->data + at, (size_t)n, err);
        if (status == TN_OK && w->progress && w->progress(w->ctx, w->done + n, w->total))
            status = tn_fail(err, TN_E_CANCELLED, w->out.path, "cancelled");
    }
    return status;
}

tn_status tn_safetensors_write(const char *path, const tn_named_tensor *tensors, size_t count, tn_error *err)
{
    return safetensors_write(path, tensors, count, NULL, NULL, err);
}

tn_status safetensors_write(const char *path, const tn_named_tensor *tensors, size_t count,
                            int (*progress)(void *ctx, int64_t done, int64_t total), void *ctx, tn_error *err)
{
    if (!path || !path[0])
        return tn_fail(err, TN_E_USAGE, NULL, "no path given to write tensors to");
    if (!tensors && count > 0)
        return tn_fail(err, TN_E_USAGE, path, "no tensors given, where there should be %zu", count);
    for (size_t i = 0; i < count; i++)
        if (check_tensor(path, &tensors[i], err) != TN_OK)
            return TN_E_USAGE;
    const tn_named_tensor **order = malloc((count + 1) * sizeof *order);
    if (!order)
        return tn_fail(err, TN_E_MEMORY, path, "out of memory");
    for (size_t i = 0; i < count; i++)
        order[i] = &tensors[i];
    qsort(order, count, sizeof *order, compare_size_name);
    writer w = {.out = {.fd = -1}, .progress = progress, .ctx = ctx};
    size_t size = 0;
    tn_error why = TN_ERROR_INIT;
    char *header = make_header(path, order, count, &size, &why);
    tn_status status = why.code;
    if (header)
        status = output_open(&w.out, path, &why);
    if (status == TN_OK)
        status = output_write(&w.out, header, size, &why);
    for (size_t i = 0; i < count; i++)
        w.total += byte_count(&tensors[i].tensor);
    for (size_t i = 0; i < count && status == TN_OK; i++)
        status = write_data(&w, &order[i]->tensor, &why);
    if (status == TN_OK)
        status = output_commit(&w.out, &why);
    output_close(&w.out);
    free(header);
    free(order);
    return status == TN_OK ? TN_OK : tn_fail(err, status, why.where, "%s", why.message);
}
