/* What the operators share within libopapi.so. */
#ifndef ASCEND_SIM_OPS_H
#define ASCEND_SIM_OPS_H

#include "sim.h"

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

/* For operators of A2 and A3 that the documents, as far as they are at hand, do not give to 310P. */
static inline void ops_refuse_310p(sim_op *op)
{
    if (sim_soc_of() == SIM_310P)
        sim_fault(op, 561003, "no kernel of this chip");
}

/* The type in which two are computed, by the vendor's table of tensors with tensors. */
aclDataType ops_promoted(aclDataType a, aclDataType b);
/* Of what broadcasting a and b gives; false: they do not. */
bool ops_common_shape(const sim_tensor *a, const sim_tensor *b, int *rank, int64_t *shape);
/* The value of a scalar into i and f of op at slot; NULL is 161001. Goes with the tensor added last: when that holds
 * whole numbers the value has to be whole. */
void ops_read_number(sim_op *op, const aclScalar *scalar, const char *role, int slot);
/* The first tensor is one of types, the last one is like it and may be it. */
void ops_check_one(sim_op *op, int types);

/* c [rows, columns] = a [rows, inner] times b [inner, columns], all packed. */
void ops_product(const float *a, const float *b, float *c, int64_t rows, int64_t inner, int64_t columns);

/* In place. */
void ops_softmax_row(float *x, int64_t count);

/* The k largest (smallest) of x, in order, and where they are. Of equal values the first ones: which the vendor takes
 * is not certain. */
void ops_top_row(const float *x, int64_t length, int64_t k, bool largest, float *values, int64_t *indices);

/* All versions of grouped products, see op_grouped.c. */
typedef struct ops_grouped {
    const aclTensorList *x, *weight, *bias, *absent[10], *y; /* absent: have to be NULL */
    const aclTensor *group_list;
    const aclIntArray *group_list_host;
    int64_t split_item, group_type, group_list_type, act_type;
    bool newer; /* V5 */
} ops_grouped;
aclnnStatus ops_grouped_matmul(const char *name, const ops_grouped *call, uint64_t *workspaceSize,
                               aclOpExecutor **executor);

/* newer: x may have rank 3. */
aclnnStatus ops_rotary(const char *name, const aclTensor *x, const aclTensor *cos, const aclTensor *sin, int64_t mode,
                       bool newer, aclTensor *out, uint64_t *workspaceSize, aclOpExecutor **executor);

typedef struct ops_rotary_tensors {
    const aclTensor *dy, *cos, *sin, *x, *dx, *dcos, *dsin;
} ops_rotary_tensors;
aclnnStatus ops_rotary_grad(const char *name, const ops_rotary_tensors *t, int64_t mode, uint64_t *workspaceSize,
                            aclOpExecutor **executor);

/* Positions of count values in ascending order. Equal ones come in reverse: which order the vendor has is not certain,
 * and nobody may count on one. Owned. */
int64_t *ops_argsort(const int64_t *values, int64_t count);

#endif
