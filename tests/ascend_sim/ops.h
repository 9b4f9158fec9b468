/* What the operators share within libopapi.so. */
#ifndef ASCEND_SIM_OPS_H
#define ASCEND_SIM_OPS_H

#include "sim.h"

#include "acl_types.h" /* behind sim.h, which says what is seen from outside */

#include <math.h>

/* Operators that want memory of their own ask for an odd amount of it, so that the path is used. */
#define OPS_WORKSPACE 16416

/* For operators that need none but to copy what is not contiguous. */
static inline uint64_t ops_small_workspace(const sim_op *op)
{
    for (int i = 0; i < op->count; i++)
        if (!sim_contiguous(op->tensors[i]))
            return OPS_WORKSPACE / 2;
    return 0;
}

static inline float ops_sigmoid(float v)
{
    return 1.0f / (1.0f + expf(-v));
}

/* ---- both phases of an operator, from its row in acl_ops.def ---------------------------------------------------- */

/* sim_NAME(op, the arguments) has what an operator's row does not say, which it checks in the first phase: its tensors
 * were added to op in their order, and what the row has as a value is given as it is. It says what performs the
 * operator and returns the workspace that it wants. */
#define SIM_TENSOR(role, name) , const sim_tensor *name __attribute__((unused))
#define SIM_VALUE(type, name) , type name __attribute__((unused))
#define SIM_RULE(operator, arguments) uint64_t sim_##operator(sim_op *op arguments(SIM_TENSOR, SIM_VALUE))
#define ACL_OP(operator, need, chips, known, types, strides, arguments) SIM_RULE(operator, arguments);
#include "acl_ops.def"
#undef ACL_OP

static inline uint64_t sim_runs(sim_op *op, int (*run)(sim_op *op), uint64_t workspace)
{
    op->run = run;
    return workspace;
}

enum { ANY_CHIP, A2_A3 };
/* What the row says of the tensors that were added, and of chips. */
void ops_check_row(sim_op *op, int chips, const char *types, const char *strides);

#define sim_result sim_out
#define sim_result_optional sim_out_optional
#define SIM_ADD_TENSOR(role, name) const sim_tensor *added_##name = sim_##role(op, name, #name);
#define SIM_ADD_VALUE(type, name)
#define SIM_PASS_TENSOR(role, name) , added_##name
#define SIM_PASS_VALUE(type, name) , name
#define SIM_BOTH_PHASES(operator, chips, types, strides, arguments)                                                    \
    aclnnStatus operator##GetWorkspaceSize(arguments(ACL_TENSOR, ACL_VALUE) uint64_t *workspaceSize,                   \
                                           aclOpExecutor **executor)                                                   \
    {                                                                                                                  \
        SIM_HOLD;                                                                                                      \
        sim_op *op = sim_begin(#operator);                                                                             \
        arguments(SIM_ADD_TENSOR, SIM_ADD_VALUE);                                                                      \
        ops_check_row(op, chips, types, strides);                                                                      \
        uint64_t workspace = sim_##operator(op arguments(SIM_PASS_TENSOR, SIM_PASS_VALUE));                            \
        return sim_finish(op, workspace, workspaceSize, executor);                                                     \
    }                                                                                                                  \
    aclnnStatus operator(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor, aclrtStream stream)         \
    {                                                                                                                  \
        return sim_second(#operator, workspace, workspaceSize, executor, stream);                                      \
    }

/* ---- what their rules share ------------------------------------------------------------------------------------ */

/* Of what broadcasting a and b gives; false: they do not. */
bool ops_common_shape(const sim_tensor *a, const sim_tensor *b, int *rank, int64_t *shape);
/* The value of a scalar into f of op at slot; NULL is 161001. */
void ops_read_number(sim_op *op, const aclScalar *scalar, const char *role, int slot);
/* t has the shape of like. */
static inline void ops_want_like(sim_op *op, int code, const sim_tensor *like, const sim_tensor *t)
{
    sim_want_shape(op, code, t, like->rank, like->shape);
}

/* out has the shape of self and may be it. */
static inline void ops_check_one(sim_op *op, const sim_tensor *self, const sim_tensor *out)
{
    ops_want_like(op, 161002, self, out);
    op->elementwise = true;
}

/* c [rows, columns] = a [rows, inner] times b [inner, columns], all packed. */
void ops_product(const float *a, const float *b, float *c, int64_t rows, int64_t inner, int64_t columns);

/* In place. */
void ops_softmax_row(float *x, int64_t count);

#endif
