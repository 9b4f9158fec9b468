/* Operators along an axis, and counts: Softmax, Topk, ReduceSum, Histc, Bincount. */
#include "ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* t with one axis moved to the end: rows that a function of one axis can take one after the other. */
static sim_tensor axis_last(const sim_tensor *t, int axis)
{
    sim_tensor moved = *t;
    for (int i = axis; i + 1 < t->rank; i++) {
        moved.shape[i] = t->shape[i + 1];
        moved.strides[i] = t->strides[i + 1];
    }
    if (t->rank) {
        moved.shape[t->rank - 1] = t->shape[axis];
        moved.strides[t->rank - 1] = t->strides[axis];
    }
    return moved;
}

static int64_t length_of(const sim_tensor *t, int axis)
{
    return t->rank ? t->shape[axis] : 1;
}

/* ---- softmax --------------------------------------------------------------------------------------------------- */

static void softmax_row(float *x, int64_t count)
{
    float most = -INFINITY, sum = 0.0f;
    for (int64_t i = 0; i < count; i++)
        most = fmaxf(most, x[i]);
    for (int64_t i = 0; i < count; i++)
        sum += x[i] = expf(x[i] - most);
    for (int64_t i = 0; i < count; i++)
        x[i] /= sum;
}

static int run_softmax(sim_op *op)
{
    sim_tensor from = axis_last(op->tensors[0], (int)op->i[0]), to = axis_last(op->tensors[1], (int)op->i[0]);
    int64_t length = length_of(op->tensors[0], (int)op->i[0]), count = sim_elements(&from);
    float *x = sim_load(&from);
    for (int64_t i = 0; i < count; i += length)
        softmax_row(x + i, length);
    sim_store(&to, x);
    free(x);
    return 0;
}

aclnnStatus aclnnSoftmaxGetWorkspaceSize(const aclTensor *self, int64_t dim, aclTensor *out, uint64_t *workspaceSize,
                                         aclOpExecutor **executor)
{
    SIM_HOLD;
    sim_op *op = sim_begin("aclnnSoftmax", run_softmax);
    const sim_tensor *from = sim_in(op, self, "self"), *to = sim_out(op, out, "out");
    sim_want_type(op, from, SIM_FLOATS);
    sim_want_same_type(op, from, to); /* whether out may be wider is not in the documents at hand */
    sim_want_shape(op, 161002, to, from->rank, from->shape);
    op->i[0] = sim_axis(op, dim, from->rank);
    return sim_finish(op, OPS_WORKSPACE, workspaceSize, executor);
}
