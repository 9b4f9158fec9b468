/* Many rows: blocks of keys that stay in the second cache go through tiles of rows. What a block needs before its
 * products (wider numbers, turned values) is done once for all tiles of an item. */
#include "attention_run.h"
#include "scalar.h"
#include "scratch.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { AHEAD = 16, LINE = 64 }; /* keys; bytes */

typedef struct many_memory {
    char *q; /* [tiles][groups][depth][16]                                                           */
    float *scores;
    char *p;                  /* scores and probabilities: [groups][ATTENTION_KEYS][16]                               */
    float *o, *all_o;         /* [tiles][groups][o_rows][16]: of the span; of the spans before it              */
    char *k, *v;              /* of a block, as the products want them                                        */
    char *moved_k, *moved_v;  /* of a block whose keys do not lie side by side                        */
    char *clean;              /* values of a block without what is no number                          */
    char *spare;              /* a row's result that nobody wants                                     */
    attention_lanes *lanes;   /* [tiles][groups]                                                      */
    float *all_max, *all_sum; /* [tiles][groups][16]                                                 */
    int64_t depth, o_rows;
    size_t bytes;
} many_memory;

/* The state of an item. */
typedef struct many_item {
    const attention_job *job;
    const attention_item *item;
    many_memory m;
    int64_t tiles;
    struct {
        int32_t groups, rows;
        attention_bounds bounds;
        int64_t span; /* of which o is; -1: none                                                     */
        bool joined;
    } tile[ATTENTION_TILES];
    bool as_eager;
    float scale, cap_in, cap_out;
} many_item;

/* A block of keys: what products read of it. */
typedef struct many_block {
    attention_keys keys;
    const char *k_from, *v_from; /* as they lie                                                      */
    int64_t k_step, v_step;
    attention_operand k, v; /* v: of what is clean, once that was needed                             */
    bool checked, clean;
} many_block;

static many_memory layout(const attention_layer *layer, char *base)
{
    const attention_kernels *kernels = &layer->kernels;
    many_memory m = {.depth = attention_up(layer->d, kernels->depth),
                     .o_rows = attention_up(layer->dv, ATTENTION_LANES)};
    size_t lanes = ATTENTION_ROWS * sizeof(float), rows = ATTENTION_TILES * lanes;
    size_t q = scratch_take(&m.bytes, rows * (size_t)m.depth);
    size_t scores = scratch_take(&m.bytes, lanes * ATTENTION_KEYS);
    size_t p = scratch_take(&m.bytes, lanes * ATTENTION_KEYS);
    size_t o = scratch_take(&m.bytes, rows * (size_t)m.o_rows);
    size_t k = scratch_take(&m.bytes, ATTENTION_KEYS * (size_t)m.depth * sizeof(float));
    size_t v = scratch_take(&m.bytes, ATTENTION_KEYS * (size_t)m.o_rows * sizeof(float));
    size_t element = tn_dtype_size(layer->dtype), keys = ATTENTION_KEYS * element;
    size_t moved_k = scratch_take(&m.bytes, keys * (size_t)layer->d);
    size_t moved_v = scratch_take(&m.bytes, keys * (size_t)layer->dv);
    size_t clean = scratch_take(&m.bytes, keys * (size_t)layer->dv);
    size_t spare = scratch_take(&m.bytes, (size_t)layer->dv * element);
    size_t states = scratch_take(&m.bytes, ATTENTION_TILES * ATTENTION_GROUPS * sizeof(attention_lanes));
    size_t all = scratch_take(&m.bytes, 2 * rows), all_o = scratch_take(&m.bytes, rows * (size_t)m.o_rows);
    if (base) {
        m.q = base + q;
        m.scores = (float *)(void *)(base + scores);
        m.p = base + p;
        m.o = (float *)(void *)(base + o);
        m.all_o = (float *)(void *)(base + all_o);
        m.k = base + k;
        m.v = base + v;
        m.moved_k = base + moved_k;
        m.moved_v = base + moved_v;
        m.clean = base + clean;
        m.spare = base + spare;
        m.all_max = (float *)(void *)(base + all);
        m.all_sum = m.all_max + rows / sizeof(float);
        m.lanes = (attention_lanes *)(void *)(base + states);
    }
    return m;
}

size_t attention_many_bytes(const attention_layer *layer)
{
    return layout(layer, NULL).bytes;
}

static size_t panel_element(const attention_layer *layer)
{
    return layer->kernels.pairs ? sizeof(uint16_t) : sizeof(float);
}

/* Nothing is summed of a group yet. */
static void clear_group(const many_item *x, int64_t at)
{
    attention_lanes *lanes = &x->m.lanes[at];
    for (int l = 0; l < ATTENTION_LANES; l++) {
        lanes->max[l] = -FLT_MAX;
        lanes->sum[l] = 0.0f;
    }
    memset(x->m.o + at * x->m.o_rows * ATTENTION_LANES, 0, (size_t)(x->m.o_rows * ATTENTION_LANES) * sizeof(float));
}

/* Queries, positions and empty results of one group of lanes; lanes without a row repeat the last one, and rows of
 * other jobs see nothing. */
static void start_group(many_item *x, int64_t tile, int32_t group)
{
    const attention_layer *layer = x->job->layer;
    int64_t at = tile * ATTENTION_GROUPS + group;
    attention_lanes *lanes = &x->m.lanes[at];
    const char *row[ATTENTION_LANES];
    for (int64_t l = 0; l < ATTENTION_LANES; l++) {
        int64_t r = tile * ATTENTION_ROWS + group * ATTENTION_LANES + l;
        r = x->item->first + (r < x->item->rows ? r : x->item->rows - 1);
        int64_t t = x->job->first_token + attention_token(layer, r);
        int32_t q = attention_position(x->job->q_index, x->item->b, t), high = attention_takes(x->job, q) ? q : -1;
        row[l] = attention_at(x->job->q, x->item->b, t, attention_head(layer, x->item->kv_head, r));
        lanes->seen[l] = 0;
        lanes->low[l] = attention_lowest(layer, high);
        lanes->high[l] = high;
        if (high >= 0)
            attention_bound(&x->tile[tile].bounds, lanes->low[l], high);
        else
            x->tile[tile].bounds.high = -1; /* no key is seen by all */
    }
    size_t panel = (size_t)(x->m.depth * ATTENTION_LANES) * panel_element(layer);
    layer->kernels.queries(row, layer->dtype, layer->d, x->m.q + (size_t)at * panel);
    clear_group(x, at);
}

static void start(many_item *x)
{
    x->tiles = (x->item->rows + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
    for (int64_t t = 0; t < x->tiles; t++) {
        int64_t left = x->item->rows - t * ATTENTION_ROWS, rows = left < ATTENTION_ROWS ? left : ATTENTION_ROWS;
        x->tile[t].rows = (int32_t)rows;
        x->tile[t].groups = (int32_t)((rows + ATTENTION_LANES - 1) / ATTENTION_LANES);
        x->tile[t].bounds = attention_no_bounds();
        x->tile[t].span = -1;
        for (int32_t g = 0; g < x->tile[t].groups; g++)
            start_group(x, t, g);
    }
}

/* What the span left of a tile, to what the spans before it left. */
static void join(many_item *x, int64_t tile)
{
    const attention_kernels *kernels = &x->job->layer->kernels;
    for (int32_t g = 0; g < x->tile[tile].groups; g++) {
        int64_t at = tile * ATTENTION_GROUPS + g, o = at * x->m.o_rows * ATTENTION_LANES;
        const attention_lanes *lanes = &x->m.lanes[at];
        float before[ATTENTION_LANES], factor[ATTENTION_LANES], *max = x->m.all_max + at * ATTENTION_LANES;
        float *sum = x->m.all_sum + at * ATTENTION_LANES;
        for (int l = 0; l < ATTENTION_LANES; l++) {
            if (!x->tile[tile].joined) {
                max[l] = -FLT_MAX;
                sum[l] = 0.0f;
            }
            attention_join(&max[l], &sum[l], lanes->max[l], lanes->sum[l], &before[l], &factor[l]);
        }
        if (!x->tile[tile].joined)
            memset(x->m.all_o + o, 0, (size_t)(x->m.o_rows * ATTENTION_LANES) * sizeof(float));
        kernels->join(x->m.all_o + o, before, x->m.o + o, factor, x->m.o_rows);
        clear_group(x, at);
    }
    x->tile[tile].joined = true;
}

/* The block's keys as rows that are filled up to what products read. */
static attention_operand keys_of(many_item *x, const many_block *block)
{
    const attention_layer *layer = x->job->layer;
    const attention_kernels *kernels = &layer->kernels;
    const char *from = block->k_from;
    int64_t step = block->k_step;
    bool whole = layer->d % kernels->depth == 0 && block->keys.count % kernels->rows == 0;
    /* Rows that are far from each other crowd into few lines of the first cache. */
    bool near = !kernels->pairs || step == layer->d * 2;
    if (whole && near && layer->dtype == (kernels->pairs ? TN_BF16 : TN_F32))
        return (attention_operand){from, step / (int64_t)tn_dtype_size(layer->dtype), 1};
    if (!kernels->pairs) {
        kernels->widen(from, step, layer->dtype, block->keys.count, layer->d, (float *)(void *)x->m.k);
        return (attention_operand){x->m.k, layer->d, 1};
    }
    size_t row = (size_t)x->m.depth * 2, bytes = (size_t)layer->d * 2;
    if (!whole)
        memset(x->m.k, 0, row * (size_t)attention_up(block->keys.count, kernels->rows));
    for (int64_t s = 0; s < block->keys.count; s++) {
        for (size_t i = 0; i < bytes; i += LINE)
            __builtin_prefetch(from + (s + AHEAD) * step + i);
        memcpy(x->m.k + (size_t)s * row, from + s * step, bytes);
    }
    return (attention_operand){x->m.k, x->m.depth, 1};
}

static attention_operand values_of(many_item *x, const many_block *block)
{
    const attention_layer *layer = x->job->layer;
    const attention_kernels *kernels = &layer->kernels;
    const char *from = block->clean ? x->m.clean : block->v_from;
    int64_t step = block->clean ? layer->dv * (int64_t)tn_dtype_size(layer->dtype) : block->v_step;
    if (kernels->pairs) {
        kernels->turn(from, step, block->keys.count, layer->dv, (uint16_t *)(void *)x->m.v);
        return (attention_operand){x->m.v, ATTENTION_KEYS, 1};
    }
    if (layer->dtype == TN_F32)
        return (attention_operand){from, 1, step / (int64_t)sizeof(float)};
    /* Values that are the beginning of keys are wide already. */
    if (from == block->k_from && step == block->k_step && layer->dv <= layer->d)
        return (attention_operand){x->m.k, 1, layer->d};
    kernels->widen(from, step, layer->dtype, block->keys.count, layer->dv, (float *)(void *)x->m.v);
    return (attention_operand){x->m.v, 1, layer->dv};
}

/* Where some see a key and others do not: a value that is no number must not reach these through 0 times it. All take
 * part in products with 0 in its place, and those that see it get it by itself. */
static void clean_values(many_item *x, many_block *block)
{
    const attention_layer *layer = x->job->layer;
    const size_t size = tn_dtype_size(layer->dtype), row = (size_t)layer->dv * size;
    for (int64_t s = 0; s < block->keys.count; s++) {
        char *to = x->m.clean + (size_t)s * row;
        memcpy(to, block->v_from + s * block->v_step, row);
        for (int64_t c = 0; c < layer->dv; c++)
            if (!isfinite(scalar_load(to, c, layer->dtype)))
                memset(to + (size_t)c * size, 0, size);
    }
    block->clean = true;
    block->v = values_of(x, block);
}

static void add_odd(const many_item *x, const many_block *block, const attention_part *part,
                    const attention_lanes *lanes, const char *p, float *o)
{
    const attention_layer *layer = x->job->layer;
    const bool pairs = layer->kernels.pairs;
    for (int64_t s = 0; s < part->count; s++) {
        const char *v = block->v_from + (part->from + s) * block->v_step;
        int32_t index = block->keys.index[part->from + s];
        for (int64_t c = 0; index >= 0 && c < layer->dv; c++) {
            float value = scalar_load(v, c, layer->dtype);
            for (int64_t l = 0; !isfinite(value) && l < ATTENTION_LANES; l++) {
                int64_t at = pairs ? (s / 2 * ATTENTION_LANES + l) * 2 + s % 2 : s * ATTENTION_LANES + l;
                if (index >= lanes->low[l] && index <= lanes->high[l])
                    o[c * ATTENTION_LANES + l] += scalar_load(p, at, pairs ? TN_BF16 : TN_F32) * value;
            }
        }
    }
}

static void mix(many_item *x, many_block *block, int64_t tile, const attention_part *part)
{
    const attention_layer *layer = x->job->layer;
    const attention_kernels *kernels = &layer->kernels;
    int64_t o_group = x->m.o_rows * ATTENTION_LANES;
    float *o = x->m.o + tile * ATTENTION_GROUPS * o_group;
    size_t element = panel_element(layer), panel = ATTENTION_KEYS * ATTENTION_LANES * element;
    if (!part->full && !block->checked) {
        block->checked = true;
        if (!kernels->finite(block->v_from, block->v_step, layer->dtype, block->keys.count, layer->dv))
            clean_values(x, block);
    }
    attention_operand values = block->v;
    values.data = (const char *)values.data + (size_t)(part->from * values.step) * element;
    kernels->mix(&values, layer->dv, part->count, x->m.p, ATTENTION_KEYS * ATTENTION_LANES, x->tile[tile].groups, o,
                 o_group);
    for (int32_t g = 0; block->clean && g < x->tile[tile].groups; g++)
        add_odd(x, block, part, &x->m.lanes[tile * ATTENTION_GROUPS + g], x->m.p + (size_t)g * panel, o + g * o_group);
}

/* All keys there are. */
static void do_as_eager(many_item *x, const many_block *block, int64_t tile, int32_t group, const attention_part *part)
{
    const attention_layer *layer = x->job->layer;
    attention_rule rule = {
        .dtype = layer->dtype, .scale = layer->natural, .softcap = layer->softcap, .has_sink = layer->sinks != NULL};
    for (int64_t l = 0; rule.has_sink && l < ATTENTION_LANES; l++) {
        int64_t row = x->item->first + tile * ATTENTION_ROWS + group * ATTENTION_LANES + l;
        rule.sink[l] =
            scalar_load(layer->sinks->data, attention_head(layer, x->item->kv_head, row), layer->sinks->dtype);
    }
    const int64_t panel = group * ATTENTION_KEYS * ATTENTION_LANES;
    layer->kernels.as_eager(&x->m.lanes[tile * ATTENTION_GROUPS + group], &rule, block->keys.index + part->from,
                            part->count, x->m.scores + panel, (float *)(void *)x->m.p + panel);
}

/* What a tile sees of a block. */
static void do_part(many_item *x, many_block *block, int64_t tile, const attention_part *part)
{
    const attention_layer *layer = x->job->layer;
    const attention_kernels *kernels = &layer->kernels;
    const int64_t scores_group = ATTENTION_KEYS * ATTENTION_LANES;
    int32_t groups = x->tile[tile].groups;
    size_t element = panel_element(layer), panel = ATTENTION_GROUPS * (size_t)(x->m.depth * ATTENTION_LANES) * element;
    attention_operand keys = block->k;
    keys.data = (const char *)keys.data + (size_t)(part->from * keys.row) * element;
    kernels->scores(&keys, part->count, x->m.depth, x->m.q + (size_t)tile * panel, groups, x->m.scores);
    for (int32_t g = 0; g < groups; g++) {
        attention_lanes *lanes = &x->m.lanes[tile * ATTENTION_GROUPS + g];
        float *scores = x->m.scores + g * scores_group;
        if (x->as_eager) {
            do_as_eager(x, block, tile, g, part);
            continue;
        }
        if (x->cap_out != 0.0f)
            kernels->cap(scores, part->count * ATTENTION_LANES, x->cap_in, x->cap_out);
        if (!part->full)
            kernels->mask(lanes, block->keys.index + part->from, part->count, scores);
        for (int l = 0; part->full && l < ATTENTION_LANES; l++)
            lanes->seen[l] = 1;
        int64_t count = attention_up(part->count, ATTENTION_STEP);
        for (int64_t i = part->count * ATTENTION_LANES; i < count * ATTENTION_LANES; i++)
            scores[i] = -INFINITY;
        if (kernels->soften(lanes, x->scale, count, scores, x->m.p + (size_t)(g * scores_group) * element))
            kernels->rescale(lanes->factor, layer->dv,
                             x->m.o + (tile * ATTENTION_GROUPS + g) * x->m.o_rows * ATTENTION_LANES);
    }
    mix(x, block, tile, part);
}

static void do_tile(many_item *x, many_block *block, int64_t tile)
{
    const attention_job *job = x->job;
    const int64_t span = block->keys.position / ATTENTION_SPAN;
    attention_part part;
    if (!attention_see(&x->tile[tile].bounds, &block->keys, &part))
        return;
    if (x->tile[tile].span >= 0 && x->tile[tile].span != span)
        join(x, tile);
    x->tile[tile].span = span;
    if (!block->k.data) {
        int64_t b = x->item->b, head = x->item->kv_head, count = block->keys.count;
        block->k_from = attention_bring(job->k, b, head, &block->keys, 0, count, x->m.moved_k, &block->k_step);
        block->v_from = attention_bring(job->v, b, head, &block->keys, 0, count, x->m.moved_v, &block->v_step);
        block->k = keys_of(x, block);
        block->v = values_of(x, block);
    }
    do_part(x, block, tile, &part);
}

static void finish_group(const many_item *x, int64_t tile, int32_t group)
{
    const attention_job *job = x->job;
    const attention_layer *layer = job->layer;
    int64_t at = tile * ATTENTION_GROUPS + group, first = group * ATTENTION_LANES;
    const attention_lanes *lanes = &x->m.lanes[at];
    const bool joined = x->tile[tile].joined;
    const float *max = joined ? x->m.all_max + at * ATTENTION_LANES : lanes->max;
    const float *sum = joined ? x->m.all_sum + at * ATTENTION_LANES : lanes->sum;
    int32_t rows = x->tile[tile].rows - (int32_t)first;
    rows = rows < ATTENTION_LANES ? rows : ATTENTION_LANES;
    _Alignas(64) float factor[ATTENTION_LANES] = {0};
    char *to[ATTENTION_LANES];
    for (int32_t l = 0; l < rows; l++) {
        int64_t row = x->item->first + tile * ATTENTION_ROWS + first + l;
        int64_t head = attention_head(layer, x->item->kv_head, row);
        factor[l] = 1.0f;
        if (job->pieces > 1) {
            float *partial = attention_partial(job, x->item, x->item->kv_head, row);
            partial[PARTIAL_MAX] = max[l];
            partial[PARTIAL_SUM] = sum[l];
            partial[PARTIAL_SEEN] = (float)lanes->seen[l];
            to[l] = (char *)(partial + PARTIAL_O);
        } else {
            factor[l] = x->as_eager ? 1.0f : attention_factor(layer, head, max[l], sum[l], lanes->seen[l]);
            to[l] = attention_result(job, x->item->b, x->item->kv_head, row);
            to[l] = to[l] ? to[l] : x->m.spare;
        }
    }
    layer->kernels.store((joined ? x->m.all_o : x->m.o) + at * x->m.o_rows * ATTENTION_LANES, factor, layer->dv,
                         job->pieces > 1 ? TN_F32 : layer->dtype, rows, to);
}

/* What the item's rows see: from the first to the last position. */
static attention_cursor find_range(const many_item *x, int64_t *last)
{
    int64_t low = INT64_MAX, high = -1;
    for (int64_t t = 0; t < x->tiles; t++) {
        const attention_bounds *bounds = &x->tile[t].bounds;
        low = bounds->lowest < low ? bounds->lowest : low;
        high = bounds->highest > high ? bounds->highest : high;
    }
    *last = high < x->item->last ? high : x->item->last;
    return (attention_cursor){low > x->item->from ? low : x->item->from, 0};
}

void attention_many(const attention_job *job, const attention_item *item, const attention_map *map, char *memory)
{
    const attention_layer *layer = job->layer;
    many_item x = {.job = job, .item = item, .m = layout(layer, memory), .as_eager = job->as_eager};
    const int64_t size = job->as_eager && !map->by_slot ? ATTENTION_SMALL : attention_block(layer);
    int64_t last;
    many_block block;
    attention_cap(layer, &x.scale, &x.cap_in, &x.cap_out);
    start(&x);
    attention_cursor at = find_range(&x, &last);
    if (layer->kernels.begin)
        layer->kernels.begin();
    while (attention_next_keys(map, &at, last, size, &block.keys)) {
        block.k.data = NULL;
        block.checked = block.clean = false;
        /* Eager's sums are of all keys at once; where positions occur twice there may be more than a block. */
        x.as_eager = x.as_eager && (map->by_slot ? at.slot >= map->slots : at.position > last);
        for (int64_t t = 0; t < x.tiles; t++)
            do_tile(&x, &block, t);
    }
    if (layer->kernels.end)
        layer->kernels.end();
    for (int64_t t = 0; t < x.tiles; t++) {
        if (x.tile[t].joined)
            join(&x, t);
        for (int32_t g = 0; g < x.tile[t].groups; g++)
            finish_group(&x, t, g);
    }
}
