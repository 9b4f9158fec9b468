/* EMBEDDING_BAG: for each token the sum of some rows of the table, each times its weight: what a vision tower makes its
 * positions of, between those it has learnt. Products and sums in f32, one rounding. */
#include "eager/rows.h"
#include "eager/vec.h"

#include <inttypes.h>

typedef struct bag_job {
    const tn_tensor *ids, *weights, *table, *y;
    int64_t taps, width;
} bag_job;

static int64_t bag_id(const tn_tensor *ids, int64_t row, int64_t tap)
{
    return ((const int64_t *)ids->data)[row * ids->stride[0] + tap];
}

static void bag_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const bag_job *job = ctx;
    (void)thread;
    size_t from = tn_dtype_size(job->table->dtype), to = tn_dtype_size(job->y->dtype);
    float sum[VEC_CHUNK], x[VEC_CHUNK];
    for (int64_t row = begin; row < end; row++) {
        const float *weight = (const float *)job->weights->data + row * job->weights->stride[0];
        for (int64_t i = 0; i < job->width; i += VEC_CHUNK) {
            int64_t n = job->width - i < VEC_CHUNK ? job->width - i : VEC_CHUNK;
            memset(sum, 0, (size_t)n * sizeof *sum);
            for (int64_t tap = 0; tap < job->taps; tap++) {
                const char *src = rows_at(job->table, bag_id(job->ids, row, tap));
                convert_to_f32(src + (size_t)i * from, job->table->dtype, x, n);
                vec_scale(x, n, weight[tap]);
                vec_add(sum, x, n);
            }
            convert_from_f32(sum, job->y->dtype, rows_at(job->y, row) + (size_t)i * to, n);
        }
    }
}

static tn_status bag_forward(const tn_call *call, tn_error *err)
{
    bag_job job = {.ids = &call->in[0],
                   .weights = &call->in[1],
                   .table = rows_param(call->site, TN_ROLE_WEIGHT),
                   .y = &call->out[0]};
    if (!job.table)
        return tn_fail(err, TN_E_INTERNAL, call->site->path, "an embedding without its table; report this defect");
    int64_t tokens = job.ids->shape[0], rows = job.table->shape[0];
    job.taps = job.ids->shape[1];
    job.width = rows_width(job.table);
    for (int64_t i = 0; i < tokens; i++)
        for (int64_t tap = 0; tap < job.taps; tap++)
            if (bag_id(job.ids, i, tap) < 0 || bag_id(job.ids, i, tap) >= rows)
                return tn_fail(err, TN_E_INTERNAL, call->site->path,
                               "row %" PRId64 " of a table of %" PRId64 "; report this defect", bag_id(job.ids, i, tap),
                               rows);
    tn_parallel_for(tokens, rows_grain(job.width * job.taps), bag_rows, &job);
    return TN_OK;
}

const eager_op eager_embedding_bag = {.op = TN_OP_EMBEDDING_BAG, .forward = bag_forward};
