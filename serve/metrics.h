/* What is counted, in the form of Prometheus. */
#ifndef TENON_SERVE_METRICS_H
#define TENON_SERVE_METRICS_H

#include "grown.h"

#include <pthread.h>
#include <stdint.h>

/* Upper bounds of a histogram's buckets. */
enum { METRICS_MOST_BUCKETS = 24 };

typedef struct metrics_histogram {
    int64_t counts[METRICS_MOST_BUCKETS + 1]; /* the last: above all bounds                          */
    double sum;
} metrics_histogram;

/* How requests end. */
typedef enum metrics_finish { METRICS_STOP, METRICS_LENGTH, METRICS_ABORT, METRICS_FINISH_COUNT } metrics_finish;

/* Gauges: how it is now. */
typedef struct metrics_now {
    int64_t running, waiting, steps, preempted, prefix_queries, prefix_hits;
    double cache_used; /* 0 to 1                                                                     */
} metrics_now;

typedef struct metrics {
    pthread_mutex_t lock;
    metrics_now now;
    int64_t prompt_tokens, generation_tokens, finished[METRICS_FINISH_COUNT];
    metrics_histogram first_token, between_tokens, whole_request, queue, prompt, decode, prompt_sizes, answer_sizes;
} metrics;

bool metrics_start(metrics *m);
void metrics_end(metrics *m);

/* All of the following from any thread. */
void metrics_set_now(metrics *m, const metrics_now *now);
void metrics_first_token(metrics *m, double seconds);
void metrics_next_token(metrics *m, double seconds);

/* A sequence's end; seconds below 0 are not known. */
typedef struct metrics_sequence {
    metrics_finish finish;
    int64_t prompt_tokens, generated;
    double whole, queue, prompt, decode; /* seconds                                                    */
} metrics_sequence;
void metrics_sequence_ended(metrics *m, const metrics_sequence *s);

/* All of it as text, with the model's name as a label. false: no memory. */
bool metrics_write(metrics *m, const char *model, grown *out);

#endif
