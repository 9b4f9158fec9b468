/* Grouped products of matrices, versions 4 and 5: y_i = x_i * weight_i + bias_i. Which tensors are one and which are
 * lists, and along which dimension the groups are, follows the table in the vendor's documents; what it lacks is
 * refused. */
#include "ops.h"

#include <stdlib.h>
#include <string.h>

#define LIST_MAX 128
#define GROUPS_MAX 1024
#define LAST_AXIS_END 65536

enum { NX, NW, NB, NY, TYPE, LIST_TYPE, NEWER, HAS_LIST };

/* The arguments of both versions. */
typedef struct grouped_call {
    const aclTensorList *x, *weight, *bias, *absent[10], *y; /* absent: have to be NULL */
    const aclTensor *group_list;
    int64_t split_item, group_type, group_list_type, act_type;
    bool newer; /* V5 */
} grouped_call;

/* Tensors of op: x, weight, bias, the group list, y. */
static const sim_tensor *x_at(const sim_op *op, int64_t i)
{
    return op->tensors[i];
}

static const sim_tensor *weight_at(const sim_op *op, int64_t i)
{
    return op->tensors[op->i[NX] + i];
}

static const sim_tensor *bias_at(const sim_op *op, int64_t i)
{
    return op->tensors[op->i[NX] + op->i[NW] + i];
}

static const sim_tensor *group_list_at(const sim_op *op)
{
    return op->tensors[op->i[NX] + op->i[NW] + op->i[NB]];
}

static const sim_tensor *y_at(const sim_op *op, int64_t i)
{
    return op->tensors[op->i[NX] + op->i[NW] + op->i[NB] + 1 + i];
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

/* y = x * w + bias, of rank 2; bias NULL or [n]. */
static void multiply(const sim_tensor *x, const sim_tensor *w, const sim_tensor *bias, const sim_tensor *y)
{
    int64_t rows = x->shape[0], inner = x->shape[1], columns = w->shape[1];
    float *a = sim_load(x), *b = sim_load(w), *c = sim_allocate((size_t)(rows * columns) * sizeof *c);
    ops_product(a, b, c, rows, inner, columns);
    if (bias) {
        float *add = sim_load(bias);
        for (int64_t i = 0; i < rows * columns; i++)
            c[i] += add[i % columns];
        free(add);
    }
    sim_store(y, c);
    free(a);
    free(b);
    free(c);
}

static int64_t group_count(const sim_op *op)
{
    const sim_tensor *list = group_list_at(op);
    return list->present ? list->shape[0] : 0;
}

/* Where each group ends; 507015 when the list is not what its document says: hardware would not notice. Owned. */
static int group_ends(const sim_op *op, int64_t total, int64_t **out)
{
    const sim_tensor *list = group_list_at(op);
    int64_t count = group_count(op), sum = 0;
    bool pairs = list->rank == 2;
    int64_t *given = sim_load_ints(list);
    int64_t *ends = *out = sim_allocate((size_t)count * sizeof *ends);
    int code = 0;
    for (int64_t g = 0; g < count && !code; g++) {
        int64_t value = given[pairs ? 2 * g + 1 : g], before = sum;
        if (pairs && given[2 * g] != g)
            code =
                sim_violation(507015, "%s: pairs of the group list that are not in order are not simulated", op->name);
        sum = op->i[LIST_TYPE] ? sum + value : value;
        if (sum < before || sum > total)
            code = sim_violation(507015, "%s: group %lld goes from %lld to %lld of %lld", op->name, (long long)g,
                                 (long long)before, (long long)sum, (long long)total);
        ends[g] = sum;
    }
    free(given);
    if (!code && sum != total && !op->i[NEWER])
        sim_violation(0, "%s: the groups have %lld of %lld; older versions want all", op->name, (long long)sum,
                      (long long)total);
    return code;
}

static int run_separate(const sim_op *op)
{
    for (int64_t i = 0; i < op->i[NX]; i++)
        multiply(x_at(op, i), weight_at(op, i), op->i[NB] ? bias_at(op, i) : NULL, y_at(op, i));
    return 0;
}

static sim_tensor weight_of(const sim_op *op, int64_t g)
{
    return op->i[NW] == 1 ? member(weight_at(op, 0), g) : *weight_at(op, g);
}

static void multiply_rows(sim_op *op, int64_t g, const sim_tensor *x, int64_t from, int64_t to)
{
    sim_tensor w = weight_of(op, g), y = slice(y_at(op, 0), 0, from, to), bias;
    if (op->i[NB])
        bias = op->i[NB] == 1 ? member(bias_at(op, 0), g) : *bias_at(op, g);
    if (to > from)
        multiply(x, &w, op->i[NB] ? &bias : NULL, &y);
    else
        op->idle_bytes += sim_bytes(&w);
}

/* Groups of rows: those of one x, or one x for each. */
static int run_rows(sim_op *op)
{
    int64_t *ends = NULL, from = 0, total = y_at(op, 0)->shape[0], groups = op->i[NX];
    int code = op->i[HAS_LIST] ? group_ends(op, total, &ends) : 0;
    if (op->i[NX] == 1)
        groups = group_count(op);
    for (int64_t g = 0; g < groups && !code; g++) {
        int64_t to = op->i[NX] == 1 ? ends[g] : from + x_at(op, g)->shape[0];
        sim_tensor x = op->i[NX] == 1 ? slice(x_at(op, 0), 0, from, to) : *x_at(op, g);
        if (ends && ends[g] != to)
            code = sim_violation(507015, "%s: group %lld ends at %lld, its x at %lld", op->name, (long long)g,
                                 (long long)ends[g], (long long)to);
        else
            multiply_rows(op, g, &x, from, to);
        from = to;
    }
    free(ends);
    return code;
}

/* Groups along K: y[g] = x[:, group] * weight[group, :]; a group without elements gives zeros. */
static int run_inner(const sim_op *op)
{
    const sim_tensor *x = x_at(op, 0);
    int64_t *ends = NULL, from = 0, groups = op->i[NW] == 1 ? group_count(op) : op->i[NW];
    int code = op->i[NW] == 1 ? group_ends(op, x->shape[1], &ends) : 0;
    for (int64_t g = 0; g < groups && !code; g++) {
        int64_t to = ends ? ends[g] : from + weight_at(op, g)->shape[0];
        sim_tensor part = slice(x, 1, from, to);
        sim_tensor w = ends ? slice(weight_at(op, 0), 0, from, to) : *weight_at(op, g);
        sim_tensor y = ends ? member(y_at(op, 0), g) : *y_at(op, g);
        multiply(&part, &w, NULL, &y);
        from = to;
    }
    free(ends);
    return code;
}

static int run_grouped(sim_op *op)
{
    if (op->i[TYPE] == -1)
        return run_separate(op);
    return op->i[TYPE] == 0 ? run_rows(op) : run_inner(op);
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

static int add_list(sim_op *op, const aclTensorList *list, const char *role, bool output, bool optional)
{
    aclTensor *const *members = NULL;
    int64_t count = 0;
    if (!list && optional)
        return 0;
    if (!sim_list_of(list, &members, &count))
        sim_fault(op, 161001, "%s is NULL, or no live list", role);
    else if ((!count && !optional) || count > LIST_MAX)
        sim_fault(op, 161002, "%s has %lld tensors", role, (long long)count);
    for (int64_t i = 0; i < count; i++)
        if (output)
            sim_out(op, members[i], role);
        else
            sim_in(op, members[i], role);
    return (int)count;
}

static void check_types(sim_op *op)
{
    aclDataType type = x_at(op, 0)->type;
    bool lists = op->i[NX] > 1 || op->i[NW] > 1 || op->i[NY] > 1;
    for (int i = 0; i < op->i[NX]; i++) {
        sim_want_type(op, x_at(op, i), SIM_FLOATS);
        sim_want_same_type(op, x_at(op, 0), x_at(op, i));
    }
    for (int i = 0; i < op->i[NW]; i++)
        sim_want_same_type(op, x_at(op, 0), weight_at(op, i));
    for (int i = 0; i < op->i[NB]; i++)
        sim_want_type(op, bias_at(op, i), type == ACL_FLOAT16 ? SIM_F16 : SIM_F32);
    for (int i = 0; i < op->i[NY]; i++) {
        sim_want_same_type(op, x_at(op, 0), y_at(op, i));
        want_layout(op, y_at(op, i), true, false);
    }
    if (type == ACL_FLOAT && lists)
        sim_fault(op, 161002, "FLOAT is for lists of one tensor");
    if (sim_soc_of() == SIM_310P &&
        (type != ACL_FLOAT16 || lists || op->i[TYPE] != 0 || weight_at(op, 0)->shape[2] % 16))
        sim_fault(op, 161002, "this chip has FLOAT16, single tensors, groups of rows and N a multiple of 16");
}

static void want_matrix(sim_op *op, const sim_tensor *t, int64_t rows, int64_t columns)
{
    sim_want_shape(op, 161002, t, 2, (int64_t[]){rows, columns});
}

/* All weights alike: contiguous, or transposed. */
static void check_weights(sim_op *op)
{
    bool plain = true, across = true;
    for (int i = 0; i < op->i[NW]; i++) {
        plain &= sim_contiguous(weight_at(op, i));
        across &= sim_transposed(weight_at(op, i));
        want_layout(op, weight_at(op, i), true, true);
    }
    if (!plain && !across)
        sim_fault(op, 161002, "some weights are transposed and some are not");
}

static void check_bias(sim_op *op, int64_t groups, int64_t n)
{
    int64_t shape[] = {groups, n};
    if (op->i[NB] && op->i[NB] != op->i[NW])
        sim_fault(op, 161002, "%lld biases for %lld weights", (long long)op->i[NB], (long long)op->i[NW]);
    if (op->i[NB] && op->i[NW] == 1)
        sim_want_shape(op, 161002, bias_at(op, 0), 2, shape);
    for (int i = 0; op->i[NW] > 1 && i < op->i[NB]; i++)
        sim_want_shape(op, 161002, bias_at(op, i), 1, &weight_at(op, i)->shape[1]);
}

/* No groups: as many x as weights and y. */
static void check_separate(sim_op *op)
{
    if (op->i[NX] != op->i[NW] || op->i[NX] != op->i[NY] || op->i[HAS_LIST])
        sim_fault(op, 161002, "groupType -1 wants equal numbers of x, weight and y, and no group list");
    for (int i = 0; i < op->i[NX] && !op->code; i++) {
        const sim_tensor *x = x_at(op, i), *w = weight_at(op, i);
        sim_want_rank(op, 161002, x, 2, 2); /* older versions have up to 6 */
        want_layout(op, x, true, false);
        want_matrix(op, w, x->shape[1], w->shape[1]);
        want_matrix(op, y_at(op, i), x->shape[0], w->shape[1]);
        if (op->i[NB])
            sim_want_shape(op, 161002, bias_at(op, i), 1, &w->shape[1]);
    }
    if (op->i[NB] && op->i[NB] != op->i[NX])
        sim_fault(op, 161002, "%lld biases for %lld products", (long long)op->i[NB], (long long)op->i[NX]);
    check_weights(op);
}

static void check_rows(sim_op *op)
{
    const sim_tensor *w = weight_at(op, 0);
    bool single = op->i[NX] == 1 && op->i[NW] == 1;
    int64_t rows = 0, inner = w->shape[single ? 1 : 0], n = w->shape[single ? 2 : 1];
    sim_want_rank(op, 161002, w, single ? 3 : 2, single ? 3 : 2);
    if (op->i[NX] > 1 && op->i[NX] != op->i[NW])
        sim_fault(op, 161002, "%lld x for %lld weights", (long long)op->i[NX], (long long)op->i[NW]);
    if (op->i[NX] == 1 && !op->i[HAS_LIST])
        sim_fault(op, 161002, "the group list is NULL");
    for (int i = 0; i < op->i[NX]; i++) {
        sim_want_rank(op, 161002, x_at(op, i), 2, 2);
        rows += x_at(op, i)->shape[0];
        want_matrix(op, x_at(op, i), x_at(op, i)->shape[0], inner);
        want_layout(op, x_at(op, i), true, false);
    }
    for (int i = 1; i < op->i[NW]; i++)
        want_matrix(op, weight_at(op, i), inner, n);
    want_matrix(op, y_at(op, 0), rows, n);
    check_weights(op);
    check_bias(op, w->shape[0], n);
    if (op->i[HAS_LIST] && group_count(op) != (single ? w->shape[0] : op->i[NW]))
        sim_fault(op, 161002, "a group list of %lld for %lld weights", (long long)group_count(op),
                  (long long)(single ? w->shape[0] : op->i[NW]));
}

static void check_inner(sim_op *op)
{
    const sim_tensor *x = x_at(op, 0), *w = weight_at(op, 0);
    if (op->i[NX] != 1 || op->i[NB])
        sim_fault(op, 161002, "groups along K want one x and no bias");
    want_layout(op, x, false, true);
    sim_want_rank(op, 161002, x, 2, 2);
    sim_want_rank(op, 161002, w, 2, 2);
    for (int i = 0; i < op->i[NW]; i++)
        want_layout(op, weight_at(op, i), true, false);
    if (op->i[NW] == 1) {
        if (!op->i[HAS_LIST])
            sim_fault(op, 161002, "the group list is NULL");
        int64_t shape[] = {group_count(op), x->shape[0], w->shape[1]};
        want_matrix(op, w, x->shape[1], w->shape[1]);
        sim_want_shape(op, 161002, y_at(op, 0), 3, shape);
        return;
    }
    int64_t inner = 0;
    for (int i = 0; i < op->i[NW]; i++)
        inner += weight_at(op, i)->shape[0];
    if (!op->i[NEWER] || op->i[HAS_LIST] || op->i[NY] != op->i[NW] || inner != x->shape[1])
        sim_fault(op, 161002, "groups along K of several weights: newer versions, without group list, with as many y");
    for (int i = 0; i < op->i[NW] && !op->code; i++)
        want_matrix(op, y_at(op, i), x->shape[0], w->shape[1]);
}

static void check_group_list(sim_op *op, const grouped_call *call)
{
    const sim_tensor *list = group_list_at(op);
    int64_t count = group_count(op);
    if (!op->i[HAS_LIST])
        return;
    sim_want_type(op, list, SIM_I64);
    sim_want_contiguous(op, list);
    sim_want_rank(op, 161002, list, call->group_list_type == 2 ? 2 : 1, call->group_list_type == 2 ? 2 : 1);
    if (call->group_list_type == 2 && (list->shape[1] != 2 || !op->i[NEWER]))
        sim_fault(op, 161002, "pairs are of shape [E, 2], in newer versions");
    if (count < 1 || count > GROUPS_MAX)
        sim_fault(op, 161002, "a group list of %lld", (long long)count);
    if (call->group_list_type == 1 && count == 1) /* older text; whether newer versions take it is uncertain */
        sim_fault(op, 161002, "counts of a single group are refused: a plain product does it");
}

static void check_options(sim_op *op, const grouped_call *call)
{
    for (size_t i = 0; i < sizeof call->absent / sizeof *call->absent; i++) {
        aclTensor *const *members;
        int64_t count = 0;
        if (call->absent[i] && (!sim_list_of(call->absent[i], &members, &count) || count))
            sim_fault(op, 161002, "quantisation and activations are not simulated: their lists have to be NULL");
    }
    if (call->split_item < 0 || call->split_item > 3)
        sim_fault(op, 161002, "splitItem %lld", (long long)call->split_item);
    if (call->group_type != -1 && call->group_type != 0 && call->group_type != 2)
        sim_fault(op, 161002, "groupType %lld", (long long)call->group_type);
    if (call->group_list_type < 0 || call->group_list_type > 2)
        sim_fault(op, 161002, "groupListType %lld", (long long)call->group_list_type);
    if (call->act_type)
        sim_fault(op, 161002, "actType %lld is for quantised inputs", (long long)call->act_type);
    bool one = call->split_item >= 2, several = call->group_type == -1 || (call->group_type == 2 && op->i[NW] > 1);
    if (one == several || (one && op->i[NY] != 1))
        sim_fault(op, 161002, "splitItem %lld with groupType %lld and %lld y", (long long)call->split_item,
                  (long long)call->group_type, (long long)op->i[NY]);
}

static void add_tensors(sim_op *op, const grouped_call *call)
{
    op->i[NX] = add_list(op, call->x, "x", false, false);
    op->i[NW] = add_list(op, call->weight, "weight", false, false);
    op->i[NB] = add_list(op, call->bias, "biasOptional", false, true);
    const sim_tensor *list = sim_in_optional(op, call->group_list, "groupListOptional");
    op->i[NY] = add_list(op, call->y, "y", true, false);
    op->i[HAS_LIST] = list->present;
    op->i[TYPE] = call->group_type;
    op->i[LIST_TYPE] = call->group_list_type;
    op->i[NEWER] = call->newer;
}

static uint64_t check(sim_op *op, const grouped_call *call)
{
    add_tensors(op, call);
    check_options(op, call);
    if (!op->code)
        check_group_list(op, call);
    if (!op->code && call->group_type == -1)
        check_separate(op);
    else if (!op->code && call->group_type == 0)
        check_rows(op);
    else if (!op->code)
        check_inner(op);
    if (!op->code)
        check_types(op);
    return sim_runs(op, run_grouped, OPS_WORKSPACE);
}

/* ---- versions -------------------------------------------------------------------------------------------------- */

/* Members of grouped_call that the arguments of both versions make. */
#define SINCE_V4                                                                                                       \
    .x = x, .weight = weight, .bias = biasOptional,                                                                    \
    .absent = {scaleOptional,                                                                                          \
               offsetOptional,                                                                                         \
               antiquantScaleOptional,                                                                                 \
               antiquantOffsetOptional,                                                                                \
               perTokenScaleOptional,                                                                                  \
               activationInputOptional,                                                                                \
               activationQuantScaleOptional,                                                                           \
               activationQuantOffsetOptional,                                                                          \
               activationFeatureOutOptional,                                                                           \
               dynQuantScaleOutOptional},                                                                              \
    .y = out, .group_list = groupListOptional, .split_item = splitItem, .group_type = groupType,                       \
    .group_list_type = groupListType, .act_type = actType

SIM_RULE(aclnnGroupedMatmulV4, ACL_GROUPED_V4)
{
    return check(op, &(grouped_call){SINCE_V4});
}

SIM_RULE(aclnnGroupedMatmulV5, ACL_GROUPED_V5)
{
    return check(op, &(grouped_call){SINCE_V4, .newer = true});
}
