/* Inside core: the gradients of a call that a kernel is checked with. */
#ifndef TENON_CORE_GRADIENTS_H
#define TENON_CORE_GRADIENTS_H

#include "check/inputs.h"

/* grads.out hold made-up upstream gradients. grads.in and grads.param have the shapes of those that are wanted (dtype
 * none and count 0 where there is no gradient) and data once gradients_allocate was called; all are dense. */
typedef struct gradients {
    tn_grads grads;
    tn_tensor *params; /* what grads.param[].tensors point into                                     */
    void *upstream, *memory;
} gradients;

/* Draws them for the inputs: normal numbers, zero for tokens in in->skip. experts: the second result of an operation
 * that picks, whose order is free: what an expert gets depends on the expert and the token only. Others do not read it.
 * Close with gradients_close in any case. */
tn_status gradients_draw(gradients *g, const inputs *in, const tn_tensor *experts, tn_error *err);
tn_status gradients_allocate(gradients *g, tn_error *err);
void gradients_close(gradients *g);

/* Bytes of the gradients of a site's parameters. */
size_t gradients_param_bytes(const tn_site *site);

#endif
