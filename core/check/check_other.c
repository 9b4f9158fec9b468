/* A site of the same shape with other weights, for one whose graph has no second: vectors are turned around one half,
 * matrices change their sign and the order of their rows. So nothing of it is what it was, and all of it has the size
 * of what it was. */
#include "check/check.h"

#include "base/convert.h"
#include "base/tensor.h"

#include <stdlib.h>
#include <string.h>

static const size_t MOST_BYTES = (size_t)256 << 20;

static void change_vector(const tn_tensor *from, const tn_tensor *to)
{
    size_t size = tn_dtype_size(from->dtype);
    for (int64_t i = 0, n = tn_tensor_count(from); i < n; i++) {
        float value;
        convert_to_f32((const char *)from->data + (size_t)i * size, from->dtype, &value, 1);
        value = 0.5f - value;
        convert_from_f32(&value, to->dtype, (char *)to->data + (size_t)i * size, 1);
    }
}

/* Rows in reverse, every sign changed: the last byte of a float of this machine holds it. */
static void change_matrix(const tn_tensor *from, const tn_tensor *to)
{
    size_t size = tn_dtype_size(from->dtype), width = (size_t)from->shape[from->ndim - 1] * size;
    int64_t rows = width > 0 ? tn_tensor_count(from) / from->shape[from->ndim - 1] : 0;
    for (int64_t i = 0; i < rows; i++) {
        unsigned char *row = (unsigned char *)to->data + (size_t)i * width;
        memcpy(row, (const char *)from->data + (size_t)(rows - 1 - i) * width, width);
        for (size_t j = size - 1; j < width; j += size)
            row[j] ^= 0x80;
    }
}

/* One element more, so that none begins at a multiple of more than that: files have weights there, too. */
static size_t room_of(const tn_tensor *t)
{
    return tensor_padded_bytes(t) + 64;
}

tn_status check_other_open(check_other *o, const tn_site *like, size_t most, tn_error *err)
{
    size_t bytes = 0, count = 0, at = 0;
    *o = (check_other){.site = *like};
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < like->param[role].count; i++, count++) {
            bytes += room_of(&like->param[role].tensors[i]);
            if (bytes > MOST_BYTES || bytes > most || !tensor_is_plain(&like->param[role].tensors[i]))
                return tn_fail(err, TN_DECLINED, like->path, "no other weights can be made up");
        }
    if (count == 0)
        return tn_fail(err, TN_DECLINED, like->path, "it has no weights");
    o->tensors = calloc(count, sizeof *o->tensors);
    o->memory = aligned_alloc(64, bytes ? bytes : 64);
    if (!o->tensors || !o->memory)
        return check_no_memory(err);
    bytes = 0;
    for (int role = 0; role < TN_ROLE_MAX; role++) {
        o->site.param[role].tensors = &o->tensors[at];
        for (int64_t i = 0; i < like->param[role].count; i++) {
            const tn_tensor *from = &like->param[role].tensors[i];
            tn_tensor *to = &o->tensors[at++];
            *to = *from;
            to->data = (char *)o->memory + bytes + tn_dtype_size(from->dtype);
            bytes += room_of(from);
            (from->ndim < 2 ? change_vector : change_matrix)(from, to);
        }
    }
    return TN_OK;
}

void check_other_close(check_other *o)
{
    free(o->tensors);
    free(o->memory);
    *o = (check_other){0};
}
