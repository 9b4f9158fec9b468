/* Gradients of SELECTIVE_SCAN, token by token from the last to the first. With F the state that a token finds, M = k F
 * + b (s x)^T the one that it leaves, k = e^(rate s), and G = dL/dM, its own output included:
 *
 *     G += c dy^T,  dc = M dy,  db = s G x,  dx = s G^T b + skip dy,  dskip = x dy,
 *     ds = x G^T b + rate k sum G F,  drate = s k sum G F,  G = k G.
 *
 * The states of a segment are computed again from the one at its beginning, which was kept on the way there: memory
 * grows with tokens / SEGMENT. One thread takes the heads of a group one after the other, so that the sums db and dc
 * are not divided; those of parameters over batch rows are formed at the end, in order. */
#include "eager/selective_scan.h"

#include <math.h>

enum { SEGMENT = 16, PARAMS = 3 };

static const tn_role roles[PARAMS] = {TN_ROLE_DECAY, TN_ROLE_BIAS, TN_ROLE_WEIGHT};

typedef struct grad_job {
    scan_job scan;
    const tn_grads *grads;
    double *dparam; /* [rows, heads, PARAMS]                                                        */
    char *scratch;
    size_t thread_bytes;
} grad_job;

typedef struct grad_work {
    float *kept;                 /* [segments,n,p]: the state at the beginning of each                  */
    float *found;                /* [SEGMENT + 1,n,p]: F of each token, and M of the last               */
    float *b, *c, *x;            /* [SEGMENT,n], [SEGMENT,n], [SEGMENT,p]                               */
    float *g;                    /* [n,p]                                                               */
    float *db, *dc;              /* [tokens,n]: sums over the heads of a group                          */
    float *dy, *scaled, *u, *dx; /* [p]; u: G^T b                                                       */
    scan_step step[SEGMENT];
} grad_work;

static size_t layout(const scan_job *job, char *base, grad_work *w)
{
    size_t used = 0;
    int64_t state = job->n * job->p, segments = (job->tokens + SEGMENT - 1) / SEGMENT, all = job->tokens * job->n;
    float **const places[] = {&w->kept, &w->found, &w->b,  &w->c,      &w->x, &w->g,
                              &w->db,   &w->dc,    &w->dy, &w->scaled, &w->u, &w->dx};
    const int64_t sizes[] = {segments * state,
                             (SEGMENT + 1) * state,
                             SEGMENT * job->n,
                             SEGMENT * job->n,
                             SEGMENT * job->p,
                             state,
                             all,
                             all,
                             job->p,
                             job->p,
                             job->p,
                             job->p};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        *places[i] = (float *)(void *)rows_take(base, &used, (size_t)sizes[i] * sizeof(float));
    return used;
}

/* The tokens of a segment forward, from the state in found[0]; padding leaves it as it is. */
static void walk(const scan_job *job, const scan_head *h, grad_work *w, int64_t row, int64_t head, int64_t first,
                 int64_t count)
{
    int64_t state = job->n * job->p;
    for (int64_t i = 0; i < count; i++) {
        int64_t token = first + i;
        float *next = w->found + (i + 1) * state;
        memcpy(next, w->found + i * state, (size_t)state * sizeof *next);
        if (!selective_scan_is_real(job, row, token))
            continue;
        w->step[i] = selective_scan_step(job, h, row, token, head);
        convert_to_f32(rows_at3(job->x, row, token, head), job->dtype, w->x + i * job->p, job->p);
        convert_to_f32(rows_at3(job->b, row, token, head / job->share), job->dtype, w->b + i * job->n, job->n);
        convert_to_f32(rows_at3(job->c, row, token, head / job->share), job->dtype, w->c + i * job->n, job->n);
        selective_scan_write(job, &w->step[i], next, w->b + i * job->n, w->x + i * job->p, w->scaled);
    }
}

static void store_number(const tn_tensor *t, int64_t row, int64_t token, int64_t head, float value)
{
    if (t->data)
        convert_from_f32(
            &value, t->dtype,
            (char *)t->data + (row * t->stride[0] + token * t->stride[1] + head) * (int64_t)tn_dtype_size(t->dtype), 1);
}

/* dy of a token, which may lie where its dx goes. */
static void load_upstream(const tn_tensor *t, int64_t row, int64_t token, int64_t head, float *to, int64_t n)
{
    if (t->data)
        convert_to_f32(rows_at3(t, row, token, head), t->dtype, to, n);
    else
        memset(to, 0, (size_t)n * sizeof *to);
}

/* Token i of the segment, number `token` of its row. */
static void back_token(const grad_job *job, const scan_head *h, grad_work *w, int64_t row, int64_t head, int64_t i,
                       int64_t token)
{
    const scan_job *scan = &job->scan;
    const tn_tensor *din = job->grads->in;
    const scan_step *step = &w->step[i];
    int64_t n = scan->n, p = scan->p;
    const float *found = w->found + i * n * p, *left = found + n * p;
    const float *b = w->b + i * n, *c = w->c + i * n, *x = w->x + i * p;
    double *dparam = job->dparam + (row * scan->heads + head) * PARAMS, forgot = 0.0;
    load_upstream(&job->grads->out[0], row, token, head, w->dy, p);
    memset(w->u, 0, (size_t)p * sizeof *w->u);
    for (int64_t j = 0; j < n; j++) {
        float *g = w->g + j * p;
        vec_add_scaled(g, w->dy, c[j], p);
        w->dc[token * n + j] += vec_dot(left + j * p, w->dy, p);
        w->db[token * n + j] += step->s * vec_dot(g, x, p);
        vec_add_scaled(w->u, g, b[j], p);
        forgot += vec_dot_wide(g, found + j * p, p);
        vec_scale(g, p, step->keep);
    }
    forgot *= (double)step->keep;
    double ds = (vec_dot_wide(x, w->u, p) + (double)h->rate * forgot) * (double)step->slope;
    dparam[0] += (double)h->rate * (double)step->s * forgot; /* of the rate's logarithm                */
    dparam[1] += ds;
    dparam[2] += vec_dot_wide(x, w->dy, p);
    store_number(&din[4], row, token, head, (float)ds);
    memcpy(w->dx, w->u, (size_t)p * sizeof *w->dx);
    vec_scale(w->dx, p, step->s);
    vec_add_scaled(w->dx, w->dy, h->skip, p);
    if (din[0].data)
        convert_from_f32(w->dx, din[0].dtype, rows_at3(&din[0], row, token, head), p);
}

static void back_padding(const grad_job *job, int64_t row, int64_t head, int64_t token)
{
    const tn_tensor *dx = &job->grads->in[0];
    store_number(&job->grads->in[4], row, token, head, 0.0f);
    if (dx->data)
        memset(rows_at3(dx, row, token, head), 0, (size_t)job->scan.p * tn_dtype_size(dx->dtype));
}

static void back_head(const grad_job *job, grad_work *w, int64_t row, int64_t head)
{
    const scan_job *scan = &job->scan;
    const tn_tensor *dnext = &job->grads->out[1], *dstate = &job->grads->in[1];
    const scan_head h = selective_scan_head(scan, head);
    int64_t state = scan->n * scan->p;
    size_t row_bytes = (size_t)scan->p * sizeof(float), bytes = (size_t)state * sizeof(float);
    for (int64_t i = 0; i < scan->n; i++) {
        memcpy(w->found + i * scan->p, rows_at3(scan->state, row, head, i), row_bytes);
        if (dnext->data)
            memcpy(w->g + i * scan->p, rows_at3(dnext, row, head, i), row_bytes);
    }
    if (!dnext->data)
        memset(w->g, 0, bytes);
    for (int64_t first = 0; first < scan->tokens; first += SEGMENT) {
        memcpy(w->kept + first / SEGMENT * state, w->found, bytes);
        if (first + SEGMENT >= scan->tokens)
            break;
        walk(scan, &h, w, row, head, first, SEGMENT);
        memcpy(w->found, w->found + SEGMENT * state, bytes);
    }
    for (int64_t first = (scan->tokens - 1) / SEGMENT * SEGMENT; scan->tokens > 0 && first >= 0; first -= SEGMENT) {
        int64_t count = scan->tokens - first < SEGMENT ? scan->tokens - first : SEGMENT;
        memcpy(w->found, w->kept + first / SEGMENT * state, bytes);
        walk(scan, &h, w, row, head, first, count);
        for (int64_t i = count - 1; i >= 0; i--)
            if (selective_scan_is_real(scan, row, first + i))
                back_token(job, &h, w, row, head, i, first + i);
            else
                back_padding(job, row, head, first + i);
    }
    for (int64_t i = 0; dstate->data && i < scan->n; i++)
        memcpy(rows_at3(dstate, row, head, i), w->g + i * scan->p, row_bytes);
}

/* A group of a batch row. */
static void grad_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const grad_job *job = ctx;
    const scan_job *scan = &job->scan;
    const tn_tensor *db = &job->grads->in[2], *dc = &job->grads->in[3];
    size_t all = (size_t)(scan->tokens * scan->n) * sizeof(float);
    grad_work w;
    layout(scan, job->scratch + (size_t)thread * job->thread_bytes, &w);
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item / scan->groups, group = item % scan->groups;
        memset(w.db, 0, all);
        memset(w.dc, 0, all);
        for (int64_t head = group * scan->share; head < (group + 1) * scan->share; head++) {
            memset(job->dparam + (row * scan->heads + head) * PARAMS, 0, PARAMS * sizeof(double));
            back_head(job, &w, row, head);
        }
        for (int64_t token = 0; token < scan->tokens; token++) {
            if (db->data)
                convert_from_f32(w.db + token * scan->n, db->dtype, rows_at3(db, row, token, group), scan->n);
            if (dc->data)
                convert_from_f32(w.dc + token * scan->n, dc->dtype, rows_at3(dc, row, token, group), scan->n);
        }
    }
}

/* The sums over batch rows of one parameter. */
static void store_param(const grad_job *job, int which)
{
    const tn_param *param = &job->grads->param[roles[which]];
    const scan_job *scan = &job->scan;
    for (int64_t head = 0; param->count > 0 && head < scan->heads; head++) {
        const tn_tensor *t = param->tensors;
        double sum = 0.0;
        for (int64_t row = 0; row < scan->rows; row++)
            sum += job->dparam[(row * scan->heads + head) * PARAMS + which];
        float value = (float)sum;
        convert_from_f32(&value, t->dtype, (char *)t->data + (size_t)head * tn_dtype_size(t->dtype), 1);
    }
}

static size_t sum_bytes(const scan_job *job)
{
    return rows_align((size_t)(job->rows * job->heads * PARAMS) * sizeof(double));
}

static size_t backward_scratch(const tn_call *call)
{
    scan_job job = selective_scan_job(call);
    grad_work work;
    return sum_bytes(&job) + layout(&job, NULL, &work) * (size_t)tn_thread_count();
}

static tn_status backward(const tn_call *call, tn_error *err)
{
    grad_work work;
    grad_job job = {.scan = selective_scan_job(call), .grads = call->grads};
    char *scratch = call->scratch;
    (void)err;
    job.dparam = (double *)(void *)scratch;
    job.scratch = scratch + sum_bytes(&job.scan);
    job.thread_bytes = layout(&job.scan, NULL, &work);
    tn_parallel_for(job.scan.rows * job.scan.groups, 1, grad_items, &job);
    for (int i = 0; i < PARAMS; i++)
        store_param(&job, i);
    return TN_OK;
}

const eager_op eager_selective_scan = {.op = TN_OP_SELECTIVE_SCAN,
                                       .scratch = selective_scan_scratch,
                                       .forward = selective_scan_forward,
                                       .backward_scratch = backward_scratch,
                                       .backward = backward};
