/* Scores, the choice of experts, their weights, and how gradients come back through them. */
#include "router.h"
#include "scalar.h"
#include "scratch.h"
#include <math.h>
#include <string.h>

/* ---- logits ------------------------------------------------------------------------------------------------ */

typedef struct logits_memory {
    size_t logits, work, x_rows, panel, wide, pointers, product, total;
} logits_memory;

static logits_memory layout(const router *r)
{
    logits_memory m;
    size_t at = 0, experts = (size_t)r->experts, hidden = (size_t)r->hidden;
    size_t chunk = (size_t)product_padded_tokens(r->products, ROUTER_CHUNK);
    size_t own = (size_t)product_padded_tokens(r->own, ROUTER_CHUNK) * (size_t)product_panel_token(r->own, r->hidden);
    size_t products = chunk * (size_t)product_panel_token(r->products, r->hidden);
    m.logits = scratch_take(&at, ROUTER_CHUNK * (experts + 1) * sizeof(float));
    m.work = scratch_take(&at, experts * sizeof(float));
    m.x_rows = scratch_take(&at, ROUTER_CHUNK * sizeof(void *));
    m.panel = scratch_take(&at, own > products ? own : products);
    /* All tokens where they are converted before they are packed, else those of dots. */
    size_t rows = r->products == r->own ? PRODUCT_FEW_TOKENS : ROUTER_CHUNK;
    m.wide = scratch_take(&at, r->own->dtype == TN_F32 ? 0 : rows * hidden * sizeof(float));
    m.pointers = scratch_take(&at, 2 * ROUTER_CHUNK * sizeof(void *));
    size_t scratch = product_scratch_size(r->products, r->hidden), other = product_scratch_size(r->own, r->hidden);
    m.product = scratch_take(&at, scratch > other ? scratch : other);
    m.total = at;
    return m;
}

size_t router_scratch_size(const router *r)
{
    return layout(r).total;
}

/* Rows begin .. end - 1 of a matrix of kernels->dtype. */
static void sums_of(const router *r, const product_kernels *kernels, const product_matrix *w, const void *const *x,
                    int64_t n, bool few, int64_t begin, int64_t end, float *logits, int64_t stride, char *memory)
{
    const logits_memory m = layout(r);
    const void **rows = (const void **)(void *)(memory + m.pointers);
    void **y = (void **)(void *)(rows + ROUTER_CHUNK);
    float *wide = (float *)(void *)(memory + m.wide);
    for (int64_t t = 0; t < n; t++) {
        rows[t] = x[t];
        y[t] = logits + t * stride;
        if (kernels != r->own) {
            r->own->widen(x[t], r->hidden, wide + t * r->hidden);
            rows[t] = wide + t * r->hidden;
        }
    }
    if (few) {
        if (kernels == r->own)
            product_native_rows(kernels, rows, n, r->hidden, wide, rows);
        product_out_few(kernels, w, r->hidden, rows, (int32_t)n, product_rows_of(begin, end), TN_F32, y);
        return;
    }
    product_pack(kernels, rows, n, r->hidden, 0, product_tiles(kernels, n), memory + m.panel);
    product_out_tiles(kernels, w, r->hidden, memory + m.panel, n, product_rows_of(begin, end), TN_F32, y,
                      memory + m.product);
}

void router_logits(const router *r, const router_gate *gate, const void *const *x, int64_t n, bool few, int64_t begin,
                   int64_t end, float *logits, int64_t stride, void *scratch)
{
    const product_matrix weight = {r->weight->data, r->weight->stride[0], 1, NULL};
    sums_of(r, r->products, &weight, x, n, few, begin, end < r->experts ? end : r->experts, logits, stride, scratch);
    if (!gate->weight || end <= r->experts)
        return;
    const product_matrix row = {gate->weight->data, r->hidden, 1, NULL};
    sums_of(r, r->own, &row, x, n, few, 0, 1, logits + r->experts, stride, scratch);
}

void router_tokens(const router *r, const tn_tensor *x, int64_t first, int64_t n, bool few, const routes *to,
                   const router_gate *gate, int64_t *bad, void *scratch)
{
    const logits_memory m = layout(r);
    char *memory = scratch;
    float *logits = (float *)(void *)(memory + m.logits), *work = (float *)(void *)(memory + m.work);
    const void **rows = (const void **)(void *)(memory + m.x_rows);
    int64_t stride = r->experts + 1;
    for (int64_t begin = 0; begin < n; begin += ROUTER_CHUNK) {
        int64_t count = n - begin < ROUTER_CHUNK ? n - begin : ROUTER_CHUNK;
        for (int64_t t = 0; t < count; t++)
            rows[t] = product_row(x, first + begin + t);
        router_logits(r, gate, rows, count, few, 0, stride, logits, stride, scratch);
        for (int64_t t = 0; t < count; t++)
            if (!router_token(r, logits + t * stride, work, to, gate, first + begin + t) && *bad < 0)
                *bad = first + begin + t;
    }
}

/* ---- scores -------------------------------------------------------------------------------------------------- */

/* e^(x - largest) over n values, in place; their sum. */
static float exponentials(float *x, int64_t n, float largest)
{
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        x[i] = expf(x[i] - largest);
        sum += x[i];
    }
    return sum;
}

static float largest_of(const float *x, int64_t n)
{
    // NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): n is 1 or more
    float largest = x[0];
    for (int64_t i = 1; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    return largest;
}

static void divide(float *x, int64_t n, float divisor)
{
    for (int64_t i = 0; i < n; i++)
        x[i] /= divisor;
}

static void sigmoids(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = 1.0f / (1.0f + expf(-x[i]));
}

static bool score(const router *r, float *logits)
{
    int64_t n = r->experts;
    bool number = true;
    for (int64_t e = 0; e < n && r->bias; e++)
        logits[e] += scalar_load(r->bias->data, e, r->bias->dtype);
    for (int64_t e = 0; e < n && !r->f32_logits; e++)
        logits[e] = scalar_round(logits[e], r->own->dtype);
    for (int64_t e = 0; e < n; e++)
        number = number && !isnan(logits[e]);
    if (r->score == TN_SCORE_TOPK_SIGMOID) /* the logits themselves choose */
        return number;
    if (r->score == TN_SCORE_SIGMOID) {
        sigmoids(logits, n);
        return number;
    }
    /* An infinite logit is as good as none for a softmax: inf - inf. */
    float largest = largest_of(logits, n);
    if (!number || !isfinite(largest))
        return false;
    if (r->score == TN_SCORE_SOFTMAX)
        divide(logits, n, exponentials(logits, n, largest));
    return true;
}

/* ---- the choice ------------------------------------------------------------------------------------------------ */

/* Takes experts outside the best groups out of the choice. A group is as good as its best score, with sigmoid its best
 * two together. The best groups are found one after the other, the first of equals. */
static void limit_groups(const router *r, float *choice)
{
    int64_t size = r->experts / r->groups;
    float rank[256];
    for (int64_t g = 0; g < r->groups; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (int64_t i = g * size; i < (g + 1) * size; i++) {
            second = choice[i] > first ? first : choice[i] > second ? choice[i] : second;
            first = choice[i] > first ? choice[i] : first;
        }
        rank[g] = r->score == TN_SCORE_SIGMOID && size > 1 ? first + second : first;
    }
    for (int64_t i = 0; i < r->top_groups && i < r->groups; i++) {
        int64_t best = -1;
        for (int64_t g = 0; g < r->groups; g++)
            if (!isnan(rank[g]) && (best < 0 || rank[g] > rank[best]))
                best = g;
        if (best >= 0)
            rank[best] = NAN; /* taken */
    }
    for (int64_t g = 0; g < r->groups; g++)
        for (int64_t i = g * size; i < (g + 1) * size && !isnan(rank[g]); i++)
            choice[i] = r->score == TN_SCORE_SIGMOID ? -INFINITY : 0.0f;
}

/* The scores of the chosen experts become what is divided where weights are; their divisor, 1 where they are not. */
static float divisor_of(const router *r, float *scores, bool *is_sum)
{
    int64_t k = r->top_k;
    float sum = 0.0f;
    if (r->score == TN_SCORE_TOPK_SOFTMAX)
        divide(scores, k, exponentials(scores, k, largest_of(scores, k)));
    if (r->score == TN_SCORE_TOPK_SIGMOID)
        sigmoids(scores, k);
    for (int64_t j = 0; j < k; j++)
        sum += scores[j];
    sum += r->added;
    *is_sum = r->renormalise && !(sum < r->least);
    return *is_sum ? sum : r->renormalise ? r->least : 1.0f;
}

static float factor_of(const router *r, int32_t expert)
{
    return r->factors ? scalar_load(r->factors->data, expert, r->factors->dtype) : 1.0f;
}

/* Weights of the chosen experts, from their scores. */
static void weigh(const router *r, const int32_t *experts, float *weights)
{
    bool is_sum;
    float divisor = divisor_of(r, weights, &is_sum);
    if (r->renormalise)
        divide(weights, r->top_k, divisor);
    for (int64_t j = 0; j < r->top_k; j++)
        weights[j] *= factor_of(r, experts[j]) * r->scale;
}

static void choose(const router *r, const float *scores, float *work, float *weights, int32_t *experts)
{
    int64_t k = r->top_k, n = 0;
    const float *choice = scores;
    if (r->correction || r->groups > 1) {
        for (int64_t e = 0; e < r->experts; e++)
            work[e] = scores[e] + (r->correction ? scalar_load(r->correction->data, e, r->correction->dtype) : 0.0f);
        if (r->groups > 1)
            limit_groups(r, work);
        choice = work;
    }
    for (int64_t e = 0; e < r->experts; e++) { /* insertion: equal scores keep the order of their ids */
        if (n == k && !(choice[e] > choice[experts[k - 1]]))
            continue;
        int64_t at = n < k ? n++ : k - 1;
        for (; at > 0 && choice[e] > choice[experts[at - 1]]; at--)
            experts[at] = experts[at - 1];
        experts[at] = (int32_t)e;
    }
    for (int64_t j = 0; j < k; j++)
        weights[j] = scores[experts[j]];
    weigh(r, experts, weights);
}

bool router_token(const router *r, float *logits, float *work, const routes *to, const router_gate *gate, int64_t t)
{
    if (gate->weight)
        gate->values[t] = 1.0f / (1.0f + expf(-logits[r->experts]));
    if (!score(r, logits))
        return false;
    if (to->scores)
        memcpy(to->scores + t * r->experts, logits, (size_t)r->experts * sizeof(float));
    choose(r, logits, work, to->weights + t * r->top_k, to->experts + t * r->top_k);
    return true;
}

tn_status router_check(const router *r, const char *where, tn_error *err)
{
    for (int64_t e = 0; r->correction && e < r->experts; e++)
        if (isnan(scalar_load(r->correction->data, e, r->correction->dtype)))
            return tn_fail(err, TN_E_INPUT, where,
                           "the correction bias of expert %lld is not a number; the checkpoint is damaged",
                           (long long)e);
    return TN_OK;
}

tn_status router_bad_token(const int64_t *bad, int32_t threads, const char *where, tn_error *err)
{
    int64_t first = -1;
    for (int32_t i = 0; i < threads; i++)
        if (bad[i] >= 0 && (first < 0 || bad[i] < first))
            first = bad[i];
    if (first < 0)
        return TN_OK;
    return tn_fail(err, TN_E_INPUT, where,
                   "the router's scores of token %lld are not numbers; check the weights, or use another dtype",
                   (long long)first);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* With v the chosen scores (or their softmax), D their sum, c the scale and u dL/dweights:
 *   weights c v / D:  dL/dv = c / D (u - sum u v / D);  weights c v:  dL/dv = c u
 *   softmax over all: dl = p (dp - sum dp p), where only the chosen p have a gradient
 *   sigmoid, also of the k best:  dl = dv v (1 - v)
 *   top-k softmax:    as softmax, over the chosen.
 * Where the sum counts more than it is, D is that number, and weights are c v / D with D constant. With factors f of
 * experts u stands for u f, and dL/df is the sum of c u v / D. */
void router_grad(const router *r, const float *scores, const int32_t *experts, const float *upstream, float *dlogits)
{
    int64_t k = r->top_k;
    float v[256], u[256], dv[256], mean = 0.0f, through = 0.0f;
    bool is_sum;
    for (int64_t j = 0; j < k; j++) {
        v[j] = scores[experts[j]];
        u[j] = upstream[j] * factor_of(r, experts[j]);
    }
    float sum = divisor_of(r, v, &is_sum);
    for (int64_t j = 0; j < k && is_sum; j++)
        mean += u[j] * (v[j] / sum);
    for (int64_t j = 0; j < k; j++) {
        dv[j] = r->scale / sum * (u[j] - mean);
        through += dv[j] * v[j];
    }
    for (int64_t e = 0; e < r->experts; e++)
        dlogits[e] = 0.0f;
    /* Divided by their sum, the chosen scores' gradients are orthogonal to them: nothing goes to the other experts. */
    if (is_sum && r->score != TN_SCORE_TOPK_SOFTMAX)
        through = 0.0f;
    for (int64_t e = 0; e < r->experts && r->score == TN_SCORE_SOFTMAX && through != 0.0f; e++)
        dlogits[e] = -scores[e] * through;
    for (int64_t j = 0; j < k; j++) {
        if (r->score == TN_SCORE_SIGMOID || r->score == TN_SCORE_TOPK_SIGMOID)
            dlogits[experts[j]] = dv[j] * v[j] * (1.0f - v[j]);
        else
            dlogits[experts[j]] = v[j] * (dv[j] - through);
    }
}

void router_grad_factors(const router *r, const float *scores, const int32_t *experts, const float *upstream,
                         float *sums)
{
    float v[256];
    bool is_sum;
    for (int64_t j = 0; j < r->top_k; j++)
        v[j] = scores[experts[j]];
    float divisor = divisor_of(r, v, &is_sum);
    for (int64_t j = 0; j < r->top_k; j++)
        sums[experts[j]] += r->scale * upstream[j] * (v[j] / divisor);
}
