/* Inside plugins/ascend: what the files of GATED_DELTA_RULE and SELECTIVE_SCAN share. Both go from token to token with
 * a state M of each head; what a token writes into it is what M lacks of v, or v itself. */
#ifndef ASCEND_DELTA_RULE_H
#define ASCEND_DELTA_RULE_H

#include "operators.h"
#include "real_tokens.h"

/* Tokens without padding, by value head, in f32; h counts batch rows times value heads. Behind a row's last token keys,
 * g and beta are zeros, so that such tokens change no state. */
typedef struct delta_tokens {
    tn_tensor q, k;       /* [h,P,D], normalised, queries scaled                                  */
    tn_tensor v, o, rest; /* [h,P,Dv]; rest: what a scan adds to o                                 */
    tn_tensor g, beta;    /* [h,P,1]; g the log of the decay, which may be [h,P,D]                 */
    tn_tensor state;      /* M [h,D,Dv]                                                           */
    int64_t heads, count; /* h; tokens that there are, at most P                                  */
    int64_t room, chunk;  /* P, a multiple of chunk; 0: tokens are taken one by one               */
    bool adds;            /* v itself is written                                                  */
} delta_tokens;

/* A call: of SELECTIVE_SCAN v is x, q is c, k is b, a is dt, and b the skip. take_gates: g, beta and, in a scan, rest,
 * and v as it is written. */
typedef struct delta_job {
    void (*take_gates)(npu_run *r, const struct delta_job *job, const real_tokens *tokens, const delta_tokens *to);
    const tn_tensor *v, *state, *q, *k, *a, *b, *index, *rate, *bias, *o, *next;
    int64_t rows, tokens, qk_heads, v_heads, dk, dv, rates; /* rates: elements of g of a token and head */
    bool adds;
} delta_job;

/* eager_delta_rule.c. [h,P,W], dense, as [B,P,heads,W]. */
tn_tensor delta_by_token(const delta_job *job, const tn_tensor *t);
/* a, b or dt [B,T,K] or [B,T,K,D] as [B,T,K,1 or D]; a parameter [K] or [K,D] as [1,1,K,1 or D] f32. */
tn_tensor delta_each(const delta_job *job, const tn_tensor *t);
tn_tensor delta_by_head(npu_run *r, const tn_tensor *param);
/* Of x [B,T,heads,W] the tokens that are no padding, in f32 and zeros behind them, to [B heads,P,W]. */
void delta_take_tokens(npu_run *r, const delta_job *job, const real_tokens *tokens, const tn_tensor *x,
                       const tn_tensor *to);
/* Zeros behind the tokens of each row of [h,P,W]. */
void delta_clear_rest(npu_run *r, const delta_job *job, const real_tokens *tokens, const tn_tensor *t);
void delta_run(npu_run *r, const delta_job *job);

/* o and state from the rest, whose contents are lost. */
void delta_rule_one_by_one(npu_run *r, const delta_tokens *t);
void delta_rule_chunks(npu_run *r, const delta_tokens *t); /* delta_chunks.c                          */

#endif
