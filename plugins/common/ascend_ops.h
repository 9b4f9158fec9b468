/* Kernels on an Ascend device, written as what they compute: an operator is one call on views of tensors, and after the
 * first failure the rest of a kernel does nothing. What the vendor documents as dense goes through scratch. */
#ifndef ASCEND_OPS_H
#define ASCEND_OPS_H

#include "ascend.h"

/* ---- what plan asks ------------------------------------------------------------------------------------- */

/* An operator, and whether this installation has both of its phases. */
typedef struct ascend_need {
    const char *name;
    bool here;
} ascend_need;
#define ASCEND_NEED(api, name)                                                                                         \
    {                                                                                                                  \
#name, (api)->name && (api)->name##GetWorkspaceSize                                                            \
    }

/* The functions, where the unit belongs to the families that the operators' documents speak of: Ascend910B1 and later
 * (Atlas A2), Ascend910_93 (A3). NULL: TN_DECLINED, with the unit's name and what is taken in err. */
const ascend_api *ascend_ops_here(const tn_site *site, tn_error *err);

/* TN_DECLINED, naming the first operator that is missing. */
tn_status ascend_ops_need(const tn_site *site, const ascend_need *needs, size_t count, tn_error *err);

/* TN_DECLINED where the site's value is above the operators' limit. */
tn_status ascend_ops_limit(const tn_site *site, const char *what, int64_t value, int64_t most, tn_error *err);

/* ---- a kernel's work ------------------------------------------------------------------------------------ */

/* One call on its way into the queue. Scratch is taken from front to back, and given back by setting used. */
typedef struct ascend_ops {
    tn_queue *queue;
    const ascend_api *api;
    tn_error *err;
    tn_status status; /* of the first failure                                                        */
    char *scratch;
    size_t bytes, used;
} ascend_ops;

/* Refuses a queue that is not one of the device "npu". */
ascend_ops ascend_ops_on(tn_queue *queue, void *scratch, size_t bytes, tn_error *err);
ascend_ops ascend_ops_of(const tn_call *call, tn_error *err);

/* A dense tensor in scratch; with the shape of another. */
tn_tensor ascend_ops_room(ascend_ops *o, tn_dtype dtype, int32_t ndim, const int64_t *shape);
tn_tensor ascend_ops_room_like(ascend_ops *o, tn_dtype dtype, tn_tensor like);
tn_tensor ascend_ops_room_2d(ascend_ops *o, tn_dtype dtype, int64_t rows, int64_t columns);

/* Bytes of such a tensor, as plan adds them up. */
size_t ascend_ops_bytes(tn_dtype dtype, int64_t count);

/* ---- views ---------------------------------------------------------------------------------------------- */

/* count elements from first on along dimension dim. */
tn_tensor ascend_ops_narrow(tn_tensor t, int32_t dim, int64_t first, int64_t count);
/* The last two dimensions exchanged. */
tn_tensor ascend_ops_transposed(tn_tensor t);
/* A dense tensor of two dimensions: all rows of the last one. */
tn_tensor ascend_ops_rows(tn_tensor t);

/* ---- operators ------------------------------------------------------------------------------------------ */

void ascend_ops_copy(ascend_ops *o, tn_tensor from, tn_tensor to); /* of one type and shape; any strides    */
void ascend_ops_cast(ascend_ops *o, tn_tensor from, tn_tensor to); /* to dense                              */
void ascend_ops_fill(ascend_ops *o, float value, tn_tensor to);    /* dense                                 */
void ascend_ops_zero(ascend_ops *o, tn_tensor to);                 /* dense                                 */
/* Elementwise with broadcasting; out is dense and no input. */
void ascend_ops_add(ascend_ops *o, tn_tensor a, tn_tensor b, tn_tensor out);
void ascend_ops_adds(ascend_ops *o, tn_tensor a, float b, tn_tensor out);
void ascend_ops_mul(ascend_ops *o, tn_tensor a, tn_tensor b, tn_tensor out);
void ascend_ops_muls(ascend_ops *o, tn_tensor a, float b, tn_tensor out);
void ascend_ops_div(ascend_ops *o, tn_tensor a, tn_tensor b, tn_tensor out);
void ascend_ops_sigmoid(ascend_ops *o, tn_tensor a, tn_tensor out);
void ascend_ops_softmax(ascend_ops *o, tn_tensor a, tn_tensor out); /* of the last dimension */
/* The sum along dimension dim, which stays with one element where keep says so. */
void ascend_ops_sum(ascend_ops *o, tn_tensor a, int32_t dim, bool keep, tn_tensor out);
/* a then b along the last dimension. */
void ascend_ops_join(ascend_ops *o, tn_tensor a, tn_tensor b, tn_tensor out);
/* a [m,k] b [k,n], both with any strides; sums in f32, one rounding. */
void ascend_ops_matmul(ascend_ops *o, tn_tensor a, tn_tensor b, tn_tensor out);
/* silu of the first half of each row times the second, and its gradient; all dense. */
void ascend_ops_swiglu(ascend_ops *o, tn_tensor x, tn_tensor out);
void ascend_ops_swiglu_grad(ascend_ops *o, tn_tensor dy, tn_tensor x, tn_tensor dx);

/* ---- tensors of calls, which may have gaps and other types ------------------------------------------------ */

/* A dense copy; t itself where it is dense already. */
tn_tensor ascend_ops_dense(ascend_ops *o, tn_tensor t);
/* A dense f32 copy. */
tn_tensor ascend_ops_wide(ascend_ops *o, tn_tensor t);
/* Dense f32 or of to's own type, to it, wherever that lies; nothing where to has no data. */
void ascend_ops_store(ascend_ops *o, tn_tensor from, tn_tensor to);
/* Where a result goes first: to itself, or scratch where that has gaps or is the memory of an input; and from there. */
tn_tensor ascend_ops_target(ascend_ops *o, tn_tensor to, const tn_tensor *inputs, int count);
void ascend_ops_settle(ascend_ops *o, tn_tensor target, tn_tensor to);

#endif
