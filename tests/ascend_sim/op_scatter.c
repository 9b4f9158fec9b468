/* Rows that are put where an index says. */
#include "ops.h"

#include <stdlib.h>
#include <string.h>

/* Tensors: data, indices, updates. i: the axis. Batch b of updates goes to places indices[b] and on along the axis. */
static int run_scatter(sim_op *op)
{
    const sim_tensor *data = op->tensors[0], *updates = op->tensors[2];
    int axis = (int)op->i[0], code = 0;
    int64_t *index = sim_load_ints(op->tensors[1]), length = updates->shape[axis];
    for (int64_t b = 0; b < updates->shape[0] && !code; b++) {
        sim_tensor from = *updates, to = *data;
        if (index[b] < 0 || index[b] > data->shape[axis] - length) {
            code = sim_violation(507015, "aclnnInplaceScatterUpdate: index %lld of a dimension of %lld",
                                 (long long)index[b], (long long)data->shape[axis]);
            break;
        }
        from.shape[0] = to.shape[0] = 1;
        to.shape[axis] = length;
        from.host += (size_t)(b * from.strides[0]) * aclDataTypeSize(from.type);
        to.host += (size_t)(b * to.strides[0] + index[b] * to.strides[axis]) * aclDataTypeSize(to.type);
        void *raw = sim_load_raw(&from);
        sim_store_raw(&to, raw);
        free(raw);
    }
    free(index);
    op->idle_bytes = sim_bytes(data) - sim_bytes(updates);
    return code;
}

/* In the header of 8.1.RC1 data has four dimensions and indices one; documents since allow more. */
SIM_RULE(aclnnInplaceScatterUpdate, ACL_SCATTER)
{
    int64_t shape[SIM_RANK_MAX];
    int along = sim_axis(op, axis, data->rank);
    sim_want_rank(op, 161002, data, 4, 4);
    sim_want_rank(op, 161002, updates, 4, 4);
    sim_want_rank(op, 161002, indices, 1, 1);
    if (along == 0)
        sim_fault(op, 161002, "axis is 0");
    if (!sim_elements(data) || !sim_elements(updates) || !sim_elements(indices))
        sim_fault(op, 161002, "a tensor has no elements");
    memcpy(shape, data->shape, sizeof shape);
    shape[0] = indices->shape[0];
    shape[along] = updates->shape[along];
    sim_want_shape(op, 161002, updates, data->rank, shape);
    if (shape[0] > data->shape[0] || shape[along] > data->shape[along])
        sim_fault(op, 161002, "updates has more than data");
    op->i[0] = along;
    return sim_runs(op, run_scatter, OPS_WORKSPACE);
}
