/* ROPE, of products and sums, so that it rounds as transformers does and has no limits of shapes; the vendor's operator
 * for it is what kernels use. Gradients are the upstream ones rotated by the transposed matrix, in the same roundings.
 */
#include "eager_grad.h"

typedef struct rope_job {
    tn_rope style;
    int64_t rotary;
    bool transposed;                                        /* backward                                */
    tn_dtype step;                                          /* type that intermediate results have     */
    tn_tensor first_cos, first_sin, second_cos, second_sin; /* [B or 1,T,1,R/2]                        */
} rope_job;

/* A half of a table, with a dimension for heads. */
static tn_tensor table_half(const tn_tensor *table, int64_t first, int64_t count)
{
    tn_tensor half = npu_part(*table, first, 1, count), t = half;
    t.ndim = 4;
    t.shape[2] = 1;
    t.stride[2] = count;
    t.shape[3] = count;
    t.stride[3] = half.stride[2];
    return t;
}

static rope_job rope_job_of(const tn_call *call, bool transposed)
{
    const tn_tensor *cos = &call->in[2], *sin = &call->in[3];
    rope_job job = {.style = (tn_rope)call->site->meaning[TN_AXIS_ROPE], .transposed = transposed};
    int64_t width = cos->shape[cos->ndim - 1];
    job.rotary = job.style == TN_ROPE_HALF_NARROW ? 2 * width : width;
    bool wide = job.style == TN_ROPE_COMPLEX || job.style == TN_ROPE_HALF_F32;
    job.step = wide || cos->dtype != call->in[0].dtype ? TN_F32 : call->in[0].dtype;
    /* Only the half forms with wide tables read their second half. */
    int64_t half = job.rotary / 2, second = job.style == TN_ROPE_HALF || job.style == TN_ROPE_HALF_F32 ? half : 0;
    job.first_cos = table_half(cos, 0, half);
    job.first_sin = table_half(sin, 0, half);
    job.second_cos = table_half(cos, second, half);
    job.second_sin = table_half(sin, second, half);
    return job;
}

/* The first or second element of every pair. */
static tn_tensor elements(const rope_job *job, bool neighbours, const tn_tensor *x, int second)
{
    int64_t half = job->rotary / 2;
    return neighbours ? npu_part(*x, second, 2, half) : npu_part(*x, second * half, 1, half);
}

/* Products: x1 cos, x2 sin, x2 cos and x1 sin; transposed, the sines are exchanged and negative. */
static void add_up(npu_run *r, const rope_job *job, const tn_tensor *products, const tn_tensor *y1, const tn_tensor *y2)
{
    float sign = job->transposed ? -1 : 1;
    npu_add(r, products[0], products[1], -sign, *y1);
    npu_add(r, products[2], products[3], sign, *y2);
}

/* All of x is read before y is written, so they may be the same memory. */
static void rotate(npu_run *r, const rope_job *job, const tn_tensor *x, const tn_tensor *y)
{
    bool in = job->style == TN_ROPE_INTERLEAVED || job->style == TN_ROPE_COMPLEX || job->style == TN_ROPE_DEINTERLEAVED;
    bool out = in && job->style != TN_ROPE_DEINTERLEAVED;
    if (job->transposed) { /* from where y was to where x was                                          */
        bool was = in;
        in = out;
        out = was;
    }
    tn_tensor from = npu_part(*x, 0, 1, job->rotary), to = npu_part(*y, 0, 1, job->rotary);
    bool widened = x->dtype != job->step;
    if (widened) {
        tn_tensor wide = npu_take_like(r, job->step, from);
        npu_copy(r, from, wide);
        from = to = wide;
    }
    tn_tensor x1 = elements(job, in, &from, 0), x2 = elements(job, in, &from, 1);
    tn_tensor y1 = elements(job, out, &to, 0), y2 = elements(job, out, &to, 1);
    tn_tensor products[4];
    for (int i = 0; i < 4; i++)
        products[i] = npu_take_like(r, job->step, x1);
    npu_multiply(r, x1, job->first_cos, products[0]);
    npu_multiply(r, x2, job->transposed ? job->second_sin : job->first_sin, products[1]);
    npu_multiply(r, x2, job->second_cos, products[2]);
    npu_multiply(r, x1, job->transposed ? job->first_sin : job->second_sin, products[3]);
    add_up(r, job, products, &y1, &y2);
    tn_tensor rotated = npu_part(*y, 0, 1, job->rotary);
    if (widened)
        npu_copy(r, to, rotated);
    int64_t tail = x->shape[3] - job->rotary;
    if (tail > 0 && x->data != y->data) {
        tn_tensor rest = npu_part(*x, job->rotary, 1, tail), there = npu_part(*y, job->rotary, 1, tail);
        npu_copy(r, rest, there);
    }
}

/* Keys use the memory of queries again, in the order of the stream; of one token they often follow them in memory, and
 * are heads like theirs. */
static void rope(npu_run *r)
{
    rope_job job = rope_job_of(r->call, false);
    size_t before = r->used;
    tn_tensor from, to;
    if (npu_side_by_side(&r->call->in[0], &r->call->in[1], &from) &&
        npu_side_by_side(&r->call->out[0], &r->call->out[1], &to)) {
        rotate(r, &job, &from, &to);
        if (!r->measuring)
            return;
    }
    for (int i = 0; i < 2; i++) {
        r->used = before;
        rotate(r, &job, &r->call->in[i], &r->call->out[i]);
    }
}

/* Without an upstream gradient of queries or of keys theirs is zero. */
static void rope_grad(npu_run *r)
{
    rope_job job = rope_job_of(r->call, true);
    const tn_grads *grads = r->call->grads;
    size_t before = r->used;
    for (int i = 0; i < 2; i++) {
        r->used = before;
        if (r->measuring)
            rotate(r, &job, &r->call->in[i], &r->call->in[i]);
        else if (grads->in[i].data && grads->out[i].data)
            rotate(r, &job, &grads->out[i], &grads->in[i]);
        else if (grads->in[i].data)
            npu_fill(r, grads->in[i], 0);
    }
}

static tn_status rope_declines(const tn_call *call, tn_error *err)
{
    if (call->grads->in[2].data || call->grads->in[3].data)
        return tn_fail(err, TN_E_INTERNAL, call->site->path,
                       "rotary tables are constants and have no gradients; ask for those of q and k only");
    return TN_OK;
}

const ascend_gradient ascend_rope_grad = {.op = TN_OP_ROPE, .body = rope_grad, .declines = rope_declines};
const ascend_operation ascend_rope = {.op = TN_OP_ROPE, .body = rope};
