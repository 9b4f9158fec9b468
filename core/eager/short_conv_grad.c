/* Gradients of SHORT_CONV. With z_j = dL/ds_j = dy_j act'(s_j):
 *
 *     dL/de_p = sum_m w_m z_{p-m} (+ dstate' of the last ones),  dw_m = sum_j z_j e_{j+m},  dbias = sum_j z_j,
 *
 * and e's gradient is that of state and then that of x. A block of channels is one thread's, all batch rows one after
 * the other, so that sums are not divided. They are kept in double. */
#include "eager/short_conv.h"

typedef struct grad_job {
    conv_job conv;
    const tn_tensor *dy, *dnext, *dx, *dstate; /* data NULL: zeros; not wanted                    */
    const tn_tensor *dweight, *dbias;          /* NULL: not wanted                                */
    char *scratch;
    size_t thread_bytes;
} grad_job;

typedef struct grad_work {
    conv_work conv;
    float *z, *de;      /* [tokens], [past + tokens]                                               */
    double *dw, *dbias; /* [taps], [1]                                                             */
} grad_work;

static size_t grad_layout(const conv_job *job, char *base, grad_work *work)
{
    size_t row = CONV_BLOCK * sizeof(float), used = short_conv_layout(job, base, &work->conv);
    work->z = (float *)(void *)rows_take(base, &used, (size_t)job->tokens * row);
    work->de = (float *)(void *)rows_take(base, &used, (size_t)(conv_past(job) + job->tokens) * row);
    work->dw = (double *)(void *)rows_take(base, &used, (size_t)job->taps * 2 * row);
    work->dbias = (double *)(void *)rows_take(base, &used, 2 * row);
    return used;
}

/* z of all real tokens, before anything is written. */
static void load_z(const grad_job *job, int64_t row, grad_work *work)
{
    const conv_work *conv = &work->conv;
    const tn_tensor *dy = job->dy;
    for (int64_t j = 0; j < conv->count; j++) {
        float s[CONV_BLOCK], *z = work->z + j * CONV_BLOCK;
        memset(z, 0, CONV_BLOCK * sizeof *z);
        if (!dy->data)
            continue;
        convert_to_f32((const char *)dy->data + (row * dy->stride[0] + conv->real[j] * dy->stride[1] + conv->first) *
                                                    (int64_t)tn_dtype_size(dy->dtype),
                       dy->dtype, z, conv->channels);
        short_conv_sum(&job->conv, conv, j, s);
        vec_act_grad(job->conv.act, job->conv.dtype, s, z, conv->channels);
    }
}

static void add_token(const grad_job *job, grad_work *work, int64_t j)
{
    const conv_work *conv = &work->conv;
    const float *z = work->z + j * CONV_BLOCK;
    for (int64_t m = 0; m < job->conv.taps; m++) {
        const float *w = conv->w + m * CONV_BLOCK, *e = conv->e + (j + m) * CONV_BLOCK;
        float *de = work->de + (j + m) * CONV_BLOCK;
        double *dw = work->dw + m * CONV_BLOCK;
        for (int64_t c = 0; c < conv->channels; c++) {
            de[c] += w[c] * z[c];
            dw[c] += (double)z[c] * (double)e[c];
        }
    }
    for (int64_t c = 0; c < conv->channels; c++)
        work->dbias[c] += (double)z[c];
}

static void grad_row(const grad_job *job, int64_t row, grad_work *work)
{
    const conv_job *conv = &job->conv;
    short_conv_load_row(conv, row, &work->conv);
    load_z(job, row, work);
    int64_t count = work->conv.count, past = conv_past(conv);
    memset(work->de, 0, (size_t)(past + count) * CONV_BLOCK * sizeof *work->de);
    if (job->dnext->data)
        short_conv_load_state(job->dnext, row, &work->conv, work->de + count * CONV_BLOCK);
    for (int64_t j = 0; j < count; j++)
        add_token(job, work, j);
    if (job->dstate->data)
        short_conv_store_state(job->dstate, row, &work->conv, work->de);
    if (job->dx->data)
        short_conv_store(job->dx, row, &work->conv, work->de + past * CONV_BLOCK);
}

/* The filter of the block is not needed any more: its place takes the rounded sums. */
static void store_sums(const grad_job *job, grad_work *work)
{
    for (int64_t i = 0; i < job->conv.taps * CONV_BLOCK; i++)
        work->conv.w[i] = (float)work->dw[i];
    for (int64_t c = 0; c < work->conv.channels; c++) {
        int64_t channel = work->conv.first + c;
        float bias = (float)work->dbias[c];
        if (job->dweight)
            short_conv_store_filter(job->dweight, channel, work->conv.w + c);
        if (job->dbias)
            convert_from_f32(&bias, job->dbias->dtype,
                             (char *)job->dbias->data + (size_t)channel * tn_dtype_size(job->dbias->dtype), 1);
    }
}

static void grad_blocks(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const grad_job *job = ctx;
    grad_work work;
    grad_layout(&job->conv, job->scratch + (size_t)thread * job->thread_bytes, &work);
    for (int64_t block = begin; block < end; block++) {
        short_conv_load_filter(&job->conv, block, &work.conv);
        memset(work.dw, 0, (size_t)job->conv.taps * CONV_BLOCK * sizeof *work.dw);
        memset(work.dbias, 0, CONV_BLOCK * sizeof *work.dbias);
        for (int64_t row = 0; row < job->conv.rows; row++)
            grad_row(job, row, &work);
        store_sums(job, &work);
    }
}

static size_t short_conv_backward_scratch(const tn_call *call)
{
    conv_job job = short_conv_job(call);
    grad_work work;
    return grad_layout(&job, NULL, &work) * (size_t)tn_thread_count();
}

static tn_status short_conv_backward(const tn_call *call, tn_error *err)
{
    const tn_grads *g = call->grads;
    const tn_param *weight = &g->param[TN_ROLE_WEIGHT], *bias = &g->param[TN_ROLE_BIAS];
    grad_work work;
    grad_job job = {.conv = short_conv_job(call),
                    .dy = &g->out[0],
                    .dnext = &g->out[1],
                    .dx = &g->in[0],
                    .dstate = &g->in[1],
                    .dweight = weight->count > 0 ? weight->tensors : NULL,
                    .dbias = bias->count > 0 ? bias->tensors : NULL,
                    .scratch = call->scratch};
    (void)err;
    job.thread_bytes = grad_layout(&job.conv, NULL, &work);
    tn_parallel_for(job.conv.blocks, 1, grad_blocks, &job);
    return TN_OK;
}

const eager_op eager_short_conv = {.op = TN_OP_SHORT_CONV,
                                   .scratch = short_conv_scratch,
                                   .forward = short_conv_forward,
                                   .backward_scratch = short_conv_backward_scratch,
                                   .backward = short_conv_backward};
