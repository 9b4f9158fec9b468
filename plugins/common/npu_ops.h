/* Work on an Ascend device, for the device itself and for the NPU sides of kernels: an operator is one call on views of
 * tensors, and after the first failure the rest of a run does nothing. The device's operations are gone through once
 * before they are performed, to add up their scratch; kernels say in plan how much they take. */
#ifndef NPU_OPS_H
#define NPU_OPS_H

#include "ascend.h"

/* ---- what plan asks ------------------------------------------------------------------------------------- */

/* The functions, where the unit belongs to the families that the operators' documents speak of: Ascend910B1 and later
 * (Atlas A2), Ascend910_93 (A3). NULL: TN_DECLINED, with the unit's name and what is taken in err. */
const ascend_api *npu_here(const tn_site *site, tn_error *err);

/* TN_DECLINED where the site's value is above the operators' limit. */
tn_status npu_limit(const tn_site *site, const char *what, int64_t value, int64_t most, tn_error *err);

/* ---- a run ---------------------------------------------------------------------------------------------- */

/* One call on its way into the queue. Scratch is taken from front to back, and given back by setting used: the queue
 * keeps the order. */
typedef struct npu_run {
    const tn_call *call; /* NULL where a weight is packed                                              */
    tn_queue *queue;
    const ascend_api *api;
    tn_error *err;
    tn_status status; /* of the first failure                                                        */
    bool measuring;   /* nothing is performed; tensors have shapes and no data                       */
    char *scratch;
    size_t bytes, used;
    size_t most; /* that used ever was                                                          */
} npu_run;

/* Refuses a queue that is not one of the device "npu". */
npu_run npu_run_on(tn_queue *queue, void *scratch, size_t bytes, tn_error *err);
npu_run npu_run_of(const tn_call *call, tn_error *err); /* with the scratch of the call's plan         */

/* Puts what waits for the next call into the stream, as all calls do first; whoever uses the stream otherwise asks for
 * it. */
tn_status npu_flush(tn_queue *queue, tn_error *err);

/* Begins a step whose result is y, if there is anything to do; and ends it, given its first phase's result. */
bool npu_begin(npu_run *r, ascend_step *s, const char *name, const tn_tensor *y);
void npu_end(npu_run *r, ascend_step *s, aclnnStatus first, aclnn_second *second);

/* Dense memory of the scratch: how much is taken must follow from shapes alone. like: of that shape. */
tn_tensor npu_take(npu_run *r, tn_dtype dtype, int32_t ndim, const int64_t *shape);
tn_tensor npu_take_like(npu_run *r, tn_dtype dtype, tn_tensor like);
tn_tensor npu_take_2d(npu_run *r, tn_dtype dtype, int64_t rows, int64_t columns);
tn_tensor npu_take_3d(npu_run *r, tn_dtype dtype, int64_t a, int64_t b, int64_t c);
/* f32 of that shape, but with one element in the last dimension. */
tn_tensor npu_take_column(npu_run *r, tn_tensor like);

/* Bytes that a tensor takes of it, as plan adds them up. */
size_t npu_bytes(tn_dtype dtype, int64_t count);

/* ---- views ---------------------------------------------------------------------------------------------- */

/* Dense where stride is NULL. */
tn_tensor npu_view(const void *data, tn_dtype dtype, int32_t ndim, const int64_t *shape, const int64_t *stride);
/* count elements from first on along dimension dim. */
tn_tensor npu_narrow(tn_tensor t, int32_t dim, int64_t first, int64_t count);
/* The last two dimensions exchanged. */
tn_tensor npu_transposed(tn_tensor t);
/* a and b [1,1,N,W] as one [1,1,N + M,W] where b follows a in memory, or neither has data. */
bool npu_side_by_side(const tn_tensor *a, const tn_tensor *b, tn_tensor *both);
/* Matrices a [n,W] and b [m,W] as one [n + m,W], where b follows a in memory: core places weights so. */
bool npu_in_a_row(const tn_tensor *a, const tn_tensor *b, tn_tensor *both);
/* Matrices a [n,W] that follow one another as one tensor [count,n,W]; with b (or NULL), each of which follows its a,
 * [count,2n,W]. False: they do not, or there is one alone. */
bool npu_stack(const tn_tensor *a, const tn_tensor *b, int64_t count, tn_tensor *stack);
/* A dense tensor as two dimensions: all rows of the last one. */
tn_tensor npu_flat(tn_tensor t);

/* ---- operators ------------------------------------------------------------------------------------------ */

/* Tensors may be views of any strides where nothing else is said; shapes broadcast, of different types the wider one
 * counts. In y's type with one rounding; y may be an input where each element depends on its own place alone. Empty
 * results are no work. Operators marked with * are not in every installation: whoever uses one asks ascend_has first.
 * They are used with f32 alone, and tensors of truth are TN_BOOL. What the chip makes of a NaN is not written down:
 * comparisons are taken to be false, and operators that choose the larger to hand it on, as the CPU does. */
void npu_copy(npu_run *r, tn_tensor x, tn_tensor y); /* of any types                                   */
void npu_fill(npu_run *r, tn_tensor y, float value);
void npu_zero(npu_run *r, tn_tensor y);                                        /* dense                       */
void npu_add(npu_run *r, tn_tensor a, tn_tensor b, float factor, tn_tensor y); /* a + factor b            */
void npu_multiply(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor y);
void npu_divide(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor y);
void npu_add_number(npu_run *r, tn_tensor x, float number, tn_tensor y);      /* f32 only                 */
void npu_multiply_number(npu_run *r, tn_tensor x, float number, tn_tensor y); /* f32 only                 */
void npu_silu(npu_run *r, tn_tensor x, tn_tensor y);
void npu_sigmoid(npu_run *r, tn_tensor x, tn_tensor y);
void npu_tanh(npu_run *r, tn_tensor x, tn_tensor y);                      /* *                              */
void npu_erf(npu_run *r, tn_tensor x, tn_tensor y);                       /* *                              */
void npu_exp(npu_run *r, tn_tensor x, tn_tensor y);                       /* *                              */
void npu_sqrt(npu_run *r, tn_tensor x, tn_tensor y);                      /* *                              */
void npu_rsqrt(npu_run *r, tn_tensor x, tn_tensor y);                     /* * 1 / sqrt(x)                  */
void npu_relu(npu_run *r, tn_tensor x, tn_tensor y);                      /* *                              */
void npu_softplus(npu_run *r, tn_tensor x, float threshold, tn_tensor y); /* * log(1 + e^x), x above that   */
/* x within low .. high; an infinity of its side is no bound. * */
void npu_clamp(npu_run *r, tn_tensor x, float low, float high, tn_tensor y);
/* y TN_BOOL of x's shape: x > number, x >= number, x < number. * */
void npu_above(npu_run *r, tn_tensor x, float number, tn_tensor y);
void npu_not_below(npu_run *r, tn_tensor x, float number, tn_tensor y);
void npu_below(npu_run *r, tn_tensor x, float number, tn_tensor y);
/* y = a where condition (TN_BOOL) is true, else b; they broadcast. * */
void npu_choose(npu_run *r, tn_tensor condition, tn_tensor a, tn_tensor b, tn_tensor y);
/* a [m,k] b [k,n] of one type, summed in f32, one rounding; y dense and no input. Of one row, products with matrices
 * that follow one another in memory, as their results do, are one. batch: of [n,..] each. */
void npu_matmul(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor y);
void npu_batch_matmul(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor y);
/* Along the last dimension: softmax; y = a and b side by side. y is no input. */
void npu_softmax(npu_run *r, tn_tensor x, tn_tensor y);
void npu_join(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor y);
/* The sum along dimension dim, which stays with one element where keep says so; sums: the last one, which stays. y is
 * no input. */
void npu_sum(npu_run *r, tn_tensor x, int32_t dim, bool keep, tn_tensor y);
void npu_sums(npu_run *r, tn_tensor x, tn_tensor y);
/* y = the rows ids of table; y dense. */
void npu_gather(npu_run *r, tn_tensor table, tn_tensor ids, tn_tensor y);
/* to[b, places[b]] = rows[b]: to [B,S,K,D] and rows [B,1,K,D] of one type and dense, places [B] i32, 0 .. S-1. * */
void npu_scatter(npu_run *r, tn_tensor to, tn_tensor places, tn_tensor rows);
/* y = x [N,W] with row i of rows [n,W], times factor, added to row ids[i] (i32 or i64, 0 .. N-1, which repeat). y is
 * not x, all dense. The order of the sums is the chip's. * */
void npu_add_rows(npu_run *r, tn_tensor x, tn_tensor ids, tn_tensor rows, float factor, tn_tensor y);
/* The k largest of each row of x [rows,n] by falling value: values, and their places [rows,k] i64. */
void npu_largest(npu_run *r, tn_tensor x, int64_t k, tn_tensor values, tn_tensor places);
/* How many of ids, i32 or i64 and dense, are i: counts[i] i64. Takes scratch for them as f32. */
void npu_count(npu_run *r, tn_tensor ids, tn_tensor counts);
/* y = x / sqrt(mean(x^2) + eps) gamma, one rounding; y is not x. gamma [W] of x's type; rstd: the factor of each row,
 * f32, one element for W. The gradient: all dense f32, [rows,W], but gamma and dgamma [W], rstd [rows]. */
void npu_rms_norm(npu_run *r, tn_tensor x, tn_tensor gamma, double eps, tn_tensor y, tn_tensor rstd);
void npu_rms_norm_grad(npu_run *r, tn_tensor dy, tn_tensor x, tn_tensor rstd, tn_tensor gamma, tn_tensor dx,
                       tn_tensor dgamma);
/* y = rnd(rnd(x / sqrt(mean(x^2) + eps)) gamma) in one call, with the addition that x is the result of where that came
 * last; false: it cannot be, for x of f16, gaps, other types, or y in x's place. Takes scratch. */
bool npu_norm(npu_run *r, tn_tensor x, tn_tensor gamma, double eps, tn_tensor y);
/* sum = rnd(a + b), where a or b may lie, and y = rnd(rnd(sum / sqrt(mean(sum^2) + eps)) gamma): one operator, all
 * dense and of one type, but rstd. */
void npu_add_rms_norm(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor gamma, double eps, tn_tensor y, tn_tensor rstd,
                      tn_tensor sum);
/* y = x cos + (x with its pairs exchanged, the first negated) sin; mode 0: pairs are halves apart, 1: side by side. y
 * dense. Of the two versions of the operator the newer one where it is there; both may be missing. * */
void npu_rotate(npu_run *r, tn_tensor x, tn_tensor cos, tn_tensor sin, int64_t mode, tn_tensor y);
/* silu of the first half of each row times the second, and its gradient; all dense. */
void npu_swiglu(npu_run *r, tn_tensor x, tn_tensor y);
void npu_swiglu_grad(npu_run *r, tn_tensor dy, tn_tensor x, tn_tensor dx);

/* y [B,T,N,D] = softmax(scale q k^T) v with heads of k and v [B,S,K,D] for groups of q's, where attends says so: dense,
 * of one type of 16 bits, and within the operator's limits. hidden: TN_BOOL, true where a key is not seen, [T,S], with
 * one token [B,S]; NULL: all are. A query that sees nothing has no defined result. f32 inside, how often it rounds on
 * the way is not written down. */
bool npu_attends(const tn_tensor *q, const tn_tensor *k, const tn_tensor *v);
void npu_attend(npu_run *r, tn_tensor q, tn_tensor k, tn_tensor v, const tn_tensor *hidden, double scale, tn_tensor y);

/* ---- mixtures of experts -------------------------------------------------------------------------------- */

/* rows [T k,H] = tokens [T,H] in the order of their ids [T,k] or [T], i32 or i64, k times each; order [T k] i32 says
 * where the row of each is. Back: y [T,H] = the sums of rows times weights [T,k], in f32 in the order of the ids,
 * rounded once. All dense. Gradients: of the tokens from those of the rows; of the rows and of the weights from that of
 * y. */
void npu_permute(npu_run *r, tn_tensor tokens, tn_tensor ids, tn_tensor rows, tn_tensor order);
void npu_permute_grad(npu_run *r, tn_tensor drows, tn_tensor order, int64_t k, tn_tensor dtokens);
void npu_unpermute(npu_run *r, tn_tensor rows, tn_tensor order, tn_tensor weights, tn_tensor y);
void npu_unpermute_grad(npu_run *r, tn_tensor rows, tn_tensor dy, tn_tensor order, tn_tensor weights, tn_tensor drows,
                        tn_tensor dweights);

/* The most matrices of a list, and of one tensor of three dimensions, that a grouped product takes; the largest last
 * dimension of what it multiplies. */
enum { NPU_LIST_MOST = 128, NPU_STACK_MOST = 1024, NPU_WIDTH_MOST = 65535 };

/* Groups of rows: y [S,N] = x [S,K], rows sorted by group, times each group's matrix: one tensor [E,K,N], or count of
 * [K,N]; plain or transposed. Of sums: y [E,K,N] = the sum over each group's columns of x [K,S] and rows of the one
 * matrix [S,N]. counts [E] i64 on the device. Version 5 of the operator where there is one. */
typedef enum npu_groups { NPU_OF_ROWS = 0, NPU_OF_SUMS = 2 } npu_groups;
void npu_grouped_matmul(npu_run *r, npu_groups groups, tn_tensor x, const tn_tensor *weights, int64_t count,
                        tn_tensor counts, tn_tensor y);

/* ---- tensors of calls, which may have gaps and other types ------------------------------------------------ */

/* A dense copy; t itself where it is dense already. */
tn_tensor npu_dense(npu_run *r, tn_tensor t);
/* A dense f32 copy; t itself where it is f32 already, of any strides. */
tn_tensor npu_wide_copy(npu_run *r, tn_tensor t);
tn_tensor npu_widened(npu_run *r, tn_tensor t);
/* Dense f32 or of to's own type, to it, wherever that lies; nothing where to has no data. */
void npu_store(npu_run *r, tn_tensor from, tn_tensor to);
/* Where a result goes first: to itself, or scratch where that has gaps or is the memory of an input; and from there. */
tn_tensor npu_target(npu_run *r, tn_tensor to, const tn_tensor *inputs, int count);
void npu_settle(npu_run *r, tn_tensor target, tn_tensor to);
/* Zeros for a result, wherever it lies; nothing where it has no data. all: for all gradients. */
void npu_clear(npu_run *r, tn_tensor to);
void npu_clear_all(npu_run *r, const tn_grads *grads);

#endif
