/* Rows sorted by group (of an expert, say), each group times a matrix of its own: GROUPED_MATMUL and the products of
 * MOE_EXPERTS. */
#ifndef ASCEND_EAGER_GROUPED_H
#define ASCEND_EAGER_GROUPED_H

#include "operators.h"

typedef struct grouped {
    const char *path;        /* for messages                                                       */
    const tn_tensor *counts; /* [groups] i64, dense, on the device                                 */
    int64_t groups;
    bool computed;        /* on the device: the queue does not remember them                       */
    void *owned;          /* released by grouped_end                                               */
    int64_t only;         /* the count of a single group                                            */
    const int64_t *known; /* the counts on the host, once somebody needed them                     */
} grouped;

/* A matrix for each group, and not one tensor of all; rows of matrices are outputs. */
static inline bool grouped_is_list(tn_layout layout)
{
    return layout == TN_LAYOUT_EXPERT_LIST || layout == TN_LAYOUT_LIST_IO;
}

static inline bool grouped_is_oi(tn_layout layout)
{
    return layout == TN_LAYOUT_EXPERT_LIST || layout == TN_LAYOUT_STACKED_OI;
}

/* y [rows,out] = x [rows,in] by group, both dense: aclnnGroupedMatmulV5 or V4, or, where these do not take it (one
 * group, lists in f32 or of more than 128 matrices, matrices that do not lie one after the other, more than 1024
 * groups), an aclnnMatmul per group, for which the counts are downloaded. */
void grouped_product(npu_run *r, grouped *g, const tn_param *weights, tn_layout layout, const tn_tensor *x,
                     const tn_tensor *y);
void grouped_end(grouped *g);

/* The counts on the host, whose sum is the number of rows; NULL after a failure. */
const int64_t *grouped_counts(npu_run *r, grouped *g, int64_t rows);

/* ---- gradients (eager_grouped_grad.c) ---------------------------------------------------------------------- */

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
