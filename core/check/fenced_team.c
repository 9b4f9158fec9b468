/* The team of threads in the child that tries a kernel: whole in every region, and at one time before a call. */
#include "base/clock.h"
#include "check/fenced_child.h"

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

/* A team of more than one is whole in every region: what goes wrong between threads shall go wrong here. */
void fenced_use_team(fenced_child *c, int32_t team)
{
    if (team == c->team)
        return;
    c->team = team;
    threads_serial(team == 1);
    if (team == 1)
        return;
    threads_limit(0);
    threads_set(team);
    threads_strict(true);
    tn_parallel(fenced_give_stack, NULL);
}

/* Threads that look for each other. */
typedef struct meeting {
    atomic_int here, late;
    int32_t wanted; /* as many as there are processors                                             */
} meeting;

static void meet(void *ctx, int32_t thread, int32_t threads)
{
    static const double SOON = 1e-4;
    meeting *m = ctx;
    int32_t wanted = threads < m->wanted ? threads : m->wanted;
    double deadline = clock_seconds() + SOON;
    (void)thread;
    atomic_fetch_add(&m->here, 1);
    while (atomic_load(&m->here) < wanted && !atomic_load(&m->late))
        if (clock_seconds() > deadline)
            atomic_store(&m->late, 1);
}

static int32_t processors(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static void rest(double seconds)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
}

/* Does the team run at one time? Otherwise what goes wrong between threads cannot show, so it is waited for, a little
 * longer the first time: a busy machine gives a processor back soon, and first to those who sleep meanwhile, longer
 * each time, which leaves the processors to the others. Some times are enough. */
void fenced_gather(fenced_child *c)
{
    enum { ENOUGH = 6 };
    static const double MOST_AGAIN = 1e-3, MOST_FIRST = 0.1, MOST_OF_ALL = 1, REST_FIRST = 1e-4, REST_MOST = 3e-4;
    double began = clock_seconds(), most = c->note->side_by_side > 0 ? MOST_AGAIN : MOST_FIRST;
    double pause = REST_FIRST;
    bool met = c->note->side_by_side >= ENOUGH;
    for (double now = began; !met && now < began + most && c->meet_seconds + now - began < MOST_OF_ALL;) {
        meeting m = {.wanted = processors()};
        tn_parallel(meet, &m);
        met = !atomic_load(&m.late);
        if (!met) {
            rest(pause);
            pause = fmin(2 * pause, REST_MOST);
        }
        now = clock_seconds();
    }
    c->meet_seconds += clock_seconds() - began;
    c->note->team_runs++;
    c->note->side_by_side += met;
}
