/* One call: route, group, all experts, combine, in one parallel section. */
#include "moe.h"
#include <math.h>
#include <string.h>

/* Tokens grouped at once, unless the experts' results would fill more than this. */
#define BLOCK 512
#define RESULT_BYTES ((int64_t)32 << 20)
#define LEAST_BLOCK 64

/* Tokens of an expert that a thread takes through both products at once: their panels stay in the second cache. */
#define CHUNK 256

/* Products (multiply-adds) below which waking a second thread costs more than it saves. */
#define SERIAL_WORK 100000

/* Tokens of an expert stacked as [in, out] that go through its columns at once. */
#define FEW_COLUMNS 4

/* Columns of a result that threads share. */
#define COLUMNS 64

typedef struct moe_memory {
    float *weights;   /* [T,k] of the call, for a layer with a router                              */
    int32_t *experts; /* the same; or the caller's                                                 */
    int32_t *offsets, *slots;
    const void **x_rows, **native; /* of the block's tokens; native only few                       */
    char *results;                 /* a row of hidden elements of dtype per slot                   */
    float *shared_scale;           /* [T]                                                          */
    char *few_x, *few_h;           /* rows of native type                                          */
    char *few_logits;              /* rows of dtype: the experts', then the shared expert's one    */
    int64_t *bad;                  /* per thread: first token whose scores are NaN, or -1          */
    char *thread;
    /* Within one thread's memory: */
    size_t panel_x, panel_h, logits, probability, pointers, product, thread_size, total;
} moe_memory;

typedef struct moe_run {
    const product_kernels *kernels;
    const moe_layer *layer;
    const tn_tensor *x, *y, *weights, *experts;
    int64_t tokens, block;
    moe_memory memory;
} moe_run;

static size_t take(size_t *at, size_t bytes)
{
    size_t here = *at;
    *at += (bytes + 63) / 64 * 64;
    return here;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t element(const product_kernels *kernels)
{
    return kernels->dtype == TN_F32 ? 4 : 2;
}

/* Bytes from one slot's result to the next: an odd number of cache lines, so that a tile's tokens do not fall into the
 * same few sets of the cache. */
static int64_t result_row(const product_kernels *kernels, const moe_layer *layer)
{
    return ((layer->hidden * element(kernels) + 63) / 64 | 1) * 64;
}

static int64_t block_tokens(const product_kernels *kernels, const moe_layer *layer, int64_t max_tokens)
{
    int64_t fits = RESULT_BYTES / (moe_slots(layer) * result_row(kernels, layer));
    return least(max_tokens, least(BLOCK, most(fits, LEAST_BLOCK)));
}

static int64_t widest_inter(const moe_layer *layer)
{
    return most(layer->inter, layer->shared_inter);
}

/* What each thread has for itself. */
static void layout_thread(const product_kernels *kernels, const moe_layer *layer, moe_memory *m)
{
    size_t at = 0;
    m->panel_x = take(&at, CHUNK * (size_t)product_panel_token(kernels, layer->hidden));
    m->panel_h = take(&at, CHUNK * (size_t)product_panel_token(kernels, widest_inter(layer)));
    m->logits = take(&at, layer->router ? CHUNK * (size_t)((layer->experts + 1) * element(kernels)) : 0);
    m->probability = take(&at, layer->router ? sizeof(float) * (size_t)layer->experts : 0);
    m->pointers = take(&at, 3 * CHUNK * sizeof(void *));
    m->product = take(&at, product_scratch_size(kernels, most(layer->hidden, widest_inter(layer))));
    m->thread_size = at;
}

static moe_memory layout(const product_kernels *kernels, const moe_layer *layer, int64_t max_tokens, int32_t threads,
                         char *base)
{
    moe_memory m = {0};
    size_t at = 0, block = (size_t)block_tokens(kernels, layer, max_tokens), slots = (size_t)moe_slots(layer);
    size_t routes = layer->router ? (size_t)(max_tokens * layer->top_k) : block * (size_t)layer->top_k;
    size_t few = PRODUCT_FEW_TOKENS, size = (size_t)element(kernels), hidden = (size_t)layer->hidden;
    size_t weights = take(&at, routes * sizeof(float)), experts = take(&at, routes * sizeof(int32_t));
    size_t offsets = take(&at, sizeof(int32_t) * (size_t)(layer->experts + 2));
    size_t list = take(&at, sizeof(int32_t) * block * slots);
    size_t x_rows = take(&at, block * sizeof(void *)), native = take(&at, few * sizeof(void *));
    size_t results = take(&at, block * slots * (size_t)result_row(kernels, layer)),
           scale = take(&at, layer->shared_scale ? (size_t)max_tokens * sizeof(float) : 0);
    size_t few_x = take(&at, few * hidden * 4);
    size_t few_h = take(&at, few * slots * (size_t)product_panel_token(kernels, widest_inter(layer)));
    size_t logits = take(&at, few * (size_t)(layer->experts + 1) * size), bad = take(&at, (size_t)threads * 8);
    layout_thread(kernels, layer, &m);
    size_t thread = take(&at, m.thread_size * (size_t)threads);
    m.total = at;
    if (!base)
        return m;
    m.weights = (float *)(void *)(base + weights);
    m.experts = (int32_t *)(void *)(base + experts);
    m.offsets = (int32_t *)(void *)(base + offsets);
    m.slots = (int32_t *)(void *)(base + list);
    m.x_rows = (const void **)(void *)(base + x_rows);
    m.native = (const void **)(void *)(base + native);
    m.results = base + results;
    m.shared_scale = (float *)(void *)(base + scale);
    m.few_x = base + few_x;
    m.few_h = base + few_h;
    m.few_logits = base + logits;
    m.bad = (int64_t *)(void *)(base + bad);
    m.thread = base + thread;
    return m;
}

size_t moe_scratch_size(const product_kernels *kernels, const moe_layer *layer, int64_t max_tokens, int32_t threads)
{
    return layout(kernels, layer, max_tokens, threads, NULL).total;
}

/* ---- the router ------------------------------------------------------------------------------------------ */

static product_matrix dense_matrix(const tn_tensor *t)
{
    return (product_matrix){t->data, t->stride[0], 1, NULL};
}

static bool few_tokens(const moe_run *run)
{
    return run->tokens <= PRODUCT_FEW_TOKENS;
}

/* Pointers of a block's rows; few: as rows of native type too. */
static void find_rows(const moe_run *run, int64_t first, int64_t n)
{
    const moe_memory *m = &run->memory;
    for (int64_t t = 0; t < n; t++)
        m->x_rows[t] = product_row(run->x, first + t);
    if (few_tokens(run))
        product_native_rows(run->kernels, m->x_rows, n, run->layer->hidden, m->few_x, m->native);
}

/* One token's experts and weights from its logits, behind which that of the shared expert lies. False: NaN. */
static bool choose(const moe_run *run, int64_t token, const char *logits, float *probability)
{
    const moe_layer *layer = run->layer;
    const moe_memory *m = &run->memory;
    if (layer->shared_scale) {
        float z, rounded[1];
        product_finish finish = {layer->dtype, TN_ACT_LINEAR, NULL};
        run->kernels->widen(logits + layer->experts * element(run->kernels), 1, &z);
        z = 1.0f / (1.0f + expf(-z));
        run->kernels->row_out(&z, &finish, 1, rounded);
        run->kernels->widen(rounded, 1, &m->shared_scale[token]);
    }
    return moe_choose(run->kernels, layer, logits, probability, m->weights + token * layer->top_k,
                      m->experts + token * layer->top_k);
}

static void route_few(const moe_run *run, int32_t thread, int32_t threads)
{
    const product_kernels *kernels = run->kernels;
    const moe_layer *layer = run->layer;
    const moe_memory *m = &run->memory;
    char *mine = m->thread + (size_t)thread * m->thread_size;
    int64_t begin, end, size = element(kernels), row = (layer->experts + 1) * size;
    int32_t n = (int32_t)run->tokens;
    void *y[PRODUCT_FEW_TOKENS];
    if (thread == 0)
        find_rows(run, 0, n);
    product_wait(threads);
    product_matrix router = dense_matrix(layer->router);
    for (int32_t t = 0; t < n; t++)
        y[t] = m->few_logits + t * row;
    product_share_rows(layer->experts, thread, threads, &begin, &end);
    product_out_few(kernels, &router, layer->hidden, m->native, n, begin, end, y);
    if (thread == 0 && layer->shared_scale) {
        product_matrix scale = dense_matrix(layer->shared_scale);
        for (int32_t t = 0; t < n; t++)
            y[t] = m->few_logits + t * row + layer->experts * size;
        product_out_few(kernels, &scale, layer->hidden, m->native, n, 0, 1, y);
    }
    product_wait(threads);
    m->bad[thread] = -1;
    for (int32_t t = n - 1; t >= 0 && thread == 0; t--)
        if (!choose(run, t, m->few_logits + t * row, (float *)(void *)(mine + m->probability)))
            m->bad[0] = t;
}

/* Logits of n tokens from `first` on, in rows of experts + 1. */
static void many_logits(const moe_run *run, int64_t first, int64_t n, char *mine)
{
    const product_kernels *kernels = run->kernels;
    const moe_layer *layer = run->layer;
    const moe_memory *m = &run->memory;
    const void **x = (const void **)(void *)(mine + m->pointers);
    void **y = (void **)(void *)(x + CHUNK);
    int64_t size = element(kernels);
    for (int64_t t = 0; t < n; t++) {
        x[t] = product_row(run->x, first + t);
        y[t] = mine + m->logits + t * (layer->experts + 1) * size;
    }
    product_matrix router = dense_matrix(layer->router);
    product_pack(kernels, x, n, layer->hidden, 0, product_tiles(kernels, n), mine + m->panel_x);
    product_out_tiles(kernels, &router, layer->hidden, mine + m->panel_x, n, 0, layer->experts, y, mine + m->product);
    if (layer->shared_scale) {
        product_matrix scale = dense_matrix(layer->shared_scale);
        for (int64_t t = 0; t < n; t++)
            y[t] = (char *)y[t] + layer->experts * size;
        product_out_tiles(kernels, &scale, layer->hidden, mine + m->panel_x, n, 0, 1, y, mine + m->product);
    }
}

static void route_many(const moe_run *run, int32_t thread, int32_t threads)
{
    const moe_memory *m = &run->memory;
    char *mine = m->thread + (size_t)thread * m->thread_size;
    int64_t begin, end, row = (run->layer->experts + 1) * element(run->kernels);
    product_share_rows(run->tokens, thread, threads, &begin, &end);
    m->bad[thread] = -1;
    for (int64_t first = begin; first < end; first += CHUNK) {
        int64_t n = least(end - first, CHUNK);
        many_logits(run, first, n, mine);
        for (int64_t t = 0; t < n; t++)
            if (!choose(run, first + t, mine + m->logits + t * row, (float *)(void *)(mine + m->probability)) &&
                m->bad[thread] < 0)
                m->bad[thread] = first + t;
    }
}

/* ---- the experts ----------------------------------------------------------------------------------------- */

/* The caller's weights and ids of a block, as this file wants them. */
static void take_routes(const moe_run *run, int64_t first, int64_t n)
{
    int64_t k = run->layer->top_k;
    for (int64_t t = 0; t < n; t++) {
        const void *weights = product_row(run->weights, first + t);
        if (run->weights->dtype == TN_F32)
            memcpy(run->memory.weights + t * k, weights, (size_t)k * sizeof(float));
        else
            run->kernels->widen(weights, k, run->memory.weights + t * k);
        memcpy(run->memory.experts + t * k, product_row(run->experts, first + t), (size_t)k * sizeof(int32_t));
    }
}

/* Few tokens: all rows of all experts in use form one list, of which each thread does a part. down: the second half. */
static void experts_few(const moe_run *run, bool down, int32_t thread, int32_t threads)
{
    const product_kernels *kernels = run->kernels;
    const moe_layer *layer = run->layer;
    const moe_memory *m = &run->memory;
    int64_t units = 0, begin, end, places = moe_slots(layer), result = result_row(kernels, layer);
    int64_t h_row = product_panel_token(kernels, widest_inter(layer));
    for (int64_t e = 0; e <= layer->experts; e++) {
        int64_t rows = down ? layer->hidden : e < layer->experts ? layer->inter : layer->shared_inter;
        units += m->offsets[e + 1] > m->offsets[e] ? (rows + product_unit - 1) / product_unit : 0;
    }
    product_share(units, thread, threads, &begin, &end);
    for (int64_t e = 0; e <= layer->experts && end > 0; e++) {
        const void *x[PRODUCT_FEW_TOKENS];
        void *h[PRODUCT_FEW_TOKENS], *y[PRODUCT_FEW_TOKENS];
        int32_t n = m->offsets[e + 1] - m->offsets[e];
        int64_t rows = down ? layer->hidden : e < layer->experts ? layer->inter : layer->shared_inter;
        int64_t here = n ? (rows + product_unit - 1) / product_unit : 0;
        for (int32_t i = 0; i < n && begin < here; i++) {
            int64_t slot = m->slots[m->offsets[e] + i];
            x[i] = m->native[slot / places];
            h[i] = m->few_h + slot * h_row;
            y[i] = m->results + slot * result;
        }
        int64_t first = most(begin, 0) * product_unit, last = least(least(end, here) * product_unit, rows);
        product_mlp mlp = first < last ? moe_expert(layer, e) : (product_mlp){.inter = 0};
        if (first < last && down)
            product_out_few(kernels, &mlp.down, mlp.inter, (const void *const *)h, n, first, last, y);
        else if (first < last)
            product_glu_few(kernels, &mlp, layer->hidden, layer->act, x, n, first, last, h);
        begin -= here;
        end -= here;
    }
}

/* Tokens first .. last - 1 of expert e, through both products. */
static void expert_part(const moe_run *run, int64_t e, int64_t first, int64_t last, char *mine)
{
    const product_kernels *kernels = run->kernels;
    const moe_layer *layer = run->layer;
    const moe_memory *m = &run->memory;
    product_mlp mlp = moe_expert(layer, e);
    const void **x = (const void **)(void *)(mine + m->pointers);
    void **y = (void **)(void *)(x + CHUNK), **h = y + CHUNK;
    int64_t places = moe_slots(layer);
    int64_t h_row = product_panel_token(kernels, mlp.inter);
    int32_t few_limit = layer->layout == TN_LAYOUT_STACKED_IO ? FEW_COLUMNS : PRODUCT_FEW_TOKENS;
    bool few = m->offsets[e + 1] - m->offsets[e] <= few_limit;
    for (; first < last; first += CHUNK) {
        int64_t n = least(last - first, CHUNK);
        for (int64_t i = 0; i < n; i++) {
            int64_t slot = m->slots[m->offsets[e] + first + i];
            x[i] = m->x_rows[slot / places];
            y[i] = m->results + slot * result_row(kernels, layer);
            h[i] = mine + m->panel_h + i * h_row;
        }
        if (few) {
            product_native_rows(kernels, x, n, layer->hidden, mine + m->panel_x, x);
            product_glu_few(kernels, &mlp, layer->hidden, layer->act, x, (int32_t)n, 0, mlp.inter, h);
            product_out_few(kernels, &mlp.down, mlp.inter, (const void *const *)h, (int32_t)n, 0, layer->hidden, y);
        } else {
            product_pack(kernels, x, n, layer->hidden, 0, product_tiles(kernels, n), mine + m->panel_x);
            product_glu_tiles(kernels, &mlp, layer->hidden, layer->act, mine + m->panel_x, n, 0, mlp.inter,
                              mine + m->panel_h, mine + m->product);
            product_out_tiles(kernels, &mlp.down, mlp.inter, mine + m->panel_h, n, 0, layer->hidden, y,
                              mine + m->product);
        }
    }
}

static void experts_many(const moe_run *run, int32_t thread, int32_t threads)
{
    const moe_memory *m = &run->memory;
    moe_place from = moe_cut(run->layer, m->offsets, thread, threads);
    moe_place to = moe_cut(run->layer, m->offsets, thread + 1, threads);
    for (int64_t e = from.expert; e <= to.expert && e <= run->layer->experts; e++) {
        int64_t n = m->offsets[e + 1] - m->offsets[e];
        int64_t first = e == from.expert ? from.token : 0, last = e == to.expert ? to.token : n;
        if (first < last)
            expert_part(run, e, first, last, m->thread + (size_t)thread * m->thread_size);
    }
}

/* The results of a block's tokens become y, every thread doing some columns. */
static void combine(const moe_run *run, int64_t first, int64_t n, int32_t thread, int32_t threads)
{
    const moe_layer *layer = run->layer;
    const moe_memory *m = &run->memory;
    int64_t begin, end, size = element(run->kernels), places = moe_slots(layer), row = result_row(run->kernels, layer);
    const float *weights = layer->router ? m->weights + first * layer->top_k : m->weights;
    const void **parts = (const void **)(void *)(m->thread + (size_t)thread * m->thread_size + m->panel_x);
    product_share((layer->hidden + COLUMNS - 1) / COLUMNS, thread, threads, &begin, &end);
    begin *= COLUMNS;
    end = least(end * COLUMNS, layer->hidden);
    for (int64_t t = 0; t < n && begin < end; t++) {
        const char *results = m->results + t * places * row + begin * size;
        for (int64_t j = 0; j < layer->top_k; j++)
            parts[j] = results + j * row;
        product_combine c = {.dtype = layer->dtype,
                             .round_parts = !layer->f32_weights,
                             .count = (int32_t)layer->top_k,
                             .part = parts,
                             .weight = weights + t * layer->top_k,
                             .extra = places > layer->top_k ? results + layer->top_k * row : NULL,
                             .extra_weight = layer->shared_scale ? m->shared_scale[first + t] : 1.0f};
        run->kernels->combine(&c, end - begin, (char *)product_row(run->y, first + t) + begin * size);
    }
}

static void body(void *ctx, int32_t thread, int32_t threads)
{
    const moe_run *run = ctx;
    const moe_memory *m = &run->memory;
    const moe_layer *layer = run->layer;
    if (layer->router) {
        if (few_tokens(run))
            route_few(run, thread, threads);
        else
            route_many(run, thread, threads);
        product_wait(threads);
        for (int32_t i = 0; i < threads; i++)
            if (m->bad[i] >= 0)
                return;
    }
    for (int64_t first = 0; first < run->tokens; first += run->block) {
        int64_t n = least(run->tokens - first, run->block);
        if (thread == 0) {
            find_rows(run, first, n);
            if (!layer->router)
                take_routes(run, first, n);
            moe_group(layer, layer->router ? m->experts + first * layer->top_k : m->experts, n, m->offsets, m->slots);
        }
        product_wait(threads);
        if (few_tokens(run)) {
            experts_few(run, false, thread, threads);
            product_wait(threads);
            experts_few(run, true, thread, threads);
        } else {
            experts_many(run, thread, threads);
        }
        product_wait(threads);
        combine(run, first, n, thread, threads);
        product_wait(threads);
    }
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
    run.block = block_tokens(kernels, layer, max_tokens);
    run.memory = layout(kernels, layer, max_tokens, threads, scratch);
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
