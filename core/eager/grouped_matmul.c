/* GROUPED_MATMUL: the rows of each group times that group's matrix, accumulated in f32 and rounded once. Gradients:
 * dL/dx = g w by rows, dL/dw = g^T x of the group's rows (both transposed where the matrix is [in,out]). */
#include "eager/grouped.h"
#include "eager/rows.h"

#include <inttypes.h>
#include <string.h>

typedef struct matmul_job {
    const tn_site *site;
    const tn_param *param;
    tn_layout layout;
    const tn_tensor *counts, *y; /* y: what is written by rows: the output, or dL/dx                 */
    tn_dtype type;               /* of the products                                              */
    int64_t rows, in, out, groups;
    bool back;
    int64_t tile_rows, tile;
    int64_t *start; /* [groups + 1]                                                              */
    char *x, *g;    /* [rows,in], [rows,out], dense, in type                                     */
    char *threads;
    size_t tile_bytes, thread_bytes;
} matmul_job;

/* False when the site is not one of this operation. */
static bool matmul_shape(const tn_call *call, bool back, matmul_job *job)
{
    const tn_site *site = call->site;
    int32_t layout = site->meaning[TN_AXIS_LAYOUT];
    const tn_tensor *w = rows_param(site, TN_ROLE_WEIGHT);
    *job = (matmul_job){.site = site, .param = &site->param[TN_ROLE_WEIGHT], .layout = (tn_layout)layout, .back = back};
    if (!w || layout < TN_LAYOUT_EXPERT_LIST || layout > TN_LAYOUT_LIST_IO)
        return false;
    bool list = grouped_is_list(job->layout), oi = layout == TN_LAYOUT_STACKED_OI || layout == TN_LAYOUT_EXPERT_LIST;
    const int64_t *matrix = w->shape + (list ? 0 : 1);
    job->counts = &call->in[1];
    job->rows = call->in[0].shape[0];
    job->out = matrix[oi ? 0 : 1];
    job->in = matrix[oi ? 1 : 0];
    job->groups = list ? job->param->count : w->shape[0];
    job->type = gemm_type(call->in[0].dtype, w->dtype);
    job->tile_rows = gemm_tile_rows(job->rows);
    job->tile = gemm_tile_columns(back ? job->in : job->out);
    job->tile_bytes = rows_align((size_t)job->tile_rows * (size_t)job->tile * sizeof(float));
    job->thread_bytes = job->tile_bytes + gemm_work_size(back ? job->out : job->in);
    if (back && job->thread_bytes < grouped_grads_bytes())
        job->thread_bytes = grouped_grads_bytes();
    return true;
}

/* Lays scratch out; returns its size. */
static size_t matmul_layout(matmul_job *job, char *base)
{
    size_t rows = (size_t)job->rows, size = tn_dtype_size(job->type), used = 0;
    job->start = (int64_t *)(void *)rows_take(base, &used, ((size_t)job->groups + 1) * sizeof(int64_t));
    job->x = rows_take(base, &used, rows * (size_t)job->in * size);
    job->g = rows_take(base, &used, job->back ? rows * (size_t)job->out * size : 0);
    job->threads = rows_take(base, &used, job->thread_bytes * (size_t)tn_thread_count());
    return used;
}

static size_t matmul_scratch(const tn_call *call)
{
    matmul_job job;
    return matmul_shape(call, false, &job) ? matmul_layout(&job, NULL) : 0;
}

static size_t matmul_backward_scratch(const tn_call *call)
{
    matmul_job job;
    return matmul_shape(call, true, &job) ? matmul_layout(&job, NULL) : 0;
}

tn_status grouped_starts(const void *counts, int64_t groups, int64_t rows, int64_t *start, const char *path,
                         tn_error *err)
{
    int64_t at = 0, count;
    for (int64_t group = 0; group < groups; group++) {
        memcpy(&count, (const char *)counts + (size_t)group * sizeof count, sizeof count);
        if (count < 0)
            return tn_fail(err, TN_E_INPUT, path, "group %" PRId64 " has %" PRId64 " rows; counts must not be negative",
                           group, count);
        if (count > rows - at)
            return tn_fail(err, TN_E_INPUT, path,
                           "group %" PRId64 " has %" PRId64 " rows, of the %" PRId64 " rows of x %" PRId64
                           " are left; the counts must add up to the rows of x",
                           group, count, rows, rows - at);
        if (start)
            start[group] = at;
        at += count;
    }
    if (start)
        start[groups] = at;
    if (at != rows)
        return tn_fail(err, TN_E_INPUT, path,
                       "the last group, %" PRId64 ", ends at row %" PRId64 " of %" PRId64
                       "; the counts must add up to the rows of x",
                       groups - 1, at, rows);
    return TN_OK;
}

typedef struct copy_job {
    const tn_tensor *from;
    char *to;
    tn_dtype type;
} copy_job;

static void copy_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const copy_job *job = ctx;
    (void)thread;
    int64_t width = rows_width(job->from);
    size_t bytes = (size_t)width * tn_dtype_size(job->type);
    for (int64_t row = begin; row < end; row++) {
        const char *from = rows_at(job->from, row);
        char *to = job->to + (size_t)row * bytes;
        if (job->type == job->from->dtype)
            memcpy(to, from, bytes);
        else
            convert_to_f32(from, job->from->dtype, (float *)(void *)to, width);
    }
}

/* Dense rows in type: whatever the strides, the address and the dtype were. */
static void copy_dense(const tn_tensor *from, tn_dtype type, char *to)
{
    copy_job job = {from, to, type};
    if (rows_width(from) > 0)
        tn_parallel_for(from->shape[0], rows_grain(rows_width(from)), copy_rows, &job);
}

static void matmul_item(const void *ctx, gemm_context *context, const grouped_item *item)
{
    const matmul_job *job = ctx;
    grouped_matrix w = grouped_weight_of(job->site, TN_ROLE_WEIGHT, job->layout, item->group, 0);
    int64_t k = job->back ? job->out : job->in;
    gemm_shape shape = {.type = job->type, .m = item->rows, .n = item->columns, .k = k, .lda = k, .ldc = item->columns};
    float *c = (float *)(void *)item->mine;
    const char *a = (job->back ? job->g : job->x) + (size_t)(item->first * k) * tn_dtype_size(job->type);
    grouped_product(context, shape, &w, job->back, item->column, a, c, item->mine + job->tile_bytes);
    size_t column = (size_t)item->column * tn_dtype_size(job->y->dtype);
    for (int64_t i = 0; i < item->rows; i++)
        convert_from_f32(c + i * shape.ldc, job->y->dtype, rows_at(job->y, item->first + i) + column, item->columns);
}

static void matmul_rows(const matmul_job *job)
{
    const grouped_pass pass = {.start = job->start,
                               .groups = job->groups,
                               .width = job->back ? job->in : job->out,
                               .depth = job->back ? job->out : job->in,
                               .tile = job->tile,
                               .tile_rows = job->tile_rows,
                               .threads = job->threads,
                               .thread_bytes = job->thread_bytes,
                               .item = matmul_item,
                               .ctx = job};
    grouped_run(&pass);
}

static tn_status matmul_begin(const tn_call *call, bool back, matmul_job *job, tn_error *err)
{
    if (!matmul_shape(call, back, job))
        return tn_fail(err, TN_E_INTERNAL, call->site->path, "a grouped product of layout %d; report this defect",
                       (int)call->site->meaning[TN_AXIS_LAYOUT]);
    matmul_layout(job, call->scratch);
    return grouped_starts(job->counts->data, job->groups, job->rows, job->start, job->site->path, err);
}

static tn_status matmul_forward(const tn_call *call, tn_error *err)
{
    matmul_job job;
    tn_status status = matmul_begin(call, false, &job, err);
    if (status != TN_OK)
        return status;
    job.y = &call->out[0];
    copy_dense(&call->in[0], job.type, job.x);
    matmul_rows(&job);
    return TN_OK;
}

static tn_status matmul_backward(const tn_call *call, tn_error *err)
{
    const tn_grads *grads = call->grads;
    matmul_job job;
    tn_status status = matmul_begin(call, true, &job, err);
    if (status != TN_OK)
        return status;
    if (!grads->out[0].data) /* zeros: no group has a row that counts                                */
        memset(job.start, 0, ((size_t)job.groups + 1) * sizeof *job.start);
    else
        copy_dense(&grads->out[0], job.type, job.g);
    job.y = &grads->in[0];
    if (job.y->data && !grads->out[0].data)
        for (int64_t row = 0; row < job.rows; row++)
            memset(rows_at(job.y, row), 0, (size_t)job.in * tn_dtype_size(job.y->dtype));
    else if (job.y->data)
        matmul_rows(&job);
    if (grads->param[TN_ROLE_WEIGHT].count <= 0)
        return TN_OK;
    copy_dense(&call->in[0], job.type, job.x);
    grouped_weight_grads(&(grouped_grads){.param = &grads->param[TN_ROLE_WEIGHT],
                                          .layout = job.layout,
                                          .out = job.out,
                                          .in = job.in,
                                          .type = job.type,
                                          .g = job.g,
                                          .x = job.x,
                                          .ldg = job.out,
                                          .ldx = job.in,
                                          .start = job.start,
                                          .groups = job.groups,
                                          .threads = job.threads,
                                          .thread_bytes = job.thread_bytes});
    return TN_OK;
}

const eager_op eager_grouped_matmul = {.op = TN_OP_GROUPED_MATMUL,
                                       .scratch = matmul_scratch,
                                       .forward = matmul_forward,
                                       .backward_scratch = matmul_backward_scratch,
                                       .backward = matmul_backward};
