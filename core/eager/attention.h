/* Inside core/eager: what the files of ATTENTION share. */
#ifndef TENON_CORE_EAGER_ATTENTION_H
#define TENON_CORE_EAGER_ATTENTION_H

#include "eager/rows.h"
#include "op/seen.h"

/* How scores become probabilities. */
typedef struct attention_scores {
    tn_dtype dtype;       /* of the model: what is rounded to                                          */
    float scale, softcap; /* softcap 0: none                                                     */
    seen_rule seen;
    bool has_sink;
} attention_scores;

typedef struct attention_job {
    const tn_tensor *q, *k, *v, *q_index, *kv_index, *o, *sinks; /* o: forward only                */
    attention_scores rule;
    int64_t batch, tokens, keys, heads, kv_heads, group, d, dv;
    tn_dtype type; /* of forward's products                                                      */
    int64_t tile, tiles, rows, blocks, columns;
    char *scratch;
    size_t thread_bytes;
} attention_job;

/* attention.c: everything that follows from the call's shapes; whether heads and types fit each other. */
void attention_shape(const tn_call *call, attention_job *job);
tn_status attention_check(const tn_call *call, const attention_job *job, tn_error *err);

static inline int32_t attention_index(const tn_tensor *t, int64_t b, int64_t i)
{
    return ((const int32_t *)t->data)[b * t->stride[0] + i * t->stride[1]];
}

/* The sink of a head; 0 without sinks. */
static inline float attention_sink(const attention_job *job, int64_t head)
{
    float sink = 0.0f;
    if (job->sinks)
        convert_to_f32((const char *)job->sinks->data + (size_t)head * tn_dtype_size(job->sinks->dtype),
                       job->sinks->dtype, &sink, 1);
    return sink;
}

/* attention_softmax.c: one query's products with n keys become probabilities in f32, not yet rounded; returns that of
 * the sink. index[i] is the position of key i; the query at position q sees those that the rule says. A query that sees
 * nothing gets zeros. sink: its head's, if there is one. */
float attention_softmax(const attention_scores *rule, float *scores, const int32_t *index, int64_t n, int32_t q,
                        float sink);

/* attention_softmax.c: the way back to products, in the roundings of automatic differentiation: dscores[i], the
 * gradient of what softmax was applied to, becomes that of products[i]. */
void attention_scores_grad(const attention_scores *rule, const float *products, float *dscores, int64_t n);

/* Forward, beside backward in attention_grad.c, where the operation is put together. */
size_t attention_scratch(const tn_call *call);
tn_status attention_forward(const tn_call *call, tn_error *err);

#endif
