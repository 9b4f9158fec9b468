/* From products q k^T to probabilities, one query at a time, with the roundings of transformers:
 * rnd(rnd(q k^T) * scale), the softcap in three steps, the mask, softmax in f32. */
#include "eager/attention.h"
#include "eager/vec.h"

#include <math.h>

#define LANES 16

static void scores_round(const attention_scores *rule, float *scores, int64_t n)
{
    vec_round_scale(scores, n, rule->scale, rule->dtype);
    if (rule->softcap == 0.0f)
        return;
    vec_div(scores, n, rule->softcap);
    vec_round(scores, n, rule->dtype);
    vec_act(TN_ACT_TANH, rule->dtype, scores, n);
    vec_scale(scores, n, rule->softcap);
    vec_round(scores, n, rule->dtype);
}

/* Scores of keys outside lowest .. q become -inf. Returns the largest score that is left (NaN when one is), and whether
 * any is. */
EAGER_CLONES static float scores_mask(float *scores, const int32_t *index, int64_t n, int32_t lowest, int32_t q,
                                      bool *any)
{
    float lane[LANES], max = -INFINITY;
    int32_t seen = 0, nan = 0;
    for (int l = 0; l < LANES; l++)
        lane[l] = -INFINITY;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            int32_t sees = (index[i + l] >= lowest) & (index[i + l] <= q);
            float score = sees ? scores[i + l] : -INFINITY;
            seen |= sees;
            nan |= score != score;
            lane[l] = score > lane[l] ? score : lane[l];
            scores[i + l] = score;
        }
    for (; i < n; i++) {
        int32_t sees = (index[i] >= lowest) & (index[i] <= q);
        scores[i] = sees ? scores[i] : -INFINITY;
        seen |= sees;
        nan |= scores[i] != scores[i];
        max = scores[i] > max ? scores[i] : max;
    }
    for (int l = 0; l < LANES; l++)
        max = lane[l] > max ? lane[l] : max;
    *any = seen;
    return nan ? vec_float(0x7fc00000u) : max;
}

void attention_softmax(const attention_scores *rule, float *scores, const int32_t *index, int64_t n, int32_t q,
                       float sink)
{
    bool any = false;
    float max = 0.0f;
    if (n > 0) {
        scores_round(rule, scores, n);
        int32_t lowest = rule->window > 0 && rule->window <= q ? (int32_t)(q - rule->window + 1) : 0;
        max = scores_mask(scores, index, n, lowest, q, &any);
    }
    if (!any) {
        for (int64_t i = 0; i < n; i++)
            scores[i] = 0.0f;
        return;
    }
    if (rule->has_sink && sink > max)
        max = sink;
    /* Nothing but -inf gives -inf - -inf: NaN, as in transformers. */
    float sum = vec_exp_sum(scores, n, max);
    if (rule->has_sink)
        sum += vec_exp(sink - max);
    vec_div(scores, n, sum);
}
