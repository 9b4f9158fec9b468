/* Inside core: calling a kernel in a child process, on memory that catches writes outside it. */
#ifndef TENON_CORE_FENCED_H
#define TENON_CORE_FENCED_H

#include "check/fence.h"
#include "check/gradients.h"
#include "graph/graph.h"

typedef enum fenced_kind {
    FENCED_OTHER,
    FENCED_INPUT,
    FENCED_OUTPUT,
    FENCED_UPSTREAM, /* gradients of outputs                                                      */
    FENCED_GRADIENT, /* those of inputs and parameters                                            */
    FENCED_SCRATCH,
    FENCED_PACKED,
    FENCED_PARAMS
} fenced_kind;

/* Tensors of a call, one behind the other between the same guard pages. */
typedef struct fenced_place {
    fenced_kind kind;
    tn_tensor *tensors;
    int64_t count;
    const tn_tensor *from; /* what they hold; NULL: the kernel writes them                         */
    int same;              /* the place whose memory this is; -1: it has its own                   */
    fence fence;           /* of what the kernel writes                                            */
} fenced_place;

enum { FENCED_PLACES = 3 * TN_CALL_TENSORS + TN_ROLE_MAX };

/* One call, at the site of in->call. What the kernel wrote is in call.out[], or in grads.in[] and grads.param[],
 * afterwards. */
typedef struct fenced_run {
    const inputs *in;
    const gradients *wanted; /* backward is called; NULL: forward                                 */
    fence_side side;
    bool padded;     /* rows lie apart, as in a view of a wider tensor                             */
    bool off;        /* everything lies one element off a multiple of anything larger              */
    bool only;       /* its site is met in this run and in no other                                */
    int in_place;    /* so many of its first inputs and outputs (gradients of inputs and of outputs) share memory */
    int32_t team;    /* threads that take part, all of them in every region                       */
    int32_t threads; /* that its scratch is planned for; 0: as many as take part; with bound: as that says */
    bool whole;      /* with the plan for as many tokens as there may be, as models call it; else for its own number */
    double seconds;  /* limit for this call                                                        */
    tn_call call;
    tn_grads grads;
    tn_tensor *params; /* what grads.param[].tensors point into                                 */
    fenced_place places[FENCED_PLACES];
    size_t place_count;
} fenced_run;

/* Calls made one after the other in the same child. Each site is planned and packed once, before its first call. */
typedef struct fenced_trial {
    const device *device;
    const tn_site *site; /* the one that is tried; there may be calls of others                    */
    const tn_impl *impl;
    const graph_binding *bound; /* site's plan and packed memory; NULL: both are made in the child, too */
    int64_t max_tokens;         /* of plans that are made there                                   */
    int32_t threads;            /* that plans are for                                             */
    fenced_run *runs;
    size_t run_count;
    bool plain;               /* the runs and nothing else: who asks judges what they give                      */
    double *patience;         /* seconds that its plans may take, less, out, what they took; NULL: they may take any */
    bool (*go_on)(void *ctx); /* as guard_run_each's, with go_on_ctx; or NULL                            */
    void *go_on_ctx;
    bool loads; /* out: libraries came in meanwhile                                              */
    bool busy;  /* out: the machine never let the whole team run at one time                     */
} fenced_trial;

/* fenced_places.c: maps what a run writes; to be done for every run before fenced_execute. */
tn_status fenced_open_run(fenced_run *run, tn_error *err);
void fenced_close_run(fenced_run *run);

/* fenced_places.c: maps a place's memory, fills it and gives its tensors their addresses. With spares it is this
 * process's own; NULL: shared with children forked later. */
tn_status fenced_open_place(const fenced_run *run, fenced_place *p, fence *f, fence_spares *spares, tn_error *err);

/* fenced_params.c: makes a site's parameters read-only in this process, as far as whole pages go. Weights that are
 * mapped from a file cannot be written anyway; this is for those that were copied or made up. */
void fenced_params_protect(const tn_site *site);

/* Does the address lie in one of them? */
bool fenced_params_contain(const tn_site *site, const void *address);

/* A number made of what shares its page with something else, and so stays writable: another one when that changed. */
uint64_t fenced_params_edges(const tn_site *site);

/* Operations per second that even the plainest kernel under a sanitizer manages on a busy machine, those that a large
 * call must reach, and the time that every call has. */
#define CHECK_SLOWEST 4e7
#define CHECK_SLOWEST_LARGE 1e9
#define CHECK_LEAST_SECONDS 5.0

/* A time limit for so many operations. */
double fenced_seconds(double operations);

/* Plans, packs and makes every call; then looks at what the kernel keeps, loses, or mixes up between two sessions.
 * TN_E_KERNEL with a message such as "forward: crashed with SIGSEGV (19 tokens), 2
 * threads" when the kernel does not behave, TN_DECLINED when its plan declines. */
tn_status fenced_execute(fenced_trial *t, tn_error *err);

#endif
