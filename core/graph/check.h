/* Inside core: is a kernel right at a site? */
#ifndef TENON_CORE_CHECK_H
#define TENON_CORE_CHECK_H

#include "graph/compare.h"
#include "graph/inputs.h"
#include "graph/plan.h"
#include "graph/run.h"

/* Batch rows and tokens per row of one call. */
typedef struct check_case {
    int64_t batch, tokens;
} check_case;

/* Runs the implementation at the site on made-up inputs, in a child process, and compares it with eager. bound: what is
 * applied there (its plan and packed memory are used), or NULL (they are made in the child). Returns TN_OK, TN_E_VERIFY
 * (wrong numbers), TN_E_KERNEL (crashed, hung, wrote outside its memory, failed), TN_DECLINED (this site cannot be
 * checked) or another error; the message says with how many tokens. figures may be NULL. */
tn_status check_site(const tn_device *device, const tn_site *site, const tn_impl *impl, const graph_binding *bound,
                     const check_case *cases, size_t case_count, compare_figures *figures, tn_error *err);

/* The calls that a first use is checked with: few tokens, some, and several rows of many where that is not too slow. */
size_t check_first_use_cases(const tn_site *site, check_case cases[3]);

/* The eager results of one call. Outputs are owned by it. */
typedef struct check_reference {
    inputs in;
    tn_call call;
    void *memory;
} check_reference;

tn_status check_reference_open(check_reference *r, const tn_device *device, const tn_site *site, check_case size,
                               tn_error *err);
void check_reference_close(check_reference *r);

/* Performs a call on an arena of the right size. */
tn_status check_perform(const tn_device *device, const graph_binding *bound, const tn_call *call, tn_error *err);

/* checked.c: checks what the plan has chosen as the configuration says, and refuses what fails: another kernel or eager
 * takes the sites then, unless it was asked for by name, which is an error. */
tn_status check_plan(plan *p, tn_error *err);

#endif
