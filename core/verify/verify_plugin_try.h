/* Inside core/verify: an implementation at one made-up site, tried in every way that a model could call it. */
#ifndef TENON_CORE_VERIFY_PLUGIN_TRY_H
#define TENON_CORE_VERIFY_PLUGIN_TRY_H

#include "check/check.h"

enum { TRY_CASES = 11, TRY_TEAMS = 3 };

/* A call with so many tokens, and what eager makes of it. */
typedef struct verify_plugin_case {
    check_case size;
    check_reference eager;
    const fenced_run *forward; /* the kernel's first, on one thread                                  */
} verify_plugin_case;

typedef struct verify_plugin_try {
    const device *device;
    const tn_site *site;
    const tn_site *other; /* the same with other weights                                              */
    const tn_impl *impl;
    uint64_t seed;
    bool quick;
    int32_t teams[TRY_TEAMS]; /* numbers of threads, the first is 1                                    */
    size_t team_count;
    verify_plugin_case cases[TRY_CASES];
    size_t case_count;
    size_t gradient_cases;   /* the first so many give gradients, too                                */
    compare_figures figures; /* the worst element of all that passed                                  */
    int64_t worst_tokens;    /* and its call's tokens                                                 */
    int64_t most_tokens;     /* of all calls                                                          */
    bool apart;              /* some rows or heads alone had other bits than among all                */
} verify_plugin_try;

/* Everything that can be tried at k->site, in child processes: forward, then backward where there is one. TN_E_KERNEL
 * or TN_E_VERIFY with a message such as "forward: crashed with SIGSEGV (19 tokens), 2 threads", TN_DECLINED with the
 * reason of plan (or of eager), or an error of this process. */
tn_status verify_plugin_try_site(verify_plugin_try *k, tn_error *err);

#endif
