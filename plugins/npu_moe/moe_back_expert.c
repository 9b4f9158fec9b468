/* The gradients of one expert: see moe_back.h. */
#include "moe_apart.h"
#include "moe_back.h"
#include "scalar.h"
#include <string.h>

/* An expert with its tokens. */
typedef struct expert {
    const moe_back *b;
    const product_kernels *kernels;
    int64_t e, n, inter, hidden, size, few;
    product_mlp mlp;
    char *mine;
    int32_t thread, threads;
} expert;

static expert open_expert(const moe_back *b, int64_t e, int32_t thread, int32_t threads)
{
    const moe_layer *layer = b->layer;
    expert x = {.b = b,
                .kernels = layer->kernels,
                .e = e,
                .n = b->offsets[e + 1] - b->offsets[e],
                .inter = e < layer->experts ? layer->inter : layer->shared_inter,
                .hidden = layer->hidden,
                .size = moe_element(layer),
                .few = pieces_few(layer->kernels, true),
                .mlp = moe_expert(layer, e),
                .mine = b->thread + (size_t)thread * b->thread_size,
                .thread = thread,
                .threads = threads};
    return x;
}

static int64_t take(const expert *x, int step)
{
    return atomic_fetch_add(&x->b->queues[step].next, 1);
}

/* ---- rows ---------------------------------------------------------------------------------------------------- */

/* Rows from .. from + n - 1 of [n,width] in memory, and their part of a panel; few: rows of native type. */
static void panel_rows(const expert *x, const char *rows, int64_t from, int64_t n, int64_t stride, int64_t width,
                       char *panel)
{
    const void **list = (const void **)(void *)(x->mine + x->b->x_rows);
    for (int64_t i = 0; i < n; i++)
        list[i] = rows + (from + i) * stride * x->size;
    if (x->n > x->few)
        product_pack(x->kernels, list, n, width, 0, product_tiles(x->kernels, n),
                     panel + from * product_panel_token(x->kernels, width));
    else if (x->kernels->variant->native != x->kernels->dtype)
        product_native_rows(x->kernels, list, n, width, panel, list);
}

static int64_t chunks_of(const expert *x)
{
    return x->n > x->few ? pieces_chunks(x->kernels, x->n) : 1;
}

static void chunk_of(const expert *x, int64_t i, int64_t *first, int64_t *n)
{
    *first = 0;
    *n = x->n;
    if (x->n > x->few)
        pieces_chunk(x->kernels, x->n, i, first, n);
}

static void step_rows(const expert *x)
{
    const moe_back *b = x->b;
    size_t bytes = (size_t)(x->hidden * x->size);
    int64_t places = moe_slots(b->layer);
    for (int64_t i; (i = take(x, BACK_ROWS)) < chunks_of(x);) {
        int64_t first, n;
        chunk_of(x, i, &first, &n);
        for (int64_t t = first; t < first + n; t++) {
            int64_t slot = b->slots[b->offsets[x->e] + t], token = slot / places;
            const float *weight = moe_input_weight(b->layer, &b->routed, slot);
            if (weight)
                moe_scale_row(b->layer, product_row(b->in->x, token), *weight, b->x + (size_t)t * bytes);
            else
                memcpy(b->x + (size_t)t * bytes, product_row(b->in->x, token), bytes);
            memcpy(b->g + (size_t)t * bytes, product_row(&b->grads->out[0], token), bytes);
        }
        panel_rows(x, b->x, first, n, x->hidden, x->hidden, b->x_panel);
        panel_rows(x, b->g, first, n, x->hidden, x->hidden, b->g_panel);
    }
}

/* ---- products ------------------------------------------------------------------------------------------------- */

/* y[i][0 .. end - begin - 1] = rows begin .. end - 1 of w, times tokens first .. first + n - 1 of what rows and panel
 * hold. */
static void product(const expert *x, const product_matrix *w, int64_t k, const char *rows, int64_t stride,
                    const char *panel, int64_t first, int64_t n, int64_t begin, int64_t end, float *y)
{
    const product_kernels *kernels = x->kernels;
    void **to = (void **)(void *)(x->mine + x->b->y_rows);
    product_matrix part = pieces_rows_from(kernels, w, begin);
    for (int64_t i = 0; i < n; i++)
        to[i] = y + i * (end - begin);
    if (x->n > x->few) {
        product_out_tiles(kernels, &part, k, panel + first * product_panel_token(kernels, k), n,
                          product_rows_of(0, end - begin), TN_F32, to, x->mine + x->b->product);
        return;
    }
    const void *list[PRODUCT_FEW_TOKENS];
    for (int64_t i = 0; i < n; i++) {
        list[i] = rows + (first + i) * stride * x->size;
        if (kernels->variant->native != kernels->dtype)
            list[i] = panel + (first + i) * k * (int64_t)sizeof(float);
    }
    product_out_few(kernels, &part, k, list, (int32_t)n, product_rows_of(0, end - begin), TN_F32, to);
}

static product_matrix turned(const product_matrix *w)
{
    return (product_matrix){w->data, w->k_stride, w->row_stride, NULL};
}

/* ---- features --------------------------------------------------------------------------------------------------- */

/* Features begin .. end - 1, at most MOE_FEATURES, of tokens first .. first + n - 1. */
static void features(const expert *x, int64_t first, int64_t n, int64_t begin, int64_t end)
{
    const moe_back *b = x->b;
    const product_matrix down = turned(&x->mlp.down);
    int64_t width = end - begin, blocks = (x->inter + MOE_FEATURES - 1) / MOE_FEATURES;
    float *gate = (float *)(void *)(x->mine + b->strips), *up = gate + pieces_tokens(x->kernels) * MOE_STRIP;
    float *p = up + pieces_tokens(x->kernels) * MOE_STRIP;
    product(x, &x->mlp.gate, x->hidden, b->x, x->hidden, b->x_panel, first, n, begin, end, gate);
    product(x, &x->mlp.up, x->hidden, b->x, x->hidden, b->x_panel, first, n, begin, end, up);
    product(x, &down, x->hidden, b->g, x->hidden, b->g_panel, first, n, begin, end, p);
    for (int64_t i = 0; i < n; i++) {
        int64_t token = first + i, slot = b->slots[b->offsets[x->e] + token];
        char *both = b->both + (token * 2 * x->inter + begin) * x->size;
        const gate_row row = {.act = b->layer->act,
                              .dtype = x->kernels->dtype,
                              .gate = gate + i * width,
                              .up = up + i * width,
                              .h = b->h + (token * x->inter + begin) * x->size,
                              .dh = p + i * width,
                              .scale = moe_weight(b->layer, &b->routed, b->scale, slot),
                              .d_gate = both,
                              .d_up = both + x->inter * x->size};
        b->dots[token * blocks + begin / MOE_FEATURES] = b->layer->gates->grad(&row, width);
    }
}

/* Gradients of n features of gate and up, in the order of their matrix. */
static void store_both(const expert *x, int64_t token, int64_t begin, int64_t n, const float *d_gate, const float *d_up)
{
    char *row = x->b->both + token * 2 * x->inter * x->size;
    float both[2 * MOE_FEATURES];
    if (!moe_mlp_pairs(&x->mlp)) {
        pieces_round(x->kernels, d_gate, n, row + begin * x->size);
        pieces_round(x->kernels, d_up, n, row + (x->inter + begin) * x->size);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        both[2 * i] = d_gate[i];
        both[2 * i + 1] = d_up[i];
    }
    pieces_round(x->kernels, both, 2 * n, row + 2 * begin * x->size);
}

/* The same as features of experts whose activation is apart. */
static void features_apart(const expert *x, int64_t first, int64_t n, int64_t begin, int64_t end)
{
    const moe_back *b = x->b;
    const moe_layer *layer = b->layer;
    const product_matrix down = turned(&x->mlp.down);
    const product_matrix of_gate = moe_apart_matrix(&x->mlp.gate), of_up = moe_apart_matrix(&x->mlp.up);
    int64_t width = end - begin, blocks = (x->inter + MOE_FEATURES - 1) / MOE_FEATURES;
    float *sums = (float *)(void *)(x->mine + b->strips), *ups = sums + pieces_tokens(x->kernels) * MOE_STRIP;
    float *p = ups + pieces_tokens(x->kernels) * MOE_STRIP;
    int64_t both = moe_mlp_pairs(&x->mlp) ? 2 : 1; /* rows of a feature in the first matrix */
    product(x, &of_gate, x->hidden, b->x, x->hidden, b->x_panel, first, n, both * begin, both * end, sums);
    if (both == 1)
        product(x, &of_up, x->hidden, b->x, x->hidden, b->x_panel, first, n, begin, end, ups);
    product(x, &down, x->hidden, b->g, x->hidden, b->g_panel, first, n, begin, end, p);
    for (int64_t i = 0; i < n; i++) {
        float gate[MOE_FEATURES], up[MOE_FEATURES], h[MOE_FEATURES], d_gate[MOE_FEATURES], d_up[MOE_FEATURES];
        int64_t token = first + i, slot = b->slots[b->offsets[x->e] + token];
        float weight = moe_weight(layer, &b->routed, b->scale, slot);
        moe_apart_split(layer, &x->mlp, sums + i * both * width, ups + i * width, begin, width, gate, up);
        b->dots[token * blocks + begin / MOE_FEATURES] =
            moe_apart_grad(layer, gate, up, width, p + i * width, weight, h, d_gate, d_up);
        pieces_round(x->kernels, h, width, b->h + (token * x->inter + begin) * x->size);
        store_both(x, token, begin, width, d_gate, d_up);
    }
}

static void step_features(const expert *x)
{
    int64_t blocks = (x->inter + MOE_FEATURES - 1) / MOE_FEATURES, chunks = chunks_of(x);
    for (int64_t i; (i = take(x, BACK_FEATURES)) < chunks * blocks;) {
        int64_t first, n, begin = i % blocks * MOE_FEATURES;
        chunk_of(x, i / blocks, &first, &n);
        (moe_is_apart(x->b->layer, x->e) ? features_apart : features)(x, first, n, begin,
                                                                      moe_least(begin + MOE_FEATURES, x->inter));
    }
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* dw[r][c] = sum of a[t][r] b[t][c]; dw NULL: not wanted. */
typedef struct weight_grad {
    product_tokens_matrix a, b;
    int64_t rows, columns, stride;
    char *dw;
} weight_grad;

/* Tensor `which` of a role, or of a stacked one the part that belongs to the expert; NULL: not wanted. */
static char *gradient(const expert *x, tn_role role, int64_t which, bool stacked, int64_t *stride)
{
    const tn_param *p = &x->b->grads->param[role];
    if (!p->count)
        return NULL;
    const tn_tensor *t = &p->tensors[stacked ? 0 : which];
    *stride = t->stride[stacked ? 1 : 0];
    return (char *)t->data + (stacked ? which * t->stride[0] * x->size : 0);
}

/* The gradients of an expert's two or three tensors. */
static int weight_grads(const expert *x, weight_grad *list)
{
    const moe_back *b = x->b;
    const product_tokens_matrix in = {b->x, x->hidden}, g = {b->g, x->hidden}, h = {b->h, x->inter};
    const product_tokens_matrix both = {b->both, 2 * x->inter}, dup = {b->both + x->inter * x->size, 2 * x->inter};
    bool shared = x->e == b->layer->experts, list_layout = b->layer->layout == TN_LAYOUT_EXPERT_LIST;
    int64_t which = shared ? 0 : x->e;
    if (shared || list_layout) {
        list[0] = (weight_grad){.a = both, .b = in, .rows = x->inter, .columns = x->hidden};
        list[1] = (weight_grad){.a = dup, .b = in, .rows = x->inter, .columns = x->hidden};
        list[2] = (weight_grad){.a = g, .b = h, .rows = x->hidden, .columns = x->inter};
        list[0].dw = gradient(x, shared ? TN_ROLE_SHARED_GATE : TN_ROLE_GATE, which, false, &list[0].stride);
        list[1].dw = gradient(x, shared ? TN_ROLE_SHARED_UP : TN_ROLE_UP, which, false, &list[1].stride);
        list[2].dw = gradient(x, shared ? TN_ROLE_SHARED_DOWN : TN_ROLE_DOWN, which, false, &list[2].stride);
        return 3;
    }
    if (b->layer->layout == TN_LAYOUT_STACKED_OI) {
        list[0] = (weight_grad){.a = both, .b = in, .rows = 2 * x->inter, .columns = x->hidden};
        list[1] = (weight_grad){.a = g, .b = h, .rows = x->hidden, .columns = x->inter};
    } else {
        list[0] = (weight_grad){.a = in, .b = both, .rows = x->hidden, .columns = 2 * x->inter};
        list[1] = (weight_grad){.a = h, .b = g, .rows = x->inter, .columns = x->hidden};
    }
    list[0].dw = gradient(x, TN_ROLE_GATE_UP, which, true, &list[0].stride);
    list[1].dw = gradient(x, TN_ROLE_DOWN, which, true, &list[1].stride);
    return 2;
}

/* What the bias of the second product adds to dL/dweight of token t. */
static float bias_dot(const expert *x, int64_t t)
{
    float sum = 0.0f;
    for (int64_t i = 0; i < x->hidden; i++)
        sum += scalar_load(x->b->g, t * x->hidden + i, x->kernels->dtype) *
               scalar_load(x->mlp.down.bias, i, x->kernels->dtype);
    return sum;
}

/* dL/dweight of the tokens that the thread shares. */
static void add_dots(const expert *x)
{
    const moe_back *b = x->b;
    int64_t begin, end, blocks = (x->inter + MOE_FEATURES - 1) / MOE_FEATURES;
    product_share(x->n, x->thread, x->threads, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        float sum = 0.0f;
        for (int64_t i = 0; i < blocks; i++)
            sum += b->dots[t * blocks + i];
        if (x->mlp.down.bias)
            sum += bias_dot(x, t);
        b->dweights[b->slots[b->offsets[x->e] + t]] = sum;
    }
}

/* Sums over the expert's tokens of rows of [n, columns], each times what its slot counts where weighted, into a row of
 * a bias's gradient; columns are shared between threads. */
static void bias_grad(const expert *x, tn_role role, const char *rows, int64_t columns, bool weighted)
{
    const moe_back *b = x->b;
    const tn_param *param = &b->grads->param[role];
    int64_t begin, end;
    if (!param->count || x->e == b->layer->experts)
        return;
    const tn_tensor *to = param->tensors;
    product_share(columns, x->thread, x->threads, &begin, &end);
    for (int64_t c = begin; c < end; c++) {
        float sum = 0.0f;
        for (int64_t t = 0; t < x->n; t++) {
            int64_t slot = b->slots[b->offsets[x->e] + t];
            float weight = weighted ? moe_weight(b->layer, &b->routed, b->scale, slot) : 1.0f;
            sum += weight * scalar_load(rows, t * columns + c, x->kernels->dtype);
        }
        scalar_store(to->data, x->e * to->stride[0] + c, to->dtype, sum);
    }
}

static void bias_grads(const expert *x)
{
    bias_grad(x, TN_ROLE_GATE_UP_BIAS, x->b->both, 2 * x->inter, false);
    bias_grad(x, TN_ROLE_DOWN_BIAS, x->b->g, x->hidden, true);
}

/* Do the expert's gates and ups take turns? */
static bool pairs_of(const expert *x)
{
    return moe_mlp_pairs(&x->mlp);
}

static void step_weights(const expert *x)
{
    const moe_back *b = x->b;
    weight_grad list[3];
    int count = weight_grads(x, list);
    int64_t panels = b->columns ? chunks_of(x) : 0, index;
    if (!b->layer->scaled || x->e == b->layer->experts)
        add_dots(x);
    bias_grads(x);
    while ((index = take(x, BACK_WEIGHTS)) < panels) {
        int64_t first, n;
        chunk_of(x, index, &first, &n);
        if (pairs_of(x)) {
            panel_rows(x, b->both, first, n, 2 * x->inter, 2 * x->inter, b->gate_panel);
            continue;
        }
        panel_rows(x, b->both, first, n, 2 * x->inter, x->inter, b->gate_panel);
        panel_rows(x, b->both + x->inter * x->size, first, n, 2 * x->inter, x->inter, b->up_panel);
    }
    for (;; index = take(x, BACK_WEIGHTS)) {
        int64_t piece = index - panels;
        int i = 0;
        for (; i < count; i++) {
            int64_t rows = pieces_grad_rows(list[i].rows, x->threads), pieces = (list[i].rows + rows - 1) / rows;
            if (piece < pieces) {
                if (list[i].dw)
                    product_weight_grad(x->kernels, &list[i].a, &list[i].b, x->n, piece * rows,
                                        moe_least((piece + 1) * rows, list[i].rows), list[i].columns, list[i].dw,
                                        list[i].stride, x->mine + b->grad);
                break;
            }
            piece -= pieces;
        }
        if (i == count)
            return;
    }
}

/* ---- columns ---------------------------------------------------------------------------------------------------- */

/* Of a slot whose weight is a factor of its input, strip i of the columns: with d the sum of both parts, which become
 * w d and zeros, the strip's part of d . x. */
static void scale_back(const expert *x, int64_t slot, int64_t i, float weight, float *first_part, float *second_part)
{
    const moe_back *b = x->b;
    int64_t begin = i * MOE_STRIP, n = moe_least(MOE_STRIP, x->hidden - begin);
    float input[MOE_STRIP], sum = 0.0f;
    const char *row = product_row(b->in->x, slot / moe_slots(b->layer));
    x->kernels->widen(row + begin * x->size, n, input);
    for (int64_t j = 0; j < n; j++) {
        float d = first_part[j] + second_part[j];
        sum += d * input[j];
        first_part[j] = weight * d;
        second_part[j] = 0.0f;
    }
    b->input_dots[slot * ((x->hidden + MOE_STRIP - 1) / MOE_STRIP) + i] = sum;
}

static void step_columns(const expert *x)
{
    const moe_back *b = x->b;
    const product_matrix gate = turned(&x->mlp.gate), up = turned(&x->mlp.up);
    float *first_part = (float *)(void *)(x->mine + b->strips);
    float *second_part = first_part + pieces_tokens(x->kernels) * MOE_STRIP;
    const float ones[] = {1.0f, 1.0f, 1.0f};
    int64_t strips = (x->hidden + MOE_STRIP - 1) / MOE_STRIP, places = moe_slots(b->layer);
    for (int64_t i; (i = take(x, BACK_COLUMNS)) < strips;) {
        int64_t begin = i * MOE_STRIP, end = moe_least(begin + MOE_STRIP, x->hidden), width = end - begin;
        for (int64_t c = 0; c < chunks_of(x); c++) {
            int64_t first, n;
            chunk_of(x, c, &first, &n);
            product(x, &gate, pairs_of(x) ? 2 * x->inter : x->inter, b->both, 2 * x->inter, b->gate_panel, first, n,
                    begin, end, first_part);
            if (pairs_of(x))
                memset(second_part, 0, (size_t)(n * width) * sizeof *second_part);
            else
                product(x, &up, x->inter, b->both + x->inter * x->size, 2 * x->inter, b->up_panel, first, n, begin, end,
                        second_part);
            for (int64_t t = 0; t < n; t++) {
                int64_t slot = b->slots[b->offsets[x->e] + first + t], token = slot / places;
                const float *weight = moe_input_weight(b->layer, &b->routed, slot);
                if (weight)
                    scale_back(x, slot, i, *weight, first_part + t * width, second_part + t * width);
                if (!b->want_dx)
                    continue;
                bool apart = b->slot_sums;
                float *sums = (apart ? b->slot_sums + slot * x->hidden : b->sums + token * x->hidden) + begin;
                const void *parts[] = {first_part + t * width, second_part + t * width, sums};
                const product_combine add = {
                    .part_dtype = TN_F32, .dtype = TN_F32, .count = apart ? 2 : 3, .part = parts, .weight = ones};
                x->kernels->combine(&add, width, sums);
            }
        }
    }
}

/* Queues are emptied for the next expert while nobody takes from them: between the barriers around the step after the
 * next one of theirs. */
static void reset(const expert *x, int a, int b)
{
    if (x->thread)
        return;
    atomic_store(&x->b->queues[a].next, 0);
    atomic_store(&x->b->queues[b].next, 0);
}

/* Gradients of weights that no token met. */
static void zero_weights(const expert *x)
{
    weight_grad list[3];
    int count = weight_grads(x, list);
    bias_grads(x);
    for (int i = 0; i < count; i++) {
        int64_t begin, end;
        product_share_rows(list[i].rows, x->thread, x->threads, &begin, &end);
        if (list[i].dw)
            product_weight_grad(x->kernels, &list[i].a, &list[i].b, 0, begin, end, list[i].columns, list[i].dw,
                                list[i].stride, x->mine + x->b->grad);
    }
}

void moe_back_expert(const moe_back *b, int64_t e, int32_t thread, int32_t threads)
{
    const expert x = open_expert(b, e, thread, threads);
    if (x.n == 0) {
        zero_weights(&x);
        return;
    }
    step_rows(&x);
    product_wait(threads);
    step_features(&x);
    product_wait(threads);
    reset(&x, BACK_ROWS, BACK_COLUMNS);
    step_weights(&x);
    product_wait(threads);
    reset(&x, BACK_FEATURES, BACK_WEIGHTS);
    if (b->columns)
        step_columns(&x);
}
