/* A call cut into jobs by roundings and these into items, and what spans of the keys leave put together. */
#include "attention_run.h"
#include "scalar.h"
#include "scratch.h"

#include <float.h>
#include <math.h>

#define LOG2_E 1.44269504088896340736

enum {
    PARTIAL_ROWS = 4096,    /* most rows of partial results                                             */
    PARTIAL_SPANS = 64,     /* spans of all rows of a call that have room for theirs                    */
    ITEMS_OF_THREAD = 4,    /* so many of each even the threads' shares                                 */
    WORTH_A_THREAD = 32768, /* bytes of keys and values                                               */
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
    if (flags & TN_CPU_AVX512_BF16 && !(flags & TN_CPU_SLOW_BF16) && layer.dtype == TN_BF16)
        attention_init_avx512bf16(&layer.kernels);
    if (flags & TN_CPU_AVX512_BF16 && flags & TN_CPU_AMX_BF16 && layer.dtype == TN_BF16)
        attention_init_amx(&layer.kernels);
#elif defined __aarch64__
    if (flags & TN_CPU_NEON)
        attention_init_neon(&layer.kernels);
    layer.precise = layer.kernels;
#else
    layer.precise = layer.kernels;
#endif
    (void)flags;
    return layer;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* A thread's map, and what follows it. */
enum { MAP_BYTES = (sizeof(attention_map) + 63) / 64 * 64 };

static size_t thread_bytes(const attention_layer *layer)
{
    size_t many = attention_many_bytes(layer), few = attention_few_bytes(layer);
    return MAP_BYTES + (many > few ? many : few);
}

static int64_t partial_rows(const attention_layer *layer)
{
    return layer->threads > 1 ? least(PARTIAL_ROWS, layer->max_tokens * layer->heads * PARTIAL_SPANS) : 0;
}

size_t attention_scratch(const attention_layer *layer)
{
    size_t at = 0;
    scratch_take(&at, (size_t)(partial_rows(layer) * attention_partial_row(layer)) * sizeof(float));
    scratch_take(&at, thread_bytes(layer) * (size_t)layer->threads);
    return at;
}

/* Rows of an item: what is done to a block of keys before its products is shared by that many. */
static int64_t rows_of_item(const attention_layer *layer)
{
    int64_t tiles = (INT64_C(1) << 17) / (ATTENTION_ROWS * attention_up(layer->dv, ATTENTION_LANES));
    return ATTENTION_ROWS * most(1, least(tiles, ATTENTION_TILES));
}

/* The tokens of which some queries are the job's, and the spans that these see. False: there are none. */
static bool choose_queries(attention_job *job)
{
    int64_t first = INT64_MAX, end = 0, low = INT64_MAX, high = -1;
    for (int64_t i = 0; i < job->batch * job->q->shape[1]; i++) {
        int64_t t = i % job->q->shape[1];
        int32_t q = attention_position(job->q_index, i / job->q->shape[1], t);
        if (!attention_takes(job, q))
            continue;
        first = least(first, t);
        end = most(end, t + 1);
        low = q < 0 ? low : least(low, attention_lowest(job->layer, q));
        high = most(high, q);
    }
    job->first_token = first;
    job->tokens = end - first;
    job->first_span = high < 0 ? 0 : low / ATTENTION_SPAN;
    job->spans = high < 0 ? 1 : high / ATTENTION_SPAN - job->first_span + 1;
    job->positions = high < 0 ? 1 : high - low + 1;
    return end > 0;
}

/* Into how many groups the heads of a job of few rows are cut. Heads that lie side by side are read side by side: as
 * few groups as leave no thread waiting for a sixth of the time, where whole spans are the large items. */
static int64_t head_groups(const attention_job *job)
{
    double threads = (double)job->layer->threads;
    double all = job->pieces > 1 ? fmax(1, (double)job->positions / ATTENTION_SPAN) : 1;
    int64_t groups = 1;
    for (; groups < job->layer->kv_heads; groups++) {
        double items = (double)(groups * job->batch);
        if (ceil(floor(all) * items / threads) * threads <= 1.2 * all * items)
            break;
    }
    return groups;
}

/* However a job is cut, a row's sums are formed in the same order. Keys are cut where there are few rows. */
static void divide(attention_job *job)
{
    const attention_layer *layer = job->layer;
    int64_t heads = job->batch * layer->kv_heads, wanted = layer->threads > 1 ? layer->threads * ITEMS_OF_THREAD : 1;
    job->rows = job->tokens * layer->group;
    job->few = job->rows <= layer->kernels.few_rows && !job->as_eager;
    job->item_rows = job->few ? job->rows : rows_of_item(layer);
    job->parts = (job->rows + job->item_rows - 1) / job->item_rows;
    bool room = job->spans <= partial_rows(layer) / most(1, heads * job->rows);
    bool beside = job->few && job->k->stride[2] < job->k->stride[1];
    job->pieces = job->parts == 1 && (beside ? job->batch : heads) < wanted && room ? job->spans : 1;
    int64_t groups = beside ? head_groups(job) : layer->kv_heads;
    job->item_heads = (layer->kv_heads + groups - 1) / groups;
    job->head_items = (layer->kv_heads + job->item_heads - 1) / job->item_heads;
}

/* A prompt's later rows see more keys: taking them from both ends alternately evens the threads' shares. */
static attention_item item_of(const attention_job *job, int64_t i)
{
    int64_t part = i % job->parts, rest = i / job->parts, kv_heads = job->layer->kv_heads;
    part = part % 2 ? part / 2 : job->parts - 1 - part / 2;
    attention_item item = {.piece = rest % job->pieces,
                           .kv_head = rest / job->pieces % job->head_items * job->item_heads,
                           .b = rest / job->pieces / job->head_items,
                           .first = part * job->item_rows};
    item.heads = least(kv_heads - item.kv_head, job->item_heads);
    item.rows = least(job->rows - item.first, job->item_rows);
    item.from = (job->first_span + item.piece) * ATTENTION_SPAN;
    item.last = item.from + ATTENTION_SPAN * (job->pieces > 1 ? 1 : job->spans) - 1;
    return item;
}

static void do_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const attention_job *job = ctx;
    char *memory = job->threads + (size_t)thread * job->thread_bytes;
    attention_map *map = (attention_map *)(void *)memory;
    for (int64_t i = begin; i < end; i++) {
        attention_item item = item_of(job, i);
        if (i == begin || item.b != map->b)
            attention_map_keys(map, job->kv_index, item.b);
        if (job->few)
            attention_few_rows(job, &item, map, memory + MAP_BYTES);
        else
            attention_many(job, &item, map, memory + MAP_BYTES);
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

void attention_join(float *max, float *sum, float next_max, float next_sum, float *before, float *factor)
{
    float top = next_max > *max ? next_max : *max;
    *before = exp2f(*max - top);
    *factor = exp2f(next_max - top);
    *max = top;
    *sum = fmaf(next_sum, *factor, *sum * *before);
}

/* o of one row from what the spans left, in their order. */
static void join_row(const attention_job *job, const attention_item *item, int64_t row)
{
    const attention_layer *layer = job->layer;
    int64_t stride = attention_partial_row(layer);
    float *all = attention_partial(job, item, item->kv_head, row), *next = all + stride;
    float max = all[PARTIAL_MAX], sum = all[PARTIAL_SUM];
    bool seen = all[PARTIAL_SEEN] != 0.0f;
    char *to = attention_result(job, item->b, item->kv_head, row);
    for (int64_t p = 1; to && p < job->pieces; p++, next += stride) {
        float before[ATTENTION_LANES], factor[ATTENTION_LANES];
        attention_join(&max, &sum, next[PARTIAL_MAX], next[PARTIAL_SUM], before, factor);
        for (int l = 1; l < ATTENTION_LANES; l++) {
            before[l] = *before;
            factor[l] = *factor;
        }
        layer->kernels.join(all + PARTIAL_O, before, next + PARTIAL_O, factor, stride / ATTENTION_LANES - 1);
        seen |= next[PARTIAL_SEEN] != 0.0f;
    }
    if (to)
        layer->kernels.store_row(all + PARTIAL_O,
                                 attention_factor(layer, attention_head(layer, item->kv_head, row), max, sum, seen),
                                 layer->dv, layer->dtype, to);
}

static void join_heads(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const attention_job *job = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int64_t head = i / job->rows;
        const attention_item item = {.b = head / job->layer->kv_heads, .kv_head = head % job->layer->kv_heads};
        join_row(job, &item, i % job->rows);
    }
}

/* Of few keys each rounding weighs, and another draw of them makes other choices further on (a router's); of many they
 * even out. */
static void do_job(attention_job *job, void *scratch)
{
    const attention_layer *layer = job->layer;
    size_t at = 0;
    if (!choose_queries(job))
        return;
    divide(job);
    int64_t heads = job->batch * layer->kv_heads, partials = job->pieces > 1 ? heads * job->rows * job->pieces : 0;
    scratch_take(&at, (size_t)(partials * attention_partial_row(layer)) * sizeof(float));
    job->partial = scratch;
    job->threads = (char *)scratch + at;
    job->thread_bytes = thread_bytes(layer);
    int64_t keys = least(job->k->shape[1], ATTENTION_SPAN * (job->pieces > 1 ? 1 : job->spans));
    int64_t bytes = most(1, keys * (layer->d + layer->dv) * (int64_t)tn_dtype_size(layer->dtype));
    bytes *= job->item_heads * most(1, job->item_rows / ATTENTION_FEW);
    tn_parallel_for(job->batch * job->head_items * job->parts * job->pieces, (WORTH_A_THREAD + bytes - 1) / bytes,
                    do_items, job);
    int64_t row = most(1, job->pieces * layer->dv * 4);
    if (job->pieces > 1)
        tn_parallel_for(heads * job->rows, (2 * WORTH_A_THREAD + row - 1) / row, join_heads, job);
}

/* A query's position decides, so that what else is in the call does not change its bits; where keys have none, their
 * number does. */
static int64_t small_positions(const attention_layer *layer, const tn_call *call)
{
    if (layer->dtype == TN_F32 || !attention_by_slot(&call->in[4]))
        return layer->dtype == TN_F32 ? 0 : ATTENTION_SMALL;
    return call->in[1].shape[1] <= attention_block(layer) ? INT64_MAX : 0;
}

void attention_forward(const attention_layer *layer, const tn_call *call)
{
    attention_layer precise = *layer;
    precise.kernels = layer->precise;
    attention_job job = {.layer = layer,
                         .q = &call->in[0],
                         .k = &call->in[1],
                         .v = &call->in[2],
                         .q_index = &call->in[3],
                         .kv_index = &call->in[4],
                         .o = &call->out[0],
                         .batch = call->in[0].shape[0],
                         .small = small_positions(layer, call)};
    attention_job first = job;
    first.layer = &precise;
    first.as_eager = true;
    do_job(&first, call->scratch);
    do_job(&job, call->scratch);
}
