/* Tenon: many texts at once, each as if it were alone. tenon.h has the rules. */
#ifndef TENON_ENGINE_H
#define TENON_ENGINE_H

#include <tenon/session.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sequences of tokens that join and leave between steps. A step feeds one token of each sequence that generates, and
 * pieces of the prompts of others, the oldest first. What a sequence's prompt has in common with one that came before
 * is not computed again. With kernels that promise the same bits (TN_SAME_BITS; docs/numerics.md) at all of the model's
 * sites the logits of a sequence are those that it has alone, bit for bit, whatever else runs. */
typedef struct tn_engine tn_engine;

typedef struct tn_engine_options {
    uint32_t size;
    int64_t sequences;  /* computed together, at most; 0: 16                                        */
    int64_t context;    /* positions of each; 0: the model's maximum                                */
    int64_t budget;     /* prompt tokens of a step, at most; 0: 512                                   */
    size_t cache_bytes; /* of keys, values and states, at most, those of ended sequences that are kept for others
                           among them; 0: a quarter of the machine's memory                         */
} tn_engine_options;

/* How a sequence ended. */
typedef struct tn_engine_result {
    uint32_t size;
    tn_status status; /* TN_OK; TN_E_CANCELLED; else why it failed, which error says               */
    tn_error error;
    tn_stop stop;
    int64_t count;        /* tokens that it generated                                              */
    int64_t cached;       /* tokens of its prompt that another had computed                        */
    double queue_seconds; /* from tn_engine_add to its first step                                  */
    double prompt_seconds, decode_seconds;
} tn_engine_result;

typedef struct tn_engine_request {
    uint32_t size;
    const int64_t *prompt; /* at least one token                                                   */
    int64_t prompt_count;
    /* As of tn_generate, with row 0; its ctx is that of all callbacks, none of which may use the engine. max_tokens 0:
     * the prompt alone. on_prompt, history and speculate are not looked at. */
    const tn_generate_options *options;
    /* Called once, and nothing of the sequence afterwards. */
    void (*on_end)(void *ctx, const tn_engine_result *result);
    uint64_t salt; /* only sequences of the same salt have prefixes in common                      */
    /* Unless NULL: the logits behind each token of the prompt, ascending. All of it is computed then. */
    void (*on_prompt_logits)(void *ctx, int64_t position, const float *logits, int64_t vocab);
    /* Unless NULL: what tokens of the prompt stand for, as of a tn_batch of one row. Arrays that they name are borrowed
     * until on_end is called. Only a beginning that shows the same is shared. */
    const tn_pictures *images, *videos;
    const tn_sounds *sounds;
} tn_engine_request;

typedef struct tn_engine_info {
    uint32_t size;
    int64_t running, waiting;   /* sequences                                                       */
    int64_t sequences, context; /* what the options came to                                          */
    size_t cache_held, cache_bytes;
    /* Since it was made: steps; tokens of prompts that were computed, and that were asked for and found; tokens
     * generated; sequences that gave their place back and were computed again. */
    int64_t steps, prompt_tokens, prefix_queries, prefix_hits, generated_tokens, preempted;
} tn_engine_info;

/* options may be NULL. As with a session, kernels must not be applied or reverted while it exists, and it and its model
 * are used by one thread at a time. Owned: tn_engine_free. [one thread] */
TN_API tn_engine *tn_engine_new(tn_model *model, const tn_engine_options *options, tn_error *err);
TN_API void tn_engine_free(tn_engine *engine); /* sequences that have not ended are cancelled. [one thread] */

/* Takes a sequence; everything in request is copied, but for the arrays of pictures and sounds. TN_E_INPUT: the prompt
 * is empty, holds ids outside the vocabulary, or is longer than the context or the cache; pictures or sounds that the
 * model does not take, or for which no token stands, or with more tokens that see each other than budget; TN_E_USAGE:
 * options that tn_generate would refuse. on_end is not called then. *id names it for tn_engine_cancel, and may be NULL.
 * [one thread] */
TN_API tn_status tn_engine_add(tn_engine *engine, const tn_engine_request *request, uint64_t *id, tn_error *err);

/* Ends a sequence, with TN_E_CANCELLED; on_end is called before it returns. One that has ended: nothing.
 * [one thread] */
TN_API void tn_engine_cancel(tn_engine *engine, uint64_t id);

/* One step. *more: there is work left. An error of one sequence ends that one and is no error of the step; an error of
 * the step has ended all that took part in it, and the engine goes on with what is added then. [one thread] */
TN_API tn_status tn_engine_step(tn_engine *engine, bool *more, tn_error *err);

TN_API tn_status tn_engine_get_info(const tn_engine *engine, tn_engine_info *info); /* [one thread] */

#ifdef __cplusplus
}
#endif
#endif
