/* Values of tensors, encoded in threads and written a piece at a time. */
#include "quantize/quantize_values.h"

#include "base/blocks.h"
#include "op/weight.h"
#include "quantize/encode.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Values at a time: whole blocks of every type; and what is encoded before it is written, and progress told, which may
 * cancel: a tenth of a second's work. */
enum { PIECE = 2048, CHUNK = 1 << 20 };

/* Rows of one matrix that are encoded together. */
typedef struct job {
    const quantize_tensor *tensor;
    weight from;
    const float *factors;
    const float *importance; /* of columns, or NULL                                                     */
    int64_t matrix, first;   /* its number, and row                                                     */
    char *out;
    double *sums; /* [rows][QUANTIZE_SUMS]                                                                 */
} job;

/* The checkpoint's row that is row number of the file: neighbours of a head are half a head apart there. */
static int64_t source_row(const quantize_tensor *t, int64_t row)
{
    int64_t all = t->ndim == 1 ? t->columns : t->rows, head = t->pairs ? all / t->pairs : 0;
    if (head < 2)
        return row;
    return row / head * head + row % 2 * (head / 2) + row % head / 2;
}

/* Values [column, column + count) of a row of the file that are a view. */
static void read_view(const job *j, int64_t row, int64_t column, int64_t count, float *x)
{
    const quantize_view *v = &j->tensor->view;
    int64_t base = j->matrix * v->per + v->first;
    if (!v->turned && v->step == 1) {
        weight_read(&j->from, base + row, v->column + column, count, TN_F32, x);
        return;
    }
    for (int64_t i = column; i < column + count; i++)
        weight_read(&j->from, base + (v->turned ? i : row), v->column + (v->turned ? row : i) * v->step, 1, TN_F32,
                    x++);
}

/* Values [column, column + count) of a row of the file. A list that is put in pairs is read one by one. */
static void read_values(const job *j, int64_t row, int64_t column, int64_t count, float *x)
{
    const quantize_tensor *t = j->tensor;
    if (t->made >= 0)
        memcpy(x, j->factors + t->made + column, (size_t)count * sizeof *x);
    else if (t->view.step)
        read_view(j, row, column, count, x);
    else if (t->ndim > 1)
        weight_read(&j->from, source_row(t, row), column, count, TN_F32, x);
    else
        for (int64_t i = 0; i < count; i++)
            weight_read(&j->from, 0, source_row(t, column + i), 1, TN_F32, x + i);
    for (int64_t i = 0; t->plus_one && i < count; i++)
        x[i] += 1;
}

static void encode_piece(const job *j, int64_t row, int64_t column, int64_t count, double *sums)
{
    float x[PIECE], back[PIECE];
    size_t each = tn_dtype_bytes(j->tensor->to, j->tensor->columns);
    char *out = j->out + (size_t)(row - j->first) * each + tn_dtype_bytes(j->tensor->to, column);
    const float *importance = j->importance ? j->importance + column : NULL;
    read_values(j, row, column, count, x);
    for (int64_t i = 0; i < count; i++) {
        sums[1] += (double)x[i] * (double)x[i];
        if (!isfinite(x[i]))
            return; /* the sum says so, too */
    }
    encode_row(j->tensor->to, x, importance, count, out);
    blocks_to_f32(j->tensor->to, out, 0, count, back);
    for (int64_t i = 0; i < count; i++)
        sums[0] += pow((double)back[i] - (double)x[i], 2);
    for (int64_t i = 0; i < count && importance; i++) {
        sums[2] += (double)importance[i] * pow((double)back[i] - (double)x[i], 2);
        sums[3] += (double)importance[i] * (double)x[i] * (double)x[i];
    }
}

static void encode_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const job *j = ctx;
    (void)thread;
    for (int64_t row = begin; row < end; row++)
        for (int64_t column = 0, n; column < j->tensor->columns; column += n) {
            n = j->tensor->columns - column < PIECE ? j->tensor->columns - column : PIECE;
            encode_piece(j, j->first + row, column, n, j->sums + QUANTIZE_SUMS * row);
        }
}

/* Adds up in the order of rows, so that threads change nothing. */
static void add_sums(const double *sums, int64_t rows, double total[QUANTIZE_SUMS])
{
    for (int64_t i = 0; i < QUANTIZE_SUMS * rows; i++)
        total[i % QUANTIZE_SUMS] += sums[i];
}

static tn_status write_matrix(quantize_values *v, const quantize_tensor *t, job *j)
{
    tn_status status = TN_OK;
    int64_t most = CHUNK / t->columns + 1, rows = t->rows < most ? t->rows : most;
    size_t each = tn_dtype_bytes(t->to, t->columns);
    j->out = malloc((size_t)rows * each);
    j->sums = malloc(QUANTIZE_SUMS * (size_t)rows * sizeof *j->sums);
    if (!j->out || !j->sums)
        status = tn_fail(v->err, TN_E_MEMORY, v->out->path, "out of memory for tensor '%s'", t->name);
    for (int64_t n; j->first < t->rows && status == TN_OK; j->first += n) {
        n = t->rows - j->first < rows ? t->rows - j->first : rows;
        memset(j->sums, 0, QUANTIZE_SUMS * (size_t)n * sizeof *j->sums);
        tn_parallel_for(n, 1, encode_rows, j);
        add_sums(j->sums, n, v->sums);
        status = output_write(v->out, j->out, (size_t)n * each, v->err);
        v->done += n * t->columns;
        if (status == TN_OK && v->progress && v->progress(v->ctx, t->name, v->done, v->total))
            status = tn_fail(v->err, TN_E_CANCELLED, v->out->path, "cancelled");
    }
    free(j->out);
    free(j->sums);
    return status;
}

/* The matrix of that number, or the list as a matrix of one row. */
static tn_status find_matrix(quantize_values *v, const quantize_tensor *t, int64_t number, tn_tensor *codes,
                             shards_parts *parts, weight *w)
{
    char name[QUANTIZE_NAME];
    quantize_matrix_name(t, number, name);
    if (!shards_get(v->set, name, codes))
        return tn_fail(v->err, TN_E_INPUT, v->out->path, "tensor '%s' is missing in a stack of %" PRId64, name,
                       t->matrices);
    *parts = shards_parts_of(v->set, name);
    if (codes->ndim == 3)
        *codes = tn_tensor_dense(codes->data, codes->dtype, 2,
                                 (int64_t[]){codes->shape[0] * codes->shape[1], codes->shape[2]});
    if (codes->ndim == 1 || t->ndim == 1)
        *codes = tn_tensor_dense(codes->data, codes->dtype, 2, (int64_t[]){1, t->columns});
    *w = weight_make(codes, parts->scale.dtype ? &parts->scale : NULL, parts->zero.dtype ? &parts->zero : NULL,
                     parts->group.dtype ? &parts->group : NULL);
    return TN_OK;
}

/* That of the matrix; a stack's that has none is counted. */
static const float *find_importance(quantize_values *v, const quantize_tensor *t, int64_t number)
{
    bool weighs = v->importance && t->ndim > 1 && encode_weighs(t->to);
    const float *found = weighs ? importance_of(v->importance, t, number) : NULL;
    v->unreached += weighs && t->ndim > 2 && !found;
    return found;
}

static tn_status check_sums(const quantize_values *v, const quantize_tensor *t)
{
    if (!isfinite(v->sums[1]))
        return tn_fail(v->err, TN_E_INPUT, t->form, "holds values that are no finite numbers; fetch the file again");
    if (!isfinite(v->sums[0]))
        return tn_fail(v->err, TN_E_INPUT, t->form, "holds values too large for %s; choose another type",
                       tn_dtype_name(t->to));
    return TN_OK;
}

tn_status quantize_values_write(quantize_values *v, const quantize_tensor *t)
{
    static const char zeros[QUANTIZE_ALIGN];
    tn_status status = TN_OK;
    memset(v->sums, 0, sizeof v->sums);
    v->unreached = 0;
    for (int64_t i = 0; i < t->matrices && status == TN_OK; i++) {
        tn_tensor codes;
        shards_parts parts;
        job j = {.tensor = t, .factors = v->factors, .matrix = i};
        if (t->made < 0)
            status = find_matrix(v, t, i, &codes, &parts, &j.from);
        j.importance = find_importance(v, t, i);
        if (status == TN_OK)
            status = write_matrix(v, t, &j);
    }
    if (status == TN_OK)
        status = check_sums(v, t);
    return status == TN_OK ? output_write(v->out, zeros, quantize_padded(t->bytes) - t->bytes, v->err) : status;
}
