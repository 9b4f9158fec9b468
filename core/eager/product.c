/* Products of matrices on all threads. Weights are used where they lie. The result is cut into tiles of rows and
 * columns; a tile is one product on one thread. */
#include "eager/product.h"
#include "eager/rows.h"
#include "eager/vec.h"

typedef struct product_job {
    const product *p;
    tn_dtype type; /* of the product                                                             */
    int64_t m, n, k, tile_m, tile_n, tiles_m, tiles_n;
    const char *a; /* in that type                                                               */
    int64_t lda, ldw, ldy;
    float *converted; /* a, where it has another type                                            */
    char *threads;    /* per thread: the tile's result, then work for gemm_run                   */
    size_t tile_bytes, thread_bytes;
} product_job;

/* Elements from one row to the next, or -1 when the leading dimensions do not fold into one. */
static int64_t product_row_stride(const tn_tensor *t)
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

static product_job product_shape(const product *p)
{
    bool transposed = p->form == GEMM_TN;
    product_job job = {.p = p,
                       .type = gemm_type(p->a->dtype, p->w->dtype),
                       .m = transposed ? rows_width(p->a) : rows_count(p->a),
                       .k = transposed ? rows_count(p->a) : rows_width(p->a),
                       .n = p->form == GEMM_NT ? rows_count(p->w) : rows_width(p->w)};
    job.tile_m = gemm_tile_rows(job.m);
    job.tile_n = gemm_tile_columns(job.n);
    job.tiles_m = (job.m + job.tile_m - 1) / job.tile_m;
    job.tiles_n = (job.n + job.tile_n - 1) / job.tile_n;
    job.tile_bytes = rows_align((size_t)job.tile_m * (size_t)job.tile_n * sizeof(float));
    job.thread_bytes = job.tile_bytes + gemm_work_size(job.k);
    return job;
}

static size_t product_converted_bytes(const product_job *job)
{
    return job->p->a->dtype == job->type ? 0 : rows_align((size_t)job->m * (size_t)job->k * sizeof(float));
}

size_t product_scratch(const product *p)
{
    product_job job = product_shape(p);
    return product_converted_bytes(&job) + job.thread_bytes * (size_t)tn_thread_count();
}

static void product_convert(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const product_job *job = ctx;
    const tn_tensor *a = job->p->a;
    int64_t width = rows_width(a);
    (void)thread;
    for (int64_t row = begin; row < end; row++)
        convert_to_f32(rows_at(a, row), a->dtype, job->converted + row * width, width);
}

/* Bias and the one rounding. */
static void product_store(const product_job *job, float *c, int64_t ldc, int64_t row, int64_t rows, int64_t column,
                          int64_t columns)
{
    const tn_tensor *b = job->p->bias, *y = job->p->y;
    float bias[VEC_CHUNK];
    size_t size = tn_dtype_size(y->dtype);
    for (int64_t j = 0; j < columns; j += VEC_CHUNK) {
        int64_t n = columns - j < VEC_CHUNK ? columns - j : VEC_CHUNK;
        if (b)
            convert_to_f32((const char *)b->data + (size_t)(column + j) * tn_dtype_size(b->dtype), b->dtype, bias, n);
        for (int64_t i = 0; i < rows; i++) {
            float *from = c + i * ldc + j;
            if (b)
                vec_add(from, bias, n);
            char *to = (char *)y->data + (size_t)((row + i) * job->ldy + column + j) * size;
            if ((const char *)from != to)
                convert_from_f32(from, y->dtype, to, n);
        }
    }
}

static void product_tiles(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const product_job *job = ctx;
    const tn_tensor *w = job->p->w, *y = job->p->y;
    char *mine = job->threads + (size_t)thread * job->thread_bytes;
    size_t size = tn_dtype_size(job->type), w_size = tn_dtype_size(w->dtype);
    bool in_place = y->dtype == TN_F32;
    gemm_context *context = gemm_acquire();
    for (int64_t tile = begin; tile < end; tile++) {
        /* Tiles of the same weights follow one another. */
        int64_t row = tile % job->tiles_m * job->tile_m, column = tile / job->tiles_m * job->tile_n;
        gemm_shape shape = {
            .type = job->type,
            .w_type = w->dtype,
            .form = job->p->form,
            .m = job->m - row < job->tile_m ? job->m - row : job->tile_m,
            .n = job->n - column < job->tile_n ? job->n - column : job->tile_n,
            .k = job->k,
            .lda = job->lda,
            .ldw = job->ldw,
            .ldc = in_place ? job->ldy : job->tile_n,
            .quantised = job->p->quantised,
            .w_row = job->p->form == GEMM_NT ? column : 0,
            .w_column = job->p->form == GEMM_NT ? 0 : column,
        };
        int64_t a_at = row * (shape.form == GEMM_TN ? 1 : job->lda);
        int64_t w_at = column * (shape.form == GEMM_NT ? job->ldw : 1);
        float *c = in_place ? (float *)y->data + row * job->ldy + column : (float *)(void *)mine;
        gemm_run(context, &shape, job->a + (size_t)a_at * size, (const char *)w->data + (size_t)w_at * w_size, c,
                 mine + job->tile_bytes);
        product_store(job, c, shape.ldc, row, shape.m, column, shape.n);
    }
    gemm_release(context);
}

tn_status product_run(const product *p, void *scratch, const char *path, tn_error *err)
{
    product_job job = product_shape(p);
    job.lda = product_row_stride(p->a);
    job.ldw = product_row_stride(p->w);
    job.ldy = product_row_stride(p->y);
    if (job.lda < 0 || job.ldw < 0 || job.ldy < 0)
        return tn_fail(err, TN_E_INTERNAL, path, "the rows of a linear layer do not follow one stride");
    if (job.m <= 0 || job.n <= 0)
        return TN_OK;
    job.converted = scratch;
    job.threads = (char *)scratch + product_converted_bytes(&job);
    job.a = p->a->data;
    if (p->a->dtype != job.type) {
        tn_parallel_for(rows_count(p->a), rows_grain(rows_width(p->a)), product_convert, &job);
        job.a = (const char *)job.converted;
        job.lda = rows_width(p->a);
    }
    tn_parallel_for(job.tiles_m * job.tiles_n, gemm_grain(job.tile_m, job.tile_n, job.k), product_tiles, &job);
    return TN_OK;
}
