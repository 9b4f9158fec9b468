/* Gradients of GATED_DELTA_RULE, token by token from the last to the first. With D = e^g M the state that a token
 * finds, r = v - D^T k, d = beta r and G = dL/dM of the state that it leaves, its own output included:
 *
 *     G += q do^T,  dq = (D + k d^T) do,  dd = G^T k,  dbeta = dd r,  dv = beta dd,  dk = G d - D dv,
 *     G = G - k dv^T (that of D now),  dg = sum G D,  G = e^g G.
 *
 * The states of a segment are computed again from the one at its beginning, which was kept on the way there: memory
 * grows with tokens / SEGMENT. One thread takes the value heads of a key head one after the other, so that the sums dq
 * and dk are not divided; those of rate and bias over batch rows are formed at the end, in order. */
#include "eager/delta_rule.h"

#include <math.h>

enum { SEGMENT = 16 };

typedef struct grad_job {
    delta_job delta;
    const tn_grads *grads;
    double *drate, *dbias; /* [rows, v_heads], [rows, v_heads, rates]                             */
    char *scratch;
    size_t thread_bytes;
} grad_job;

typedef struct grad_work {
    delta_tokens tokens; /* [SEGMENT]                                                              */
    float *kept;         /* [segments, dk, dv]: the state at the beginning of each                  */
    float *found;        /* [SEGMENT, dk, dv]: D                                                    */
    float *r;            /* [SEGMENT, dv]                                                          */
    float *m, *g;        /* [dk, dv]                                                               */
    float *dq, *dk;      /* [tokens, dk]: of what is normalised                                     */
    float *d, *dd, *up;  /* [dv]: up is do                                                         */
    int32_t *real;       /* [tokens]                                                               */
    int64_t count;
} grad_work;

static size_t grad_layout(const delta_job *job, char *base, grad_work *work)
{
    size_t used = 0;
    int64_t state = job->dk * job->dv, segments = (job->tokens + SEGMENT - 1) / SEGMENT;
    delta_rule_place(job, SEGMENT, base, &used, &work->tokens);
    float **const places[] = {&work->kept, &work->found, &work->r, &work->m,  &work->g,
                              &work->dq,   &work->dk,    &work->d, &work->dd, &work->up};
    const int64_t sizes[] = {segments * state,      SEGMENT * state,       SEGMENT * job->dv, state,   state,
                             job->tokens * job->dk, job->tokens * job->dk, job->dv,           job->dv, job->dv};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        *places[i] = (float *)(void *)rows_take(base, &used, (size_t)sizes[i] * sizeof(float));
    work->real = (int32_t *)(void *)rows_take(base, &used, (size_t)job->tokens * sizeof(int32_t));
    return used;
}

/* m [dk,dv] += a b^T; y [dv] += m^T a; y [dk] += m b. */
static void add_outer(float *m, const float *a, const float *b, int64_t dk, int64_t dv)
{
    for (int64_t i = 0; i < dk; i++)
        vec_add_scaled(m + i * dv, b, a[i], dv);
}

static void add_transposed(float *y, const float *m, const float *a, int64_t dk, int64_t dv)
{
    for (int64_t i = 0; i < dk; i++)
        vec_add_scaled(y, m + i * dv, a[i], dv);
}

static void add_times(float *y, const float *m, const float *b, float factor, int64_t dk, int64_t dv)
{
    for (int64_t i = 0; i < dk; i++)
        y[i] += factor * vec_dot(m + i * dv, b, dv);
}

/* The segment's tokens forward: m becomes the state behind them. */
static void walk_segment(const delta_job *job, grad_work *work, int64_t row, int64_t head, int64_t first, int64_t n)
{
    int64_t dk = job->dk, dv = job->dv;
    const delta_tokens *t = &work->tokens;
    delta_rule_load(job, row, head, work->real + first, n, &work->tokens);
    for (int64_t i = 0; i < n; i++) {
        float *found = work->found + i * dk * dv, *r = work->r + i * dv;
        delta_rule_forget(job, t->g + i * job->rates, work->m);
        memcpy(found, work->m, (size_t)(dk * dv) * sizeof *found);
        memset(r, 0, (size_t)dv * sizeof *r);
        add_transposed(r, found, t->k + i * dk, dk, dv);
        for (int64_t j = 0; j < dv; j++) {
            r[j] = t->v[i * dv + j] - r[j];
            work->d[j] = t->beta[i] * r[j];
        }
        add_outer(work->m, t->k + i * dk, work->d, dk, dv);
    }
}

static void store_number(const tn_tensor *t, int64_t row, int64_t token, int64_t head, int64_t channel, float value)
{
    if (t->data)
        convert_from_f32(&value, t->dtype, (char *)t->data + delta_rule_at(t, row, token, head, channel), 1);
}

/* dL/do of a token, which may lie where its dL/dv goes. */
static void load_upstream(const tn_tensor *t, int64_t row, int64_t token, int64_t head, float *to, int64_t n)
{
    if (t->data)
        convert_to_f32(rows_at3(t, row, token, head), t->dtype, to, n);
    else
        memset(to, 0, (size_t)n * sizeof *to);
}

/* From G and D to the gates of token i of the segment. */
static void back_decay(const grad_job *job, const grad_work *work, int64_t row, int64_t head, int64_t i, int64_t token)
{
    const delta_job *delta = &job->delta;
    int64_t rates = delta->rates, all = delta->dk * delta->dv, share = all / rates;
    const float *found = work->found + i * all;
    for (int64_t c = 0; c < rates; c++) {
        double dg = vec_dot_wide(work->g + c * share, found + c * share, share);
        double da = dg * (double)work->tokens.slope[i * rates + c];
        store_number(&job->grads->in[4], row, token, head, c, (float)da);
        job->drate[row * delta->v_heads + head] += dg * (double)work->tokens.g[i * rates + c];
        job->dbias[(row * delta->v_heads + head) * rates + c] += da;
    }
}

/* Token i of the segment, the one at the given place among the row's real tokens. */
static void back_token(const grad_job *job, grad_work *work, int64_t row, int64_t head, int64_t i, int64_t place)
{
    const delta_job *delta = &job->delta;
    const delta_tokens *t = &work->tokens;
    const tn_tensor *din = job->grads->in;
    int64_t dk = delta->dk, dv = delta->dv, token = work->real[place];
    const float *q = t->q + i * dk, *k = t->k + i * dk, *r = work->r + i * dv, *found = work->found + i * dk * dv;
    float *dq = work->dq + place * dk, *dkey = work->dk + place * dk, beta = t->beta[i];
    load_upstream(&job->grads->out[0], row, token, head, work->up, dv);
    memcpy(work->d, r, (size_t)dv * sizeof *r);
    vec_scale(work->d, dv, beta);
    add_outer(work->g, q, work->up, dk, dv);
    add_times(dq, found, work->up, 1.0f, dk, dv);
    vec_add_scaled(dq, k, vec_dot(work->d, work->up, dv), dk);
    memset(work->dd, 0, (size_t)dv * sizeof *work->dd);
    add_transposed(work->dd, work->g, k, dk, dv);
    float dbeta = vec_dot(work->dd, r, dv);
    vec_scale(work->dd, dv, beta); /* dv from here on                                              */
    add_times(dkey, work->g, work->d, 1.0f, dk, dv);
    add_times(dkey, found, work->dd, -1.0f, dk, dv);
    if (din[0].data)
        convert_from_f32(work->dd, din[0].dtype, rows_at3(&din[0], row, token, head), dv);
    vec_scale(work->dd, dv, -1.0f);
    add_outer(work->g, k, work->dd, dk, dv);
    store_number(&din[5], row, token, head, 0, dbeta * beta * (1.0f - beta));
    back_decay(job, work, row, head, i, token);
    delta_rule_forget(delta, t->g + i * delta->rates, work->g);
}

static void back_head(const grad_job *job, grad_work *work, int64_t row, int64_t head)
{
    const delta_job *delta = &job->delta;
    const tn_tensor *dnext = &job->grads->out[1], *dstate = &job->grads->in[1];
    int64_t state = delta->dk * delta->dv;
    delta_rule_load_state(delta->state, row, head, work->m);
    for (int64_t first = 0; first < work->count; first += SEGMENT) {
        memcpy(work->kept + first / SEGMENT * state, work->m, (size_t)state * sizeof *work->m);
        if (first + SEGMENT < work->count)
            walk_segment(delta, work, row, head, first, SEGMENT);
    }
    memset(work->g, 0, (size_t)state * sizeof *work->g);
    if (dnext->data)
        delta_rule_load_state(dnext, row, head, work->g);
    for (int64_t first = (work->count - 1) / SEGMENT * SEGMENT; work->count > 0 && first >= 0; first -= SEGMENT) {
        int64_t n = work->count - first < SEGMENT ? work->count - first : SEGMENT;
        memcpy(work->m, work->kept + first / SEGMENT * state, (size_t)state * sizeof *work->m);
        walk_segment(delta, work, row, head, first, n);
        for (int64_t i = n - 1; i >= 0; i--)
            back_token(job, work, row, head, i, first + i);
    }
    if (dstate->data)
        delta_rule_store_state(dstate, row, head, work->g);
    if (job->grads->in[0].data)
        delta_rule_clear_padding(delta, &job->grads->in[0], row, head);
}

/* dx of x where y = s x / sqrt(sum x^2 + eps), given dy; rounded to its place. */
static void store_normalised(const tn_tensor *dx, const tn_tensor *x, int64_t row, int64_t token, int64_t head, float s,
                             float *dy, float *scratch)
{
    int64_t n = x->shape[3];
    if (!dx->data)
        return;
    convert_to_f32(rows_at3(x, row, token, head), x->dtype, scratch, n);
    double norm = 1.0 / sqrt(vec_dot_wide(scratch, scratch, n) + 1e-6), along = vec_dot_wide(scratch, dy, n);
    for (int64_t i = 0; i < n; i++)
        dy[i] = (float)((double)s * norm * ((double)dy[i] - norm * norm * along * (double)scratch[i]));
    convert_from_f32(dy, dx->dtype, rows_at3(dx, row, token, head), n);
}

static void clear_padding(const grad_job *job, int64_t row, int64_t qk_head)
{
    const delta_job *delta = &job->delta;
    const tn_tensor *din = job->grads->in;
    const int32_t *index = (const int32_t *)delta->index->data + row * delta->index->stride[0];
    for (int i = 2; i < 4; i++)
        if (din[i].data)
            delta_rule_clear_padding(delta, &din[i], row, qk_head);
    for (int64_t t = 0; t < delta->tokens; t++)
        for (int64_t head = qk_head * delta->group; index[t] < 0 && head < (qk_head + 1) * delta->group; head++) {
            for (int64_t c = 0; c < delta->rates; c++)
                store_number(&din[4], row, t, head, c, 0.0f);
            store_number(&din[5], row, t, head, 0, 0.0f);
        }
}

static void grad_items(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const grad_job *job = ctx;
    const delta_job *delta = &job->delta;
    const tn_tensor *din = job->grads->in;
    grad_work work;
    grad_layout(delta, job->scratch + (size_t)thread * job->thread_bytes, &work);
    for (int64_t item = begin; item < end; item++) {
        int64_t row = item / delta->qk_heads, qk_head = item % delta->qk_heads;
        work.count = delta_rule_real(delta, row, work.real);
        memset(work.dq, 0, (size_t)(work.count * delta->dk) * sizeof *work.dq);
        memset(work.dk, 0, (size_t)(work.count * delta->dk) * sizeof *work.dk);
        for (int64_t head = qk_head * delta->group; head < (qk_head + 1) * delta->group; head++) {
            job->drate[row * delta->v_heads + head] = 0.0;
            for (int64_t c = 0; c < delta->rates; c++)
                job->dbias[(row * delta->v_heads + head) * delta->rates + c] = 0.0;
            back_head(job, &work, row, head);
        }
        for (int64_t i = 0; i < work.count; i++) {
            store_normalised(&din[2], delta->q, row, work.real[i], qk_head, delta_rule_query_scale(delta),
                             work.dq + i * delta->dk, work.tokens.q);
            store_normalised(&din[3], delta->k, row, work.real[i], qk_head, 1.0f, work.dk + i * delta->dk,
                             work.tokens.q);
        }
        clear_padding(job, row, qk_head);
    }
}

/* The sums over batch rows of one parameter, of so many elements a head. */
static void store_param(const delta_job *job, const tn_param *param, const double *sums, int64_t each)
{
    for (int64_t i = 0, count = job->v_heads * each; param->count > 0 && i < count; i++) {
        const tn_tensor *t = param->tensors;
        int64_t at = t->ndim > 1 ? i / each * t->stride[0] + i % each : i;
        double sum = 0.0;
        for (int64_t row = 0; row < job->rows; row++)
            sum += sums[row * count + i];
        float value = (float)sum;
        convert_from_f32(&value, t->dtype, (char *)t->data + (size_t)at * tn_dtype_size(t->dtype), 1);
    }
}

static size_t sum_bytes(const delta_job *job, int64_t each)
{
    return rows_align((size_t)(job->rows * job->v_heads * each) * sizeof(double));
}

static size_t delta_rule_backward_scratch(const tn_call *call)
{
    delta_job job = delta_rule_job(call);
    grad_work work;
    return sum_bytes(&job, 1) + sum_bytes(&job, job.rates) + grad_layout(&job, NULL, &work) * (size_t)tn_thread_count();
}

static tn_status delta_rule_backward(const tn_call *call, tn_error *err)
{
    grad_work work;
    grad_job job = {.delta = delta_rule_job(call), .grads = call->grads};
    size_t sums = sum_bytes(&job.delta, 1);
    char *scratch = call->scratch;
    (void)err;
    job.drate = (double *)(void *)scratch;
    job.dbias = (double *)(void *)(scratch + sums);
    job.scratch = scratch + sums + sum_bytes(&job.delta, job.delta.rates);
    job.thread_bytes = grad_layout(&job.delta, NULL, &work);
    tn_parallel_for(job.delta.rows * job.delta.qk_heads, 1, grad_items, &job);
    store_param(&job.delta, &call->grads->param[TN_ROLE_DECAY], job.drate, 1);
    store_param(&job.delta, &call->grads->param[TN_ROLE_BIAS], job.dbias, job.delta.rates);
    return TN_OK;
}

const eager_op eager_gated_delta_rule = {.op = TN_OP_GATED_DELTA_RULE,
                                         .scratch = delta_rule_scratch,
                                         .forward = delta_rule_forward,
                                         .backward_scratch = delta_rule_backward_scratch,
                                         .backward = delta_rule_backward};
