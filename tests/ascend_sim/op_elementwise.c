/* Sums and products of single elements, and fills. Numbers are computed in 32 bits and rounded once. */
#include "ops.h"

#include <math.h>
#include <stdlib.h>

/* ---- two tensors, or a tensor and a number --------------------------------------------------------------------- */

enum { ADD, MUL, DIV }; /* i[KIND] */
enum { KIND, SCALE, OTHER };

static float combine(int64_t kind, float a, float b, float scale)
{
    return kind == ADD ? a + scale * b : kind == MUL ? a * b : a / b;
}

static void combine_all(const sim_op *op, const sim_tensor *a, const sim_tensor *b, const sim_tensor *out)
{
    int64_t count = sim_elements(out);
    float *x = sim_load(a), *y = b ? sim_load(b) : NULL, other = (float)op->f[OTHER];
    for (int64_t i = 0; i < count; i++)
        x[i] = combine(op->i[KIND], x[i], y ? y[i] : other, (float)op->f[SCALE]);
    sim_store(out, x);
    free(x);
    free(y);
}

/* Tensors: self, other unless there is the number, out. */
static int run_combine(sim_op *op)
{
    bool two = op->count == 3;
    const sim_tensor *out = op->tensors[op->count - 1];
    sim_tensor a, b;
    sim_broadcast(op->tensors[0], out->rank, out->shape, &a);
    if (two)
        sim_broadcast(op->tensors[1], out->rank, out->shape, &b);
    combine_all(op, &a, two ? &b : NULL, out);
    return 0;
}

bool ops_common_shape(const sim_tensor *a, const sim_tensor *b, int *rank, int64_t *shape)
{
    *rank = a->rank > b->rank ? a->rank : b->rank;
    for (int i = 0; i < *rank; i++) {
        int at[] = {i - (*rank - a->rank), i - (*rank - b->rank)};
        int64_t x = at[0] < 0 ? 1 : a->shape[at[0]], y = at[1] < 0 ? 1 : b->shape[at[1]];
        if (x != y && x != 1 && y != 1)
            return false;
        shape[i] = x == 1 ? y : x;
    }
    return true;
}

static void check_two(sim_op *op, const sim_tensor *a, const sim_tensor *b, const sim_tensor *out)
{
    int64_t shape[SIM_RANK_MAX];
    int rank;
    if (!ops_common_shape(a, b, &rank, shape))
        sim_fault(op, 161002, "%s and %s do not broadcast", a->role, b->role);
    else
        sim_want_shape(op, 161002, out, rank, shape);
    op->elementwise = true;
}

void ops_read_number(sim_op *op, const aclScalar *scalar, const char *role, int slot)
{
    sim_scalar s = {0};
    if (!scalar)
        sim_fault(op, 161001, "%s is NULL", role);
    else if (!sim_scalar_of(scalar, &s))
        sim_fault(op, 161001, "%s is no live scalar", role);
    op->f[slot] = s.real;
}

SIM_RULE(aclnnAdd, ACL_SCALED_SUM)
{
    check_two(op, self, other, out);
    ops_read_number(op, alpha, "alpha", SCALE);
    op->i[KIND] = ADD;
    return sim_runs(op, run_combine, ops_small_workspace(op));
}

static uint64_t two(sim_op *op, int kind, const sim_tensor *self, const sim_tensor *other, const sim_tensor *out)
{
    check_two(op, self, other, out);
    op->i[KIND] = kind;
    return sim_runs(op, run_combine, ops_small_workspace(op));
}

SIM_RULE(aclnnMul, ACL_OF_TWO)
{
    return two(op, MUL, self, other, out);
}

SIM_RULE(aclnnDiv, ACL_OF_TWO)
{
    return two(op, DIV, self, other, out);
}

SIM_RULE(aclnnMuls, ACL_OF_NUMBER)
{
    ops_check_one(op, self, out);
    ops_read_number(op, other, "other", OTHER);
    op->i[KIND] = MUL;
    return sim_runs(op, run_combine, ops_small_workspace(op));
}

SIM_RULE(aclnnAdds, ACL_ADD_NUMBER)
{
    ops_check_one(op, self, out);
    ops_read_number(op, other, "other", OTHER);
    ops_read_number(op, alpha, "alpha", SCALE);
    op->i[KIND] = ADD;
    return sim_runs(op, run_combine, ops_small_workspace(op));
}

/* ---- fills ----------------------------------------------------------------------------------------------------- */

static int run_fill(sim_op *op)
{
    const sim_tensor *out = op->tensors[0];
    int64_t count = sim_elements(out);
    float *x = sim_allocate((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)op->f[OTHER];
    sim_store(out, x);
    free(x);
    return 0;
}

static int run_zero(sim_op *op)
{
    const sim_tensor *out = op->tensors[0];
    void *zeros = sim_allocate((size_t)sim_elements(out) * aclDataTypeSize(out->type));
    sim_store_raw(out, zeros);
    free(zeros);
    return 0;
}

SIM_RULE(aclnnInplaceZero, ACL_IN_PLACE)
{
    return sim_runs(op, run_zero, ops_small_workspace(op));
}

SIM_RULE(aclnnInplaceFillScalar, ACL_FILL)
{
    ops_read_number(op, value, "value", OTHER);
    return sim_runs(op, run_fill, ops_small_workspace(op));
}
