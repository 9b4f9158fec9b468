/* SHORT_CONV: a causal filter of a few taps for each channel, and an activation. Work is cut into batch rows and blocks
 * of channels: a block is read as a whole before anything of it is written, so results may lie where inputs do. */
#include "eager/short_conv.h"

conv_job short_conv_job(const tn_call *call)
{
    const tn_site *site = call->site;
    conv_job job = {.x = &call->in[0],
                    .state = &call->in[1],
                    .index = &call->in[2],
                    .weight = rows_param(site, TN_ROLE_WEIGHT),
                    .bias = rows_param(site, TN_ROLE_BIAS),
                    .act = (tn_act)site->meaning[TN_AXIS_ACT],
                    .dtype = call->in[0].dtype,
                    .rows = call->in[0].shape[0],
                    .tokens = call->in[0].shape[1],
                    .width = call->in[0].shape[2],
                    .taps = site->dim[TN_DIM_TAPS]};
    job.blocks = (job.width + CONV_BLOCK - 1) / CONV_BLOCK;
    return job;
}

size_t short_conv_layout(const conv_job *job, char *base, conv_work *work)
{
    size_t used = 0, row = CONV_BLOCK * sizeof(float);
    work->e = (float *)(void *)rows_take(base, &used, (size_t)(conv_past(job) + job->tokens) * row);
    work->w = (float *)(void *)rows_take(base, &used, (size_t)job->taps * row);
    work->bias = (float *)(void *)rows_take(base, &used, row);
    work->real = (int32_t *)(void *)rows_take(base, &used, (size_t)job->tokens * sizeof(int32_t));
    return used;
}

/* n elements of the last dimension of t from (i, j, at) on. */
static char *place(const tn_tensor *t, int64_t i, int64_t j, int64_t at)
{
    return (char *)t->data + (i * t->stride[0] + j * t->stride[1] + at) * (int64_t)tn_dtype_size(t->dtype);
}

enum { PIECE = 16 };

/* n elements of a channel to its column, and from there. */
static void load_column(const char *from, tn_dtype dtype, int64_t n, float *to)
{
    float piece[PIECE];
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t some = n - at < PIECE ? n - at : PIECE;
        convert_to_f32(from + (size_t)at * tn_dtype_size(dtype), dtype, piece, some);
        for (int64_t i = 0; i < some; i++)
            to[(at + i) * CONV_BLOCK] = piece[i];
    }
}

static void store_column(const float *from, tn_dtype dtype, int64_t n, char *to)
{
    float piece[PIECE];
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t some = n - at < PIECE ? n - at : PIECE;
        for (int64_t i = 0; i < some; i++)
            piece[i] = from[(at + i) * CONV_BLOCK];
        convert_from_f32(piece, dtype, to + (size_t)at * tn_dtype_size(dtype), some);
    }
}

void short_conv_load_filter(const conv_job *job, int64_t block, conv_work *work)
{
    const tn_tensor *weight = job->weight;
    work->first = block * CONV_BLOCK;
    work->channels = job->width - work->first < CONV_BLOCK ? job->width - work->first : CONV_BLOCK;
    memset(work->bias, 0, CONV_BLOCK * sizeof(float));
    for (int64_t c = 0; c < work->channels; c++)
        load_column(rows_at(weight, work->first + c), weight->dtype, job->taps, work->w + c);
    if (job->bias)
        convert_to_f32((const char *)job->bias->data + (size_t)work->first * tn_dtype_size(job->bias->dtype),
                       job->bias->dtype, work->bias, work->channels);
}

void short_conv_load_state(const tn_tensor *t, int64_t row, const conv_work *work, float *to)
{
    for (int64_t c = 0; c < work->channels; c++)
        load_column(place(t, row, work->first + c, 0), t->dtype, t->shape[2], to + c);
}

void short_conv_store_state(const tn_tensor *t, int64_t row, const conv_work *work, const float *from)
{
    for (int64_t c = 0; c < work->channels; c++)
        store_column(from + c, t->dtype, t->shape[2], place(t, row, work->first + c, 0));
}

void short_conv_store_filter(const tn_tensor *t, int64_t channel, const float *from)
{
    store_column(from, t->dtype, t->shape[1], rows_at(t, channel));
}

void short_conv_load_row(const conv_job *job, int64_t row, conv_work *work)
{
    const int32_t *index = (const int32_t *)job->index->data + row * job->index->stride[0];
    short_conv_load_state(job->state, row, work, work->e);
    work->count = 0;
    for (int64_t t = 0; t < job->tokens; t++) {
        if (index[t] < 0)
            continue;
        convert_to_f32(place(job->x, row, t, work->first), job->dtype,
                       work->e + (conv_past(job) + work->count) * CONV_BLOCK, work->channels);
        work->real[work->count++] = (int32_t)t;
    }
}

void short_conv_sum(const conv_job *job, const conv_work *work, int64_t j, float s[CONV_BLOCK])
{
    memcpy(s, work->bias, CONV_BLOCK * sizeof *s);
    for (int64_t m = 0; m < job->taps; m++) {
        const float *w = work->w + m * CONV_BLOCK, *e = work->e + (j + m) * CONV_BLOCK;
        for (int64_t c = 0; c < work->channels; c++)
            s[c] += w[c] * e[c];
    }
    vec_round(s, work->channels, job->dtype);
}

/* Padding gets zeros, whose bits are zeros in every type. */
void short_conv_store(const tn_tensor *t, int64_t row, const conv_work *work, const float *of_real)
{
    int64_t next = 0;
    for (int64_t token = 0; token < t->shape[1]; token++) {
        char *to = place(t, row, token, work->first);
        if (next < work->count && work->real[next] == token)
            convert_from_f32(of_real + next++ * CONV_BLOCK, t->dtype, to, work->channels);
        else
            memset(to, 0, (size_t)work->channels * tn_dtype_size(t->dtype));
    }
}

typedef struct forward_job {
    conv_job conv;
    const tn_tensor *y, *next;
    char *scratch;
    size_t thread_bytes;
} forward_job;

/* e of token j is not read any more when y of token j is known, but the last of e become the state: those come first.
 */
static void forward_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const forward_job *job = ctx;
    const conv_job *conv = &job->conv;
    conv_work work;
    short_conv_layout(conv, job->scratch + (size_t)thread * job->thread_bytes, &work);
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item / conv->blocks;
        short_conv_load_filter(conv, item % conv->blocks, &work);
        short_conv_load_row(conv, row, &work);
        short_conv_store_state(job->next, row, &work, work.e + work.count * CONV_BLOCK);
        for (int64_t j = 0; j < work.count; j++) {
            float s[CONV_BLOCK];
            short_conv_sum(conv, &work, j, s);
            vec_act(conv->act, conv->dtype, s, work.channels);
            memcpy(work.e + j * CONV_BLOCK, s, sizeof s);
        }
        short_conv_store(job->y, row, &work, work.e);
    }
}

size_t short_conv_scratch(const tn_call *call)
{
    conv_job job = short_conv_job(call);
    conv_work work;
    return short_conv_layout(&job, NULL, &work) * (size_t)tn_thread_count();
}

tn_status short_conv_forward(const tn_call *call, tn_error *err)
{
    conv_work work;
    forward_job job = {
        .conv = short_conv_job(call), .y = &call->out[0], .next = &call->out[1], .scratch = call->scratch};
    (void)err;
    job.thread_bytes = short_conv_layout(&job.conv, NULL, &work);
    tn_parallel_for(job.conv.rows * job.conv.blocks, 1 + 128 / (1 + job.conv.tokens), forward_items, &job);
    return TN_OK;
}
