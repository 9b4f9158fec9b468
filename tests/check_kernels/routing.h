/* Reference of routers in double, with bounds derived from the operands. */
#ifndef TENON_CHECK_ROUTING_H
#define TENON_CHECK_ROUTING_H

#include "products.h"

enum { ROUTING_EXPERTS = 512, ROUTING_TOP_K = 64 };

typedef struct reference_router {
    tn_dtype dtype; /* of the model                                                               */
    tn_score score;
    int64_t hidden, experts, top_k, groups, top_groups; /* groups 0: none                          */
    bool renormalise, f32_logits;
    double scale;         /* 0: none                                                               */
    const double *weight; /* [E,H]                                                                 */
    const double *bias, *correction;
} reference_router;

/* A token's experts, by falling choice. */
typedef struct reference_routes {
    int64_t id[ROUTING_TOP_K];
    estimate weight[ROUTING_TOP_K]; /* in f32                                                      */
    estimate score[ROUTING_EXPERTS];
} reference_routes;

/* False where a kernel's roundings could change the choice or its order: the token is of no use. Exactly equal scores
 * are a tie, which the lowest id wins: they must come from sums that are exact in f32. */
bool reference_route(const reference_router *r, const double *x, reference_routes *to);

/* dL/dlogits[E] from dL/dweights[k]. */
void reference_route_grad(const reference_router *r, const reference_routes *to, const estimate *upstream,
                          estimate *dlogits);

#endif
