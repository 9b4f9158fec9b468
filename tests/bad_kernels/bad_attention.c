/* Attention in float32, one query and head after the other, over blocks of 64 keys with a running maximum and sum. */
#include "bad.h"

enum { BLOCK = 64, MOST_DIM = 1024 };

/* What a query has gathered. */
typedef struct gathered {
    float largest, sum, o[MOST_DIM];
} gathered;

static bool sees(const tn_call *call, int32_t query, int32_t key, int64_t slot)
{
    int64_t window = call->site->features & TN_HAS_WINDOW ? call->site->dim[TN_DIM_WINDOW] : 0;
    if (faulty("window edge"))
        window += window > 0;
    if (faulty("slots are positions") && key >= 0)
        key = (int32_t)slot;
    if ((faulty("many keys") && slot >= 1024) || (faulty("16384 keys") && slot >= 16384))
        return false;
    return key >= 0 && key <= query && (window == 0 || query - key < window);
}

/* Adds the keys of one block. */
static void add_block(const tn_call *call, int64_t b, int64_t t, int64_t head, int64_t first, int64_t end, gathered *g)
{
    const tn_tensor *q = &call->in[0], *k = &call->in[1], *v = &call->in[2];
    int64_t kv_head = head / (q->shape[2] / k->shape[2]), n = q->shape[3], width = v->shape[3];
    int32_t query = ((const int32_t *)call->in[3].data)[b * call->in[3].stride[0] + t];
    const int32_t *keys = (const int32_t *)call->in[4].data + b * call->in[4].stride[0];
    float score[BLOCK], largest = g->largest;
    for (int64_t s = first; s < end; s++) {
        const float *row = (const float *)k->data + b * k->stride[0] + s * k->stride[1] + kv_head * k->stride[2];
        const float *x = (const float *)q->data + b * q->stride[0] + t * q->stride[1] + head * q->stride[2];
        score[s - first] =
            sees(call, query, keys[s], s) ? product(x, row, n) * (float)call->site->num[TN_NUM_SCALE] : -INFINITY;
        largest = fmaxf(largest, score[s - first]);
    }
    if (largest == -INFINITY)
        return;
    if (faulty("no maximum"))
        largest = 0;
    float scale = g->largest == -INFINITY ? 0 : expf(g->largest - largest);
    g->sum *= faulty("no rescaling") && scale > 0 ? 1 : scale;
    for (int64_t i = 0; i < width; i++)
        g->o[i] *= scale;
    g->largest = largest;
    for (int64_t s = first; s < end; s++) {
        float p = expf(score[s - first] - largest);
        const float *row = (const float *)v->data + b * v->stride[0] + s * v->stride[1] + kv_head * v->stride[2];
        g->sum += p;
        for (int64_t i = 0; i < width; i++)
            g->o[i] += p * row[i];
    }
}

static void queries(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const tn_call *call = ctx;
    const tn_tensor *q = &call->in[0], *o = &call->out[0];
    int64_t cached = call->in[4].shape[1];
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int64_t head = i % q->shape[2], t = i / q->shape[2] % q->shape[1], b = i / q->shape[2] / q->shape[1];
        gathered g = {.largest = -INFINITY};
        for (int64_t s = 0; s < cached; s += BLOCK) {
            int64_t last = s + BLOCK < cached ? s + BLOCK : cached;
            if (faulty("whole blocks of keys") && s >= BLOCK && last - s < BLOCK)
                continue;
            add_block(call, b, t, head, s, last, &g);
        }
        float *to = (float *)o->data + b * o->stride[0] + t * o->stride[1] + head * o->stride[2];
        for (int64_t j = 0; j < o->shape[3]; j++)
            to[j] = g.sum > 0 || faulty("NaN where nothing is seen") ? g.o[j] / g.sum : 0;
    }
}

static tn_status forward(const tn_call *call, tn_error *err)
{
    name_fault();
    const tn_tensor *q = &call->in[0];
    if (call->out[0].shape[3] > MOST_DIM)
        return tn_fail(err, TN_E_KERNEL, call->site->path, "a head of %d at most", MOST_DIM);
    tn_parallel_for(q->shape[0] * q->shape[1] * q->shape[2], 1, queries, (void *)call);
    if (faulty("other bits of few heads") && q->shape[2] < 3 && q->shape[0] * q->shape[1] > 0)
        *(unsigned char *)call->out[0].data ^= 1; /* as if another loop had added                      */
    return TN_OK;
}

static const tn_impl impl = {
    .size = sizeof(tn_impl),
    .op = TN_OP_ATTENTION,
    .match = {.size = sizeof(tn_match), .takes = {[TN_AXIS_DTYPE] = TN_TAKES(TN_F32)}, .features = TN_HAS_WINDOW},
    .tolerance = {.ulps_f32 = 512},
    .forward = forward};
BAD_KERNEL_PLUGIN("bad_attention", "bad_attention", impl);
