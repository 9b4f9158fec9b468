/* Steps of models with several residual streams x [S,T,A]: STREAM_MIX, STREAM_ADD, STREAM_MEAN, and RMS_MATCH, which
 * gives rows the size of others. Every step that transformers rounds is rounded. */
#include "operators.h"
#include "scalar.h"

#include <math.h>

/* Of coefficients c [T,any] those from first on, one for each stream, as [S,T,1]. */
static tn_tensor factors_of(const tn_tensor *c, int64_t first, int64_t streams)
{
    tn_tensor f = npu_view(c->data, c->dtype, 3, (int64_t[]){streams, c->shape[0], 1}, (int64_t[]){1, c->stride[0], 1});
    if (c->data)
        f.data = (char *)c->data + (size_t)first * tn_dtype_size(c->dtype);
    return f;
}

/* The sum of all streams of x, in f32 and in their order. */
static void add_up(npu_run *r, const tn_tensor *x, const tn_tensor *sum)
{
    tn_tensor first = npu_member(x, 0);
    npu_copy(r, first, *sum);
    for (int64_t i = 1; i < x->shape[0]; i++) {
        tn_tensor next = npu_member(x, i);
        npu_add(r, *sum, next, 1, *sum);
    }
}

/* y_j = x_j + rnd(sum_i c[j,i] x_i). All streams are read before one is written, so that y may be x. */
static void mix(npu_run *r)
{
    const tn_tensor *x = &r->call->in[0], *y = &r->call->out[0];
    tn_tensor wide = npu_wide_copy(r, *x), c = npu_wide_copy(r, r->call->in[1]),
              products = npu_take_like(r, TN_F32, *x);
    tn_tensor row = npu_member(x, 0), sum = npu_take_like(r, TN_F32, row), narrow = npu_take_like(r, x->dtype, row);
    for (int64_t j = 0; j < x->shape[0]; j++) {
        tn_tensor factors = factors_of(&c, j * x->shape[0], x->shape[0]), own = npu_member(&wide, j);
        tn_tensor to = npu_member(y, j);
        npu_multiply(r, wide, factors, products);
        add_up(r, &products, &sum);
        npu_round(r, sum, narrow);
        npu_add(r, own, sum, 1, sum);
        npu_copy(r, sum, to);
    }
}

/* y_j = x_j + rnd(d rnd(1 + c_j)) */
static void add(npu_run *r)
{
    const tn_tensor *x = &r->call->in[0], *y = &r->call->out[0];
    tn_tensor c = npu_wide_copy(r, r->call->in[2]), narrow = npu_take_like(r, x->dtype, c);
    tn_tensor d = npu_wide_copy(r, r->call->in[1]), sum = npu_take_like(r, TN_F32, *x);
    tn_tensor product = npu_take_like(r, x->dtype, *x);
    npu_add_number(r, c, 1, c);
    npu_round(r, c, narrow);
    tn_tensor factors = factors_of(&c, 0, x->shape[0]);
    d.ndim = 3;
    for (int i = 2; i > 0; i--) {
        d.shape[i] = d.shape[i - 1];
        d.stride[i] = d.stride[i - 1];
    }
    d.shape[0] = 1;
    npu_multiply(r, d, factors, sum);
    npu_round(r, sum, product);
    npu_add(r, *x, sum, 1, sum);
    npu_copy(r, sum, *y);
}

static void mean(npu_run *r)
{
    const tn_tensor *x = &r->call->in[0], *y = &r->call->out[0];
    tn_tensor wide = npu_wide_copy(r, *x), sum = npu_take_like(r, TN_F32, *y);
    add_up(r, &wide, &sum);
    npu_divide_by(r, sum, (float)x->shape[0], sum);
    npu_copy(r, sum, *y);
}

/* ---- RMS_MATCH ---------------------------------------------------------------------------------------------- */

/* Of each row of x [T,A] f32, whose values are those of dtype, the root of the mean of the squares, which counts at
 * least that much: squares, mean and root are rounded. */
static tn_tensor sizes_of(npu_run *r, const tn_tensor *x, tn_dtype dtype, float least)
{
    tn_tensor squares = npu_take_like(r, TN_F32, *x), narrow = npu_take_like(r, dtype, *x);
    tn_tensor size = npu_take_2d(r, TN_F32, x->shape[0], 1), room = npu_take_like(r, dtype, size);
    npu_multiply(r, *x, *x, squares);
    npu_round(r, squares, narrow);
    npu_sums(r, squares, size);
    npu_divide_by(r, size, (float)x->shape[1], size);
    npu_round(r, size, room);
    if (least > 0)
        npu_clamp(r, size, least, INFINITY, size);
    npu_sqrt(r, size, size);
    npu_round(r, size, room);
    return size;
}

/* rnd(rnd(x size(like)) / size(x)) */
static void match(npu_run *r)
{
    const tn_tensor *x = &r->call->in[0], *y = &r->call->out[0];
    tn_tensor wide = npu_wide_copy(r, *x), like = npu_wide_copy(r, r->call->in[1]);
    tn_tensor narrow = npu_take_like(r, x->dtype, *x);
    tn_tensor wanted = sizes_of(r, &like, x->dtype, 0);
    tn_tensor size = sizes_of(r, &wide, x->dtype, scalar_round((float)r->call->site->num[TN_NUM_EPS], x->dtype));
    npu_multiply(r, wide, wanted, wide);
    npu_round(r, wide, narrow);
    npu_divide(r, wide, size, wide);
    npu_copy(r, wide, *y);
}

const ascend_operation ascend_stream_mix = {.op = TN_OP_STREAM_MIX, .body = mix};
const ascend_operation ascend_stream_add = {.op = TN_OP_STREAM_ADD, .body = add};
const ascend_operation ascend_stream_mean = {.op = TN_OP_STREAM_MEAN, .body = mean};
const ascend_operation ascend_rms_match = {.op = TN_OP_RMS_MATCH, .needs = "aclnnSqrt aclnnClamp", .body = match};
