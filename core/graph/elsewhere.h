/* Inside core: layers that other ranks have. The tree is built as ever, on addresses of zeros that take no memory; no
 * kernel gets their sites, and nothing performs them. */
#ifndef TENON_CORE_ELSEWHERE_H
#define TENON_CORE_ELSEWHERE_H

#include "graph/graph.h"

/* Addresses for a tensor; false: there are none. */
bool elsewhere_tensor(graph *g, tn_dtype dtype, int32_t ndim, const int64_t *shape, tn_tensor *out);

/* Is it one of those addresses? */
bool elsewhere_has(const graph *g, const void *data);

#endif
