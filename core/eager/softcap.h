/* Inside core/eager: cap tanh(x / cap), of attention's scores and of logits. */
#ifndef TENON_CORE_EAGER_SOFTCAP_H
#define TENON_CORE_EAGER_SOFTCAP_H

#include "eager/eager.h"

/* x = rnd(rnd(tanh(rnd(x / cap))) cap), x of dtype. */
void softcap_apply(float *x, int64_t n, float cap, tn_dtype dtype);

/* g, the gradient of softcap_apply's result, becomes that of its x, with the roundings of automatic differentiation; a
 * gradient of 0 stays 0. x is overwritten. */
void softcap_grad(float *x, float *g, int64_t n, float cap, tn_dtype dtype);

#endif
