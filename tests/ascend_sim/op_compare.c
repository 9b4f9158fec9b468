/* Comparisons of a tensor with a number, and the choice between two tensors by such a result. */
#include "ops.h"

#include <stdlib.h>

/* ---- a tensor and a number ------------------------------------------------------------------------------------- */

enum { GREATER, GREATER_EQUAL, LESS }; /* i[KIND] */
enum { KIND, OTHER };

/* NaN is neither, as everywhere. */
static bool holds(int64_t kind, double a, double b)
{
    return kind == GREATER ? a > b : kind == GREATER_EQUAL ? a >= b : a < b;
}

/* In 32 bits with the number as it is: neither is rounded to 16 bits first. */
static int run_compare(sim_op *op)
{
    const sim_tensor *self = op->tensors[0], *out = op->tensors[1];
    int64_t count = sim_elements(out), *result = sim_allocate((size_t)count * sizeof *result);
    float *x = sim_load(self);
    for (int64_t i = 0; i < count; i++)
        result[i] = holds(op->i[KIND], (double)x[i], op->f[OTHER]);
    free(x);
    sim_store_ints(out, result);
    free(result);
    return 0;
}

static uint64_t compare(sim_op *op, int64_t kind, const sim_tensor *self, const aclScalar *other, const sim_tensor *out)
{
    sim_scalar s = {0};
    ops_check_one(op, self, out);
    ops_read_number(op, other, "other", OTHER);
    if (sim_scalar_of(other, &s) && sim_soc_of() == SIM_310P && s.type == ACL_BF16)
        sim_fault(op, 161002, "other is BF16, which this chip has not");
    op->i[KIND] = kind;
    return sim_runs(op, run_compare, OPS_WORKSPACE);
}

SIM_RULE(aclnnGtScalar, ACL_OF_NUMBER)
{
    return compare(op, GREATER, self, other, out);
}

SIM_RULE(aclnnGeScalar, ACL_OF_NUMBER)
{
    return compare(op, GREATER_EQUAL, self, other, out);
}

SIM_RULE(aclnnLtScalar, ACL_OF_NUMBER)
{
    return compare(op, LESS, self, other, out);
}

/* ---- a choice -------------------------------------------------------------------------------------------------- */

/* Tensors: condition, self, other, out. */
static int run_where(sim_op *op)
{
    const sim_tensor *out = op->tensors[3];
    sim_tensor views[3];
    for (int i = 0; i < 3; i++)
        sim_broadcast(op->tensors[i], out->rank, out->shape, &views[i]);
    int64_t *condition = sim_load_ints(&views[0]);
    float *x = sim_load(&views[1]), *y = sim_load(&views[2]);
    for (int64_t i = 0, count = sim_elements(out); i < count; i++) {
        if (condition[i] != 0 && condition[i] != 1) {
            sim_violation(0, "aclnnSWhere: element %lld of condition is neither true nor false", (long long)i);
            break;
        }
        x[i] = condition[i] ? x[i] : y[i];
    }
    sim_store(out, x);
    free(condition);
    free(x);
    free(y);
    return 0;
}

static void check_where_shapes(sim_op *op)
{
    const sim_tensor *condition = op->tensors[0], *self = op->tensors[1], *other = op->tensors[2];
    sim_tensor both = {.present = true};
    int64_t shape[SIM_RANK_MAX];
    int rank;
    if (!ops_common_shape(self, other, &both.rank, both.shape) || !ops_common_shape(condition, &both, &rank, shape))
        sim_fault(op, 161002, "condition, self and other do not broadcast");
    else
        sim_want_shape(op, 161002, op->tensors[3], rank, shape);
}

SIM_RULE(aclnnSWhere, ACL_CHOICE)
{
    check_where_shapes(op);
    op->elementwise = true;
    return sim_runs(op, run_where, OPS_WORKSPACE);
}
