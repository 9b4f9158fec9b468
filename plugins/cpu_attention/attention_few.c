/* Few rows of a token, as in decoding: each piece of the keys is read once, by blocks that stay in the second cache,
 * head after head and token after token. Keys that a token does not see are not read. */
#include "attention_run.h"
#include "scratch.h"

#include <float.h>
#include <string.h>

/* Of [kv_heads][rows]. */
typedef struct few_memory {
    float *q, *o, *max, *sum;
    int64_t q_row, o_row;
    size_t bytes;
} few_memory;

static few_memory layout(const attention_layer *layer, char *base)
{
    few_memory m = {.q_row = attention_up(layer->d, 2 * ATTENTION_LANES),
                    .o_row = attention_up(layer->dv, 2 * ATTENTION_LANES)};
    size_t rows = ATTENTION_FEW * (size_t)layer->kv_heads;
    size_t q = scratch_take(&m.bytes, rows * (size_t)m.q_row * sizeof(float));
    size_t o = scratch_take(&m.bytes, rows * (size_t)m.o_row * sizeof(float));
    size_t max = scratch_take(&m.bytes, rows * sizeof(float));
    size_t sum = scratch_take(&m.bytes, rows * sizeof(float));
    if (base) {
        m.q = (float *)(void *)(base + q);
        m.o = (float *)(void *)(base + o);
        m.max = (float *)(void *)(base + max);
        m.sum = (float *)(void *)(base + sum);
    }
    return m;
}

size_t attention_few_bytes(const attention_layer *layer)
{
    return layer->group <= ATTENTION_FEW ? layout(layer, NULL).bytes : 0;
}

static void start(const attention_job *job, const attention_item *item, const few_memory *m)
{
    const attention_layer *layer = job->layer;
    for (int64_t i = 0; i < item->heads * job->rows; i++) {
        int64_t r = i % job->rows, head = attention_head(layer, item->kv_head + i / job->rows, r);
        m->max[i] = -FLT_MAX;
        m->sum[i] = 0.0f;
        layer->kernels.few_queries(attention_at(job->q, item->b, attention_token(layer, r), head), layer->dtype,
                                   layer->d, m->q + i * m->q_row);
    }
    memset(m->o, 0, (size_t)(item->heads * job->rows * m->o_row) * sizeof(float));
}

static void finish(const attention_job *job, const attention_item *item, const few_memory *m, const bool *seen)
{
    const attention_layer *layer = job->layer;
    for (int64_t i = 0; i < item->heads * job->rows; i++) {
        int64_t r = i % job->rows, t = attention_token(layer, r), kv_head = item->kv_head + i / job->rows;
        int64_t head = attention_head(layer, kv_head, r);
        const float *o = m->o + i * m->o_row;
        if (job->pieces > 1) {
            float *to = attention_partial(job, item, kv_head, r);
            to[PARTIAL_MAX] = m->max[i];
            to[PARTIAL_SUM] = m->sum[i];
            to[PARTIAL_SEEN] = seen[t];
            layer->kernels.few_plain(o, layer->dtype, layer->dv, to + PARTIAL_O);
        } else {
            layer->kernels.few_store(o, attention_factor(layer, head, m->max[i], m->sum[i], seen[t]), layer->dv,
                                     layer->dtype, attention_at(job->o, item->b, t, head));
        }
    }
}

/* The keys first .. first + count that token t sees. */
static int64_t choose(const attention_job *job, int64_t b, int64_t t, int64_t first, int64_t count, int32_t *key)
{
    int32_t high = attention_position(job->q_index, b, t), low = attention_lowest(job->layer, high);
    int64_t seen = 0;
    for (int64_t s = 0; s < count; s++) {
        int32_t at = attention_position(job->kv_index, b, first + s);
        key[seen] = (int32_t)s;
        seen += (at >= low) & (at <= high);
    }
    return seen;
}

/* The rows of all tokens and heads of an item with a block of keys. */
static void do_block(const attention_job *job, const attention_item *item, const few_memory *m, int64_t first,
                     int64_t count, bool *seen)
{
    const attention_layer *layer = job->layer;
    int32_t key[ATTENTION_FEW][ATTENTION_FEW_KEYS];
    int64_t chosen[ATTENTION_FEW], group = layer->group;
    attention_few f = {.dtype = layer->dtype,
                       .d = layer->d,
                       .dv = layer->dv,
                       .rows = group,
                       .q_row = m->q_row,
                       .o_row = m->o_row,
                       .k_step = attention_step(job->k),
                       .v_step = attention_step(job->v)};
    attention_cap(layer, &f.scale, &f.cap_in, &f.cap_out);
    for (int64_t t = 0; t < job->tokens; t++) {
        chosen[t] = choose(job, item->b, t, first, count, key[t]);
        seen[t] |= chosen[t] > 0;
    }
    for (int64_t head = 0; head < item->heads; head++) {
        f.k = attention_at(job->k, item->b, first, item->kv_head + head);
        f.v = attention_at(job->v, item->b, first, item->kv_head + head);
        for (int64_t t = 0; t < job->tokens; t++) {
            int64_t row = head * job->rows + t * group;
            f.key = key[t];
            f.count = chosen[t];
            f.q = m->q + row * m->q_row;
            f.o = m->o + row * m->o_row;
            f.max = m->max + row;
            f.sum = m->sum + row;
            if (f.count > 0)
                layer->kernels.few(&f);
        }
    }
}

void attention_few_rows(const attention_job *job, const attention_item *item, char *memory)
{
    const few_memory m = layout(job->layer, memory);
    bool seen[ATTENTION_FEW] = {false};
    start(job, item, &m);
    for (int64_t first = item->key; first < item->key_end; first += ATTENTION_FEW_KEYS) {
        int64_t left = item->key_end - first;
        do_block(job, item, &m, first, left < ATTENTION_FEW_KEYS ? left : ATTENTION_FEW_KEYS, seen);
    }
    finish(job, item, &m, seen);
}
