/* Inside core: a plan: which kernel should have which site, and why not another. A value; the files beside it say what
 * is done with it, select.c in which order. */
#ifndef TENON_CORE_PLAN_H
#define TENON_CORE_PLAN_H

#include "base/text.h"
#include "check/timing.h"
#include "plugin/registry.h"
#include "select/target.h"

enum { PLAN_TEXT = 320 };

/* How long calls take: of the kernel, and without it. known false: nobody measured. */
typedef struct plan_times {
    bool known;
    bool busy; /* other programs had the processors meanwhile: the next run measures again                 */
    int64_t tokens[GRAPH_SIZES];
    timing_spread kernel[GRAPH_SIZES], without[GRAPH_SIZES];
} plan_times;

/* One implementation at all sites of one shape. */
typedef struct plan_fit {
    const tn_impl *impl;
    bool takes;
    bool refused;           /* it would take them, but is not trusted                                      */
    bool trusted;           /* it passed a check at a site of this shape                                   */
    tn_plan plan;           /* what its plan() answered at the example of the shape                        */
    char reason[PLAN_TEXT]; /* why it does not take them                                         */
    plan_times times;
    uint32_t not_at;           /* see graph_binding                                                        */
    uint32_t idle_at;          /* of not_at: a whole step does not gain by it                               */
    struct first_calls *first; /* the target's (first_calls.h); NULL: it was not checked          */
} plan_fit;

/* A fit that failed at one site, where others of its shape may work. */
typedef struct plan_bar {
    const plan_fit *fit;
    size_t site;
    char reason[PLAN_TEXT];
} plan_bar;

/* A kernel of the model's device. */
typedef struct plan_candidate {
    registry_kernel *kernel;
    bool named;               /* asked for by its id, or by a name that it shares              */
    const char *asked;        /* that name; its id where it is not named, too                  */
    size_t place;             /* in the list of those asked for; RANK_AUTO: not named          */
    bool silent;              /* nobody asked for it: reports say nothing of it as a whole     */
    const char *modules;      /* patterns of module paths, comma separated, or NULL            */
    char excluded[PLAN_TEXT]; /* why it takes no part at all; empty: it does                   */
    plan_fit *fits;           /* [shape][impl]                                                 */
} plan_candidate;

typedef struct plan_choice {
    int32_t candidate; /* or -1: eager, or what has it already when the plan adds to that        */
    plan_fit *fit;
    const registry_kernel *kernel; /* who has it; NULL: eager                                    */
    const graph_site *covered_by;  /* the enclosing site whose kernel does this one's work       */
    size_t packed_before;          /* packed weights of what was chosen before this site         */
} plan_choice;

/* How far something is that is told; total 0: nothing is. */
typedef struct plan_progress {
    const char *what;
    int64_t done, total;
} plan_progress;

typedef struct plan {
    apply_target *target;
    const tn_config *config; /* or NULL                                                          */
    bool adds;               /* sites that no candidate takes keep what they have                */
    bool tells;              /* of its request                                                    */
    size_t packed_limit;     /* of all packed weights; SIZE_MAX: none                            */
    plan_candidate *candidates;
    size_t candidate_count;
    const graph_site **shapes; /* an example of each distinct shape                              */
    size_t shape_count;
    size_t *shape_of;       /* [site]                                                           */
    plan_choice *choices;   /* [site]                                                           */
    const plan_fit **asked; /* [site]: who was asked there                                      */
    plan_bar *bars;
    size_t bar_count;
    bool untimed;    /* measuring failed by no kernel's fault: none is timed any more                */
    size_t settled;  /* what had happened when it was last chosen: plan_choose_again                 */
    text_list notes; /* warnings for whoever asked                                                */
    bool told_busy;  /* one of them says that a check could not be remembered                     */
    bool stepped;    /* what is chosen was measured in whole steps                                  */
    bool counted;    /* checks were counted                                                        */
    bool cancelled;  /* by whoever is told                                                         */
    bool forgets;    /* the next run knows nothing of one of them                                  */
    plan_progress checks, timings;
} plan;

/* What is asked for. */
typedef struct plan_request {
    const char *spec;    /* "auto", "none", ids; NULL: the configuration's                        */
    const char *modules; /* for the kernels named, in place of the configuration's; or NULL       */
    bool adds;
    bool tells; /* a failed check is told in the report, also of a kernel that was asked for by name */
} plan_request;

void plan_close(plan *p);

/* No longer trusted: takes nothing from now on. */
void plan_refuse(plan_fit *fit, const char *reason);

/* What is chosen for the site does not work there: barred from it, so that another is chosen next time, or an error
 * where it was asked for by name. */
tn_status plan_bar_site(plan *p, size_t site, const char *reason, tn_error *err);

/* Does the site keep what is applied there already? */
bool plan_keeps(const plan *p, size_t site);

/* The first of a kernel's implementations that takes the site, or NULL. Its options are not looked at. */
plan_fit *plan_taking_fit(const plan *p, size_t candidate, size_t site);

/* Adds a note. */
tn_status plan_note(plan *p, tn_error *err, const char *format, ...) __attribute__((format(printf, 3, 4)));

static inline plan_fit *plan_fit_at(const plan *p, size_t candidate, size_t shape, uint32_t impl)
{
    const plan_candidate *c = &p->candidates[candidate];
    return &c->fits[shape * c->kernel->kernel.impl_count + impl];
}

/* So many are done; more than were counted are not told. TN_E_CANCELLED: the caller says so, from
 * then on. */
tn_status plan_tell(plan *p, plan_progress *progress, int64_t done, tn_error *err);

tn_status plan_no_memory(tn_error *err);

#endif
