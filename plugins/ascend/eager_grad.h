/* Inside plugins/ascend: gradients of operations, composed of the vendor's operators. Sums, differences and what only
 * one step of automatic differentiation rounds are f32; gradients are rounded once. Everything is computed in scratch
 * and written at the end, so that a gradient may be the memory of an upstream one. */
#ifndef ASCEND_EAGER_GRAD_H
#define ASCEND_EAGER_GRAD_H

#include "operators.h"

/* body gets calls that have an upstream gradient and elements in their first input: of others all gradients are zeros.
 * It takes scratch from shapes alone, whatever is wanted: those of in and of the site, since gradients that are not
 * there may have none. needs: operators as npu_needs takes them, or NULL. declines: TN_DECLINED with a reason for what
 * forward takes and body does not; NULL: nothing. */
typedef struct ascend_gradient {
    tn_op op;
    npu_body *body;
    const char *needs;
    tn_status (*declines)(const tn_call *call, tn_error *err);
} ascend_gradient;

extern const ascend_gradient ascend_linear_grad, ascend_rms_norm_grad, ascend_add_rms_norm_grad, ascend_layer_norm_grad,
    ascend_rope_grad, ascend_glu_grad, ascend_act_grad, ascend_softcap_grad, ascend_grouped_matmul_grad,
    ascend_moe_route_grad, ascend_moe_experts_grad, ascend_attention_grad, ascend_add_grad, ascend_scale_grad,
    ascend_row_scale_grad, ascend_embedding_grad;

/* What the device answers with. */
size_t eager_backward_scratch(const tn_call *call);
tn_status eager_backward(const tn_call *call, tn_error *err);

/* The gradient of a role's single tensor, or NULL where it is not wanted. */
const tn_tensor *grad_param(const npu_run *r, tn_role role);

/* A dense f32 copy; zeros of the shape of like where x has no data. */
tn_tensor grad_wide(npu_run *r, const tn_tensor *x, const tn_tensor *like);

/* x, f32, to a type and back. */
void grad_round(npu_run *r, const tn_tensor *x, tn_dtype dtype);

/* from to a gradient, where that is wanted (not NULL, with data). */
void grad_store(npu_run *r, const tn_tensor *from, const tn_tensor *to);

/* y [..,1] = the sums of the rows of x, both dense f32. Here and below rows are added up in parts, and then those: as
 * long as the parts are about as many as their elements, errors of the chip's own order of sums stay small. */
void grad_sums(npu_run *r, const tn_tensor *x, const tn_tensor *y);

/* The sums of the columns of x, dense f32, whose last dimension is the width of to [width], where that is wanted. */
void grad_sum_rows(npu_run *r, const tn_tensor *x, const tn_tensor *to);

#endif
