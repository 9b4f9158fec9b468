/* MOE_EXPERTS for up to eight tokens: the rows of all experts in use form one list, which the threads do piece by
 * piece, first those of gates and ups, then those of the second products. Activations are rounded to int8 once for each
 * product; rows that are no finite numbers meet unpacked weights instead. */
#include "experts.h"

#include "product_mlp.h"
#include "product_parts.h"
#include "scratch.h"

#include <math.h>
#include <string.h>

/* Columns of a result; slots that share unpacked codes. */
enum { COLUMNS = 64, SLOTS = PRODUCT_FEW_TOKENS };

/* Rows that were or will be rounded. */
typedef struct rounded_rows {
    ints_group *rows; /* the terms of each                                                              */
    float *wide;
    int32_t *finite;
    int64_t length;
} rounded_rows;

typedef struct experts_run {
    const experts_layer *layer;
    const tn_call *call;
    int64_t first, tokens, slots; /* of this block                                                        */
    int64_t all;                  /* tokens of the call                                                   */
    rounded_rows x, h;            /* by token; by slot                                                    */
    float *results, *weights;     /* [slots, hidden]; [slots]                                             */
    int32_t *order, *begin;       /* slots by expert, and where each expert's begin                       */
    int64_t groups;               /* experts in use                                                       */
    float *unpacked;              /* a row for each thread                                                */
    product_ranges rows[2];       /* of both products                                                     */
} experts_run;

void experts_open(experts_layer *layer, const tn_site *site, uint64_t flags, int32_t terms, bool many_ints)
{
    *layer = (experts_layer){.site = site,
                             .hidden = site->dim[TN_DIM_HIDDEN],
                             .inter = site->dim[TN_DIM_INTER],
                             .top_k = site->dim[TN_DIM_TOP_K],
                             .terms = terms,
                             .many_ints = many_ints};
    product_kernels_init(&layer->kernels, (tn_dtype)site->meaning[TN_AXIS_DTYPE], flags);
    codes_kernels_init(&layer->unpacks, flags);
}

tn_status experts_check(const experts_layer *layer, uint64_t dtypes, tn_error *err)
{
    static const tn_role roles[] = {TN_ROLE_GATE, TN_ROLE_UP, TN_ROLE_DOWN};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        for (int64_t e = 0; e < layer->site->param[roles[i]].count; e++) {
            codes c;
            tn_status status = codes_open(&c, layer->site, roles[i], e, err);
            if (status != TN_OK)
                return status;
            if (!(dtypes >> c.dtype & 1))
                return tn_fail(err, TN_DECLINED, layer->site->path, "%s: %s codes are not multiplied so here",
                               tn_role_name(roles[i]), tn_dtype_name(c.dtype));
        }
    return TN_OK;
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

static void take_rows(rounded_rows *r, size_t *at, char *base, int64_t count, int32_t terms, int64_t length)
{
    size_t rows = scratch_take(at, (size_t)(count * terms * ints_space(length)));
    size_t wide = scratch_take(at, (size_t)(count * length) * sizeof(float));
    size_t finite = scratch_take(at, (size_t)count * sizeof(int32_t));
    r->length = length;
    if (!base)
        return;
    r->rows = (ints_group *)(void *)(base + rows);
    r->wide = (float *)(void *)(base + wide);
    r->finite = (int32_t *)(void *)(base + finite);
}

static int64_t longest(const experts_layer *layer)
{
    return layer->hidden > layer->inter ? layer->hidden : layer->inter;
}

/* base NULL: only the size counts. */
static size_t layout(experts_run *run, const experts_layer *layer, int32_t threads, char *base)
{
    size_t at = 0;
    int64_t slots = PRODUCT_FEW_TOKENS * layer->top_k;
    take_rows(&run->x, &at, base, PRODUCT_FEW_TOKENS, layer->terms, layer->hidden);
    take_rows(&run->h, &at, base, slots, layer->terms, layer->inter);
    size_t results = scratch_take(&at, (size_t)(slots * layer->hidden) * sizeof(float));
    size_t weights = scratch_take(&at, (size_t)slots * sizeof(float));
    size_t order = scratch_take(&at, (size_t)slots * sizeof(int32_t));
    size_t begin = scratch_take(&at, (size_t)(slots + 1) * sizeof(int32_t));
    size_t unpacked = scratch_take(&at, (size_t)threads * (size_t)longest(layer) * sizeof(float));
    if (base) {
        run->results = (float *)(void *)(base + results);
        run->weights = (float *)(void *)(base + weights);
        run->order = (int32_t *)(void *)(base + order);
        run->begin = (int32_t *)(void *)(base + begin);
        run->unpacked = (float *)(void *)(base + unpacked);
    }
    return at;
}

size_t experts_scratch_size(const experts_layer *layer, int64_t max_tokens, int32_t threads)
{
    experts_run run = {0};
    size_t few = layout(&run, layer, threads, NULL), many = experts_many_scratch_size(layer, max_tokens, threads);
    return few > many ? few : many;
}

/* ---- routes ----------------------------------------------------------------------------------------------------- */

int32_t experts_id(const experts_layer *layer, const tn_call *call, int64_t first, int64_t slot)
{
    int32_t id;
    const char *ids = product_row(&call->in[2], first + slot / layer->top_k);
    memcpy(&id, ids + slot % layer->top_k * (int64_t)sizeof id, sizeof id);
    return id;
}

static int32_t expert_of(const experts_run *run, int64_t slot)
{
    return experts_id(run->layer, run->call, run->first, slot);
}

static tn_status check_ids(const experts_run *run, tn_error *err)
{
    int64_t experts = run->layer->site->param[TN_ROLE_GATE].count;
    for (int64_t slot = 0; slot < run->all * run->layer->top_k; slot++) {
        int32_t id = expert_of(run, slot);
        if (id < 0 || id >= experts)
            return tn_fail(err, TN_E_INPUT, run->call->site->path,
                           "token %lld asks for expert %d, there are experts 0 to %lld; check the router",
                           (long long)(slot / run->layer->top_k), id, (long long)experts - 1);
    }
    return TN_OK;
}

void experts_weights(const experts_layer *layer, const tn_call *call, int64_t first, int64_t tokens, float *weights)
{
    const tn_tensor *from = &call->in[1];
    int64_t k = layer->top_k;
    for (int64_t t = 0; t < tokens; t++) {
        const void *row = product_row(from, first + t);
        if (from->dtype == TN_F32)
            memcpy(weights + t * k, row, (size_t)k * sizeof(float));
        else
            layer->kernels.widen(row, k, weights + t * k);
    }
}

/* Slots of an expert lie side by side in order, those of lower numbers first. */
static void sort_slots(experts_run *run)
{
    run->groups = 0;
    for (int64_t slot = 0; slot < run->slots; slot++) {
        int32_t id = expert_of(run, slot);
        int64_t at = slot;
        for (; at > 0 && expert_of(run, run->order[at - 1]) > id; at--)
            run->order[at] = run->order[at - 1];
        run->order[at] = (int32_t)slot;
    }
    for (int64_t i = 0; i < run->slots; i++)
        if (i == 0 || expert_of(run, run->order[i]) != expert_of(run, run->order[i - 1]))
            run->begin[run->groups++] = (int32_t)i;
    run->begin[run->groups] = (int32_t)run->slots;
}

/* ---- activations ------------------------------------------------------------------------------------------------ */

/* x += the biases of an expert from `first` on; n <= PRODUCT_FEW_ROWS. */
static void add_bias(const experts_layer *layer, tn_role role, int64_t expert, int64_t first, int64_t n, float *x)
{
    const tn_param *p = &layer->site->param[role];
    float bias[PRODUCT_FEW_ROWS];
    if (p->count == 0)
        return;
    const char *row =
        (const char *)p->tensors->data + expert * p->tensors->stride[0] * product_element(&layer->kernels);
    layer->kernels.widen(row + first * product_element(&layer->kernels), n, bias);
    for (int64_t i = 0; i < n; i++)
        x[i] += bias[i];
}

void experts_add_bias(const experts_layer *layer, int64_t expert, int64_t column, int64_t n, float *y)
{
    for (int64_t i = 0; i < n; i += PRODUCT_FEW_ROWS)
        add_bias(layer, TN_ROLE_DOWN_BIAS, expert, column + i, product_least(n - i, PRODUCT_FEW_ROWS), y + i);
}

/* The comparisons let a NaN through. */
static float within(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

void experts_glu(const experts_layer *layer, int64_t expert, int64_t f, int64_t n, float *gate, float *up, float *h)
{
    tn_act act = (tn_act)layer->site->meaning[TN_AXIS_ACT];
    const product_finish finish = {TN_F32, act, NULL};
    float limit = (float)layer->site->num[TN_NUM_LIMIT], alpha = (float)layer->site->num[TN_NUM_ALPHA];
    add_bias(layer, TN_ROLE_GATE_UP_BIAS, expert, f, n, gate);
    add_bias(layer, TN_ROLE_GATE_UP_BIAS, expert, layer->inter + f, n, up);
    if (act != TN_ACT_CLAMPED_SWIGLU) {
        layer->kernels.row_glu(gate, up, NULL, &finish, (int32_t)n, h);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        float g = within(gate[i], -INFINITY, limit);
        h[i] = (within(up[i], -limit, limit) + 1.0f) * (g / (1.0f + expf(-alpha * g)));
    }
}

/* ---- products --------------------------------------------------------------------------------------------------- */

/* Rounds one row of `wide`, which stays as it is. */
static void round_row(const experts_run *run, const rounded_rows *r, int64_t row, float *rest)
{
    ints_group *to = r->rows + row * run->layer->terms * (r->length / CODES_GROUP);
    r->finite[row] = experts_round(run->layer, r->wide + row * r->length, r->length, 0, 1, rest, to);
}

/* A stretch of slots and 16 rows of one matrix: sums[i * PRODUCT_FEW_ROWS + r]. */
typedef struct stretch {
    const int32_t *slots;
    int32_t count;
    int64_t row, rows;
    float *unpacked;
} stretch;

static void multiply(const experts_run *run, tn_role role, int64_t expert, const stretch *s, float *sums)
{
    const rounded_rows *from = role == TN_ROLE_DOWN ? &run->h : &run->x;
    const ints_group *rows[2 * SLOTS];
    int64_t number[SLOTS];
    int32_t terms = run->layer->terms;
    codes c;
    if (codes_open(&c, run->layer->site, role, expert, NULL) != TN_OK)
        return; /* plan has asked */
    for (int32_t i = 0; i < s->count; i++) {
        number[i] = role == TN_ROLE_DOWN ? s->slots[i] : s->slots[i] / run->layer->top_k;
        for (int32_t term = 0; term < terms; term++)
            rows[i * terms + term] = from->rows + (number[i] * terms + term) * (from->length / CODES_GROUP);
    }
    run->layer->unpacks.ints(&c, s->row, (int32_t)s->rows, from->length, rows, s->count * terms, sums);
    if (terms == 2)
        codes_add_terms(sums, s->count, PRODUCT_FEW_ROWS);
    for (int32_t i = 0; i < s->count; i++)
        if (!from->finite[number[i]])
            experts_multiply_plain(run->layer, &c, s->row, s->rows, from->wide + number[i] * from->length, from->length,
                                   s->unpacked, sums + i * PRODUCT_FEW_ROWS);
}

static void gate_up(const experts_run *run, int64_t expert, const stretch *s)
{
    float gate[2 * SLOTS * PRODUCT_FEW_ROWS] = {0}, up[2 * SLOTS * PRODUCT_FEW_ROWS] = {0};
    multiply(run, TN_ROLE_GATE, expert, s, gate);
    multiply(run, TN_ROLE_UP, expert, s, up);
    for (int32_t i = 0; i < s->count; i++)
        experts_glu(run->layer, expert, s->row, s->rows, gate + i * PRODUCT_FEW_ROWS, up + i * PRODUCT_FEW_ROWS,
                    run->h.wide + s->slots[i] * run->h.length + s->row);
}

static void down(const experts_run *run, int64_t expert, const stretch *s)
{
    float sums[2 * SLOTS * PRODUCT_FEW_ROWS] = {0};
    multiply(run, TN_ROLE_DOWN, expert, s, sums);
    for (int32_t i = 0; i < s->count; i++) {
        experts_add_bias(run->layer, expert, s->row, s->rows, sums + i * PRODUCT_FEW_ROWS);
        memcpy(run->results + s->slots[i] * run->layer->hidden + s->row, sums + i * PRODUCT_FEW_ROWS,
               (size_t)s->rows * sizeof *sums);
    }
}

/* Whoever is free takes the next piece of the list of all rows of the experts in use. */
static void all_rows(experts_run *run, bool second, int32_t thread, int32_t threads)
{
    int64_t rows = second ? run->layer->hidden : run->layer->inter, units = (rows + product_unit - 1) / product_unit;
    for (product_rows p;
         product_take_rows(&run->rows[second], run->groups * units * product_unit, thread, threads, &p);)
        for (int64_t unit = p.begin / product_unit; unit < p.end / product_unit; unit++) {
            int64_t group = unit / units, row = unit % units * product_unit, last = run->begin[group + 1];
            int32_t expert = expert_of(run, run->order[run->begin[group]]);
            for (int64_t i = run->begin[group]; i < last; i += SLOTS) {
                const stretch s = {run->order + i, (int32_t)product_least(last - i, SLOTS), row,
                                   product_least(rows - row, product_unit),
                                   run->unpacked + thread * longest(run->layer)};
                second ? down(run, expert, &s) : gate_up(run, expert, &s);
            }
        }
}

/* Each thread does some columns of y; a token's experts are added in the order of their numbers. */
static void combine(const experts_run *run, int32_t thread, int32_t threads)
{
    enum { MOST = 256 };
    const experts_layer *layer = run->layer;
    int64_t begin, end, size = product_element(&layer->kernels);
    product_share((layer->hidden + COLUMNS - 1) / COLUMNS, thread, threads, &begin, &end);
    begin *= COLUMNS;
    end = product_least(end * COLUMNS, layer->hidden);
    for (int64_t t = 0; t < run->tokens && begin < end; t++) {
        const void *parts[MOST];
        float weights[MOST];
        int32_t count = 0;
        for (int64_t i = 0; i < run->slots; i++)
            if (run->order[i] / layer->top_k == t) {
                parts[count] = run->results + run->order[i] * layer->hidden + begin;
                weights[count++] = run->weights[run->order[i]];
            }
        const product_combine c = {
            .part_dtype = TN_F32, .dtype = layer->kernels.dtype, .count = count, .part = parts, .weight = weights};
        layer->kernels.combine(&c, end - begin, (char *)product_row(&run->call->out[0], run->first + t) + begin * size);
    }
}

/* ---- a call ------------------------------------------------------------------------------------------------------ */

static void begin_block(experts_run *run, int32_t thread, int32_t threads)
{
    int64_t begin, end;
    float *rest = run->unpacked + thread * longest(run->layer);
    if (thread == 0) {
        experts_weights(run->layer, run->call, run->first, run->tokens, run->weights);
        sort_slots(run);
        product_ranges_reset(&run->rows[0]);
        product_ranges_reset(&run->rows[1]);
    }
    product_share(run->tokens, thread, threads, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        run->layer->kernels.widen(product_row(&run->call->in[0], run->first + t), run->x.length,
                                  run->x.wide + t * run->x.length);
        round_row(run, &run->x, t, rest);
    }
}

static void body(void *ctx, int32_t thread, int32_t threads)
{
    experts_run *run = ctx;
    int64_t begin, end;
    begin_block(run, thread, threads);
    product_wait(threads);
    all_rows(run, false, thread, threads);
    product_wait(threads);
    product_share(run->slots, thread, threads, &begin, &end);
    for (int64_t slot = begin; slot < end; slot++)
        round_row(run, &run->h, slot, run->unpacked + thread * longest(run->layer));
    product_wait(threads);
    all_rows(run, true, thread, threads);
    product_wait(threads);
    combine(run, thread, threads);
}

tn_status experts_forward(const experts_layer *layer, const tn_call *call, tn_error *err)
{
    enum { SERIAL_WORK = 30000 }; /* multiply-adds that one thread does while a team wakes up */
    experts_run run = {.layer = layer, .call = call, .all = product_tokens(&call->in[0])};
    layout(&run, layer, call->plan->threads, call->scratch);
    tn_status status = check_ids(&run, err);
    if (status == TN_OK && run.all > PRODUCT_FEW_TOKENS) {
        experts_many(layer, call);
        return TN_OK;
    }
    for (; status == TN_OK && run.first < run.all; run.first += run.tokens) {
        run.tokens = product_least(run.all - run.first, PRODUCT_FEW_TOKENS);
        run.slots = run.tokens * layer->top_k;
        if (run.slots * layer->hidden * layer->inter * 3 < SERIAL_WORK)
            body(&run, 0, 1);
        else
            tn_parallel(body, &run);
    }
    return status;
}
