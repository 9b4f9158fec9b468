/* ADD: a + b rounded to the type of the result. */
#include "eager/rows.h"
#include "eager/vec.h"

typedef struct add_job {
    const tn_tensor *a, *b, *y;
    int64_t width;
} add_job;

static void add_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const add_job *job = ctx;
    (void)thread;
    size_t a_size = tn_dtype_size(job->a->dtype), b_size = tn_dtype_size(job->b->dtype);
    size_t y_size = tn_dtype_size(job->y->dtype);
    float x[VEC_CHUNK], r[VEC_CHUNK];
    for (int64_t row = begin; row < end; row++) {
        const char *a = rows_at(job->a, row), *b = rows_at(job->b, row);
        char *y = rows_at(job->y, row);
        for (int64_t i = 0; i < job->width; i += VEC_CHUNK) {
            int64_t n = job->width - i < VEC_CHUNK ? job->width - i : VEC_CHUNK;
            convert_to_f32(a + (size_t)i * a_size, job->a->dtype, x, n);
            convert_to_f32(b + (size_t)i * b_size, job->b->dtype, r, n);
            vec_add(x, r, n);
            convert_from_f32(x, job->y->dtype, y + (size_t)i * y_size, n);
        }
    }
}

static tn_status add_forward(const tn_call *call, tn_error *err)
{
    (void)err;
    add_job job = {.a = &call->in[0], .b = &call->in[1], .y = &call->out[0], .width = rows_width(&call->in[0])};
    tn_parallel_for(rows_count(job.a), rows_grain(job.width), add_rows, &job);
    return TN_OK;
}

/* Both have the gradient of the sum; the one of a may lie in its place. */
static tn_status add_backward(const tn_call *call, tn_error *err)
{
    (void)err;
    for (int i = 1; i >= 0; i--)
        if (call->grads->in[i].data)
            elementwise_copy(&call->grads->out[0], &call->grads->in[i]);
    return TN_OK;
}

const eager_op eager_add = {.op = TN_OP_ADD, .forward = add_forward, .backward = add_backward};
