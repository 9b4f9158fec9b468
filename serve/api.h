/* The API: requests become sequences of an engine, and what comes of them becomes answers. Threads of HTTP read and
 * check a request, render its template and make its tokens; one thread of the API owns model and engine (worker.h). */
#ifndef TENON_SERVE_API_H
#define TENON_SERVE_API_H

#include "exchange.h"

#include <tenon/tenon.h>

typedef struct api api;

/* Numbers that are 0 are the engine's usual ones, but the queue's. Strings and model must stay. */
typedef struct api_options {
    tn_model *model;
    const char *folder;         /* the checkpoint: tokenizer and chat template are read there                */
    const char *name;           /* of the model, in answers                                                  */
    const char *const *aliases; /* other names that requests may use; "*": any                          */
    size_t alias_count;
    int64_t sequences, queue, context; /* queue: requests that may wait for a place                       */
    size_t cache_bytes;
    const char *kernels; /* what was applied, for the fingerprint                                     */
    bool same_bits;
} api_options;

/* Opens what answering takes and starts its thread. NULL: err says why. */
api *api_new(const api_options *options, tn_error *err);

/* An exchange_handler: answers every path but / and the method OPTIONS. */
void api_handle(void *api, exchange *x);

/* Requests that have not ended. */
int64_t api_active(api *a);

/* From now on new requests are refused (503); waits for those that run, and after drain_seconds ends the rest with an
 * error. When it returns there are none. */
void api_stop(api *a, double drain_seconds);

/* After api_stop. */
void api_free(api *a);

#endif
