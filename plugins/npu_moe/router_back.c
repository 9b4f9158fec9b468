/* The gradients of routers. */
#include "router_back.h"
#include "scalar.h"
#include "scratch.h"
#include <string.h>

/* Columns of dx at once. */
#define STRIP 128

static int64_t element(const product_kernels *kernels)
{
    return kernels->dtype == TN_F32 ? 4 : 2;
}

void router_back_layout(router_back *b, int64_t max_tokens, int32_t threads, char *base)
{
    const router *r = b->router;
    const product_kernels *kernels = r->products;
    size_t at = 0, tokens = (size_t)max_tokens, experts = (size_t)r->experts, hidden = (size_t)r->hidden;
    size_t chunk = (size_t)pieces_tokens(kernels);
    bool wide = kernels != r->own;
    b->x_rows = scratch_take(&at, chunk * sizeof(void *));
    b->pointers = scratch_take(&at, chunk * sizeof(void *));
    b->panel = scratch_take(&at, chunk * (size_t)product_panel_token(kernels, r->experts));
    b->strip = scratch_take(&at, chunk * STRIP * sizeof(float));
    b->product = scratch_take(&at, product_scratch_size(kernels, r->experts));
    b->gate_row = scratch_take(&at, b->gate.weight ? hidden * sizeof(float) : 0);
    size_t grad = product_grad_scratch_size(kernels, max_tokens), own = product_grad_scratch_size(r->own, max_tokens);
    b->grad = scratch_take(&at, grad > own ? grad : own);
    b->thread_size = at;
    at = 0;
    size_t dl = scratch_take(&at, tokens * experts * sizeof(float));
    size_t dl_rows = scratch_take(&at, kernels->dtype == TN_F32 ? 0 : tokens * experts * 2);
    size_t dz_rows = scratch_take(&at, b->gate.weight ? tokens * (size_t)element(r->own) : 0);
    size_t x_wide = scratch_take(&at, wide ? tokens * hidden * sizeof(float) : 0);
    size_t factors = scratch_take(&at, r->factors ? experts * sizeof(float) : 0);
    size_t thread = scratch_take(&at, (size_t)threads * b->thread_size);
    b->total = at;
    if (!base)
        return;
    b->dl = (float *)(void *)(base + dl);
    b->dl_rows = kernels->dtype == TN_F32 ? base + dl : base + dl_rows;
    b->dfactor_sums = (float *)(void *)(base + factors);
    b->dz_rows = base + dz_rows;
    b->x_wide = wide ? (float *)(void *)(base + x_wide) : NULL;
    b->thread = base + thread;
}

void router_back_logits(const router_back *b, int32_t thread, int32_t threads)
{
    const router *r = b->router;
    int64_t begin, end, experts = r->experts;
    product_share(b->tokens, thread, threads, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        const float *upstream = b->dweights + t * b->dweights_row;
        float *dl = b->dl + t * experts;
        router_grad(r, b->routed.scores + t * experts, b->routed.experts + t * r->top_k, upstream, dl);
        if (r->products->dtype != TN_F32)
            pieces_round(r->products, dl, experts, b->dl_rows + t * experts * 2);
        if (b->gate.weight) {
            float s = b->gate.values[t], dz = b->dgate_values[t * b->dweights_row] * s * (1.0f - s);
            b->gate.values[t] = dz; /* what backward needs of it from here on */
            pieces_round(r->own, &dz, 1, b->dz_rows + t * element(r->own));
        }
        if (b->x_wide && b->drouter)
            r->own->widen(product_row(b->x, t), r->hidden, b->x_wide + t * r->hidden);
    }
}

/* Biases are few numbers: one thread adds them up. */
static void back_biases(const router_back *b)
{
    int64_t experts = b->router->experts;
    for (int64_t e = 0; e < experts && b->dbias; e++) {
        float sum = 0.0f;
        for (int64_t t = 0; t < b->tokens; t++)
            sum += b->dl[t * experts + e];
        scalar_store(b->dbias->data, e, b->dbias->dtype, sum);
    }
    if (b->dfactors) {
        memset(b->dfactor_sums, 0, (size_t)experts * sizeof(float));
        for (int64_t t = 0; t < b->tokens; t++)
            router_grad_factors(b->router, b->routed.scores + t * experts, b->routed.experts + t * b->router->top_k,
                                b->dweights + t * b->dweights_row, b->dfactor_sums);
        for (int64_t e = 0; e < experts; e++)
            scalar_store(b->dfactors->data, e, b->dfactors->dtype, b->dfactor_sums[e]);
    }
    for (int64_t e = 0; e < experts && b->dcorrection; e++) /* it only chooses */
        scalar_store(b->dcorrection->data, e, b->dcorrection->dtype, 0.0f);
}

/* Rows of the router's gradient: [E,H]; then of the gate's, whose rows are the columns of x. */
static bool back_weights(const router_back *b, int64_t index, int32_t threads, char *mine)
{
    const router *r = b->router;
    int64_t rows = pieces_grad_rows(r->experts, threads), pieces = (r->experts + rows - 1) / rows;
    const product_tokens_matrix x = {b->x->data, b->x->stride[0]}, wide = {b->x_wide, r->hidden};
    if (index < pieces) {
        const product_tokens_matrix dl = {b->dl_rows, r->experts};
        int64_t begin = index * rows, end = begin + rows < r->experts ? begin + rows : r->experts;
        if (b->drouter)
            product_weight_grad(r->products, &dl, b->x_wide ? &wide : &x, b->tokens, begin, end, r->hidden,
                                b->drouter->data, b->drouter->stride[0], mine + b->grad);
        return true;
    }
    index -= pieces;
    rows = pieces_grad_rows(r->hidden, threads);
    if (!b->dgate || index * rows >= r->hidden)
        return false;
    const product_tokens_matrix dz = {b->dz_rows, 1};
    int64_t begin = index * rows, end = begin + rows < r->hidden ? begin + rows : r->hidden;
    product_weight_grad(r->own, &x, &dz, b->tokens, begin, end, 1, b->dgate->data, 1, mine + b->grad);
    return true;
}

/* dx of n tokens: what the router adds to it, and its end. */
static void back_tokens(const router_back *b, int64_t first, int64_t n, char *mine)
{
    const router *r = b->router;
    const product_kernels *kernels = r->products;
    const void **x = (const void **)(void *)(mine + b->x_rows);
    void **y = (void **)(void *)(mine + b->pointers);
    float *strip = (float *)(void *)(mine + b->strip), *row = (float *)(void *)(mine + b->gate_row);
    const product_matrix turned = {r->weight->data, 1, r->weight->stride[0], NULL};
    for (int64_t t = 0; t < n; t++)
        x[t] = b->dl_rows + (first + t) * r->experts * element(kernels);
    product_pack(kernels, x, n, r->experts, 0, product_tiles(kernels, n), mine + b->panel);
    for (int64_t c = 0; c < r->hidden; c += STRIP) {
        int64_t width = r->hidden - c < STRIP ? r->hidden - c : STRIP;
        product_matrix w = pieces_rows_from(kernels, &turned, c);
        for (int64_t t = 0; t < n; t++)
            y[t] = strip + t * width;
        product_out_tiles(kernels, &w, r->experts, mine + b->panel, n, product_rows_of(0, width), TN_F32, y,
                          mine + b->product);
        for (int64_t t = 0; t < n; t++)
            pieces_add(r->own, strip + t * width, 1.0f, width, b->sums + (first + t) * r->hidden + c);
    }
    if (b->gate.weight)
        r->own->widen(b->gate.weight->data, r->hidden, row);
    for (int64_t t = first; t < first + n; t++) {
        if (b->gate.weight)
            pieces_add(r->own, row, b->gate.values[t], r->hidden, b->sums + t * r->hidden);
        pieces_round(r->own, b->sums + t * r->hidden, r->hidden, product_row(b->dx, t));
    }
}

void router_back_products(const router_back *b, int32_t thread, int32_t threads)
{
    char *mine = b->thread + (size_t)thread * b->thread_size;
    int64_t chunks = b->sums ? pieces_chunks(b->router->products, b->tokens) : 0, i;
    if (thread == 0)
        back_biases(b);
    while ((i = atomic_fetch_add(&b->chunks->next, 1)) < chunks) {
        int64_t first, n;
        pieces_chunk(b->router->products, b->tokens, i, &first, &n);
        back_tokens(b, first, n, mine);
    }
    while (back_weights(b, atomic_fetch_add(&b->grads->next, 1), threads, mine))
        ;
}
