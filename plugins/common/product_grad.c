/* Gradients of weights: the sum runs over tokens, along the rows of neither operand. Columns of a are turned into rows
 * in scratch, some hundred at a time; b is laid into panels as it lies. */
#include "product_grad.h"
#include "product_parts.h"
#include "scalar.h"
#include "scratch.h"

#include <string.h>

/* Turned columns: as many as this takes, and MOST_ROWS at most. More would save laying b again, which costs as much as
 * some twenty rows. */
#define TURNED_BYTES (4 * 1024 * 1024)
enum { LEAST_ROWS = 32, MOST_ROWS = 512 };

typedef struct grad_memory {
    char *turned;  /* rows of dtype                                                                 */
    int64_t space; /* from one of these rows to the next                                              */
    void **rows;   /* of dw                                                                         */
    char *lines;
    size_t total;
} grad_memory;

/* scratch NULL: only the total counts, which never falls with tokens. */
static grad_memory layout(const product_kernels *kernels, int64_t tokens, char *scratch)
{
    grad_memory m = {.space = product_row_space(tokens)};
    int64_t least = LEAST_ROWS * m.space, most = MOST_ROWS * m.space;
    size_t turned = scratch_take(&m.total, (size_t)product_least(most, least > TURNED_BYTES ? least : TURNED_BYTES));
    size_t rows = scratch_take(&m.total, MOST_ROWS * sizeof(void *));
    size_t lines = scratch_take(&m.total, product_lines_scratch_size(kernels, tokens));
    if (scratch) {
        m.turned = scratch + turned;
        m.rows = (void **)(void *)(scratch + rows);
        m.lines = scratch + lines;
    }
    return m;
}

product_tokens_matrix product_all_rows(const tn_tensor *t)
{
    product_tokens_matrix matrix = {t->data, t->shape[t->ndim - 1]};
    int64_t inner = 0; /* tokens that the dimensions behind this one hold */
    for (int32_t d = t->ndim - 2; d >= 0; d--) {
        if (t->shape[d] == 1)
            continue;
        if (inner == 0)
            matrix.stride = t->stride[d];
        else if (t->stride[d] != inner * matrix.stride)
            matrix.data = NULL;
        inner = (inner ? inner : 1) * t->shape[d];
    }
    return matrix;
}

size_t product_grad_scratch_size(const product_kernels *kernels, int64_t tokens)
{
    return layout(kernels, tokens, NULL).total;
}

static int64_t rows_at_once(const grad_memory *m)
{
    int64_t rows = TURNED_BYTES / m->space / LEAST_ROWS * LEAST_ROWS;
    return rows < LEAST_ROWS ? LEAST_ROWS : product_least(rows, MOST_ROWS);
}

/* Columns first .. first + n - 1 of a become rows, sixty-four tokens at a time: each lies on a page of its own. */
static void turn(const product_kernels *kernels, const product_tokens_matrix *a, int64_t tokens, int64_t first,
                 int64_t n, const grad_memory *m)
{
    int64_t size = product_element(kernels), step = a->stride * size;
    for (int64_t t = 0; t < tokens; t += 64)
        for (int64_t i = 0; i < n; i += PRODUCT_FEW_ROWS)
            kernels->gather((const char *)a->data + t * step + (first + i) * size, step,
                            (int32_t)product_least(n - i, PRODUCT_FEW_ROWS), product_least(tokens - t, 64),
                            m->turned + i * m->space + t * size, m->space);
}

/* Few tokens: a row of dw is a combination of the tokens' rows of b, written in one stream. */
static void few_tokens(const product_kernels *kernels, const product_tokens_matrix *a, const product_tokens_matrix *b,
                       int64_t tokens, int64_t begin, int64_t end, int64_t columns, char *dw, int64_t stride)
{
    const void *parts[PRODUCT_FEW_TOKENS];
    float weights[PRODUCT_FEW_TOKENS];
    int64_t size = product_element(kernels);
    const product_combine row = {.part_dtype = kernels->dtype,
                                 .dtype = kernels->dtype,
                                 .count = (int32_t)tokens,
                                 .part = parts,
                                 .weight = weights,
                                 .stream = true};
    for (int64_t t = 0; t < tokens; t++)
        parts[t] = (const char *)b->data + t * b->stride * size;
    for (int64_t r = begin; r < end; r++) {
        for (int64_t t = 0; t < tokens; t++)
            weights[t] = scalar_load(a->data, t * a->stride + r, kernels->dtype);
        kernels->combine(&row, columns, dw + r * stride * size);
    }
    atomic_thread_fence(memory_order_seq_cst);
}

void product_weight_grad(const product_kernels *kernels, const product_tokens_matrix *a, const product_tokens_matrix *b,
                         int64_t tokens, int64_t begin, int64_t end, int64_t columns, void *dw, int64_t stride,
                         void *scratch)
{
    const grad_memory m = layout(kernels, tokens, scratch);
    int64_t size = product_element(kernels), block = rows_at_once(&m);
    char *to = dw;
    for (int64_t r = begin; r < end && tokens == 0; r++)
        memset(to + r * stride * size, 0, (size_t)(columns * size));
    if (tokens == 0)
        return;
    if (tokens <= PRODUCT_FEW_TOKENS) {
        few_tokens(kernels, a, b, tokens, begin, end, columns, to, stride);
        return;
    }
    for (int64_t first = begin; first < end; first += block) {
        int64_t n = product_least(end - first, block);
        const product_matrix turned = {m.turned, m.space / size, 1, NULL};
        turn(kernels, a, tokens, first, n, &m);
        for (int64_t r = 0; r < n; r++)
            m.rows[r] = to + (first + r) * stride * size;
        product_lines(kernels, &turned, n, b, tokens, 0, columns, kernels->dtype, m.rows, m.lines);
    }
}
