/* Copies of a case's tensors that calls go round, forward and backward, by a kernel and by eager. */
#ifndef TENON_CHECK_BENCH_SET_H
#define TENON_CHECK_BENCH_SET_H

#include "check_kernels.h"
#include "host.h"

typedef struct bench_copy {
    tn_site site;
    tn_call forward, backward;
    tn_grads grads;
    tn_plan plan;
    tn_tensor *params[TN_ROLE_MAX], *grad_params[TN_ROLE_MAX];
    void *memory, *packed;
} bench_copy;

typedef struct bench_set {
    const tn_impl *impl;
    bench_copy *copies;
    size_t count;
    void *scratch; /* of all calls, as in a model                                                 */
    host_eager_state eager;
} bench_set;

/* count copies of a case, which must stay. False when memory does not suffice. */
bool bench_set_open(bench_set *set, const check_case *c, const tn_impl *impl, size_t count);
void bench_set_close(bench_set *set);

/* Bytes of one copy. */
size_t bench_set_bytes(const check_case *c);

/* Plans and packs for the threads of now and these flags of the processor. */
tn_status bench_set_plan(bench_set *set, const check_case *c, bool backward, uint64_t flags, tn_error *err);

/* Calls copy index. */
tn_status bench_set_kernel(bench_set *set, size_t index, bool backward, tn_error *err);
tn_status bench_set_eager(bench_set *set, size_t index, bool backward, tn_error *err);

#endif
