/* Writing a checkpoint as a folder of FP8: the matrices of layers become F8_E4M3 with a scale for each block of 128
 * rows and columns; other tensors and other files stay as they are. */
#include "quantize/quantize.h"

#include "base/blocks.h"
#include "base/file.h"
#include "base/json_infinity.h"
#include "base/json_memory.h"
#include "base/output.h"
#include "checkpoint/safetensors.h"
#include "op/weight.h"
#include "quantize/encode.h"

#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* CHUNK: values that are encoded before progress is told. */
enum { BLOCK = 128, CHUNK = 1 << 20, LARGEST = 448, NAME = 256, FILE_LIMIT = 256 << 20 };

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
    char *path; /* beside the one that is to be                                                        */
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

/* folder/name; NULL after the error. Owned. */
static char *path_of(const folder *f, const char *folder, const char *name)
{
    char *path = file_join(folder, name);
    if (!path)
        tn_fail(f->err, TN_E_MEMORY, folder, "out of memory");
    return path;
}

/* Of the last call to the system, on a file. */
static tn_status fail_system(const folder *f, const char *path, const char *what)
{
    return tn_fail(f->err, errno == ENOMEM ? TN_E_MEMORY : TN_E_INPUT, path, "%s: %s", what, strerror(errno));
}

static tn_status write_text(const folder *f, const char *name, const char *data, size_t size)
{
    char *path = path_of(f, f->path, name);
    output out = {.fd = -1};
    tn_status status = path ? output_open(&out, path, f->err) : TN_E_MEMORY;
    if (status == TN_OK)
        status = output_write(&out, data, size, f->err);
    if (status == TN_OK)
        status = output_commit(&out, f->err);
    output_close(&out);
    free(path);
    return status;
}

static tn_status write_config(const folder *f)
{
    json_error_t at;
    char *path = file_join(f->model->folder, "config.json");
    size_t size = 0;
    char *given = NULL;
    if (path && file_read(path, FILE_LIMIT, &given, &size, f->err) == TN_OK)
        json_infinity_spell(given, size);
    json_memory_watch();
    json_t *root = given ? json_loadb(given, size, 0, &at) : NULL;
    free(given);
    json_t *how =
        json_pack("{s:s, s:s, s:s, s:[i, i], s:[s]}", "quant_method", "fp8", "fmt", "e4m3", "activation_scheme",
                  "dynamic", "weight_block_size", BLOCK, BLOCK, "modules_to_not_convert", "lm_head");
    json_object_set_new(root, "quantization_config", how);
    char *text = json_dumps(root, JSON_INDENT(2));
    tn_status status = TN_OK;
    if (!path || !text || json_memory_failed())
        status = tn_fail(f->err, TN_E_MEMORY, f->model->folder, "out of memory for config.json");
    else
        status = write_text(f, "config.json", text, strlen(text));
    json_decref(root);
    free(text);
    free(path);
    return status;
}

/* Tokenizers, templates and their like; no weights, and not what tells where these are. */
static bool is_copied(const struct dirent *entry)
{
    static const char *const ends[] = {".json", ".jinja", ".model", ".txt", ".gz"};
    const char *name = entry->d_name;
    bool copied = false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        copied = copied || (strlen(name) > strlen(ends[i]) && !strcmp(name + strlen(name) - strlen(ends[i]), ends[i]));
    return copied && strcmp(name, "config.json") != 0 && !strstr(name, ".index.json");
}

static tn_status copy_file(const folder *f, const char *name)
{
    char *path = path_of(f, f->model->folder, name), *data = NULL;
    size_t size = 0;
    struct stat st;
    tn_status status = path ? TN_OK : TN_E_MEMORY;
    if (path && stat(path, &st) == 0 && S_ISREG(st.st_mode))
        status = file_read(path, FILE_LIMIT, &data, &size, f->err);
    if (data && status == TN_OK)
        status = write_text(f, name, data, size);
    free(data);
    free(path);
    return status;
}

static tn_status copy_files(const folder *f)
{
    DIR *from = opendir(f->model->folder);
    tn_status status = from ? TN_OK : fail_system(f, f->model->folder, "cannot be read");
    for (struct dirent *entry; from && status == TN_OK && (entry = readdir(from));)
        if (is_copied(entry))
            status = copy_file(f, entry->d_name);
    if (from)
        closedir(from);
    return status;
}

static int written(void *ctx, int64_t done, int64_t total)
{
    const folder *f = ctx;
    return f->options->progress ? f->options->progress(f->options->ctx, "writing", done, total) : 0;
}

static tn_status write_weights(folder *f)
{
    char *path = path_of(f, f->path, "model.safetensors");
    tn_status status = path ? safetensors_write(path, f->tensors, f->count, written, f, f->err) : TN_E_MEMORY;
    free(path);
    return status;
}

static void remove_folder(const char *path)
{
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char *file = file_join(path, entry->d_name);
        if (file)
            unlink(file);
        free(file);
    }
    if (folder)
        closedir(folder);
    rmdir(path);
}

/* ---- all of it ------------------------------------------------------------------------------------------- */

static tn_status check_source(const tn_model *model, const char *out, tn_error *err)
{
    tn_status status = TN_OK;
    struct stat st;
    config_reader root = config_root(model->config, &status, err);
    if (stat(model->folder, &st) != 0 || !S_ISDIR(st.st_mode))
        return tn_fail(err, TN_E_INPUT, model->folder, "is no folder, of which alone one of FP8 is made");
    if (config_has(&root, "quantization_config"))
        return tn_fail(err, TN_E_INPUT, model->folder, "is quantised already; take the plain checkpoint");
    if (lstat(out, &st) == 0)
        return tn_fail(err, TN_E_INPUT, out, "is there already; choose another name");
    return status;
}

static tn_status write_folder(folder *f, const char *out)
{
    tn_status status = add_tensors(f);
    mode_t mask = umask(0);
    umask(mask);
    if (status == TN_OK && (!mkdtemp(f->path) || chmod(f->path, 0777 & ~mask) != 0))
        return fail_system(f, out, "cannot be made");
    if (status == TN_OK)
        status = write_weights(f);
    if (status == TN_OK)
        status = write_config(f);
    if (status == TN_OK)
        status = copy_files(f);
    if (status == TN_OK)
        status = shards_check(f->model->weights, f->err);
    if (status == TN_OK)
        status = quantize_check_model(f->model, f->path, false, f->err);
    if (status == TN_OK && rename(f->path, out) != 0)
        status = fail_system(f, out, "cannot be made");
    if (status != TN_OK)
        remove_folder(f->path);
    return status;
}

tn_status quantize_folder(const tn_model *model, const char *out, const tn_quantize_options *options, tn_error *err)
{
    char path[4096];
    folder f = {.model = model, .options = options, .path = path, .err = err};
    tn_status status = check_source(model, out, err);
    size_t length = strlen(out);
    while (length > 1 && out[length - 1] == '/')
        length--;
    if (status == TN_OK && text_cut(path, sizeof path, "%.*s.XXXXXX", (int)length, out) + 1 >= sizeof path)
        status = tn_fail(err, TN_E_INPUT, out, "is too long a name; choose a shorter one");
    if (status == TN_OK)
        status = write_folder(&f, out);
    for (size_t i = 0; i < f.memory_count; i++)
        free(f.memory[i]);
    free(f.memory);
    free(f.tensors);
    return status;
}
