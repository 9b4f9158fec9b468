/* Up to eight tokens: the rows of all experts in use form one list, of which each thread does an equal part. Routing is
 * so little work that every thread does all of it for itself, instead of waiting for another to do it. */
#include "moe_run.h"

/* A thread's own view of the call. */
typedef struct few_state {
    const moe_run *run;
    moe_routing routing;
    const void *x[PRODUCT_FEW_TOKENS]; /* rows of native type                                     */
    char *mine;
    int32_t thread, threads;
} few_state;

static void few_open(few_state *s, const moe_run *run, int32_t thread, int32_t threads)
{
    const moe_memory *m = &run->memory;
    char *mine = moe_thread_memory(run, thread);
    *s = (few_state){.run = run, .mine = mine, .thread = thread, .threads = threads};
    s->routing = (moe_routing){.weights = (float *)(void *)(mine + m->few_weights),
                               .shared_scale = (float *)(void *)(mine + m->few_scale),
                               .experts = (int32_t *)(void *)(mine + m->few_experts),
                               .offsets = (int32_t *)(void *)(mine + m->few_offsets),
                               .slots = (int32_t *)(void *)(mine + m->few_slots)};
    for (int64_t t = 0; t < run->tokens; t++)
        s->x[t] = product_row(run->x, t);
    product_native_rows(run->kernels, s->x, run->tokens, run->layer->hidden, mine + m->few_x, s->x);
}

/* The logits are shared work, the choice is not. False: a score is NaN. */
static bool few_route(const few_state *s)
{
    const moe_run *run = s->run;
    const moe_layer *layer = run->layer;
    const moe_memory *m = &run->memory;
    int64_t begin, end, size = moe_element(run), row = (layer->experts + 1) * size, bad = -1;
    int32_t n = (int32_t)run->tokens;
    void *y[PRODUCT_FEW_TOKENS], *scale_y[PRODUCT_FEW_TOKENS];
    for (int32_t t = 0; t < n; t++) {
        y[t] = m->few_logits + t * row;
        scale_y[t] = m->few_logits + t * row + layer->experts * size;
    }
    product_matrix router = moe_dense(layer->router);
    product_share_rows(layer->experts, s->thread, s->threads, &begin, &end);
    product_out_few(run->kernels, &router, layer->hidden, s->x, n, begin, end, layer->dtype, y);
    if (s->thread == 0 && layer->shared_scale) {
        product_matrix scale = moe_dense(layer->shared_scale);
        product_out_few(run->kernels, &scale, layer->hidden, s->x, n, 0, 1, layer->dtype, scale_y);
    }
    product_wait(s->threads);
    for (int32_t t = n - 1; t >= 0; t--)
        if (!moe_route_token(run, &s->routing, t, m->few_logits + t * row, (float *)(void *)(s->mine + m->probability)))
            bad = t;
    m->bad[s->thread] = bad;
    return bad < 0;
}

static int64_t expert_rows(const moe_layer *layer, int64_t e, bool down)
{
    return down ? layer->hidden : e < layer->experts ? layer->inter : layer->shared_inter;
}

static int64_t units_of(const few_state *s, int64_t e, bool down)
{
    bool used = s->routing.offsets[e + 1] > s->routing.offsets[e];
    return used ? (expert_rows(s->run->layer, e, down) + product_unit - 1) / product_unit : 0;
}

/* Rows first .. last - 1 of one product of expert e. */
static void few_expert(const few_state *s, int64_t e, bool down, int64_t first, int64_t last)
{
    const moe_run *run = s->run;
    const moe_layer *layer = run->layer;
    const void *x[PRODUCT_FEW_TOKENS];
    void *h[PRODUCT_FEW_TOKENS], *y[PRODUCT_FEW_TOKENS];
    int32_t n = s->routing.offsets[e + 1] - s->routing.offsets[e];
    int64_t h_row = product_panel_token(run->kernels, moe_most(layer->inter, layer->shared_inter));
    product_mlp mlp = moe_expert(layer, e);
    for (int32_t i = 0; i < n; i++) {
        int64_t slot = s->routing.slots[s->routing.offsets[e] + i];
        x[i] = s->x[slot / moe_slots(layer)];
        h[i] = run->memory.few_h + slot * h_row;
        y[i] = run->memory.results + slot * moe_result_row(run);
    }
    if (down)
        product_out_few(run->kernels, &mlp.down, mlp.inter, (const void *const *)h, n, first, last, layer->dtype, y);
    else
        product_glu_few(run->kernels, &mlp, layer->hidden, layer->act, x, n, first, last, run->kernels->native, h);
}

/* A thread's part of the list of rows. down: of the second product. */
static void few_experts(const few_state *s, bool down)
{
    const moe_layer *layer = s->run->layer;
    int64_t units = 0, begin, end;
    for (int64_t e = 0; e <= layer->experts; e++)
        units += units_of(s, e, down);
    product_share(units, s->thread, s->threads, &begin, &end);
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

void moe_few(const moe_run *run, int32_t thread, int32_t threads)
{
    few_state s;
    few_open(&s, run, thread, threads);
    if (!run->layer->router)
        moe_take_routes(run, &s.routing, 0, run->tokens);
    else if (!few_route(&s))
        return;
    moe_group(run->layer, s.routing.experts, run->tokens, s.routing.offsets, s.routing.slots);
    few_experts(&s, false);
    product_wait(threads);
    few_experts(&s, true);
    product_wait(threads);
    moe_combine(run, &s.routing, 0, run->tokens, thread, threads);
}
