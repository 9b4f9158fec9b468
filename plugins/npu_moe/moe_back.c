/* Gradients of mixtures of experts: the choice again, expert by expert, then the router. */
#include "moe_apart.h"
#include "moe_back.h"
#include "scratch.h"
#include <string.h>

#define SERIAL_WORK 10000 /* multiply-adds of forward: see moe.c                                                   */

/* Memory of one thread. */
static void layout_thread(const moe_layer *layer, moe_back *b, int64_t max_tokens)
{
    const product_kernels *kernels = layer->kernels;
    size_t at = 0, chunk = (size_t)pieces_tokens(kernels);
    b->strips = scratch_take(&at, 3 * chunk * MOE_STRIP * sizeof(float));
    b->x_rows = scratch_take(&at, chunk * sizeof(void *));
    b->y_rows = scratch_take(&at, chunk * sizeof(void *));
    b->product = scratch_take(
        &at, product_scratch_size(kernels, moe_most(layer->hidden, moe_pairs(layer) ? 2 * b->inter : b->inter)));
    b->router = scratch_take(&at, layer->router.weight ? router_scratch_size(&layer->router) : 0);
    b->grad = scratch_take(&at, product_grad_scratch_size(kernels, max_tokens));
    b->thread_size = at;
}

static char *place(char *base, size_t at)
{
    return base ? base + at : NULL;
}

/* What an expert with so many tokens needs, at base + *at. */
static void layout_expert(const moe_layer *layer, moe_back *b, int64_t most, char *base, size_t *at)
{
    const product_kernels *kernels = layer->kernels;
    size_t rows = (size_t)most, size = (size_t)moe_element(layer), inter = (size_t)b->inter;
    size_t padded = (size_t)product_padded_tokens(kernels, most);
    size_t hidden = rows * (size_t)layer->hidden * size;
    size_t hidden_panel = padded * (size_t)product_panel_token(kernels, layer->hidden);
    /* Where gates and ups take turns, those of both in one. */
    size_t inter_panel = padded * (size_t)product_panel_token(kernels, moe_pairs(layer) ? 2 * b->inter : b->inter);
    b->x = place(base, scratch_take(at, hidden));
    b->g = place(base, scratch_take(at, hidden));
    b->h = place(base, scratch_take(at, rows * inter * size));
    b->both = place(base, scratch_take(at, 2 * rows * inter * size));
    size_t dots = scratch_take(at, rows * ((inter + MOE_FEATURES - 1) / MOE_FEATURES) * sizeof(float));
    b->dots = (float *)(void *)place(base, dots);
    b->x_panel = place(base, scratch_take(at, hidden_panel));
    b->g_panel = place(base, scratch_take(at, hidden_panel));
    b->gate_panel = place(base, scratch_take(at, inter_panel));
    b->up_panel = place(base, scratch_take(at, inter_panel));
}

/* Calls of more tokens than this do no expert alone. */
static int64_t most_apart(const moe_layer *layer)
{
    return MOE_ALONE_BYTES / (moe_slots(layer) * layer->hidden * (int64_t)sizeof(float));
}

static bool is_alone(const moe_back *b, int64_t e)
{
    return b->tokens <= most_apart(b->layer) && e < b->layer->experts && b->offsets[e + 1] - b->offsets[e] <= MOE_ALONE;
}

/* base NULL: only the total counts. */
static void layout(const moe_layer *layer, moe_back *b, int64_t max_tokens, int32_t threads, char *base)
{
    size_t at = 0, n = (size_t)max_tokens, hidden = (size_t)layer->hidden;
    size_t k = (size_t)layer->top_k, slots = (size_t)moe_slots(layer), experts = (size_t)layer->experts;
    b->inter = moe_most(layer->inter, layer->shared_inter);
    /* A caller may name an expert more than once for a token; where inputs differ these are rows of their own. */
    int64_t most = layer->scaled ? max_tokens * layer->top_k : max_tokens;
    size_t weights = scratch_take(&at, n * k * sizeof(float)), ids = scratch_take(&at, n * k * sizeof(int32_t));
    size_t scores = scratch_take(&at, layer->router.weight ? n * experts * sizeof(float) : 0);
    size_t scale = scratch_take(&at, n * sizeof(float)), offsets = scratch_take(&at, (experts + 2) * sizeof(int64_t));
    size_t list = scratch_take(&at, n * slots * sizeof(int32_t)),
           dweights = scratch_take(&at, n * slots * sizeof(float));
    size_t sums = scratch_take(&at, n * hidden * sizeof(float)),
           bad = scratch_take(&at, (size_t)threads * sizeof(int64_t));
    size_t apart = (size_t)moe_least(max_tokens, most_apart(layer));
    size_t slot_sums = scratch_take(&at, apart * slots * hidden * sizeof(float));
    size_t strips = (hidden + MOE_STRIP - 1) / MOE_STRIP;
    size_t input_dots = scratch_take(&at, layer->scaled ? n * slots * strips * sizeof(float) : 0);
    b->alone_size = 0;
    layout_expert(layer, b, moe_least(most, MOE_ALONE), base, &b->alone_size);
    size_t alone = scratch_take(&at, (size_t)threads * b->alone_size);
    layout_expert(layer, b, most, base, &at);
    layout_thread(layer, b, most);
    size_t thread = scratch_take(&at, (size_t)threads * b->thread_size);
    b->total = at;
    if (!base)
        return;
    b->routed = (routes){(float *)(void *)(base + weights), (int32_t *)(void *)(base + ids),
                         layer->router.weight ? (float *)(void *)(base + scores) : NULL};
    b->scale = (float *)(void *)(base + scale);
    b->offsets = (int64_t *)(void *)(base + offsets);
    b->slots = (int32_t *)(void *)(base + list);
    b->dweights = (float *)(void *)(base + dweights);
    b->sums = (float *)(void *)(base + sums);
    b->slot_sums = (float *)(void *)(base + slot_sums);
    b->bad = (int64_t *)(void *)(base + bad);
    b->input_dots = (float *)(void *)(base + input_dots);
    b->alone = base + alone;
    b->thread = base + thread;
}

size_t moe_backward_scratch_size(const moe_layer *layer, int64_t max_tokens, int32_t threads)
{
    moe_back b = {0};
    router_back back = {.router = &layer->router, .gate = {layer->shared_scale, NULL}};
    layout(layer, &b, max_tokens, threads, NULL);
    if (layer->router.weight)
        router_back_layout(&back, max_tokens, threads, NULL);
    return b.total + back.total;
}

/* The choice that forward made, by the same products. False: scores are not numbers. */
static bool route(const moe_back *b, int32_t thread, int32_t threads)
{
    const moe_layer *layer = b->layer;
    const router_gate gate = moe_gate(layer, b->scale);
    int64_t begin = 0, end = b->tokens;
    bool few = b->tokens <= layer->kernels->variant->few_tokens;
    if (!few)
        product_share_rows(b->tokens, thread, threads, &begin, &end);
    if (!few || thread == 0)
        router_tokens(&layer->router, b->in->x, begin, end - begin, few, &b->routed, &gate, &b->bad[thread],
                      b->thread + (size_t)thread * b->thread_size + b->router);
    product_wait(threads);
    for (int32_t i = 0; i < threads; i++)
        if (b->bad[i] >= 0)
            return false;
    return true;
}

/* The caller's choice. An expert that is named more than once for a token counts the sum of these weights there; the
 * later places have no slot, but the number of the first one: -1 - place. */
static void take_routes(const moe_back *b)
{
    int64_t k = b->layer->top_k;
    moe_take_routes(b->layer, b->in, &b->routed, 0, b->tokens);
    if (b->layer->scaled)
        return;
    for (int64_t t = 0; t < b->tokens; t++) {
        int32_t *ids = b->routed.experts + t * k;
        float *weights = b->routed.weights + t * k;
        for (int64_t j = 1; j < k; j++)
            for (int64_t i = 0; i < j; i++)
                if (ids[i] == ids[j]) {
                    weights[i] += weights[j];
                    ids[j] = (int32_t)(-1 - i);
                    break;
                }
    }
}

/* dL/dx and dL/dweights where the caller routes. */
static void finish_experts(const moe_back *b, int32_t thread, int32_t threads)
{
    const product_kernels *kernels = b->layer->kernels;
    const tn_tensor *dx = &b->grads->in[0], *dweights = &b->grads->in[1];
    int64_t begin, end, k = b->layer->top_k;
    product_share(b->tokens, thread, threads, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        if (dx->data)
            pieces_round(kernels, b->sums + t * b->layer->hidden, b->layer->hidden, product_row(dx, t));
        for (int64_t j = 0; j < k; j++)
            if (b->routed.experts[t * k + j] < 0)
                b->dweights[t * k + j] = b->dweights[t * k - 1 - b->routed.experts[t * k + j]];
        if (dweights->data && dweights->dtype == TN_F32)
            memcpy(product_row(dweights, t), b->dweights + t * k, (size_t)k * sizeof(float));
        else if (dweights->data)
            pieces_round(kernels, b->dweights + t * k, k, product_row(dweights, t));
    }
}

/* dL/dweights that are factors of inputs, from their parts. */
static void add_input_dots(const moe_back *b, int32_t thread, int32_t threads)
{
    int64_t begin, end, places = moe_slots(b->layer), strips = (b->layer->hidden + MOE_STRIP - 1) / MOE_STRIP;
    product_share(b->tokens, thread, threads, &begin, &end);
    for (int64_t t = begin; t < end; t++)
        for (int64_t slot = t * places; slot < t * places + b->layer->top_k; slot++) {
            float sum = 0.0f;
            for (int64_t i = 0; i < strips; i++)
                sum += b->input_dots[slot * strips + i];
            b->dweights[slot] = sum;
        }
}

/* Experts of few tokens, whole, then all the others. */
static void back_experts(const moe_back *b, int32_t thread, int32_t threads)
{
    const moe_layer *layer = b->layer;
    int64_t most = layer->scaled ? b->in->max_tokens * layer->top_k : b->in->max_tokens;
    product_queue queues[BACK_STEPS] = {0};
    moe_back alone = *b, shared = *b;
    size_t at = 0;
    layout_expert(layer, &alone, moe_least(most, MOE_ALONE), b->alone + (size_t)thread * b->alone_size, &at);
    alone.thread = b->thread + (size_t)thread * b->thread_size;
    alone.queues = queues;
    shared.slot_sums = NULL;
    for (int64_t e; (e = atomic_fetch_add(&b->experts->next, 1)) < layer->experts;)
        if (is_alone(b, e))
            moe_back_expert(&alone, e, 0, 1);
    for (int64_t e = 0; e < layer->experts + (layer->shared_inter > 0); e++)
        if (!is_alone(b, e))
            moe_back_expert(&shared, e, thread, threads);
}

/* What experts done alone add to dL/dx. */
static void add_slots(const moe_back *b, int32_t thread, int32_t threads)
{
    int64_t begin, end, k = b->layer->top_k, hidden = b->layer->hidden;
    product_share(b->tokens, thread, threads, &begin, &end);
    for (int64_t t = begin; t < end && b->want_dx; t++)
        for (int64_t j = 0; j < k; j++) {
            int32_t e = b->routed.experts[t * k + j];
            if (e >= 0 && is_alone(b, e))
                pieces_add(b->layer->kernels, b->slot_sums + (t * moe_slots(b->layer) + j) * hidden, 1.0f, hidden,
                           b->sums + t * hidden);
        }
}

static void body(void *ctx, int32_t thread, int32_t threads)
{
    const moe_back *b = ctx;
    const moe_layer *layer = b->layer;
    int64_t begin, end, hidden = layer->hidden;
    if (layer->router.weight && !route(b, thread, threads))
        return;
    if (thread == 0 && !layer->router.weight)
        take_routes(b);
    if (thread == 0)
        moe_group(layer, b->routed.experts, b->tokens, b->offsets, b->slots);
    product_share(b->tokens, thread, threads, &begin, &end);
    if (b->want_dx)
        memset(b->sums + begin * hidden, 0, (size_t)((end - begin) * hidden) * sizeof(float));
    product_wait(threads);
    back_experts(b, thread, threads);
    product_wait(threads);
    add_slots(b, thread, threads);
    if (layer->scaled)
        add_input_dots(b, thread, threads);
    if (!layer->router.weight) {
        finish_experts(b, thread, threads);
        return;
    }
    router_back_logits(b->back, thread, threads);
    product_wait(threads);
    router_back_products(b->back, thread, threads);
}

static const tn_tensor *wanted(const tn_grads *grads, tn_role role)
{
    return grads->param[role].count ? grads->param[role].tensors : NULL;
}

static void open_router(router_back *back, const moe_back *b)
{
    const moe_layer *layer = b->layer;
    const tn_grads *grads = b->grads;
    back->x = b->in->x;
    back->tokens = b->tokens;
    back->routed = b->routed;
    back->dweights = b->dweights;
    back->dweights_row = moe_slots(layer);
    back->gate = moe_gate(layer, b->scale);
    back->dgate_values = b->dweights + layer->top_k;
    back->sums = b->want_dx ? b->sums : NULL;
    back->dx = &grads->in[0];
    back->drouter = wanted(grads, TN_ROLE_ROUTER);
    back->dbias = wanted(grads, TN_ROLE_ROUTER_BIAS);
    back->dcorrection = wanted(grads, TN_ROLE_CORRECTION_BIAS);
    back->dfactors = wanted(grads, TN_ROLE_EXPERT_SCALE);
    back->dgate = layer->shared_scale ? wanted(grads, TN_ROLE_SHARED_EXPERT_GATE) : NULL;
}

/* Everything that is wanted becomes zeros. */
void moe_zero_grads(const tn_grads *grads)
{
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        if (grads->in[i].data)
            pieces_zero(&grads->in[i]);
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < grads->param[role].count; i++)
            pieces_zero(&grads->param[role].tensors[i]);
}

tn_status moe_backward(const moe_layer *layer, const moe_input *in, const tn_grads *grads, void *scratch, tn_error *err)
{
    product_queue queues[BACK_STEPS] = {0}, experts = {0}, weights = {0}, chunks = {0};
    router_back back = {
        .router = &layer->router, .gate = {layer->shared_scale, NULL}, .grads = &weights, .chunks = &chunks};
    moe_back b = {.layer = layer, .in = in, .grads = grads, .queues = queues, .experts = &experts, .back = &back};
    tn_status status =
        layer->router.weight ? router_check(&layer->router, in->where, err) : moe_check_ids(layer, in, err);
    if (status != TN_OK)
        return status;
    b.tokens = product_tokens(in->x);
    if (!grads->out[0].data || b.tokens == 0) {
        moe_zero_grads(grads);
        return TN_OK;
    }
    b.want_dx = grads->in[0].data;
    b.columns = b.want_dx || layer->scaled;
    layout(layer, &b, in->max_tokens, in->threads, scratch);
    if (layer->router.weight) {
        router_back_layout(&back, in->max_tokens, in->threads, (char *)scratch + b.total);
        open_router(&back, &b);
    }
    for (int32_t i = 0; i < in->threads; i++)
        b.bad[i] = -1;
    int64_t inter = layer->top_k * layer->inter + layer->shared_inter;
    if (b.tokens * layer->hidden * inter * 3 < SERIAL_WORK)
        body(&b, 0, 1);
    else
        tn_parallel(body, &b);
    return router_bad_token(b.bad, in->threads, in->where, err);
}
