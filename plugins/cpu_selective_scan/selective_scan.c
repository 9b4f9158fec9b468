/* The scan of Mamba-2. A unit of work is a head of a batch row; its real tokens go by pieces, of which everything is
 * first in f32: b, c, the steps times x, what is kept of the state. */
#include "selective_scan.h"

#include "scalar.h"
#include "scratch.h"

#include <math.h>
#include <string.h>

/* Tokens of a piece: their b and c of 128 lie in half of a second cache, and a state is read and written for so many.
 */
enum { PIECE = 64 };

typedef struct scan_job {
    scan_kernels kernels;
    const tn_call *call;
    const tn_tensor *x, *state, *b, *c, *dt, *index, *y, *next;
    tn_dtype dtype;
    int64_t tokens, heads, share, n, p;
    bool limited;
    float least, limit;
    char *scratch;
    size_t thread_size;
} scan_job;

typedef struct scan_work {
    float *b, *c, *x, *y; /* [PIECE,n], [PIECE,n], [PIECE,p], [PIECE,p]                                */
    float keep[PIECE];
    int32_t at[PIECE]; /* which tokens they are                                                     */
    int64_t count;
} scan_work;

static float *take_floats(char *base, size_t *used, int64_t count)
{
    size_t at = scratch_take(used, (size_t)count * sizeof(float));
    return base ? (float *)(void *)(base + at) : NULL;
}

/* base NULL: only the size counts. */
static size_t layout(int64_t n, int64_t p, char *base, scan_work *work)
{
    size_t used = 0;
    work->b = take_floats(base, &used, PIECE * n);
    work->c = take_floats(base, &used, PIECE * n);
    work->x = take_floats(base, &used, PIECE * p);
    work->y = take_floats(base, &used, PIECE * p);
    return used;
}

size_t selective_scan_scratch_size(const tn_site *site, int32_t threads)
{
    scan_work work;
    return layout(site->dim[TN_DIM_HEAD], site->dim[TN_DIM_HEAD_V], NULL, &work) * (size_t)threads;
}

static char *place(const tn_tensor *t, int64_t i, int64_t j, int64_t k)
{
    return (char *)t->data +
           (i * t->stride[0] + j * t->stride[1] + k * t->stride[2]) * (int64_t)tn_dtype_size(t->dtype);
}

/* What a head brings to all its tokens. */
typedef struct scan_head {
    float rate, bias, skip;
} scan_head;

static scan_head head_of(const scan_job *job, int64_t head)
{
    const tn_param *param = job->call->site->param;
    const tn_tensor *decay = param[TN_ROLE_DECAY].tensors, *bias = param[TN_ROLE_BIAS].tensors;
    const tn_tensor *skip = param[TN_ROLE_WEIGHT].tensors;
    return (scan_head){-expf(scalar_load(decay->data, head, decay->dtype)), scalar_load(bias->data, head, bias->dtype),
                       scalar_load(skip->data, head, skip->dtype)};
}

/* By comparison, so that a NaN stays one. */
static float step_of(const scan_job *job, const scan_head *h, int64_t row, int64_t token, int64_t head)
{
    float raw = scalar_load(job->dt->data, row * job->dt->stride[0] + token * job->dt->stride[1] + head, job->dtype);
    float x = scalar_round(raw + h->bias, job->dtype);
    float s = scalar_round(x > 20.0f ? x : log1pf(expf(x)), job->dtype);
    if (job->limited)
        s = s < job->least ? job->least : s > job->limit ? job->limit : s;
    return s;
}

/* The next real tokens of a row, from *next on, which is moved behind them. */
static void load_piece(const scan_job *job, const scan_head *h, int64_t row, int64_t head, int64_t *next,
                       scan_work *work)
{
    const int32_t *index = (const int32_t *)job->index->data + row * job->index->stride[0];
    int64_t i = 0;
    for (; *next < job->tokens && i < PIECE; ++*next) {
        if (index[*next] < 0)
            continue;
        float s = step_of(job, h, row, *next, head), power = h->rate * s;
        job->kernels.load(place(job->b, row, *next, head / job->share), job->dtype, job->n, work->b + i * job->n);
        job->kernels.load(place(job->c, row, *next, head / job->share), job->dtype, job->n, work->c + i * job->n);
        job->kernels.load(place(job->x, row, *next, head), job->dtype, job->p, work->x + i * job->p);
        job->kernels.split(work->x + i * job->p, work->y + i * job->p, s, h->skip, job->p);
        work->keep[i] = power < SCAN_FORGOTTEN ? 0.0f : expf(power);
        work->at[i++] = (int32_t)*next;
    }
    work->count = i;
}

static void clear_padding(const scan_job *job, int64_t row, int64_t head)
{
    const int32_t *index = (const int32_t *)job->index->data + row * job->index->stride[0];
    for (int64_t t = 0; t < job->tokens; t++)
        if (index[t] < 0)
            memset(place(job->y, row, t, head), 0, (size_t)job->p * tn_dtype_size(job->y->dtype));
}

/* A piece is read before its results are written, which may lie in the place of x. */
static void one_head(const scan_job *job, int64_t row, int64_t head, scan_work *work)
{
    const scan_head h = head_of(job, head);
    scan_piece s = {.from = (const float *)(const void *)place(job->state, row, head, 0),
                    .to = (float *)(void *)place(job->next, row, head, 0),
                    .from_row = job->state->stride[2],
                    .to_row = job->next->stride[2],
                    .b = work->b,
                    .c = work->c,
                    .x = work->x,
                    .y = work->y,
                    .keep = work->keep,
                    .n = job->n,
                    .p = job->p};
    int64_t next = 0;
    clear_padding(job, row, head);
    do { /* at least once, so that the state is there                                               */
        load_piece(job, &h, row, head, &next, work);
        s.tokens = work->count;
        job->kernels.scan(&s);
        for (int64_t i = 0; i < work->count; i++)
            job->kernels.store(work->y + i * job->p, job->y->dtype, job->p, place(job->y, row, work->at[i], head));
        s.from = s.to;
        s.from_row = s.to_row;
    } while (next < job->tokens);
}

static void heads_of_thread(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const scan_job *job = ctx;
    scan_work work;
    layout(job->n, job->p, job->scratch + (size_t)thread * job->thread_size, &work);
    for (int64_t item = begin; item < end; item++)
        one_head(job, item / job->heads, item % job->heads, &work);
}

void selective_scan_forward(const tn_call *call, uint64_t cpu_flags)
{
    const tn_site *site = call->site;
    const tn_tensor *x = &call->in[0], *b = &call->in[2];
    scan_work work;
    scan_job job = {.call = call,
                    .x = x,
                    .state = &call->in[1],
                    .b = b,
                    .c = &call->in[3],
                    .dt = &call->in[4],
                    .index = &call->in[5],
                    .y = &call->out[0],
                    .next = &call->out[1],
                    .dtype = x->dtype,
                    .tokens = x->shape[1],
                    .heads = x->shape[2],
                    .share = x->shape[2] / b->shape[2],
                    .n = b->shape[3],
                    .p = x->shape[3],
                    .limited = site->features & TN_HAS_STEP_LIMITS,
                    .least = (float)site->num[TN_NUM_LEAST],
                    .limit = (float)site->num[TN_NUM_LIMIT],
                    .scratch = call->scratch};
    scan_kernels_init(&job.kernels, cpu_flags);
    job.thread_size = layout(job.n, job.p, NULL, &work);
    tn_parallel_for(x->shape[0] * job.heads, 1, heads_of_thread, &job);
}
