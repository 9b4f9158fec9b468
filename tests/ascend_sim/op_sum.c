/* Rows added where an index says. */
#include "ops.h"

#include <stdlib.h>
#include <string.h>

/* A packed tensor around one axis: element [o][i][k] is at (o * length + i) * inner + k. */
typedef struct around {
    int64_t outer, length, inner;
} around;

static around around_axis(const sim_tensor *t, int axis)
{
    if (!t->rank)
        return (around){1, 1, 1};
    return (around){sim_product(t->shape, 0, axis), t->shape[axis], sim_product(t->shape, axis + 1, t->rank)};
}

enum { AXIS, ALPHA };

/* What is added to element i of the packed source goes to this element of the packed result. */
static int64_t target(const around *out, const around *source, const int64_t *index, int64_t i)
{
    int64_t k = i % source->inner, j = i / source->inner % source->length, o = i / source->inner / source->length;
    return (o * out->length + index[j]) * out->inner + k;
}

static void add_floats(const sim_op *op, const around *to, const around *from, const int64_t *index)
{
    float *y = sim_load(op->tensors[0]), *x = sim_load(op->tensors[2]), alpha = (float)op->f[ALPHA];
    for (int64_t i = 0, count = sim_elements(op->tensors[2]); i < count; i++)
        y[target(to, from, index, i)] += alpha * x[i];
    sim_store(op->tensors[3], y);
    free(y);
    free(x);
}

/* Tensors: self, index, source, out. Equal indices add up in the order of the index. */
static int run_index_add(sim_op *op)
{
    const sim_tensor *out = op->tensors[3];
    around to = around_axis(out, (int)op->i[AXIS]), from = around_axis(op->tensors[2], (int)op->i[AXIS]);
    int64_t *index = sim_load_ints(op->tensors[1]);
    int code = 0;
    for (int64_t i = 0; i < from.length && !code; i++)
        if (index[i] < 0 || index[i] >= to.length)
            code = sim_violation(507015, "aclnnIndexAdd: index %lld of a dimension of %lld", (long long)index[i],
                                 (long long)to.length);
    if (!code)
        add_floats(op, &to, &from, index);
    free(index);
    return code;
}

/* Whether out may be self is not in the documents at hand, nor whether source may be strided: neither here. */
SIM_RULE(aclnnIndexAdd, ACL_INDEX_ADD)
{
    int64_t shape[SIM_RANK_MAX];
    int axis = sim_axis(op, dim, self->rank);
    sim_want_rank(op, 161002, self, 1, SIM_RANK_MAX); /* of rank 0: left out here */
    sim_want_rank(op, 161002, index, 0, 1);
    memcpy(shape, self->shape, sizeof shape);
    shape[axis] = index->rank ? index->shape[0] : 1;
    sim_want_shape(op, 161002, source, self->rank, shape);
    sim_want_shape(op, 161002, out, self->rank, self->shape);
    ops_read_number(op, alpha, "alpha", ALPHA);
    op->i[AXIS] = axis;
    return sim_runs(op, run_index_add, OPS_WORKSPACE);
}
