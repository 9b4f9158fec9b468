/* Inside core: made-up inputs for one call of a site, from the site alone. */
#ifndef TENON_CORE_INPUTS_H
#define TENON_CORE_INPUTS_H

#include "base/random.h"

#include <tenon/kernel.h>

#include <stdbool.h>

typedef struct inputs {
    tn_call call;   /* in[] are dense; out[] have dtype and shape and no data                     */
    int64_t tokens; /* batch rows times tokens per row                                           */
    int64_t cached; /* positions behind the last query of an attention; 0: there are none            */
    bool *skip;     /* tokens whose discrete choices rounding may change, or NULL                */
    void *memory;
} inputs;

/* What activations look like. Values that decide something (a router's tokens, queries and keys) are plain, unless the
 * profile says what becomes of them. */
typedef enum inputs_profile {
    INPUTS_PLAIN,    /* normal numbers                                                            */
    INPUTS_SCALED,   /* each row times a power of two of its own, 2^-12 to 2^12; some are all zero, also those of
                        routers, where all experts tie                                          */
    INPUTS_OUTLIERS, /* every 29th column a thousand times as large; attention: scores so large that one key gets all */
    INPUTS_CROWDED,  /* every other token goes to the same experts, the rest wherever; attention: the cache is a ring */
    INPUTS_EXTREME /* of each seven rows one of large numbers, one with a NaN, one each with an infinity of either sign;
                      for operations that compute each token by itself                             */
} inputs_profile;

/* Batch rows and tokens per row of one call, and what its inputs are like. */
typedef struct check_case {
    int64_t batch, tokens;
    inputs_profile profile;
    uint64_t seed; /* another one draws other inputs                                              */
    int64_t past;  /* the position of a row's first token, for attention and rotary tables; 0: a small one */
    bool once;     /* in one way, where other cases are tried in several                                   */
} check_case;

/* Draws them: activations from a normal distribution, rounded to the model's dtype; the same for the same seed. batch
 * rows of tokens each. Close with inputs_close. */
tn_status inputs_draw(inputs *in, const tn_site *site, int64_t batch, int64_t tokens, uint64_t seed, tn_error *err);
void inputs_close(inputs *in);

/* The same for a case, from its seed alone. f16, which ends at 65504, gets milder values where
 * they are multiplied. */
tn_status inputs_draw_case(inputs *in, const tn_site *site, const check_case *c, tn_error *err);

/* The call, without any data. */
tn_call inputs_call(const tn_site *site, int64_t batch, int64_t tokens);
tn_call inputs_call_case(const tn_site *site, const check_case *c);

/* About how many additions and multiplications a call with that many tokens takes. */
double inputs_operations(const tn_site *site, int64_t tokens);

/* inputs_route.c: draws tokens x [tokens, H] whose routing rounding cannot change; the few for which none was found in
 * a number of tries are marked in skip. It is an error when they are more than half. */
/* The same tokens of a call that is there: marks those in skip[T]. */
tn_status inputs_find_unclear(const tn_site *site, const tn_tensor *x, bool *skip, tn_error *err);
tn_status inputs_draw_routed(const tn_site *site, tn_tensor *x, inputs_profile profile, bool *skip, random_state *r,
                             tn_error *err);

#endif
