/* Inside core: what the range of f32 says of a call whose results are not finite. */
#ifndef TENON_CORE_RANGE_H
#define TENON_CORE_RANGE_H

#include <stdbool.h>
#include <tenon/kernel.h>

typedef enum range_kind {
    RANGE_WIDE,       /* the same inputs and parameters, all in f32                                  */
    RANGE_MAGNITUDES, /* their absolute values, zeros for what is not finite: sums of what may cancel. An
                         operation that rounds on the way has its own type here; nothing is cut off or clamped  */
    RANGE_NANS,       /* zeros, and NaN where they have one: NaN is where one reaches                 */
    RANGE_KINDS,
    RANGE_AT_KEYS /* of GATED_DELTA_RULE, no question of range: all in f32, with keys in the place of queries    */
} range_kind;

/* Eager's call of one kind, with tensors of its own, all dense. */
typedef struct range_look {
    tn_site site;
    tn_call call;
    tn_grads grads;
    tn_tensor *params; /* the site's, then those of the gradients                                 */
    void *memory;
} range_look;

/* Performs a call (with call->grads: its gradients) again in a kind. Its tensors are in host memory. TN_E_MEMORY, or
 * what eager says. Close in any case. */
tn_status range_look_open(range_look *r, range_kind kind, const tn_call *call, tn_error *err);
void range_look_close(range_look *r);

/* Is there a NaN among a site's parameters, which are in host memory? */
bool range_params_have_nan(const tn_site *site);

#endif
