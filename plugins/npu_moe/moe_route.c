/* Choosing experts, and sorting tokens by expert. */
#include "moe.h"
#include <math.h>
#include <string.h>

/* An expert's tokens are cut between threads at multiples of this. */
#define CUT 32

static bool softmax(const float *logits, int64_t n, float *p)
{
    float largest = logits[0], sum = 0.0f;
    for (int64_t i = 1; i < n; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    for (int64_t i = 0; i < n; i++) {
        p[i] = expf(logits[i] - largest);
        sum += p[i];
    }
    for (int64_t i = 0; i < n; i++)
        p[i] /= sum;
    return !isnan(sum);
}

static void round_weights(const product_kernels *kernels, float *weights, int64_t k)
{
    product_finish finish = {kernels->dtype, TN_ACT_LINEAR, NULL};
    for (int64_t j = 0; j < k; j += PRODUCT_FEW_ROWS) {
        float rounded[PRODUCT_FEW_ROWS]; /* room for the widest dtype */
        int32_t n = (int32_t)(k - j < PRODUCT_FEW_ROWS ? k - j : PRODUCT_FEW_ROWS);
        kernels->row_out(weights + j, &finish, n, rounded);
        kernels->widen(rounded, n, weights + j);
    }
}

bool moe_choose(const product_kernels *kernels, const moe_layer *layer, const void *logits, float *probability,
                float *weights, int32_t *experts)
{
    int64_t k = layer->top_k, n = 0;
    kernels->widen(logits, layer->experts, probability);
    if (!softmax(probability, layer->experts, probability))
        return false;
    for (int64_t e = 0; e < layer->experts; e++) { /* insertion: equal scores keep the order of their ids */
        float p = probability[e];
        if (n == k && !(p > weights[k - 1]))
            continue;
        int64_t at = n < k ? n++ : k - 1;
        for (; at > 0 && p > weights[at - 1]; at--) {
            weights[at] = weights[at - 1];
            experts[at] = experts[at - 1];
        }
        weights[at] = p;
        experts[at] = (int32_t)e;
    }
    float sum = 0.0f;
    for (int64_t j = 0; j < k; j++)
        sum += weights[j];
    for (int64_t j = 0; j < k && layer->renormalise; j++)
        weights[j] /= sum;
    if (!layer->f32_weights)
        round_weights(kernels, weights, k);
    return true;
}

void moe_group(const moe_layer *layer, const int32_t *experts, int64_t tokens, int32_t *offsets, int32_t *slots)
{
    int64_t k = layer->top_k, places = moe_slots(layer);
    memset(offsets, 0, sizeof(int32_t) * (size_t)(layer->experts + 2));
    for (int64_t i = 0; i < tokens * k; i++)
        offsets[experts[i] + 1]++;
    for (int64_t e = 0; e < layer->experts; e++)
        offsets[e + 1] += offsets[e];
    /* offsets[e] runs through the tokens of e, and ends where those of e + 1 begin. */
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t j = 0; j < k; j++)
            slots[offsets[experts[t * k + j]]++] = (int32_t)(t * places + j);
    for (int64_t e = layer->experts; e > 0; e--)
        offsets[e] = offsets[e - 1];
    offsets[0] = 0;
    int64_t shared = places > k ? tokens : 0;
    for (int64_t t = 0; t < shared; t++)
        slots[tokens * k + t] = (int32_t)(t * places + k);
    offsets[layer->experts + 1] = (int32_t)(tokens * k + shared);
}

/* An expert costs reading its weights, worth about as much as the arithmetic of 16 tokens, and that of its tokens. */
static int64_t cost_of(const moe_layer *layer, const int32_t *offsets, int64_t e)
{
    int64_t n = offsets[e + 1] - offsets[e];
    return n ? (n + 16) * (e < layer->experts ? layer->inter : layer->shared_inter) : 0;
}

moe_place moe_cut(const moe_layer *layer, const int32_t *offsets, int32_t thread, int32_t threads)
{
    int64_t total = 0, e = 0;
    for (int64_t i = 0; i <= layer->experts; i++)
        total += cost_of(layer, offsets, i);
    int64_t left = thread < threads ? total * thread / threads : total;
    while (e <= layer->experts && left >= cost_of(layer, offsets, e))
        left -= cost_of(layer, offsets, e++);
    if (e > layer->experts || left == 0)
        return (moe_place){e, 0};
    int64_t n = offsets[e + 1] - offsets[e], token = n * left / cost_of(layer, offsets, e);
    if (n < 2 * CUT) /* whole, on the thread that has the larger part */
        return 2 * token < n ? (moe_place){e, 0} : (moe_place){e + 1, 0};
    token = token / CUT * CUT;
    return (moe_place){e, token};
}
