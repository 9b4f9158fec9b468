/* Inside plugins/ascend: what a router's gradients begin with. */
#ifndef ASCEND_EAGER_MOE_ROUTE_H
#define ASCEND_EAGER_MOE_ROUTE_H

#include "operators.h"

/* In scratch: the scores of all experts [T,E] f32, which are logits where the chosen ones alone become scores, and the
 * chosen experts [T,k] i32, as forward chooses them. */
typedef struct route_choice {
    tn_tensor scores, experts;
} route_choice;

/* Of a call of MOE_ROUTE, forward or backward. */
route_choice moe_route_choice(npu_run *r);

#endif
