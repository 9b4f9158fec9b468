/* Inside core: the whole model with kernels and without, on text. */
#ifndef TENON_CORE_WHOLE_H
#define TENON_CORE_WHOLE_H

#include "open/model.h"

/* The text: windows of so many tokens, each with nothing before it. */
typedef struct whole_text {
    const int64_t *ids;
    int64_t count, window;
} whole_text;

typedef struct whole_progress {
    int (*call)(void *ctx, const char *what, int64_t done, int64_t total); /* or NULL */
    void *ctx;
} whole_progress;

tn_status whole_no_memory(tn_error *err);

/* TN_E_CANCELLED when the caller says so. */
tn_status whole_tell(const whole_progress *p, const char *what, int64_t done, int64_t total, tn_error *err);

/* ---- whole_run.c ---- */

/* What calls a text is computed in, as sessions make them. Its windows come first: each a prompt in chunks, its last
 * tokens one by one. Then its beginning once more in calls of few tokens, of all numbers up to 9 and around the widths
 * of tiles; then rows from three places of it in a batch, of different lengths, padded on the left, and some tokens
 * more for all rows at a time. */
typedef struct whole_calls {
    int64_t steps;             /* single tokens of the first window, which has the most             */
    int64_t few, most_few;     /* tokens in calls of few, and of the largest such call              */
    int64_t rows, row, beyond; /* the batch; columns of its prompt; columns behind it               */
} whole_calls;

whole_calls whole_run_calls(const whole_text *text);

/* Tokens that are computed, those of the windows first. */
int64_t whole_run_count(const whole_text *text);

/* Which token of the text that one is, and how it is computed: "as a single token". */
int64_t whole_run_position(const whole_text *text, int64_t token);
const char *whole_run_manner(const whole_text *text, int64_t token);

/* Logits of every token that is computed, [whole_run_count, vocab]; NaN for padding. What is in place at the model's
 * sites computes; eager: nothing is, meanwhile. */
tn_status whole_run(tn_model *model, const whole_text *text, bool eager, float *logits, tn_error *err);

/* Memory for them. Owned: free(). */
float *whole_run_alloc(const whole_text *text, int64_t vocab, tn_error *err);

/* ---- whole_distance.c ---- */

/* How far logits b are from logits a, over all tokens. */
typedef struct whole_distance {
    double rms, largest, kl_mean, kl_max, top1;
} whole_distance;

/* each[count]: the root-mean-square at each token; infinite where b has a NaN or infinity and a has not, NaN where a
 * has one: nothing can be said there. TN_E_MEMORY: nothing is written. */
tn_status whole_distance_of(const float *a, const float *b, int64_t count, int64_t vocab, double *each,
                            whole_distance *d, tn_error *err);

/* exp of the mean negative log-likelihood of the tokens that have one before them in their window; NaN: there are none.
 * TN_E_MEMORY: nothing is written. */
tn_status whole_distance_perplexity(const float *logits, const whole_text *text, int64_t vocab, double *perplexity,
                                    tn_error *err);

/* ---- whole_rule.c: rounding or error ---- */

typedef struct whole_rule {
    bool narrow;                 /* of results in 16 bits, else of results in f32                              */
    bool picks;                  /* the model picks experts: rounding may change a choice, and with it much       */
    double median, p90, largest; /* of eager's distance in 16 bits from f32, the yardstick          */
    double factor;               /* f32: the part of the yardstick that rounding explains             */
    int64_t changes;             /* f32: so many tokens may have another choice                        */
} whole_rule;

/* yard: that of each token that is computed. narrow_dtype: what the yardstick was measured in. ulps: the largest
 * tolerance in f32 of the kernels. TN_E_MEMORY, or TN_E_INPUT where eager has no finite logits. */
tn_status whole_rule_init(whole_rule *r, const tn_model *model, const whole_text *text, const double *yard,
                          tn_dtype narrow_dtype, double ulps, tn_error *err);

/* How far so many tokens are beyond what rounding explains: 1 is the bound. each: their distances from eager in f32,
 * yard: eager's own there. *token: the worst one. NaN: no memory. */
double whole_rule_worst(const whole_rule *r, const double *yard, const double *each, int64_t count, int64_t *token);

/* ---- whole_search.c ---- */

/* Which of the applied sites bring the difference. */
typedef struct whole_search {
    tn_model *model, *truth; /* whose kernels they are; whose eager logits distances are from             */
    const whole_rule *rule;
    const double *yard; /* of each token of the text                                              */
    whole_text text;
    int64_t token; /* of the text, where it is worst                                               */
    whole_progress progress;
    bool *found; /* [site], cleared by the caller                                                  */
    bool complete;
} whole_search;

tn_status whole_search_run(whole_search *s, tn_error *err);

#endif
