/* The values of quantised weights. Each is exact in f32, or one rounding off where a minimum or two factors are in it.
 */
#include "op/weight.h"

#include "base/blocks.h"
#include "base/convert.h"
#include "op/op.h"

#include <string.h>

enum { WEIGHT_PIECE = 512, U4_ZERO = 8 };

static const tn_tensor *weight_part(const tn_site *site, int role, int64_t index)
{
    const tn_param *p = &site->param[role];
    return p->count > index ? &p->tensors[index] : NULL;
}

weight weight_make(const tn_tensor *codes, const tn_tensor *scale, const tn_tensor *zero, const tn_tensor *group)
{
    return (weight){.codes = codes,
                    .scale = scale,
                    .zero = zero,
                    .group = group ? group->data : NULL,
                    .group_columns = op_group_columns(codes->shape[1], scale ? scale->shape[1] : 1)};
}

weight weight_of(const tn_site *site, tn_role role, int64_t index)
{
    tn_role group = op_group_role(role);
    return weight_make(&site->param[role].tensors[index], weight_part(site, TN_ROLE_SCALE_OF(role), index),
                       weight_part(site, TN_ROLE_ZERO_OF(role), index), group ? weight_part(site, group, index) : NULL);
}

/* One element of the scales or the zero points as f32. */
static float weight_part_at(const tn_tensor *t, int64_t row, int64_t group)
{
    float value;
    blocks_to_f32(t->dtype, (const char *)t->data + tn_dtype_bytes(t->dtype, row * t->stride[0]), group, 1, &value);
    return value;
}

/* How far from column on the group stays the same, at most end. */
static int64_t weight_group_end(const weight *w, int64_t column, int64_t end)
{
    if (!w->group) {
        int64_t next = (column / w->group_columns + 1) * w->group_columns;
        return next < end ? next : end;
    }
    int64_t next = column + 1;
    while (next < end && w->group[next] == w->group[column])
        next++;
    return next;
}

/* x = (x - zero) * scale for elements [column, end) of a row. */
static void weight_scale(const weight *w, int64_t row, int64_t column, int64_t end, float *x)
{
    bool divides = w->codes->dtype == TN_E2M1;
    float nothing = w->codes->dtype == TN_U4 ? U4_ZERO : 0;
    for (int64_t next; column < end; column = next) {
        next = weight_group_end(w, column, end);
        int64_t group = w->group ? w->group[column] : column / w->group_columns;
        float zero = w->zero && !divides ? weight_part_at(w->zero, row, group) : nothing;
        float scale = w->scale ? weight_part_at(w->scale, row, group) : 1;
        if (w->zero && divides)
            scale /= *(const float *)w->zero->data;
        for (int64_t i = column; i < next; i++, x++)
            *x = (*x - zero) * scale;
    }
}

void weight_read(const weight *w, int64_t row, int64_t column, int64_t count, tn_dtype dtype, void *out)
{
    const tn_tensor *t = w->codes;
    const char *codes = (const char *)t->data + tn_dtype_bytes(t->dtype, row * t->stride[0]);
    float x[WEIGHT_PIECE];
    for (int64_t at = 0; at < count; at += WEIGHT_PIECE) {
        int64_t n = count - at < WEIGHT_PIECE ? count - at : WEIGHT_PIECE, first = column + at;
        blocks_to_f32(t->dtype, codes, first, n, x);
        if (w->scale || w->zero || t->dtype == TN_U4)
            weight_scale(w, row, first, first + n, x);
        convert_from_f32(x, dtype, (char *)out + (size_t)at * tn_dtype_size(dtype), n);
    }
}
