/* Inside core: choosing a token from logits. */
#ifndef TENON_CORE_SAMPLE_H
#define TENON_CORE_SAMPLE_H

#include <tenon/tenon.h>

/* Greedy at temperature 0; otherwise temperature, then the top_k best, then the smallest set of the best that holds
 * top_p of their probability, as transformers' logits warpers in that order. The scratch is allocated once. */
typedef struct sampler {
    int64_t vocab, top_k; /* top_k 0: all                                                          */
    double temperature, top_p;
    uint64_t state[4];
    int32_t *order; /* [vocab] candidates; a heap, then the best from the end down                  */
    double *weight; /* [vocab] of the kept candidates                                               */
} sampler;

/* Checks the options that concern sampling. sample_close is due also after a failure. */
tn_status sample_init(sampler *s, const tn_generate_options *options, int64_t vocab, tn_error *err);
void sample_close(sampler *s);

/* A token for logits[vocab]. -inf excludes a token; NaN, or nothing but -inf, is TN_E_INPUT. The same seed and logits
 * give the same tokens wherever exp() rounds alike. */
tn_status sample_pick(sampler *s, const float *logits, int64_t *id, tn_error *err);

#endif
