/* Inside core/select: which of those that take a site is the fastest there? */
#ifndef TENON_CORE_MEASURE_H
#define TENON_CORE_MEASURE_H

#include "check/inputs.h"
#include "select/plan.h"

/* Times what `auto` would choose, and what competes with it, at each shape, in turns with what would happen without it,
 * in a child process, and then all that is chosen in whole steps; or recalls what an earlier run measured. A kernel
 * that does not gain clearly with one, some or many tokens leaves those calls alone; one that gains with none takes
 * nothing. The plan chooses again. Does nothing where it is turned off, and for kernels asked for by name. *changed:
 * what is chosen now may be unchecked, and not measured yet. */
tn_status plan_measure(plan *p, bool *changed, tn_error *err);

/* What the candidate would be timed with at sites of the shape; NULL: it is not, or needs no look. */
plan_fit *plan_entrant(const plan *p, size_t candidate, size_t shape);

/* Those that compete for the sites of one shape. Calls go round so many of these sites that weights come from memory,
 * as they do in a model of many layers: twice what the last caches hold, at most; where that takes too many, the
 * least. */
enum { MEASURE_SITES = 4, MEASURE_MOST_SITES = 64, MEASURE_FITS = 15 };

typedef struct measure_entrant {
    size_t candidate;
    uint32_t impl;
    plan_fit *fit;
} measure_entrant;

typedef struct measure_entry {
    size_t shape;
    int depth; /* an operation with parts is measured after them                                  */
    size_t site_count, fit_count;
    const graph_site *sites[MEASURE_MOST_SITES];
    measure_entrant fits[MEASURE_FITS];
    bool known;
} measure_entry;

/* measure_child.c: times the entries that are not known, in order, and fills in their fits' times. What crashes is
 * refused; what does not end in time takes nothing. Each entry is known afterwards, or the plan is untimed. */
tn_status measure_time(plan *p, measure_entry *entries, size_t count, tn_error *err);

/* measure_child.c: notes that the child failed by no kernel's fault; nothing is timed from then on. */
tn_status measure_give_up(plan *p, const tn_error *why, const char *how, tn_error *err);

/* measure_child.c, in a child, which has one thread until then: as many as the program has, which must be asked before;
 * and inputs of a call of that size, of attention with few tokens behind so many positions. Its outputs go with the
 * child. */
void measure_threads(int32_t threads);
tn_status measure_draw(inputs *in, const tn_site *site, int size, int64_t cached, tn_error *err);

/* measure_busy.c: seconds that threads of this process waited for a processor so far; measure_waited_in: those of this
 * folder of threads in /proc. 0: not known. */
double measure_waited(const apply_target *target);
double measure_waited_in(const char *tasks);

/* measure_cache.c: the times of an earlier run by the same library with the same plugins on this processor and as many
 * threads; nothing otherwise. The parts' entries must be settled. Times of a busy machine are not kept. */
bool measure_recall(const plan *p, measure_entry *entry);
void measure_remember(const plan *p, const measure_entry *entry);

/* ---- measure_step.c: whole steps -------------------------------------------------------------------------------- */

enum { MEASURE_ROUNDS = 31 };

/* A step of one size: as many rounds, 0: it was not timed, because calls are so long that nothing around them matters.
 * look: what is done around a step in which kernels of plugins take part. */
typedef struct measure_step {
    int rounds;
    timing_spread look;
} measure_step;

/* The calls at the outermost sites of one shape in these steps: seconds without kernels and with them. */
typedef struct measure_turns {
    bool contested; /* a kernel that nobody asked for by name takes part                              */
    double scale;   /* sites of the model for one that was timed                                      */
    double seconds[2][MEASURE_ROUNDS];
} measure_turns;

/* Times all that is chosen as it follows one another in a step, so that what a kernel costs besides its call (threads
 * that are to be woken, looks at the process) counts, and leaves out what does not gain there. *changed: something was
 * left out. */
tn_status measure_steps(plan *p, bool *changed, tn_error *err);

/* measure_cache.c: what whole steps said of each shape of outermost sites: a bit for each size at which what is chosen
 * there is left out. idle: [p->shape_count]. */
bool measure_recall_steps(const plan *p, uint32_t *idle);
void measure_remember_steps(const plan *p, const uint32_t *idle);

/* ---- measure_decide.c ------------------------------------------------------------------------------------------- */

/* The share of the time without the kernel that its calls take per token, added up over all sizes; 0:
 * nobody measured. */
timing_spread plan_share(const plan_fit *fit);

/* "1 token 52 us (without 61 us), ..." into text, which holds PLAN_TEXT; "" where nobody measured. */
void plan_times_text(const plan_fit *fit, char *text);

/* What the times say: where the fits are not used, and whether they take anything. */
void measure_settle(measure_entry *entry);

/* A whole step of that size does not gain by it. */
void measure_idle(plan_fit *fit, int size);

/* Is it worth another look after so many? */
bool measure_is_open(const timing_spread *kernel, const timing_spread *without, int looks);

/* Is the step clearly faster, what is done around it included, with those shapes that are faster with kernels (keeps)?
 */
bool measure_step_gains(const measure_step *step, const measure_turns *turns, size_t shapes, bool *keeps);

/* Did threads wait so long for a processor, of these seconds, that somebody else's work was measured, too? */
bool measure_is_busy(double waited, double seconds);

#endif
