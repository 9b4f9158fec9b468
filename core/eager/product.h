/* Inside core/eager: products of matrices on all threads, rounded once: what LINEAR and its gradients are made of. */
#ifndef TENON_CORE_EAGER_PRODUCT_H
#define TENON_CORE_EAGER_PRODUCT_H

#include "eager/gemm.h"

/* y = a times w (+ bias), accumulated in f32. Rows are those of the last dimension, as many as all others have
 * together; in GEMM_NT and GEMM_NN a has the rows of y, in GEMM_TN those of w. Types need not be the same. */
typedef struct product {
    gemm_form form;
    const tn_tensor *a, *w, *bias, *y; /* bias may be NULL; y only needs data and strides to be run     */
    const weight *quantised;           /* w, where its type is one of those; else NULL                  */
} product;

/* Scratch bytes; data pointers may be NULL. The result, like the values, follows from shapes alone but for the number
 * of threads. */
size_t product_scratch(const product *p);

/* path: for messages. Fails where the rows of a tensor do not follow one stride. */
tn_status product_run(const product *p, void *scratch, const char *path, tn_error *err);

#endif
