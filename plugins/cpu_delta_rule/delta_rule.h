/* The gated delta rule for a whole call: what forward and backward share. A unit of work is a key head of a batch row
 * with its value heads, or a part of those columns. */
#ifndef DELTA_RULE_H
#define DELTA_RULE_H

#include "kernels.h"

/* Tokens of a chunk; up to so many tokens of a call are taken one by one. */
enum { DELTA_CHUNK = 64, DELTA_FEW = 2 };

typedef struct delta_job {
    delta_kernels kernels;
    const tn_tensor *v, *state, *q, *k, *a, *b, *index, *rate, *bias;
    tn_dtype dtype;
    int64_t rows, tokens, k_heads, v_heads, group, dk, dv;
} delta_job;

/* Some real tokens of a batch row. */
typedef struct delta_tokens {
    int64_t n;
    int32_t at[DELTA_CHUNK];
} delta_tokens;

/* The gates of some tokens of a value head. c_i is the sum of g up to token i, as high + low, so that a difference of
 * large ones is as good as the g between them. */
typedef struct delta_gates {
    float g[DELTA_CHUNK], beta[DELTA_CHUNK], slope[DELTA_CHUNK]; /* slope: dg/da                   */
    float high[DELTA_CHUNK], low[DELTA_CHUNK];
    float since[DELTA_CHUNK]; /* e^(c_i)                                                           */
    float until[DELTA_CHUNK]; /* e^(c_n - c_i)                                                     */
} delta_gates;

/* What value heads of one key head have in common: queries and keys, and their products. Rows 2i belong to the key of
 * token i, rows 2i + 1 to its query. */
typedef struct delta_pairs {
    float *x;                    /* [2n,dk], normalised; queries scaled                            */
    float *dots;                 /* [2n,DELTA_CHUNK]: times keys; what is above the diagonal is not set */
    float norm[2 * DELTA_CHUNK]; /* x was multiplied by this                                       */
} delta_pairs;

delta_job delta_rule_job(const tn_site *site, const tn_call *call, uint64_t cpu_flags);

/* The next real tokens, at most `most`, from token *next on, which is moved behind them. */
delta_tokens delta_rule_next(const delta_job *job, int64_t row, int64_t *next, int64_t most);

/* Element (i, j, k, 0) of a tensor. */
char *delta_rule_at(const tn_tensor *t, int64_t i, int64_t j, int64_t k);

void delta_rule_load_pairs(const delta_job *job, int64_t row, int64_t k_head, const delta_tokens *tokens,
                           delta_pairs *pairs);
void delta_rule_multiply_pairs(const delta_job *job, int64_t n, delta_pairs *pairs, float *panel);
void delta_rule_load_gates(const delta_job *job, int64_t row, int64_t head, const delta_tokens *tokens,
                           delta_gates *gates);
void delta_rule_sum_gates(const delta_job *job, int64_t n, delta_gates *gates);

/* m [2n,DELTA_CHUNK] from dots: rows 2i of what tokens correct of each other, -e^(c_i - c_j) (k_i k_j) beta_j below the
 * diagonal; rows 2i + 1 of what queries see, e^(c_i - c_j) (q_i k_j) up to it; zeros elsewhere. */
void delta_rule_weigh(const delta_job *job, int64_t n, const delta_pairs *pairs, const delta_gates *gates, float *m);

/* Rows of x [n,width], from the first to the last: x_i += sum_{j<i} m_ij x_j. */
void delta_rule_solve(const delta_job *job, int64_t n, const float *m, int64_t m_row, float *x, int64_t x_row,
                      int64_t width, float *panel);

/* Floats of a product's panel. */
int64_t delta_rule_panel(int64_t dk, int64_t dv);

/* Zeros where tokens are padding, for `width` elements from column on. */
void delta_rule_clear_padding(const delta_job *job, const tn_tensor *t, int64_t row, int64_t head, int64_t column,
                              int64_t width);

size_t delta_rule_scratch_size(const tn_site *site, int32_t threads);
void delta_rule_forward(const delta_job *job, const tn_tensor *o, const tn_tensor *next, void *scratch);

size_t delta_rule_backward_scratch_size(const tn_site *site, int64_t max_tokens, int32_t threads);
void delta_rule_backward(const delta_job *job, const tn_grads *grads, void *scratch);

#endif
