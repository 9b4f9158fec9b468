/* MOE_ROUTE by itself: the router of a block whose experts are someone else's. Results are kept back until all tokens
 * have scores. */
#include "moe_route.h"
#include "scratch.h"
#include <string.h>

#define SERIAL_WORK 30000

typedef struct route_memory {
    routes routed; /* of all tokens                                                                    */
    float *logits; /* few tokens: [E]                                                                  */
    int64_t *bad;
    char *thread;
    size_t work, router; /* within one thread's memory                                                */
    size_t thread_size, total;
} route_memory;

typedef struct route_run {
    const router *router;
    const tn_tensor *x, *weights, *experts;
    int64_t tokens;
    route_memory memory;
} route_run;

/* base NULL: only the total counts. */
static route_memory layout(const router *r, int64_t max_tokens, int32_t threads, char *base)
{
    route_memory m = {0};
    size_t at = 0, tokens = (size_t)max_tokens, k = (size_t)r->top_k, experts = (size_t)r->experts;
    m.work = scratch_take(&at, experts * sizeof(float));
    m.router = scratch_take(&at, router_scratch_size(r));
    m.thread_size = at;
    at = 0;
    size_t weights = scratch_take(&at, tokens * k * sizeof(float)),
           ids = scratch_take(&at, tokens * k * sizeof(int32_t));
    size_t logits = scratch_take(&at, PRODUCT_FEW_TOKENS * experts * sizeof(float));
    size_t bad = scratch_take(&at, (size_t)threads * sizeof(int64_t)),
           thread = scratch_take(&at, (size_t)threads * m.thread_size);
    m.total = at;
    if (base) {
        m.routed.weights = (float *)(void *)(base + weights);
        m.routed.experts = (int32_t *)(void *)(base + ids);
        m.logits = (float *)(void *)(base + logits);
        m.bad = (int64_t *)(void *)(base + bad);
        m.thread = base + thread;
    }
    return m;
}

size_t moe_route_scratch_size(const router *r, int64_t max_tokens, int32_t threads)
{
    return layout(r, max_tokens, threads, NULL).total;
}

static void write_token(const route_run *run, int64_t t)
{
    const router *r = run->router;
    const float *weights = run->memory.routed.weights + t * r->top_k;
    char *to = product_row(run->weights, t);
    product_finish finish = {run->weights->dtype, TN_ACT_LINEAR, NULL};
    for (int64_t j = 0; j < r->top_k; j += PRODUCT_FEW_ROWS) {
        int64_t left = r->top_k - j;
        r->own->row_out(weights + j, &finish, (int32_t)(left < PRODUCT_FEW_ROWS ? left : PRODUCT_FEW_ROWS),
                        to + j * (int64_t)tn_dtype_size(run->weights->dtype));
    }
    memcpy(product_row(run->experts, t), run->memory.routed.experts + t * r->top_k, (size_t)r->top_k * sizeof(int32_t));
}

/* The weight's rows are shared, each thread chooses for its own tokens. */
static void few_tokens(const route_run *run, int32_t thread, int32_t threads)
{
    const router *r = run->router;
    const route_memory *m = &run->memory;
    char *mine = m->thread + (size_t)thread * m->thread_size;
    const void *x[PRODUCT_FEW_TOKENS];
    const router_gate none = {NULL, NULL};
    int64_t begin, end;
    for (int64_t t = 0; t < run->tokens; t++)
        x[t] = product_row(run->x, t);
    product_share_rows(r->experts, thread, threads, &begin, &end);
    router_logits(r, &none, x, run->tokens, true, begin, end, m->logits, r->experts, mine + m->router);
    product_wait(threads);
    product_share(run->tokens, thread, threads, &begin, &end);
    for (int64_t t = begin; t < end; t++)
        if (!router_token(r, m->logits + t * r->experts, (float *)(void *)(mine + m->work), &m->routed, &none, t) &&
            m->bad[thread] < 0)
            m->bad[thread] = t;
}

static void body(void *ctx, int32_t thread, int32_t threads)
{
    const route_run *run = ctx;
    const route_memory *m = &run->memory;
    const router_gate none = {NULL, NULL};
    int64_t begin, end;
    product_share_rows(run->tokens, thread, threads, &begin, &end);
    if (run->tokens <= run->router->own->variant->few_tokens)
        few_tokens(run, thread, threads);
    else
        router_tokens(run->router, run->x, begin, end - begin, false, &m->routed, &none, &m->bad[thread],
                      m->thread + (size_t)thread * m->thread_size + m->router);
    product_wait(threads);
    for (int32_t i = 0; i < threads; i++)
        if (run->memory.bad[i] >= 0)
            return;
    product_share(run->tokens, thread, threads, &begin, &end);
    for (int64_t t = begin; t < end; t++)
        write_token(run, t);
}

tn_status moe_route_forward(const router *r, const tn_tensor *x, const tn_tensor *weights, const tn_tensor *experts,
                            int64_t max_tokens, int32_t threads, void *scratch, const char *where, tn_error *err)
{
    route_run run = {.router = r, .x = x, .weights = weights, .experts = experts, .tokens = product_tokens(x)};
    tn_status status = run.tokens ? router_check(r, where, err) : TN_OK;
    if (status != TN_OK || run.tokens == 0)
        return status;
    run.memory = layout(r, max_tokens, threads, scratch);
    for (int32_t i = 0; i < threads; i++)
        run.memory.bad[i] = -1;
    if (run.tokens * r->hidden * r->experts < SERIAL_WORK)
        body(&run, 0, 1);
    else
        tn_parallel(body, &run);
    return router_bad_token(run.memory.bad, threads, where, err);
}
