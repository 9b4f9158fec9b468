/* One run of a case, forward or backward: everything copied between guard pages, called, and its results kept. */
#ifndef TENON_CHECK_ATTEMPT_H
#define TENON_CHECK_ATTEMPT_H

#include "check_kernels.h"
#include "guarded.h"

enum { ATTEMPT_BUFFERS = 4096, ATTEMPT_RESULTS = 2048 };

/* A tensor that the call writes. */
typedef struct attempt_result {
    tn_tensor *tensor;
    const guarded *memory; /* NULL: that of an input                                               */
    const double *want, *bound;
    char name[64];
} attempt_result;

typedef struct attempt {
    tn_call call;
    tn_site site;
    tn_plan plan;
    tn_grads grads;
    const tn_impl *impl;
    bool far;         /* in the memory of a device                                                 */
    bool may_decline; /* in the step of the moment: a skip and no failure                          */
    tn_error err;
    tn_status status;
    guarded buffers[ATTEMPT_BUFFERS];
    size_t buffer_count;
    tn_tensor *params[TN_ROLE_MAX], *grad_params[TN_ROLE_MAX];
    attempt_result results[ATTEMPT_RESULTS];
    size_t result_count;
} attempt;

/* Plans, packs and calls, or lets a device's own operations do it (impl NULL), in the device's memory where the state
 * says so; NULL after a failure of the group, or a device's skip. Owned: attempt_free. */
attempt *attempt_run(check_state *s, const check_case *c, const tn_impl *impl, placement where, bool backward);
void attempt_free(attempt *t);

/* Tokens of the case for plan. */
int64_t attempt_tokens(const check_case *c);

/* Bytes from the first to the last element. */
int64_t attempt_span(const tn_tensor *t);

/* The CPU's results for the case's call in the same order, by eager. */
attempt *attempt_eager(check_state *s, check_case *c, const tn_impl *impl, bool backward);

#endif
