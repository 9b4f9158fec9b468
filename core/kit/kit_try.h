/* Inside core/kit: an implementation at one made-up site, tried in every way that a model could call it. */
#ifndef TENON_CORE_KIT_TRY_H
#define TENON_CORE_KIT_TRY_H

#include "check/check.h"
#include "check/fenced.h"

enum { KIT_CASES = 9, KIT_TEAMS = 3 };

/* A call with so many tokens, and what eager makes of it. */
typedef struct kit_case {
    check_case size;
    check_reference eager;
    const fenced_run *forward; /* the kernel's first, on one thread                                  */
} kit_case;

typedef struct kit_try {
    const device *device;
    const tn_site *site;
    const tn_site *other; /* the same with other weights                                              */
    const tn_impl *impl;
    uint64_t seed;
    bool quick;
    int32_t teams[KIT_TEAMS]; /* numbers of threads, the first is 1                                    */
    size_t team_count;
    kit_case cases[KIT_CASES];
    size_t case_count;
    size_t gradient_cases;   /* the first so many give gradients, too                                */
    compare_figures figures; /* the worst element of all that passed                                  */
    int64_t worst_tokens;    /* and its call's tokens                                                 */
    int64_t most_tokens;     /* of all calls                                                          */
} kit_try;

/* Everything that can be tried at k->site, in child processes: forward, then backward where there is one. TN_E_KERNEL
 * or TN_E_VERIFY with a message such as "forward: crashed with SIGSEGV (19 tokens), 2 threads", TN_DECLINED with the
 * reason of plan (or of eager), or an error of this process. */
tn_status kit_try_site(kit_try *k, tn_error *err);

/* kit_try_gradients.c: the second half. */
tn_status kit_try_gradients(kit_try *k, tn_error *err);

/* Runs in a child on a team of threads, after the runs of `first` with the other weights (run_count 0: after nothing).
 * Adds the number of threads to what went wrong. */
tn_status kit_try_execute(const kit_try *k, fenced_run *runs, size_t run_count, fenced_run *first, int32_t team,
                          tn_error *err);

/* "gradients differ: ..., 19 tokens, 2 threads" */
tn_status kit_try_wrong(const kit_try *k, const fenced_run *run, int32_t team, const char *what, const char *detail,
                        tn_error *err);

/* Why bits could differ between a call on one thread and one on a team after a call with other weights. */
const char *kit_try_why_bits(int32_t team, bool after_other);

/* Remembers the worst of figures. */
void kit_try_note(kit_try *k, const compare_figures *figures, int64_t tokens);

#endif
