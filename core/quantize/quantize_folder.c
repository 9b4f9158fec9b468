/* Writing a checkpoint as a folder of FP8: the matrices of layers become F8_E4M3 with a scale for each block of 128
 * rows and columns; other tensors and other files stay as they are. */
#include "quantize/quantize.h"

#include "base/blocks.h"
#include "checkpoint/folder_copy.h"
#include "op/weight.h"
#include "quantize/encode.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* CHUNK: values that are encoded before progress is told. */
enum { BLOCK = 128, CHUNK = 1 << 20, LARGEST = 448, NAME = 256 };

/* One matrix at work. */
typedef struct job {
    weight from;
    int64_t rows, columns;
    int64_t first; /* of the rows of blocks that are encoded together                                     */
    uint8_t *codes;
    float *scales;
    double *sums; /* of each row of blocks: squares of what values are off by, and of values              */
} job;

typedef struct folder {
    const tn_model *model;
    const tn_quantize_options *options;
    tn_named_tensor *tensors;
    size_t count;
    void **memory; /* names, codes and scales                                                          */
    size_t memory_count;
    int64_t done, total;
    tn_error *err;
} folder;

/* ---- values ---------------------------------------------------------------------------------------------- */

static int64_t blocks_of(int64_t n)
{
    return (n + BLOCK - 1) / BLOCK;
}

/* Rows row to end, columns column to column + n, by one scale. */
static void encode_square(const job *j, int64_t row, int64_t end, int64_t column, int64_t n, double *sums)
{
    float x[BLOCK][BLOCK], largest = 0;
    for (int64_t r = row; r < end; r++) {
        weight_read(&j->from, r, column, n, TN_F32, x[r - row]);
        for (int64_t i = 0; i < n; i++) {
            largest = fmaxf(largest, fabsf(x[r - row][i]));
            sums[1] += (double)x[r - row][i] * (double)x[r - row][i];
        }
    }
    float scale = fmaxf(largest, 1e-12f) / LARGEST, back[BLOCK];
    j->scales[row / BLOCK * blocks_of(j->columns) + column / BLOCK] = scale;
    for (int64_t r = row; r < end; r++) {
        uint8_t *codes = j->codes + r * j->columns + column;
        for (int64_t i = 0; i < n; i++)
            codes[i] = encode_e4m3(x[r - row][i] / scale);
        blocks_to_f32(TN_F8_E4M3, codes, 0, n, back);
        for (int64_t i = 0; i < n; i++)
            sums[0] += pow((double)(back[i] * scale) - (double)x[r - row][i], 2);
    }
}

static void encode_blocks(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const job *j = ctx;
    (void)thread;
    for (int64_t b = j->first + begin; b < j->first + end; b++)
        for (int64_t column = 0; column < j->columns; column += BLOCK) {
            int64_t last = (b + 1) * BLOCK, n = j->columns - column;
            encode_square(j, b * BLOCK, last < j->rows ? last : j->rows, column, n < BLOCK ? n : BLOCK,
                          j->sums + 2 * b);
        }
}

/* ---- tensors --------------------------------------------------------------------------------------------- */

static void *keep(folder *f, size_t bytes)
{
    void **grown = realloc(f->memory, (f->memory_count + 1) * sizeof *grown), *kept = grown ? calloc(bytes, 1) : NULL;
    if (grown)
        f->memory = grown;
    if (kept)
        f->memory[f->memory_count++] = kept;
    else
        tn_fail(f->err, TN_E_MEMORY, f->model->folder, "out of memory");
    return kept;
}

/* Matrices of layers, but for norms and for those that choose experts. */
static bool is_matrix(const char *name, const tn_tensor *t)
{
    static const char *const others[] = {"norm", "router", ".gate.weight", "shared_expert_gate", "embed"};
    const char *end = strstr(name, ".weight");
    bool of_layer = strstr(name, "layers.") || strstr(name, ".h.") || !strncmp(name, "h.", 2);
    bool is = of_layer && end && !end[strlen(".weight")] && t->ndim == 2;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        is = is && !strstr(name, others[i]);
    return is && (t->dtype == TN_F32 || t->dtype == TN_BF16 || t->dtype == TN_F16);
}

static void add(folder *f, const char *name, tn_tensor tensor)
{
    f->tensors[f->count++] = (tn_named_tensor){.name = name, .tensor = tensor};
}

static tn_status tell(folder *f, const char *name, const tn_tensor *t, const job *j)
{
    double sums[2] = {0};
    for (int64_t i = 0; i < 2 * blocks_of(t->shape[0]); i++)
        sums[i % 2] += j->sums[i];
    if (!isfinite(sums[0]) || !isfinite(sums[1]))
        return tn_fail(f->err, TN_E_INPUT, name, "holds values that are no finite numbers; fetch the file again");
    tn_quantized told = {.size = sizeof told, .name = name, .from = t->dtype, .to = TN_F8_E4M3};
    told.values = j->rows * j->columns;
    told.bytes = told.values + blocks_of(j->rows) * blocks_of(j->columns) * (int64_t)sizeof(float);
    told.error = sums[1] > 0 ? sqrt(sums[0] / sums[1]) : 0;
    if (f->options->tensor)
        f->options->tensor(f->options->ctx, &told);
    return TN_OK;
}

static tn_status tell_progress(const folder *f, const char *name, int64_t done, int64_t total)
{
    if (f->options->progress && f->options->progress(f->options->ctx, name, done, total))
        return tn_fail(f->err, TN_E_CANCELLED, f->model->folder, "cancelled");
    return TN_OK;
}

/* Some rows of blocks at a time, behind which it may be cancelled. */
static tn_status encode_matrix(folder *f, const char *name, job *j)
{
    int64_t rows = blocks_of(j->rows), most = CHUNK / (BLOCK * j->columns) + 1;
    tn_status status = TN_OK;
    for (int64_t n; j->first < rows && status == TN_OK; j->first += n) {
        n = rows - j->first < most ? rows - j->first : most;
        tn_parallel_for(n, 1, encode_blocks, j);
        int64_t end = (j->first + n) * BLOCK;
        status = tell_progress(f, name, f->done + (end < j->rows ? end : j->rows) * j->columns, f->total);
    }
    f->done += j->rows * j->columns;
    return status;
}

static tn_status add_matrix(folder *f, const char *name, const tn_tensor *t)
{
    int64_t rows = t->shape[0], columns = t->shape[1], grid[2] = {blocks_of(rows), blocks_of(columns)};
    job j = {.from = weight_make(t, NULL, NULL, NULL), .rows = rows, .columns = columns};
    char *scale_name = keep(f, strlen(name) + sizeof "_scale_inv");
    j.codes = scale_name ? keep(f, (size_t)(rows * columns)) : NULL;
    j.scales = j.codes ? keep(f, (size_t)(grid[0] * grid[1]) * sizeof *j.scales) : NULL;
    j.sums = j.scales ? keep(f, 2 * (size_t)grid[0] * sizeof *j.sums) : NULL;
    if (!j.sums)
        return TN_E_MEMORY;
    snprintf(scale_name, strlen(name) + sizeof "_scale_inv", "%s_scale_inv", name);
    tn_status status = encode_matrix(f, name, &j);
    if (status != TN_OK)
        return status;
    add(f, name, tn_tensor_dense(j.codes, TN_F8_E4M3, 2, t->shape));
    add(f, scale_name, tn_tensor_dense(j.scales, TN_F32, 2, grid));
    return tell(f, name, t, &j);
}

static tn_status add_tensors(folder *f)
{
    const shards *set = f->model->weights;
    tn_tensor t;
    tn_status status = TN_OK;
    f->tensors = calloc(2 * shards_count(set) + 1, sizeof *f->tensors);
    if (!f->tensors)
        return tn_fail(f->err, TN_E_MEMORY, f->model->folder, "out of memory");
    for (size_t i = 0; i < shards_count(set); i++)
        if (shards_get(set, shards_name(set, i), &t) && is_matrix(shards_name(set, i), &t))
            f->total += tn_tensor_count(&t);
    if (f->total == 0)
        return tn_fail(f->err, TN_E_INPUT, f->model->folder, "has no matrices of layers that FP8 is made of");
    for (size_t i = 0; i < shards_count(set) && status == TN_OK; i++) {
        const char *name = shards_name(set, i);
        if (shards_get(set, name, &t) && is_matrix(name, &t))
            status = add_matrix(f, name, &t);
        else
            add(f, name, t);
    }
    return status;
}

/* ---- files ----------------------------------------------------------------------------------------------- */

static void say_how(void *ctx, json_t *root)
{
    (void)ctx;
    json_t *how =
        json_pack("{s:s, s:s, s:s, s:[i, i], s:[s]}", "quant_method", "fp8", "fmt", "e4m3", "activation_scheme",
                  "dynamic", "weight_block_size", BLOCK, BLOCK, "modules_to_not_convert", "lm_head");
    json_object_set_new(root, "quantization_config", how);
}

static int written(void *ctx, int64_t done, int64_t total)
{
    const folder *f = ctx;
    return f->options->progress ? f->options->progress(f->options->ctx, "writing", done, total) : 0;
}

/* ---- all of it ------------------------------------------------------------------------------------------- */

static tn_status check_source(const tn_model *model, tn_error *err)
{
    tn_status status = TN_OK;
    struct stat st;
    config_reader root = config_root(model->config, &status, err);
    if (stat(model->folder, &st) != 0 || !S_ISDIR(st.st_mode))
        return tn_fail(err, TN_E_INPUT, model->folder, "is no folder, of which alone one of FP8 is made");
    if (config_has(&root, "quantization_config"))
        return tn_fail(err, TN_E_INPUT, model->folder, "is quantised already; take the plain checkpoint");
    return status;
}

static tn_status write_folder(folder *f, folder_copy *c)
{
    tn_status status = folder_copy_weights(c, f->tensors, f->count, written, f);
    if (status == TN_OK)
        status = folder_copy_config(c, say_how, NULL);
    if (status == TN_OK)
        status = folder_copy_files(c);
    if (status == TN_OK)
        status = shards_check(f->model->weights, f->err);
    return status == TN_OK ? quantize_check_model(f->model, c->path, false, f->err) : status;
}

tn_status quantize_folder(const tn_model *model, const char *out, const tn_quantize_options *options, tn_error *err)
{
    folder f = {.model = model, .options = options, .err = err};
    folder_copy c;
    tn_status status = check_source(model, err);
    if (status == TN_OK)
        status = folder_copy_check(out, err);
    if (status == TN_OK)
        status = add_tensors(&f);
    if (status == TN_OK)
        status = folder_copy_begin(&c, model->folder, out, err);
    if (status == TN_OK)
        status = folder_copy_end(&c, out, write_folder(&f, &c));
    for (size_t i = 0; i < f.memory_count; i++)
        free(f.memory[i]);
    free(f.memory);
    free(f.tensors);
    return status;
}
