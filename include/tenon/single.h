/* Tenon: single operations: one site of a model, or a product that belongs to none. tenon.h has the rules. */
#ifndef TENON_SINGLE_H
#define TENON_SINGLE_H

#include <tenon/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Performs the operation of one site with what has it: its kernel, or eager (for a site that an outer site's kernel
 * covers, too). Tensors are as operation.h says of the operation, in the memory of the model's device; they are
 * checked, and nothing is computed when one does not fit. Optional outputs (operation.h) may be left out at the end, or
 * have no data; what a kernel does not give of them, eager does. op tells apart sites of one path, such as ADD_RMS_NORM
 * and RMS_NORM. Scratch is allocated for the call and freed: for one step after the other of a model, use a session.
 * The results are there when it returns. Sessions may be open. [one thread] */
TN_API tn_status tn_site_forward(tn_model *model, const char *path, tn_op op, const tn_tensor *in, int32_t in_count,
                                 const tn_tensor *out, int32_t out_count, tn_error *err);

/* The gradients of the same operation, from the inputs of forward and the upstream gradients in grads->out to those
 * that have data in grads->in and grads->param. The model must have been opened for training. [one thread] */
TN_API tn_status tn_site_backward(tn_model *model, const char *path, tn_op op, const tn_tensor *in, int32_t in_count,
                                  const tn_grads *grads, tn_error *err);

/* Grouped product on the CPU: y [rows,out] = rows of x [rows,in], sorted by group, times the matrix of their group. w
 * is, by layout, one stack STACKED_OI [groups,out,in] or STACKED_IO [groups,in,out] (w_count 1), or a list of matrices
 * EXPERT_LIST [out,in] or LIST_IO [in,out] (w_count groups). counts: the rows of each group, zeros allowed, as many
 * together as x has. x, y: f32, bf16 or f16; w the same or another of these. Rows may lie apart; y must not overlap
 * what is read. Each call allocates its scratch and frees it.
 *
 * kernel: NULL or "none": eager; "auto": the kernel of this process with the highest priority that takes it, else
 * eager; an id: that kernel, or an error that says why not. The first call of a kernel with matrices of one shape tries
 * it in a child process against eager, as tn_apply_kernels does. [any thread] */
TN_API tn_status tn_grouped_matmul(const tn_tensor *x, const tn_tensor *w, int64_t w_count, tn_layout layout,
                                   const int64_t *counts, int64_t groups, const tn_tensor *y, const char *kernel,
                                   tn_error *err);

/* Its gradients: grad_y like y is read; grad_x like x and grad_w like w (w_count tensors) are overwritten, each may be
 * NULL. A group without rows has a zero gradient. Sums are f32, rounded once; the same bits on every run. [any
 * thread] */
TN_API tn_status tn_grouped_matmul_backward(const tn_tensor *x, const tn_tensor *w, int64_t w_count, tn_layout layout,
                                            const int64_t *counts, int64_t groups, const tn_tensor *grad_y,
                                            const tn_tensor *grad_x, const tn_tensor *grad_w, const char *kernel,
                                            tn_error *err);

#ifdef __cplusplus
}
#endif
#endif
