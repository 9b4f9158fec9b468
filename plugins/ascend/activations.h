/* Inside plugins/ascend: activation functions, composed of the vendor's operators and rounded where core/eager rounds.
 */
#ifndef ASCEND_ACTIVATIONS_H
#define ASCEND_ACTIVATIONS_H

#include "operators.h"

/* For supports: TN_DECLINED with the name of what the installation lacks for the activation; those of two values only
 * where pairs says so. */
tn_status npu_act_supports(tn_act act, bool pairs, tn_error *err);

/* y = rnd(act(x)) of x's type and shape, which may be x; any strides. Not TN_ACT_CLAMPED_SWIGLU. */
void npu_activate(npu_run *r, tn_act act, tn_tensor x, tn_tensor y);

/* TN_ACT_CLAMPED_SWIGLU with the site's limit and alpha; y may be gate or up. */
void npu_clamped_swiglu(npu_run *r, const tn_site *site, const tn_tensor *gate, const tn_tensor *up,
                        const tn_tensor *y);

#endif
