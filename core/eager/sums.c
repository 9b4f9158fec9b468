/* Sums over rows: the gradients of biases and of norms' weights. */
#include "eager/sums.h"
#include "eager/vec.h"

void sums_clear(const sums *s, int64_t block)
{
    if (s->partial)
        memset(s->partial + block * s->width, 0, (size_t)s->width * sizeof *s->partial);
}

CLONES static void add_wide(double *restrict sum, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += (double)x[i];
}

void sums_add(const sums *s, int64_t block, int64_t at, const float *x, int64_t n)
{
    if (s->partial)
        add_wide(s->partial + block * s->width + at, x, n);
}

CLONES static void add_blocks(const sums *s, int64_t at, float *total, int64_t n)
{
    double sum[VEC_CHUNK] = {0};
    for (int64_t block = 0; block < s->blocks; block++) {
        const double *partial = s->partial + block * s->width + at;
        for (int64_t i = 0; i < n; i++)
            sum[i] += partial[i];
    }
    for (int64_t i = 0; i < n; i++)
        total[i] = (float)sum[i];
}

typedef struct store_job {
    const sums *s;
    const tn_tensor *out;
} store_job;

static void store_columns(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const store_job *job = ctx;
    (void)thread;
    float total[VEC_CHUNK];
    for (int64_t at = begin * VEC_CHUNK; at < end * VEC_CHUNK && at < job->s->width; at += VEC_CHUNK) {
        int64_t n = job->s->width - at < VEC_CHUNK ? job->s->width - at : VEC_CHUNK;
        add_blocks(job->s, at, total, n);
        convert_from_f32(total, job->out->dtype, (char *)job->out->data + (size_t)at * tn_dtype_size(job->out->dtype),
                         n);
    }
}

void sums_store(const sums *s, const tn_tensor *out)
{
    if (s->partial)
        tn_parallel_for((s->width + VEC_CHUNK - 1) / VEC_CHUNK, 1 + 32 / (s->blocks + 1), store_columns,
                        &(store_job){s, out});
}

typedef struct rows_job {
    const sums *s;
    const tn_tensor *t;
} rows_job;

static void sum_blocks(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const rows_job *job = ctx;
    (void)thread;
    float x[VEC_CHUNK];
    size_t size = tn_dtype_size(job->t->dtype);
    for (int64_t block = begin; block < end; block++) {
        sums_clear(job->s, block);
        for (int64_t row = block * job->s->block_rows; row < sums_end(job->s, block); row++) {
            const char *from = rows_at(job->t, row);
            for (int64_t at = 0; at < job->s->width; at += VEC_CHUNK) {
                int64_t n = job->s->width - at < VEC_CHUNK ? job->s->width - at : VEC_CHUNK;
                convert_to_f32(from + (size_t)at * size, job->t->dtype, x, n);
                sums_add(job->s, block, at, x, n);
            }
        }
    }
}

void sums_of_rows(const tn_tensor *t, void *scratch, const tn_tensor *out)
{
    sums s = sums_shape(rows_count(t), rows_width(t));
    s.partial = scratch;
    tn_parallel_for(s.blocks, 1, sum_blocks, &(rows_job){&s, t});
    sums_store(&s, out);
}
