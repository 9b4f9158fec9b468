/* Convolutions as products: every place of the output is a row of the columns that its kernel sees. */
#include "models/audio.h"

void audio_conv_build(graph_builder *b, graph_module *parent, const char *name, audio_conv *conv)
{
    bool line = conv->kernel[0] == 1;
    graph_module *m = build_module(b, parent, name, line ? "Conv1d" : "Conv2d");
    conv->site = build_site(b, m, TN_OP_LINEAR, NULL);
    int64_t columns = conv->in * conv->kernel[0] * conv->kernel[1];
    int64_t shape[4] = {conv->out, conv->in, line ? conv->kernel[1] : conv->kernel[0], conv->kernel[1]};
    tn_tensor weight, bias;
    if (!conv->site || !build_tensor(b, m, "weight", line ? 3 : 4, shape, &weight) ||
        !build_tensor(b, m, "bias", 1, &conv->out, &bias))
        return;
    weight = steps_view(&weight, 2, (int64_t[]){conv->out, columns});
    build_param(b, conv->site, TN_ROLE_WEIGHT, &weight, 1);
    build_param(b, conv->site, TN_ROLE_BIAS, &bias, 1);
    conv->site->site.features |= TN_HAS_BIAS;
    conv->site->site.dim[TN_DIM_HIDDEN] = columns;
    conv->site->site.dim[TN_DIM_OUT] = conv->out;
}

int64_t audio_conv_size(const audio_conv *conv, int axis, int64_t size)
{
    return (size + 2 * conv->pad[axis] - conv->kernel[axis]) / conv->stride[axis] + 1;
}

/* x in the middle of zeros, so that a kernel need not know where x ends: [in, height + 2 pad, width + 2 pad]. */
static tn_tensor pad(graph_run *r, const audio_encoder *e, const audio_conv *conv, const tn_tensor *x, int64_t width)
{
    int64_t shape[3] = {conv->in, x->shape[1] + 2 * conv->pad[0], width + 2 * conv->pad[1]};
    tn_tensor padded = steps_upload(r, r->dtype, 3, shape, NULL);
    /* With a last dimension of 1 in which both are dense, whatever the strides of the others. */
    tn_tensor from = tn_tensor_dense(x->data, x->dtype, 4, (int64_t[]){x->shape[0], x->shape[1], x->shape[2], 1});
    tn_tensor to = from;
    for (int i = 0; i < 3; i++) {
        from.stride[i] = x->stride[i];
        to.stride[i] = padded.stride[i];
    }
    to.data = padded.data;
    if (padded.data)
        to.data = (char *)padded.data +
                  (size_t)(conv->pad[0] * padded.stride[1] + conv->pad[1]) * tn_dtype_size(padded.dtype);
    steps_copy(r, e->copy, &from, &to);
    return padded;
}

/* The columns of count rows of places from row begin on: [count * places, in * kernel]. */
static tn_tensor unfold(graph_run *r, const audio_encoder *e, const audio_conv *conv, const tn_tensor *padded,
                        int64_t begin, int64_t count, int64_t places)
{
    int64_t high = conv->kernel[0], wide = conv->kernel[1];
    int64_t shape[5] = {count, places, conv->in, high, wide};
    tn_tensor columns = steps_take(r, r->dtype, 5, shape), seen = columns;
    int64_t stride[5] = {conv->stride[0] * padded->stride[1], conv->stride[1], padded->stride[0], padded->stride[1], 1};
    for (int i = 0; i < 5; i++)
        seen.stride[i] = stride[i];
    seen.data = padded->data;
    if (padded->data)
        seen.data = (char *)padded->data + (size_t)(begin * stride[0]) * tn_dtype_size(padded->dtype);
    steps_copy(r, e->copy, &seen, &columns);
    return steps_view(&columns, 2, (int64_t[]){count * places, conv->in * high * wide});
}

tn_tensor audio_conv_forward(graph_run *r, const audio_encoder *e, const audio_conv *conv, const tn_tensor *x,
                             int64_t width)
{
    int64_t high = audio_conv_size(conv, 0, x->shape[1]), wide = audio_conv_size(conv, 1, width);
    int64_t most = wide < TOWER_PIECE ? TOWER_PIECE / wide : 1;
    tn_tensor y = steps_take(r, r->dtype, 2, (int64_t[]){high * wide, conv->out});
    size_t mark = arena_mark(r->arena);
    tn_tensor padded = pad(r, e, conv, x, width);
    for (int64_t i = 0; i < high; i += most) {
        int64_t count = high - i < most ? high - i : most;
        size_t inner = arena_mark(r->arena);
        tn_tensor to = steps_part(&y, 0, i * wide, count * wide), columns = unfold(r, e, conv, &padded, i, count, wide);
        steps_linear_into(r, conv->site, &columns, &to);
        arena_release(r->arena, inner);
    }
    arena_release(r->arena, mark);
    steps_change(r, e->gelu, &y);
    tn_tensor planes = tn_tensor_dense(y.data, y.dtype, 3, (int64_t[]){conv->out, high, wide});
    planes.stride[0] = 1;
    planes.stride[1] = wide * conv->out;
    planes.stride[2] = conv->out;
    return planes;
}
