/* From products q k^T to probabilities, one query at a time, with the roundings of transformers:
 * rnd(rnd(q k^T) * scale), the softcap in three steps, the mask, softmax in f32; and the way back. With slopes
 * rnd(q k^T * scale + alpha rnd(slope * position)). */
#include "eager/attention.h"
#include "eager/softcap.h"
#include "eager/vec.h"

#include <math.h>

#define LANES 16

/* scores = rnd(scores factor + alpha bias of the key's position). */
static void scores_lean(const attention_scores *rule, float *scores, const int32_t *index, int64_t n, float factor,
                        float slope)
{
    float bias[VEC_CHUNK];
    for (int64_t at = 0; at < n; at += VEC_CHUNK) {
        int64_t count = n - at < VEC_CHUNK ? n - at : VEC_CHUNK;
        for (int64_t i = 0; i < count; i++)
            bias[i] = (float)index[at + i];
        vec_round(bias, count, rule->slopes);
        vec_scale(bias, count, slope);
        vec_round(bias, count, rule->slopes);
        vec_round(bias, count, rule->dtype);
        for (int64_t i = 0; i < count; i++)
            scores[at + i] = scores[at + i] * factor + bias[i] * rule->alpha;
    }
    vec_round(scores, n, rule->dtype);
}

static void scores_round(const attention_scores *rule, float *scores, const int32_t *index, int64_t n, float slope)
{
    bool leans = rule->slopes != TN_DTYPE_NONE, capped = rule->softcap != 0.0f;
    if (!leans || capped)
        vec_round_scale(scores, n, rule->scale, rule->dtype);
    if (capped)
        softcap_apply(scores, n, rule->softcap, rule->dtype);
    if (leans)
        scores_lean(rule, scores, index, n, capped ? 1.0f : rule->scale, slope);
}

/* Scores of keys outside lowest .. highest become -inf. Returns the largest score that is left (NaN when one is), and
 * whether any is. */
CLONES static float scores_mask(float *scores, const int32_t *index, int64_t n, int32_t lowest, int32_t highest,
                                bool *any)
{
    float lane[LANES], max = -INFINITY;
    int32_t seen = 0, nan = 0;
    for (int l = 0; l < LANES; l++)
        lane[l] = -INFINITY;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            int32_t sees = (index[i + l] >= lowest) & (index[i + l] <= highest);
            float score = sees ? scores[i + l] : -INFINITY;
            seen |= sees;
            nan |= score != score;
            lane[l] = score > lane[l] ? score : lane[l];
            scores[i + l] = score;
        }
    for (; i < n; i++) {
        int32_t sees = (index[i] >= lowest) & (index[i] <= highest);
        scores[i] = sees ? scores[i] : -INFINITY;
        seen |= sees;
        nan |= scores[i] != scores[i];
        max = scores[i] > max ? scores[i] : max;
    }
    for (int l = 0; l < LANES; l++)
        max = lane[l] > max ? lane[l] : max;
    *any = seen;
    return nan ? tn_f32_from_bits(0x7fc00000u) : max;
}

float attention_softmax(const attention_scores *rule, float *scores, const int32_t *index, int64_t n, int32_t q,
                        attention_head head)
{
    bool any = false;
    float max = 0.0f, sink = head.sink;
    if (n > 0) {
        scores_round(rule, scores, index, n, head.slope);
        max = scores_mask(scores, index, n, seen_low(&rule->seen, q), seen_high(&rule->seen, q), &any);
    }
    if (!any) {
        for (int64_t i = 0; i < n; i++)
            scores[i] = 0.0f;
        return 0.0f;
    }
    if (rule->has_sink && sink > max)
        max = sink;
    /* With a sink the largest score is taken away in the model's dtype, before the softmax. */
    if (rule->has_sink) {
        for (int64_t i = 0; i < n; i++)
            scores[i] -= max;
        vec_round(scores, n, rule->dtype);
        sink = vec_round1(sink - max, rule->dtype);
        max = 0.0f;
    }
    /* Nothing but -inf gives -inf - -inf: NaN, as in transformers. */
    float sum = vec_exp_sum(scores, n, max), dropped = rule->has_sink ? vec_exp(sink - max) : 0.0f;
    if (rule->has_sink)
        sum += dropped;
    vec_div(scores, n, sum);
    return dropped / sum;
}

void attention_scores_grad(const attention_scores *rule, const float *products, float *dscores, int64_t n)
{
    float t[VEC_CHUNK];
    vec_round(dscores, n, rule->dtype);
    for (int64_t at = 0; rule->softcap != 0.0f && at < n; at += VEC_CHUNK) {
        int64_t count = n - at < VEC_CHUNK ? n - at : VEC_CHUNK;
        memcpy(t, products + at, (size_t)count * sizeof *t);
        vec_round_scale(t, count, rule->scale, rule->dtype);
        softcap_grad(t, dscores + at, count, rule->softcap, rule->dtype);
    }
    vec_scale_rounded(dscores, n, rule->scale, rule->dtype);
}
