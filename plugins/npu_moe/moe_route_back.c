/* The gradients of MOE_ROUTE. */
#include "moe_back.h"
#include "moe_route.h"
#include "scratch.h"
#include <string.h>

typedef struct route_back {
    router_back back;
    const tn_grads *grads;
    float *dweights;
    int64_t *bad;
    char *thread;
    size_t thread_size, total;
    product_queue weights, chunks;
} route_back;

/* base NULL: only the total counts. */
static void layout(route_back *b, int64_t max_tokens, int32_t threads, char *base)
{
    const router *r = b->back.router;
    size_t at = 0, n = (size_t)max_tokens, k = (size_t)r->top_k;
    b->thread_size = (router_scratch_size(r) + 63) / 64 * 64;
    size_t weights = scratch_take(&at, n * k * sizeof(float)), ids = scratch_take(&at, n * k * sizeof(int32_t));
    size_t scores = scratch_take(&at, n * (size_t)r->experts * sizeof(float));
    size_t dweights = scratch_take(&at, n * k * sizeof(float)),
           sums = scratch_take(&at, n * (size_t)r->hidden * sizeof(float));
    size_t bad = scratch_take(&at, (size_t)threads * sizeof(int64_t)),
           thread = scratch_take(&at, (size_t)threads * b->thread_size);
    router_back_layout(&b->back, max_tokens, threads, base ? base + at : NULL);
    b->total = at + b->back.total;
    if (!base)
        return;
    b->back.routed =
        (routes){(float *)(void *)(base + weights), (int32_t *)(void *)(base + ids), (float *)(void *)(base + scores)};
    b->dweights = (float *)(void *)(base + dweights);
    b->back.sums = (float *)(void *)(base + sums);
    b->bad = (int64_t *)(void *)(base + bad);
    b->thread = base + thread;
}

size_t moe_route_backward_scratch_size(const router *r, int64_t max_tokens, int32_t threads)
{
    route_back b = {.back = {.router = r}};
    layout(&b, max_tokens, threads, NULL);
    return b.total;
}

/* The choice that forward made, by the same products; and what comes from above, as f32. False: not numbers. */
static bool route(const route_back *b, int32_t thread, int32_t threads)
{
    const router *r = b->back.router;
    const tn_tensor *upstream = &b->grads->out[0];
    const router_gate none = {NULL, NULL};
    int64_t begin = 0, end = b->back.tokens, k = r->top_k;
    bool few = b->back.tokens <= r->own->variant->few_tokens;
    if (!few)
        product_share_rows(b->back.tokens, thread, threads, &begin, &end);
    if (!few || thread == 0)
        router_tokens(r, b->back.x, begin, end - begin, few, &b->back.routed, &none, &b->bad[thread],
                      b->thread + (size_t)thread * b->thread_size);
    for (int64_t t = begin; t < end && (!few || thread == 0); t++) {
        if (upstream->dtype == TN_F32)
            memcpy(b->dweights + t * k, product_row(upstream, t), (size_t)k * sizeof(float));
        else
            r->own->widen(product_row(upstream, t), k, b->dweights + t * k);
        if (b->back.sums)
            memset(b->back.sums + t * r->hidden, 0, (size_t)r->hidden * sizeof(float));
    }
    product_wait(threads);
    for (int32_t i = 0; i < threads; i++)
        if (b->bad[i] >= 0)
            return false;
    return true;
}

static void body(void *ctx, int32_t thread, int32_t threads)
{
    const route_back *b = ctx;
    if (!route(b, thread, threads))
        return;
    router_back_logits(&b->back, thread, threads);
    product_wait(threads);
    router_back_products(&b->back, thread, threads);
}

static const tn_tensor *wanted(const tn_grads *grads, tn_role role)
{
    return grads->param[role].count ? grads->param[role].tensors : NULL;
}

tn_status moe_route_backward(const router *r, const tn_tensor *x, const tn_grads *grads, int64_t max_tokens,
                             int32_t threads, void *scratch, const char *where, tn_error *err)
{
    route_back b = {.back = {.router = r, .x = x, .tokens = product_tokens(x)}, .grads = grads};
    tn_status status = router_check(r, where, err);
    if (status != TN_OK)
        return status;
    if (!grads->out[0].data || b.back.tokens == 0) {
        moe_zero_grads(grads);
        return TN_OK;
    }
    layout(&b, max_tokens, threads, scratch);
    b.back.grads = &b.weights;
    b.back.chunks = &b.chunks;
    b.back.dweights = b.dweights;
    b.back.dweights_row = r->top_k;
    b.back.sums = grads->in[0].data ? b.back.sums : NULL;
    b.back.dx = &grads->in[0];
    b.back.drouter = wanted(grads, TN_ROLE_ROUTER);
    b.back.dbias = wanted(grads, TN_ROLE_ROUTER_BIAS);
    b.back.dcorrection = wanted(grads, TN_ROLE_CORRECTION_BIAS);
    b.back.dfactors = wanted(grads, TN_ROLE_EXPERT_SCALE);
    for (int32_t i = 0; i < threads; i++)
        b.bad[i] = -1;
    tn_parallel(body, &b);
    return router_bad_token(b.bad, threads, where, err);
}
