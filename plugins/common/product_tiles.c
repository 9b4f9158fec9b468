/* Many tokens through the pieces of a gated MLP: loops over tiles, stretches of k and rows around the products of one
 * instruction set. */
#include "product_parts.h"

#include <string.h>

/* Tokens from which on copying rows that are whole pages apart costs less than what their tiles gain by it (a third).
 */
#define APART_TOKENS 64

/* Rows that are brought into scratch at once: a multiple of every tile's rows. */
enum { GATHERED_ROWS = 32 };

/* Sums that wait for the next stretch of k, beside that stretch's panel in the second cache. */
#define SUMS_BYTES (512 * 1024)

/* Copied rows: of so many tiles at most, and so much; over so many elements along k in one go. Longer rows go in
 * stretches. */
enum { COPIED_TILES = 8, COPIED_LENGTH = 1536, COPIED_BYTES = 768 * 1024 };

/* Elements along k that tiles take at once, `usual`: the rows of a tile stay in the first cache and the panel of a
 * block of tokens in the second. Half as much again in one go rather than in two. */
static int64_t longest_stretch(int64_t usual)
{
    return usual + usual / 2;
}

static int64_t stretch_of(int64_t usual, int64_t k)
{
    int64_t parts = (k + usual - 1) / usual;
    return k <= longest_stretch(usual) ? k : ((k + parts - 1) / parts + 31) / 32 * 32;
}

/* Elements along k of which copies are made at once. */
static int64_t copied_length(int64_t usual, int64_t k)
{
    return k <= COPIED_LENGTH ? k : stretch_of(usual, k);
}

/* Bytes of a tile's rows in their copy. */
static int64_t copied_tile(int64_t length)
{
    return (length + 31) / 32 * 32 * PRODUCT_MAX_ROWS * 2;
}

/* An even number: gathered rows are those of two tiles of gates and ups. */
static int64_t copied_tiles(int64_t length)
{
    return product_least(COPIED_BYTES / copied_tile(length) / 2 * 2, COPIED_TILES);
}

size_t product_scratch_size(const product_kernels *kernels, int64_t k)
{
    const product_variant *v = kernels->variant;
    int64_t rows = 2 * GATHERED_ROWS + v->rows,
            shortest = v->copies ? product_least(v->copied, v->stretch) : v->stretch;
    return (size_t)(rows * product_row_space(product_least(k, longest_stretch(v->stretch)))) +
           (k > longest_stretch(shortest) ? SUMS_BYTES : 0) + (v->copies ? COPIED_BYTES : 0);
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

/* Brings the next rows into scratch when a tile begins behind those that are there. Sixty-four elements of all of them
 * at a time: each element is on a page of its own, and the first level of the address cache holds as many. */
static void gather_rows(const product_kernels *kernels, const row_source *s, const k_range *k, int64_t row)
{
    int64_t size = product_element(kernels), step = s->w->k_stride * size;
    int64_t n = product_least(s->end - row, GATHERED_ROWS);
    for (int64_t i = 0; i < k->n && (row - s->begin) % GATHERED_ROWS == 0; i += 64)
        for (int64_t r = 0; r < n; r += PRODUCT_FEW_ROWS)
            kernels->gather(product_at(kernels, s->w, row + r) + (k->from + i) * step, step,
                            (int32_t)product_least(n - r, PRODUCT_FEW_ROWS), product_least(k->n - i, 64),
                            s->gathered + r * k->space + i * size, k->space);
}

/* Pointers to the rows of a tile. Those behind the valid ones repeat the last: their sums are thrown away. */
static void tile_rows(const product_kernels *kernels, const row_source *s, const k_range *k, int64_t row, int32_t valid,
                      int32_t count, const void **rows)
{
    int64_t place = 0, size = product_element(kernels);
    if (s->w->k_stride != 1) {
        gather_rows(kernels, s, k, row);
        place = (row - s->begin) % GATHERED_ROWS;
    }
    for (int32_t r = 0; r < count; r++) {
        int32_t use = r < valid ? r : valid - 1;
        rows[r] = s->w->k_stride == 1 ? product_at(kernels, s->w, row + use) + k->from * size
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
    int64_t k, tokens;
    product_rows rows;
    int64_t stretch; /* the usual one                                                               */
    const char *x;   /* a panel                                                                     */
    float *sums;     /* between stretches of k                                                        */
    tn_act act;
    tn_dtype out;   /* of y                                                                           */
    const char *b;  /* lines: the matrix whose columns are the lanes, from their first on; x is made of it */
    int64_t b_step; /* bytes                                                                        */
    char *laid;     /* its panel of a stretch                                                       */
    int64_t column; /* of y that the first lane is                                                  */
    void *const *y;
    char *h; /* a panel                                                                             */
    int64_t h_token;
    product_later *later;
    char *copies; /* tiles of copied rows, or NULL                                                  */
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
        kernels->tile_glu(tile, finish, n,
                          job->h + t * job->h_token + row * tile->width * product_native_element(kernels));
        return;
    }
    void *y[PRODUCT_MAX_TOKENS];
    int64_t size = job->out == TN_F32 ? 4 : 2;
    int32_t m = (int32_t)product_least(tile->width, job->tokens - t);
    if (job->b) {
        for (int32_t r = 0; r < n; r++)
            y[r] = (char *)job->y[row + r] + (job->column + t) * size;
        kernels->tile_lines(tile, finish, n, y, m);
        return;
    }
    for (int32_t i = 0; i < m; i++)
        y[i] = (char *)job->y[t + i] + row * size;
    kernels->tile_out(tile, finish, n, y, m);
}

/* Part `part` of `parts` of `rows` rows from `row` on, from element i on. */
static product_fetch fetch_part(const tile_job *job, const row_source *s, int64_t i, int64_t row, int64_t rows,
                                int64_t part, int64_t parts)
{
    const product_kernels *kernels = job->kernels;
    int64_t size = product_element(kernels);
    rows = s->w->k_stride == 1 && rows > 0 ? rows : 0;
    int64_t from = rows * part / parts, to = rows * (part + 1) / parts;
    return (product_fetch){rows > 0 ? product_at(kernels, s->w, row + from) + i * size : NULL, s->w->row_stride * size,
                           (int32_t)(to - from), (int32_t)(product_native_element(kernels) / size / 2)};
}

/* Pointers to the rows of a tile, row .. row + n - 1 of each source, and how far apart they are. */
static void find_rows(const tile_job *job, const k_range *k, int64_t row, int32_t n, const void **rows,
                      product_tile *tile)
{
    int32_t each = job->kernels->variant->rows / job->sources;
    for (int32_t j = 0; j < job->sources; j++)
        tile_rows(job->kernels, &job->source[j], k, row, n, each, rows + j * each);
    tile->w = rows;
    tile->row_step = n < each ? 0 : (const char *)rows[1] - (const char *)rows[0];
    if (job->sources == 2 && (const char *)rows[each + 1] - (const char *)rows[each] != tile->row_step)
        tile->row_step = 0;
}

static const float *find_bias(const tile_job *job, int64_t row, int32_t n, float bias[PRODUCT_MAX_ROWS])
{
    int32_t each = job->kernels->variant->rows / job->sources;
    const float *found = NULL;
    for (int32_t j = 0; j < job->sources; j++)
        if (product_widen_bias(job->kernels, job->source[j].w->bias, row, n, bias + j * each))
            found = bias;
    return found;
}

static product_finish finish_of(const tile_job *job, const float *bias)
{
    return (product_finish){job->sources == 2 ? job->kernels->dtype : job->out, job->act, bias};
}

/* Rows row .. row + n - 1 over one stretch; sums: where theirs are. */
static void tiles_of_rows(const tile_job *job, const k_range *k, int64_t row, int32_t n, float *sums)
{
    const product_kernels *kernels = job->kernels;
    const void *rows[PRODUCT_MAX_ROWS] = {NULL};
    float bias[PRODUCT_MAX_ROWS] = {0};
    int64_t x_token = product_panel_token(kernels, job->k), native = product_native_element(kernels);
    int64_t tiles = product_tiles(kernels, job->tokens), step = kernels->variant->rows / job->sources, i = 0;
    int64_t behind = product_least(job->rows.far - row - step, step);
    bool last = k->from + k->n == job->k;
    const product_finish finish = finish_of(job, find_bias(job, row, n, bias));
    product_tile tile = {.k = k->n, .later = job->later};
    find_rows(job, k, row, n, rows, &tile);
    for (int64_t t = 0; t < job->tokens; i++) {
        for (int32_t j = 0; j < job->sources; j++)
            tile.fetch[j] = fetch_part(job, &job->source[j], k->from, row + step, behind, i, tiles);
        tile.width = product_tile_width(kernels, job->tokens - t);
        tile.panel = job->b ? job->laid + t * product_panel_token(kernels, k->n)
                            : job->x + t * x_token + k->from * tile.width * native;
        tile.before = k->from > 0 ? sums : NULL;
        end_tile(job, &tile, &finish, row, n, t, last ? NULL : sums);
        sums += product_tile_sums(kernels);
        t += tile.width;
    }
}

/* ---- tiles of copied rows ------------------------------------------------------------------------------
 *
 * A few rows are copied in the order of tiles, as they meet their first tokens, and stay in the second cache while all
 * tokens go by, a tile of them in the first. Meanwhile the rows after them are fetched. Every other time the tokens
 * come backwards, so that those that were last are still near. */

/* Rows from .. end - 1 over elements along k. */
typedef struct copied_rows {
    int64_t row, end;
    int64_t from, n;
} copied_rows;

/* What is behind them: the next elements of the same rows or the first of the next, those behind the job's among them;
 * none: no rows. */
static copied_rows rows_behind(const tile_job *job, const copied_rows *c, int64_t rows)
{
    int64_t length = copied_length(job->stretch, job->k), from = c->from + c->n;
    int64_t last = c->end < job->rows.end ? job->rows.end : job->rows.far;
    copied_rows next = {c->row, c->end, from, product_least(length, job->k - from)};
    if (from == job->k)
        next = (copied_rows){c->end, product_least(c->end + rows, last), 0, product_least(length, job->k)};
    return next;
}

/* One tile of tokens, from t on, by all the rows, in stretches; first: these tokens bring the copy. */
static void tokens_by_rows(const tile_job *job, const copied_rows *c, const copied_rows *next, int64_t t, int64_t done,
                           bool first)
{
    const product_kernels *kernels = job->kernels;
    int64_t step = kernels->variant->rows / job->sources, groups = (c->end - c->row + step - 1) / step;
    int64_t stretch = stretch_of(job->stretch, c->n), native = product_native_element(kernels);
    int64_t tile_sums = product_tile_sums(kernels), tiles = product_tiles(kernels, job->tokens), width;
    const void *rows[PRODUCT_MAX_ROWS] = {NULL};
    float bias[PRODUCT_MAX_ROWS] = {0};
    product_tile tile = {.later = job->later, .copied = !first};
    tile.width = product_tile_width(kernels, job->tokens - t);
    width = tile.width;
    for (int64_t i = 0; i < c->n; i += stretch) {
        const k_range k = {c->from + i, product_least(stretch, c->n - i), product_row_space(stretch)};
        tile.k = k.n;
        tile.panel = job->x + t * product_panel_token(kernels, job->k) + k.from * width * native;
        for (int64_t g = 0; g < groups; g++) {
            int64_t row = c->row + g * step;
            int32_t n = (int32_t)product_least(c->end - row, step);
            float *sums = job->sums + (c->n == job->k ? g : g * tiles + t / kernels->variant->tile_tokens) * tile_sums;
            tile.copy = job->copies + g * copied_tile(c->n) + i * kernels->variant->rows * native;
            tile.before = k.from > 0 ? sums : NULL;
            if (first)
                find_rows(job, &k, row, n, rows, &tile);
            for (int32_t j = 0; j < job->sources; j++)
                tile.fetch[j] = fetch_part(job, &job->source[j], next->from + i, next->row,
                                           i < next->n ? next->end - next->row : 0, done * groups + g, tiles * groups);
            bool last = k.from + k.n == job->k;
            const product_finish finish = finish_of(job, last ? find_bias(job, row, n, bias) : NULL);
            end_tile(job, &tile, &finish, row, n, t, last ? NULL : sums);
        }
    }
}

static void tiles_of_copies(const tile_job *job)
{
    bool backwards = false;
    const product_kernels *kernels = job->kernels;
    int64_t step = kernels->variant->rows / job->sources, tiles = product_tiles(kernels, job->tokens);
    int64_t length = copied_length(job->stretch, job->k), most = copied_tiles(length) * step;
    int64_t all = job->rows.end - job->rows.begin, blocks = (all + most - 1) / most;
    if (all <= 0)
        return;
    int64_t rows = ((all + blocks - 1) / blocks + GATHERED_ROWS - 1) / GATHERED_ROWS * GATHERED_ROWS;
    copied_rows now = {job->rows.begin, product_least(job->rows.begin + rows, job->rows.end), 0,
                       product_least(length, job->k)};
    while (now.row < job->rows.end) {
        const copied_rows next = rows_behind(job, &now, rows);
        for (int64_t i = 0; i < tiles; i++)
            tokens_by_rows(job, &now, &next, (backwards ? tiles - 1 - i : i) * kernels->variant->tile_tokens, i,
                           i == 0);
        backwards = !backwards;
        now = next;
    }
}

/* The panel of a stretch for lines. */
static void lay_stretch(const tile_job *job, const k_range *k)
{
    const product_kernels *kernels = job->kernels;
    for (int64_t t = 0; t < job->tokens;) {
        int32_t width = product_tile_width(kernels, job->tokens - t);
        kernels->lay(job->b + k->from * job->b_step + t * product_element(kernels), job->b_step,
                     (int32_t)product_least(width, job->tokens - t), width, k->n,
                     job->laid + t * product_panel_token(kernels, k->n));
        t += width;
    }
}

/* So many rows at a time that their sums wait in the second cache while a stretch goes by. */
static void tiles_in_place(const tile_job *job)
{
    const product_kernels *kernels = job->kernels;
    int64_t stretch = stretch_of(job->stretch, job->k), step = kernels->variant->rows / job->sources;
    int64_t each = product_tiles(kernels, job->tokens) * product_tile_sums(kernels);
    int64_t rows = SUMS_BYTES / (int64_t)sizeof(float) / (each ? each : 1) * step / GATHERED_ROWS * GATHERED_ROWS;
    rows = stretch == job->k ? job->rows.end - job->rows.begin : rows > 0 ? rows : GATHERED_ROWS;
    for (int64_t block = job->rows.begin; block < job->rows.end; block += rows)
        for (int64_t from = 0; from < job->k; from += stretch) {
            int64_t n = product_least(stretch, job->k - from), end = product_least(block + rows, job->rows.end);
            const k_range k = {from, n, product_row_space(n)};
            if (job->b && (block == job->rows.begin || stretch < job->k))
                lay_stretch(job, &k);
            for (int64_t row = block; row < end; row += step)
                tiles_of_rows(job, &k, row, (int32_t)product_least(end - row, step),
                              job->sums + (row - block) / step * each);
        }
}

/* ---- one tile of tokens by turned rows --------------------------------------------------------------------------- */

static bool turns_rows(const tile_job *job)
{
    bool rows = job->source[0].w->k_stride == 1 && (job->sources == 1 || job->source[1].w->k_stride == 1);
    return job->kernels->turned && rows && !job->b && product_tiles(job->kernels, job->tokens) == 1;
}

/* Features f .. f + n - 1 of a token of h's panel. */
static void put_features(const tile_job *job, const float *h, int64_t f, int64_t n, int64_t t, int32_t width)
{
    float *to = (float *)(void *)job->h + f * width + t;
    for (int64_t i = 0; i < n; i++)
        to[i * width] = h[i];
}

/* What becomes of the sums of n <= PRODUCT_FEW_ROWS rows from `row` on. */
static void end_turned(const tile_job *job, int64_t row, int64_t n, const float *const sums[2])
{
    const product_kernels *kernels = job->kernels;
    float bias[2][PRODUCT_FEW_ROWS], h[PRODUCT_FEW_ROWS] = {0};
    const float *found[2] = {NULL, NULL};
    int64_t size = job->out == TN_F32 ? 4 : 2;
    int32_t width = product_tile_width(kernels, job->tokens);
    for (int32_t j = 0; j < job->sources; j++)
        found[j] = product_widen_bias(kernels, job->source[j].w->bias, row, n, bias[j]);
    const product_finish finish = {job->sources == 2 ? TN_F32 : job->out, job->act, found[0]};
    for (int64_t t = 0; t < job->tokens; t++) {
        const int64_t at = t * PRODUCT_TURNED_ROWS;
        if (job->sources == 1) {
            kernels->row_out(sums[0] + at, &finish, (int32_t)n, (char *)job->y[t] + row * size);
            continue;
        }
        kernels->row_glu(sums[0] + at, sums[1] + at, found[1], &finish, (int32_t)n, h);
        put_features(job, h, row, n, t, width);
    }
    memset(h, 0, sizeof h);
    for (int64_t t = job->tokens; t < width && job->sources == 2; t++)
        put_features(job, h, row, n, t, width);
}

static void tiles_turned(const tile_job *job)
{
    float sums[2][PRODUCT_MAX_TOKENS * PRODUCT_TURNED_ROWS];
    int32_t width = product_tile_width(job->kernels, job->tokens);
    for (int64_t row = job->rows.begin; row < job->rows.end; row += PRODUCT_TURNED_ROWS) {
        for (int32_t j = 0; j < job->sources; j++) {
            const product_block block =
                product_block_of(job->kernels, job->source[j].w, job->k, row, &job->rows, PRODUCT_TURNED_ROWS);
            job->kernels->turned(&block, job->k, job->x, width, (int32_t)job->tokens, sums[j]);
        }
        for (int64_t i = 0; i < PRODUCT_TURNED_ROWS && row + i < job->rows.end; i += PRODUCT_FEW_ROWS)
            end_turned(job, row + i, product_least(job->rows.end - row - i, PRODUCT_FEW_ROWS),
                       (const float *const[]){sums[0] + i, sums[1] + i});
    }
}

static void do_tiles(const tile_job *given)
{
    product_later later;
    tile_job job = *given;
    memset(later.data, 0, PRODUCT_LATER_HEAD);
    job.later = &later;
    job.kernels->tiles_begin();
    if (turns_rows(&job))
        tiles_turned(&job);
    else if (job.copies)
        tiles_of_copies(&job);
    else
        tiles_in_place(&job);
    job.kernels->finish_later(&later);
    job.kernels->tiles_end();
}

static bool must_copy(const tile_job *job, const product_matrix *w)
{
    bool pages = w->row_stride * product_element(job->kernels) % 4096 == 0;
    return job->sources == 1 && pages && job->tokens >= APART_TOKENS && !job->copies;
}

/* Sums of all tokens by the copied rows must find room. */
static bool copies_rows(const tile_job *job)
{
    const product_kernels *kernels = job->kernels;
    int64_t sums = COPIED_TILES * product_tiles(kernels, job->tokens) * product_tile_sums(kernels);
    return kernels->variant->copies > 0 && job->tokens >= kernels->variant->copies && !job->b &&
           sums * (int64_t)sizeof(float) <= SUMS_BYTES;
}

/* Scratch as product_scratch_size has it, for a job with `sources` matrices. */
static void take_scratch(tile_job *job, const product_matrix *const *w, char *scratch)
{
    const product_kernels *kernels = job->kernels;
    const product_variant *v = kernels->variant;
    int64_t space = product_row_space(product_least(job->k, longest_stretch(v->stretch))), rows = v->rows;
    bool copies = copies_rows(job);
    job->stretch = copies ? v->copied : v->stretch;
    job->copies = copies ? scratch + product_scratch_size(kernels, job->k) - COPIED_BYTES : NULL;
    for (int32_t j = 0; j < job->sources; j++) {
        row_source *s = &job->source[j];
        *s = (row_source){.w = w[j], .begin = job->rows.begin, .end = job->rows.end};
        s->gathered = scratch + j * GATHERED_ROWS * space;
        s->converted = scratch + (2 * GATHERED_ROWS + j * rows / 2) * space;
        s->apart = s->w->k_stride == 1 && must_copy(job, s->w);
    }
    job->sums = (float *)(void *)(scratch + (2 * GATHERED_ROWS + rows) * space);
}

void product_glu_tiles(const product_kernels *kernels, const product_mlp *mlp, int64_t hidden, tn_act act,
                       const void *x, int64_t tokens, product_rows features, void *h, void *scratch)
{
    tile_job job = {.kernels = kernels,
                    .sources = 2,
                    .k = hidden,
                    .rows = features,
                    .tokens = tokens,
                    .x = x,
                    .act = act,
                    .h = h,
                    .h_token = product_panel_token(kernels, mlp->inter)};
    take_scratch(&job, (const product_matrix *const[]){&mlp->gate, &mlp->up}, scratch);
    do_tiles(&job);
}

void product_out_tiles(const product_kernels *kernels, const product_matrix *w, int64_t k, const void *x,
                       int64_t tokens, product_rows outputs, tn_dtype out, void *const *y, void *scratch)
{
    tile_job job = {.kernels = kernels,
                    .sources = 1,
                    .k = k,
                    .rows = outputs,
                    .tokens = tokens,
                    .x = x,
                    .act = TN_ACT_LINEAR,
                    .out = out,
                    .y = y};
    take_scratch(&job, &w, scratch);
    do_tiles(&job);
}

/* Columns whose panel of a stretch, and whose sums, stay in the second cache. */
enum { LINES_COLUMNS = 256 };

size_t product_lines_scratch_size(const product_kernels *kernels, int64_t k)
{
    int64_t most = product_least(k, longest_stretch(kernels->variant->stretch)),
            lanes = product_padded_tokens(kernels, LINES_COLUMNS);
    return product_scratch_size(kernels, k) + (size_t)((lanes * product_panel_token(kernels, most) + 63) / 64 * 64);
}

void product_lines(const product_kernels *kernels, const product_matrix *a, int64_t rows, const product_columns *b,
                   int64_t k, int64_t begin, int64_t end, tn_dtype out, void *const *y, void *scratch)
{
    for (int64_t column = begin; column < end; column += LINES_COLUMNS) {
        tile_job job = {.kernels = kernels,
                        .sources = 1,
                        .k = k,
                        .rows = product_rows_of(0, rows),
                        .tokens = product_least(end - column, LINES_COLUMNS),
                        .act = TN_ACT_LINEAR,
                        .out = out,
                        .y = y,
                        .b = (const char *)b->data + column * product_element(kernels),
                        .b_step = b->stride * product_element(kernels),
                        .column = column};
        take_scratch(&job, &a, scratch);
        job.laid = (char *)scratch + product_scratch_size(kernels, k);
        do_tiles(&job);
    }
}
