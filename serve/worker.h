/* The thread that owns engine and model: it takes requests in, performs steps, and lets go of what has ended. */
#ifndef TENON_SERVE_WORKER_H
#define TENON_SERVE_WORKER_H

#include "reply.h"

/* What else the model is needed for, a piece at a time between steps. */
typedef struct worker_job {
    /* On the worker's thread. true: there is more to do. false: it has ended, and is not used any more. */
    bool (*run)(struct worker_job *job);
    struct worker_job *next;
} worker_job;

/* Makes the engine and starts the thread. queue: requests that may wait beyond the sequences that are computed. NULL:
 * err says why. */
worker *worker_new(api *a, const tn_engine_options *options, int64_t queue, tn_error *err);
void worker_free(worker *w); /* when nothing is active                                               */

/* Places for one request of so many sequences (a job has one). false: e says why not: all are taken, or it is ending.
 */
bool worker_reserve(worker *w, size_t sequences, request_error *e);
/* Would that succeed? For who has much to do before. */
bool worker_has_room(worker *w, request_error *e);
void worker_release(worker *w, size_t sequences); /* a request has ended                             */

/* With places reserved. Both are the worker's from then on, which releases the places of a reply; a job does that
 * itself. */
void worker_add(worker *w, reply *g);
void worker_add_job(worker *w, worker_job *job);

int64_t worker_active(worker *w); /* requests with places                                                */
bool worker_ending(worker *w);
bool worker_cutting(worker *w); /* what still runs is to end                                             */

/* See api_stop. */
void worker_stop(worker *w, double drain_seconds);

#endif
