/* One call: its memory, and the steps that few and many tokens have in common. */
#include "moe_run.h"
#include <math.h>
#include <string.h>

/* Tokens grouped at once, unless the experts' results would fill more than this. */
#define BLOCK 512
#define RESULT_BYTES ((int64_t)32 << 20)
#define LEAST_BLOCK 64

/* Multiply-adds that one thread does while the team wakes up and meets at a barrier (1.5 us): less work than this stays
 * on the calling thread. */
#define SERIAL_WORK 30000

/* Columns of a result that threads share. */
#define COLUMNS 64

static size_t take(size_t *at, size_t bytes)
{
    size_t here = *at;
    *at += (bytes + 63) / 64 * 64;
    return here;
}

static int64_t block_tokens(const moe_run *run, int64_t max_tokens)
{
    int64_t fits = RESULT_BYTES / (moe_slots(run->layer) * moe_result_row(run));
    return moe_least(max_tokens, moe_least(BLOCK, moe_most(fits, LEAST_BLOCK)));
}

/* What each thread has for itself. */
static void layout_thread(const moe_run *run, moe_memory *m)
{
    const product_kernels *kernels = run->kernels;
    const moe_layer *layer = run->layer;
    int64_t inter = moe_most(layer->inter, layer->shared_inter);
    size_t at = 0, few = PRODUCT_FEW_TOKENS, experts = (size_t)layer->experts, k = (size_t)layer->top_k;
    m->panel_x = take(&at, MOE_CHUNK * (size_t)product_panel_token(kernels, layer->hidden));
    m->panel_h = take(&at, MOE_CHUNK * (size_t)product_panel_token(kernels, inter));
    m->logits = take(&at, layer->router ? MOE_CHUNK * (experts + 1) * (size_t)moe_element(run) : 0);
    m->probability = take(&at, layer->router ? sizeof(float) * experts : 0);
    m->pointers = take(&at, 3 * MOE_CHUNK * sizeof(void *));
    m->product = take(&at, product_scratch_size(kernels, moe_most(layer->hidden, inter)));
    m->few_x = take(&at, kernels->native == kernels->dtype ? 0 : few * (size_t)layer->hidden * sizeof(float));
    m->few_weights = take(&at, few * k * sizeof(float));
    m->few_scale = take(&at, few * sizeof(float));
    m->few_experts = take(&at, few * k * sizeof(int32_t));
    m->few_offsets = take(&at, (experts + 2) * sizeof(int32_t));
    m->few_slots = take(&at, few * (k + 1) * sizeof(int32_t));
    m->thread_size = at;
}

/* base NULL: only the total counts. */
static moe_memory layout(const moe_run *run, int64_t max_tokens, int32_t threads, char *base)
{
    const moe_layer *layer = run->layer;
    moe_memory m = {0};
    size_t at = 0, block = (size_t)block_tokens(run, max_tokens), slots = (size_t)moe_slots(layer);
    size_t routed = layer->router ? (size_t)max_tokens : block, k = (size_t)layer->top_k, few = PRODUCT_FEW_TOKENS;
    size_t h_row = (size_t)product_panel_token(run->kernels, moe_most(layer->inter, layer->shared_inter));
    size_t weights = take(&at, routed * k * sizeof(float)), experts = take(&at, routed * k * sizeof(int32_t));
    size_t scale = take(&at, layer->shared_scale ? routed * sizeof(float) : 0);
    size_t offsets = take(&at, sizeof(int32_t) * (size_t)(layer->experts + 2));
    size_t list = take(&at, sizeof(int32_t) * block * slots), x_rows = take(&at, block * sizeof(void *));
    size_t results = take(&at, block * slots * (size_t)moe_result_row(run)), few_h = take(&at, few * slots * h_row);
    size_t logits = take(&at, few * (size_t)(layer->experts + 1) * (size_t)moe_element(run));
    size_t bad = take(&at, (size_t)threads * sizeof(int64_t));
    layout_thread(run, &m);
    size_t thread = take(&at, m.thread_size * (size_t)threads);
    m.total = at;
    if (!base)
        return m;
    m.routing = (moe_routing){.weights = (float *)(void *)(base + weights),
                              .shared_scale = (float *)(void *)(base + scale),
                              .experts = (int32_t *)(void *)(base + experts),
                              .offsets = (int32_t *)(void *)(base + offsets),
                              .slots = (int32_t *)(void *)(base + list)};
    m.x_rows = (const void **)(void *)(base + x_rows);
    m.results = base + results;
    m.few_h = base + few_h;
    m.few_logits = base + logits;
    m.bad = (int64_t *)(void *)(base + bad);
    m.thread = base + thread;
    return m;
}

size_t moe_scratch_size(const product_kernels *kernels, const moe_layer *layer, int64_t max_tokens, int32_t threads)
{
    const moe_run run = {.kernels = kernels, .layer = layer};
    return layout(&run, max_tokens, threads, NULL).total;
}

bool moe_route_token(const moe_run *run, const moe_routing *to, int64_t token, const char *logits, float *probability)
{
    const moe_layer *layer = run->layer;
    if (layer->shared_scale) {
        float z, rounded[1];
        product_finish finish = {layer->dtype, TN_ACT_LINEAR, NULL};
        run->kernels->widen(logits + layer->experts * moe_element(run), 1, &z);
        z = 1.0f / (1.0f + expf(-z));
        run->kernels->row_out(&z, &finish, 1, rounded);
        run->kernels->widen(rounded, 1, &to->shared_scale[token]);
    }
    return moe_choose(run->kernels, layer, logits, probability, to->weights + token * layer->top_k,
                      to->experts + token * layer->top_k);
}

void moe_take_routes(const moe_run *run, const moe_routing *to, int64_t first, int64_t n)
{
    int64_t k = run->layer->top_k;
    for (int64_t t = 0; t < n; t++) {
        const void *weights = product_row(run->weights, first + t);
        if (run->weights->dtype == TN_F32)
            memcpy(to->weights + t * k, weights, (size_t)k * sizeof(float));
        else
            run->kernels->widen(weights, k, to->weights + t * k);
        memcpy(to->experts + t * k, product_row(run->experts, first + t), (size_t)k * sizeof(int32_t));
    }
}

void moe_combine(const moe_run *run, const moe_routing *to, int64_t first, int64_t n, int32_t thread, int32_t threads)
{
    const moe_layer *layer = run->layer;
    int64_t begin, end, size = moe_element(run), k = layer->top_k, places = moe_slots(layer), row = moe_result_row(run);
    const void **parts = (const void **)(void *)(moe_thread_memory(run, thread) + run->memory.panel_x);
    product_share((layer->hidden + COLUMNS - 1) / COLUMNS, thread, threads, &begin, &end);
    begin *= COLUMNS;
    end = moe_least(end * COLUMNS, layer->hidden);
    for (int64_t t = 0; t < n && begin < end; t++) {
        const char *results = run->memory.results + t * places * row + begin * size;
        for (int64_t j = 0; j < k; j++)
            parts[j] = results + j * row;
        product_combine c = {.dtype = layer->dtype,
                             .part_dtype = layer->dtype,
                             .count = (int32_t)k,
                             .part = parts,
                             .weight = to->weights + t * k,
                             .extra = places > k ? results + k * row : NULL,
                             .extra_weight = layer->shared_scale ? to->shared_scale[t] : 1.0f};
        run->kernels->combine(&c, end - begin, (char *)product_row(run->y, first + t) + begin * size);
    }
}

static void body(void *ctx, int32_t thread, int32_t threads)
{
    const moe_run *run = ctx;
    if (run->tokens <= run->kernels->few_tokens)
        moe_few(run, thread, threads);
    else
        moe_many(run, thread, threads);
}

/* Ids of experts come from outside. */
static tn_status check_ids(const moe_layer *layer, const tn_tensor *experts, int64_t tokens, const char *where,
                           tn_error *err)
{
    for (int64_t t = 0; t < tokens; t++) {
        const int32_t *ids = product_row(experts, t);
        for (int64_t j = 0; j < layer->top_k; j++)
            if (ids[j] < 0 || ids[j] >= layer->experts)
                return tn_fail(err, TN_E_INPUT, where, "token %lld: expert %d is not one of the %lld experts",
                               (long long)t, ids[j], (long long)layer->experts);
    }
    return TN_OK;
}

tn_status moe_forward(const product_kernels *kernels, const moe_layer *layer, int64_t max_tokens, int32_t threads,
                      const tn_tensor *x, const tn_tensor *weights, const tn_tensor *experts, const tn_tensor *y,
                      void *scratch, const char *where, tn_error *err)
{
    moe_run run = {.kernels = kernels, .layer = layer, .x = x, .y = y, .weights = weights, .experts = experts};
    run.tokens = product_tokens(x);
    run.block = block_tokens(&run, max_tokens);
    run.memory = layout(&run, max_tokens, threads, scratch);
    if (run.tokens == 0)
        return TN_OK;
    if (!layer->router && check_ids(layer, experts, run.tokens, where, err))
        return TN_E_INPUT;
    if (layer->router)
        for (int32_t i = 0; i < threads; i++)
            run.memory.bad[i] = -1;
    int64_t inter = layer->top_k * layer->inter + layer->shared_inter;
    if (run.tokens * layer->hidden * inter * 3 < SERIAL_WORK)
        body(&run, 0, 1);
    else
        tn_parallel(body, &run);
    for (int32_t i = 0; layer->router && i < threads; i++)
        if (run.memory.bad[i] >= 0)
            return tn_fail(err, TN_E_INPUT, where, "token %lld: a router score is not a number; check the input",
                           (long long)run.memory.bad[i]);
    return TN_OK;
}
