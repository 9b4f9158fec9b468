/* Grouped products of matrices, versions 4 and 5, as far as they are used: one x and one y, and counts of groups. Rows
 * of x are sorted by group, each group times a matrix of its own (one tensor of all, or a list); or columns of x and
 * rows of the one weight are, and y has the sum of each group. What the vendor's table has beside these is refused. */
#include "ops.h"

#include <stdlib.h>
#include <string.h>

enum { LIST_MAX = 128, GROUPS_MAX = 1024, LAST_AXIS_END = 65536 };
enum { BY_COLUMN, NEWER };      /* i */
enum { X, GROUPS, Y, WEIGHTS }; /* tensors: the weights come last */

/* The arguments of both versions. */
typedef struct grouped_call {
    const aclTensorList *x, *weight, *absent[11], *y; /* absent: have to be NULL */
    const aclTensor *groups;
    int64_t split_item, group_type, group_list_type, act_type;
    bool newer; /* V5 */
} grouped_call;

static bool has_list(const sim_op *op)
{
    return op->count > WEIGHTS + 1;
}

/* ---- when it runs ---------------------------------------------------------------------------------------------- */

/* Rows [from, to) of an axis of t. */
static sim_tensor slice(const sim_tensor *t, int axis, int64_t from, int64_t to)
{
    sim_tensor part = *t;
    if (part.host)
        part.host += (size_t)(from * t->strides[axis]) * aclDataTypeSize(t->type);
    part.shape[axis] = to - from;
    return part;
}

/* t[index], without its first dimension. */
static sim_tensor member(const sim_tensor *t, int64_t index)
{
    sim_tensor part = slice(t, 0, index, index + 1);
    part.rank--;
    memmove(part.shape, part.shape + 1, (size_t)part.rank * sizeof *part.shape);
    memmove(part.strides, part.strides + 1, (size_t)part.rank * sizeof *part.strides);
    return part;
}

/* y = x * w, of rank 2. */
static void multiply(const sim_tensor *x, const sim_tensor *w, const sim_tensor *y)
{
    int64_t rows = x->shape[0], inner = x->shape[1], columns = w->shape[1];
    float *a = sim_load(x), *b = sim_load(w), *c = sim_allocate((size_t)(rows * columns) * sizeof *c);
    ops_product(a, b, c, rows, inner, columns);
    sim_store(y, c);
    free(a);
    free(b);
    free(c);
}

/* A group without columns gives zeros; one without rows does not look at its weight. */
static void multiply_group(sim_op *op, int64_t g, int64_t from, int64_t to)
{
    int axis = (int)op->i[BY_COLUMN];
    const sim_tensor *all = op->tensors[WEIGHTS];
    sim_tensor x = slice(op->tensors[X], axis, from, to), y = *op->tensors[Y];
    sim_tensor w = axis ? slice(all, 0, from, to) : has_list(op) ? *op->tensors[WEIGHTS + g] : member(all, g);
    y = axis ? member(&y, g) : slice(&y, 0, from, to);
    if (axis || to > from)
        multiply(&x, &w, &y);
    else
        op->idle_bytes += sim_bytes(&w);
}

/* 507015 when the counts are not what their document says: hardware would not notice. */
static int run_grouped(sim_op *op)
{
    int64_t groups = op->tensors[GROUPS]->shape[0], total = op->tensors[X]->shape[op->i[BY_COLUMN]], from = 0;
    int64_t *counts = sim_load_ints(op->tensors[GROUPS]);
    int code = 0;
    for (int64_t g = 0; g < groups && !code; g++) {
        if (counts[g] < 0 || counts[g] > total - from)
            code = sim_violation(507015, "%s: group %lld has %lld of the %lld that are left of %lld", op->name,
                                 (long long)g, (long long)counts[g], (long long)(total - from), (long long)total);
        else
            multiply_group(op, g, from, from + counts[g]);
        from += counts[g];
    }
    free(counts);
    if (!code && from != total && !op->i[NEWER])
        sim_violation(0, "%s: the groups have %lld of %lld; older versions want all", op->name, (long long)from,
                      (long long)total);
    return code;
}

/* ---- rules ----------------------------------------------------------------------------------------------------- */

static void want_layout(sim_op *op, const sim_tensor *t, bool plain, bool across)
{
    if (!(plain && sim_contiguous(t)) && !(across && sim_transposed(t)))
        sim_fault(op, 161002, "%s has to be %s%s%s", t->role, plain ? "contiguous" : "", plain && across ? " or " : "",
                  across ? "a transposed view" : "");
    if (t->rank < 2)
        return;
    int64_t stored = t->shape[sim_contiguous(t) ? t->rank - 1 : t->rank - 2];
    if (stored >= LAST_AXIS_END)
        sim_fault(op, 161002, "the last axis of %s as stored has %lld elements", t->role, (long long)stored);
}

static void add_list(sim_op *op, const aclTensorList *list, const char *role, int64_t most)
{
    aclTensor *const *members = NULL;
    int64_t count = 0;
    if (!sim_list_of(list, &members, &count))
        sim_fault(op, 161001, "%s is NULL, or no live list", role);
    else if (!count || count > most)
        sim_fault(op, 161002, "%s has %lld tensors", role, (long long)count);
    for (int64_t i = 0; i < count; i++)
        if (strcmp(role, "y") == 0)
            sim_out(op, members[i], role);
        else
            sim_in(op, members[i], role);
}

static void check_options(sim_op *op, const grouped_call *call)
{
    for (size_t i = 0; i < sizeof call->absent / sizeof *call->absent; i++) {
        aclTensor *const *members;
        int64_t count = 0;
        if (call->absent[i] && (!sim_list_of(call->absent[i], &members, &count) || count))
            sim_fault(op, 161002,
                      "biases, quantisation and activations are not simulated: their lists have to be NULL");
    }
    if (call->split_item != 2 && call->split_item != 3)
        sim_fault(op, 161002, "splitItem %lld: several results are not simulated", (long long)call->split_item);
    if (call->group_type != 0 && call->group_type != 2)
        sim_fault(op, 161002, "groupType %lld", (long long)call->group_type);
    if (call->group_list_type != 1)
        sim_fault(op, 161002, "groupListType %lld: what is no count is not simulated",
                  (long long)call->group_list_type);
    if (call->act_type)
        sim_fault(op, 161002, "actType %lld is for quantised inputs", (long long)call->act_type);
}

static void check_types(sim_op *op)
{
    const sim_tensor *x = op->tensors[X], *counts = op->tensors[GROUPS];
    sim_want_type(op, x, SIM_FLOATS);
    for (int i = Y; i < op->count; i++)
        sim_want_same_type(op, x, op->tensors[i]);
    sim_want_type(op, counts, SIM_I64);
    sim_want_contiguous(op, counts);
    sim_want_rank(op, 161002, counts, 1, 1);
    if (counts->shape[0] > GROUPS_MAX || counts->shape[0] < 2) /* one: older text; newer versions may take it */
        sim_fault(op, 161002, "%lld groups; of one a plain product does it", (long long)counts->shape[0]);
    if (x->type == ACL_FLOAT && has_list(op))
        sim_fault(op, 161002, "FLOAT is for lists of one tensor");
    if (sim_soc_of() == SIM_310P &&
        (x->type != ACL_FLOAT16 || has_list(op) || op->i[BY_COLUMN] || op->tensors[WEIGHTS]->shape[2] % 16))
        sim_fault(op, 161002, "this chip has FLOAT16, single tensors, groups of rows and N a multiple of 16");
}

/* All weights alike: contiguous, or transposed. */
static void check_rows(sim_op *op)
{
    const sim_tensor *x = op->tensors[X], *w = op->tensors[WEIGHTS];
    int64_t groups = op->tensors[GROUPS]->shape[0], matrices = has_list(op) ? op->count - WEIGHTS : w->shape[0];
    int rank = has_list(op) ? 2 : 3;
    bool plain = true, across = true;
    sim_want_rank(op, 161002, w, rank, rank);
    sim_want_shape(op, 161002, x, 2, (int64_t[]){x->shape[0], w->shape[rank - 2]});
    sim_want_shape(op, 161002, op->tensors[Y], 2, (int64_t[]){x->shape[0], w->shape[rank - 1]});
    want_layout(op, x, true, false);
    for (int i = WEIGHTS; i < op->count; i++) {
        plain &= sim_contiguous(op->tensors[i]);
        across &= sim_transposed(op->tensors[i]);
        want_layout(op, op->tensors[i], true, true);
        sim_want_shape(op, 161002, op->tensors[i], rank, w->shape);
    }
    if (!plain && !across)
        sim_fault(op, 161002, "some weights are transposed and some are not");
    if (groups != matrices)
        sim_fault(op, 161002, "a group list of %lld for %lld weights", (long long)groups, (long long)matrices);
}

static void check_columns(sim_op *op)
{
    const sim_tensor *x = op->tensors[X], *w = op->tensors[WEIGHTS];
    if (has_list(op))
        sim_fault(op, 161002, "groups along K of several weights are not simulated");
    want_layout(op, x, false, true);
    want_layout(op, w, true, false);
    sim_want_rank(op, 161002, x, 2, 2);
    sim_want_shape(op, 161002, w, 2, (int64_t[]){x->shape[1], w->shape[1]});
    sim_want_shape(op, 161002, op->tensors[Y], 3, (int64_t[]){op->tensors[GROUPS]->shape[0], x->shape[0], w->shape[1]});
}

static uint64_t check(sim_op *op, const grouped_call *call)
{
    add_list(op, call->x, "x", 1);
    if (!sim_in_optional(op, call->groups, "groupListOptional")->present)
        sim_fault(op, 161002, "the group list is NULL");
    add_list(op, call->y, "y", 1);
    add_list(op, call->weight, "weight", LIST_MAX);
    check_options(op, call);
    op->i[BY_COLUMN] = call->group_type == 2;
    op->i[NEWER] = call->newer;
    if (!op->code)
        (op->i[BY_COLUMN] ? check_columns : check_rows)(op);
    if (!op->code) {
        check_types(op);
        want_layout(op, op->tensors[Y], true, false);
    }
    return sim_runs(op, run_grouped, OPS_WORKSPACE);
}

/* ---- versions -------------------------------------------------------------------------------------------------- */

/* Members of grouped_call that the arguments of both versions make. */
#define SINCE_V4                                                                                                       \
    .x = x, .weight = weight, .groups = groupListOptional, .y = out,                                                   \
    .absent = {biasOptional,                                                                                           \
               scaleOptional,                                                                                          \
               offsetOptional,                                                                                         \
               antiquantScaleOptional,                                                                                 \
               antiquantOffsetOptional,                                                                                \
               perTokenScaleOptional,                                                                                  \
               activationInputOptional,                                                                                \
               activationQuantScaleOptional,                                                                           \
               activationQuantOffsetOptional,                                                                          \
               activationFeatureOutOptional,                                                                           \
               dynQuantScaleOutOptional},                                                                              \
    .split_item = splitItem, .group_type = groupType, .group_list_type = groupListType, .act_type = actType

SIM_RULE(aclnnGroupedMatmulV4, ACL_GROUPED_V4)
{
    return check(op, &(grouped_call){SINCE_V4});
}

SIM_RULE(aclnnGroupedMatmulV5, ACL_GROUPED_V5)
{
    return check(op, &(grouped_call){SINCE_V4, .newer = true});
}
