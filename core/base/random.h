/* Inside core: random numbers, the same on every machine. */
#ifndef TENON_CORE_RANDOM_H
#define TENON_CORE_RANDOM_H

#include <stdint.h>

/* splitmix64: any seed will do, and neighbouring seeds give unrelated numbers. Each number adds a step to the state, so
 * that some can be left out. */
#define RANDOM_STEP UINT64_C(0x9e3779b97f4a7c15)

typedef struct random_state {
    uint64_t state;
} random_state;

uint64_t random_bits(random_state *r);
float random_nearly_normal(random_state *r); /* nearly: no further out than 3.5                   */
double random_uniform(random_state *r);      /* [0, 1) */

#endif
