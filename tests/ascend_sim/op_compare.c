/* Comparisons of a tensor with a number, and the choice between two tensors by such a result. */
#include "ops.h"

#include <stdlib.h>
#include <string.h>

/* ---- a tensor and a number ------------------------------------------------------------------------------------- */

enum { GREATER, GREATER_EQUAL, LESS }; /* i[KIND] */
enum { KIND, OTHER, IN_WHOLES };

/* NaN is neither, as everywhere. */
static bool holds(int64_t kind, double a, double b)
{
    return kind == GREATER ? a > b : kind == GREATER_EQUAL ? a >= b : a < b;
}

static bool holds_whole(int64_t kind, int64_t a, int64_t b)
{
    return kind == GREATER ? a > b : kind == GREATER_EQUAL ? a >= b : a < b;
}

/* Whole numbers with a whole number in 64 bits; others as 32-bit floating point with the number as it is: neither is
 * rounded to 16 bits first. */
static int run_compare(sim_op *op)
{
    const sim_tensor *self = op->tensors[0], *out = op->tensors[1];
    int64_t count = sim_elements(out), *result = sim_allocate((size_t)count * sizeof *result);
    if (op->i[IN_WHOLES]) {
        int64_t *x = sim_load_ints(self);
        for (int64_t i = 0; i < count; i++)
            result[i] = holds_whole(op->i[KIND], x[i], op->i[OTHER]);
        free(x);
    } else {
        float *x = sim_load(self);
        for (int64_t i = 0; i < count; i++)
            result[i] = holds(op->i[KIND], (double)x[i], op->f[OTHER]);
        free(x);
    }
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
    op->i[IN_WHOLES] = !((sim_type_bit(self->type) | sim_type_bit(s.type)) & (SIM_FLOATS | SIM_F64));
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

/* Elements of t, packed: as they are when they need no conversion, else as numbers of 32 bits or whole ones of 64. */
static void *load_as(const sim_tensor *t, aclDataType type, bool as_is)
{
    if (as_is)
        return sim_load_raw(t);
    return sim_type_bit(type) & SIM_FLOATS ? (void *)sim_load(t) : (void *)sim_load_ints(t);
}

static void store_as(const sim_tensor *out, const void *packed, bool as_is)
{
    if (as_is)
        sim_store_raw(out, packed);
    else if (sim_type_bit(out->type) & SIM_FLOATS)
        sim_store(out, packed);
    else
        sim_store_ints(out, packed);
}

/* Tensors: condition, self, other, out. */
static int run_where(sim_op *op)
{
    const sim_tensor *out = op->tensors[3];
    sim_tensor views[3];
    for (int i = 0; i < 3; i++)
        sim_broadcast(op->tensors[i], out->rank, out->shape, &views[i]);
    bool as_is = views[1].type == views[2].type;
    size_t size = as_is                                  ? aclDataTypeSize(out->type)
                  : sim_type_bit(out->type) & SIM_FLOATS ? sizeof(float)
                                                         : sizeof(int64_t);
    int64_t *condition = sim_load_ints(&views[0]);
    char *x = load_as(&views[1], out->type, as_is), *y = load_as(&views[2], out->type, as_is);
    for (int64_t i = 0, count = sim_elements(out); i < count; i++) {
        if (condition[i] != 0 && condition[i] != 1) {
            sim_violation(0, "aclnnSWhere: element %lld of condition is neither true nor false", (long long)i);
            break;
        }
        if (!condition[i])
            memcpy(x + (size_t)i * size, y + (size_t)i * size, size);
    }
    store_as(out, x, as_is);
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
