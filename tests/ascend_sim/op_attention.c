/* FusedInferAttentionScoreV2 as far as it is used: types of 16 bits, heads side by side in each token, a mask. Scores,
 * probabilities and their sums in 32 bits, one rounding at the end; how a device rounds in between is not documented.
 */
#include "ops.h"

#include <stdlib.h>
#include <string.h>

/* Tensors in the order of the arguments; the two of the lists come last. */
enum { QUERY, SHIFT, MASK, FIRST_OTHER, OUT = 19, KEY, VALUE };
enum { HEAD_MOST = 512, RATIO_MOST = 64 };

/* x [B,T,N,D] of one batch row. */
static float *at(float *x, const sim_tensor *t, int64_t b, int64_t token, int64_t head)
{
    return x + ((b * t->shape[1] + token) * t->shape[2] + head) * t->shape[3];
}

static void attend(const sim_op *op, float *const x[3], const int64_t *mask, int64_t b, int64_t t, int64_t head,
                   float *p, float *out)
{
    const sim_tensor *q = op->tensors[QUERY], *k = op->tensors[KEY], *v = op->tensors[VALUE];
    int64_t keys = k->shape[1], of = head / (q->shape[2] / k->shape[2]);
    const float *query = at(x[0], q, b, t, head);
    for (int64_t s = 0; s < keys; s++) {
        const float *key = at(x[1], k, b, s, of);
        float sum = 0;
        for (int64_t i = 0; i < q->shape[3]; i++)
            sum += query[i] * key[i];
        p[s] = mask && mask[t * keys + s] ? -INFINITY : sum * (float)op->f[0];
    }
    ops_softmax_row(p, keys);
    memset(out, 0, (size_t)v->shape[3] * sizeof *out);
    for (int64_t s = 0; s < keys; s++) {
        const float *value = at(x[2], v, b, s, of);
        for (int64_t i = 0; i < v->shape[3]; i++)
            out[i] += p[s] * value[i];
    }
}

static int run_attention(sim_op *op)
{
    const sim_tensor *q = op->tensors[QUERY], *out = op->tensors[OUT], *mask = op->tensors[MASK];
    float *x[3] = {sim_load(q), sim_load(op->tensors[KEY]), sim_load(op->tensors[VALUE])};
    float *y = sim_allocate((size_t)sim_elements(out) * sizeof *y);
    float *p = sim_allocate((size_t)op->tensors[KEY]->shape[1] * sizeof *p);
    int64_t *hidden = mask->present ? sim_load_ints(mask) : NULL;
    int64_t rows = mask->present && mask->rank == 2 && q->shape[1] == 1 ? op->tensors[KEY]->shape[1] : 0;
    for (int64_t b = 0; b < q->shape[0]; b++)
        for (int64_t t = 0; t < q->shape[1]; t++)
            for (int64_t head = 0; head < q->shape[2]; head++)
                attend(op, x, hidden ? hidden + b * rows : NULL, b, t, head, p, at(y, out, b, t, head));
    sim_store(out, y);
    for (int i = 0; i < 3; i++)
        free(x[i]);
    free(hidden);
    free(p);
    free(y);
    return 0;
}

static const sim_tensor *add_only(sim_op *op, const aclTensorList *list, const char *role)
{
    aclTensor *const *members = NULL;
    int64_t count = 0;
    if (!sim_list_of(list, &members, &count) || count != 1)
        sim_fault(op, 161002, "%s has to be a list of one tensor here", role);
    return sim_in(op, count == 1 ? members[0] : NULL, role);
}

static void check_shapes(sim_op *op, int64_t heads, int64_t kv_heads)
{
    const sim_tensor *q = op->tensors[QUERY], *k = op->tensors[KEY], *v = op->tensors[VALUE], *mask = op->tensors[MASK];
    const int64_t cache[] = {q->shape[0], k->shape[1], kv_heads, q->shape[3]};
    const int64_t hidden[] = {q->shape[1] == 1 ? q->shape[0] : q->shape[1], k->shape[1]};
    if (q->shape[2] != heads || kv_heads < 1 || heads % kv_heads != 0 || heads / kv_heads > RATIO_MOST)
        sim_fault(op, 161002, "%lld heads of %lld", (long long)heads, (long long)kv_heads);
    if (q->shape[3] % 16 != 0 || q->shape[3] > HEAD_MOST || k->shape[1] < 1)
        sim_fault(op, 161002, "heads of %lld elements, %lld keys", (long long)q->shape[3], (long long)k->shape[1]);
    sim_want_shape(op, 161002, k, 4, cache);
    sim_want_shape(op, 161002, v, 4, cache);
    sim_want_shape(op, 161002, op->tensors[OUT], 4, q->shape);
    if (mask->present)
        sim_want_shape(op, 161002, mask, 2, hidden);
}

SIM_RULE(aclnnFusedInferAttentionScoreV2, ACL_ATTENTION)
{
    add_only(op, key, "key");
    add_only(op, value, "value");
    sim_want_rank(op, 161002, query, 4, 4);
    for (int i = KEY; i <= VALUE; i++) {
        sim_want_same_type(op, query, op->tensors[i]);
        sim_want_contiguous(op, op->tensors[i]);
        sim_want_rank(op, 161002, op->tensors[i], 4, 4);
    }
    if (actualSeqLengthsOptional || actualSeqLengthsKvOptional || actualSharedPrefixLenOptional || softmaxLse)
        sim_fault(op, 161002, "lengths and softmaxLse are not simulated");
    if (!inputLayout || strcmp(inputLayout, "BSND") != 0)
        sim_fault(op, 161002, "layouts but BSND are not simulated");
    if (sparseMode || blockSize || antiquantMode || softmaxLseFlag || keyAntiquantMode || valueAntiquantMode ||
        preTokens != INT32_MAX || nextTokens != INT32_MAX || innerPrecise < 0 || innerPrecise > 1)
        sim_fault(op, 161002, "modes and bands are not simulated");
    if (!op->code)
        check_shapes(op, numHeads, numKeyValueHeads);
    op->f[0] = scaleValue;
    return sim_runs(op, run_attention, OPS_WORKSPACE);
}
