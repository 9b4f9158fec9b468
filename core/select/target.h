/* Inside core: what kernels are applied to. A model owns one. */
#ifndef TENON_CORE_TARGET_H
#define TENON_CORE_TARGET_H

#include "graph/graph.h"

#include <tenon/tenon.h>

struct apply_shadow; /* shadow.c                                                             */
struct first_calls;  /* first_calls.h                                                          */
struct apply_state;  /* slots.h: what the applied kernels hold                                     */

typedef struct apply_target {
    graph *graph;
    const device *device;
    uint64_t weights_identity; /* changes when the checkpoint's files do (shards_identity); 0: not known     */
    bool weights_change;       /* tn_model_options': kernels that pack decline                        */
    bool together;             /* other ranks must choose alike: nothing is timed                      */
    bool cut;                  /* its sites are parts, whose numbers are those of the whole (tensor)        */
    bool training;             /* only kernels with gradients are taken                               */
    int64_t session_count;     /* open sessions: kernels may not change meanwhile                     */
    struct apply_state *applied;
    int64_t packed_bytes;
    struct apply_shadow *shadow; /* or NULL                                                       */
    struct first_calls *first;   /* of every kernel and shape that was checked; a list                  */
    int64_t first_now;           /* calls that were compared because they were the first of their size  */
    /* The largest calls that everything applied was checked with. */
    struct {
        int64_t tokens, cached;
    } checked;
    /* Seconds that threads of this process waited for a processor so far; NULL: the system is asked. */
    double (*waited)(void);
    /* See tn_model_options; NULL: nobody asks. */
    int (*applying)(void *ctx, const char *what, int64_t done, int64_t total);
    void *applying_ctx;
} apply_target;

#endif
