/* Functions of single elements: one tensor in, one out, and the numbers of Softplus and Clamp. Numbers of floating
 * point are computed in 32 bits and rounded once. NaN is passed on. */
#include "ops.h"

#include <stdlib.h>

/* ---- functions ------------------------------------------------------------------------------------------------- */

static void apply(const sim_op *op, float (*function)(float))
{
    const sim_tensor *out = op->tensors[1];
    float *x = sim_load(op->tensors[0]);
    for (int64_t i = 0, count = sim_elements(out); i < count; i++)
        x[i] = function(x[i]);
    sim_store(out, x);
    free(x);
}

static float silu(float v)
{
    return v * ops_sigmoid(v);
}

static float reciprocal_root(float v)
{
    return 1.0f / sqrtf(v);
}

#define RUN(name, function)                                                                                            \
    static int run_##name(sim_op *op)                                                                                  \
    {                                                                                                                  \
        apply(op, function);                                                                                           \
        return 0;                                                                                                      \
    }

RUN(silu, silu)
RUN(sigmoid, ops_sigmoid)
RUN(tanh, tanhf)
RUN(erf, erff)
RUN(exp, expf)
RUN(sqrt, sqrtf)
RUN(rsqrt, reciprocal_root)

aclnnStatus aclnnSiluGetWorkspaceSize(const aclTensor *self, aclTensor *out, uint64_t *workspaceSize,
                                      aclOpExecutor **executor)
{
    SIM_HOLD;
    sim_op *op = sim_begin("aclnnSilu", run_silu);
    sim_in(op, self, "self");
    sim_out(op, out, "out");
    ops_check_one(op, SIM_FLOATS);
    return sim_finish(op, ops_small_workspace(op), workspaceSize, executor);
}

aclnnStatus aclnnSigmoidGetWorkspaceSize(const aclTensor *self, aclTensor *out, uint64_t *workspaceSize,
                                         aclOpExecutor **executor)
{
    SIM_HOLD;
    sim_op *op = sim_begin("aclnnSigmoid", run_sigmoid);
    sim_in(op, self, "self");
    sim_out(op, out, "out");
    ops_check_one(op, SIM_FLOATS);
    return sim_finish(op, ops_small_workspace(op), workspaceSize, executor);
}

/* Functions that also take whole numbers: then any type of floating point comes out. Of those the result is of the same
 * type here, which is narrower than the documents. */
static aclnnStatus function(sim_op *op, const aclTensor *self, aclTensor *out, int wholes, uint64_t *workspaceSize,
                            aclOpExecutor **executor)
{
    const sim_tensor *from = sim_in(op, self, "self"), *to = sim_out(op, out, "out");
    sim_want_type(op, from, SIM_FLOATS | wholes);
    sim_want_type(op, to, SIM_FLOATS);
    if (sim_type_bit(from->type) & SIM_FLOATS)
        sim_want_same_type(op, from, to);
    sim_want_shape(op, 161002, to, from->rank, from->shape);
    op->elementwise = true;
    uint64_t more = from->type == to->type ? 0 : OPS_WORKSPACE; /* for a copy in 32 bits */
    return sim_finish(op, ops_small_workspace(op) + more, workspaceSize, executor);
}

aclnnStatus aclnnTanhGetWorkspaceSize(const aclTensor *self, aclTensor *out, uint64_t *workspaceSize,
                                      aclOpExecutor **executor)
{
    SIM_HOLD;
    sim_op *op = sim_begin("aclnnTanh", run_tanh);
    ops_refuse_310p(op);
    return function(op, self, out, SIM_WHOLE | SIM_BOOL, workspaceSize, executor);
}

aclnnStatus aclnnErfGetWorkspaceSize(const aclTensor *self, aclTensor *out, uint64_t *workspaceSize,
                                     aclOpExecutor **executor)
{
    SIM_HOLD;
    sim_op *op = sim_begin("aclnnErf", run_erf);
    ops_refuse_310p(op);
    return function(op, self, out, SIM_I64 | SIM_BOOL, workspaceSize, executor);
}

aclnnStatus aclnnExpGetWorkspaceSize(const aclTensor *self, aclTensor *out, uint64_t *workspaceSize,
                                     aclOpExecutor **executor)
{
    SIM_HOLD;
    sim_op *op = sim_begin("aclnnExp", run_exp);
    ops_refuse_310p(op);
    return function(op, self, out, SIM_I64 | SIM_BOOL, workspaceSize, executor);
}

aclnnStatus aclnnSqrtGetWorkspaceSize(const aclTensor *self, aclTensor *out, uint64_t *workspaceSize,
                                      aclOpExecutor **opExecutor)
{
    SIM_HOLD;
    sim_op *op = sim_begin("aclnnSqrt", run_sqrt);
    ops_refuse_310p(op);
    return function(op, self, out, SIM_WHOLE | SIM_BOOL, workspaceSize, opExecutor);
}

aclnnStatus aclnnRsqrtGetWorkspaceSize(const aclTensor *self, aclTensor *out, uint64_t *workspaceSize,
                                       aclOpExecutor **executor)
{
    SIM_HOLD;
    sim_op *op = sim_begin("aclnnRsqrt", run_rsqrt);
    return function(op, self, out, SIM_WHOLE | SIM_BOOL, workspaceSize, executor);
}

/* ---- softplus -------------------------------------------------------------------------------------------------- */

enum { BETA, THRESHOLD };

static int run_softplus(sim_op *op)
{
    const sim_tensor *out = op->tensors[1];
    float *x = sim_load(op->tensors[0]), beta = (float)op->f[BETA], threshold = (float)op->f[THRESHOLD];
    for (int64_t i = 0, count = sim_elements(out); i < count; i++)
        x[i] = beta * x[i] > threshold ? x[i] : log1pf(expf(beta * x[i])) / beta;
    sim_store(out, x);
    free(x);
    return 0;
}

aclnnStatus aclnnSoftplusGetWorkspaceSize(const aclTensor *self, const aclScalar *beta, const aclScalar *threshold,
                                          aclTensor *out, uint64_t *workspaceSize, aclOpExecutor **executor)
{
    SIM_HOLD;
    sim_op *op = sim_begin("aclnnSoftplus", run_softplus);
    sim_in(op, self, "self");
    sim_out(op, out, "out");
    ops_check_one(op, SIM_FLOATS);
    ops_read_number(op, beta, "beta", BETA);
    ops_read_number(op, threshold, "threshold", THRESHOLD);
    if (op->f[BETA] == 0.0 || isnan(op->f[BETA]) || isnan(op->f[THRESHOLD]))
        sim_fault(op, 161002, "beta %g, threshold %g", op->f[BETA], op->f[THRESHOLD]);
    return sim_finish(op, OPS_WORKSPACE, workspaceSize, executor);
}

/* ---- limits ---------------------------------------------------------------------------------------------------- */

enum { LEAST, MOST };
enum { HAS_LEAST = 2, HAS_MOST };

/* A lower limit above the upper one wins, by the documented formula; PyTorch has it the other way round. */
static int run_clamp(sim_op *op)
{
    const sim_tensor *out = op->tensors[1];
    float *x = sim_load(op->tensors[0]), least = (float)op->f[LEAST], most = (float)op->f[MOST];
    for (int64_t i = 0, count = sim_elements(out); i < count; i++) {
        if (op->i[HAS_MOST] && x[i] > most)
            x[i] = most;
        if (op->i[HAS_LEAST] && x[i] < least)
            x[i] = least;
    }
    sim_store(out, x);
    free(x);
    return 0;
}

static int run_clamp_whole(sim_op *op)
{
    const sim_tensor *out = op->tensors[1];
    int64_t *x = sim_load_ints(op->tensors[0]);
    for (int64_t i = 0, count = sim_elements(out); i < count; i++) {
        if (op->i[HAS_MOST] && x[i] > op->i[MOST])
            x[i] = op->i[MOST];
        if (op->i[HAS_LEAST] && x[i] < op->i[LEAST])
            x[i] = op->i[LEAST];
    }
    sim_store_ints(out, x);
    free(x);
    return 0;
}

static bool type_holds(aclDataType type, int64_t value)
{
    if (type == ACL_INT64)
        return true;
    if (type == ACL_UINT8)
        return value >= 0 && value <= UINT8_MAX;
    int64_t end = (int64_t)1 << (8 * sim_size(type) - 1);
    return value >= -end && value < end;
}

static void read_limit(sim_op *op, const aclScalar *scalar, const char *role, int slot)
{
    aclDataType type = op->tensors[0]->type;
    if (!scalar)
        return;
    ops_read_number(op, scalar, role, slot);
    op->i[slot + HAS_LEAST] = 1;
    if (isnan(op->f[slot]))
        sim_fault(op, 161002, "%s is NaN", role);
    if (sim_type_bit(type) & SIM_WHOLE && !type_holds(type, op->i[slot]))
        sim_fault(op, 161002, "%s is %lld, more than %s holds", role, (long long)op->i[slot], sim_type_name(type));
}

aclnnStatus aclnnClampGetWorkspaceSize(const aclTensor *self, const aclScalar *clipValueMin,
                                       const aclScalar *clipValueMax, aclTensor *out, uint64_t *workspaceSize,
                                       aclOpExecutor **executor)
{
    SIM_HOLD;
    sim_op *op = sim_begin("aclnnClamp", run_clamp);
    const sim_tensor *from = sim_in(op, self, "self");
    sim_out(op, out, "out");
    ops_check_one(op, SIM_FLOATS | SIM_WHOLE);
    sim_want_rank(op, 161002, from, 1, SIM_RANK_MAX);
    if (!clipValueMin && !clipValueMax)
        sim_fault(op, 161001, "clipValueMin and clipValueMax are NULL, both");
    read_limit(op, clipValueMin, "clipValueMin", LEAST);
    read_limit(op, clipValueMax, "clipValueMax", MOST);
    if (sim_type_bit(from->type) & SIM_WHOLE)
        op->run = run_clamp_whole;
    return sim_finish(op, ops_small_workspace(op), workspaceSize, executor);
}

/* ---- relu ------------------------------------------------------------------------------------------------------ */

static float positive(float v)
{
    return isnan(v) || v > 0.0f ? v : 0.0f;
}

RUN(relu, positive)

/* A clamp whose limit is 0. */
static int run_relu_whole(sim_op *op)
{
    op->i[HAS_LEAST] = 1;
    return run_clamp_whole(op);
}

aclnnStatus aclnnReluGetWorkspaceSize(const aclTensor *self, const aclTensor *out, uint64_t *workspaceSize,
                                      aclOpExecutor **executor)
{
    SIM_HOLD;
    sim_op *op = sim_begin("aclnnRelu", run_relu);
    const sim_tensor *from = sim_in(op, self, "self");
    sim_out(op, out, "out");
    ops_refuse_310p(op);
    ops_check_one(op, SIM_FLOATS | SIM_I32); /* headers and documents differ over the other whole numbers */
    if (from->type == ACL_INT32)
        op->run = run_relu_whole;
    return sim_finish(op, ops_small_workspace(op), workspaceSize, executor);
}
