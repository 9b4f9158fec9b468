/* The pieces of a gated MLP: loops over tiles and rows around the products of one instruction set. */
#include "product_mlp.h"
#include <string.h>

/* Tokens from which on copying rows that are whole pages apart costs less than what their tiles gain by it (a third).
 */
#define APART_TOKENS 64

/* Rows that are brought into scratch at once: a multiple of every tile's rows. */
enum { GATHERED_ROWS = 32 };

static int64_t element(const product_kernels *kernels)
{
    return kernels->dtype == TN_F32 ? 4 : 2;
}

static int64_t native_element(const product_kernels *kernels)
{
    return kernels->variant->native == TN_BF16 ? 2 : 4;
}

size_t product_scratch_size(const product_kernels *kernels, int64_t k)
{
    return (size_t)((2 * GATHERED_ROWS + kernels->variant->rows) * product_row_space(k));
}

static const char *at(const product_kernels *kernels, const product_matrix *w, int64_t row)
{
    return (const char *)w->data + row * w->row_stride * element(kernels);
}

/* Where a tile's rows come from. Rows that lie side by side are brought into scratch, 32 at a time, since neighbours
 * share cache lines and pages; rows of another type than native are converted, for each tile. */
typedef struct row_source {
    const product_kernels *kernels;
    const product_matrix *w;
    int64_t k, begin, end;
    char *gathered, *converted; /* GATHERED_ROWS rows, and as many as the tile uses                 */
    bool apart;                 /* rows are copied: they would all fall into the same few sets of the first cache */
} row_source;

static bool is_direct(const row_source *s)
{
    return s->w->k_stride == 1 && s->kernels->variant->native == s->kernels->dtype && !s->apart;
}

/* Brings the next rows into scratch when a tile begins behind those that are there. Sixty-four elements of all of them
 * at a time: each element is on a page of its own, and the first level of the address cache holds as many. */
static void gather_rows(const row_source *s, int64_t row)
{
    const product_kernels *kernels = s->kernels;
    int64_t size = element(kernels), step = s->w->k_stride * size, space = product_row_space(s->k);
    int64_t n = s->end - row < GATHERED_ROWS ? s->end - row : GATHERED_ROWS;
    for (int64_t i = 0; i < s->k && (row - s->begin) % GATHERED_ROWS == 0; i += 64)
        for (int64_t r = 0; r < n; r += PRODUCT_FEW_ROWS)
            kernels->gather(at(kernels, s->w, row + r) + i * step, step,
                            (int32_t)(n - r < PRODUCT_FEW_ROWS ? n - r : PRODUCT_FEW_ROWS),
                            s->k - i < 64 ? s->k - i : 64, s->gathered + r * space + i * size, space);
}

/* Pointers to the rows of a tile. Those behind the valid ones repeat the last: their sums are thrown away. */
static void tile_rows(const row_source *s, int64_t row, int32_t valid, int32_t count, const void **rows)
{
    const product_kernels *kernels = s->kernels;
    int64_t space = product_row_space(s->k), place = 0;
    if (s->w->k_stride != 1) {
        gather_rows(s, row);
        place = (row - s->begin) % GATHERED_ROWS;
    }
    for (int32_t r = 0; r < count; r++) {
        int32_t use = r < valid ? r : valid - 1;
        rows[r] = s->w->k_stride == 1 ? at(kernels, s->w, row + use) : s->gathered + (place + use) * space;
        if (kernels->variant->native == kernels->dtype && !s->apart)
            continue;
        if (kernels->variant->native == kernels->dtype) {
            char *copy = s->converted + use * space;
            if (r < valid)
                memcpy(copy, rows[r], (size_t)(s->k * element(kernels)));
            rows[r] = copy;
            continue;
        }
        float *wide = (float *)(void *)(s->converted + use * space);
        if (r < valid)
            kernels->widen(rows[r], s->k, wide);
        rows[r] = wide;
    }
}

static const float *widen_bias(const product_kernels *kernels, const void *bias, int64_t row, int64_t n, float *dst)
{
    if (!bias)
        return NULL;
    kernels->widen((const char *)bias + row * element(kernels), n, dst);
    return dst;
}

void product_pack(const product_kernels *kernels, const void *const *x, int64_t tokens, int64_t k, int64_t begin,
                  int64_t end, void *panel)
{
    int64_t token = product_panel_token(kernels, k);
    for (int64_t tile = begin; tile < end; tile++) {
        int64_t t = tile * kernels->variant->tile_tokens;
        int32_t width = product_tile_width(kernels, tokens - t), n = width < tokens - t ? width : (int32_t)(tokens - t);
        kernels->pack(x + t, n, width, k, (char *)panel + t * token);
    }
}

void product_glu_tiles(const product_kernels *kernels, const product_mlp *mlp, int64_t hidden, tn_act act,
                       const void *x, int64_t tokens, int64_t begin, int64_t end, void *h, void *scratch)
{
    int32_t half = kernels->variant->rows / 2;
    int64_t native = native_element(kernels), rows_bytes = GATHERED_ROWS * product_row_space(hidden);
    int64_t x_token = product_panel_token(kernels, hidden), h_token = product_panel_token(kernels, mlp->inter);
    char *gathered = scratch, *converted = gathered + 2 * rows_bytes;
    const row_source gates = {kernels, &mlp->gate, hidden, begin, end, gathered, converted, false};
    const row_source ups = {
        kernels, &mlp->up, hidden, begin, end, gathered + rows_bytes, converted + half * product_row_space(hidden),
        false};
    kernels->tiles_begin();
    for (int64_t f = begin; f < end; f += half) {
        const void *rows[PRODUCT_MAX_ROWS];
        float bias[PRODUCT_MAX_ROWS] = {0};
        int32_t n = (int32_t)(end - f < half ? end - f : half);
        tile_rows(&gates, f, n, half, rows);
        tile_rows(&ups, f, n, half, rows + half);
        product_finish finish = {kernels->dtype, act, widen_bias(kernels, mlp->gate.bias, f, n, bias)};
        if (widen_bias(kernels, mlp->up.bias, f, n, bias + half))
            finish.bias = bias;
        int64_t ahead = is_direct(&gates) && f + half < end ? half * mlp->gate.row_stride * element(kernels) : 0;
        for (int64_t t = 0; t < tokens; ahead = 0) {
            int32_t width = product_tile_width(kernels, tokens - t);
            kernels->tile_glu(rows, ahead, hidden, (const char *)x + t * x_token, width, &finish, n,
                              (char *)h + t * h_token + f * width * native);
            t += width;
        }
    }
    kernels->tiles_end();
}

/* Outputs source->begin .. source->end - 1, of type out. */
static void out_tiles(const row_source *source, const void *x, int64_t tokens, tn_dtype out, void *const *y)
{
    const product_kernels *kernels = source->kernels;
    const product_matrix *w = source->w;
    int64_t k = source->k, end = source->end, x_token = product_panel_token(kernels, k), size = out == TN_F32 ? 4 : 2;
    kernels->tiles_begin();
    for (int64_t row = source->begin; row < end; row += kernels->variant->rows) {
        const void *rows[PRODUCT_MAX_ROWS];
        float bias[PRODUCT_MAX_ROWS];
        int32_t n = (int32_t)(end - row < kernels->variant->rows ? end - row : kernels->variant->rows);
        tile_rows(source, row, n, kernels->variant->rows, rows);
        product_finish finish = {out, TN_ACT_LINEAR, widen_bias(kernels, w->bias, row, n, bias)};
        int64_t ahead =
            is_direct(source) && row + n < end ? kernels->variant->rows * w->row_stride * element(kernels) : 0;
        for (int64_t t = 0; t < tokens; ahead = 0) {
            void *at_row[PRODUCT_MAX_TOKENS];
            int32_t width = product_tile_width(kernels, tokens - t);
            int32_t m = width < tokens - t ? width : (int32_t)(tokens - t);
            for (int32_t i = 0; i < m; i++)
                at_row[i] = (char *)y[t + i] + row * size;
            kernels->tile_out(rows, ahead, k, (const char *)x + t * x_token, width, &finish, n, at_row, m);
            t += width;
        }
    }
    kernels->tiles_end();
}

void product_out_tiles(const product_kernels *kernels, const product_matrix *w, int64_t k, const void *x,
                       int64_t tokens, int64_t begin, int64_t end, tn_dtype out, void *const *y, void *scratch)
{
    char *gathered = scratch, *converted = gathered + 2 * GATHERED_ROWS * product_row_space(k);
    row_source source = {kernels, w, k, begin, end, gathered, converted, false};
    source.apart = tokens >= APART_TOKENS && w->k_stride == 1 && w->row_stride * element(kernels) % 4096 == 0;
    out_tiles(&source, x, tokens, out, y);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

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
    product_finish finish = {s->out, s->act, widen_bias(s->kernels, s->mlp->gate.bias, f, n, gate_bias)};
    const float *ups = widen_bias(s->kernels, s->mlp->up.bias, f, n, up_bias);
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
    product_finish finish = {s->out, TN_ACT_LINEAR, widen_bias(s->kernels, s->w->bias, row, n, bias)};
    for (int32_t t = 0; t < s->tokens; t++)
        s->kernels->row_out(sums + t * space, &finish, (int32_t)n, (char *)s->y[t] + row * size);
}

/* The next rows of up to PRODUCT_STREAMS streams, each a sequence of neighbours in a matrix. Those with more rows left
 * come first. */
typedef struct few_streams {
    const char *at[PRODUCT_STREAMS];
    int64_t step[PRODUCT_STREAMS], left[PRODUCT_STREAMS];
    float sums[PRODUCT_STREAMS][PRODUCT_FEW_TOKENS * PRODUCT_FEW_ROWS]; /* of row i of token t at t * 16 + i      */
} few_streams;

static void open_stream(const product_kernels *kernels, few_streams *s, int j, const product_matrix *w, int64_t row,
                        int64_t end)
{
    s->left[j] = row < end ? least(end - row, PRODUCT_FEW_ROWS) : 0;
    s->at[j] = s->left[j] > 0 ? at(kernels, w, row) : NULL;
    s->step[j] = w->row_stride * element(kernels);
}

static void read_streams(const product_kernels *kernels, few_streams *s, int64_t k, const void *const *x,
                         int32_t tokens)
{
    for (int64_t i = 0; i < s->left[0]; i++) {
        const void *w[PRODUCT_STREAMS];
        float sums[PRODUCT_FEW_TOKENS * PRODUCT_STREAMS];
        int32_t rows = 0;
        for (; rows < PRODUCT_STREAMS && i < s->left[rows]; rows++)
            w[rows] = s->at[rows] + i * s->step[rows];
        kernels->dots(w, rows, k, x, tokens, sums);
        for (int32_t r = 0; r < rows; r++)
            for (int32_t t = 0; t < tokens; t++)
                s->sums[r][t * PRODUCT_FEW_ROWS + i] = sums[t * PRODUCT_STREAMS + r];
    }
}

/* Rows of one of `parts` equal parts of n rows, in whole steps of PRODUCT_FEW_ROWS. */
static int64_t part_of(int64_t n, int64_t parts)
{
    return ((n + PRODUCT_FEW_ROWS - 1) / PRODUCT_FEW_ROWS + parts - 1) / parts * PRODUCT_FEW_ROWS;
}

void product_glu_few(const product_kernels *kernels, const product_mlp *mlp, int64_t hidden, tn_act act,
                     const void *const *x, int32_t tokens, int64_t begin, int64_t end, tn_dtype out, void *const *h)
{
    const few_glu to = {kernels, mlp, act, out, h, tokens};
    int64_t half = part_of(end - begin, 2), size = element(kernels);
    for (int64_t f = begin; f < begin + half && mlp->gate.k_stride == 1; f += PRODUCT_FEW_ROWS) {
        few_streams s;
        for (int j = 0; j < 2; j++) {
            open_stream(kernels, &s, 2 * j, &mlp->gate, f + j * half, end);
            open_stream(kernels, &s, 2 * j + 1, &mlp->up, f + j * half, end);
        }
        read_streams(kernels, &s, hidden, x, tokens);
        for (int j = 0; j < 2 && s.left[2 * j] > 0; j++)
            finish_few_glu(&to, f + j * half, s.left[2 * j], s.sums[2 * j], s.sums[2 * j + 1], PRODUCT_FEW_ROWS);
    }
    for (int64_t f = begin; f < end && mlp->gate.k_stride != 1; f += PRODUCT_COLUMNS) {
        float gate[PRODUCT_FEW_TOKENS * PRODUCT_COLUMNS], up[PRODUCT_FEW_TOKENS * PRODUCT_COLUMNS];
        int64_t n = least(end - f, PRODUCT_COLUMNS);
        kernels->columns(at(kernels, &mlp->gate, f), mlp->gate.k_stride * size, (int32_t)n, hidden, x, tokens, gate);
        kernels->columns(at(kernels, &mlp->up, f), mlp->up.k_stride * size, (int32_t)n, hidden, x, tokens, up);
        for (int64_t i = 0; i < n; i += PRODUCT_FEW_ROWS)
            finish_few_glu(&to, f + i, least(n - i, PRODUCT_FEW_ROWS), gate + i, up + i, PRODUCT_COLUMNS);
    }
}

void product_out_few(const product_kernels *kernels, const product_matrix *w, int64_t k, const void *const *x,
                     int32_t tokens, int64_t begin, int64_t end, tn_dtype out, void *const *y)
{
    const few_out to = {kernels, w, out, y, tokens};
    int64_t part = part_of(end - begin, PRODUCT_STREAMS);
    for (int64_t row = begin; row < begin + part && w->k_stride == 1; row += PRODUCT_FEW_ROWS) {
        few_streams s;
        for (int j = 0; j < PRODUCT_STREAMS; j++)
            open_stream(kernels, &s, j, w, row + j * part, end);
        read_streams(kernels, &s, k, x, tokens);
        for (int j = 0; j < PRODUCT_STREAMS && s.left[j] > 0; j++)
            finish_few_out(&to, row + j * part, s.left[j], s.sums[j], PRODUCT_FEW_ROWS);
    }
    for (int64_t row = begin; row < end && w->k_stride != 1; row += PRODUCT_COLUMNS) {
        float sums[PRODUCT_FEW_TOKENS * PRODUCT_COLUMNS];
        int64_t n = least(end - row, PRODUCT_COLUMNS);
        kernels->columns(at(kernels, w, row), w->k_stride * element(kernels), (int32_t)n, k, x, tokens, sums);
        for (int64_t i = 0; i < n; i += PRODUCT_FEW_ROWS)
            finish_few_out(&to, row + i, least(n - i, PRODUCT_FEW_ROWS), sums + i, PRODUCT_COLUMNS);
    }
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
