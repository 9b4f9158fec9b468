/* Operators along an axis, and counts: Softmax, Topk, ReduceSum, Histc. */
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

void ops_softmax_row(float *x, int64_t count)
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
        ops_softmax_row(x + i, length);
    sim_store(&to, x);
    free(x);
    return 0;
}

SIM_RULE(aclnnSoftmax, ACL_ALONG)
{
    ops_want_like(op, 161002, self, out); /* whether out may be wider is not in the documents at hand */
    op->i[0] = sim_axis(op, dim, self->rank);
    return sim_runs(op, run_softmax, OPS_WORKSPACE);
}

/* ---- top-k ----------------------------------------------------------------------------------------------------- */

/* The k largest (smallest) of x, in order, and where they are. Of equal values the first ones: which the vendor takes
 * is not certain. */
static void top_row(const float *x, int64_t length, int64_t k, bool largest, float *values, int64_t *indices)
{
    bool *taken = sim_allocate((size_t)length);
    for (int64_t j = 0; j < k; j++) {
        int64_t best = -1;
        for (int64_t i = 0; i < length; i++)
            if (!taken[i] && (best < 0 || (largest ? x[i] > x[best] : x[i] < x[best])))
                best = i;
        taken[best] = true;
        values[j] = x[best];
        indices[j] = best;
    }
    free(taken);
}

/* Tensors: self, valuesOut, indicesOut. i: the axis, k, largest. */
static int run_topk(sim_op *op)
{
    int axis = (int)op->i[0];
    int64_t k = op->i[1], length = length_of(op->tensors[0], axis);
    sim_tensor from = axis_last(op->tensors[0], axis), to = axis_last(op->tensors[1], axis),
               at = axis_last(op->tensors[2], axis);
    int64_t rows = length ? sim_elements(&from) / length : 0;
    float *x = sim_load(&from), *values = sim_allocate((size_t)(rows * k) * sizeof *values);
    int64_t *indices = sim_allocate((size_t)(rows * k) * sizeof *indices);
    for (int64_t r = 0; r < rows; r++)
        top_row(x + r * length, length, k, op->i[2], values + r * k, indices + r * k);
    sim_store(&to, values);
    sim_store_ints(&at, indices);
    free(x);
    free(values);
    free(indices);
    return 0;
}

SIM_RULE(aclnnTopk, ACL_TOPK)
{
    int64_t shape[SIM_RANK_MAX];
    int axis = sim_axis(op, dim, self->rank);
    memcpy(shape, self->shape, sizeof shape);
    shape[axis] = k;
    if (k < 0 || k > length_of(self, axis))
        sim_fault(op, 161002, "k is %lld of %lld", (long long)k, (long long)length_of(self, axis));
    if (!sorted)
        sim_fault(op, 161002, "sorted has to be true");
    sim_want_shape(op, 161002, valuesOut, self->rank, shape);
    sim_want_shape(op, 161002, indicesOut, self->rank, shape);
    op->i[0] = axis;
    op->i[1] = k;
    op->i[2] = largest;
    return sim_runs(op, run_topk, OPS_WORKSPACE);
}

/* ---- sums ------------------------------------------------------------------------------------------------------ */

/* For each element of self, in order, the place in the result: axes that are added up have step 0. */
static int64_t sum_place(const sim_tensor *self, const int64_t *steps, int64_t i)
{
    int64_t at = 0;
    for (int axis = self->rank; axis-- > 0; i /= self->shape[axis])
        at += i % self->shape[axis] * steps[axis];
    return at;
}

/* Tensors: self, out. ints: a step in out for each axis of self. */
static int run_sum(sim_op *op)
{
    const sim_tensor *self = op->tensors[0], *out = op->tensors[1];
    int64_t count = sim_elements(self);
    float *x = sim_load(self), *sums = sim_allocate((size_t)sim_elements(out) * sizeof *sums);
    for (int64_t i = 0; i < count; i++)
        sums[sum_place(self, op->ints, i)] += x[i];
    sim_store(out, sums);
    free(x);
    free(sums);
    return 0;
}

/* Which axes go; all when none is named, as in PyTorch. */
static void chosen_axes(sim_op *op, const aclIntArray *dims, int rank, bool *gone)
{
    const int64_t *values = NULL;
    int64_t count = 0;
    if (!sim_ints_of(dims, &values, &count))
        sim_fault(op, 161001, "dims is NULL, or no live array");
    for (int i = 0; i < rank; i++)
        gone[i] = count == 0;
    for (int64_t i = 0; i < count; i++) {
        int axis = sim_axis(op, values[i], rank);
        if (gone[axis])
            sim_fault(op, 161002, "dims has %d twice", axis);
        gone[axis] = true;
    }
}

SIM_RULE(aclnnReduceSum, ACL_SUM)
{
    bool gone[SIM_RANK_MAX] = {false};
    int64_t shape[SIM_RANK_MAX], step = 1;
    int rank = 0;
    chosen_axes(op, dims, self->rank, gone);
    op->ints = sim_allocate(SIM_RANK_MAX * sizeof *op->ints);
    op->int_count = SIM_RANK_MAX;
    for (int i = 0; i < self->rank; i++)
        if (!gone[i] || keepDims)
            shape[rank++] = gone[i] ? 1 : self->shape[i];
    for (int i = self->rank; i-- > 0; step *= gone[i] ? 1 : self->shape[i])
        op->ints[i] = gone[i] ? 0 : step;
    if (out->type != dtype)
        sim_fault(op, 161002, "dtype is %s and out is %s", sim_type_name(dtype), sim_type_name(out->type));
    sim_want_shape(op, 161002, out, rank, shape);
    return sim_runs(op, run_sum, OPS_WORKSPACE);
}

/* ---- counts: its document is not at hand, this does what PyTorch's function of the name does ----------------------
 */

/* Tensors: self, out. f: min, max; both alike: those of the data. */
static int run_histc(sim_op *op)
{
    const sim_tensor *out = op->tensors[1];
    int64_t count = sim_elements(op->tensors[0]), bins = sim_elements(out);
    float *x = sim_load(op->tensors[0]), *counts = sim_allocate((size_t)bins * sizeof *counts);
    float least = (float)op->f[0], most = (float)op->f[1];
    if (least == most && count) {
        least = most = x[0];
        for (int64_t i = 0; i < count; i++) {
            least = fminf(least, x[i]);
            most = fmaxf(most, x[i]);
        }
    }
    if (least == most) {
        least -= 1.0f;
        most += 1.0f;
    }
    for (int64_t i = 0; i < count; i++)
        if (x[i] >= least && x[i] <= most) {
            int64_t bin = (int64_t)((x[i] - least) / (most - least) * (float)bins);
            counts[bin < bins ? bin : bins - 1] += 1.0f;
        }
    sim_store(out, counts);
    free(x);
    free(counts);
    return 0;
}

SIM_RULE(aclnnHistc, ACL_HISTOGRAM)
{
    sim_scalar least = {0}, most = {0};
    if (!sim_scalar_of(min, &least) || !sim_scalar_of(max, &most))
        sim_fault(op, 161001, "min or max is NULL, or no live scalar");
    if (bins < 1 || least.real > most.real)
        sim_fault(op, 161002, "%lld bins from %g to %g", (long long)bins, least.real, most.real);
    sim_want_shape(op, 161002, out, 1, &bins);
    op->f[0] = least.real;
    op->f[1] = most.real;
    return sim_runs(op, run_histc, OPS_WORKSPACE);
}
