/* Inside core: one sequence of an engine: its tokens, how the next one is chosen, and its keys. */
#ifndef TENON_CORE_SEQUENCE_H
#define TENON_CORE_SEQUENCE_H

#include "engine/held.h"
#include "generate/media.h"
#include "generate/next.h"

typedef struct sequence {
    uint64_t id;
    held_text text; /* tokens: those of the prompt and the ones that it generated                      */
    int64_t prompt;
    media *media;   /* what tokens of the prompt stand for; NULL: for themselves. Its features are there while needed */
    int64_t cached; /* of the prompt's tokens, those that another had computed                        */
    tn_generate_options options;
    void (*on_prompt_logits)(void *ctx, int64_t position, const float *logits, int64_t vocab);
    void (*on_end)(void *ctx, const tn_engine_result *result);
    sampler sampler;
    int64_t heard; /* of the prompt's tokens, those whose logits the caller has                       */
    bool ended, begun;
    tn_engine_result result;
    double added, started, answered; /* when                                                         */
} sequence;

/* What a sequence must know of its model. */
typedef struct sequence_limits {
    int64_t vocab, context;
    const tn_model_info *info;
    const tn_model *model;
    const model_shape *shape;
    int64_t budget, run_tokens; /* prompt tokens of a step, and all tokens of one, at most                */
    uint64_t key;               /* of what pictures are told apart by (prints.h)                           */
} sequence_limits;

/* NULL: err. Owned: sequence_free, which tells nobody. */
sequence *sequence_new(const tn_engine_request *request, const sequence_limits *limits, tn_error *err);
void sequence_free(sequence *s);

/* Tokens that are fed next, at most: of what is known. replays: what was generated goes in one by one, as it did. */
int64_t sequence_left(const sequence *s, bool replays);

/* All tokens are fed, and logits[vocab], which may be changed, are what came: chooses the next one. An error ends the
 * sequence. */
void sequence_choose(sequence *s, const sequence_limits *limits, float *logits);

/* It ends, which is told once. status other than TN_OK: why, from err. */
void sequence_end(sequence *s, tn_status status, const tn_error *err);

#endif
