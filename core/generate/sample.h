/* Inside core: choosing a token from logits. */
#ifndef TENON_CORE_SAMPLE_H
#define TENON_CORE_SAMPLE_H

#include <tenon/tenon.h>

/* The repetition penalty, always; then greedy at temperature 0, otherwise temperature, the top_k best, the smallest set
 * of the best that holds top_p of their probability, and of these what is at least min_p as likely as the best, as
 * transformers' logits processors in that order. The scratch is allocated once. */
typedef struct sampler {
    int64_t vocab, top_k; /* top_k 0: all                                                          */
    double temperature, top_p, min_p;
    bool changed;   /* logits are the caller's, not the model's: for what an error says          */
    float penalty;  /* 1: none                                                                  */
    uint64_t key;   /* of random numbers, from the seed                                            */
    float *peak;    /* the largest of each block of logits                                         */
    int32_t *order; /* [vocab] candidates; a heap, then the best from the end down                  */
    double *weight; /* [vocab] of the kept candidates, or of all                                    */
    int32_t *seen;  /* [vocab] the different tokens so far, seen_count of them; NULL without a penalty  */
    int64_t seen_count;
    bool *is_seen; /* [vocab]                                                                        */
} sampler;

/* Checks the options that concern sampling. sample_close is due also after a failure. */
tn_status sample_init(sampler *s, const tn_generate_options *options, int64_t vocab, tn_error *err);
void sample_close(sampler *s);

/* Tokens that the penalty is for from now on. One outside the vocabulary is TN_E_INPUT. */
tn_status sample_see(sampler *s, const int64_t *ids, int64_t count, tn_error *err);

/* Changes logits[vocab] by the penalty, in single precision as transformers does. */
void sample_penalise(const sampler *s, float *logits);

/* A token for logits[vocab], the one behind `position` others of its row. -inf excludes a token; NaN, or nothing but
 * -inf, is TN_E_INPUT. The same seed, position and logits give the same token on every machine. */
tn_status sample_pick(const sampler *s, const float *logits, int64_t position, int64_t *id, tn_error *err);

#endif
