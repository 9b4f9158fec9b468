/* Gradients of the gated delta rule, chunk by chunk from the last to the first. The states before the chunks are
 * computed first and kept. With M the state before a chunk, G = dL/dM' of the one behind it, Y_i upstream of o_i, and
 *
 *     N_ij = e^(c_i - c_j) (k_i k_j), j < i,   P_ij = e^(c_i - c_j) (q_i k_j), j <= i,   w_i = e^(c_n - c_i),
 *     u_i = v_i - e^(c_i) M^T k_i - sum_j N_ij d_j,   d_i = beta_i u_i,
 *
 * back from what d becomes to what it is made of, e_i = dL/dd_i and z_i = dL/du_i = dL/dv_i = beta_i e_i:
 *
 *     e_i = w_i G^T k_i + sum_{j>=i} P_ji Y_j - sum_{j>i} N_ji z_j,   dbeta_i = e_i u_i,   dN_ij = -z_i d_j,
 *     dP_ij = Y_i d_j,   dL/dM = e^(c_n) G + sum_i e^(c_i) (q_i Y_i^T - k_i z_i^T).
 *
 * A pair i, j adds dN_ij N_ij + dP_ij P_ij to dL/dc_i and takes the same number away from dL/dc_j: summed in double,
 * what lies on one side of a token leaves nothing in its dL/dg. */
#include "delta_rule.h"

#include "scalar.h"
#include "scratch.h"

#include <math.h>
#include <string.h>

typedef struct backward_run {
    const delta_job *job;
    const tn_grads *grads;
    double *drate, *dbias; /* [rows, v_heads], where there are tokens                              */
    char *scratch;
    size_t thread_size;
} backward_run;

typedef struct backward_work {
    delta_pairs pairs;
    delta_gates gates;
    delta_tokens tokens;
    float *m, *turned;     /* [2 * DELTA_CHUNK,DELTA_CHUNK]; [DELTA_CHUNK,DELTA_CHUNK]: N for going back   */
    float *between;        /* [DELTA_CHUNK,DELTA_CHUNK]: e^(c_i - c_j)                               */
    float *sides;          /* [2n,DELTA_CHUNK]: rows 2i of z_i d_j, rows 2i + 1 of Y_i d_j; then gradients of dots */
    float *seen, *up;      /* [2n,dv]: what keys and queries see of M; rows 2i of z, rows 2i + 1 of Y */
    float *u, *d, *e, *kg; /* [n,dv]; kg: G^T k                                                    */
    float *dx;             /* [2n,dk], as pairs.x                                                    */
    float *panel;
    float *kept;    /* [group,chunks,dk,dv]                                                   */
    float *g;       /* [group,dk,dv]                                                          */
    int64_t *begin; /* [chunks]: where each begins                                            */
    int64_t chunks;
} backward_work;

static size_t layout(int64_t dk, int64_t dv, int64_t group, int64_t tokens, char *base, backward_work *work)
{
    int64_t chunks = (tokens + DELTA_CHUNK - 1) / DELTA_CHUNK, square = DELTA_CHUNK * DELTA_CHUNK;
    int64_t values = DELTA_CHUNK * dv, keys = DELTA_CHUNK * dk;
    float **const places[] = {&work->pairs.x, &work->pairs.dots, &work->m,    &work->turned,
                              &work->between, &work->sides,      &work->seen, &work->up,
                              &work->u,       &work->d,          &work->e,    &work->kg,
                              &work->dx,      &work->panel,      &work->kept, &work->g};
    const int64_t sizes[] = {2 * keys,
                             2 * square,
                             2 * square,
                             square,
                             square,
                             2 * square,
                             2 * values,
                             2 * values,
                             values,
                             values,
                             values,
                             values,
                             2 * keys,
                             delta_rule_panel(dk, dv),
                             group * chunks * dk * dv,
                             group * dk * dv};
    size_t used = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t at = scratch_take(&used, (size_t)sizes[i] * sizeof(float));
        *places[i] = base ? (float *)(void *)(base + at) : NULL;
    }
    size_t at = scratch_take(&used, (size_t)chunks * sizeof(int64_t));
    work->begin = base ? (int64_t *)(void *)(base + at) : NULL;
    return used;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Dense [rows,width] matrices, of which every step-th row counts. */
typedef struct matrix {
    const float *data;
    int64_t row;
} matrix;

static delta_product product_of(matrix a, matrix b, matrix c, int64_t m, int64_t n, int64_t k, float scale)
{
    return (delta_product){.a = a.data,
                           .a_row = a.row,
                           .a_k = 1,
                           .b = b.data,
                           .b_k = b.row,
                           .b_col = 1,
                           .from = c.data,
                           .from_row = c.row,
                           .c = (float *)(uintptr_t)c.data,
                           .c_row = c.row,
                           .m = m,
                           .n = n,
                           .k = k,
                           .scale = scale};
}

/* c [m,n] = scale c + a b. */
static void multiply(const delta_job *job, backward_work *work, matrix a, matrix b, matrix c, int64_t m, int64_t n,
                     int64_t k, float scale)
{
    const delta_product p = product_of(a, b, c, m, n, k, scale);
    job->kernels.product(&p, work->panel);
}

/* c [m,n] = scale c + a b^T, b [n,k]. */
static void multiply_turned(const delta_job *job, backward_work *work, matrix a, matrix b, matrix c, int64_t m,
                            int64_t n, int64_t k, float scale)
{
    delta_product p = product_of(a, b, c, m, n, k, scale);
    p.b_k = 1;
    p.b_col = b.row;
    job->kernels.product(&p, work->panel);
}

/* c [m,n] = scale from + a^T b, a [k,m]. */
static void turned_multiply(const delta_job *job, backward_work *work, matrix a, matrix b, const float *from, matrix c,
                            int64_t m, int64_t n, int64_t k, float scale, delta_form form)
{
    delta_product p = product_of(a, b, c, m, n, k, scale);
    p.a_row = 1;
    p.a_k = a.row;
    p.from = from;
    p.form = form;
    job->kernels.product(&p, work->panel);
}

/* ---- forward again ----------------------------------------------------------------------------------------------- */

/* u and d of a chunk whose state is m0; seen of `rows` rows of pairs: all, or those of keys, every second. */
static void walk(const delta_job *job, backward_work *work, int64_t row, int64_t head, const float *m0, bool queries)
{
    int64_t n = work->tokens.n, dk = job->dk, dv = job->dv, step = queries ? 1 : 2;
    delta_rule_load_gates(job, row, head, &work->tokens, &work->gates);
    delta_rule_sum_gates(job, n, &work->gates);
    delta_rule_weigh(job, n, &work->pairs, &work->gates, work->m);
    multiply(job, work, (matrix){work->pairs.x, step * dk}, (matrix){m0, dv}, (matrix){work->seen, step * dv},
             2 * n / step, dv, dk, 0);
    for (int64_t i = 0; i < n; i++) {
        float *u = work->u + i * dv;
        job->kernels.load(delta_rule_at(job->v, row, work->tokens.at[i], head), job->dtype, dv, u);
        job->kernels.add_scaled(u, work->seen + 2 * i * dv, -work->gates.since[i], dv);
    }
    delta_rule_solve(job, n, work->m, 2 * DELTA_CHUNK, work->u, dv, dv, work->panel);
    memcpy(work->d, work->u, (size_t)(n * dv) * sizeof(float));
    for (int64_t i = 0; i < n; i++)
        job->kernels.scale(work->d + i * dv, work->gates.beta[i], dv);
}

/* d_i becomes w_i d_i. */
static void fade(const delta_job *job, backward_work *work)
{
    for (int64_t i = 0; i < work->tokens.n; i++)
        job->kernels.scale(work->d + i * job->dv, work->gates.until[i], job->dv);
}

static float *kept_at(const delta_job *job, const backward_work *work, int64_t head, int64_t chunk)
{
    return work->kept + (head % job->group * work->chunks + chunk) * job->dk * job->dv;
}

static void load_state(const tn_tensor *t, int64_t row, int64_t head, float *to)
{
    for (int64_t i = 0; i < t->shape[2]; i++)
        memcpy(to + i * t->shape[3], delta_rule_at(t, row, head, i), (size_t)t->shape[3] * sizeof *to);
}

static void load_chunk(const delta_job *job, backward_work *work, int64_t row, int64_t k_head, int64_t *next)
{
    work->tokens = delta_rule_next(job, row, next, DELTA_CHUNK);
    delta_rule_load_pairs(job, row, k_head, &work->tokens, &work->pairs);
    delta_rule_multiply_pairs(job, work->tokens.n, &work->pairs, work->panel);
}

/* The states before all chunks of all value heads of a key head. */
static void keep_states(const delta_job *job, backward_work *work, int64_t row, int64_t k_head)
{
    int64_t next = 0, last = 0, first = k_head * job->group;
    work->chunks = 0;
    for (delta_tokens t = delta_rule_next(job, row, &next, DELTA_CHUNK); t.n > 0;
         t = delta_rule_next(job, row, &next, DELTA_CHUNK)) {
        work->begin[work->chunks++] = last;
        last = next;
    }
    for (int64_t head = first; head < first + job->group && work->chunks > 0; head++)
        load_state(job->state, row, head, kept_at(job, work, head, 0));
    for (int64_t chunk = 0; chunk + 1 < work->chunks; chunk++) {
        next = work->begin[chunk];
        load_chunk(job, work, row, k_head, &next);
        for (int64_t head = first; head < first + job->group; head++) {
            const float *m0 = kept_at(job, work, head, chunk);
            walk(job, work, row, head, m0, false);
            fade(job, work);
            turned_multiply(job, work, (matrix){work->pairs.x, 2 * job->dk}, (matrix){work->d, job->dv}, m0,
                            (matrix){kept_at(job, work, head, chunk + 1), job->dv}, job->dk, job->dv, work->tokens.n,
                            work->gates.since[work->tokens.n - 1], DELTA_FULL);
        }
    }
}

/* ---- back -------------------------------------------------------------------------------------------------------- */

/* dL/dc of the tokens of a chunk. */
typedef struct sums {
    double c[DELTA_CHUNK];
} sums;

static void load_upstream(const backward_run *run, backward_work *work, int64_t row, int64_t head)
{
    const tn_tensor *t = &run->grads->out[0];
    int64_t dv = run->job->dv;
    for (int64_t i = 0; i < work->tokens.n; i++) {
        float *up = work->up + (2 * i + 1) * dv;
        if (t->data)
            run->job->kernels.load(delta_rule_at(t, row, work->tokens.at[i], head), t->dtype, dv, up);
        else
            memset(up, 0, (size_t)dv * sizeof *up);
    }
}

/* Rows and columns from the last to the first: what is solved for comes in this order. */
static void turn(const delta_job *job, backward_work *work)
{
    int64_t n = work->tokens.n;
    for (int64_t i = 0; i < n; i++) {
        const float *dots = work->pairs.dots + 2 * i * DELTA_CHUNK;
        float *between = work->between + i * DELTA_CHUNK;
        job->kernels.decays(work->gates.high[i], work->gates.low[i], 1, work->gates.high, work->gates.low, i + 1,
                            between);
        for (int64_t j = 0; j < i; j++)
            work->turned[(n - 1 - j) * DELTA_CHUNK + n - 1 - i] = -between[j] * dots[j] * work->gates.beta[i];
        memset(work->turned + (n - 1 - i) * DELTA_CHUNK + n - 1 - i, 0, (size_t)(i + 1) * sizeof(float));
    }
}

/* e, and what it takes of what the chunk wrote. */
static void solve_back(const delta_job *job, backward_work *work, const float *g, sums *sum)
{
    int64_t n = work->tokens.n, dk = job->dk, dv = job->dv;
    turned_multiply(job, work, (matrix){work->m + DELTA_CHUNK, 2 * DELTA_CHUNK}, (matrix){work->up + dv, 2 * dv}, NULL,
                    (matrix){work->e, dv}, n, dv, n, 0, DELTA_UPPER);
    multiply(job, work, (matrix){work->pairs.x, 2 * dk}, (matrix){g, dv}, (matrix){work->kg, dv}, n, dv, dk, 0);
    for (int64_t i = 0; i < n; i++) {
        float w = work->gates.until[i];
        double kept = (double)w * (double)job->kernels.dot(work->d + i * dv, work->kg + i * dv, dv);
        sum->c[n - 1] += kept;
        sum->c[i] -= kept;
        job->kernels.add_scaled(work->e + i * dv, work->kg + i * dv, w, dv);
    }
    turn(job, work);
    delta_rule_solve(job, n, work->turned, DELTA_CHUNK, work->e + (n - 1) * dv, -dv, dv, work->panel);
}

static void store_number(const tn_tensor *t, int64_t row, int64_t token, int64_t head, float value)
{
    if (t->data)
        scalar_store(t->data, row * t->stride[0] + token * t->stride[1] + head, t->dtype, value);
}

/* z, which is dL/dv, and dL/db. */
static void store_values(const backward_run *run, backward_work *work, int64_t row, int64_t head)
{
    const delta_job *job = run->job;
    const tn_tensor *to = &run->grads->in[0];
    int64_t dv = job->dv;
    for (int64_t i = 0; i < work->tokens.n; i++) {
        float *z = work->up + 2 * i * dv, beta = work->gates.beta[i];
        float dbeta = job->kernels.dot(work->e + i * dv, work->u + i * dv, dv);
        memcpy(z, work->e + i * dv, (size_t)dv * sizeof *z);
        job->kernels.scale(z, beta, dv);
        if (to->data)
            job->kernels.store(z, to->dtype, dv, delta_rule_at(to, row, work->tokens.at[i], head));
        store_number(&run->grads->in[5], row, work->tokens.at[i], head, dbeta * beta * (1.0f - beta));
    }
}

/* What the products of queries and keys get, and what it makes of these. */
static void back_pairs(const delta_job *job, backward_work *work, sums *sum)
{
    int64_t n = work->tokens.n, dk = job->dk, dv = job->dv;
    for (int64_t j = 0; j < n; j += DELTA_PANEL)
        multiply_turned(job, work, (matrix){work->up + 2 * j * dv, dv}, (matrix){work->d + j * dv, dv},
                        (matrix){work->sides + 2 * j * DELTA_CHUNK + j, DELTA_CHUNK}, 2 * (n - j),
                        n - j < DELTA_PANEL ? n - j : DELTA_PANEL, dv, 0);
    for (int64_t i = 0; i < n; i++) {
        const float *dots = work->pairs.dots + 2 * i * DELTA_CHUNK, *between = work->between + i * DELTA_CHUNK;
        float *keys = work->sides + 2 * i * DELTA_CHUNK, *queries = keys + DELTA_CHUNK;
        keys[i] = 0;
        for (int64_t j = 0; j <= i; j++) {
            keys[j] *= -between[j];
            queries[j] *= between[j];
            double both = (double)(keys[j] * dots[j]) + (double)(queries[j] * dots[DELTA_CHUNK + j]);
            sum->c[i] += j < i ? both : 0;
            sum->c[j] -= j < i ? both : 0;
        }
        memset(keys + i + 1, 0, (size_t)(n - i - 1) * sizeof *keys);
        memset(queries + i + 1, 0, (size_t)(n - i - 1) * sizeof *keys);
    }
    multiply(job, work, (matrix){work->sides, DELTA_CHUNK}, (matrix){work->pairs.x, 2 * dk}, (matrix){work->dx, dk},
             2 * n, dk, n, 1);
    turned_multiply(job, work, (matrix){work->sides, DELTA_CHUNK}, (matrix){work->pairs.x, dk}, work->dx,
                    (matrix){work->dx, 2 * dk}, n, dk, 2 * n, 1, DELTA_FULL);
}

/* Through the states: before the chunk, m0, and behind it, whose gradient g becomes that of m0. */
static void back_states(const delta_job *job, backward_work *work, const float *m0, float *g, sums *sum)
{
    int64_t n = work->tokens.n, dk = job->dk, dv = job->dv;
    float all = work->gates.since[n - 1];
    double decay = 0;
    for (int64_t i = 0; i < n; i++) {
        float *z = work->up + 2 * i * dv, *up = z + dv, *seen = work->seen + 2 * i * dv;
        job->kernels.scale(z, -work->gates.since[i], dv);
        job->kernels.scale(up, work->gates.since[i], dv);
        sum->c[i] += (double)job->kernels.dot(z, seen, dv) + (double)job->kernels.dot(up, seen + dv, dv);
    }
    for (int64_t i = 0; i < dk; i++)
        decay += (double)job->kernels.dot(g + i * dv, m0 + i * dv, dv);
    sum->c[n - 1] += (double)all * decay;
    multiply_turned(job, work, (matrix){work->up, dv}, (matrix){m0, dv}, (matrix){work->dx, dk}, 2 * n, dk, dv, 1);
    fade(job, work);
    multiply_turned(job, work, (matrix){work->d, dv}, (matrix){g, dv}, (matrix){work->dx, 2 * dk}, n, dk, dv, 1);
    turned_multiply(job, work, (matrix){work->pairs.x, dk}, (matrix){work->up, dv}, g, (matrix){g, dv}, dk, dv, 2 * n,
                    all, DELTA_FULL);
}

/* dL/dg_i is the sum of all dL/dc_j with j >= i. */
static void store_gates(const backward_run *run, const backward_work *work, int64_t row, int64_t head, const sums *sum)
{
    double dg = 0, *drate = run->drate + row * run->job->v_heads + head;
    double *dbias = run->dbias + row * run->job->v_heads + head;
    for (int64_t i = work->tokens.n - 1; i >= 0; i--) {
        dg += sum->c[i];
        double da = dg * (double)work->gates.slope[i];
        *drate += dg * (double)work->gates.g[i];
        *dbias += da;
        store_number(&run->grads->in[4], row, work->tokens.at[i], head, (float)da);
    }
}

static void back_chunk(const backward_run *run, backward_work *work, int64_t row, int64_t head, int64_t chunk)
{
    const delta_job *job = run->job;
    const float *m0 = kept_at(job, work, head, chunk);
    float *g = work->g + head % job->group * job->dk * job->dv;
    sums sum = {{0}};
    walk(job, work, row, head, m0, true);
    load_upstream(run, work, row, head);
    solve_back(job, work, g, &sum);
    store_values(run, work, row, head);
    back_pairs(job, work, &sum);
    back_states(job, work, m0, g, &sum);
    store_gates(run, work, row, head, &sum);
}

/* dx of x where y = s x / sqrt(sum x^2 + eps), given dy; in double, as it cancels where a head has few elements. */
static void store_normalised(const delta_job *job, const tn_tensor *dx, const tn_tensor *x, int64_t row, int64_t token,
                             int64_t head, double s, float *dy, float *of_x)
{
    double sum = 1e-6, along = 0;
    if (!dx->data)
        return;
    job->kernels.load(delta_rule_at(x, row, token, head), x->dtype, job->dk, of_x);
    for (int64_t i = 0; i < job->dk; i++) {
        sum += (double)of_x[i] * (double)of_x[i];
        along += (double)of_x[i] * (double)dy[i];
    }
    double norm = s / sqrt(sum), part = along / sum;
    for (int64_t i = 0; i < job->dk; i++)
        dy[i] = (float)(norm * ((double)dy[i] - part * (double)of_x[i]));
    job->kernels.store(dy, dx->dtype, job->dk, delta_rule_at(dx, row, token, head));
}

static void store_pairs(const backward_run *run, backward_work *work, int64_t row, int64_t k_head)
{
    const delta_job *job = run->job;
    double s = 1 / sqrt((double)job->dk);
    for (int64_t i = 0; i < work->tokens.n; i++) {
        float *dkey = work->dx + 2 * i * job->dk, *scratch = work->pairs.x;
        int64_t token = work->tokens.at[i];
        store_normalised(job, &run->grads->in[3], job->k, row, token, k_head, 1, dkey, scratch);
        store_normalised(job, &run->grads->in[2], job->q, row, token, k_head, s, dkey + job->dk, scratch);
    }
}

/* ---- units ------------------------------------------------------------------------------------------------------- */

static void begin_head(const backward_run *run, backward_work *work, int64_t row, int64_t head)
{
    const delta_job *job = run->job;
    const tn_tensor *dnext = &run->grads->out[1], *const din = run->grads->in;
    const int32_t *index = (const int32_t *)job->index->data + row * job->index->stride[0];
    float *g = work->g + head % job->group * job->dk * job->dv;
    if (job->tokens > 0)
        run->drate[row * job->v_heads + head] = run->dbias[row * job->v_heads + head] = 0;
    memset(g, 0, (size_t)(job->dk * job->dv) * sizeof *g);
    if (dnext->data)
        load_state(dnext, row, head, g);
    if (din[0].data)
        delta_rule_clear_padding(job, &din[0], row, head, 0, job->dv);
    for (int64_t t = 0; t < job->tokens; t++)
        if (index[t] < 0) {
            store_number(&din[4], row, t, head, 0);
            store_number(&din[5], row, t, head, 0);
        }
}

static void end_head(const backward_run *run, const backward_work *work, int64_t row, int64_t head)
{
    const tn_tensor *to = &run->grads->in[1];
    int64_t dk = run->job->dk, dv = run->job->dv;
    const float *g = work->g + head % run->job->group * dk * dv;
    for (int64_t i = 0; to->data && i < dk; i++)
        memcpy(delta_rule_at(to, row, head, i), g + i * dv, (size_t)dv * sizeof *g);
}

static void run_units(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const backward_run *run = ctx;
    const delta_job *job = run->job;
    backward_work work;
    layout(job->dk, job->dv, job->group, job->tokens, run->scratch + (size_t)thread * run->thread_size, &work);
    for (int64_t unit = begin; unit < end; unit++) {
        int64_t row = unit / job->k_heads, k_head = unit % job->k_heads, first = k_head * job->group;
        for (int64_t head = first; head < first + job->group; head++)
            begin_head(run, &work, row, head);
        for (int i = 2; i < 4; i++)
            if (run->grads->in[i].data)
                delta_rule_clear_padding(job, &run->grads->in[i], row, k_head, 0, job->dk);
        keep_states(job, &work, row, k_head);
        for (int64_t chunk = work.chunks - 1; chunk >= 0; chunk--) {
            int64_t next = work.begin[chunk];
            load_chunk(job, &work, row, k_head, &next);
            memset(work.dx, 0, (size_t)(2 * work.tokens.n * job->dk) * sizeof *work.dx);
            for (int64_t head = first; head < first + job->group; head++)
                back_chunk(run, &work, row, head, chunk);
            store_pairs(run, &work, row, k_head);
        }
        for (int64_t head = first; head < first + job->group; head++)
            end_head(run, &work, row, head);
    }
}

/* The sums over batch rows of one parameter. */
static void store_param(const delta_job *job, const tn_param *param, const double *sums)
{
    for (int64_t head = 0; param->count > 0 && head < job->v_heads; head++) {
        double sum = 0;
        for (int64_t row = 0; job->tokens > 0 && row < job->rows; row++)
            sum += sums[row * job->v_heads + head];
        scalar_store(param->tensors->data, head, param->tensors->dtype, (float)sum);
    }
}

size_t delta_rule_backward_scratch_size(const tn_site *site, int64_t max_tokens, int32_t threads)
{
    backward_work work;
    size_t at = 0;
    int64_t heads = site->dim[TN_DIM_KV_HEADS], group = heads / site->dim[TN_DIM_Q_HEADS];
    scratch_take(&at, (size_t)(max_tokens * heads) * sizeof(double));
    scratch_take(&at, (size_t)(max_tokens * heads) * sizeof(double));
    return at +
           (size_t)threads * layout(site->dim[TN_DIM_HEAD], site->dim[TN_DIM_HEAD_V], group, max_tokens, NULL, &work);
}

void delta_rule_backward(const delta_job *job, const tn_grads *grads, void *scratch)
{
    backward_work work;
    size_t at = 0, sums = job->tokens > 0 ? (size_t)(job->rows * job->v_heads) * sizeof(double) : 0;
    backward_run run = {.job = job, .grads = grads, .scratch = scratch};
    run.drate = (double *)(void *)(run.scratch + scratch_take(&at, sums));
    run.dbias = (double *)(void *)(run.scratch + scratch_take(&at, sums));
    run.scratch += at;
    run.thread_size = layout(job->dk, job->dv, job->group, job->tokens, NULL, &work);
    tn_parallel_for(job->rows * job->k_heads, 1, run_units, &run);
    store_param(job, &grads->param[TN_ROLE_DECAY], run.drate);
    store_param(job, &grads->param[TN_ROLE_BIAS], run.dbias);
}
