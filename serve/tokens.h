/* /tokenize and /detokenize. */
#ifndef TENON_SERVE_TOKENS_H
#define TENON_SERVE_TOKENS_H

#include "state.h"

void tokens_encode(api *a, exchange *x);
void tokens_decode(api *a, exchange *x);

#endif
