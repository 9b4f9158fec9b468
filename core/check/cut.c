/* A part of a site: views of its parameters, and calls of it. */
#include "check/cut.h"

#include "base/tensor.h"
#include "op/match.h"
#include "op/op.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Where a part begins of so many: heads go by halves, with the keys that are theirs; rows by a third, in eights, which
 * are the least that ranks are dealt, or in more where there are so many: kernels may want them. */
static int64_t begin_of(const char *letters, int64_t size, int part)
{
    int64_t unit = 64, first = size / 2;
    while (unit > 8 && size / 3 < unit)
        unit /= 2;
    if (!letters[1])
        first = size / 3 < unit && size > unit ? unit : size / 3 / unit * unit;
    return part == 0 ? 0 : part == CUT_PARTS ? size : first;
}

/* The dimension of a tensor that is cut; -1: it is whole. */
static int cut_dim(const char *letters, const char *shape)
{
    int dim = 0;
    shape += islower((unsigned char)shape[0]) && shape[1] ? 1 : 0; /* the type comes first in what flows    */
    for (; *shape; shape++, dim++)
        if (strchr(letters, *shape))
            return dim;
    return -1;
}

static tn_tensor view_of(const char *letters, const tn_tensor *whole, const char *shape, int part)
{
    tn_tensor t = *whole;
    int dim = cut_dim(letters, shape);
    if (dim < 0 || dim >= t.ndim)
        return t;
    int64_t first = begin_of(letters, t.shape[dim], part);
    t.shape[dim] = begin_of(letters, t.shape[dim], part + 1) - first;
    if (t.data)
        t.data = (char *)t.data + first * t.stride[dim] * (int64_t)tn_dtype_size(t.dtype);
    return t;
}

static bool cut_params(cut *c, const op_row *row, const tn_site *whole)
{
    size_t count = 0, at = 0;
    for (int role = 0; role < TN_ROLE_MAX; role++)
        count += (size_t)whole->param[role].count;
    c->params = calloc(count + 1, sizeof *c->params);
    for (const op_param *p = row->param; c->params && p < row->param + OP_PARAMS && p->shape; p++) {
        tn_param *own = &c->site.param[p->role];
        if (own->count == 0 || !op_is_there(&p->when, whole))
            continue;
        tn_tensor *list = c->params + at;
        for (int64_t i = 0; i < own->count; i++, at++) {
            list[i] = view_of(row->cut, &own->tensors[i], p->shape, c->part);
            if (!tensor_is_plain(&list[i]))
                return false;
        }
        own->tensors = list;
    }
    return c->params;
}

bool cut_open(cut *c, const tn_site *whole, const tn_impl *impl, int part)
{
    char why[160];
    const op_row *row = op_find(whole->op);
    *c = (cut){.site = *whole, .part = part};
    for (const char *l = row->cut; l && *l; l++) {
        int64_t *size = &c->site.dim[op_dim_of(*l)], all = *size, first = begin_of(row->cut, all, part);
        *size = begin_of(row->cut, all, part + 1) - first;
        if (*size < 1 && all != 0) /* where there is none it is as the other                                */
            return false;
    }
    return row->cut && cut_params(c, row, whole) && match_site(&c->site, impl, why, sizeof why) == TN_OK;
}

void cut_close(cut *c)
{
    free(c->params);
    *c = (cut){0};
}

tn_call cut_call(const cut *c, const tn_call *whole)
{
    const op_row *row = op_find(c->site.op);
    tn_call call = *whole;
    call.site = &c->site;
    for (int32_t i = 0; i < call.in_count; i++)
        call.in[i] = view_of(row->cut, &whole->in[i], row->in[i].shape, c->part);
    for (int32_t i = 0; i < call.out_count; i++)
        call.out[i] = view_of(row->cut, &whole->out[i], row->out[i].shape, c->part);
    return call;
}

tn_status cut_inputs(const cut *c, const inputs *whole, inputs *in, tn_error *err)
{
    const tn_call call = cut_call(c, &whole->call);
    *in = (inputs){.call = call, .tokens = whole->tokens, .cached = whole->cached};
    size_t bytes = 0;
    for (int32_t i = 0; i < call.in_count; i++)
        bytes += tensor_padded_bytes(&call.in[i]);
    if (!(in->memory = aligned_alloc(64, bytes ? bytes : 64)))
        return tn_fail(err, TN_E_MEMORY, "kernels", "out of memory while checking a kernel; free some memory");
    bytes = 0;
    for (int32_t i = 0; i < call.in_count; i++) {
        const tn_tensor *from = &call.in[i];
        size_t row = (size_t)from->shape[from->ndim - 1] * tn_dtype_size(from->dtype);
        char *to = (char *)in->memory + bytes;
        bytes += tensor_padded_bytes(from);
        in->call.in[i] = tn_tensor_dense(to, from->dtype, from->ndim, from->shape);
        for (int64_t r = 0, rows = row > 0 ? tn_tensor_count(from) / from->shape[from->ndim - 1] : 0; r < rows; r++)
            memcpy(to + (size_t)r * row, tensor_row(from, r), row);
    }
    return TN_OK;
}
