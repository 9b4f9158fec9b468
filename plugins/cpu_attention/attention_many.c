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
    char *p;                /* scores and probabilities: [groups][ATTENTION_KEYS][16]                               */
    float *o;               /* [tiles][groups][o_rows][16]                                                  */
    char *k, *v;            /* of a block, as the products want them                                        */
    attention_lanes *lanes; /* [tiles][groups]                                                       */
    int64_t depth, o_rows;
    size_t bytes;
} many_memory;

/* Probabilities of 16 bits are rounded, and what is rounded is divided by the sum already: so a first sweep over the
 * keys finds the sums, and a second one mixes. In f32 one sweep does both. */
typedef enum many_sweep { SWEEP_BOTH, SWEEP_SUMS, SWEEP_MIX } many_sweep;

/* The state of an item. */
typedef struct many_item {
    const attention_job *job;
    const attention_item *item;
    many_memory m;
    int64_t tiles, block;
    struct {
        int32_t groups, rows;
        attention_bounds bounds;
    } tile[ATTENTION_TILES];
    float scale, cap_in, cap_out;
    attention_rounding rounding;
    many_sweep sweep;
} many_item;

/* A block of keys: what products read of it. */
typedef struct many_block {
    attention_keys keys;
    const char *v_from; /* values as they lie                                                        */
    attention_operand k, v;
    bool checked, finite;
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
    size_t states = scratch_take(&m.bytes, ATTENTION_TILES * ATTENTION_GROUPS * sizeof(attention_lanes));
    if (base) {
        m.q = base + q;
        m.scores = (float *)(void *)(base + scores);
        m.p = base + p;
        m.o = (float *)(void *)(base + o);
        m.k = base + k;
        m.v = base + v;
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

/* Queries, positions and empty results of one group of lanes; lanes without a row repeat the last one. */
static void start_group(many_item *x, int64_t tile, int32_t group)
{
    const attention_layer *layer = x->job->layer;
    int64_t at = tile * ATTENTION_GROUPS + group;
    attention_lanes *lanes = &x->m.lanes[at];
    const char *row[ATTENTION_LANES];
    for (int64_t l = 0; l < ATTENTION_LANES; l++) {
        int64_t r = tile * ATTENTION_ROWS + group * ATTENTION_LANES + l;
        r = x->item->first + (r < x->item->rows ? r : x->item->rows - 1);
        int64_t t = attention_token(layer, r);
        int32_t high = attention_position(x->job->q_index, x->item->b, t), low = attention_lowest(layer, high);
        row[l] = attention_at(x->job->q, x->item->b, t, attention_head(layer, x->item->kv_head, r));
        lanes->max[l] = -FLT_MAX;
        lanes->sum[l] = 0.0f;
        lanes->seen[l] = 0;
        lanes->low[l] = low;
        lanes->high[l] = high;
        attention_bound(&x->tile[tile].bounds, low, high);
    }
    size_t panel = (size_t)(x->m.depth * ATTENTION_LANES) * panel_element(layer);
    layer->kernels.queries(row, layer->dtype, layer->d, x->m.q + (size_t)at * panel);
    memset(x->m.o + at * x->m.o_rows * ATTENTION_LANES, 0, (size_t)(x->m.o_rows * ATTENTION_LANES) * sizeof(float));
}

static void start(many_item *x)
{
    x->tiles = (x->item->rows + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
    for (int64_t t = 0; t < x->tiles; t++) {
        int64_t left = x->item->rows - t * ATTENTION_ROWS, rows = left < ATTENTION_ROWS ? left : ATTENTION_ROWS;
        x->tile[t].rows = (int32_t)rows;
        x->tile[t].groups = (int32_t)((rows + ATTENTION_LANES - 1) / ATTENTION_LANES);
        x->tile[t].bounds = attention_no_bounds();
        for (int32_t g = 0; g < x->tile[t].groups; g++)
            start_group(x, t, g);
    }
}

/* The block's keys as rows that are filled up to what products read. */
static attention_operand keys_of(many_item *x, const many_block *block)
{
    const attention_layer *layer = x->job->layer;
    const attention_kernels *kernels = &layer->kernels;
    const char *from = attention_at(x->job->k, x->item->b, block->keys.first, x->item->kv_head);
    int64_t step = attention_step(x->job->k);
    bool whole = layer->d % kernels->depth == 0 && block->keys.count % kernels->rows == 0;
    /* Rows that are far from each other crowd into few lines of the first cache. */
    bool near = !kernels->pairs || step == layer->d * 2;
    if (whole && near && layer->dtype == (kernels->pairs ? TN_BF16 : TN_F32))
        return (attention_operand){from, x->job->k->stride[1], 1};
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
    const char *from = block->v_from;
    int64_t step = attention_step(x->job->v);
    if (kernels->pairs) {
        kernels->turn(from, step, block->keys.count, layer->dv, (uint16_t *)(void *)x->m.v);
        return (attention_operand){x->m.v, ATTENTION_KEYS, 1};
    }
    if (layer->dtype == TN_F32)
        return (attention_operand){from, 1, x->job->v->stride[1]};
    /* Values that are the beginning of keys are wide already. */
    if (from == attention_at(x->job->k, x->item->b, block->keys.first, x->item->kv_head) &&
        step == attention_step(x->job->k) && layer->dv <= layer->d)
        return (attention_operand){x->m.k, 1, layer->d};
    kernels->widen(from, step, layer->dtype, block->keys.count, layer->dv, (float *)(void *)x->m.v);
    return (attention_operand){x->m.v, 1, layer->dv};
}

/* Where some see a key and others do not: a value that is no number must not reach these through 0 times it. */
static void mix_carefully(const many_item *x, const many_block *block, const attention_part *part, const char *p,
                          float *o)
{
    const attention_layer *layer = x->job->layer;
    for (int64_t s = 0; s < part->count; s++) {
        const char *v = block->v_from + (part->from + s) * attention_step(x->job->v);
        for (int64_t l = 0; l < ATTENTION_LANES; l++) {
            bool pairs = layer->kernels.pairs;
            int64_t at = pairs ? (s / 2 * ATTENTION_LANES + l) * 2 + s % 2 : s * ATTENTION_LANES + l;
            float one = scalar_load(p, at, pairs ? TN_BF16 : TN_F32);
            for (int64_t c = 0; one != 0.0f && c < layer->dv; c++)
                o[c * ATTENTION_LANES + l] += one * scalar_load(v, c, layer->dtype);
        }
    }
}

static void mix(many_item *x, many_block *block, int64_t tile, const attention_part *part)
{
    const attention_layer *layer = x->job->layer;
    const attention_kernels *kernels = &layer->kernels;
    int64_t o_group = x->m.o_rows * ATTENTION_LANES;
    float *o = x->m.o + tile * ATTENTION_GROUPS * o_group;
    if (!part->full && !block->checked) {
        block->checked = true;
        block->finite =
            kernels->finite(block->v_from, attention_step(x->job->v), layer->dtype, block->keys.count, layer->dv);
    }
    if (part->full || block->finite) {
        attention_operand values = block->v;
        size_t element = panel_element(layer);
        values.data = (const char *)values.data + (size_t)(part->from * values.step) * element;
        kernels->mix(&values, layer->dv, part->count, x->m.p, ATTENTION_KEYS * ATTENTION_LANES, x->tile[tile].groups, o,
                     o_group);
        return;
    }
    size_t panel = ATTENTION_KEYS * ATTENTION_LANES * panel_element(layer);
    for (int32_t g = 0; g < x->tile[tile].groups; g++)
        mix_carefully(x, block, part, x->m.p + (size_t)g * panel, o + g * o_group);
}

/* All keys there are. */
static void do_as_eager(many_item *x, const many_block *block, int64_t tile, int32_t group, const attention_part *part)
{
    const attention_layer *layer = x->job->layer;
    attention_rule rule = {.rounding = x->rounding, .has_sink = layer->sinks != NULL};
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
        if (x->job->as_eager) {
            do_as_eager(x, block, tile, g, part);
            continue;
        }
        if (x->cap_out != 0.0f)
            kernels->cap(scores, part->count * ATTENTION_LANES, x->cap_in, x->cap_out);
        if (layer->dtype != TN_F32)
            kernels->round(scores, part->count * ATTENTION_LANES, &x->rounding);
        if (!part->full)
            kernels->mask(lanes, block->keys.index + part->from, part->count, scores);
        for (int l = 0; part->full && l < ATTENTION_LANES; l++)
            lanes->seen[l] = 1;
        if (x->sweep == SWEEP_SUMS) {
            kernels->total(lanes, x->scale, part->count, scores);
            continue;
        }
        char *p = x->m.p + (size_t)(g * scores_group) * element;
        if (kernels->soften(lanes, x->scale, part->count, scores, p) && x->sweep == SWEEP_BOTH)
            kernels->rescale(lanes->factor, layer->dv,
                             x->m.o + (tile * ATTENTION_GROUPS + g) * x->m.o_rows * ATTENTION_LANES);
        if (x->sweep == SWEEP_MIX && !kernels->pairs)
            kernels->round((float *)(void *)p, part->count * ATTENTION_LANES,
                           &(attention_rounding){layer->dtype, 1.0f, 0.0f});
    }
    if (x->sweep != SWEEP_SUMS)
        mix(x, block, tile, part);
}

static void do_tile(many_item *x, many_block *block, int64_t tile)
{
    attention_part part;
    if (!attention_see(&x->tile[tile].bounds, &block->keys, &part))
        return;
    if (!block->k.data) {
        block->k = keys_of(x, block);
        if (x->sweep != SWEEP_SUMS)
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
            partial[PARTIAL_MAX] = lanes->max[l];
            partial[PARTIAL_SUM] = lanes->sum[l];
            partial[PARTIAL_SEEN] = (float)lanes->seen[l];
            to[l] = (char *)(partial + PARTIAL_O);
        } else {
            bool divided = job->as_eager || x->sweep == SWEEP_MIX;
            factor[l] = divided ? (float)(lanes->seen[l] != 0)
                                : attention_factor(layer, head, lanes->max[l], lanes->sum[l], lanes->seen[l]);
            to[l] = attention_at(job->o, x->item->b, attention_token(layer, row), head);
        }
    }
    layer->kernels.store(x->m.o + at * x->m.o_rows * ATTENTION_LANES, factor, layer->dv,
                         job->pieces > 1 ? TN_F32 : layer->dtype, rows, to);
}

static void sweep(many_item *x, many_sweep which)
{
    const attention_item *item = x->item;
    x->sweep = which;
    for (int64_t first = item->key; first < item->key_end; first += x->block) {
        int64_t left = item->key_end - first;
        many_block block = {.v_from = attention_at(x->job->v, item->b, first, item->kv_head)};
        attention_look(x->job->kv_index, item->b, first, left < x->block ? left : x->block, &block.keys);
        for (int64_t t = 0; t < x->tiles; t++)
            do_tile(x, &block, t);
    }
}

/* From now on 2^(score - max) is what a probability is divided by its sum, with the sink's share. */
static void settle(many_item *x, int64_t tile, int32_t group)
{
    const attention_layer *layer = x->job->layer;
    attention_lanes *lanes = &x->m.lanes[tile * ATTENTION_GROUPS + group];
    int32_t first = group * ATTENTION_LANES;
    for (int32_t l = 0; l < ATTENTION_LANES && first + l < x->tile[tile].rows; l++) {
        int64_t row = x->item->first + tile * ATTENTION_ROWS + first + l;
        if (lanes->seen[l])
            lanes->max[l] -= log2f(attention_factor(layer, attention_head(layer, x->item->kv_head, row), lanes->max[l],
                                                    lanes->sum[l], true));
    }
}

void attention_many(const attention_job *job, const attention_item *item, char *memory)
{
    const attention_layer *layer = job->layer;
    many_item x = {.job = job, .item = item, .m = layout(layer, memory)};
    int64_t width = layer->d + layer->dv;
    x.block = width <= 256 ? ATTENTION_KEYS : width <= 640 ? ATTENTION_KEYS / 2 : ATTENTION_KEYS / 4;
    x.rounding = attention_scoring(layer, &x.scale, &x.cap_in, &x.cap_out);
    start(&x);
    if (layer->kernels.begin)
        layer->kernels.begin();
    /* What pieces leave to be joined has its sums only then. */
    bool twice = layer->dtype != TN_F32 && job->pieces == 1 && !job->as_eager;
    sweep(&x, twice ? SWEEP_SUMS : SWEEP_BOTH);
    for (int64_t t = 0; twice && t < x.tiles; t++)
        for (int32_t g = 0; g < x.tile[t].groups; g++)
            settle(&x, t, g);
    if (twice)
        sweep(&x, SWEEP_MIX);
    if (layer->kernels.end)
        layer->kernels.end();
    for (int64_t t = 0; t < x.tiles; t++)
        for (int32_t g = 0; g < x.tile[t].groups; g++)
            finish_group(&x, t, g);
}
