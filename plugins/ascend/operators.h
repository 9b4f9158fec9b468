/* Inside plugins/ascend: the vendor's operators as functions on tensors. One call of an operation is a run: after a
 * failure the rest of it does nothing, and before it is performed it is gone through once to add up its scratch. */
#ifndef ASCEND_OPERATORS_H
#define ASCEND_OPERATORS_H

#include "eager.h"

typedef struct npu_run {
    const tn_call *call;
    tn_queue *queue;
    size_t used;    /* of call->scratch; steps back where memory is used again by what comes later */
    size_t most;    /* that it ever was                                                            */
    bool measuring; /* nothing is performed; tensors have shapes and no data                      */
    tn_status status;
    tn_error *err;
} npu_run;

/* What an operation does, performed or measured. */
typedef void npu_body(npu_run *r);
size_t npu_measure(npu_body *body, const tn_call *call);
tn_status npu_perform(npu_body *body, const tn_call *call, tn_error *err);

/* Begins a step whose result is y, if there is anything to do. */
bool npu_begin(npu_run *r, ascend_step *s, const char *name, const tn_tensor *y);

/* Dense memory of the call's scratch: how much is taken must follow from shapes alone. */
tn_tensor npu_take(npu_run *r, tn_dtype dtype, int32_t ndim, const int64_t *shape);
tn_tensor npu_take_like(npu_run *r, tn_dtype dtype, const tn_tensor *like);

/* The bytes of a tensor that no operation computes, with the tensor's strides: a shadow, or fetched into *owned, which
 * the caller frees. NULL after a failure. */
const void *npu_host_copy(npu_run *r, const tn_tensor *t, void **owned);

/* Views. part: elements first, first + step, ... of the last dimension. rows: [rows, width]; false where the rows do
 * not follow one stride. */
tn_tensor npu_part(const tn_tensor *t, int64_t first, int64_t step, int64_t count);
bool npu_rows(const tn_tensor *t, tn_tensor *rows);

/* The single tensor of a role, or NULL; and whether the device reads its type. */
const tn_tensor *npu_param(const tn_site *site, tn_role role);
tn_status npu_supports_param(const tn_site *site, tn_role role, tn_error *err);

/* Operators. Tensors may be views of any strides; shapes broadcast, of different types the wider one counts. In y's
 * type with one rounding; y may be an input where each element depends on its own place alone. Empty results are no
 * work. */
void npu_copy(npu_run *r, const tn_tensor *x, const tn_tensor *y); /* of any types                       */
void npu_fill(npu_run *r, const tn_tensor *y, float value);
void npu_add(npu_run *r, const tn_tensor *a, const tn_tensor *b, float factor, const tn_tensor *y); /* a + factor b */
void npu_multiply(npu_run *r, const tn_tensor *a, const tn_tensor *b, const tn_tensor *y);
void npu_add_number(npu_run *r, const tn_tensor *x, float number, const tn_tensor *y);      /* f32 only        */
void npu_multiply_number(npu_run *r, const tn_tensor *x, float number, const tn_tensor *y); /* f32 only        */
void npu_silu(npu_run *r, const tn_tensor *x, const tn_tensor *y);
void npu_sigmoid(npu_run *r, const tn_tensor *x, const tn_tensor *y);
void npu_matmul(npu_run *r, const tn_tensor *a, const tn_tensor *b, const tn_tensor *y);       /* one type, y dense   */
void npu_gather(npu_run *r, const tn_tensor *table, const tn_tensor *ids, const tn_tensor *y); /* y dense        */

/* y = x / sqrt(mean(x^2) + eps) gamma, one rounding; y is not x. gamma [W] of x's type. */
void npu_rms(npu_run *r, const tn_tensor *x, const tn_tensor *gamma, double eps, const tn_tensor *y);

#endif
