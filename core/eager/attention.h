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
    tn_dtype slopes; /* their type; TN_DTYPE_NONE: there are none                                       */
    float alpha;     /* factor of what they make of positions                                           */
} attention_scores;

/* What a head has of its own: 0 where it has none. */
typedef struct attention_head {
    float sink, slope;
} attention_head;

typedef struct attention_job {
    const tn_tensor *q, *k, *v, *q_index, *kv_index, *o, *sinks, *slopes; /* o: forward only        */
    const tn_tensor *chosen; /* or NULL: all keys that are seen                                    */
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

/* Is key s one of those that query t has been given? */
static inline bool attention_is_chosen(const attention_job *job, int64_t b, int64_t t, int64_t s)
{
    const tn_tensor *c = job->chosen;
    return !c || ((const int32_t *)c->data)[b * c->stride[0] + t * c->stride[1] + s] != 0;
}

static inline float attention_of_head(const tn_tensor *t, int64_t head)
{
    float value = 0.0f;
    if (t)
        convert_to_f32((const char *)t->data + (size_t)head * tn_dtype_size(t->dtype), t->dtype, &value, 1);
    return value;
}

static inline attention_head attention_head_of(const attention_job *job, int64_t head)
{
    return (attention_head){attention_of_head(job->sinks, head), attention_of_head(job->slopes, head)};
}

/* attention_softmax.c: one query's products with n keys become probabilities in f32, not yet rounded; returns that of
 * the sink. index[i] is the position of key i; the query at position q sees those that the rule says. A query that sees
 * nothing gets zeros. */
float attention_softmax(const attention_scores *rule, float *scores, const int32_t *index, int64_t n, int32_t q,
                        attention_head head);

/* attention_softmax.c: the way back to products, in the roundings of automatic differentiation: dscores[i], the
 * gradient of what softmax was applied to, becomes that of products[i]. */
void attention_scores_grad(const attention_scores *rule, const float *products, float *dscores, int64_t n);

/* Forward, beside backward in attention_grad.c, where the operation is put together. */
size_t attention_scratch(const tn_call *call);
tn_status attention_forward(const tn_call *call, tn_error *err);

#endif
