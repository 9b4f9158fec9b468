/* Few tokens through the pieces of a gated MLP: blocks of rows; what calls have in common. */
#include "product_parts.h"

#include <string.h>

/* h from sums of gates and ups of n <= PRODUCT_FEW_ROWS features from f on; token t's begin t * space behind the
 * first's.
 */
typedef struct few_glu {
    const product_kernels *kernels;
    const product_mlp *mlp;
    tn_act act;
    tn_dtype out;
    void *const *h;
    int32_t tokens;
} few_glu;

static void finish_few_glu(const few_glu *s, int64_t f, int64_t n, const float *gate, const float *up, int64_t space)
{
    float gate_bias[PRODUCT_FEW_ROWS], up_bias[PRODUCT_FEW_ROWS];
    int64_t size = s->out == TN_F32 ? 4 : 2;
    product_finish finish = {s->out, s->act, product_widen_bias(s->kernels, s->mlp->gate.bias, f, n, gate_bias)};
    const float *ups = product_widen_bias(s->kernels, s->mlp->up.bias, f, n, up_bias);
    for (int32_t t = 0; t < s->tokens; t++)
        s->kernels->row_glu(gate + t * space, up + t * space, ups, &finish, (int32_t)n, (char *)s->h[t] + f * size);
}

typedef struct few_out {
    const product_kernels *kernels;
    const product_matrix *w;
    tn_dtype out;
    void *const *y;
    int32_t tokens;
} few_out;

static void finish_few_out(const few_out *s, int64_t row, int64_t n, const float *sums, int64_t space)
{
    float bias[PRODUCT_FEW_ROWS];
    int64_t size = s->out == TN_F32 ? 4 : 2;
    product_finish finish = {s->out, TN_ACT_LINEAR, product_widen_bias(s->kernels, s->w->bias, row, n, bias)};
    for (int32_t t = 0; t < s->tokens; t++)
        s->kernels->row_out(sums + t * space, &finish, (int32_t)n, (char *)s->y[t] + row * size);
}

/* The sums of up to a block of rows from `row` on, of those of a call. Returns how many. */
static int64_t few_dots(const product_kernels *kernels, const product_matrix *w, int64_t row, const product_rows *rows,
                        int64_t k, const void *const *x, int32_t tokens, float *sums)
{
    const product_block block = product_block_of(kernels, w, k, row, rows, PRODUCT_FEW_ROWS);
    kernels->dots(&block, k, x, tokens, sums);
    return block.rows;
}

/* Rows that lie side by side. A stretch of them is read as it lies in memory, a few elements along k at a time: their
 * sums stay in the first two caches, and each page is met once. */
enum { COLUMN_SUMS = 8192, COLUMN_STEP = 32 };

/* Rows of `parts` matrices whose sums for so many tokens there is room for. */
static int64_t column_stretch(int32_t tokens, int parts)
{
    return COLUMN_SUMS / (tokens * parts) / PRODUCT_COLUMNS * PRODUCT_COLUMNS;
}

/* sums: of part p and token t from (p tokens + t) space on. */
static void add_columns(const product_kernels *kernels, const product_matrix *const *w, int parts, int64_t row,
                        int64_t n, int64_t k, const void *const *x, int32_t tokens, float *sums, int64_t space)
{
    const void *from[PRODUCT_FEW_TOKENS];
    memset(sums, 0, sizeof(float) * (size_t)(parts * tokens * space));
    for (int64_t i = 0; i < k; i += COLUMN_STEP) {
        for (int32_t t = 0; t < tokens; t++)
            from[t] = (const char *)x[t] + i * product_native_element(kernels);
        for (int p = 0; p < parts; p++) {
            int64_t step = w[p]->k_stride * product_element(kernels);
            for (int64_t r = 0; r < n; r += PRODUCT_COLUMNS)
                kernels->columns(product_at(kernels, w[p], row + r) + i * step, step,
                                 (int32_t)product_least(n - r, PRODUCT_COLUMNS), product_least(k - i, COLUMN_STEP),
                                 from, tokens, sums + p * tokens * space + r, space);
        }
    }
}

static void glu_columns(const few_glu *to, int64_t hidden, const void *const *x, int64_t begin, int64_t end)
{
    const product_matrix *const w[2] = {&to->mlp->gate, &to->mlp->up};
    float sums[COLUMN_SUMS];
    int64_t space = column_stretch(to->tokens, 2);
    for (int64_t f = begin; f < end; f += space) {
        int64_t n = product_least(end - f, space);
        add_columns(to->kernels, w, 2, f, n, hidden, x, to->tokens, sums, space);
        for (int64_t i = 0; i < n; i += PRODUCT_FEW_ROWS)
            finish_few_glu(to, f + i, product_least(n - i, PRODUCT_FEW_ROWS), sums + i, sums + to->tokens * space + i,
                           space);
    }
}

static void out_columns(const few_out *to, int64_t k, const void *const *x, int64_t begin, int64_t end)
{
    float sums[COLUMN_SUMS];
    int64_t space = column_stretch(to->tokens, 1);
    for (int64_t row = begin; row < end; row += space) {
        int64_t n = product_least(end - row, space);
        add_columns(to->kernels, &to->w, 1, row, n, k, x, to->tokens, sums, space);
        for (int64_t i = 0; i < n; i += PRODUCT_FEW_ROWS)
            finish_few_out(to, row + i, product_least(n - i, PRODUCT_FEW_ROWS), sums + i, space);
    }
}

void product_glu_few(const product_kernels *kernels, const product_mlp *mlp, int64_t hidden, tn_act act,
                     const void *const *x, int32_t tokens, product_rows features, tn_dtype out, void *const *h)
{
    const few_glu to = {kernels, mlp, act, out, h, tokens};
    float gate[PRODUCT_FEW_TOKENS * PRODUCT_FEW_ROWS], up[PRODUCT_FEW_TOKENS * PRODUCT_FEW_ROWS];
    kernels->tiles_begin();
    if (mlp->gate.k_stride != 1)
        glu_columns(&to, hidden, x, features.begin, features.end);
    for (int64_t f = features.begin; mlp->gate.k_stride == 1 && f < features.end; f += PRODUCT_FEW_ROWS) {
        int64_t n = few_dots(kernels, &mlp->gate, f, &features, hidden, x, tokens, gate);
        few_dots(kernels, &mlp->up, f, &features, hidden, x, tokens, up);
        finish_few_glu(&to, f, n, gate, up, PRODUCT_FEW_ROWS);
    }
    kernels->tiles_end();
}

void product_out_few(const product_kernels *kernels, const product_matrix *w, int64_t k, const void *const *x,
                     int32_t tokens, product_rows outputs, tn_dtype out, void *const *y)
{
    const few_out to = {kernels, w, out, y, tokens};
    float sums[PRODUCT_FEW_TOKENS * PRODUCT_FEW_ROWS];
    kernels->tiles_begin();
    if (w->k_stride != 1)
        out_columns(&to, k, x, outputs.begin, outputs.end);
    for (int64_t row = outputs.begin; w->k_stride == 1 && row < outputs.end; row += PRODUCT_FEW_ROWS) {
        int64_t n = few_dots(kernels, w, row, &outputs, k, x, tokens, sums);
        finish_few_out(&to, row, n, sums, PRODUCT_FEW_ROWS);
    }
    kernels->tiles_end();
}

void product_native_rows(const product_kernels *kernels, const void *const *x, int64_t n, int64_t k, void *memory,
                         const void **rows)
{
    for (int64_t t = 0; t < n; t++) {
        rows[t] = x[t];
        if (kernels->variant->native == kernels->dtype)
            continue;
        float *copy = (float *)memory + t * k;
        kernels->widen(x[t], k, copy);
        rows[t] = copy;
    }
}

void *product_row(const tn_tensor *tensor, int64_t t)
{
    int64_t offset = 0;
    for (int32_t d = tensor->ndim - 2; d >= 0; d--) {
        offset += t % tensor->shape[d] * tensor->stride[d];
        t /= tensor->shape[d];
    }
    return (char *)tensor->data + offset * (int64_t)tn_dtype_size(tensor->dtype);
}

int64_t product_tokens(const tn_tensor *tensor)
{
    int64_t n = 1;
    for (int32_t d = 0; d < tensor->ndim - 1; d++)
        n *= tensor->shape[d];
    return n;
}
