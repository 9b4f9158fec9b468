/* Inside core: timing things in turns, so that a busy neighbour slows all of them. */
#ifndef TENON_CORE_TIMING_H
#define TENON_CORE_TIMING_H

#include "graph/graph.h"

enum { TIMING_MOST_ROUNDS = 51 };

/* The middle half of what was timed, and its middle: seconds of a call. */
typedef struct timing_spread {
    double low, median, high;
} timing_spread;

/* Of count times, which are sorted by this. */
timing_spread timing_spread_of(double *times, int count);

/* Below 0: a is clearly faster, above 0: clearly slower, 0: the spreads overlap. */
static inline int timing_compare(const timing_spread *a, const timing_spread *b)
{
    return a->high < b->low ? -1 : a->low > b->high;
}

/* One of those that are compared. */
typedef struct timing_side {
    /* Makes the call number turn, which counts from 0 for each side. With a measuring arena nothing is computed. */
    tn_status (*call)(void *ctx, arena *a, size_t turn, tn_error *err);
    void *ctx;
    double seconds;       /* the result: median of a call                                          */
    timing_spread spread; /* and with what is around it                                            */
    arena memory;         /* from here on timing.c's own, zeros before the first time              */
    size_t bytes;         /* of that memory                                                        */
    int64_t batch;        /* calls between two looks at the clock                                  */
    int rounds;           /* so many of times are known                                            */
    size_t turns;
    double times[TIMING_MOST_ROUNDS];
} timing_side;

/* A side that makes one call by what is bound (NULL: eagerly): timing_bound with this for ctx. */
typedef struct timing_call {
    const device *device;
    const graph_binding *bound;
    const tn_call *call;
} timing_call;

tn_status timing_bound(void *ctx, arena *a, size_t turn, tn_error *err);

typedef struct timing_rules {
    double batch_seconds; /* a batch lasts so long at least, so that the clock does not matter     */
    double seconds;       /* of all rounds, about, beyond the least of them                        */
    int least_rounds;     /* at most TIMING_MOST_ROUNDS                                           */
} timing_rules;

/* Warms every side up and times them in turns; all wait for the device. Called again with the same sides it adds to
 * what they have until that is as many rounds, or as long, as these rules want. The first error of a call ends it. *at
 * (may be NULL) is the number of the side that is being called, for whoever watches a process that ends in it. */
tn_status timing_take_turns(const device *device, timing_side *sides, size_t count, const timing_rules *rules,
                            volatile size_t *at, tn_error *err);

/* Plans and packs an implementation as applying does, for all threads and the largest call. bound->packed is memory of
 * the device that a child leaves behind; who goes on frees it. */
tn_status timing_bind(const device *device, const tn_site *site, const tn_impl *impl, graph_binding *bound,
                      tn_error *err);

#endif
