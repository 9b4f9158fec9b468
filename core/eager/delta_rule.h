/* Inside core/eager: what the files of GATED_DELTA_RULE share. */
#ifndef TENON_CORE_EAGER_DELTA_RULE_H
#define TENON_CORE_EAGER_DELTA_RULE_H

#include "eager/rows.h"
#include "eager/vec.h"

typedef struct delta_job {
    const tn_tensor *v, *state, *q, *k, *a, *b, *index, *rate, *bias;
    tn_dtype dtype;
    int64_t rows, tokens, qk_heads, v_heads, group, dk, dv;
    int64_t rates; /* decays of a token: 1, or dk                                                   */
} delta_job;

/* Tokens of one value head of one batch row, in f32. */
typedef struct delta_tokens {
    float *q, *k; /* [n, dk], normalised; q scaled                                                 */
    float *v;     /* [n, dv]                                                                       */
    float *g;     /* [n, rates] log of the decay                                                   */
    float *beta;  /* [n]                                                                           */
    float *slope; /* [n, rates] dg/da                                                              */
} delta_tokens;

delta_job delta_rule_job(const tn_call *call);

/* Gives room for n tokens behind base (NULL: counts only), adding to used. */
void delta_rule_place(const delta_job *job, int64_t n, char *base, size_t *used, delta_tokens *tokens);

/* Which tokens of a row are no padding; returns how many. */
int64_t delta_rule_real(const delta_job *job, int64_t row, int32_t *real);

/* Loads the tokens real[0 .. n). */
void delta_rule_load(const delta_job *job, int64_t row, int64_t head, const int32_t *real, int64_t n,
                     delta_tokens *tokens);

/* m = e^g m. */
void delta_rule_forget(const delta_job *job, const float *g, float *m);

/* Where the gate of a token and head lies in t [B, T, heads] or [B, T, heads, channels], in bytes. */
size_t delta_rule_at(const tn_tensor *t, int64_t row, int64_t token, int64_t head, int64_t channel);

/* m [dk, dv] of one head from and to a tensor [B, nv, dk, dv]. */
void delta_rule_load_state(const tn_tensor *t, int64_t row, int64_t head, float *m);
void delta_rule_store_state(const tn_tensor *t, int64_t row, int64_t head, const float *m);

/* The factor that queries have besides their norm. */
float delta_rule_query_scale(const delta_job *job);

/* Rows of a head [B, T, heads, width]: zeros for padding tokens. */
void delta_rule_clear_padding(const delta_job *job, const tn_tensor *t, int64_t row, int64_t head);

/* Forward, beside backward in delta_rule_grad.c, where the operation is put together. */
size_t delta_rule_scratch(const tn_call *call);
tn_status delta_rule_forward(const tn_call *call, tn_error *err);

#endif
