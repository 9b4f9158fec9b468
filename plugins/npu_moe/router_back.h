/* Gradients of a router from those of its weights: dl by router_grad, then drouter = dl^T x, dx += dl router. Two steps
 * with a barrier between them; in the second, whoever is free takes the next piece. */
#ifndef ROUTER_BACK_H
#define ROUTER_BACK_H

#include "pieces.h"
#include "router.h"

/* The caller's part: */
typedef struct router_back {
    const router *router;
    const tn_tensor *x;
    int64_t tokens;
    routes routed;         /* of forward, with scores                                                        */
    const float *dweights; /* [tokens, dweights_row]: dL/dweights, k of each row                              */
    int64_t dweights_row;
    /* The gate's values and dL/d(values), at dgate[t * dweights_row], or weight NULL. */
    router_gate gate;
    const float *dgate_values;
    float *sums; /* [tokens, H]: dL/dx so far, or NULL: not wanted                                            */
    /* Written, each may be NULL: */
    const tn_tensor *dx, *drouter, *dbias, *dcorrection, *dfactors, *dgate;
    /* Memory and queues, from router_back_layout: */
    float *dl;           /* [tokens, E]                                                             */
    float *dfactor_sums; /* [E]                                                                */
    char *dl_rows;       /* the same in products' dtype                                              */
    char *dz_rows;       /* [tokens]: of the gate's logit, in own's dtype                            */
    float *x_wide;       /* [tokens, H] where the products are of another type than x                */
    char *thread;        /* of each thread                                                          */
    size_t x_rows, panel, strip, pointers, product, gate_row, grad, thread_size, total;
    product_queue *grads, *chunks;
} router_back;

/* Lays memory out from base on (NULL: only the total counts). */
void router_back_layout(router_back *b, int64_t max_tokens, int32_t threads, char *base);

/* The two steps of one thread; sums must be complete before the second. */
void router_back_logits(const router_back *b, int32_t thread, int32_t threads);
void router_back_products(const router_back *b, int32_t thread, int32_t threads);

#endif
