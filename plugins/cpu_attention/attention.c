/* A call cut into items, and what pieces of the keys leave put together. */
#include "attention_run.h"
#include "scalar.h"
#include "scratch.h"

#include <float.h>
#include <math.h>

#define LOG2_E 1.44269504088896340736

enum {
    ITEMS = 64,             /* as many pieces are cut, as far as they stay long                         */
    LEAST_PIECE = 256,      /* keys                                                                     */
    PARTIAL_ROWS = 4096,    /* most rows of partial results                                             */
    PARTIAL_SHARE = 8,      /* a piece's keys and values are that many times its partial results        */
    WORTH_A_THREAD = 32768, /* bytes of keys and values                                               */
    SMALL_STEP = 64         /* keys of one token: up to here roundings are eager's                    */
};

attention_layer attention_layer_of(const tn_site *site, const tn_plan *plan)
{
    attention_layer layer = {.dtype = (tn_dtype)site->meaning[TN_AXIS_DTYPE],
                             .d = site->dim[TN_DIM_HEAD],
                             .dv = site->dim[TN_DIM_HEAD_V] > 0 ? site->dim[TN_DIM_HEAD_V] : site->dim[TN_DIM_HEAD],
                             .heads = site->dim[TN_DIM_Q_HEADS],
                             .kv_heads = site->dim[TN_DIM_KV_HEADS],
                             .max_tokens = plan->max_tokens,
                             .threads = plan->threads,
                             .scale = (float)(site->num[TN_NUM_SCALE] * LOG2_E),
                             .natural = (float)site->num[TN_NUM_SCALE]};
    layer.group = layer.heads / layer.kv_heads;
    layer.window = site->features & TN_HAS_WINDOW ? site->dim[TN_DIM_WINDOW] : 0;
    layer.chunk = site->features & TN_HAS_CHUNK ? site->dim[TN_DIM_CHUNK] : 0;
    layer.softcap = site->features & TN_HAS_SOFTCAP ? (float)site->num[TN_NUM_SOFTCAP] : 0.0f;
    layer.sinks = site->features & TN_HAS_SINKS ? site->param[TN_ROLE_SINKS].tensors : NULL;
    uint64_t flags = plan->user[0];
    attention_init_c(&layer.kernels);
#ifdef __x86_64__
    if (flags & TN_CPU_AVX2)
        attention_init_avx2(&layer.kernels);
    if (flags & TN_CPU_AVX512)
        attention_init_avx512(&layer.kernels);
    layer.precise = layer.kernels;
    if (flags & TN_CPU_AVX512_BF16 && layer.dtype == TN_BF16)
        attention_init_avx512bf16(&layer.kernels);
    if (flags & TN_CPU_AVX512_BF16 && flags & TN_CPU_AMX_BF16 && layer.dtype == TN_BF16)
        attention_init_amx(&layer.kernels);
#elif defined __aarch64__
    if (flags & TN_CPU_NEON)
        attention_init_neon(&layer.kernels);
    layer.precise = layer.kernels;
#endif
    (void)flags;
    return layer;
}

static size_t thread_bytes(const attention_layer *layer)
{
    size_t many = attention_many_bytes(layer), few = attention_few_bytes(layer);
    return many > few ? many : few;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

size_t attention_scratch(const attention_layer *layer)
{
    size_t at = 0;
    int64_t rows = least(PARTIAL_ROWS, layer->max_tokens * layer->heads * ITEMS);
    scratch_take(&at, (size_t)(rows * attention_partial_row(layer)) * sizeof(float));
    scratch_take(&at, thread_bytes(layer) * (size_t)layer->threads);
    return at;
}

/* Rows of an item: what is done to a block of keys before its products is shared by that many. */
static int64_t rows_of_item(const attention_layer *layer)
{
    int64_t tiles = (INT64_C(1) << 17) / (ATTENTION_ROWS * attention_up(layer->dv, ATTENTION_LANES));
    return ATTENTION_ROWS * most(1, least(tiles, ATTENTION_TILES));
}

/* Cuts by sizes alone, so that results do not depend on threads. Keys are cut where there are few rows. */
static void divide(attention_job *job)
{
    const attention_layer *layer = job->layer;
    int64_t size = (int64_t)tn_dtype_size(layer->dtype), heads = job->batch * layer->kv_heads;
    job->rows = job->tokens * layer->group;
    job->few = job->rows <= layer->kernels.few_rows && !job->as_eager;
    job->item_rows = job->few ? job->rows : rows_of_item(layer);
    /* Heads that lie side by side are read side by side. */
    job->item_heads = job->few && job->k->stride[2] < job->k->stride[1] ? layer->kv_heads : 1;
    job->parts = (job->rows + job->item_rows - 1) / job->item_rows;
    int64_t items = heads / job->item_heads * job->parts,
            shares = PARTIAL_SHARE * job->rows * attention_partial_row(layer) * 4;
    int64_t key = (layer->d + layer->dv) * size, keys = most(LEAST_PIECE / (key * job->item_heads), shares / key);
    keys = most(keys, job->few ? ATTENTION_FEW_KEYS : ATTENTION_KEYS);
    int64_t pieces = least(least(ITEMS / items, PARTIAL_ROWS / (heads * job->rows)), job->keys / keys);
    job->pieces = job->parts == 1 && pieces > 1 ? pieces : 1;
    job->piece_keys = attention_up((job->keys + job->pieces - 1) / job->pieces, ATTENTION_STEP);
    if (job->piece_keys > 0)
        job->pieces = most(1, (job->keys + job->piece_keys - 1) / job->piece_keys);
}

/* A prompt's later rows see more keys: taking them from both ends alternately evens the threads' shares. */
static attention_item item_of(const attention_job *job, int64_t i)
{
    int64_t part = i % job->parts, rest = i / job->parts, heads = job->layer->kv_heads / job->item_heads;
    part = part % 2 ? part / 2 : job->parts - 1 - part / 2;
    attention_item item = {.kv_head = rest % heads * job->item_heads,
                           .heads = job->item_heads,
                           .piece = rest / heads % job->pieces,
                           .b = rest / heads / job->pieces,
                           .first = part * job->item_rows};
    item.rows = least(job->rows - item.first, job->item_rows);
    item.key = item.piece * job->piece_keys;
    item.key_end = least(item.key + job->piece_keys, job->keys);
    return item;
}

static void do_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const attention_job *job = ctx;
    char *memory = job->threads + (size_t)thread * job->thread_bytes;
    for (int64_t i = begin; i < end; i++) {
        attention_item item = item_of(job, i);
        if (job->few)
            attention_few_rows(job, &item, memory);
        else
            attention_many(job, &item, memory);
    }
}

float attention_sink(const attention_layer *layer, int64_t head)
{
    float sink = scalar_load(layer->sinks->data, head, layer->sinks->dtype), power = sink * (float)LOG2_E;
    return isfinite(sink) && !isfinite(power) ? copysignf(FLT_MAX, sink) : power;
}

float attention_factor(const attention_layer *layer, int64_t head, float max, float sum, bool seen)
{
    if (!seen)
        return 0.0f;
    if (!layer->sinks)
        return 1.0f / sum;
    float sink = attention_sink(layer, head);
    float top = sink > max ? sink : max, own = exp2f(max - top);
    return own / (sum * own + exp2f(sink - top));
}

/* o of one row from what the pieces left, in their order. */
static void join_row(const attention_job *job, const attention_item *item, int64_t row, float *factors)
{
    const attention_layer *layer = job->layer;
    int64_t stride = attention_partial_row(layer), head = attention_head(layer, item->kv_head, row);
    float *from = attention_partial(job, item, item->kv_head, row), *o = from + PARTIAL_O, max = -INFINITY, sum = 0.0f;
    bool seen = false;
    for (int64_t p = 0; p < job->pieces; p++) {
        seen |= from[p * stride + PARTIAL_SEEN] != 0.0f;
        max = from[p * stride + PARTIAL_MAX] > max ? from[p * stride + PARTIAL_MAX] : max;
    }
    for (int64_t p = 0; p < job->pieces; p++) {
        factors[p] = exp2f(from[p * stride + PARTIAL_MAX] - max);
        sum += factors[p] * from[p * stride + PARTIAL_SUM];
    }
    float factor = attention_factor(layer, head, max, sum, seen);
    for (int64_t i = 0; i < layer->dv; i++)
        // NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): there are two pieces or more
        o[i] *= factors[0];
    for (int64_t p = 1; p < job->pieces; p++)
        for (int64_t i = 0; i < layer->dv; i++)
            o[i] += factors[p] * from[p * stride + PARTIAL_O + i];
    for (int64_t i = 0; i < layer->dv; i++)
        o[i] *= factor;
    char *to = attention_at(job->o, item->b, attention_token(layer, row), head);
    for (int64_t i = 0; i < layer->dv; i++)
        scalar_store(to, i, layer->dtype, o[i]);
}

static void join_heads(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const attention_job *job = ctx;
    float factors[ITEMS];
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int64_t head = i / job->rows;
        const attention_item item = {.b = head / job->layer->kv_heads, .kv_head = head % job->layer->kv_heads};
        join_row(job, &item, i % job->rows, factors);
    }
}

/* Of few keys each rounding weighs, and another draw of them makes other choices further on (a router's); of many they
 * even out. */
static bool rounds_as_eager(const attention_layer *layer, int64_t tokens, int64_t keys)
{
    return layer->dtype != TN_F32 && keys <= (tokens == 1 ? SMALL_STEP : attention_block(layer));
}

void attention_forward(const attention_layer *any, const tn_call *call)
{
    attention_layer of_call = *any;
    const attention_layer *layer = &of_call;
    bool as_eager = rounds_as_eager(any, call->in[0].shape[1], call->in[1].shape[1]);
    if (as_eager)
        of_call.kernels = any->precise;
    attention_job job = {.layer = layer,
                         .q = &call->in[0],
                         .k = &call->in[1],
                         .v = &call->in[2],
                         .q_index = &call->in[3],
                         .kv_index = &call->in[4],
                         .o = &call->out[0],
                         .as_eager = as_eager,
                         .partial = call->scratch,
                         .thread_bytes = thread_bytes(layer)};
    job.batch = job.q->shape[0];
    job.tokens = job.q->shape[1];
    job.keys = job.k->shape[1];
    if (job.batch * job.tokens == 0)
        return;
    divide(&job);
    size_t at = 0;
    int64_t heads = job.batch * layer->kv_heads, partials = job.pieces > 1 ? heads * job.rows * job.pieces : 0;
    scratch_take(&at, (size_t)(partials * attention_partial_row(layer)) * sizeof(float));
    job.threads = (char *)call->scratch + at;
    int64_t bytes = most(1, job.piece_keys * (layer->d + layer->dv) * (int64_t)tn_dtype_size(layer->dtype));
    bytes *= job.item_heads * most(1, job.item_rows / ATTENTION_FEW);
    tn_parallel_for(heads / job.item_heads * job.parts * job.pieces, (WORTH_A_THREAD + bytes - 1) / bytes, do_items,
                    &job);
    int64_t row = most(1, job.pieces * layer->dv * 4);
    if (job.pieces > 1)
        tn_parallel_for(heads * job.rows, (2 * WORTH_A_THREAD + row - 1) / row, join_heads, &job);
}
