/* Tokens to the order of their experts and back, with gradients. Slot s of T tokens with K experts each is expert s % K
 * of token s / K; sortedIndices[s] is its row in the order of experts. */
#include "ops.h"

#include <stdlib.h>
#include <string.h>

#define INDEX_END 16777215
#define K_MAX 512

typedef struct keyed {
    int64_t key, position;
} keyed;

static int compare_keys(const void *a, const void *b)
{
    const keyed *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->position > y->position ? -1 : x->position < y->position;
}

/* Positions of count values in ascending order. Equal ones come in reverse: which order the vendor has is not certain,
 * and nobody may count on one. Owned. */
static int64_t *argsort(const int64_t *values, int64_t count)
{
    keyed *pairs = sim_allocate((size_t)count * sizeof *pairs);
    int64_t *order = sim_allocate((size_t)count * sizeof *order);
    for (int64_t i = 0; i < count; i++)
        pairs[i] = (keyed){values[i], i};
    qsort(pairs, (size_t)count, sizeof *pairs, compare_keys);
    for (int64_t i = 0; i < count; i++)
        order[i] = pairs[i].position;
    free(pairs);
    return order;
}

static void refuse(sim_op *op, bool padded)
{
    if (padded)
        sim_fault(op, 561002, "paddedMode is not supported");
}

/* ---- permute --------------------------------------------------------------------------------------------------- */

/* Tensors: tokens, indices, permuteTokensOut, sortedIndicesOut. */
static int run_permute(sim_op *op)
{
    const sim_tensor *tokens = op->tensors[0], *out = op->tensors[2];
    int64_t slots = sim_elements(op->tensors[1]), topk = tokens->shape[0] ? slots / tokens->shape[0] : 0;
    size_t row = (size_t)sim_product(tokens->shape, 1, tokens->rank) * aclDataTypeSize(tokens->type);
    int64_t *experts = sim_load_ints(op->tensors[1]), *order = argsort(experts, slots);
    int64_t *sorted = sim_allocate((size_t)slots * sizeof *sorted);
    char *from = sim_load_raw(tokens), *to = sim_load_raw(out);
    int code = 0;
    for (int64_t i = 0; i < slots; i++) {
        if (experts[i] < 0 || experts[i] >= INDEX_END)
            code = sim_violation(507015, "aclnnMoeTokenPermute: index %lld", (long long)experts[i]);
        sorted[order[i]] = i;
        if (i < out->shape[0])
            memcpy(to + (size_t)i * row, from + (size_t)(order[i] / topk) * row, row);
    }
    if (!code) {
        sim_store_raw(out, to);
        sim_store_ints(op->tensors[3], sorted);
    }
    free(experts);
    free(order);
    free(sorted);
    free(from);
    free(to);
    return code;
}

static int64_t rows_kept(int64_t slots, int64_t wanted)
{
    if (wanted == 0)
        return slots;
    int64_t kept = wanted < 0 ? slots + wanted : wanted;
    return kept < 0 ? 0 : kept > slots ? slots : kept;
}

SIM_RULE(aclnnMoeTokenPermute, ACL_TOKEN_PERMUTE)
{
    int64_t shape[SIM_RANK_MAX], slots = sim_elements(indices);
    refuse(op, paddedMode);
    sim_want_rank(op, 561002, tokens, 2, SIM_RANK_MAX);
    sim_want_rank(op, 561002, indices, 1, 2);
    if (indices->shape[0] != tokens->shape[0])
        sim_fault(op, 561002, "indices of %lld tokens, and there are %lld", (long long)indices->shape[0],
                  (long long)tokens->shape[0]);
    if (slots >= INDEX_END)
        sim_fault(op, 561002, "%lld indices", (long long)slots);
    memcpy(shape, tokens->shape, sizeof shape);
    shape[0] = rows_kept(slots, numOutTokens);
    sim_want_shape(op, 561002, permuteTokensOut, tokens->rank, shape);
    sim_want_shape(op, 561002, sortedIndicesOut, 1, &slots);
    return sim_runs(op, run_permute, OPS_WORKSPACE);
}

/* ---- unpermute and its relatives ------------------------------------------------------------------------------- */

/* The slots of one call: rows of H elements in the order of experts, indices to them, and weights or none. */
typedef struct slots {
    int64_t tokens, topk, rows, width;
    int64_t *sorted;
    float *probs;
} slots;

static int load_slots(const char *name, slots *s, const sim_tensor *sorted, const sim_tensor *probs,
                      const sim_tensor *rows, int64_t tokens)
{
    s->tokens = tokens;
    s->topk = tokens ? sim_elements(sorted) / tokens : 0;
    s->rows = rows->shape[0];
    s->width = sim_product(rows->shape, 1, rows->rank);
    s->sorted = sim_load_ints(sorted);
    s->probs = probs && probs->present ? sim_load(probs) : NULL;
    bool *seen = sim_allocate((size_t)(tokens * s->topk));
    int code = 0;
    for (int64_t i = 0; i < tokens * s->topk && !code; i++) {
        int64_t at = s->sorted[i];
        if (at < 0 || at >= tokens * s->topk || seen[at])
            code = sim_violation(507015, "%s: sortedIndices has %lld twice, or beyond its end", name, (long long)at);
        else
            seen[at] = true;
    }
    free(seen);
    return code;
}

static void free_slots(slots *s)
{
    free(s->sorted);
    free(s->probs);
}

/* out[t] = the sum of the rows of its slots, times their weights; dropped rows and those of weight 0 add nothing. */
static void sum_rows(const slots *s, const float *rows, float *out)
{
    for (int64_t slot = 0; slot < s->tokens * s->topk; slot++) {
        float weight = s->probs ? s->probs[slot] : 1.0f;
        const float *from = rows + s->sorted[slot] * s->width;
        float *to = out + slot / s->topk * s->width;
        if (s->sorted[slot] >= s->rows || weight == 0.0f)
            continue;
        for (int64_t h = 0; h < s->width; h++)
            to[h] += weight * from[h];
    }
}

/* Tensors: rows, sortedIndices, perhaps what they are multiplied by, out. */
static int run_sums(const sim_op *op, const sim_tensor *probs)
{
    const sim_tensor *rows = op->tensors[0], *out = op->tensors[op->count - 1];
    slots s;
    int code = load_slots(op->name, &s, op->tensors[1], probs, rows, out->shape[0]);
    float *x = sim_load(rows), *y = sim_allocate((size_t)sim_elements(out) * sizeof *y);
    if (!code) {
        sum_rows(&s, x, y);
        sim_store(out, y);
    }
    free(x);
    free(y);
    free_slots(&s);
    return code;
}

static int run_unpermute(sim_op *op)
{
    return run_sums(op, op->tensors[2]);
}

static int run_permute_grad(sim_op *op)
{
    return run_sums(op, NULL);
}

/* Rows in the order of experts, and tokens that they come from or go to. */
static void check_slots(sim_op *op, const sim_tensor *rows, const sim_tensor *sorted, const sim_tensor *tokens,
                        int64_t topk)
{
    int64_t count = tokens->shape[0] * topk;
    sim_want_rank(op, 561002, rows, 2, SIM_RANK_MAX);
    sim_want_rank(op, 561002, tokens, rows->rank, rows->rank);
    sim_want_shape(op, 561002, sorted, 1, &count);
    if (rows->shape[0] > count)
        sim_fault(op, 561002, "%s has %lld rows for %lld slots", rows->role, (long long)rows->shape[0],
                  (long long)count);
    if (rows->rank == tokens->rank &&
        sim_product(rows->shape, 1, rows->rank) != sim_product(tokens->shape, 1, tokens->rank))
        sim_fault(op, 561002, "rows of %s and %s differ in length", rows->role, tokens->role);
    if (topk < 1 || topk > K_MAX)
        sim_fault(op, 561002, "%lld experts for a token", (long long)topk);
}

static int64_t topk_of(sim_op *op, const sim_tensor *probs, const sim_tensor *tokens)
{
    if (!probs->present)
        return 1;
    sim_want_shape(op, 561002, probs, 2, (int64_t[]){tokens->shape[0], probs->shape[1]});
    return probs->shape[1];
}

SIM_RULE(aclnnMoeTokenUnpermute, ACL_TOKEN_UNPERMUTE)
{
    refuse(op, paddedMode);
    check_slots(op, permutedTokens, sortedIndices, out, topk_of(op, probsOptional, out));
    return sim_runs(op, run_unpermute, OPS_WORKSPACE);
}

SIM_RULE(aclnnMoeTokenPermuteGrad, ACL_TOKEN_PERMUTE_GRAD)
{
    refuse(op, paddedMode);
    check_slots(op, permutedOutputGrad, sortedIndices, out, numTopk);
    return sim_runs(op, run_permute_grad, OPS_WORKSPACE);
}

/* Tensors: permutedTokens, unpermutedTokensGrad, sortedIndices, probsOptional, permutedTokensGradOut, probsGradOut. */
static void unpermute_grads(const slots *s, const float *rows, const float *g, float *row_grads, float *prob_grads)
{
    for (int64_t slot = 0; slot < s->tokens * s->topk; slot++) {
        int64_t at = s->sorted[slot] * s->width, from = slot / s->topk * s->width;
        float weight = s->probs ? s->probs[slot] : 1.0f, sum = 0.0f;
        if (s->sorted[slot] >= s->rows)
            continue;
        for (int64_t h = 0; h < s->width; h++) {
            row_grads[at + h] = g[from + h] * weight;
            sum += g[from + h] * rows[at + h];
        }
        prob_grads[slot] = sum;
    }
}

static int run_unpermute_grad(sim_op *op)
{
    const sim_tensor *rows = op->tensors[0], *tokens = op->tensors[1];
    slots s;
    int code = load_slots(op->name, &s, op->tensors[2], op->tensors[3], rows, tokens->shape[0]);
    float *x = sim_load(rows), *g = sim_load(tokens);
    float *row_grads = sim_allocate((size_t)sim_elements(rows) * sizeof *row_grads);
    float *prob_grads = sim_allocate((size_t)(s.tokens * s.topk) * sizeof *prob_grads);
    if (!code) {
        unpermute_grads(&s, x, g, row_grads, prob_grads);
        sim_store(op->tensors[4], row_grads);
        if (op->tensors[5]->present)
            sim_store(op->tensors[5], prob_grads);
    }
    free(x);
    free(g);
    free(row_grads);
    free(prob_grads);
    free_slots(&s);
    return code;
}

SIM_RULE(aclnnMoeTokenUnpermuteGrad, ACL_TOKEN_UNPERMUTE_GRAD)
{
    refuse(op, paddedMode);
    check_slots(op, permutedTokens, sortedIndices, unpermutedTokensGrad,
                topk_of(op, probsOptional, unpermutedTokensGrad));
    sim_want_shape(op, 561002, permutedTokensGradOut, permutedTokens->rank, permutedTokens->shape);
    if (probsOptional->present != probsGradOut->present)
        sim_fault(op, probsOptional->present ? 161001 : 161002, "one of probsOptional and probsGradOut is NULL");
    sim_want_shape(op, 561002, probsGradOut, 2, probsOptional->shape);
    return sim_runs(op, run_unpermute_grad, OPS_WORKSPACE);
}
