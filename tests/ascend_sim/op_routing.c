/* Routing: the experts of each token with their weights, and tokens in the order of experts and back, in the forms that
 * came before and after MoeTokenPermute. */
#include "ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define K_END 1024

static void refuse_chip(sim_op *op)
{
    if (sim_soc_of() == SIM_310P) /* its documents are not at hand */
        sim_fault(op, 561003, "kernels of this chip are not simulated");
}

/* ---- gates ----------------------------------------------------------------------------------------------------- */

static void softmax_row(float *x, int64_t count)
{
    float most = -INFINITY, sum = 0.0f;
    for (int64_t i = 0; i < count; i++)
        most = fmaxf(most, x[i]);
    for (int64_t i = 0; i < count; i++)
        sum += x[i] = expf(x[i] - most);
    for (int64_t i = 0; i < count; i++)
        x[i] /= sum;
}

/* Of equal values the first: which the vendor takes is not certain. */
static void top_row(const float *x, int64_t count, int64_t k, float *values, int64_t *indices)
{
    bool *taken = sim_allocate((size_t)count);
    for (int64_t j = 0; j < k; j++) {
        int64_t best = -1;
        for (int64_t i = 0; i < count; i++)
            if (!taken[i] && (best < 0 || x[i] > x[best]))
                best = i;
        taken[best] = true;
        values[j] = x[best];
        indices[j] = best;
    }
    free(taken);
}

enum { TOPK, RENORM, V2 };

/* Tensors: x, finishedOptional, yOut, expertIdxOut, and rowIdxOut (version 1) or softmaxResultOutOptional. */
static int run_gating(sim_op *op)
{
    const sim_tensor *tx = op->tensors[0], *last = op->tensors[4];
    int64_t experts = tx->shape[tx->rank - 1], rows = sim_product(tx->shape, 0, tx->rank - 1), k = op->i[TOPK];
    float *x = sim_load(tx), *y = sim_allocate((size_t)(rows * k) * sizeof *y);
    int64_t *finished = op->tensors[1]->present ? sim_load_ints(op->tensors[1]) : NULL;
    int64_t *index = sim_allocate((size_t)(rows * k) * sizeof *index), *order = sim_allocate((size_t)(rows * k) * 8);
    for (int64_t r = 0; r < rows; r++) {
        if (!op->i[RENORM])
            softmax_row(x + r * experts, experts);
        top_row(x + r * experts, experts, k, y + r * k, index + r * k);
        if (op->i[RENORM])
            softmax_row(y + r * k, k);
        for (int64_t j = 0; j < k; j++) {
            order[r * k + j] = j * rows + r;
            if (finished && finished[r])
                index[r * k + j] = experts;
        }
    }
    sim_store(op->tensors[2], y);
    sim_store_ints(op->tensors[3], index);
    if (last->present && op->i[V2])
        sim_store(last, x);
    else if (last->present)
        sim_store_ints(last, order);
    free(x);
    free(y);
    free(finished);
    free(index);
    free(order);
    return 0;
}

static void check_gating(sim_op *op, const aclTensor *x, const aclTensor *finished, int64_t k, const aclTensor *y,
                         const aclTensor *experts)
{
    const sim_tensor *in = sim_in(op, x, "x"), *done = sim_in_optional(op, finished, "finishedOptional");
    const sim_tensor *weights = sim_out(op, y, "yOut"), *index = sim_out(op, experts, "expertIdxOut");
    int64_t shape[SIM_RANK_MAX];
    refuse_chip(op);
    sim_want_rank(op, 561002, in, 2, 3);
    if (op->code)
        return;
    memcpy(shape, in->shape, sizeof shape);
    shape[in->rank - 1] = k;
    sim_want_type(op, in, SIM_FLOATS);
    sim_want_type(op, index, SIM_I32);
    sim_want_type(op, done, SIM_BOOL);
    sim_want_same_type(op, in, weights);
    if (k < 0 || k > in->shape[in->rank - 1] || k > K_END)
        sim_fault(op, 561002, "k is %lld of %lld", (long long)k, (long long)in->shape[in->rank - 1]);
    if (done->present)
        sim_want_shape(op, 561002, done, in->rank - 1, in->shape);
    sim_want_shape(op, 561002, weights, in->rank, shape);
    sim_want_shape(op, 561002, index, in->rank, shape);
    op->i[TOPK] = k;
}

aclnnStatus aclnnMoeGatingTopKSoftmaxGetWorkspaceSize(const aclTensor *x, const aclTensor *finishedOptional, int64_t k,
                                                      const aclTensor *yOut, const aclTensor *expertIdxOut,
                                                      const aclTensor *rowIdxOut, uint64_t *workspaceSize,
                                                      aclOpExecutor **executor)
{
    SIM_HOLD;
    sim_op *op = sim_begin("aclnnMoeGatingTopKSoftmax", run_gating);
    check_gating(op, x, finishedOptional, k, yOut, expertIdxOut);
    const sim_tensor *rows = sim_out(op, rowIdxOut, "rowIdxOut");
    sim_want_type(op, rows, SIM_I32);
    if (!op->code)
        sim_want_shape(op, 561002, rows, op->tensors[3]->rank, op->tensors[3]->shape);
    return sim_finish(op, OPS_WORKSPACE, workspaceSize, executor);
}

aclnnStatus aclnnMoeGatingTopKSoftmaxV2GetWorkspaceSize(const aclTensor *x, const aclTensor *finishedOptional,
                                                        int64_t k, int64_t renorm, bool outputSoftmaxResultFlag,
                                                        const aclTensor *yOut, const aclTensor *expertIdxOut,
                                                        const aclTensor *softmaxResultOutOptional,
                                                        uint64_t *workspaceSize, aclOpExecutor **executor)
{
    SIM_HOLD;
    sim_op *op = sim_begin("aclnnMoeGatingTopKSoftmaxV2", run_gating);
    check_gating(op, x, finishedOptional, k, yOut, expertIdxOut);
    const aclTensor *soft = renorm == 0 && outputSoftmaxResultFlag ? softmaxResultOutOptional : NULL;
    const sim_tensor *result = sim_out_optional(op, soft, "softmaxResultOutOptional");
    if (renorm != 0 && renorm != 1)
        sim_fault(op, 561002, "renorm %lld", (long long)renorm);
    if (renorm == 0 && outputSoftmaxResultFlag && !result->present)
        sim_fault(op, 161001, "softmaxResultOutOptional is NULL, and asked for");
    sim_want_type(op, result, SIM_F32);
    if (!op->code)
        sim_want_shape(op, 561002, result, op->tensors[0]->rank, op->tensors[0]->shape);
    op->i[RENORM] = renorm;
    op->i[V2] = 1;
    return sim_finish(op, OPS_WORKSPACE, workspaceSize, executor);
}
