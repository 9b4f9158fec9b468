/* Inside core: how far a kernel's results are from eager's. */
#ifndef TENON_CORE_COMPARE_H
#define TENON_CORE_COMPARE_H

#include <stdbool.h>
#include <tenon/kernel.h>

/* The worst element met so far. Starts as {0}. */
typedef struct compare_figures {
    double worst;     /* |y - eager| in units of the bound; infinite for a NaN or an element nobody wrote */
    double ulps;      /* |y - eager| / (eps(dt) * max|eager row|)                                       */
    char detail[160]; /* which element, both values                                                    */
} compare_figures;

/* Units of the last place that the tolerance grants a dtype. */
double compare_ulps(const tn_tolerance *tolerance, tn_dtype dtype);

/* Compares every output of two calls of the same shape, element by element: |y - eager| <= ulps * eps(dt) * max|eager
 * row|, where the row of a linear layer with few outputs counts as not smaller than sums of its products usually are,
 * and any row as not smaller than where its type ends. An output of f32 at a site of another type is compared with
 * 2^-10 in place of ulps * eps(dt). Where that does not hold and the range of a type may be the reason, eager is asked
 * once more in f32 (range.h), by the rules of docs/numerics.md, "Where the range ends". Where the operation picks, what
 * was picked is compared as sets. Rows whose token (the first dimension) is in skip are left out; skip may be NULL.
 * Tensors are in host memory, eager's inputs too. */
void compare_call(const tn_call *eager, const tn_call *call, double ulps, const bool *skip, compare_figures *figures);

/* The figures of one gradient. */
typedef struct compare_gradient {
    bool compared;
    compare_figures figures;
} compare_gradient;

/* Those of the inputs, then those of the parameters by role. */
enum { COMPARE_GRADIENTS = TN_CALL_TENSORS + TN_ROLE_MAX };

/* The same of gradients, eager's being eager->grads: each by its largest element, because a row of it may be next to
 * nothing while what it is computed from is rounded like all others; of a stack of experts each expert by its own.
 * each: for every gradient on its own, COMPARE_GRADIENTS of them, or NULL. */
void compare_gradients(const tn_call *eager, const tn_grads *grads, double ulps, const bool *skip,
                       compare_figures *figures, compare_gradient *each);

/* Do two tensors of the same shape hold the same bits? Any NaN is as good as another. Their strides may differ.
 * Otherwise detail names the first
 * element that differs, with both values. */
bool compare_bits(const tn_tensor *a, const tn_tensor *b, char *detail, size_t detail_size);

/* The tolerance of an implementation's gradients. */
const tn_tolerance *compare_gradient_tolerance(const tn_impl *impl);

#endif
