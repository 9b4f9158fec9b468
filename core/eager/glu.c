/* GLU: rnd(rnd(act(gate)) * up). A gate whose last stride is 0 holds one value for all features of a token. */
#include "eager/rows.h"
#include "eager/vec.h"

typedef struct glu_job {
    const tn_tensor *gate, *up, *y;
    tn_act act;
    int64_t width;
} glu_job;

/* n values of a gate's row from feature i on. */
static void glu_gate(const tn_tensor *t, const char *row, int64_t i, float *g, int64_t n)
{
    if (t->stride[t->ndim - 1] != 0) {
        convert_to_f32(row + (size_t)i * tn_dtype_size(t->dtype), t->dtype, g, n);
        return;
    }
    convert_to_f32(row, t->dtype, g, 1);
    for (int64_t j = 1; j < n; j++)
        g[j] = g[0];
}

static void glu_rows(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const glu_job *job = ctx;
    (void)thread;
    size_t size = tn_dtype_size(job->gate->dtype);
    float g[VEC_CHUNK], u[VEC_CHUNK];
    for (int64_t row = begin; row < end; row++) {
        const char *gate = rows_at(job->gate, row), *up = rows_at(job->up, row);
        char *y = rows_at(job->y, row);
        for (int64_t i = 0; i < job->width; i += VEC_CHUNK) {
            int64_t n = job->width - i < VEC_CHUNK ? job->width - i : VEC_CHUNK;
            glu_gate(job->gate, gate, i, g, n);
            convert_to_f32(up + (size_t)i * size, job->up->dtype, u, n);
            vec_act(job->act, job->gate->dtype, g, n);
            vec_mul(g, u, n);
            convert_from_f32(g, job->y->dtype, y + (size_t)i * size, n);
        }
    }
}

static tn_status glu_forward(const tn_call *call, tn_error *err)
{
    glu_job job = {.gate = &call->in[0],
                   .up = &call->in[1],
                   .y = &call->out[0],
                   .act = (tn_act)call->site->meaning[TN_AXIS_ACT],
                   .width = rows_width(&call->in[0])};
    if (job.act < TN_ACT_SILU || job.act > TN_ACT_MISH)
        return tn_fail(err, TN_E_INTERNAL, call->site->path, "activation %d is not known; report this defect",
                       (int)job.act);
    tn_parallel_for(rows_count(job.gate), rows_grain(job.width), glu_rows, &job);
    return TN_OK;
}

const eager_op eager_glu = {.op = TN_OP_GLU, .forward = glu_forward};
