/* Inside core: how likely each token is, in proportion: e^((logit - largest) / temperature). */
#ifndef TENON_CORE_WEIGHTS_H
#define TENON_CORE_WEIGHTS_H

#include <stdint.h>

/* e^x for x <= 0, with the same bits on every machine, within 1 ulp; 0 below the least normal number. */
double weights_exp(double x);

/* weight[n] of logits[n]; that of -inf is 0. */
void weights_all(const float *logits, int64_t n, double largest, double temperature, double *weight);

/* Their sum, and the first that is beyond target together with all before it; where rounding leaves none, the last that
 * has any weight. */
double weights_sum(const double *weight, int64_t n);
int64_t weights_find(const double *weight, int64_t n, double target);

#endif
