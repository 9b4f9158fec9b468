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

#define RUN(operator, function)                                                                                        \
    static int run_##operator(sim_op *op)                                                                              \
    {                                                                                                                  \
        apply(op, function);                                                                                           \
        return 0;                                                                                                      \
    }
#define FUNCTION(operator, function)                                                                                   \
    RUN(operator, function)                                                                                            \
    SIM_RULE(operator, ACL_OF_ONE)                                                                                     \
    {                                                                                                                  \
        ops_check_one(op, self, out);                                                                                  \
        return sim_runs(op, run_##operator, ops_small_workspace(op));                                                  \
    }

FUNCTION(aclnnSilu, silu)
FUNCTION(aclnnSigmoid, ops_sigmoid)
FUNCTION(aclnnTanh, tanhf)
FUNCTION(aclnnErf, erff)
FUNCTION(aclnnExp, expf)
FUNCTION(aclnnSqrt, sqrtf)
FUNCTION(aclnnRsqrt, reciprocal_root)

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

SIM_RULE(aclnnSoftplus, ACL_SOFTPLUS)
{
    ops_check_one(op, self, out);
    ops_read_number(op, beta, "beta", BETA);
    ops_read_number(op, threshold, "threshold", THRESHOLD);
    if (op->f[BETA] == 0.0 || isnan(op->f[BETA]) || isnan(op->f[THRESHOLD]))
        sim_fault(op, 161002, "beta %g, threshold %g", op->f[BETA], op->f[THRESHOLD]);
    return sim_runs(op, run_softplus, OPS_WORKSPACE);
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

static void read_limit(sim_op *op, const aclScalar *scalar, const char *role, int slot)
{
    if (!scalar)
        return;
    ops_read_number(op, scalar, role, slot);
    op->i[slot + HAS_LEAST] = 1;
    if (isnan(op->f[slot]))
        sim_fault(op, 161002, "%s is NaN", role);
}

SIM_RULE(aclnnClamp, ACL_CLAMP)
{
    ops_check_one(op, self, out);
    sim_want_rank(op, 161002, self, 1, SIM_RANK_MAX);
    if (!clipValueMin && !clipValueMax)
        sim_fault(op, 161001, "clipValueMin and clipValueMax are NULL, both");
    read_limit(op, clipValueMin, "clipValueMin", LEAST);
    read_limit(op, clipValueMax, "clipValueMax", MOST);
    return sim_runs(op, run_clamp, ops_small_workspace(op));
}

/* ---- relu ------------------------------------------------------------------------------------------------------ */

static float positive(float v)
{
    return isnan(v) || v > 0.0f ? v : 0.0f;
}

RUN(relu, positive)

SIM_RULE(aclnnRelu, ACL_RELU)
{
    ops_check_one(op, self, out);
    return sim_runs(op, run_relu, ops_small_workspace(op));
}
