/* Inside core/eager: what MOE_ROUTE and its gradients share: scores and the choice, the same bits in both. */
#ifndef TENON_CORE_EAGER_MOE_ROUTE_H
#define TENON_CORE_EAGER_MOE_ROUTE_H

#include "eager/eager.h"

#include <stdatomic.h>

typedef struct route_job {
    const tn_site *site;
    const tn_tensor *x, *router, *bias, *correction, *expert_scale;
    const tn_tensor *weights, *experts, *logits; /* what forward writes; logits NULL: not wanted   */
    tn_score score;
    tn_dtype type; /* of the product                                                             */
    int64_t tokens, hidden, expert_count, top_k, groups, top_groups;
    float scale, added, least; /* factor of the weights; what is added to their sum, what it counts at least */
    float *scores, *choice;    /* [tokens, experts]                                                 */
    float *converted;          /* [tokens, hidden] where the product has another type than x        */
    char *work;
    size_t work_bytes;
    atomic_llong bad; /* the first token without scores                                          */
} route_job;

/* Fills all but memory. False when the site has no router. */
bool moe_route_shape(const tn_call *call, int64_t top_k, route_job *job);

/* Lays scratch out; returns its size. */
size_t moe_route_layout(route_job *job, char *base);

/* Fills scores: probabilities, sigmoids, or the logits where the softmax comes after the choice. Fails where that
 * cannot be done, or a token's scores are not numbers. */
tn_status moe_route_scores(route_job *job, tn_error *err);

/* The experts of a token by falling score, and their scores. Spoils the token's row of choice. top_k of each, at most
 * VEC_CHUNK. */
void moe_route_choose(const route_job *job, int64_t token, int32_t *experts, float *scores);

/* moe_route_sparse.c: weights of TN_SCORE_SPARSEMIXER, and the gradients of the token's logits from those of the
 * weights. */
void moe_route_sparse(const route_job *job, int64_t token, const int32_t *experts, float *weights);
void moe_route_sparse_grad(const route_job *job, int64_t token, const int32_t *experts, const float *g, float *dl);

/* What weights are divided by where they are, from the k scores; whether it is their sum. */
float moe_route_divisor(const route_job *job, const float *scores, bool *is_sum);

/* The factor of an expert; 1 where there is none. */
float moe_route_expert_scale(const route_job *job, int32_t expert);

/* Forward, beside backward in moe_route_grad.c, where the operation is put together. */
size_t moe_route_scratch(const tn_call *call);
tn_status moe_route_forward(const tn_call *call, tn_error *err);

#endif
