/* Views of some tokens of a call. */
#include "check/part.h"

#include <string.h>

bool part_by_token(tn_op op)
{
    return op != TN_OP_SHORT_CONV && op != TN_OP_GATED_DELTA_RULE && op != TN_OP_SELECTIVE_SCAN;
}

static bool is_batched(tn_op op)
{
    return op == TN_OP_ROPE || op == TN_OP_ATTENTION;
}

int64_t part_tokens(const tn_call *whole)
{
    return whole->in[0].shape[is_batched(whole->op) ? 1 : 0];
}

int64_t part_rows(const tn_call *whole)
{
    return is_batched(whole->op) ? whole->in[0].shape[0] : 1;
}

static tn_tensor narrowed(tn_tensor t, int32_t dim, int64_t first, int64_t count)
{
    if (t.data)
        t.data = (char *)t.data + first * t.stride[dim] * (int64_t)tn_dtype_size(t.dtype);
    t.shape[dim] = count;
    return t;
}

/* Tables that all batch rows share have one; keys, values and their positions are given whole. */
static tn_tensor of_batch(const part *p, const tn_tensor *t, bool keys)
{
    tn_tensor row = t->shape[0] > 1 ? narrowed(*t, 0, p->row, 1) : *t;
    return keys ? row : narrowed(row, 1, p->first, p->count);
}

static tn_tensor of_tensor(const tn_call *whole, const part *p, const tn_tensor *t, int32_t input)
{
    enum { KEYS = 1, VALUES = 2, KV_INDEX = 4 };
    if (!is_batched(whole->op))
        return narrowed(*t, 0, p->first, p->count);
    bool keys = whole->op == TN_OP_ATTENTION && (input == KEYS || input == VALUES || input == KV_INDEX);
    return of_batch(p, t, keys);
}

/* Of each group those rows that are in the part. */
static tn_tensor counts_of(const tn_tensor *from, const part *p, int64_t *counts)
{
    for (int64_t g = 0, at = 0; g < from->shape[0]; g++) {
        int64_t n, begin, end;
        memcpy(&n, (const char *)from->data + g * from->stride[0] * (int64_t)sizeof n, sizeof n);
        begin = at > p->first ? at : p->first;
        at += n;
        end = at < p->first + p->count ? at : p->first + p->count;
        counts[g] = end > begin ? end - begin : 0;
    }
    return tn_tensor_dense(counts, TN_I64, 1, from->shape);
}

tn_call part_call(const tn_call *whole, const part *p, int64_t *counts)
{
    tn_call call = *whole;
    for (int32_t i = 0; i < whole->in_count; i++)
        call.in[i] = whole->op == TN_OP_GROUPED_MATMUL && i == 1 ? counts_of(&whole->in[1], p, counts)
                                                                 : of_tensor(whole, p, &whole->in[i], i);
    for (int32_t i = 0; i < whole->out_count; i++)
        call.out[i] = of_tensor(whole, p, &whole->out[i], -1);
    return call;
}
