/* Experts with the activation apart: see moe_apart.h. */
#include "moe_apart.h"
#include "scalar.h"
#include <math.h>
#include <string.h>

/* x = rnd(rnd(x) + b), every step-th of the biases from the first on. */
static void add_bias(const moe_layer *layer, const void *bias, int64_t first, int64_t step, float *x, int64_t n)
{
    tn_dtype dtype = layer->kernels->dtype;
    for (int64_t i = 0; i < n; i++)
        x[i] = scalar_round(x[i], dtype);
    for (int64_t i = 0; i < n && bias; i++)
        x[i] = scalar_round(x[i] + scalar_load(bias, first + i * step, dtype), dtype);
}

void moe_apart_split(const moe_layer *layer, const product_mlp *mlp, const float *sums, const float *ups, int64_t f,
                     int64_t n, float *gate, float *up)
{
    bool pairs = moe_mlp_pairs(mlp);
    for (int64_t i = 0; i < n; i++) {
        gate[i] = sums[pairs ? 2 * i : i];
        up[i] = pairs ? sums[2 * i + 1] : ups[i];
    }
    add_bias(layer, mlp->gate.bias, pairs ? 2 * f : f, pairs ? 2 : 1, gate, n);
    add_bias(layer, pairs ? mlp->gate.bias : mlp->up.bias, pairs ? 2 * f + 1 : f, pairs ? 2 : 1, up, n);
}

/* The comparisons let a NaN through. */
static float below(float x, float limit)
{
    return x > limit ? limit : x;
}

static float within(float x, float limit)
{
    return x < -limit ? -limit : below(x, limit);
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static void activate(const moe_layer *layer, const float *gate, const float *up, int64_t n, float *h)
{
    if (layer->act != TN_ACT_CLAMPED_SWIGLU) {
        const gate_row row = {.act = layer->act, .dtype = TN_F32, .gate = gate, .up = up, .h = h};
        layer->gates->glu(&row, n);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        float g = below(gate[i], layer->limit);
        h[i] = (within(up[i], layer->limit) + 1.0f) * (g * sigmoid(layer->alpha * g));
    }
}

float moe_apart_grad(const moe_layer *layer, const float *gate, const float *up, int64_t n, float *dh, float scale,
                     float *h, float *d_gate, float *d_up)
{
    if (layer->act != TN_ACT_CLAMPED_SWIGLU) {
        const gate_row row = {.act = layer->act,
                              .dtype = TN_F32,
                              .gate = gate,
                              .up = up,
                              .h = h,
                              .dh = dh,
                              .scale = scale,
                              .d_gate = d_gate,
                              .d_up = d_up};
        return layer->gates->grad(&row, n);
    }
    float sum = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        float g = below(gate[i], layer->limit), u = within(up[i], layer->limit) + 1.0f;
        float s = sigmoid(layer->alpha * g), a = g * s, d = scale * dh[i];
        sum += dh[i] * (u * a);
        h[i] = scale * (u * a);
        d_gate[i] = gate[i] > layer->limit ? 0.0f : d * u * (s + layer->alpha * a * (1.0f - s));
        d_up[i] = up[i] > layer->limit || up[i] < -layer->limit ? 0.0f : d * a;
    }
    return sum;
}

/* The matrices whose products with n features' rows are wanted: one of both, or two. Returns how many. */
static int parts_of(const moe_layer *layer, const product_mlp *mlp, int64_t feature, product_matrix parts[2])
{
    bool pairs = moe_mlp_pairs(mlp);
    const product_matrix gate = moe_apart_matrix(&mlp->gate), up = moe_apart_matrix(&mlp->up);
    parts[0] = pieces_rows_from(layer->kernels, &gate, pairs ? 2 * feature : feature);
    if (pairs)
        return 1;
    parts[1] = pieces_rows_from(layer->kernels, &up, feature);
    return 2;
}

/* A token's activated features from its sums. */
static void finish(const moe_layer *layer, const product_mlp *mlp, const float *sums, int64_t f, int64_t n, float *h)
{
    float gate[MOE_APART], up[MOE_APART];
    moe_apart_split(layer, mlp, sums, sums + n, f, n, gate, up);
    activate(layer, gate, up, n, h);
}

/* Rows of n features from f on into their places in the tiles of a panel. */
static void pack(const moe_layer *layer, const product_mlp *mlp, const void **list, int64_t tokens, int64_t f,
                 int64_t n, char *panel)
{
    const product_kernels *kernels = layer->kernels;
    int64_t token = product_panel_token(kernels, mlp->inter), native = kernels->variant->native == TN_BF16 ? 2 : 4;
    for (int64_t tile = 0; tile < product_tiles(kernels, tokens); tile++) {
        int64_t t = tile * kernels->variant->tile_tokens;
        int32_t width = product_tile_width(kernels, tokens - t), some = (int32_t)moe_least(width, tokens - t);
        kernels->pack(list + t, some, width, n, panel + t * token + f * width * native);
    }
}

void moe_apart_tiles(const moe_layer *layer, const product_mlp *mlp, const void *x, int64_t tokens, int64_t begin,
                     int64_t end, char *h, float *strip, void **y, char *rows, void *scratch)
{
    const product_kernels *kernels = layer->kernels;
    const void **list = (const void **)(void *)rows;
    char *narrow = rows + (size_t)tokens * sizeof *list;
    for (int64_t f = begin; f < end; f += MOE_APART) {
        product_matrix parts[2];
        int64_t n = moe_least(end - f, MOE_APART), row = 2 * n;
        int count = parts_of(layer, mlp, f, parts);
        for (int i = 0; i < count; i++) {
            for (int64_t t = 0; t < tokens; t++)
                y[t] = strip + t * row + i * n;
            product_out_tiles(kernels, &parts[i], layer->hidden, x, tokens, product_rows_of(0, row / count), TN_F32, y,
                              scratch);
        }
        for (int64_t t = 0; t < tokens; t++) {
            float activated[MOE_APART];
            list[t] = narrow + t * MOE_APART * moe_element(layer);
            finish(layer, mlp, strip + t * row, f, n, activated);
            pieces_round(kernels, activated, n, (char *)narrow + t * MOE_APART * moe_element(layer));
        }
        pack(layer, mlp, list, tokens, f, n, h);
    }
}

void moe_apart_few(const moe_layer *layer, const product_mlp *mlp, const void *const *x, int32_t tokens, int64_t begin,
                   int64_t end, void *const *h, float *strip)
{
    const product_kernels *kernels = layer->kernels;
    for (int64_t f = begin; f < end; f += MOE_APART) {
        product_matrix parts[2];
        void *y[PRODUCT_FEW_TOKENS];
        int64_t n = moe_least(end - f, MOE_APART), row = 2 * n;
        int count = parts_of(layer, mlp, f, parts);
        for (int i = 0; i < count; i++) {
            for (int32_t t = 0; t < tokens; t++)
                y[t] = strip + t * row + i * n;
            product_out_few(kernels, &parts[i], layer->hidden, x, tokens, product_rows_of(0, row / count), TN_F32, y);
        }
        for (int32_t t = 0; t < tokens; t++) {
            float activated[MOE_APART], narrow[MOE_APART];
            finish(layer, mlp, strip + t * row, f, n, activated);
            pieces_round(kernels, activated, n, narrow);
            if (kernels->variant->native == TN_F32)
                kernels->widen(narrow, n, (float *)h[t] + f);
            else
                memcpy((char *)h[t] + f * 2, narrow, (size_t)n * 2);
        }
    }
}
