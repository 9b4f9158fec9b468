/* LINEAR: y = x weight^T + bias, accumulated in f32 and rounded once. Weights are used where they lie. The result is
 * cut into tiles of tokens and outputs; a tile is one product on one thread. */
#include "eager/gemm.h"
#include "eager/rows.h"
#include "eager/vec.h"

#include <inttypes.h>

typedef struct linear_job {
    const tn_tensor *x, *weight, *bias, *y;
    tn_dtype type; /* of the product                                                             */
    int64_t m, n, k, tile_m, tile_n, tiles_m, tiles_n;
    const char *a; /* x in that type                                                             */
    int64_t lda, ldy;
    float *converted; /* [m,k], where x has another type                                         */
    char *threads;    /* per thread: the tile's result, then work for gemm_run                   */
    size_t tile_bytes, thread_bytes;
} linear_job;

/* Elements from one row to the next, or -1 when the leading dimensions do not fold into one. */
static int64_t linear_row_stride(const tn_tensor *t)
{
    int64_t stride = -1, span = 1;
    for (int32_t i = t->ndim - 2; i >= 0; i--) {
        if (t->shape[i] == 1)
            continue;
        if (stride < 0)
            stride = t->stride[i];
        else if (t->stride[i] != stride * span)
            return -1;
        span *= t->shape[i];
    }
    return stride < 0 ? rows_width(t) : stride;
}

static void linear_shape(const tn_call *call, linear_job *job)
{
    job->x = &call->in[0];
    job->y = &call->out[0];
    job->weight = rows_param(call->site, TN_ROLE_WEIGHT);
    job->bias = rows_param(call->site, TN_ROLE_BIAS);
    job->m = rows_count(job->x);
    job->k = rows_width(job->x);
    job->n = rows_width(job->y);
    job->type = gemm_type(job->x->dtype, job->weight->dtype);
    job->tile_m = gemm_tile_rows(job->m);
    job->tile_n = gemm_tile_columns(job->n);
    job->tiles_m = (job->m + job->tile_m - 1) / job->tile_m;
    job->tiles_n = (job->n + job->tile_n - 1) / job->tile_n;
    job->tile_bytes = rows_align((size_t)job->tile_m * (size_t)job->tile_n * sizeof(float));
    job->thread_bytes = job->tile_bytes + gemm_work_size(job->k);
}

static size_t linear_converted_bytes(const linear_job *job)
{
    return job->x->dtype == job->type ? 0 : rows_align((size_t)job->m * (size_t)job->k * sizeof(float));
}

static size_t linear_scratch(const tn_call *call)
{
    linear_job job;
    if (!rows_param(call->site, TN_ROLE_WEIGHT))
        return 0;
    linear_shape(call, &job);
    return linear_converted_bytes(&job) + job.thread_bytes * (size_t)tn_thread_count();
}

static void linear_convert(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const linear_job *job = ctx;
    (void)thread;
    for (int64_t row = begin; row < end; row++)
        convert_to_f32(rows_at(job->x, row), job->x->dtype, job->converted + row * job->k, job->k);
}

/* Bias and the one rounding. */
static void linear_store(const linear_job *job, float *c, int64_t ldc, int64_t row, int64_t rows, int64_t column,
                         int64_t columns)
{
    float bias[VEC_CHUNK];
    size_t size = tn_dtype_size(job->y->dtype);
    for (int64_t j = 0; j < columns; j += VEC_CHUNK) {
        int64_t n = columns - j < VEC_CHUNK ? columns - j : VEC_CHUNK;
        if (job->bias)
            convert_to_f32((const char *)job->bias->data + (size_t)(column + j) * tn_dtype_size(job->bias->dtype),
                           job->bias->dtype, bias, n);
        for (int64_t i = 0; i < rows; i++) {
            float *from = c + i * ldc + j;
            if (job->bias)
                vec_add(from, bias, n);
            char *to = (char *)job->y->data + (size_t)((row + i) * job->ldy + column + j) * size;
            if ((const char *)from != to)
                convert_from_f32(from, job->y->dtype, to, n);
        }
    }
}

static void linear_tiles(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const linear_job *job = ctx;
    char *mine = job->threads + (size_t)thread * job->thread_bytes;
    size_t size = tn_dtype_size(job->type), w_size = tn_dtype_size(job->weight->dtype);
    bool in_place = job->y->dtype == TN_F32;
    gemm_context *context = gemm_acquire();
    for (int64_t tile = begin; tile < end; tile++) {
        /* Tiles of the same weights follow one another. */
        int64_t row = tile % job->tiles_m * job->tile_m, column = tile / job->tiles_m * job->tile_n;
        gemm_shape shape = {
            .type = job->type,
            .w_type = job->weight->dtype,
            .form = GEMM_NT,
            .m = job->m - row < job->tile_m ? job->m - row : job->tile_m,
            .n = job->n - column < job->tile_n ? job->n - column : job->tile_n,
            .k = job->k,
            .lda = job->lda,
            .ldw = job->weight->stride[0],
            .ldc = in_place ? job->ldy : job->tile_n,
        };
        float *c = in_place ? (float *)job->y->data + row * job->ldy + column : (float *)(void *)mine;
        gemm_run(context, &shape, job->a + (size_t)(row * job->lda) * size,
                 (const char *)job->weight->data + (size_t)(column * shape.ldw) * w_size, c, mine + job->tile_bytes);
        linear_store(job, c, shape.ldc, row, shape.m, column, shape.n);
    }
    gemm_release(context);
}

static tn_status linear_forward(const tn_call *call, tn_error *err)
{
    if (!rows_param(call->site, TN_ROLE_WEIGHT))
        return tn_fail(err, TN_E_INTERNAL, call->site->path, "a linear layer without its weight; report this defect");
    linear_job job;
    linear_shape(call, &job);
    int64_t ldx = linear_row_stride(job.x);
    job.ldy = linear_row_stride(job.y);
    if (ldx < 0 || job.ldy < 0)
        return tn_fail(err, TN_E_INTERNAL, call->site->path, "the rows of a linear layer do not follow one stride");
    if (job.m <= 0 || job.n <= 0)
        return TN_OK;
    job.converted = call->scratch;
    job.threads = (char *)call->scratch + linear_converted_bytes(&job);
    job.a = job.x->data;
    job.lda = ldx;
    if (job.x->dtype != job.type) {
        tn_parallel_for(job.m, rows_grain(job.k), linear_convert, &job);
        job.a = (const char *)job.converted;
        job.lda = job.k;
    }
    tn_parallel_for(job.tiles_m * job.tiles_n, gemm_grain(job.tile_m, job.tile_n, job.k), linear_tiles, &job);
    return TN_OK;
}

const eager_op eager_linear = {.op = TN_OP_LINEAR, .scratch = linear_scratch, .forward = linear_forward};
