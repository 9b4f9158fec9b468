/* Calls that wait for the next one, which may be one with them: in decode a launch costs more than what it does.
 * Products of one row with matrices that follow one another (gate and up; queries, keys and values) are one product,
 * and an addition and the norm of its result one operator. Whatever else comes, they come first, so that the order in
 * the stream is that of the calls. An error of theirs is told by the call that they were put before. */
#include "npu_call.h"

static tn_tensor behind(const tn_tensor *t)
{
    tn_tensor end = *t;
    end.data = (char *)t->data + tn_dtype_bytes(t->dtype, tn_tensor_count(t));
    return end;
}

static void multiply(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor y)
{
    CALL(r, y, aclnnMatmul, TENSOR(a), TENSOR(b), TENSOR(y), KEEP_TYPES);
}

static void add(npu_run *r, tn_tensor a, tn_tensor b, float factor, tn_tensor y)
{
    CALL(r, y, aclnnAdd, TENSOR(a), TENSOR(b), NUMBER(factor), TENSOR(y));
}

tn_status npu_flush(tn_queue *queue, tn_error *err)
{
    ascend_held h = queue->held;
    npu_run r = {.queue = queue, .api = queue->api, .err = err};
    queue->held.what = ASCEND_NOTHING;
    if (h.what == ASCEND_PRODUCT)
        multiply(&r, h.a, h.b, h.y);
    else if (h.what == ASCEND_SUM)
        add(&r, h.a, h.b, 1, h.y);
    if (r.status != TN_OK && !err)
        queue->held = h; /* for somebody who can tell                                                 */
    return r.status;
}

static void hold(npu_run *r, ascend_waits what, tn_tensor a, tn_tensor b, tn_tensor y)
{
    r->status = npu_flush(r->queue, r->err);
    if (r->status != TN_OK)
        return;
    r->queue->held = (ascend_held){what, a, b, y};
    r->queue->idle = false;
}

/* ---- products ------------------------------------------------------------------------------------------- */

/* Is it the product that waits, with the matrix behind its own, and the result behind its own? */
static bool goes_on(const ascend_held *h, const tn_tensor *a, const tn_tensor *turned, const tn_tensor *y)
{
    return h->what == ASCEND_PRODUCT && h->a.data == a->data && h->a.dtype == a->dtype &&
           h->a.shape[1] == a->shape[1] && h->b.dtype == turned->dtype && behind(&h->b).data == turned->data &&
           h->y.dtype == y->dtype && behind(&h->y).data == y->data;
}

void npu_matmul(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor y)
{
    tn_tensor turned = npu_transposed(b);
    if (r->measuring || r->status != TN_OK || tn_tensor_count(&y) == 0 || a.shape[0] != 1 || !ascend_is_dense(&a) ||
        !ascend_is_dense(&turned) || !ascend_is_dense(&y)) {
        multiply(r, a, b, y);
        return;
    }
    if (!goes_on(&r->queue->held, &a, &turned, &y)) {
        hold(r, ASCEND_PRODUCT, a, b, y);
        return;
    }
    ascend_held *h = &r->queue->held;
    h->b.shape[1] += b.shape[1];
    h->y.shape[1] += y.shape[1];
    h->y.stride[0] = h->y.shape[1];
}

/* ---- additions and norms -------------------------------------------------------------------------------- */

static bool is_plain(const tn_tensor *t, const tn_tensor *y)
{
    return t->dtype == y->dtype && ascend_is_dense(t) && tn_tensor_count(t) == tn_tensor_count(y);
}

void npu_add(npu_run *r, tn_tensor a, tn_tensor b, float factor, tn_tensor y)
{
    if (r->measuring || r->status != TN_OK || factor != 1 || tn_tensor_count(&y) == 0 || !is_plain(&y, &y) ||
        !is_plain(&a, &y) || !is_plain(&b, &y))
        add(r, a, b, factor, y);
    else
        hold(r, ASCEND_SUM, a, b, y);
}

void npu_add_rms_norm(npu_run *r, tn_tensor a, tn_tensor b, tn_tensor gamma, double eps, tn_tensor y, tn_tensor rstd,
                      tn_tensor sum)
{
    CALL(r, y, aclnnAddRmsNorm, TENSOR(a), TENSOR(b), TENSOR(gamma), eps, TENSOR(y), TENSOR(rstd), TENSOR(sum));
}

/* Of x's shape. */
static tn_tensor shaped(const tn_tensor *t, const tn_tensor *x)
{
    return tn_tensor_dense(t->data, t->dtype, x->ndim, x->shape);
}

bool npu_norm(npu_run *r, tn_tensor x, tn_tensor gamma, double eps, tn_tensor y)
{
    tn_tensor twice = npu_take_like(r, x.dtype, x), rstd = npu_take_column(r, x);
    if (r->measuring || r->status != TN_OK || gamma.dtype != x.dtype || !is_plain(&x, &x) || !is_plain(&y, &x) ||
        x.data == y.data)
        return false;
    ascend_held h = r->queue->held;
    bool sums =
        h.what == ASCEND_SUM && h.y.data == x.data && is_plain(&h.y, &x) && y.data != h.a.data && y.data != h.b.data;
    if (sums) {
        r->queue->held.what = ASCEND_NOTHING;
        npu_add_rms_norm(r, shaped(&h.a, &x), shaped(&h.b, &x), gamma, eps, y, rstd, shaped(&h.y, &x));
        return true;
    }
    /* Twice the rows with four times eps have the same norms, bit by bit; in f16 twice may be too much. */
    if (x.dtype == TN_F16)
        return false;
    npu_add_rms_norm(r, x, x, gamma, 4 * eps, y, rstd, twice);
    return true;
}
