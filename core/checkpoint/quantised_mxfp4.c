/* quant_method "mxfp4", of gpt-oss: the experts of a layer in one tensor of blocks and one of scales. Each expert
 * becomes matrices of its own, which are views; rows of gates and ups, which take turns, become matrices by their
 * strides. */
#include "checkpoint/quantised.h"

#include "base/tensor.h"

#include <stdio.h>
#include <string.h>

enum { BLOCK_BYTES = 16, BLOCK_COLUMNS = 32 };

/* Rows first, first + step, ... of one expert's matrix. */
static tn_tensor rows_of(const tn_tensor *all, tn_dtype dtype, int64_t columns, int64_t expert, int64_t first,
                         int64_t step)
{
    const int64_t shape[2] = {all->shape[1] / step, columns};
    char *data = (char *)all->data + tn_dtype_bytes(dtype, (expert * all->shape[1] + first) * columns);
    tn_tensor t = tn_tensor_dense(data, dtype, 2, shape);
    t.stride[0] = step * columns;
    return t;
}

typedef struct stack {
    quantised_part blocks, scales;
    int64_t step; /* 2: gates and ups take turns                                                         */
} stack;

static tn_status add_matrix(const quantised *q, const char *experts, const stack *s, const char *projection,
                            int64_t expert, int64_t first)
{
    char leaf[64];
    int64_t groups = s->scales.tensor.shape[2];
    tn_tensor codes = rows_of(&s->blocks.tensor, TN_E2M1, groups * BLOCK_COLUMNS, expert, first, s->step);
    const shards_parts parts = {.scale = rows_of(&s->scales.tensor, TN_F8_E8M0, groups, expert, first, s->step)};
    snprintf(leaf, sizeof leaf, "%lld.%s.weight", (long long)expert, projection);
    return quantised_add(q, experts, leaf, &s->blocks, &codes, &parts);
}

static tn_status read_stack(const quantised *q, const char *stem, stack *s)
{
    tn_status status = quantised_want(q, &s->blocks, TN_U8, 4, (int64_t[]){-1, -1, -1, BLOCK_BYTES});
    if (status == TN_OK)
        status = quantised_need(q, stem, "_scales", &s->blocks, &s->scales);
    if (status == TN_OK)
        status = quantised_want(q, &s->scales, TN_U8, 3, s->blocks.tensor.shape);
    if (status == TN_OK)
        status = quantised_check_scales(q, &s->scales);
    if (status == TN_OK && s->blocks.tensor.shape[1] % s->step)
        return quantised_fail(q, &s->blocks, "has %lld rows, gates and ups take turns in them",
                              (long long)s->blocks.tensor.shape[1]);
    return status;
}

/* Biases [experts, 2 * inter] of gates and ups in turns become those of all gates, then of all ups. */
static tn_status turn_biases(const quantised *q, const char *stem, const stack *s)
{
    quantised_part part;
    if (!quantised_find(q, stem, "_bias", &part))
        return TN_OK;
    tn_status status = quantised_want(q, &part, TN_DTYPE_NONE, 2, s->blocks.tensor.shape);
    if (status != TN_OK)
        return status;
    tn_tensor t = part.tensor;
    size_t size = tn_dtype_size(t.dtype);
    int64_t inter = t.shape[1] / 2;
    char *to = quantised_keep(q, &part, (size_t)tn_tensor_count(&t) * size);
    if (!to)
        return TN_E_MEMORY;
    t.data = to;
    for (int64_t e = 0; e < t.shape[0]; e++)
        for (int64_t i = 0; i < t.shape[1]; i++, to += size)
            memcpy(to, (const char *)part.tensor.data + (size_t)(e * t.shape[1] + i % inter * 2 + i / inter) * size,
                   size);
    return quantised_add(q, stem, "_bias", &part, &t, NULL);
}

/* stem: ....mlp.experts.gate_up_proj or ...down_proj */
static tn_status turn_blocks(quantised *q, const char *stem, quantised_part *part)
{
    char experts[QUANTISED_NAME];
    const char *projection = strrchr(stem, '.');
    projection = projection ? projection + 1 : stem;
    bool both = !strcmp(projection, "gate_up_proj");
    stack s = {.blocks = *part, .step = both ? 2 : 1};
    tn_status status = read_stack(q, stem, &s);
    snprintf(experts, sizeof experts, "%.*s", (int)(projection - stem), stem);
    for (int64_t e = 0; e < s.blocks.tensor.shape[0] && status == TN_OK; e++) {
        status = add_matrix(q, experts, &s, both ? "gate_proj" : projection, e, 0);
        if (both && status == TN_OK)
            status = add_matrix(q, experts, &s, "up_proj", e, 1);
    }
    if (both && status == TN_OK)
        status = turn_biases(q, stem, &s);
    quantised_drop(q, &s.scales, false);
    return status;
}

static const quantised_rule rules[] = {{"_blocks", turn_blocks}, {NULL, NULL}};

const quantised_method quantised_mxfp4 = {NULL, rules};
