/* Inside core: what a layer of its own adds to a projection that it shares with others: the product of two matrices of
 * low rank, which stand in a list of the shared module (Zamba2). */
#ifndef TENON_CORE_ADAPTER_H
#define TENON_CORE_ADAPTER_H

#include "models/parts.h"
#include "run/steps.h"

typedef struct adapter {
    graph_site *down, *up; /* or NULL                                                             */
} adapter;

/* Element index of list inside module: from in to rank to out. Errors stick in b. */
void adapter_build(graph_builder *b, graph_module *module, const char *list, int64_t index, int64_t in, int64_t rank,
                   int64_t out, adapter *a);

/* What site makes of x [T,in], and what a adds to it, if anything. */
tn_tensor adapter_linear(graph_run *r, const graph_site *site, const adapter *a, const tn_tensor *x);

#endif
