/* Few rows of a token, as in decoding: each piece of the keys is read once, by blocks that stay in the first cache,
 * token after token. Keys that a token does not see are not read. */
#include "attention_run.h"
#include "scratch.h"

#include <float.h>
#include <string.h>

typedef struct few_memory {
    float *q, *o, *max, *sum;
    int64_t q_row, o_row;
    size_t bytes;
} few_memory;

static few_memory layout(const attention_layer *layer, char *base)
{
    few_memory m = {.q_row = attention_up(layer->d, 2 * ATTENTION_LANES),
                    .o_row = attention_up(layer->dv, 2 * ATTENTION_LANES)};
    size_t q = scratch_take(&m.bytes, ATTENTION_FEW * (size_t)m.q_row * sizeof(float));
    size_t o = scratch_take(&m.bytes, ATTENTION_FEW * (size_t)m.o_row * sizeof(float));
    size_t max = scratch_take(&m.bytes, 2 * ATTENTION_FEW * sizeof(float));
    if (base) {
        m.q = (float *)(void *)(base + q);
        m.o = (float *)(void *)(base + o);
        m.max = (float *)(void *)(base + max);
        m.sum = m.max + ATTENTION_FEW;
    }
    return m;
}

size_t attention_few_bytes(const attention_layer *layer)
{
    return layout(layer, NULL).bytes;
}

static void start(const attention_job *job, const attention_item *item, const few_memory *m)
{
    const attention_layer *layer = job->layer;
    for (int64_t r = 0; r < job->rows; r++) {
        m->max[r] = -FLT_MAX;
        m->sum[r] = 0.0f;
        layer->kernels.few_queries(attention_at(job->q, item->b, attention_token(layer, r),
                                                attention_head(layer, item->kv_head, r)),
                                   layer->dtype, layer->d, m->q + r * m->q_row);
    }
    memset(m->o, 0, (size_t)(job->rows * m->o_row) * sizeof(float));
}

static void finish(const attention_job *job, const attention_item *item, const few_memory *m, const bool *seen)
{
    const attention_layer *layer = job->layer;
    for (int64_t r = 0; r < job->rows; r++) {
        int64_t t = attention_token(layer, r), head = attention_head(layer, item->kv_head, r);
        float *o = m->o + r * m->o_row;
        if (job->pieces > 1) {
            float *to = attention_partial(job, item, r);
            to[PARTIAL_MAX] = m->max[r];
            to[PARTIAL_SUM] = m->sum[r];
            to[PARTIAL_SEEN] = seen[t];
            layer->kernels.few_plain(o, layer->dtype, layer->dv, to + PARTIAL_O);
            continue;
        }
        layer->kernels.few_store(o, attention_factor(layer, head, m->max[r], m->sum[r], seen[t]), layer->dv,
                                 layer->dtype, attention_at(job->o, item->b, t, head));
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

void attention_few_rows(const attention_job *job, const attention_item *item, char *memory)
{
    const attention_layer *layer = job->layer;
    const few_memory m = layout(layer, memory);
    int32_t key[ATTENTION_FEW_KEYS];
    bool seen[ATTENTION_FEW] = {false};
    attention_few f = {.dtype = layer->dtype,
                       .d = layer->d,
                       .dv = layer->dv,
                       .rows = layer->group,
                       .q_row = m.q_row,
                       .o_row = m.o_row,
                       .k_step = attention_step(job->k),
                       .v_step = attention_step(job->v),
                       .key = key,
                       .scale = layer->scale};
    attention_cap(layer, &f.scale, &f.cap_in, &f.cap_out);
    start(job, item, &m);
    for (int64_t first = item->key; first < item->key_end; first += ATTENTION_FEW_KEYS) {
        int64_t left = item->key_end - first, count = left < ATTENTION_FEW_KEYS ? left : ATTENTION_FEW_KEYS;
        f.k = attention_at(job->k, item->b, first, item->kv_head);
        f.v = attention_at(job->v, item->b, first, item->kv_head);
        for (int64_t t = 0; t < job->tokens; t++) {
            f.count = choose(job, item->b, t, first, count, key);
            if (f.count == 0)
                continue;
            seen[t] = true;
            f.q = m.q + t * layer->group * m.q_row;
            f.o = m.o + t * layer->group * m.o_row;
            f.max = m.max + t * layer->group;
            f.sum = m.sum + t * layer->group;
            layer->kernels.few(&f);
        }
    }
    finish(job, item, &m, seen);
}
