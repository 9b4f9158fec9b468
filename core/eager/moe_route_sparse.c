/* TN_SCORE_SPARSEMIXER: experts are chosen one after the other, and the weight of each is its softmax over those that
 * were not chosen before it and whose logits are near its own. With m the logit of the chosen one, p the softmax over
 * those experts and g the gradient of its weight w: dl = g w (1 - p) for the chosen one, -g w p for the others. No
 * gradient passes through what is near. */
#include "eager/moe_route.h"

#include "eager/vec.h"

#include <math.h>

/* e^(l - m) of expert e at the j-th of the chosen ones, 0 where it takes no part; with the roundings of a model whose
 * logits are of dtype. */
static float share(const route_job *job, const float *logits, const int32_t *experts, int64_t j, int64_t e)
{
    tn_dtype dtype = job->site->features & TN_HAS_F32_ROUTER ? TN_F32 : job->x->dtype;
    float m = logits[experts[j]], l = logits[e], size = fabsf(l) > m ? fabsf(l) : m;
    /* 0 / 0 is near. */
    bool far = vec_round1(vec_round1(m - l, dtype) / size, dtype) > (float)job->site->num[TN_NUM_MARGIN];
    for (int64_t i = 0; i < j; i++)
        far |= experts[i] == e;
    return far ? 0.0f : expf(l - m);
}

static float sum_of_shares(const route_job *job, const float *logits, const int32_t *experts, int64_t j)
{
    float sum = 0.0f;
    for (int64_t e = 0; e < job->expert_count; e++)
        sum += share(job, logits, experts, j, e);
    return sum;
}

void moe_route_sparse(const route_job *job, int64_t token, const int32_t *experts, float *weights)
{
    const float *logits = job->scores + token * job->expert_count;
    for (int64_t j = 0; j < job->top_k; j++)
        weights[j] = 1.0f / sum_of_shares(job, logits, experts, j);
}

void moe_route_sparse_grad(const route_job *job, int64_t token, const int32_t *experts, const float *g, float *dl)
{
    const float *logits = job->scores + token * job->expert_count;
    memset(dl, 0, (size_t)job->expert_count * sizeof *dl);
    for (int64_t j = 0; j < job->top_k; j++) {
        float w = 1.0f / sum_of_shares(job, logits, experts, j);
        for (int64_t e = 0; e < job->expert_count; e++)
            dl[e] -= g[j] * w * (share(job, logits, experts, j, e) * w);
        dl[experts[j]] += g[j] * w;
    }
}
