/* Gradients. With z the scores, p = softmax(z), g = dL/do, all of one key/value head:
 *
 *     dp = g v^T,  dz = p (dp - sum_s p dp),  dv = p^T g,  dk = ds^T q,  dq = ds k,
 *
 * ds = dz on its way back through softcap and scale. Nothing is kept of forward: a first sweep over the keys finds each
 * row's largest score, sum and sum_s p dp, a second one forms the three products. The work is cut into items of one
 * batch row and key/value head, which go through their keys in blocks and, within these, through tiles of rows: dk and
 * dv of a block and dq of all rows stay in f32. So no sum is divided between threads but that of a sink over batch
 * rows, formed at the end in their order. */
#include "attention_grad.h"
#include "attention_run.h"
#include "scalar.h"
#include "scratch.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define LOG2_E 1.44269504088896340736

/* A tile of rows: its panels, what is known of its rows, and its dq. */
typedef struct grad_tile {
    attention_lanes lanes[ATTENTION_GROUPS];
    attention_grad_lanes grads[ATTENTION_GROUPS];
    attention_bounds bounds;
    int32_t rows, groups;
    char *q, *g, *q_rows, *g_rows;
    float *dq;
} grad_tile;

/* A thread's memory. */
typedef struct grad_memory {
    grad_tile *tiles;
    char *panels;
    size_t tile_bytes, q, g, q_rows, g_rows, dq; /* of the panels of a tile, and where each lies in it */
    char *k, *v, *turned;
    float *x, *dp, *dk, *dv;
    char *p, *ds, *ds_panel;
    int64_t depth, v_depth, d_rows, v_rows; /* filled up: along sums; as results                    */
    size_t bytes;
} grad_memory;

typedef struct grad_job {
    const attention_layer *layer;
    attention_grad_kernels kernels;
    const tn_tensor *q, *k, *v, *q_index, *kv_index, *g, *dq, *dk, *dv;
    int64_t batch, tokens, keys, rows, tiles, block;
    float scale, cap_in, cap_out;
    float *dsinks; /* [batch][heads]; NULL: not wanted                                               */
    char *threads;
    size_t thread_bytes;
} grad_job;

typedef struct grad_item {
    const grad_job *job;
    grad_memory m;
    int64_t b, kv_head;
} grad_item;

/* A block of keys as operands. */
typedef struct grad_keys {
    attention_keys keys;
    attention_operand k, v, turned;
    bool ready;
} grad_keys;

static size_t element_size(const attention_layer *layer)
{
    return layer->kernels.pairs ? sizeof(uint16_t) : sizeof(float);
}

static int64_t tiles_of(int64_t rows)
{
    return (rows + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
}

static float *floats(char *base, size_t offset)
{
    return base ? (float *)(void *)(base + offset) : NULL;
}

static grad_memory layout(const attention_layer *layer, int64_t tiles, char *base)
{
    grad_memory m = {.depth = attention_up(layer->d, layer->kernels.depth),
                     .v_depth = attention_up(layer->dv, layer->kernels.depth),
                     .d_rows = attention_up(layer->d, ATTENTION_LANES),
                     .v_rows = attention_up(layer->dv, ATTENTION_LANES)};
    size_t size = element_size(layer), lanes = ATTENTION_ROWS * sizeof(float), keys = ATTENTION_KEYS * sizeof(float);
    m.q = scratch_take(&m.tile_bytes, ATTENTION_ROWS * (size_t)m.depth * size);
    m.g = scratch_take(&m.tile_bytes, ATTENTION_ROWS * (size_t)m.v_depth * size);
    m.q_rows = scratch_take(&m.tile_bytes, ATTENTION_ROWS * (size_t)m.d_rows * size);
    m.g_rows = scratch_take(&m.tile_bytes, ATTENTION_ROWS * (size_t)m.v_rows * size);
    m.dq = scratch_take(&m.tile_bytes, lanes * (size_t)m.d_rows);
    size_t states = scratch_take(&m.bytes, (size_t)tiles * sizeof(grad_tile));
    size_t panels = scratch_take(&m.bytes, (size_t)tiles * m.tile_bytes);
    size_t k = scratch_take(&m.bytes, keys * (size_t)m.depth), v = scratch_take(&m.bytes, keys * (size_t)m.v_depth);
    size_t turned = scratch_take(&m.bytes, layer->kernels.pairs ? keys * (size_t)m.d_rows : 0);
    size_t dk = scratch_take(&m.bytes, keys * (size_t)m.d_rows), dv = scratch_take(&m.bytes, keys * (size_t)m.v_rows);
    size_t blocks[5];
    for (int i = 0; i < 5; i++)
        blocks[i] = scratch_take(&m.bytes, lanes * ATTENTION_KEYS);
    m.tiles = (grad_tile *)(void *)floats(base, states);
    m.panels = (char *)floats(base, panels);
    m.k = (char *)floats(base, k);
    m.v = (char *)floats(base, v);
    m.turned = (char *)floats(base, turned);
    m.dk = floats(base, dk);
    m.dv = floats(base, dv);
    m.x = floats(base, blocks[0]);
    m.dp = floats(base, blocks[1]);
    m.p = (char *)floats(base, blocks[2]);
    m.ds = (char *)floats(base, blocks[3]);
    m.ds_panel = (char *)floats(base, blocks[4]);
    return m;
}

size_t attention_backward_scratch(const attention_layer *layer)
{
    size_t at = 0;
    int64_t tiles = tiles_of(layer->max_tokens * layer->group);
    scratch_take(&at, layer->sinks ? (size_t)(layer->max_tokens * layer->heads) * sizeof(float) : 0);
    scratch_take(&at, layout(layer, tiles, NULL).bytes * (size_t)layer->threads);
    return at;
}

/* ---- rows ------------------------------------------------------------------------------------------------ */

/* Lanes without a row repeat the last one and see nothing. */
static void start_group(const grad_item *x, int64_t tile, int32_t group)
{
    const grad_job *job = x->job;
    const attention_layer *layer = job->layer;
    grad_tile *t = &x->m.tiles[tile];
    attention_lanes *lanes = &t->lanes[group];
    attention_grad_lanes *grads = &t->grads[group];
    const char *q[ATTENTION_LANES], *g[ATTENTION_LANES];
    for (int64_t l = 0; l < ATTENTION_LANES; l++) {
        int64_t at = tile * ATTENTION_ROWS + group * ATTENTION_LANES + l, r = at < job->rows ? at : job->rows - 1;
        int64_t token = attention_token(layer, r), head = attention_head(layer, x->kv_head, r);
        int32_t high = attention_position(job->q_index, x->b, token);
        high = at < job->rows ? high : -1;
        lanes->low[l] = attention_lowest(layer, high);
        lanes->high[l] = high;
        lanes->seen[l] = 0;
        attention_bound(&t->bounds, lanes->low[l], high);
        grads->max[l] = -FLT_MAX;
        grads->inverse[l] = grads->inner[l] = 0.0f;
        q[l] = attention_at(job->q, x->b, token, head);
        g[l] = attention_at(job->g, x->b, token, head);
    }
    size_t size = element_size(layer), row = (size_t)group * ATTENTION_LANES * ATTENTION_LANES * size;
    layer->kernels.queries(q, layer->dtype, layer->d, t->q + (size_t)(group * x->m.depth * ATTENTION_LANES) * size);
    layer->kernels.queries(g, layer->dtype, layer->dv, t->g + (size_t)(group * x->m.v_depth * ATTENTION_LANES) * size);
    job->kernels.rows(q, layer->dtype, layer->d, t->q_rows + row);
    job->kernels.rows(g, layer->dtype, layer->dv, t->g_rows + row);
}

static void start(const grad_item *x)
{
    const grad_job *job = x->job;
    for (int64_t i = 0; i < job->tiles; i++) {
        grad_tile *t = &x->m.tiles[i];
        char *panels = x->m.panels + (size_t)i * x->m.tile_bytes;
        int64_t left = job->rows - i * ATTENTION_ROWS;
        t->bounds = attention_no_bounds();
        t->rows = (int32_t)(left < ATTENTION_ROWS ? left : ATTENTION_ROWS);
        t->groups = (t->rows + ATTENTION_LANES - 1) / ATTENTION_LANES;
        t->q = panels + x->m.q;
        t->g = panels + x->m.g;
        t->q_rows = panels + x->m.q_rows;
        t->g_rows = panels + x->m.g_rows;
        t->dq = floats(panels, x->m.dq);
        memset(t->q_rows, 0, x->m.tile_bytes - x->m.q_rows); /* rows that are not there; dq                   */
        for (int32_t g = 0; g < t->groups; g++)
            start_group(x, i, g);
    }
}

/* ---- keys ------------------------------------------------------------------------------------------------ */

/* rows of keys or values, filled up to depth; zeros in slots that are not used, whatever lies there. */
static attention_operand operand_of(const grad_item *x, const tn_tensor *t, const attention_keys *keys, int64_t n,
                                    int64_t depth, char *to)
{
    const attention_layer *layer = x->job->layer;
    const attention_kernels *kernels = &layer->kernels;
    const char *from = attention_at(t, x->b, keys->first, x->kv_head);
    int64_t step = attention_step(t), rows = attention_up(keys->count, kernels->rows);
    size_t size = element_size(layer), row = (size_t)depth * size;
    bool clean = keys->least >= 0 && n == depth && rows == keys->count;
    if (clean && size == tn_dtype_size(layer->dtype))
        return (attention_operand){from, t->stride[1], 1};
    for (int64_t s = 0; s < rows; s++, from += step) {
        bool used = s < keys->count && keys->index[s] >= 0;
        if (!used || n < depth)
            memset(to + (size_t)s * row, 0, row);
        if (used && kernels->pairs)
            memcpy(to + (size_t)s * row, from, (size_t)n * size);
        else if (used)
            kernels->widen(from, step, layer->dtype, 1, n, (float *)(void *)(to + (size_t)s * row));
    }
    return (attention_operand){to, depth, 1};
}

static void make_ready(const grad_item *x, grad_keys *block, bool second)
{
    const attention_layer *layer = x->job->layer;
    const attention_kernels *kernels = &layer->kernels;
    block->ready = true;
    block->k = operand_of(x, x->job->k, &block->keys, layer->d, x->m.depth, x->m.k);
    block->v = operand_of(x, x->job->v, &block->keys, layer->dv, x->m.v_depth, x->m.v);
    block->turned = (attention_operand){block->k.data, 1, block->k.row};
    if (second && kernels->pairs) {
        kernels->turn(block->k.data, block->k.row * 2, block->keys.count, layer->d, (uint16_t *)(void *)x->m.turned);
        block->turned = (attention_operand){x->m.turned, ATTENTION_KEYS, 1};
    }
}

/* An operand from its row (element along its sum, where by_sum) `from` on. */
static attention_operand from_row(const attention_layer *layer, const attention_operand *operand, int64_t from,
                                  bool by_sum)
{
    attention_operand part = *operand;
    part.data = (const char *)part.data + (size_t)(from * (by_sum ? part.step : part.row)) * element_size(layer);
    return part;
}

/* ---- a tile and what it sees of a block --------------------------------------------------------------------- */

static attention_grad_block block_of(const grad_item *x, const attention_part *part, int32_t group)
{
    const int64_t panel = ATTENTION_KEYS * ATTENTION_LANES;
    size_t size = element_size(x->job->layer);
    return (attention_grad_block){.x = x->m.x + group * panel,
                                  .dp = x->m.dp + group * panel,
                                  .scale = x->job->scale,
                                  .cap_out = x->job->cap_out,
                                  .natural = x->job->layer->natural,
                                  .count = part->count,
                                  .p = x->m.p + (size_t)(group * ATTENTION_LANES) * size,
                                  .ds = x->m.ds + (size_t)(group * ATTENTION_LANES) * size,
                                  .ds_panel = x->m.ds_panel + (size_t)(group * panel) * size};
}

/* Scores, -infinity for what is not seen, and dp. */
static void do_scores(const grad_item *x, const grad_keys *block, grad_tile *t, const attention_part *part)
{
    const attention_layer *layer = x->job->layer;
    const attention_kernels *kernels = &layer->kernels;
    const attention_operand k = from_row(layer, &block->k, part->from, false);
    const attention_operand v = from_row(layer, &block->v, part->from, false);
    kernels->scores(&k, part->count, x->m.depth, t->q, t->groups, x->m.x);
    kernels->scores(&v, part->count, x->m.v_depth, t->g, t->groups, x->m.dp);
    for (int32_t g = 0; g < t->groups; g++) {
        float *scores = x->m.x + g * ATTENTION_KEYS * ATTENTION_LANES;
        if (x->job->cap_out != 0.0f)
            kernels->cap(scores, part->count * ATTENTION_LANES, x->job->cap_in, x->job->cap_out);
        if (!part->full)
            kernels->mask(&t->lanes[g], block->keys.index + part->from, part->count, scores);
        for (int l = 0; part->full && l < ATTENTION_LANES; l++)
            t->lanes[g].seen[l] = 1;
    }
}

static void sum_tile(const grad_item *x, const grad_keys *block, grad_tile *t, const attention_part *part)
{
    do_scores(x, block, t, part);
    for (int32_t g = 0; g < t->groups; g++) {
        const attention_grad_block b = block_of(x, part, g);
        x->job->kernels.sum(&t->grads[g], &b);
    }
}

static void multiply_tile(const grad_item *x, const grad_keys *block, grad_tile *t, const attention_part *part)
{
    const attention_layer *layer = x->job->layer;
    const attention_kernels *kernels = &layer->kernels;
    const int64_t rows = ATTENTION_ROWS * ATTENTION_LANES, keys = ATTENTION_KEYS * ATTENTION_LANES;
    /* Whole steps of rows, and zeros beyond the groups. */
    const int64_t depth = attention_up(t->groups * ATTENTION_LANES, kernels->depth);
    do_scores(x, block, t, part);
    if (depth > t->groups * ATTENTION_LANES) {
        memset(x->m.p, 0, (size_t)(part->count * ATTENTION_ROWS) * element_size(layer));
        memset(x->m.ds, 0, (size_t)(part->count * ATTENTION_ROWS) * element_size(layer));
    }
    for (int32_t g = 0; g < t->groups; g++) {
        const attention_grad_block b = block_of(x, part, g);
        x->job->kernels.soften(&t->grads[g], &b);
    }
    const attention_operand p = {x->m.p, ATTENTION_ROWS, 1}, ds = {x->m.ds, ATTENTION_ROWS, 1};
    const attention_operand turned = from_row(layer, &block->turned, part->from, true);
    const int64_t at = part->from * ATTENTION_LANES;
    if (x->job->dv->data)
        kernels->mix(&p, part->count, depth, t->g_rows, rows, (int32_t)(x->m.v_rows / ATTENTION_LANES), x->m.dv + at,
                     keys);
    if (x->job->dk->data)
        kernels->mix(&ds, part->count, depth, t->q_rows, rows, (int32_t)(x->m.d_rows / ATTENTION_LANES), x->m.dk + at,
                     keys);
    if (x->job->dq->data)
        kernels->mix(&turned, layer->d, part->count, x->m.ds_panel, keys, t->groups, t->dq,
                     x->m.d_rows * ATTENTION_LANES);
}

/* count keys of dk or dv, filled up as products write them. */
static void clear_keys(float *sums, int64_t rows, int64_t count)
{
    for (int64_t i = 0; i < rows; i += ATTENTION_LANES)
        memset(sums + i * ATTENTION_KEYS, 0,
               (size_t)(attention_up(count, ATTENTION_LANES) * ATTENTION_LANES) * sizeof(float));
}

/* dk and dv of a block. */
static void store_keys(const grad_item *x, const attention_keys *keys)
{
    const attention_layer *layer = x->job->layer;
    for (int64_t s = 0; s < keys->count; s++) {
        if (x->job->dk->data)
            x->job->kernels.narrow(x->m.dk + s * ATTENTION_LANES, layer->d, layer->dtype,
                                   attention_at(x->job->dk, x->b, keys->first + s, x->kv_head));
        if (x->job->dv->data)
            x->job->kernels.narrow(x->m.dv + s * ATTENTION_LANES, layer->dv, layer->dtype,
                                   attention_at(x->job->dv, x->b, keys->first + s, x->kv_head));
    }
}

/* All keys: what rows must know of theirs, or, second, the products. */
static void sweep(const grad_item *x, bool second)
{
    const grad_job *job = x->job;
    grad_keys block;
    for (int64_t first = 0; first < job->keys; first += job->block) {
        int64_t left = job->keys - first;
        attention_look(job->kv_index, x->b, first, left < job->block ? left : job->block, &block.keys);
        block.ready = false;
        if (second) {
            clear_keys(x->m.dk, x->m.d_rows, block.keys.count);
            clear_keys(x->m.dv, x->m.v_rows, block.keys.count);
        }
        for (int64_t t = 0; t < job->tiles; t++) {
            attention_part part;
            if (!attention_see(&x->m.tiles[t].bounds, &block.keys, &part))
                continue;
            if (!block.ready)
                make_ready(x, &block, second);
            (second ? multiply_tile : sum_tile)(x, &block, &x->m.tiles[t], &part);
        }
        if (second)
            store_keys(x, &block.keys);
    }
}

/* From sums to what the second sweep takes. Returns a row's share of its sink's gradient. */
static float settle_row(const attention_layer *layer, attention_grad_lanes *grads, int l, int64_t head, bool seen)
{
    float own = 0.0f;
    if (!seen) {
        grads->inverse[l] = grads->inner[l] = 0.0f;
        return 0.0f;
    }
    if (layer->sinks) {
        float sink = attention_sink(layer, head);
        float max = sink > grads->max[l] ? sink : grads->max[l], factor = exp2f(grads->max[l] - max);
        own = exp2f(sink - max);
        grads->max[l] = max;
        grads->inverse[l] = grads->inverse[l] * factor + own;
        grads->inner[l] *= factor;
    }
    grads->inverse[l] = 1.0f / grads->inverse[l];
    grads->inner[l] *= grads->inverse[l];
    return -own * grads->inverse[l] * grads->inner[l];
}

static void settle(const grad_item *x)
{
    const grad_job *job = x->job;
    const attention_layer *layer = job->layer;
    float *dsinks = job->dsinks ? job->dsinks + x->b * layer->heads : NULL;
    for (int64_t g = 0; dsinks && g < layer->group; g++)
        dsinks[x->kv_head * layer->group + g] = 0.0f;
    for (int64_t r = 0; r < job->tiles * ATTENTION_ROWS; r++) {
        grad_tile *t = &x->m.tiles[r / ATTENTION_ROWS];
        int64_t group = r % ATTENTION_ROWS / ATTENTION_LANES, l = r % ATTENTION_LANES;
        int64_t head = attention_head(layer, x->kv_head, r);
        bool real = r < job->rows;
        float share = settle_row(layer, &t->grads[group], (int)l, head, real && t->lanes[group].seen[l]);
        if (dsinks && real)
            dsinks[head] += share;
    }
}

static void store_queries(const grad_item *x)
{
    static const float one[ATTENTION_LANES] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const grad_job *job = x->job;
    const attention_layer *layer = job->layer;
    for (int64_t r = 0; job->dq->data && r < job->rows; r += ATTENTION_LANES) {
        grad_tile *t = &x->m.tiles[r / ATTENTION_ROWS];
        char *to[ATTENTION_LANES];
        int64_t rows = job->rows - r < ATTENTION_LANES ? job->rows - r : ATTENTION_LANES;
        for (int64_t l = 0; l < rows; l++)
            to[l] =
                attention_at(job->dq, x->b, attention_token(layer, r + l), attention_head(layer, x->kv_head, r + l));
        layer->kernels.store(t->dq + r % ATTENTION_ROWS * x->m.d_rows, one, layer->d, layer->dtype, (int32_t)rows, to);
    }
}

static void do_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const grad_job *job = ctx;
    const attention_layer *layer = job->layer;
    grad_item x = {.job = job};
    x.m = layout(layer, job->tiles, job->threads + (size_t)thread * job->thread_bytes);
    for (int64_t i = begin; i < end; i++) {
        x.b = i / layer->kv_heads;
        x.kv_head = i % layer->kv_heads;
        start(&x);
        if (layer->kernels.begin)
            layer->kernels.begin();
        sweep(&x, false);
        settle(&x);
        sweep(&x, true);
        if (layer->kernels.end)
            layer->kernels.end();
        store_queries(&x);
    }
}

/* ---- the call -------------------------------------------------------------------------------------------- */

static void clear(const tn_tensor *t)
{
    for (int64_t i = 0; t->data && i < t->shape[0] * t->shape[1] * t->shape[2]; i++) {
        int64_t head = i % t->shape[2], row = i / t->shape[2];
        memset(attention_at(t, row / t->shape[1], row % t->shape[1], head), 0,
               (size_t)t->shape[3] * tn_dtype_size(t->dtype));
    }
}

static void join_sinks(const grad_job *job, const tn_tensor *to)
{
    for (int64_t head = 0; head < job->layer->heads; head++) {
        double sum = 0;
        for (int64_t b = 0; job->dsinks && b < job->batch; b++)
            sum += (double)job->dsinks[b * job->layer->heads + head];
        scalar_store(to->data, head, to->dtype, (float)sum);
    }
}

void attention_backward(const attention_layer *layer, const tn_call *call)
{
    const tn_grads *grads = call->grads;
    const tn_param *sinks = &grads->param[TN_ROLE_SINKS];
    grad_job job = {.layer = layer,
                    .kernels = attention_grad_kernels_of(layer, call->plan->user[0]),
                    .q = &call->in[0],
                    .k = &call->in[1],
                    .v = &call->in[2],
                    .q_index = &call->in[3],
                    .kv_index = &call->in[4],
                    .g = &grads->out[0],
                    .dq = &grads->in[0],
                    .dk = &grads->in[1],
                    .dv = &grads->in[2]};
    job.batch = job.q->shape[0];
    job.tokens = job.q->shape[1];
    job.keys = job.k->shape[1];
    job.rows = job.tokens * layer->group;
    job.tiles = tiles_of(job.rows);
    job.block = layer->d + layer->dv <= 512 ? ATTENTION_KEYS / 2 : ATTENTION_KEYS / 4;
    attention_cap(layer, &job.scale, &job.cap_in, &job.cap_out);
    bool wants_sinks = layer->sinks && sinks->count > 0, any = job.g->data && job.rows > 0 && job.batch > 0;
    size_t at = 0;
    scratch_take(&at, layer->sinks ? (size_t)(job.batch * layer->heads) * sizeof(float) : 0);
    job.dsinks = any && wants_sinks ? call->scratch : NULL;
    job.threads = (char *)call->scratch + at;
    job.thread_bytes = layout(layer, job.tiles, NULL).bytes;
    if (any) {
        tn_parallel_for(job.batch * layer->kv_heads, 1, do_items, &job);
    } else {
        clear(job.dq);
        clear(job.dk);
        clear(job.dv);
    }
    if (wants_sinks)
        join_sinks(&job, sinks->tensors);
}
