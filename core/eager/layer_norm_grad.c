/* Gradients of LAYER_NORM. With n = (x - mean) r, r = 1 / sqrt(var + eps), g = dL/dy and h = g w:
 *
 *     dx = r (h - mean(h) - n mean(h n)),  dweight = the sum over rows of g n,  dbias = that of g.
 *
 * The difference cancels and is formed in double, like the sums; each gradient is rounded once. */
#include "eager/layer_norm.h"
#include "eager/sums.h"
#include "eager/vec.h"

typedef struct grad_job {
    const tn_tensor *x, *g, *dx, *weight; /* g and dx: data NULL: zeros, not wanted                 */
    float eps;
    sums dw, db;
} grad_job;

/* A piece of a row: g, n and h. */
typedef struct grad_piece {
    float g[VEC_CHUNK], n[VEC_CHUNK], h[VEC_CHUNK];
} grad_piece;

CLONES static void to_n(float *x, int64_t count, float mean, float scale)
{
    for (int64_t i = 0; i < count; i++)
        x[i] = (x[i] - mean) * scale;
}

static void piece_load(const grad_job *job, int64_t row, int64_t at, const layer_norm_row *s, grad_piece *p, int64_t n)
{
    size_t size = tn_dtype_size(job->x->dtype);
    convert_to_f32(rows_at(job->x, row) + (size_t)at * size, job->x->dtype, p->n, n);
    to_n(p->n, n, s->mean, s->scale);
    if (job->g->data)
        convert_to_f32(rows_at(job->g, row) + (size_t)at * size, job->g->dtype, p->g, n);
    else
        memset(p->g, 0, (size_t)n * sizeof *p->g);
    convert_to_f32((const char *)job->weight->data + (size_t)at * tn_dtype_size(job->weight->dtype), job->weight->dtype,
                   p->h, n);
    vec_mul(p->h, p->g, n);
}

static void write_dx(const grad_job *job, int64_t row, int64_t at, const grad_piece *p, int64_t n, const double *means,
                     float scale)
{
    float dx[VEC_CHUNK];
    for (int64_t i = 0; i < n; i++)
        dx[i] = (float)((double)scale * ((double)p->h[i] - means[0] - (double)p->n[i] * means[1]));
    convert_from_f32(dx, job->dx->dtype, rows_at(job->dx, row) + (size_t)at * tn_dtype_size(job->dx->dtype), n);
}

/* Each piece is read before its gradient is written, which may be the memory of g. */
static void grad_row(const grad_job *job, int64_t block, int64_t row)
{
    grad_piece p;
    int64_t width = rows_width(job->x);
    layer_norm_row s = layer_norm_statistics(job->x, row, job->eps);
    double means[2] = {0}; /* of h, of h n                                                         */
    for (int64_t at = 0; at < width; at += VEC_CHUNK) {
        int64_t n = width - at < VEC_CHUNK ? width - at : VEC_CHUNK;
        piece_load(job, row, at, &s, &p, n);
        for (int64_t i = 0; i < n; i++) {
            means[0] += (double)p.h[i] / (double)width;
            means[1] += (double)p.h[i] * (double)p.n[i] / (double)width;
        }
    }
    for (int64_t at = 0; at < width; at += VEC_CHUNK) {
        int64_t n = width - at < VEC_CHUNK ? width - at : VEC_CHUNK;
        piece_load(job, row, at, &s, &p, n);
        if (job->dx->data)
            write_dx(job, row, at, &p, n, means, s.scale);
        sums_add(&job->db, block, at, p.g, n);
        vec_mul(p.g, p.n, n);
        sums_add(&job->dw, block, at, p.g, n);
    }
}

static void grad_blocks(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const grad_job *job = ctx;
    (void)thread;
    for (int64_t block = begin; block < end; block++) {
        sums_clear(&job->dw, block);
        sums_clear(&job->db, block);
        for (int64_t row = block * job->dw.block_rows; row < sums_end(&job->dw, block); row++)
            grad_row(job, block, row);
    }
}

static size_t layer_norm_backward_scratch(const tn_call *call)
{
    sums s = sums_shape(rows_count(&call->in[0]), rows_width(&call->in[0]));
    return 2 * sums_bytes(&s);
}

static tn_status layer_norm_backward(const tn_call *call, tn_error *err)
{
    (void)err;
    const tn_grads *grads = call->grads;
    const tn_param *dw = &grads->param[TN_ROLE_WEIGHT], *db = &grads->param[TN_ROLE_BIAS];
    sums s = sums_shape(rows_count(&call->in[0]), rows_width(&call->in[0]));
    grad_job job = {.x = &call->in[0],
                    .g = &grads->out[0],
                    .dx = &grads->in[0],
                    .weight = rows_param(call->site, TN_ROLE_WEIGHT),
                    .eps = (float)call->site->num[TN_NUM_EPS],
                    .dw = s,
                    .db = s};
    job.dw.partial = dw->count > 0 ? call->scratch : NULL;
    job.db.partial = db->count > 0 ? (double *)(void *)((char *)call->scratch + sums_bytes(&s)) : NULL;
    tn_parallel_for(s.blocks, 1, grad_blocks, &job);
    if (dw->count > 0)
        sums_store(&job.dw, dw->tensors);
    if (db->count > 0)
        sums_store(&job.db, db->tensors);
    return TN_OK;
}

const eager_op eager_layer_norm = {.op = TN_OP_LAYER_NORM,
                                   .forward = layer_norm_forward,
                                   .backward_scratch = layer_norm_backward_scratch,
                                   .backward = layer_norm_backward};
