/* One call: its memory, and the steps that few and many tokens have in common. */
#include "moe_apart.h"
#include "scratch.h"
#include <string.h>

/* Tokens grouped at once, unless what lies between the products, and the results, would fill more than this. */
#define MOST_BLOCK 4096
#define BLOCK_BYTES ((int64_t)64 << 20)
#define LEAST_BLOCK 64

/* Multiply-adds that one thread does while the team wakes up and meets at a barrier (1.5 us): less work than this stays
 * on the calling thread. */
#define SERIAL_WORK 30000

/* Blocks of a call are equal: the last one would have too few tokens per expert otherwise. */
static int64_t block_tokens(const moe_layer *layer, int64_t tokens)
{
    int64_t h = layer->top_k * moe_h_row(layer, 0) + (layer->shared_inter ? moe_h_row(layer, layer->experts) : 0);
    int64_t fits = BLOCK_BYTES / (h + layer->hidden * (int64_t)sizeof(float));
    int64_t most = moe_least(MOST_BLOCK, moe_most(fits, LEAST_BLOCK)), blocks = (tokens + most - 1) / most;
    return blocks > 1 ? (tokens + blocks - 1) / blocks : tokens;
}

/* The most that block_tokens gives for any number of tokens up to this. */
static int64_t most_block(const moe_layer *layer, int64_t max_tokens)
{
    int64_t h = layer->top_k * moe_h_row(layer, 0) + (layer->shared_inter ? moe_h_row(layer, layer->experts) : 0);
    int64_t fits = BLOCK_BYTES / (h + layer->hidden * (int64_t)sizeof(float));
    return moe_least(max_tokens, moe_least(MOST_BLOCK, moe_most(fits, LEAST_BLOCK)));
}

/* What each thread has for itself. */
static void layout_thread(const moe_layer *layer, moe_memory *m)
{
    const product_kernels *kernels = layer->kernels;
    int64_t inter = moe_most(layer->inter, layer->shared_inter);
    bool routes = layer->router.weight;
    size_t at = 0, few = PRODUCT_FEW_TOKENS, experts = (size_t)layer->experts, k = (size_t)layer->top_k;
    size_t chunk = (size_t)pieces_tokens(kernels);
    m->panel_x = scratch_take(&at, chunk * (size_t)product_panel_token(kernels, layer->hidden));
    m->strip = scratch_take(&at, chunk * MOE_STRIP * sizeof(float));
    m->x_rows = scratch_take(&at, chunk * sizeof(void *));
    m->y_rows = scratch_take(&at, chunk * sizeof(void *));
    m->apart = scratch_take(
        &at, moe_is_apart(layer, 0) || moe_is_apart(layer, layer->experts) ? moe_apart_size(layer, (int64_t)chunk) : 0);
    m->scaled = scratch_take(&at, layer->scaled ? chunk * (size_t)(layer->hidden * moe_element(layer)) : 0);
    m->product = scratch_take(&at, product_scratch_size(kernels, moe_most(layer->hidden, inter)));
    m->router = scratch_take(&at, routes ? router_scratch_size(&layer->router) : 0);
    m->few_logits = scratch_take(&at, routes ? 2 * (experts + 1) * sizeof(float) : 0);
    m->few_x = scratch_take(&at, kernels->variant->native == kernels->dtype
                                     ? 0
                                     : (layer->scaled ? 2 : 1) * few * (size_t)layer->hidden * sizeof(float));
    m->few_weights = scratch_take(&at, few * k * sizeof(float));
    m->few_scale = scratch_take(&at, few * sizeof(float));
    m->few_experts = scratch_take(&at, few * k * sizeof(int32_t));
    m->few_offsets = scratch_take(&at, (experts + 2) * sizeof(int64_t));
    m->few_slots = scratch_take(&at, few * (k + 1) * sizeof(int32_t));
    m->thread_size = at;
}

/* Bytes of h for a block: every expert in use fills up its last tile. */
static size_t h_bytes(const moe_layer *layer, int64_t block)
{
    const product_kernels *kernels = layer->kernels;
    int64_t slots = block * layer->top_k, used = moe_least(layer->experts, slots);
    int64_t fill = moe_most(kernels->variant->min_tokens, kernels->variant->lanes);
    size_t bytes = (size_t)((slots + used * fill) * moe_h_row(layer, 0));
    return bytes + (size_t)(layer->shared_inter ? (block + fill) * moe_h_row(layer, layer->experts) : 0);
}

/* base NULL: only the total counts. */
static moe_memory layout(const moe_layer *layer, int64_t max_tokens, int32_t threads, char *base)
{
    moe_memory m = {0};
    int64_t most = most_block(layer, max_tokens);
    size_t at = 0, block = (size_t)most, slots = (size_t)moe_slots(layer), experts = (size_t)layer->experts;
    size_t routed = layer->router.weight ? (size_t)max_tokens : block, k = (size_t)layer->top_k;
    size_t few = PRODUCT_FEW_TOKENS, hidden = (size_t)layer->hidden;
    size_t weights = scratch_take(&at, routed * k * sizeof(float)),
           ids = scratch_take(&at, routed * k * sizeof(int32_t));
    size_t scale = scratch_take(&at, layer->shared_scale ? routed * sizeof(float) : 0);
    size_t offsets = scratch_take(&at, sizeof(int64_t) * (experts + 2)),
           h_at = scratch_take(&at, sizeof(int64_t) * (experts + 2));
    size_t list = scratch_take(&at, sizeof(int32_t) * block * slots);
    int64_t rows = most * (int64_t)slots;
    size_t pieces =
        scratch_take(&at, sizeof(piece) * (size_t)pieces_most(layer->kernels, layer->experts + 1, rows, threads));
    size_t h_few = few * slots * (size_t)moe_few_h_row(layer);
    size_t h_all = h_bytes(layer, most);
    size_t h = scratch_take(&at, h_few > h_all ? h_few : h_all),
           sums = scratch_take(&at, block * hidden * sizeof(float));
    size_t results = scratch_take(&at, few * slots * hidden * sizeof(float));
    size_t logits = scratch_take(&at, few * (experts + 1) * sizeof(float)),
           bad = scratch_take(&at, (size_t)threads * sizeof(int64_t));
    layout_thread(layer, &m);
    size_t thread = scratch_take(&at, m.thread_size * (size_t)threads);
    m.total = at;
    if (!base)
        return m;
    m.routed.weights = (float *)(void *)(base + weights);
    m.routed.experts = (int32_t *)(void *)(base + ids);
    m.scale = (float *)(void *)(base + scale);
    m.offsets = (int64_t *)(void *)(base + offsets);
    m.h_at = (int64_t *)(void *)(base + h_at);
    m.slots = (int32_t *)(void *)(base + list);
    m.pieces = (piece *)(void *)(base + pieces);
    m.h = base + h;
    m.sums = (float *)(void *)(base + sums);
    m.results = (float *)(void *)(base + results);
    m.logits = (float *)(void *)(base + logits);
    m.bad = (int64_t *)(void *)(base + bad);
    m.thread = base + thread;
    return m;
}

size_t moe_scratch_size(const moe_layer *layer, int64_t max_tokens, int32_t threads)
{
    return layout(layer, max_tokens, threads, NULL).total;
}

void moe_scale_row(const moe_layer *layer, const void *x, float weight, void *to)
{
    float part[256];
    int64_t size = moe_element(layer), most = (int64_t)(sizeof part / sizeof *part);
    for (int64_t i = 0; i < layer->hidden; i += most) {
        int64_t n = moe_least(layer->hidden - i, most);
        layer->kernels->widen((const char *)x + i * size, n, part);
        for (int64_t j = 0; j < n; j++)
            part[j] *= weight;
        pieces_round(layer->kernels, part, n, (char *)to + i * size);
    }
}

void moe_take_routes(const moe_layer *layer, const moe_input *in, const routes *to, int64_t first, int64_t n)
{
    int64_t k = layer->top_k;
    for (int64_t t = 0; t < n; t++) {
        const void *weights = product_row(in->weights, first + t);
        if (in->weights->dtype == TN_F32)
            memcpy(to->weights + t * k, weights, (size_t)k * sizeof(float));
        else
            layer->kernels->widen(weights, k, to->weights + t * k);
        memcpy(to->experts + t * k, product_row(in->experts, first + t), (size_t)k * sizeof(int32_t));
    }
}

static void body(void *ctx, int32_t thread, int32_t threads)
{
    const moe_run *run = ctx;
    if (run->tokens <= run->layer->kernels->variant->few_tokens)
        moe_few(run, thread, threads);
    else
        moe_many(run, thread, threads);
}

tn_status moe_check_ids(const moe_layer *layer, const moe_input *in, tn_error *err)
{
    for (int64_t t = 0, tokens = product_tokens(in->x); t < tokens; t++) {
        const char *ids = product_row(in->experts, t);
        for (int64_t j = 0; j < layer->top_k; j++) {
            int32_t id;
            memcpy(&id, ids + j * (int64_t)sizeof id, sizeof id);
            if (id < 0 || id >= layer->experts)
                return tn_fail(err, TN_E_INPUT, in->where,
                               "token %lld asks for expert %d, there are experts 0 to %lld; check the router",
                               (long long)t, id, (long long)layer->experts - 1);
        }
    }
    return TN_OK;
}

tn_status moe_forward(const moe_layer *layer, const moe_input *in, const tn_tensor *y, void *scratch, tn_error *err)
{
    product_queue pieces = {0};
    product_ranges gates = {0}, columns = {0};
    int64_t piece_count = 0;
    moe_run run = {.layer = layer,
                   .in = in,
                   .y = y,
                   .pieces = &pieces,
                   .gates = &gates,
                   .columns = &columns,
                   .piece_count = &piece_count};
    run.tokens = product_tokens(in->x);
    run.block = block_tokens(layer, run.tokens);
    run.memory = layout(layer, in->max_tokens, in->threads, scratch);
    if (run.tokens == 0)
        return TN_OK;
    tn_status status =
        layer->router.weight ? router_check(&layer->router, in->where, err) : moe_check_ids(layer, in, err);
    if (status != TN_OK)
        return status;
    for (int32_t i = 0; i < in->threads; i++)
        run.memory.bad[i] = -1;
    int64_t inter = layer->top_k * layer->inter + layer->shared_inter;
    if (run.tokens * layer->hidden * inter * 3 < SERIAL_WORK)
        body(&run, 0, 1);
    else
        tn_parallel(body, &run);
    return router_bad_token(run.memory.bad, in->threads, in->where, err);
}
