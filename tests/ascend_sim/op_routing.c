/* Routing: the experts of each token with their weights, and tokens in the order of experts and back, in the forms that
 * came before and after MoeTokenPermute. */
#include "ops.h"

#include <stdlib.h>
#include <string.h>

#define K_END 1024

/* ---- gates ----------------------------------------------------------------------------------------------------- */

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
            ops_softmax_row(x + r * experts, experts);
        ops_top_row(x + r * experts, experts, k, true, y + r * k, index + r * k);
        if (op->i[RENORM])
            ops_softmax_row(y + r * k, k);
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

static void check_gating(sim_op *op, const sim_tensor *in, const sim_tensor *done, int64_t k, const sim_tensor *weights,
                         const sim_tensor *index)
{
    int64_t shape[SIM_RANK_MAX];
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

uint64_t sim_aclnnMoeGatingTopKSoftmax(sim_op *op, const sim_tensor *x, const sim_tensor *finishedOptional, int64_t k,
                                       const sim_tensor *yOut, const sim_tensor *expertIdxOut,
                                       const sim_tensor *rowIdxOut)
{
    check_gating(op, x, finishedOptional, k, yOut, expertIdxOut);
    sim_want_type(op, rowIdxOut, SIM_I32);
    if (!op->code)
        sim_want_shape(op, 561002, rowIdxOut, op->tensors[3]->rank, op->tensors[3]->shape);
    return sim_runs(op, run_gating, OPS_WORKSPACE);
}

uint64_t sim_aclnnMoeGatingTopKSoftmaxV2(sim_op *op, const sim_tensor *x, const sim_tensor *finishedOptional, int64_t k,
                                         int64_t renorm, bool outputSoftmaxResultFlag, const sim_tensor *yOut,
                                         const sim_tensor *expertIdxOut, const aclTensor *softmaxResultOutOptional)
{
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
    return sim_runs(op, run_gating, OPS_WORKSPACE);
}

/* ---- tokens in the order of experts ---------------------------------------------------------------------------- */

enum { COUNTS, BY_COLUMN };

/* i[COUNTS]: 1 the experts' rows added up, 2 their numbers. */
static void store_counts(const sim_op *op, const sim_tensor *out, const int64_t *experts, int64_t slots)
{
    int64_t bins = sim_elements(out), *counts = sim_allocate((size_t)bins * sizeof *counts);
    for (int64_t i = 0; i < slots; i++)
        counts[experts[i]]++;
    for (int64_t e = 1; op->i[COUNTS] == 1 && e < bins; e++)
        counts[e] += counts[e - 1];
    sim_store_ints(out, counts);
    free(counts);
}

/* Tensors: x, rowIdx (version 1, else missing), expertIdx, expandedXOut, expandedRowIdxOut, expandedExpertIdxOut
 * (version 1), expertTokensCountOrCumsumOut (version 2). Slots are numbered by column in version 1 and by row in
 * version 2. */
static int run_init(sim_op *op)
{
    const sim_tensor *tx = op->tensors[0], *out = op->tensors[3], *counts = op->tensors[6];
    int64_t tokens = tx->shape[0], slots = sim_elements(op->tensors[2]), k = tokens ? slots / tokens : 0;
    size_t row = (size_t)tx->shape[1] * aclDataTypeSize(tx->type);
    int64_t *experts = sim_load_ints(op->tensors[2]), *order = ops_argsort(experts, slots);
    int64_t *payload = op->i[BY_COLUMN] ? sim_load_ints(op->tensors[1]) : NULL;
    int64_t *places = sim_allocate((size_t)slots * sizeof *places), *sorted = sim_allocate((size_t)slots * 8);
    char *from = sim_load_raw(tx), *to = sim_load_raw(out);
    int code = 0;
    for (int64_t i = 0; i < slots && !code; i++) {
        int64_t slot = payload ? payload[order[i]] : order[i];
        if (slot < 0 || slot >= slots || experts[i] < 0 || (counts->present && experts[i] >= counts->shape[0])) {
            code = sim_violation(507015, "%s: slot %lld of %lld, expert %lld", op->name, (long long)slot,
                                 (long long)slots, (long long)experts[i]);
            break;
        }
        places[slot] = i;
        sorted[i] = experts[order[i]];
        if (i < out->shape[0])
            memcpy(to + (size_t)i * row, from + (size_t)(payload ? slot % tokens : slot / k) * row, row);
    }
    if (!code) {
        sim_store_raw(out, to);
        sim_store_ints(op->tensors[4], places);
        if (op->tensors[5]->present)
            sim_store_ints(op->tensors[5], sorted);
        if (counts->present)
            store_counts(op, counts, experts, slots);
    }
    free(experts);
    free(order);
    free(payload);
    free(places);
    free(sorted);
    free(from);
    free(to);
    return code;
}

/* What both versions have alike. rows: of expandedXOut. */
static void check_init(sim_op *op, const sim_tensor *x, const sim_tensor *experts, int64_t rows, const sim_tensor *out,
                       const sim_tensor *places)
{
    int64_t slots = sim_elements(experts);
    sim_want_type(op, x, SIM_FLOATS);
    sim_want_same_type(op, x, out);
    sim_want_rank(op, 561002, x, 2, 2);
    sim_want_rank(op, 561002, experts, 2, 2);
    if (experts->shape[0] != x->shape[0])
        sim_fault(op, 561002, "experts of %lld tokens, and there are %lld", (long long)experts->shape[0],
                  (long long)x->shape[0]);
    sim_want_shape(op, 561002, out, 2, (int64_t[]){rows, x->shape[1]});
    sim_want_shape(op, 561002, places, 1, &slots);
    for (int i = 1; i < op->count; i++)
        if (i != 3)
            sim_want_type(op, op->tensors[i], SIM_I32);
}

uint64_t sim_aclnnMoeInitRouting(sim_op *op, const sim_tensor *x, const sim_tensor *rowIdx, const sim_tensor *expertIdx,
                                 int64_t activeNum, const sim_tensor *expandedXOut, const sim_tensor *expandedRowIdxOut,
                                 const sim_tensor *expandedExpertIdxOut)
{
    sim_out_optional(op, NULL, "");
    int64_t slots = sim_elements(expertIdx), kept = activeNum < x->shape[0] ? activeNum : x->shape[0];
    if (activeNum < 0)
        sim_fault(op, 561002, "activeNum %lld", (long long)activeNum);
    check_init(op, x, expertIdx, kept * expertIdx->shape[1], expandedXOut, expandedRowIdxOut);
    sim_want_shape(op, 561002, rowIdx, expertIdx->rank, expertIdx->shape);
    sim_want_shape(op, 561002, expandedExpertIdxOut, 1, &slots);
    op->i[BY_COLUMN] = 1;
    return sim_runs(op, run_init, OPS_WORKSPACE);
}

/* Without dropping: activeNum and expertCapacity 0, dropPadMode 0. How dropped tokens are marked in the results is not
 * in the documents at hand. */
SIM_RULE(aclnnMoeInitRoutingV2, ACL_INIT_ROUTING_V2)
{
    int64_t flag = expertTokensCountOrCumsumFlagOptional;
    const sim_tensor *in = sim_in(op, x, "x");
    sim_in_optional(op, NULL, "");
    const sim_tensor *experts = sim_in(op, expertIdx, "expertIdx");
    const sim_tensor *out = sim_out(op, expandedXOut, "expandedXOut");
    const sim_tensor *places = sim_out(op, expandedRowIdxOut, "expandedRowIdxOut");
    sim_out_optional(op, NULL, "");
    const aclTensor *wanted = flag ? expertTokensCountOrCumsumOutOptional : NULL;
    const sim_tensor *counts = sim_out_optional(op, wanted, "expertTokensCountOrCumsumOutOptional");
    if (activeNumOptional || expertCapacityOptional || dropPadModeOptional || expertTokensBeforeCapacityFlagOptional ||
        expertTokensBeforeCapacityOutOptional)
        sim_fault(op, 561002, "tokens that are dropped are not simulated");
    if (flag < 0 || flag > 2 || (flag && !counts->present))
        sim_fault(op, 561002, "expertTokensCountOrCumsumFlag %lld, or no tensor for it", (long long)flag);
    check_init(op, in, experts, sim_elements(experts), out, places);
    if (counts->present)
        sim_want_shape(op, 561002, counts, 1, &expertNumOptional);
    op->i[COUNTS] = flag;
    return sim_runs(op, run_init, OPS_WORKSPACE);
}

/* ---- and back -------------------------------------------------------------------------------------------------- */

enum { SUM_COLUMNS };

/* out[i] = x1[i] + x2[i] + the sum over k of scales[i][k] * (expandedX[row(i, k)] + bias[expert(i, k)]).
 * Tensors: expandedX, expandedRowIdx, x1, x2, bias, scales, expertIdx, out. */
static int run_finalize(sim_op *op)
{
    const sim_tensor *rows = op->tensors[0], *out = op->tensors[7];
    int64_t tokens = out->shape[0], width = out->shape[1], slots = sim_elements(op->tensors[1]);
    int64_t k = tokens ? slots / tokens : 0, *index = sim_load_ints(op->tensors[1]);
    float *loaded[6] = {NULL}; /* expandedX, -, x1, x2, bias, scales */
    for (int i = 0; i < 6; i++)
        if (i != 1 && op->tensors[i]->present)
            loaded[i] = sim_load(op->tensors[i]);
    int64_t *experts = op->tensors[6]->present ? sim_load_ints(op->tensors[6]) : NULL;
    float *y = sim_allocate((size_t)(tokens * width) * sizeof *y);
    int code = 0;
    for (int64_t i = 0; i < tokens * width; i++)
        y[i] = (loaded[2] ? loaded[2][i] : 0.0f) + (loaded[3] ? loaded[3][i] : 0.0f);
    for (int64_t slot = 0; slot < slots && !code; slot++) {
        int64_t row = index[op->i[SUM_COLUMNS] ? slot % k * tokens + slot / k : slot];
        int64_t expert = experts ? experts[slot] : 0;
        if (row < 0 || row >= rows->shape[0] || (loaded[4] && (expert < 0 || expert >= op->tensors[4]->shape[0]))) {
            code = sim_violation(507015, "aclnnMoeFinalizeRoutingV2: row %lld, expert %lld", (long long)row,
                                 (long long)expert);
            break;
        }
        float scale = loaded[5] ? loaded[5][slot] : 1.0f, *to = y + slot / k * width;
        for (int64_t h = 0; h < width; h++)
            to[h] += scale * (loaded[0][row * width + h] + (loaded[4] ? loaded[4][expert * width + h] : 0.0f));
    }
    if (!code)
        sim_store(out, y);
    for (int i = 0; i < 6; i++)
        free(loaded[i]);
    free(index);
    free(experts);
    free(y);
    return code;
}

/* Modes 0 and 2, in which expandedX has rank 2; 1 and 3 are for tokens that were dropped. */
uint64_t sim_aclnnMoeFinalizeRoutingV2(sim_op *op, const sim_tensor *expandedX, const sim_tensor *expandedRowIdx,
                                       const sim_tensor *x1Optional, const sim_tensor *x2Optional,
                                       const sim_tensor *biasOptional, const sim_tensor *scalesOptional,
                                       const sim_tensor *expertIdxOptional, int64_t dropPadMode, const sim_tensor *out)
{
    int64_t tokens = out->shape[0], k = scalesOptional->present ? scalesOptional->shape[1] : 1, slots = tokens * k;
    const sim_tensor *alike[] = {x1Optional, x2Optional, biasOptional, scalesOptional, out};
    sim_want_type(op, expandedX, SIM_FLOATS);
    for (int i = 0; i < 5; i++)
        sim_want_same_type(op, expandedX, alike[i]);
    sim_want_type(op, expandedRowIdx, SIM_I32);
    sim_want_type(op, expertIdxOptional, SIM_I32);
    sim_want_rank(op, 561002, expandedX, 2, 2);
    sim_want_shape(op, 561002, expandedRowIdx, 1, &slots);
    sim_want_shape(op, 561002, out, 2, (int64_t[]){tokens, expandedX->shape[1]});
    sim_want_shape(op, 561002, x1Optional, 2, out->shape);
    sim_want_shape(op, 561002, x2Optional, 2, out->shape);
    sim_want_shape(op, 561002, scalesOptional, 2, (int64_t[]){tokens, k});
    sim_want_shape(op, 561002, expertIdxOptional, 2, (int64_t[]){tokens, k});
    sim_want_shape(op, 561002, biasOptional, 2, (int64_t[]){biasOptional->shape[0], out->shape[1]});
    if (biasOptional->present && !expertIdxOptional->present)
        sim_fault(op, 161001, "expertIdxOptional is NULL, and biasOptional is not");
    if (dropPadMode != 0 && dropPadMode != 2)
        sim_fault(op, 561002, "dropPadMode %lld is not simulated", (long long)dropPadMode);
    op->i[SUM_COLUMNS] = dropPadMode == 0;
    return sim_runs(op, run_finalize, OPS_WORKSPACE);
}
