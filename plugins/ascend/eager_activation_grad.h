/* Inside plugins/ascend: activation functions with their derivatives, for gradients. All in f32, also where the
 * function is composed of steps that forward rounds. */
#ifndef ASCEND_EAGER_ACTIVATION_GRAD_H
#define ASCEND_EAGER_ACTIVATION_GRAD_H

#include "eager_grad.h"

/* TN_DECLINED with the operator that the installation lacks, or where there is no derivative of this. */
tn_status act_grad_declines(tn_act act, tn_error *err);

/* act(x) and act'(x) in scratch, of x f32, which is dense. */
void act_grad(npu_run *r, tn_act act, const tn_tensor *x, tn_tensor *value, tn_tensor *slope);

/* p = rnd(value up), dgate = rnd(rnd(up dp) slope), dup = rnd(value dp) open, f32; open has no shape where everything
 * is. value is rounded; up is what it is multiplied by. */
typedef struct glu_terms {
    tn_tensor value, slope, up, open;
} glu_terms;

/* Of gate and up, f32 in scratch, for an activation of gates, or of both; limit and alpha are the site's. up may be
 * larger than gate where that broadcasts. */
glu_terms glu_grad_terms(npu_run *r, const tn_site *site, tn_dtype dtype, const tn_tensor *gate, const tn_tensor *up);

/* x <= 0 ? 0 : y, in y; a NaN of x passes. */
void grad_close(npu_run *r, const tn_tensor *x, const tn_tensor *y);

#endif
