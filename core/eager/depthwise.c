/* DEPTHWISE: a square filter for each channel of lines of places, channels last. Work is cut into lines of the result
 * and blocks of channels: what such a piece sees is brought to f32 with the zeros around it, so that the sums ask for
 * no bounds. */
#include "eager/rows.h"
#include "eager/vec.h"

enum { BLOCK = 64 };

typedef struct depthwise_job {
    const tn_tensor *x, *weight, *y;
    int64_t side, stride, before[2]; /* zeros before the first line, and the first place                     */
    int64_t places;                  /* of a line with zeros                                                 */
    int64_t blocks;
    float *scratch;
    int64_t thread_floats;
} depthwise_job;

/* Zeros before the first of so many places, where the result has out. */
static int64_t zeros_before(const depthwise_job *job, int64_t in, int64_t out)
{
    int64_t beyond = (out - 1) * job->stride + job->side - in;
    return beyond > 0 ? beyond / 2 : 0;
}

static depthwise_job make_job(const tn_call *call)
{
    const tn_tensor *x = &call->in[0], *y = &call->out[0];
    depthwise_job job = {.x = x,
                         .y = y,
                         .weight = rows_param(call->site, TN_ROLE_WEIGHT),
                         .side = call->site->dim[TN_DIM_TAPS],
                         .stride = call->site->dim[TN_DIM_STRIDE]};
    for (int axis = 0; axis < 2; axis++)
        job.before[axis] = zeros_before(&job, x->shape[axis], y->shape[axis]);
    job.places = (y->shape[1] - 1) * job.stride + job.side;
    job.blocks = (x->shape[2] + BLOCK - 1) / BLOCK;
    job.thread_floats = BLOCK * job.side * (job.places + job.side);
    return job;
}

static size_t depthwise_scratch(const tn_call *call)
{
    return (size_t)make_job(call).thread_floats * sizeof(float) * (size_t)tn_thread_count();
}

/* n channels from `channel` on of a place, to a row of BLOCK. */
static void load(const char *from, tn_dtype dtype, int64_t channel, int64_t n, float *to)
{
    convert_to_f32(from + (size_t)channel * tn_dtype_size(dtype), dtype, to, n);
}

/* The lines that line `at` of the result sees: e [side, places, BLOCK]. */
static void load_lines(const depthwise_job *job, int64_t at, int64_t channel, int64_t n, float *e)
{
    const tn_tensor *x = job->x;
    for (int64_t i = 0; i < job->side; i++) {
        int64_t line = at * job->stride + i - job->before[0];
        for (int64_t p = 0; p < job->places; p++, e += BLOCK) {
            int64_t place = p - job->before[1];
            if (line >= 0 && line < x->shape[0] && place >= 0 && place < x->shape[1])
                load(rows_at3(x, line, place, 0), x->dtype, channel, n, e);
            else
                memset(e, 0, BLOCK * sizeof *e);
        }
    }
}

/* y = sum of w [side * side, BLOCK] times what lies at e in lines of `line` floats. */
CLONES static void filter(const float *e, int64_t line, const float *w, int64_t side, float *y)
{
    float sum[BLOCK] = {0};
    for (int64_t i = 0; i < side; i++)
        for (int64_t j = 0; j < side; j++) {
            const float *x = e + i * line + j * BLOCK, *tap = w + (i * side + j) * BLOCK;
            for (int c = 0; c < BLOCK; c++)
                sum[c] += tap[c] * x[c];
        }
    memcpy(y, sum, sizeof sum);
}

static void filter_pieces(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const depthwise_job *job = ctx;
    const tn_tensor *y = job->y;
    float *w = job->scratch + thread * job->thread_floats, *e = w + BLOCK * job->side * job->side;
    memset(w, 0, (size_t)job->thread_floats * sizeof *w);
    for (int64_t piece = begin; piece < end; piece++) {
        int64_t at = piece % y->shape[0], channel = piece / y->shape[0] * BLOCK, left = y->shape[2] - channel;
        int64_t n = left < BLOCK ? left : BLOCK;
        for (int64_t tap = 0; tap < job->side * job->side; tap++)
            load(rows_at(job->weight, tap), job->weight->dtype, channel, n, w + tap * BLOCK);
        load_lines(job, at, channel, n, e);
        for (int64_t p = 0; p < y->shape[1]; p++) {
            float sum[BLOCK];
            filter(e + p * job->stride * BLOCK, job->places * BLOCK, w, job->side, sum);
            convert_from_f32(sum, y->dtype, rows_at3(y, at, p, channel), n);
        }
    }
}

static tn_status depthwise_forward(const tn_call *call, tn_error *err)
{
    depthwise_job job = make_job(call);
    if (!job.weight)
        return tn_fail(err, TN_E_INTERNAL, call->site->path, "a filter without its weights; report this defect");
    job.scratch = call->scratch;
    tn_parallel_for(job.y->shape[0] * job.blocks, 1, filter_pieces, &job);
    return TN_OK;
}

const eager_op eager_depthwise = {.op = TN_OP_DEPTHWISE, .scratch = depthwise_scratch, .forward = depthwise_forward};
