/* How a request wants its tokens drawn, and when they are to end. */
#ifndef TENON_SERVE_SAMPLING_H
#define TENON_SERVE_SAMPLING_H

#include "request.h"

/* Bounds of what a request may ask for. */
enum {
    SAMPLING_MOST_CHOICES = 128,
    SAMPLING_MOST_STOPS = 32,
    SAMPLING_STOP_BYTES = 1024,
    SAMPLING_MOST_STOP_IDS = 256,
    SAMPLING_MOST_BIASES = 8192,
    SAMPLING_MOST_TOP = 20
};

typedef struct sampling_bias {
    int64_t id;
    double bias; /* added to its logit                                                         */
} sampling_bias;

typedef struct sampling {
    double temperature, top_p, min_p, repetition, presence, frequency;
    int64_t top_k;
    int64_t choices;    /* n                                                                   */
    int64_t max_tokens; /* -1: to the end of the context                                        */
    int64_t min_tokens;
    uint64_t seed; /* of the request: sampling_seed has that of a choice                          */
    bool ignore_eos, skip_special;
    int64_t top; /* log-probabilities: how many of the likeliest tokens beside the one drawn; -1: none */
    sampling_bias *biases;
    size_t bias_count;
    int64_t *stop_ids; /* tokens that end an answer and do not show                               */
    size_t stop_id_count;
    const char **stops; /* texts; they belong to the request's body and to the model                 */
    size_t stop_count;
} sampling;

/* Reads all but the log-probabilities, which chats and completions ask for in other ways. body must stay. false: e says
 * what is wrong; sampling_free in either case. */
bool sampling_read(sampling *s, const json_t *body, const tn_sampling *usual, int64_t vocab, request_error *e);
void sampling_free(sampling *s);

/* Each choice of a request draws numbers of its own, whatever their number. */
uint64_t sampling_seed(const sampling *s, int64_t choice);

#endif
