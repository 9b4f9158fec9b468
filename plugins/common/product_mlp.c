/* The pieces of a gated MLP: loops over tiles and rows around the products of one instruction set. */
#include "product_mlp.h"
#include <string.h>

/* Tokens from which on copying rows that are whole pages apart costs less than what their tiles gain by it (a third).
 */
#define APART_TOKENS 64

/* Rows that are brought into scratch at once: a multiple of every tile's rows. */
enum { GATHERED_ROWS = 32 };

/* Sums that wait for the next stretch of k, beside that stretch's panel in the second cache. */
#define SUMS_BYTES (512 * 1024)

static int64_t element(const product_kernels *kernels)
{
    return kernels->dtype == TN_F32 ? 4 : 2;
}

static int64_t native_element(const product_kernels *kernels)
{
    return kernels->variant->native == TN_BF16 ? 2 : 4;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Elements along k that tiles take at once: the rows of a tile stay in the first cache and the panel of a block of
 * tokens in the second. Half as much again in one go rather than in two. */
static int64_t longest_stretch(const product_kernels *kernels)
{
    return kernels->variant->stretch + kernels->variant->stretch / 2;
}

static int64_t stretch_of(const product_kernels *kernels, int64_t k)
{
    int64_t parts = (k + kernels->variant->stretch - 1) / kernels->variant->stretch;
    return k <= longest_stretch(kernels) ? k : ((k + parts - 1) / parts + 31) / 32 * 32;
}

size_t product_scratch_size(const product_kernels *kernels, int64_t k)
{
    int64_t rows = 2 * GATHERED_ROWS + kernels->variant->rows, longest = longest_stretch(kernels);
    return (size_t)(rows * product_row_space(least(k, longest))) + (k > longest ? SUMS_BYTES : 0);
}

static const char *at(const product_kernels *kernels, const product_matrix *w, int64_t row)
{
    return (const char *)w->data + row * w->row_stride * element(kernels);
}

/* Where a tile's rows come from, of which it takes elements from .. from + n - 1 at the moment. Rows that lie side by
 * side are brought into scratch, 32 at a time, since neighbours share cache lines and pages; rows of another type than
 * native are converted, for each tile. */
typedef struct row_source {
    const product_matrix *w;
    int64_t begin, end;
    char *gathered, *converted; /* GATHERED_ROWS rows, and as many as the tile uses                 */
    bool apart; /* rows are copied: where they lie they would fall into the same few sets of the cache */
} row_source;

typedef struct k_range {
    int64_t from, n;
    int64_t space; /* bytes between rows in scratch                                                */
} k_range;

static bool is_direct(const product_kernels *kernels, const row_source *s)
{
    return s->w->k_stride == 1 && kernels->variant->native == kernels->dtype && !s->apart;
}

/* Brings the next rows into scratch when a tile begins behind those that are there. Sixty-four elements of all of them
 * at a time: each element is on a page of its own, and the first level of the address cache holds as many. */
static void gather_rows(const product_kernels *kernels, const row_source *s, const k_range *k, int64_t row)
{
    int64_t size = element(kernels), step = s->w->k_stride * size;
    int64_t n = least(s->end - row, GATHERED_ROWS);
    for (int64_t i = 0; i < k->n && (row - s->begin) % GATHERED_ROWS == 0; i += 64)
        for (int64_t r = 0; r < n; r += PRODUCT_FEW_ROWS)
            kernels->gather(at(kernels, s->w, row + r) + (k->from + i) * step, step,
                            (int32_t)least(n - r, PRODUCT_FEW_ROWS), least(k->n - i, 64),
                            s->gathered + r * k->space + i * size, k->space);
}

/* Pointers to the rows of a tile. Those behind the valid ones repeat the last: their sums are thrown away. */
static void tile_rows(const product_kernels *kernels, const row_source *s, const k_range *k, int64_t row, int32_t valid,
                      int32_t count, const void **rows)
{
    int64_t place = 0, size = element(kernels);
    if (s->w->k_stride != 1) {
        gather_rows(kernels, s, k, row);
        place = (row - s->begin) % GATHERED_ROWS;
    }
    for (int32_t r = 0; r < count; r++) {
        int32_t use = r < valid ? r : valid - 1;
        rows[r] = s->w->k_stride == 1 ? at(kernels, s->w, row + use) + k->from * size
                                      : s->gathered + (place + use) * k->space;
        if (kernels->variant->native == kernels->dtype && !s->apart)
            continue;
        char *copy = s->converted + use * k->space;
        if (r < valid && kernels->variant->native == kernels->dtype)
            memcpy(copy, rows[r], (size_t)(k->n * size));
        else if (r < valid)
            kernels->widen(rows[r], k->n, (float *)(void *)copy);
        rows[r] = copy;
    }
}

/* Part `part` of `parts` of the rows that the tile behind the one at `row` will copy or convert is fetched. */
static void fetch_rows(const product_kernels *kernels, const row_source *s, const k_range *k, int64_t row,
                       int32_t count, int64_t part, int64_t parts)
{
    int64_t size = element(kernels), end = least(row + 2 * count, s->end);
    int64_t from = k->n * size * part / parts / 64 * 64, to = k->n * size * (part + 1) / parts;
    for (int64_t r = row + count; r < end && s->w->k_stride == 1; r++)
        for (int64_t i = from; i < to; i += 64)
            __builtin_prefetch(at(kernels, s->w, r) + k->from * size + i, 0, 2);
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

/* Tiles of rows begin .. end - 1 by all tokens: of outputs, or of features with their gates and ups. */
typedef struct tile_job {
    const product_kernels *kernels;
    row_source source[2]; /* outputs; or gates and ups                                              */
    int32_t sources;
    int64_t k, begin, end, tokens;
    const char *x; /* a panel                                                                       */
    float *sums;   /* between stretches of k                                                        */
    tn_act act;
    tn_dtype out; /* of y                                                                           */
    void *const *y;
    char *h; /* a panel                                                                             */
    int64_t h_token;
} tile_job;

/* What one tile of the job leaves: sums for the next stretch, or results of n rows from `row` on. */
static void end_tile(const tile_job *job, const product_tile *tile, const product_finish *finish, int64_t row,
                     int32_t n, int64_t t, float *sums)
{
    const product_kernels *kernels = job->kernels;
    if (sums) {
        kernels->tile_part(tile, sums);
        return;
    }
    if (job->sources == 2) {
        kernels->tile_glu(tile, finish, n, job->h + t * job->h_token + row * tile->width * native_element(kernels));
        return;
    }
    void *y[PRODUCT_MAX_TOKENS];
    int32_t m = (int32_t)least(tile->width, job->tokens - t);
    for (int32_t i = 0; i < m; i++)
        y[i] = (char *)job->y[t + i] + row * (job->out == TN_F32 ? 4 : 2);
    kernels->tile_out(tile, finish, n, y, m);
}

/* Rows row .. row + n - 1 over one stretch; sums: where theirs are. */
static void tiles_of_rows(const tile_job *job, const k_range *k, int64_t row, int32_t n, float *sums)
{
    const product_kernels *kernels = job->kernels;
    const void *rows[PRODUCT_MAX_ROWS];
    float bias[PRODUCT_MAX_ROWS] = {0};
    int32_t each = kernels->variant->rows / job->sources;
    int64_t x_token = product_panel_token(kernels, job->k), native = native_element(kernels);
    int64_t tiles = product_tiles(kernels, job->tokens), i = 0;
    bool last = k->from + k->n == job->k;
    product_finish finish = {job->sources == 2 ? kernels->dtype : job->out, job->act, NULL};
    product_tile tile = {.w = rows, .k = k->n};
    for (int32_t j = 0; j < job->sources; j++) {
        const row_source *from = &job->source[j];
        tile_rows(kernels, from, k, row, n, each, rows + j * each);
        if (widen_bias(kernels, from->w->bias, row, n, bias + j * each))
            finish.bias = bias;
    }
    bool direct = is_direct(kernels, &job->source[0]);
    if (direct && row + n < job->end)
        tile.ahead = each * job->source[0].w->row_stride * element(kernels);
    for (int64_t t = 0; t < job->tokens; tile.ahead = 0, i++) {
        for (int32_t j = 0; j < job->sources && !direct; j++)
            fetch_rows(kernels, &job->source[j], k, row, each, i, tiles);
        tile.width = product_tile_width(kernels, job->tokens - t);
        tile.panel = job->x + t * x_token + k->from * tile.width * native;
        tile.before = k->from > 0 ? sums : NULL;
        end_tile(job, &tile, &finish, row, n, t, last ? NULL : sums);
        sums += product_tile_sums(kernels);
        t += tile.width;
    }
}

/* So many rows at a time that their sums wait in the second cache while a stretch goes by. */
static void do_tiles(const tile_job *job)
{
    const product_kernels *kernels = job->kernels;
    int64_t stretch = stretch_of(kernels, job->k), step = kernels->variant->rows / job->sources;
    int64_t each = product_tiles(kernels, job->tokens) * product_tile_sums(kernels);
    int64_t rows = SUMS_BYTES / (int64_t)sizeof(float) / (each ? each : 1) * step / GATHERED_ROWS * GATHERED_ROWS;
    rows = stretch == job->k ? job->end - job->begin : rows > 0 ? rows : GATHERED_ROWS;
    kernels->tiles_begin();
    for (int64_t block = job->begin; block < job->end; block += rows)
        for (int64_t from = 0; from < job->k; from += stretch) {
            int64_t n = least(stretch, job->k - from), end = least(block + rows, job->end);
            const k_range k = {from, n, product_row_space(n)};
            for (int64_t row = block; row < end; row += step)
                tiles_of_rows(job, &k, row, (int32_t)least(end - row, step), job->sums + (row - block) / step * each);
        }
    kernels->tiles_end();
}

static bool must_copy(const tile_job *job, const product_matrix *w)
{
    int32_t from = job->kernels->variant->copies;
    bool pages = w->row_stride * element(job->kernels) % 4096 == 0;
    return (from > 0 && job->tokens >= from) || (job->sources == 1 && pages && job->tokens >= APART_TOKENS);
}

/* Scratch as product_scratch_size has it, for a job with `sources` matrices. */
static void take_scratch(tile_job *job, const product_matrix *const *w, char *scratch)
{
    const product_kernels *kernels = job->kernels;
    int64_t space = product_row_space(least(job->k, longest_stretch(kernels))), rows = kernels->variant->rows;
    for (int32_t j = 0; j < job->sources; j++) {
        row_source *s = &job->source[j];
        *s = (row_source){.w = w[j], .begin = job->begin, .end = job->end};
        s->gathered = scratch + j * GATHERED_ROWS * space;
        s->converted = scratch + (2 * GATHERED_ROWS + j * rows / 2) * space;
        s->apart = s->w->k_stride == 1 && must_copy(job, s->w);
    }
    job->sums = (float *)(void *)(scratch + (2 * GATHERED_ROWS + rows) * space);
}

void product_glu_tiles(const product_kernels *kernels, const product_mlp *mlp, int64_t hidden, tn_act act,
                       const void *x, int64_t tokens, int64_t begin, int64_t end, void *h, void *scratch)
{
    tile_job job = {.kernels = kernels,
                    .sources = 2,
                    .k = hidden,
                    .begin = begin,
                    .end = end,
                    .tokens = tokens,
                    .x = x,
                    .act = act,
                    .h = h,
                    .h_token = product_panel_token(kernels, mlp->inter)};
    take_scratch(&job, (const product_matrix *const[]){&mlp->gate, &mlp->up}, scratch);
    do_tiles(&job);
}

void product_out_tiles(const product_kernels *kernels, const product_matrix *w, int64_t k, const void *x,
                       int64_t tokens, int64_t begin, int64_t end, tn_dtype out, void *const *y, void *scratch)
{
    tile_job job = {.kernels = kernels,
                    .sources = 1,
                    .k = k,
                    .begin = begin,
                    .end = end,
                    .tokens = tokens,
                    .x = x,
                    .act = TN_ACT_LINEAR,
                    .out = out,
                    .y = y};
    take_scratch(&job, &w, scratch);
    do_tiles(&job);
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

/* Rows that lie side by side. A stretch of them is read as it lies in memory, a few elements along k at a time: their
 * sums stay in the first two caches, and each page is met once. */
enum { COLUMN_SUMS = 8192, COLUMN_STEP = 8 };

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
            from[t] = (const char *)x[t] + i * native_element(kernels);
        for (int p = 0; p < parts; p++) {
            int64_t step = w[p]->k_stride * element(kernels);
            for (int64_t r = 0; r < n; r += PRODUCT_COLUMNS)
                kernels->columns(at(kernels, w[p], row + r) + i * step, step, (int32_t)least(n - r, PRODUCT_COLUMNS),
                                 least(k - i, COLUMN_STEP), from, tokens, sums + p * tokens * space + r, space);
        }
    }
}

static void glu_columns(const few_glu *to, int64_t hidden, const void *const *x, int64_t begin, int64_t end)
{
    const product_matrix *const w[2] = {&to->mlp->gate, &to->mlp->up};
    float sums[COLUMN_SUMS];
    int64_t space = column_stretch(to->tokens, 2);
    for (int64_t f = begin; f < end; f += space) {
        int64_t n = least(end - f, space);
        add_columns(to->kernels, w, 2, f, n, hidden, x, to->tokens, sums, space);
        for (int64_t i = 0; i < n; i += PRODUCT_FEW_ROWS)
            finish_few_glu(to, f + i, least(n - i, PRODUCT_FEW_ROWS), sums + i, sums + to->tokens * space + i, space);
    }
}

static void out_columns(const few_out *to, int64_t k, const void *const *x, int64_t begin, int64_t end)
{
    float sums[COLUMN_SUMS];
    int64_t space = column_stretch(to->tokens, 1);
    for (int64_t row = begin; row < end; row += space) {
        int64_t n = least(end - row, space);
        add_columns(to->kernels, &to->w, 1, row, n, k, x, to->tokens, sums, space);
        for (int64_t i = 0; i < n; i += PRODUCT_FEW_ROWS)
            finish_few_out(to, row + i, least(n - i, PRODUCT_FEW_ROWS), sums + i, space);
    }
}

void product_glu_few(const product_kernels *kernels, const product_mlp *mlp, int64_t hidden, tn_act act,
                     const void *const *x, int32_t tokens, int64_t begin, int64_t end, tn_dtype out, void *const *h)
{
    const few_glu to = {kernels, mlp, act, out, h, tokens};
    int64_t half = part_of(end - begin, 2);
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
    if (mlp->gate.k_stride != 1)
        glu_columns(&to, hidden, x, begin, end);
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
    if (w->k_stride != 1)
        out_columns(&to, k, x, begin, end);
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
