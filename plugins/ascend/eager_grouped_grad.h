/* Inside plugins/ascend: gradients of matrices that rows sorted by group are multiplied by. */
#ifndef ASCEND_EAGER_GROUPED_GRAD_H
#define ASCEND_EAGER_GROUPED_GRAD_H

#include "eager_grad.h"
#include "eager_grouped.h"

/* Matrix i of to, [m,n], becomes the product of the rows of a and of b that group i has, a^T b: rows a [rows,m] and b
 * [rows,n] are dense and of the matrices' type; sums are f32's. to: a stack [groups,m,n], or a matrix for each group,
 * as list says; nothing where it is not wanted. By grouped products of group type 2; where these do not take it, by an
 * aclnnMatmul per group, for which the counts are downloaded. */
void grouped_grad(npu_run *r, grouped *g, bool list, const tn_tensor *a, const tn_tensor *b, const tn_param *to);

/* Row i of to [groups,n] becomes the sum of the rows of b [rows,n] that group i has. */
void grouped_sums(npu_run *r, grouped *g, const tn_tensor *b, const tn_tensor *to);

/* What the gradient of x = the product's input is multiplied by. */
tn_layout grouped_turned(tn_layout layout);

#endif
