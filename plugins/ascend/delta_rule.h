/* Inside plugins/ascend: what the files of GATED_DELTA_RULE share. */
#ifndef ASCEND_DELTA_RULE_H
#define ASCEND_DELTA_RULE_H

#include "operators.h"

/* Tokens without padding, by value head, in f32; h counts batch rows times value heads. Behind a row's last token keys,
 * g and beta are zeros, so that such tokens change no state. */
typedef struct delta_tokens {
    tn_tensor q, k;       /* [h,P,D], normalised, queries scaled                                  */
    tn_tensor v, o;       /* [h,P,Dv]                                                             */
    tn_tensor g, beta;    /* [h,P,1]; g the log of the decay                                      */
    tn_tensor state;      /* M [h,D,Dv]                                                           */
    int64_t heads, count; /* h; tokens that there are, at most P                                  */
    int64_t room, chunk;  /* P, a multiple of chunk; 0: tokens are taken one by one               */
} delta_tokens;

/* o and state from the rest, whose contents are lost. */
void delta_rule_one_by_one(npu_run *r, const delta_tokens *t);
void delta_rule_chunks(npu_run *r, const delta_tokens *t); /* delta_chunks.c                          */

#endif
