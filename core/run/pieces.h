/* Inside core: calls of more tokens than kernels plan for. */
#ifndef TENON_CORE_PIECES_H
#define TENON_CORE_PIECES_H

#include "run/run.h"

/* A call of a site in calls of as many tokens as one may have (graph_most_tokens, GRAPH_WIDE_TRIED). Towers see
 * pictures of any size; what is not done token by token (ATTENTION) is the caller's to cut. */
typedef struct pieces {
    const tn_call *call;
    int axis;
    int64_t all, most, begin;
} pieces;

pieces pieces_of(const graph_site *site, const tn_call *call, bool taped);

/* The next of them; false: there are no more. */
bool pieces_next(pieces *p, tn_call *piece);

#endif
