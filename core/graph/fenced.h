/* Inside core: calling a kernel in a child process, on memory that catches writes outside it. */
#ifndef TENON_CORE_FENCED_H
#define TENON_CORE_FENCED_H

#include "graph/fence.h"
#include "graph/graph.h"
#include "graph/inputs.h"

/* One call. What the kernel wrote is in call.out[] afterwards. */
typedef struct fenced_run {
    const inputs *in;
    fence_side side;
    bool padded;  /* rows lie apart, as in a view of a wider tensor                             */
    int in_place; /* that many inputs and outputs are the same memory                           */
    tn_call call;
    fence out[TN_CALL_TENSORS];
} fenced_run;

typedef struct fenced_trial {
    const tn_site *site;
    const tn_impl *impl;
    const graph_binding *bound; /* its plan and packed memory; NULL: both are made in the child  */
    int64_t max_tokens;         /* of the plan when bound is NULL                                */
    int32_t threads;
    double seconds; /* limit for everything                                          */
    fenced_run *runs;
    size_t run_count;
} fenced_trial;

/* Maps what a run's outputs need; to be done for every run before fenced_execute. */
tn_status fenced_open_run(fenced_run *run, tn_error *err);
void fenced_close_run(fenced_run *run);

/* Plans, packs and makes every call. TN_E_KERNEL with a message such as "crashed with SIGSEGV in forward (19 tokens)"
 * when the kernel does not behave, TN_DECLINED when its plan declines. */
tn_status fenced_execute(fenced_trial *t, tn_error *err);

#endif
