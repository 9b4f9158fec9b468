/* Inside core/train: the loss of routers that prefer some of their experts. */
#ifndef TENON_CORE_TRAIN_ROUTER_LOSS_H
#define TENON_CORE_TRAIN_ROUTER_LOSS_H

#include "run/router.h"

/* Over the rows of all layers with a router: E sum over experts of (how often an expert is among the k most probable,
 * by row) times (its mean probability). The former has no gradient. */
typedef struct router_loss {
    double factor; /* of the loss                                                              */
    int64_t experts, rows;
    double *chosen, *chances; /* by expert: how often; sums of probabilities                           */
    float *row;
    tn_tensor *logits; /* that wait for their gradients                                             */
    size_t count, capacity;
    bool known; /* chosen and rows are those of the whole run: logits get their gradients at once      */
} router_loss;

void router_loss_open(router_loss *l, double factor);
void router_loss_close(router_loss *l);

/* Before a run, whose routers it sees; behind its forward: the loss, without its factor, and, on a tape, gradients of
 * all logits. */
void router_loss_begin(router_loss *l, graph_run *r);
double router_loss_end(router_loss *l, tape *t);

#endif
