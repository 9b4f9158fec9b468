/* Reference of mixtures of experts in double: results and gradients, with bounds derived from the operands. */
#ifndef TENON_CHECK_MIXTURE_H
#define TENON_CHECK_MIXTURE_H

#include "routing.h"

/* One expert, or several of one shape behind each other: gate and up [I,H], down [H,I]. */
typedef struct mixture_weights {
    int64_t inter;
    double *gate, *up, *down;
    estimate *dgate, *dup, *ddown;
} mixture_weights;

/* What the caller gives, and results: each estimate is what a kernel must come near to. */
typedef struct mixture {
    tn_dtype dtype;
    tn_act act;
    int64_t tokens, hidden, experts, top_k;
    mixture_weights expert, shared;            /* shared.inter 0: none                                         */
    const double *shared_scale;                /* [H], or NULL: 1                                              */
    const reference_router *router;            /* NULL: routes come from outside                               */
    const double *x, *g;                       /* [T,H]; g: dL/dy                                              */
    reference_routes *routes;                  /* [T]                                                          */
    estimate *y, *dx;                          /* [T,H]                                                        */
    estimate *dweights;                        /* [T,k]                                                        */
    estimate *drouter, *dbias, *dshared_scale; /* [E,H], [E], [H]                                   */
} mixture;

/* Allocates the results (as memory of the case) and computes them. */
void mixture_run(check_case *c, mixture *m);

#endif
