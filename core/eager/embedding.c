/* EMBEDDING: one row of the table per token id. A site with TN_NUM_SCALE other than 0 (the Gemma family) multiplies by
 * that number rounded to the table's type (the output's, where that is quantised), and rounds. With TN_HAS_PARTIAL ids
 * beyond the table count as 0. */
#include "eager/rows.h"
#include "eager/vec.h"
#include "op/weight.h"

#include "base/blocks.h"

#include <inttypes.h>

typedef struct embedding_job {
    const tn_tensor *ids, *table, *y;
    weight codes; /* of a quantised table                                                        */
    bool quantised;
    int64_t width;
    float scale;
    bool partial;
} embedding_job;

static int64_t embedding_id(const tn_tensor *ids, int64_t i)
{
    return *(const int64_t *)((const char *)ids->data + i * ids->stride[ids->ndim - 1] * (int64_t)sizeof(int64_t));
}

/* Elements [at, at + n) of the row of a token. */
static void embedding_read(const embedding_job *job, int64_t id, int64_t at, int64_t n, float *x)
{
    tn_dtype from = job->table->dtype;
    if (job->quantised)
        weight_read(&job->codes, id, at, n, TN_F32, x);
    else
        convert_to_f32(rows_at(job->table, id) + (size_t)at * tn_dtype_size(from), from, x, n);
}

static void embedding_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const embedding_job *job = ctx;
    (void)thread;
    tn_dtype from = job->table->dtype, to = job->y->dtype;
    size_t to_size = tn_dtype_size(to);
    float x[VEC_CHUNK];
    for (int64_t row = begin; row < end; row++) {
        int64_t id = embedding_id(job->ids, row);
        id = job->partial && id >= job->table->shape[0] ? 0 : id;
        char *dst = rows_at(job->y, row);
        if (from == to && job->scale == 0.0f) {
            memcpy(dst, rows_at(job->table, id), (size_t)job->width * to_size);
            continue;
        }
        for (int64_t i = 0; i < job->width; i += VEC_CHUNK) {
            int64_t n = job->width - i < VEC_CHUNK ? job->width - i : VEC_CHUNK;
            embedding_read(job, id, i, n, x);
            if (job->scale != 0.0f)
                vec_scale(x, n, job->scale);
            convert_from_f32(x, to, dst + (size_t)i * to_size, n);
        }
    }
}

static tn_status embedding_forward(const tn_call *call, tn_error *err)
{
    embedding_job job = {.ids = &call->in[0], .table = rows_param(call->site, TN_ROLE_WEIGHT), .y = &call->out[0]};
    if (!job.table)
        return tn_fail(err, TN_E_INTERNAL, call->site->path, "an embedding without its table; report this defect");
    int64_t tokens = tn_tensor_count(job.ids), vocab = job.table->shape[0];
    job.partial = call->site->features & TN_HAS_PARTIAL;
    for (int64_t i = 0; i < tokens; i++) {
        int64_t id = embedding_id(job.ids, i);
        if (id < 0 || (id >= vocab && !job.partial))
            return tn_fail(err, TN_E_INPUT, call->site->path,
                           "token %" PRId64 " has id %" PRId64 ", the vocabulary has 0 to %" PRId64
                           "; use the model's own tokenizer",
                           i, id, vocab - 1);
    }
    job.width = rows_width(job.table);
    job.quantised = blocks_is_quantised(job.table->dtype);
    if (job.quantised)
        job.codes = weight_of(call->site, TN_ROLE_WEIGHT, 0);
    job.scale = vec_round1((float)call->site->num[TN_NUM_SCALE], job.quantised ? job.y->dtype : job.table->dtype);
    tn_parallel_for(tokens, rows_grain(job.width), embedding_rows, &job);
    return TN_OK;
}

const eager_op eager_embedding = {.op = TN_OP_EMBEDDING, .forward = embedding_forward};
