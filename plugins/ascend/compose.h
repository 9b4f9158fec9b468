/* Operators of aclnn as lines of a composition, on tn_tensor views of device memory. The first line that fails is kept
 * in status, and those behind it do nothing; so does a line whose result has no elements. Results may not be the memory
 * of inputs. */
#ifndef ASCEND_COMPOSE_H
#define ASCEND_COMPOSE_H

#include "ascend.h"

typedef struct compose {
    tn_queue *queue;
    tn_error *err;
    tn_status status;
} compose;

static inline compose compose_begin(const tn_call *call, tn_error *err)
{
    return (compose){.queue = call->queue, .err = err, .status = TN_OK};
}

/* A view; dense where stride is NULL. */
tn_tensor compose_view(const void *data, tn_dtype dtype, int32_t ndim, const int64_t *shape, const int64_t *stride);
/* The next dense tensor of a scratch that begins at base (NULL: only to add up its size in *used). */
tn_tensor compose_take(char *base, size_t *used, tn_dtype dtype, int32_t ndim, const int64_t *shape);
bool compose_dense(const tn_tensor *t);
static inline bool compose_is_float(tn_dtype dtype)
{
    return dtype == TN_F32 || dtype == TN_BF16 || dtype == TN_F16;
}

/* Elementwise; a and b broadcast, and are of one type, which is that of out. */
void compose_add(compose *c, const tn_tensor *a, const tn_tensor *b, float factor_of_b, const tn_tensor *out);
void compose_mul(compose *c, const tn_tensor *a, const tn_tensor *b, const tn_tensor *out);
void compose_div(compose *c, const tn_tensor *a, const tn_tensor *b, const tn_tensor *out);
/* x * factor, x + term, sigmoid(x). x is f32: with other types it is not known what the scalar is rounded to. */
void compose_scale(compose *c, const tn_tensor *x, float factor, const tn_tensor *out);
void compose_shift(compose *c, const tn_tensor *x, float term, const tn_tensor *out);
void compose_sigmoid(compose *c, const tn_tensor *x, const tn_tensor *out);
void compose_silu(compose *c, const tn_tensor *x, const tn_tensor *out);
/* To another type, another arrangement of the same shape, zeros, a number. */
void compose_cast(compose *c, const tn_tensor *x, const tn_tensor *out);
void compose_copy(compose *c, const tn_tensor *x, const tn_tensor *out);
void compose_zero(compose *c, const tn_tensor *out);
void compose_fill(compose *c, float value, const tn_tensor *out);
/* Copy, or cast, whichever it takes; a cast to what is not dense goes through room, of out's type and shape. */
void compose_store(compose *c, const tn_tensor *x, const tn_tensor *room, const tn_tensor *out);

/* Along the last dimension. sums keeps it, with length 1. */
void compose_softmax(compose *c, const tn_tensor *x, const tn_tensor *out);
void compose_sums(compose *c, const tn_tensor *x, const tn_tensor *out);
void compose_join(compose *c, const tn_tensor *a, const tn_tensor *b, const tn_tensor *out);
/* The k largest of each row of x [rows, n] by falling value: values, and their places [rows, k] i64. */
void compose_largest(compose *c, const tn_tensor *x, int64_t k, const tn_tensor *values, const tn_tensor *places);
/* Rows of table, in the order of index [n] i32. */
void compose_rows(compose *c, const tn_tensor *table, const tn_tensor *index, const tn_tensor *out);

/* a [m,k] b [k,n], or [batch, ...] all three; summed in f32, rounded once. b may be a transposed view. */
void compose_product(compose *c, const tn_tensor *a, const tn_tensor *b, const tn_tensor *out);

/* The bytes go up in the order of the stream; the host's memory may be reused. */
void compose_upload(compose *c, void *device, const void *host, size_t bytes);
/* What lies in device memory, downloaded, which waits for the stream; remembered: as the queue knows it, where that is
 * so. Owned: for free(). NULL when it failed. */
void *compose_fetch(compose *c, const void *device, size_t bytes, bool remembered);
void compose_no_memory(compose *c);

#endif
