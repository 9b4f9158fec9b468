/* Inside core: is a kernel right at a site? */
#ifndef TENON_CORE_CHECK_H
#define TENON_CORE_CHECK_H

#include "check/compare.h"
#include "check/inputs.h"
#include "run/run.h"

/* Batch rows and tokens per row of one call, and what its inputs are like. */
typedef struct check_case {
    int64_t batch, tokens;
    inputs_profile profile;
    uint64_t seed; /* another one draws other inputs                                              */
} check_case;

/* An implementation at a site. */
typedef struct check_subject {
    const device *device;
    const tn_site *site;
    const tn_impl *impl;
    const graph_binding *bound; /* what is applied there: its plan and packed memory are used; NULL: they are made in
                                   the child                                                         */
    bool gradients;             /* backward is checked, too                                      */
} check_subject;

/* Runs the implementation on made-up inputs, in a child process, and compares it with eager. Returns TN_OK, TN_E_VERIFY
 * (wrong numbers), TN_E_KERNEL (crashed, hung, wrote outside its memory, failed), TN_DECLINED (this site cannot be
 * checked) or another error; the message says with how many tokens. figures may be NULL. */
tn_status check_site(const check_subject *s, const check_case *cases, size_t case_count, compare_figures *figures,
                     tn_error *err);

/* check_gradients.c: the same of its gradients for one case. forward: what the kernel gave for it. */
tn_status check_gradients(const check_subject *s, const inputs *in, const tn_call *eager, const tn_call *forward,
                          compare_figures *figures, tn_error *err);

/* Operations per second that even the plainest kernel under a sanitizer manages on a busy machine, and the time
 * that every trial has. */
#define CHECK_SLOWEST 4e7
#define CHECK_LEAST_SECONDS 5.0

/* The calls that a first use is checked with: few tokens, some, and several rows of many where that is not too slow. */
size_t check_first_use_cases(const tn_site *site, check_case cases[3]);

/* The eager results of one call. Outputs are owned by it; optional: the optional ones that it has too, as
 * tn_impl.optional_outputs. */
typedef struct check_reference {
    inputs in;
    tn_call call;
    void *memory;
} check_reference;

tn_status check_reference_open(check_reference *r, const device *device, const tn_site *site, uint32_t optional,
                               check_case size, tn_error *err);
void check_reference_close(check_reference *r);

/* check.c: out of memory while checking. */
tn_status check_no_memory(tn_error *err);

#endif
