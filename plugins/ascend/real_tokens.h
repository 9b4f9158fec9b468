/* Inside plugins/ascend: the tokens of batch rows that are no padding, for operations that go from token to token.
 * Their index, which the host made, says which they are. */
#ifndef ASCEND_REAL_TOKENS_H
#define ASCEND_REAL_TOKENS_H

#include "operators.h"

typedef struct real_tokens {
    const int32_t *index; /* on the host, with the strides of at                                    */
    const tn_tensor *at;  /* [B,T]                                                                  */
    void *owned;
    int64_t most; /* the most of a row                                                              */
    bool all;     /* there is no padding                                                            */
} real_tokens;

/* Of index [B,T] i32: tokens of value < 0 are padding. A failure is r's. End with real_tokens_end. */
void real_tokens_begin(npu_run *r, const tn_tensor *index, real_tokens *tokens);
void real_tokens_end(real_tokens *tokens);

/* How many a row has. */
int64_t real_tokens_of(const real_tokens *tokens, int64_t row);

/* From dense rows of tokens to those without padding, and back: x [B,T,...], packed [B,P,...], P not below most; token
 * i of a row's real ones is packed[row,i]. pack leaves alone what lies behind them, unpack gives zeros for padding. */
void real_tokens_pack(npu_run *r, const real_tokens *tokens, const tn_tensor *x, const tn_tensor *packed);
void real_tokens_unpack(npu_run *r, const real_tokens *tokens, const tn_tensor *packed, const tn_tensor *x);

#endif
