/* Inside core/check: the child of a trial. What it shares with its parent, and the pieces that its files use. */
#ifndef TENON_CORE_FENCED_CHILD_H
#define TENON_CORE_FENCED_CHILD_H

#include "check/fenced.h"
#include "check/state.h"
#include "device/hoststate.h"

#include <time.h>

typedef enum fenced_stage {
    STAGE_PLAN,
    STAGE_PACK,
    STAGE_CALL,
    STAGE_HOST /* what the host computes behind a call                                             */
} fenced_stage;

/* What the child tells; shared. */
typedef struct fenced_note {
    fenced_stage stage;
    size_t run;
    const tn_site *site;
    const char *manner;  /* how the call is made, beyond what its run says: "", or words behind a comma */
    double seconds;      /* limit of what it does now                                               */
    double plan_seconds; /* that all plans took so far                                                  */
    bool overdue, loads;
    tn_status status;
    char message[512];
    bool fault, fault_writes, fault_inside;
    fenced_kind fault_kind;
    int32_t team_runs, side_by_side; /* calls on a team, and those before which all of it ran at one time */
} fenced_note;

typedef struct fenced_region {
    fence fence;
    fenced_kind kind;
} fenced_region;

/* A site that was planned and packed. */
typedef struct fenced_prepared {
    const tn_site *site;
    tn_plan plan;
    const void *packed;
    size_t packed_region;
    uint64_t edges; /* of its parameters                                                          */
} fenced_prepared;

typedef struct fenced_child {
    const fenced_trial *t;
    fenced_note *note;
    fenced_region *regions;
    size_t count;
    fence_spares spares; /* of calls that were made                                                 */
    fenced_prepared *sites;
    size_t site_count;
    int32_t team;
    timer_t clock;
    double half_over; /* when half of the limit is, by the clock                                  */
    int halves;       /* that are over                                                           */
    hoststate *before;
    state_watch *watch;
    bool called[3];      /* plan, forward, backward: the first call of each makes things ready          */
    unsigned calls;      /* so many were made                                                      */
    double meet_seconds; /* spent on waiting until the team runs at one time                       */
    struct fenced_host *host;
    int host_on_team; /* so many calls were followed by the host's on the team                       */
} fenced_child;

/* One call that is laid out. */
typedef struct fenced_call {
    fenced_run *run;
    const fenced_prepared *site;
    tn_plan plan;
    size_t first, inputs; /* its regions, and those from its scratch on, which are closed with it       */
    fence *scratch;
} fenced_call;

/* Everything that is done in the child; its exit value. */
int fenced_child_main(void *job);

typedef struct fenced_job {
    const fenced_trial *t;
    fenced_note *note;
} fenced_job;

/* ---- fenced_signals.c: faults and lateness ---- */

/* Zeros that are the child's, and go with it. NULL: no memory. */
void *fenced_take_memory(size_t bytes);

/* Faults and lateness end the child with a note from now on. */
bool fenced_open_signals(fenced_child *c);

/* What the child does from now on has so many seconds. */
void fenced_limit_time(fenced_child *c, double seconds);

/* A stack for the handlers of the calling thread. */
void fenced_give_stack(void *unused, int32_t thread, int32_t threads);

/* ---- fenced_call.c: one call ---- */

int fenced_give_up(fenced_note *note, tn_status status, const char *text);

/* The site of a call, planned and packed when it is met for the first time; NULL: that failed. */
fenced_prepared *fenced_prepare(fenced_child *c, const tn_site *site);

/* A site that is met once needs its packed memory no more. */
void fenced_release(fenced_child *c, const fenced_run *run, fenced_prepared *p);

/* Are all parameters as they were? Which call changed them is not known: the last is blamed. */
int fenced_look_at_edges(fenced_child *c);

/* Lays inputs and scratch out; turned: with the sign of every float changed. 0, or the child gives up. */
int fenced_open_call(fenced_child *c, fenced_run *run, const fenced_prepared *site, bool turned, fenced_call *call);
void fenced_close_call(fenced_child *c, fenced_call *call);

/* The kernel's function itself. */
tn_status fenced_make_call(const fenced_child *c, const fenced_call *call, tn_error *err);

/* The same, watched: 0, or the child gives up. *fresh: variables changed that had not changed before. */
int fenced_watch_call(fenced_child *c, fenced_call *call, bool *fresh);

/* Asks for a plan, watched. */
int fenced_watch_plan(fenced_child *c, const tn_site *site, tn_plan *plan, const char *manner);

/* What the run writes, to be put back or compared with. NULL: no memory. */
size_t fenced_result_bytes(const fenced_run *run);
unsigned char *fenced_copy_results(const fenced_run *run);
bool fenced_same_results(const fenced_run *run, const unsigned char *copy);
void fenced_restore_results(const fenced_run *run, const unsigned char *copy);

/* ---- fenced_team.c ----------------------------------------------------------------------------------------------- */

/* So many threads take part from now on, all of them in every region. */
void fenced_use_team(fenced_child *c, int32_t team);

/* Waits until the team runs at one time, where it has not done so often enough, and notes whether it did. */
void fenced_gather(fenced_child *c);

/* ---- fenced_again.c: calls made again: what is kept, lost, or shared by two sessions --------------------------- */
int fenced_again(fenced_child *c);

/* ---- fenced_host.c: what the host computes between calls must come out as ever ---------------------------------- */

/* Made once, in the program: the library that computes the product makes code for it, which children then have. NULL:
 * there was no memory. */
struct fenced_host *fenced_host_open(void);

/* On the calling thread, or on every one of the team; false: other bits than before the kernel's first call. */
bool fenced_host_same(struct fenced_host *h, bool on_team);

#endif
