/* Routers: which experts a token goes to and with what weight, and the gradients of that. One token at a time, all in
 * f32; logits of many tokens at once come from the products of plugins/common. */
#ifndef ROUTER_H
#define ROUTER_H

#include "product_grad.h"

/* Tokens whose logits are computed together. */
#define ROUTER_CHUNK 256

/* What a site says of its router, with its weights. Borrowed from the site and from plugin.c's kernels. */
typedef struct router {
    const product_kernels *own;      /* for the dtype of x                                                    */
    const product_kernels *products; /* for the dtype of the router's weight: own, or those for f32           */
    int64_t hidden, experts, top_k, groups, top_groups;
    tn_score score;
    const tn_tensor *weight;            /* [E,H]; NULL: there is no router                                    */
    const tn_tensor *bias, *correction; /* [E] of any float type, or NULL                                     */
    bool renormalise, f32_logits;
    float scale;        /* of the weights; 1 where the site has none                                                 */
    float added, least; /* what is added to their sum where they are divided by it, and what it counts at least */
    const tn_tensor *factors; /* [E] of any float type: of each expert's weights; or NULL                     */
} router;

/* The experts of tokens: k weights and ids for each, and the scores of all experts where they are asked for. */
typedef struct routes {
    float *weights;
    int32_t *experts;
    float *scores; /* [tokens, E] or NULL                                                                     */
} routes;

/* A row of weights beside the router's, of the dtype of x, whose sigmoid is wanted for each token. */
typedef struct router_gate {
    const tn_tensor *weight; /* [1,H], or NULL                                                                */
    float *values;           /* [tokens]                                                                      */
} router_gate;

/* Scratch of one thread for what follows. */
size_t router_scratch_size(const router *r);

/* Tokens first .. first + n - 1 of x: their experts to `to`, their gate, both at the same index. few: the whole call
 * goes by dots, n <= PRODUCT_FEW_TOKENS. bad: set to the first token whose scores are not numbers if it is -1. */
void router_tokens(const router *r, const tn_tensor *x, int64_t first, int64_t n, bool few, const routes *to,
                   const router_gate *gate, int64_t *bad, void *scratch);

/* Its steps, for calls that share the rows of the weights between threads.
 *
 * The sums x_t . row of rows begin .. end - 1 of a matrix of r->products->dtype for n <= ROUTER_CHUNK tokens, to
 * logits[t * stride + row]; row E is that of the gate, where there is one. */
void router_logits(const router *r, const router_gate *gate, const void *const *x, int64_t n, bool few, int64_t begin,
                   int64_t end, float *logits, int64_t stride, void *scratch);

/* Token t from its logits, which are changed. work: room for E floats. False: they are not numbers. */
bool router_token(const router *r, float *logits, float *work, const routes *to, const router_gate *gate, int64_t t);

/* dL/dlogits[E] of one token from its scores, its experts and dL/dweights[k]. */
void router_grad(const router *r, const float *scores, const int32_t *experts, const float *upstream, float *dlogits);

/* dL/dfactors of one token: adds to sums[E]. As router_grad. */
void router_grad_factors(const router *r, const float *scores, const int32_t *experts, const float *upstream,
                         float *sums);

/* Refuses a correction bias that is not a number; and scores that are not: the first of the tokens that threads found
 * (-1: none). where: the site's path. */
tn_status router_check(const router *r, const char *where, tn_error *err);
tn_status router_bad_token(const int64_t *bad, int32_t threads, const char *where, tn_error *err);

#endif
