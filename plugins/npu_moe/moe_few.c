/* Up to eight tokens: the rows of all experts in use form one list, which the threads do piece by piece. Routing is
 * so little work that every thread does all of it for itself, instead of waiting for another to do it. */
#include "moe_apart.h"
#include <string.h>

/* Columns of a result that threads share. */
#define COLUMNS 64

/* That a token may have; plan takes no more. */
enum { MOST_EXPERTS = 256 };

/* A thread's own view of the call. */
typedef struct few_state {
    const moe_run *run;
    routes routed;
    float *scale;
    int64_t *offsets;
    int32_t *slots;
    const void *x[PRODUCT_FEW_TOKENS]; /* rows of native type                                     */
    char *mine;
    int32_t thread, threads;
} few_state;

static void few_open(few_state *s, const moe_run *run, int32_t thread, int32_t threads)
{
    const moe_memory *m = &run->memory;
    char *mine = moe_thread_memory(run, thread);
    *s = (few_state){.run = run, .mine = mine, .thread = thread, .threads = threads};
    s->routed = (routes){.weights = (float *)(void *)(mine + m->few_weights),
                         .experts = (int32_t *)(void *)(mine + m->few_experts)};
    s->scale = (float *)(void *)(mine + m->few_scale);
    s->offsets = (int64_t *)(void *)(mine + m->few_offsets);
    s->slots = (int32_t *)(void *)(mine + m->few_slots);
    for (int64_t t = 0; t < run->tokens; t++)
        s->x[t] = product_row(run->in->x, t);
}

/* The logits are shared work, the choice is not. False: a score is not a number. */
static bool few_route(const few_state *s)
{
    const moe_run *run = s->run;
    const moe_layer *layer = run->layer;
    const moe_memory *m = &run->memory;
    int64_t begin, end, n = run->tokens, row = layer->experts + 1;
    const router_gate gate = moe_gate(layer, s->scale);
    float *mine = (float *)(void *)(s->mine + m->few_logits), *work = mine + row;
    product_share_rows(row, s->thread, s->threads, &begin, &end);
    router_logits(&layer->router, &gate, s->x, n, true, begin, end, m->logits, row, s->mine + m->router);
    product_wait(s->threads);
    for (int64_t t = 0; t < n; t++) {
        memcpy(mine, m->logits + t * row, (size_t)row * sizeof *mine);
        if (!router_token(&layer->router, mine, work, &s->routed, &gate, t) && m->bad[s->thread] < 0)
            m->bad[s->thread] = t;
    }
    return m->bad[s->thread] < 0;
}

static int64_t expert_rows(const moe_layer *layer, int64_t e, bool down)
{
    return down ? layer->hidden : e < layer->experts ? layer->inter : layer->shared_inter;
}

static int64_t units_of(const few_state *s, int64_t e, bool down)
{
    bool used = s->offsets[e + 1] > s->offsets[e];
    return used ? (expert_rows(s->run->layer, e, down) + product_unit - 1) / product_unit : 0;
}

/* The inputs of n of expert e's tokens from `from` on, where weights are factors of them. */
static void few_scaled(const few_state *s, int64_t e, int64_t from, int32_t n, const void **x)
{
    const moe_layer *layer = s->run->layer;
    const moe_memory *m = &s->run->memory;
    size_t row = (size_t)(layer->hidden * moe_element(layer)), native = PRODUCT_FEW_TOKENS * (size_t)layer->hidden;
    for (int32_t i = 0; i < n; i++) {
        int64_t slot = s->slots[s->offsets[e] + from + i];
        char *to = s->mine + m->scaled + (size_t)i * row;
        moe_scale_row(layer, product_row(s->run->in->x, slot / moe_slots(layer)),
                      *moe_input_weight(layer, &s->routed, slot), to);
        x[i] = to;
    }
    product_native_rows(layer->kernels, x, n, layer->hidden, s->mine + m->few_x + native * sizeof(float), x);
}

/* Rows first .. last - 1 of one product of expert e, for n of its tokens from `from` on. */
static void few_rows(const few_state *s, int64_t e, bool down, int64_t from, int32_t n, int64_t first, int64_t last)
{
    const moe_run *run = s->run;
    const moe_layer *layer = run->layer;
    const void *x[PRODUCT_FEW_TOKENS];
    void *h[PRODUCT_FEW_TOKENS], *y[PRODUCT_FEW_TOKENS];
    const product_kernels *kernels = layer->kernels;
    product_mlp mlp = moe_expert(layer, e);
    for (int32_t i = 0; i < n; i++) {
        int64_t slot = s->slots[s->offsets[e] + from + i];
        x[i] = s->x[slot / moe_slots(layer)];
        h[i] = run->memory.h + slot * moe_few_h_row(layer);
        y[i] = run->memory.results + slot * layer->hidden;
    }
    if (!down && layer->scaled && e < layer->experts)
        few_scaled(s, e, from, n, x);
    if (down)
        product_out_few(kernels, &mlp.down, mlp.inter, (const void *const *)h, n, product_rows_of(first, last), TN_F32,
                        y);
    else if (moe_is_apart(layer, e))
        moe_apart_few(layer, &mlp, x, n, first, last, h, (float *)(void *)(s->mine + run->memory.strip));
    else
        product_glu_few(kernels, &mlp, layer->hidden, layer->act, x, n, product_rows_of(first, last),
                        kernels->variant->native, h);
}

/* A caller may name an expert more than once for a token. */
static void few_expert(const few_state *s, int64_t e, bool down, int64_t first, int64_t last)
{
    int64_t n = s->offsets[e + 1] - s->offsets[e];
    for (int64_t i = 0; i < n; i += PRODUCT_FEW_TOKENS)
        few_rows(s, e, down, i, (int32_t)moe_least(n - i, PRODUCT_FEW_TOKENS), first, last);
}

/* Units begin .. end - 1 of the list of rows. down: of the second product. */
static void few_units(const few_state *s, bool down, int64_t begin, int64_t end)
{
    const moe_layer *layer = s->run->layer;
    for (int64_t e = 0; e <= layer->experts && end > 0; e++) {
        int64_t here = units_of(s, e, down), rows = expert_rows(layer, e, down);
        int64_t first = moe_most(begin, 0) * product_unit;
        int64_t last = moe_least(moe_least(end, here) * product_unit, rows);
        if (first < last)
            few_expert(s, e, down, first, last);
        begin -= here;
        end -= here;
    }
}

/* Whoever is free takes the next piece: a thread that gets less of the memory does not hold up the others. */
static void few_experts(const few_state *s, bool down)
{
    int64_t units = 0;
    product_ranges *all = down ? s->run->columns : s->run->gates;
    for (int64_t e = 0; e <= s->run->layer->experts; e++)
        units += units_of(s, e, down);
    for (product_rows p; product_take_rows(all, units * product_unit, s->thread, s->threads, &p);)
        few_units(s, down, p.begin / product_unit, p.end / product_unit);
}

/* The places of a token's experts in the order of the experts, as many tokens add theirs up. */
static int32_t in_order(const few_state *s, int64_t t, int32_t place[MOST_EXPERTS])
{
    const int32_t *expert = s->routed.experts + t * s->run->layer->top_k;
    int32_t count = 0;
    for (int32_t j = 0; j < s->run->layer->top_k; j++) {
        int32_t at = count;
        for (; at > 0 && expert[place[at - 1]] > expert[j]; at--)
            place[at] = place[at - 1];
        place[at] = j;
        count += expert[j] >= 0;
    }
    return count;
}

/* Each thread does some columns of y. */
static void few_combine(const few_state *s)
{
    const moe_run *run = s->run;
    const moe_layer *layer = run->layer;
    const void *parts[MOST_EXPERTS];
    float weights[MOST_EXPERTS];
    int32_t place[MOST_EXPERTS];
    int64_t begin, end, k = layer->top_k, size = moe_element(layer);
    product_share((layer->hidden + COLUMNS - 1) / COLUMNS, s->thread, s->threads, &begin, &end);
    begin *= COLUMNS;
    end = moe_least(end * COLUMNS, layer->hidden);
    for (int64_t t = 0; t < run->tokens && begin < end; t++) {
        const float *results = run->memory.results + t * moe_slots(layer) * layer->hidden + begin;
        int32_t count = in_order(s, t, place);
        for (int32_t i = 0; i < count; i++) {
            parts[i] = results + place[i] * layer->hidden;
            weights[i] = layer->scaled ? 1.0f : s->routed.weights[t * k + place[i]];
        }
        const product_combine c = {.part_dtype = TN_F32,
                                   .dtype = layer->kernels->dtype,
                                   .count = count,
                                   .part = parts,
                                   .weight = weights,
                                   .extra = layer->shared_inter ? results + k * layer->hidden : NULL,
                                   .extra_weight = layer->shared_scale ? s->scale[t] : 1.0f};
        layer->kernels->combine(&c, end - begin, (char *)product_row(run->y, t) + begin * size);
    }
}

void moe_few(const moe_run *run, int32_t thread, int32_t threads)
{
    const moe_layer *layer = run->layer;
    few_state s;
    few_open(&s, run, thread, threads);
    if (!layer->router.weight)
        moe_take_routes(layer, run->in, &s.routed, 0, run->tokens);
    else if (!few_route(&s))
        return;
    product_native_rows(layer->kernels, s.x, run->tokens, layer->hidden, s.mine + run->memory.few_x, s.x);
    moe_group(layer, s.routed.experts, run->tokens, s.offsets, s.slots);
    few_experts(&s, false);
    product_wait(threads);
    few_experts(&s, true);
    product_wait(threads);
    few_combine(&s);
}
