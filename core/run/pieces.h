/* Inside core: calls of more tokens than kernels plan for. */
#ifndef TENON_CORE_PIECES_H
#define TENON_CORE_PIECES_H

#include "run/run.h"

/* run_site_call, of as many tokens at once as a call may have (graph_most_tokens). Towers see pictures of any size;
 * what is not done token by token (ATTENTION) is the caller's to cut. */
tn_status pieces_site_call(const device *device, arena *a, const graph_site *site, const tn_call *call, tn_error *err);

#endif
