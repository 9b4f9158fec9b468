/* Inside core: which kernel should have which site, and why not another. */
#ifndef TENON_CORE_PLAN_H
#define TENON_CORE_PLAN_H

#include "apply/rank.h"
#include "apply/target.h"
#include "plugin/registry.h"

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

/* Finds the candidates, asks each implementation about each shape and chooses. Close with plan_close in any case. */
tn_status plan_make(plan *p, apply_target *target, const tn_config *config, const plan_request *request, tn_error *err);
void plan_close(plan *p);

void plan_choose(plan *p);

/* Chooses again: after a fit was refused, barred from a site, timed, or no longer takes its shape (takes false, a
 * reason). All of these can only become more, up to a number, and each loop around this ends by it: to choose again
 * when nothing of the kind happened is TN_E_INTERNAL. */
tn_status plan_choose_again(plan *p, tn_error *err);

/* No longer trusted: takes nothing from now on. */
void plan_refuse(plan_fit *fit, const char *reason);

/* What is chosen for the site does not work there: barred from it, so that another is chosen next time, or an error
 * where it was asked for by name. */
tn_status plan_bar_site(plan *p, size_t site, const char *reason, tn_error *err);

/* Does the site keep what is applied there already? */
bool plan_keeps(const plan *p, size_t site);

/* The first of a kernel's implementations that takes the site, or NULL. Its options are not looked at. */
plan_fit *plan_taking_fit(const plan *p, size_t candidate, size_t site);

/* Would the candidate's packed weights for the site be more than may be held? */
bool plan_packs_too_much(const plan *p, size_t site, const plan_fit *fit);

/* A kernel inside the site that was asked for before this candidate: the candidate leaves the site to it. -1: none. */
int32_t plan_preferred_inside(const plan *p, size_t candidate, size_t site, size_t *inside);

/* The one that should have the site of those that take it, or -1; what encloses the site does not matter. */
int32_t plan_best(const plan *p, const graph_site *site, plan_fit **fit);

/* measure_decide.c: the share of the time without the kernel that its calls take per token, added up over all sizes; 0:
 * nobody measured. */
timing_spread plan_share(const plan_fit *fit);

/* measure_decide.c: "1 token 52 us (without 61 us), ..." into text, which holds PLAN_TEXT; "" where nobody measured. */
void plan_times_text(const plan_fit *fit, char *text);

/* fit: of the candidate at the site, or NULL. */
static inline rank_side plan_side(const plan *p, size_t candidate, const plan_fit *fit)
{
    return (rank_side){p->candidates[candidate].kernel, p->candidates[candidate].place,
                       fit ? plan_share(fit) : (timing_spread){0}};
}

/* why.c: why a candidate has not got a site ("" when it has). text must hold PLAN_TEXT. */
void plan_verdict(const plan *p, size_t candidate, size_t site, char *text);

/* The reason that most sites with the kernel's operations have in common why it has none. false: there are no such
 * sites, which text says. */
bool plan_reason(const plan *p, size_t candidate, char *text);
size_t plan_site_count(const plan *p, size_t candidate);

/* An error when a kernel that was asked for by name takes no site; a note where others, named before it, have them. */
tn_status plan_check_named(plan *p, tn_error *err);

/* Sites that a candidate takes and another kernel has, for one reason. */
typedef struct plan_overlap {
    size_t loser;
    const registry_kernel *winner;
    size_t sites;
    bool tie;
    char reason[PLAN_TEXT]; /* at the first of them                                               */
} plan_overlap;

/* overlap.c: who lost sites to whom. list is owned: free(). */
tn_status plan_overlaps(const plan *p, plan_overlap **list, size_t *count, tn_error *err);

/* candidates.c: the kernels of the device, each with the reason why the SPEC leaves it out. */
tn_status plan_find_candidates(plan *p, const plan_request *request, tn_error *err);
tn_status plan_unknown_id(const char *device, const char *id, tn_error *err);
bool plan_modules_match(const char *patterns, const char *path);

/* patterns.c: patterns that match no module of the model are notes, or an error where a named kernel has no other. */
tn_status plan_check_patterns(plan *p, const plan_request *request, tn_error *err);

/* Adds a note. */
tn_status plan_note(plan *p, tn_error *err, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* plan_shape.c: sites that no kernel can tell apart but by their path and the values of their weights. */
/* A site of the same shape as that one with other weights, or NULL. */
const tn_site *plan_other_weights(const apply_target *target, size_t site);

tn_status plan_find_shapes(plan *p, tn_error *err);
bool plan_same_shape(const tn_site *a, const tn_site *b);

/* Equal for sites of one shape. */
uint64_t plan_shape_hash(const tn_site *site);

/* check_plan.c: what check_site compares with where the target's memory is not the host's: opens the CPU in memory of
 * the caller. NULL where it is, or cannot be opened; device_close it otherwise. */
const device *plan_open_cpu(const apply_target *target, device *cpu);

/* Of one shape: do they hold the same weights, in the same memory or (host_memory: it may be read) the same bytes?
 * Weights that differ do so early, so this is cheap. */
bool plan_same_weights(const tn_site *a, const tn_site *b, bool host_memory);

/* ask.c: does an implementation take a shape? Its plan() runs in a child first. */
tn_status plan_ask(plan *p, tn_error *err);

/* What is chosen is asked once more at every site that it is new to, in a child again. Who then declines, fails or asks
 * for other sizes than at the example of the shape is barred from the site and another is chosen: *changed. Costs
 * little where nothing changed since. */
tn_status plan_settle(plan *p, bool *changed, tn_error *err);

/* Asks what is chosen in this process: the plan of what is bound. An error where that is not what the child answered.
 */
tn_status plan_bind(const plan *p, size_t site, graph_binding *bound, tn_error *err);

/* Did a plan() ask for the same twice? TN_E_KERNEL with both if not. */
tn_status plan_same_sizes(const tn_plan *now, const tn_plan *before, tn_error *err);

static inline plan_fit *plan_fit_at(const plan *p, size_t candidate, size_t shape, uint32_t impl)
{
    const plan_candidate *c = &p->candidates[candidate];
    return &c->fits[shape * c->kernel->kernel.impl_count + impl];
}

/* check_plan.c: checks what the plan has chosen as the configuration says, and refuses what fails: another kernel or
 * eager takes the sites then, unless it was asked for by name, which is an error. */
tn_status plan_check(plan *p, tn_error *err);

/* check_plan.c: checks one at a site of its shape: it is trusted afterwards, or refused. An error where it was asked
 * for by name, or where the check itself could not be made. */
tn_status plan_check_fit(plan *p, size_t candidate, plan_fit *fit, size_t site, tn_error *err);

/* progress.c: counts what plan_check and plan_measure will check, unless something fails; only once, and only where
 * somebody wants to be told. */
void plan_count_checks(plan *p);

/* progress.c: so many are done; more than were counted are not told. TN_E_CANCELLED: the caller says so, from
 * then on. */
tn_status plan_tell(plan *p, plan_progress *progress, int64_t done, tn_error *err);

/* check_plan.c: are all sites checked, and anew, whatever earlier runs know? */
bool plan_checks_all(const plan *p);

/* measure.c: what the candidate would be timed with at sites of the shape; NULL: it is not, or needs no look. */
plan_fit *plan_entrant(const plan *p, size_t candidate, size_t shape);

/* apply.c: prepares what the plan has chosen and puts it in place. */
tn_status apply_plan(plan *p, tn_error *err);

tn_status plan_no_memory(tn_error *err);

#endif
