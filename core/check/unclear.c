/* Which rows of live results cannot be compared. */
#include "check/unclear.h"

#include "base/convert.h"
#include "base/tensor.h"
#include "check/inputs.h"
#include "op/seen.h"

#include <math.h>
#include <stdlib.h>

/* Scores that made-up queries and keys do not reach. Rounded to bf16, one of 8 moves by 1/64, and its key's weight by
 * as large a part: a few units of the last place. f16 has three bits more. */
static const double LARGE_BF16 = 8, LARGE_F16 = 64;

enum { MOST_DIM = 1024 };

typedef struct scores {
    const tn_tensor *q, *k;
    const tn_tensor *q_index, *kv_index;
    seen_rule rule;
    double limit; /* of |q k|, without the scale                                                     */
    const tn_tensor *slopes;
    double alpha; /* of what slopes make of positions, without the scale; slopes NULL: there are none */
    bool *skip;   /* [B*T*N]                                                                         */
} scores;

static void vector(const tn_tensor *t, int64_t i, int64_t j, int64_t h, float *out)
{
    const char *at = (const char *)t->data +
                     (i * t->stride[0] + j * t->stride[1] + h * t->stride[2]) * (int64_t)tn_dtype_size(t->dtype);
    convert_to_f32(at, t->dtype, out, t->shape[3]);
}

static float dot(const float *a, const float *b, int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static float slope_of(const tn_tensor *t, int64_t head)
{
    float slope;
    convert_to_f32((const char *)t->data + (size_t)head * tn_dtype_size(t->dtype), t->dtype, &slope, 1);
    return slope;
}

/* One query of one head: the row of the output with the same number. */
static bool is_large(const scores *s, int64_t row)
{
    int64_t heads = s->q->shape[2], tokens = s->q->shape[1], group = heads / s->k->shape[2], d = s->q->shape[3];
    int64_t head = row % heads, token = row / heads % tokens, batch = row / heads / tokens;
    int32_t index = ((const int32_t *)s->q_index->data)[batch * s->q_index->stride[0] + token];
    const int32_t *kv_index = (const int32_t *)s->kv_index->data + batch * s->kv_index->stride[0];
    float q[MOST_DIM], k[MOST_DIM];
    double slope = s->slopes ? s->alpha * (double)slope_of(s->slopes, head) : 0;
    vector(s->q, batch, token, head, q);
    for (int64_t key = 0; key < s->k->shape[1]; key++) {
        int32_t position = kv_index[key];
        if (position < seen_low(&s->rule, index) || position > seen_high(&s->rule, index))
            continue;
        vector(s->k, batch, key, head / group, k);
        if (fabs((double)dot(q, k, d) + slope * position) > s->limit)
            return true;
    }
    return false;
}

static void mark_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const scores *s = ctx;
    (void)thread;
    for (int64_t row = begin; row < end; row++)
        s->skip[row] = is_large(s, row);
}

static tn_status no_memory(const tn_site *site, tn_error *err)
{
    return tn_fail(err, TN_E_MEMORY, site->path, "out of memory to compare a call with eager; free some memory");
}

static tn_status find_scores(const tn_call *call, bool **skip, tn_error *err)
{
    const tn_site *site = call->site;
    const tn_tensor *q = &call->in[0];
    tn_dtype dtype = (tn_dtype)site->meaning[TN_AXIS_DTYPE];
    double scale = fabs(site->num[TN_NUM_SCALE]);
    if (dtype == TN_F32 || q->shape[3] > MOST_DIM || !(scale > 0))
        return TN_OK;
    int64_t rows = q->shape[0] * q->shape[1] * q->shape[2];
    if (!(*skip = calloc((size_t)rows + 1, sizeof **skip)))
        return no_memory(site, err);
    scores s = {.q = q,
                .k = &call->in[1],
                .q_index = &call->in[3],
                .kv_index = &call->in[4],
                .rule = seen_of(site),
                .limit = (dtype == TN_BF16 ? LARGE_BF16 : LARGE_F16) / scale,
                .slopes = site->features & TN_HAS_ALIBI ? site->param[TN_ROLE_DECAY].tensors : NULL,
                .alpha = site->num[TN_NUM_ALPHA] / scale,
                .skip = *skip};
    if (tn_tensor_count(&call->in[1]) > 0)
        tn_parallel_for(rows, 1, mark_rows, &s);
    return TN_OK;
}

tn_status unclear_find(const tn_call *call, bool **skip, tn_error *err)
{
    *skip = NULL;
    if (call->op == TN_OP_ATTENTION)
        return find_scores(call, skip, err);
    if (call->op != TN_OP_MOE_ROUTE && call->op != TN_OP_MOE_BLOCK)
        return TN_OK;
    if (!(*skip = calloc((size_t)call->in[0].shape[0] + 1, sizeof **skip)))
        return no_memory(call->site, err);
    return inputs_find_unclear(call->site, &call->in[0], *skip, err);
}
