/* Operators that move elements: casts, copies, concatenation, selection. */
#include "ops.h"

#include <stdlib.h>
#include <string.h>

/* ---- casts ----------------------------------------------------------------------------------------------------- */

static bool is_real(aclDataType type)
{
    return (sim_type_bit(type) & (SIM_FLOATS | SIM_F64)) != 0;
}

static double *load_doubles(const sim_tensor *t)
{
    if (t->type == ACL_DOUBLE)
        return sim_load_raw(t);
    int64_t count = sim_elements(t);
    double *wide = sim_allocate((size_t)count * sizeof *wide);
    float *values = sim_load(t);
    for (int64_t i = 0; i < count; i++)
        wide[i] = (double)values[i];
    free(values);
    return wide;
}

/* Toward zero; what does not fit is the nearest number that does, and NaN 0. */
static int64_t truncated(double v)
{
    if (v != v)
        return 0;
    return v >= 9.2233720368547758e18 ? INT64_MAX : v <= -9.2233720368547758e18 ? INT64_MIN : (int64_t)v;
}

static void store_doubles(const sim_tensor *out, const double *wide)
{
    int64_t count = sim_elements(out);
    if (out->type == ACL_DOUBLE) {
        sim_store_raw(out, wide);
        return;
    }
    if (!is_real(out->type)) {
        int64_t *whole = sim_allocate((size_t)count * sizeof *whole);
        for (int64_t i = 0; i < count; i++)
            whole[i] = out->type == ACL_BOOL ? wide[i] != 0.0 : truncated(wide[i]);
        sim_store_ints(out, whole);
        free(whole);
        return;
    }
    float *values = sim_allocate((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)wide[i];
    sim_store(out, values);
    free(values);
}

static void convert(const sim_tensor *from, const sim_tensor *to)
{
    if (from->type == to->type) {
        void *raw = sim_load_raw(from);
        sim_store_raw(to, raw);
        free(raw);
    } else if (is_real(from->type)) {
        double *wide = load_doubles(from);
        store_doubles(to, wide);
        free(wide);
    } else {
        int64_t *whole = sim_load_ints(from);
        if (is_real(to->type)) {
            int64_t count = sim_elements(to);
            double *wide = sim_allocate((size_t)count * sizeof *wide);
            for (int64_t i = 0; i < count; i++)
                wide[i] = (double)whole[i];
            store_doubles(to, wide);
            free(wide);
        } else
            sim_store_ints(to, whole);
        free(whole);
    }
}

static int run_cast(sim_op *op)
{
    convert(op->tensors[0], op->tensors[1]);
    return 0;
}

SIM_RULE(aclnnCast, ACL_CAST)
{
    if (out->type != dtype)
        sim_fault(op, 161002, "dtype is %s and out is %s", sim_type_name(dtype), sim_type_name(out->type));
    sim_want_shape(op, 161002, out, self->rank, self->shape);
    op->elementwise = true;
    return sim_runs(op, run_cast, ops_small_workspace(op));
}

/* ---- copies ---------------------------------------------------------------------------------------------------- */

/* Tensors: selfRef, src. */
static int run_copy(sim_op *op)
{
    const sim_tensor *to = op->tensors[0];
    sim_tensor from;
    sim_broadcast(op->tensors[1], to->rank, to->shape, &from);
    convert(&from, to);
    return 0;
}

SIM_RULE(aclnnInplaceCopy, ACL_COPY)
{
    sim_tensor repeated;
    if (!sim_broadcast(src, selfRef->rank, selfRef->shape, &repeated))
        sim_fault(op, 161002, "src does not broadcast to selfRef");
    op->elementwise = true;
    return sim_runs(op, run_copy, ops_small_workspace(op));
}

/* ---- concatenation --------------------------------------------------------------------------------------------- */

/* Tensors: the members, then out. i: the axis. */
static int run_cat(sim_op *op)
{
    const sim_tensor *out = op->tensors[op->count - 1];
    int64_t done = 0;
    for (int m = 0; m < op->count - 1; m++) {
        sim_tensor part = *out;
        if (!sim_elements(op->tensors[m]))
            continue;
        part.shape[op->i[0]] = op->tensors[m]->shape[op->i[0]];
        part.host += (size_t)(done * part.strides[op->i[0]]) * aclDataTypeSize(part.type);
        done += part.shape[op->i[0]];
        convert(op->tensors[m], &part);
    }
    return 0;
}

SIM_RULE(aclnnCat, ACL_JOIN)
{
    aclTensor *const *members = NULL;
    int64_t count = 0, together = 0;
    if (!sim_list_of(tensors, &members, &count) || !count)
        sim_fault(op, 161001, "tensors is NULL, or no live list, or empty");
    for (int64_t i = 0; i < count; i++)
        sim_in(op, members[i], "a member of tensors");
    const sim_tensor *to = sim_out(op, out, "out");
    int axis = sim_axis(op, dim, to->rank);
    for (int m = 0; m < op->count - 1; m++) {
        const sim_tensor *t = op->tensors[m];
        int64_t shape[SIM_RANK_MAX];
        memcpy(shape, to->shape, sizeof shape);
        shape[axis] = t->shape[axis];
        together += t->shape[axis];
        sim_want_type(op, t, SIM_ANY);
        sim_want_same_type(op, t, to);
        sim_want_shape(op, 161002, t, to->rank, shape);
    }
    if (!to->rank || together != to->shape[axis])
        sim_fault(op, 161002, "out has %lld along the axis instead of %lld", (long long)to->shape[axis],
                  (long long)together);
    op->i[0] = axis;
    return sim_runs(op, run_cat, OPS_WORKSPACE);
}

/* ---- selection ------------------------------------------------------------------------------------------------- */

/* Tensors: self, index, out. i: the axis. */
static int run_select(sim_op *op)
{
    const sim_tensor *self = op->tensors[0], *out = op->tensors[2];
    int axis = (int)op->i[0];
    int64_t *index = sim_load_ints(op->tensors[1]), count = sim_elements(op->tensors[1]);
    int code = 0;
    for (int64_t i = 0; i < count && !code; i++)
        if (index[i] < 0 || index[i] >= self->shape[axis])
            code = sim_violation(507015, "aclnnIndexSelect: index %lld of a dimension of %lld", (long long)index[i],
                                 (long long)self->shape[axis]);
    for (int64_t i = 0; i < count && !code; i++) {
        sim_tensor from = *self, to = *out;
        from.shape[axis] = to.shape[axis] = 1;
        from.host += (size_t)(index[i] * from.strides[axis]) * aclDataTypeSize(from.type);
        to.host += (size_t)(i * to.strides[axis]) * aclDataTypeSize(to.type);
        convert(&from, &to);
    }
    free(index);
    op->idle_bytes = sim_bytes(self) - sim_bytes(out);
    return code;
}

SIM_RULE(aclnnIndexSelect, ACL_SELECT)
{
    int64_t shape[SIM_RANK_MAX];
    int axis = sim_axis(op, dim, self->rank);
    sim_want_rank(op, 161002, index, 0, 1);
    sim_want_rank(op, 161002, self, 1, SIM_RANK_MAX); /* of rank 0: left out here */
    memcpy(shape, self->shape, sizeof shape);
    shape[axis] = sim_elements(index);
    sim_want_shape(op, 161002, out, self->rank, shape);
    op->i[0] = axis;
    return sim_runs(op, run_select, OPS_WORKSPACE);
}
