/* Few rows, as in decoding: each key and value is read once, by blocks that stay in the second cache, of these some
 * keys of head after head, as they lie, for the rows of all tokens. Values that a token does not see are not read. */
#include "attention_run.h"
#include "scratch.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Of [heads][rows]: queries, scores and then probabilities, o, max and sum of the span, and of the spans before it. */
typedef struct few_memory {
    char *q;
    float *x, *o, *max, *sum, *all_o, *all_max, *all_sum;
    char *moved; /* keys or values of a block that do not lie side by side                           */
    int64_t q_row, o_row;
    size_t bytes;
} few_memory;

/* What a token sees: of all, and of the block of the moment. */
typedef struct few_token {
    int32_t low, high;
    bool full; /* all of it                                                                          */
} few_token;

typedef struct few_item {
    const attention_job *job;
    const attention_item *item;
    few_memory m;
    few_token token[ATTENTION_FEW];
    attention_keys keys;
    int64_t rows, span, from, end; /* rows of all heads; the keys that some token sees               */
    bool joined, seen[ATTENTION_FEW];
    float scale, cap_in, cap_out;
} few_item;

static few_memory layout(const attention_layer *layer, char *base)
{
    few_memory m = {.q_row = attention_up(layer->d, ATTENTION_STEP), .o_row = attention_up(layer->dv, ATTENTION_STEP)};
    size_t rows = ATTENTION_FEW * (size_t)layer->kv_heads,
           width = (size_t)(layer->d > layer->dv ? layer->d : layer->dv);
    size_t q = scratch_take(&m.bytes, rows * (size_t)m.q_row * sizeof(float));
    size_t x = scratch_take(&m.bytes, rows * ATTENTION_KEYS * sizeof(float));
    size_t o = scratch_take(&m.bytes, 2 * rows * (size_t)m.o_row * sizeof(float));
    size_t state = scratch_take(&m.bytes, 4 * rows * sizeof(float));
    size_t moved = scratch_take(&m.bytes, ATTENTION_KEYS * width * sizeof(float));
    if (base) {
        m.q = base + q;
        m.x = (float *)(void *)(base + x);
        m.o = (float *)(void *)(base + o);
        m.all_o = m.o + rows * (size_t)m.o_row;
        m.max = (float *)(void *)(base + state);
        m.sum = m.max + rows;
        m.all_max = m.sum + rows;
        m.all_sum = m.all_max + rows;
        m.moved = base + moved;
    }
    return m;
}

size_t attention_few_bytes(const attention_layer *layer)
{
    return layer->group <= layer->kernels.few_rows ? layout(layer, NULL).bytes : 0;
}

static size_t query_element(const attention_layer *layer)
{
    return layer->kernels.pairs ? sizeof(uint16_t) : sizeof(float);
}

static void clear(const few_item *x, float *max, float *sum, float *o)
{
    for (int64_t i = 0; i < x->rows; i++) {
        max[i] = -FLT_MAX;
        sum[i] = 0.0f;
    }
    memset(o, 0, (size_t)(x->rows * x->m.o_row) * sizeof(float));
}

static void start(few_item *x)
{
    const attention_job *job = x->job;
    const attention_layer *layer = job->layer;
    size_t row = (size_t)x->m.q_row * query_element(layer);
    for (int64_t i = 0; i < x->rows; i++) {
        int64_t r = i % job->rows, head = attention_head(layer, x->item->kv_head + i / job->rows, r);
        const char *q = attention_at(job->q, x->item->b, job->first_token + attention_token(layer, r), head);
        char *to = x->m.q + (size_t)i * row;
        if (layer->kernels.pairs)
            memcpy(memset(to, 0, row), q, (size_t)layer->d * sizeof(uint16_t));
        else
            layer->kernels.widen(q, 0, layer->dtype, 1, layer->d, (float *)(void *)to);
    }
    for (int64_t t = 0; t < job->tokens; t++) {
        int32_t q = attention_position(job->q_index, x->item->b, job->first_token + t);
        x->token[t].high = attention_takes(job, q) ? q : -1;
        x->token[t].low = attention_lowest(layer, x->token[t].high);
    }
    clear(x, x->m.max, x->m.sum, x->m.o);
    attention_cap(layer, &x->scale, &x->cap_in, &x->cap_out);
}

/* What the span left, to what the spans before it left. */
static void join(few_item *x)
{
    const few_memory *m = &x->m;
    if (!x->joined)
        clear(x, m->all_max, m->all_sum, m->all_o);
    x->joined = true;
    for (int64_t i = 0; i < x->rows; i++) {
        float before[ATTENTION_LANES], factor[ATTENTION_LANES];
        attention_join(&m->all_max[i], &m->all_sum[i], m->max[i], m->sum[i], before, factor);
        for (int l = 1; l < ATTENTION_LANES; l++) {
            before[l] = *before;
            factor[l] = *factor;
        }
        x->job->layer->kernels.join(m->all_o + i * m->o_row, before, m->o + i * m->o_row, factor,
                                    m->o_row / ATTENTION_LANES);
    }
    clear(x, m->max, m->sum, m->o);
}

static bool sees(const few_token *token, int32_t index)
{
    return index >= token->low && index <= token->high;
}

/* Which keys of the block tokens see. */
static bool look(few_item *x)
{
    x->from = x->keys.count;
    x->end = 0;
    for (int64_t t = 0; t < x->job->tokens; t++)
        for (int64_t s = 0; s < x->keys.count; s++)
            if (sees(&x->token[t], x->keys.index[s])) {
                x->from = s < x->from ? s : x->from;
                x->end = s >= x->end ? s + 1 : x->end;
                x->seen[t] = true;
            }
    x->from -= x->from % ATTENTION_STEP;
    for (int64_t t = 0; t < x->job->tokens; t++) {
        x->token[t].full = true;
        for (int64_t s = x->from; s < x->end; s++)
            x->token[t].full &= sees(&x->token[t], x->keys.index[s]);
    }
    return x->from < x->end;
}

/* Scores of a row become probabilities. */
static void soften(few_item *x, int64_t row, const few_token *token)
{
    const attention_kernels *kernels = &x->job->layer->kernels;
    int64_t end = attention_up(x->end, ATTENTION_STEP);
    float *scores = x->m.x + row * ATTENTION_KEYS, *o = x->m.o + row * x->m.o_row;
    if (x->cap_out != 0.0f)
        kernels->cap(scores + x->from, attention_up(x->end, ATTENTION_LANES) - x->from, x->cap_in, x->cap_out);
    for (int64_t s = x->from; !token->full && s < x->end; s++)
        scores[s] = sees(token, x->keys.index[s]) ? scores[s] : -INFINITY;
    for (int64_t s = x->end; s < end; s++)
        scores[s] = -INFINITY;
    float factor = kernels->few_soften(&x->m.max[row], &x->m.sum[row], x->scale, x->from, end, scores);
    for (int64_t i = 0; factor != 1.0f && i < x->m.o_row; i++)
        o[i] *= factor;
}

/* The values that a token sees, in runs. */
static void mix(const few_item *x, const few_token *token, attention_few *values, int64_t end, int64_t row)
{
    const float *p = x->m.x + row * ATTENTION_KEYS;
    float *o = x->m.o + row * x->m.o_row;
    for (int64_t s = values->from; s < end; s = values->end + 1) {
        values->from = s;
        values->end = token->full ? end : s;
        while (values->end < end && sees(token, x->keys.index[values->end]))
            values->end++;
        if (values->end > s)
            x->job->layer->kernels.few_mix(values, p, o);
    }
}

/* What will be read next, as if its first row were the row `from`: of the next head; some keys later of the first one;
 * of values, or of the next block's keys. */
static void ask(const few_item *x, attention_few *f, int64_t head, int64_t from, bool second)
{
    const bool last = head + 1 == x->item->heads, turn = last && from + ATTENTION_FEW_KEYS >= x->end;
    const tn_tensor *t = second == turn ? x->job->k : x->job->v;
    int64_t to = !last ? from : !turn ? from + ATTENTION_FEW_KEYS : second ? x->keys.count : x->from;
    f->next = f->data;
    f->next_step = f->step;
    if (x->keys.first < 0)
        return;
    f->next_step = attention_step(t);
    f->next = attention_at(t, x->item->b, x->keys.first + to - from, x->item->kv_head + (last ? 0 : head + 1));
}

/* Some keys of the block by all rows, or their values. */
static void do_keys(few_item *x, int64_t from, bool second)
{
    const attention_job *job = x->job;
    const attention_layer *layer = job->layer;
    const tn_tensor *t = second ? job->v : job->k;
    int64_t end = from + ATTENTION_FEW_KEYS < x->end ? from + ATTENTION_FEW_KEYS : x->end;
    attention_few f = {.dtype = layer->dtype, .width = second ? layer->dv : layer->d, .count = x->keys.count};
    for (int64_t head = 0; head < x->item->heads; head++) {
        f.data = attention_bring(t, x->item->b, x->item->kv_head + head, &x->keys, from, end, x->m.moved, &f.step);
        ask(x, &f, head, from, second);
        f.from = from;
        f.end = end;
        f.row = second ? x->m.o_row : x->m.q_row;
        f.rows = second ? layer->group : job->rows;
        int64_t row = head * job->rows;
        if (!second)
            layer->kernels.few_scores(&f, x->m.q + (size_t)(row * x->m.q_row) * query_element(layer),
                                      x->m.x + row * ATTENTION_KEYS);
        for (int64_t i = 0; second && i < job->tokens; i++, f.from = from)
            mix(x, &x->token[i], &f, end, row + i * layer->group);
    }
}

static void do_block(few_item *x)
{
    if (!look(x))
        return;
    for (int64_t s = x->from; s < x->end; s += ATTENTION_FEW_KEYS)
        do_keys(x, s, false);
    for (int64_t i = 0; i < x->rows; i++)
        soften(x, i, &x->token[attention_token(x->job->layer, i % x->job->rows)]);
    for (int64_t s = x->from; s < x->end; s += ATTENTION_FEW_KEYS)
        do_keys(x, s, true);
}

static void finish_row(const few_item *x, int64_t i)
{
    const attention_job *job = x->job;
    const attention_layer *layer = job->layer;
    int64_t r = i % job->rows, kv_head = x->item->kv_head + i / job->rows;
    bool seen = x->seen[attention_token(layer, r)];
    const float *o = (x->joined ? x->m.all_o : x->m.o) + i * x->m.o_row;
    float max = x->joined ? x->m.all_max[i] : x->m.max[i], sum = x->joined ? x->m.all_sum[i] : x->m.sum[i];
    if (job->pieces > 1) {
        float *to = attention_partial(job, x->item, kv_head, r);
        to[PARTIAL_MAX] = max;
        to[PARTIAL_SUM] = sum;
        to[PARTIAL_SEEN] = seen;
        memcpy(to + PARTIAL_O, o, (size_t)attention_up(layer->dv, ATTENTION_LANES) * sizeof *o);
        return;
    }
    char *to = attention_result(job, x->item->b, kv_head, r);
    if (to)
        layer->kernels.store_row(o, attention_factor(layer, attention_head(layer, kv_head, r), max, sum, seen),
                                 layer->dv, layer->dtype, to);
}

void attention_few_rows(const attention_job *job, const attention_item *item, const attention_map *map, char *memory)
{
    few_item x = {.job = job, .item = item, .rows = item->heads * job->rows, .span = -1};
    x.m = layout(job->layer, memory);
    start(&x);
    attention_cursor at = {item->from, 0};
    int64_t last = -1, low = INT64_MAX;
    for (int64_t t = 0; t < job->tokens; t++) {
        last = x.token[t].high > last ? x.token[t].high : last;
        low = x.token[t].high >= 0 && x.token[t].low < low ? x.token[t].low : low;
    }
    at.position = low > at.position ? low : at.position;
    last = item->last < last ? item->last : last;
    while (attention_next_keys(map, &at, last, attention_block(job->layer), &x.keys)) {
        if (x.span >= 0 && x.span != x.keys.position / ATTENTION_SPAN)
            join(&x);
        x.span = x.keys.position / ATTENTION_SPAN;
        do_block(&x);
    }
    if (x.joined)
        join(&x);
    for (int64_t i = 0; i < x.rows; i++)
        finish_row(&x, i);
}
