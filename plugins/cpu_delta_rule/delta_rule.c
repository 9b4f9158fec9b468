/* What forward and backward read of a call, and the matrices of a chunk. */
#include "delta_rule.h"

#include "scalar.h"

#include <math.h>
#include <string.h>

delta_job delta_rule_job(const tn_site *site, const tn_call *call, uint64_t cpu_flags)
{
    const tn_tensor *v = &call->in[0], *k = &call->in[3];
    delta_job job = {.v = v,
                     .state = &call->in[1],
                     .q = &call->in[2],
                     .k = k,
                     .a = &call->in[4],
                     .b = &call->in[5],
                     .index = &call->in[6],
                     .rate = site->param[TN_ROLE_DECAY].tensors,
                     .bias = site->param[TN_ROLE_BIAS].tensors,
                     .dtype = v->dtype,
                     .rows = v->shape[0],
                     .tokens = v->shape[1],
                     .k_heads = k->shape[2],
                     .v_heads = v->shape[2],
                     .group = v->shape[2] / k->shape[2],
                     .dk = k->shape[3],
                     .dv = v->shape[3]};
    delta_kernels_init(&job.kernels, cpu_flags);
    return job;
}

delta_tokens delta_rule_next(const delta_job *job, int64_t row, int64_t *next, int64_t most)
{
    const int32_t *index = (const int32_t *)job->index->data + row * job->index->stride[0];
    delta_tokens tokens = {.n = 0};
    for (; *next < job->tokens && tokens.n < most; ++*next)
        if (index[*next] >= 0)
            tokens.at[tokens.n++] = (int32_t)*next;
    return tokens;
}

char *delta_rule_at(const tn_tensor *t, int64_t i, int64_t j, int64_t k)
{
    return (char *)t->data +
           (i * t->stride[0] + j * t->stride[1] + k * t->stride[2]) * (int64_t)tn_dtype_size(t->dtype);
}

static float load_row(const delta_job *job, const tn_tensor *from, int64_t row, int64_t token, int64_t head,
                      float factor, float *to)
{
    job->kernels.load(delta_rule_at(from, row, token, head), job->dtype, job->dk, to);
    factor /= sqrtf(job->kernels.dot(to, to, job->dk) + 1e-6f);
    job->kernels.scale(to, factor, job->dk);
    return factor;
}

void delta_rule_load_pairs(const delta_job *job, int64_t row, int64_t k_head, const delta_tokens *tokens,
                           delta_pairs *pairs)
{
    float of_queries = 1.0f / sqrtf((float)job->dk);
    for (int64_t i = 0; i < tokens->n; i++) {
        float *key = pairs->x + 2 * i * job->dk, *query = key + job->dk;
        pairs->norm[2 * i] = load_row(job, job->k, row, tokens->at[i], k_head, 1.0f, key);
        pairs->norm[2 * i + 1] = load_row(job, job->q, row, tokens->at[i], k_head, of_queries, query);
    }
}

/* A block of columns at a time, which later tokens alone have. */
void delta_rule_multiply_pairs(const delta_job *job, int64_t n, delta_pairs *pairs, float *panel)
{
    for (int64_t j = 0; j < n; j += DELTA_PANEL) {
        const delta_product p = {.a = pairs->x + 2 * j * job->dk,
                                 .a_row = job->dk,
                                 .a_k = 1,
                                 .b = pairs->x + 2 * j * job->dk,
                                 .b_k = 1,
                                 .b_col = 2 * job->dk,
                                 .c = pairs->dots + 2 * j * DELTA_CHUNK + j,
                                 .c_row = DELTA_CHUNK,
                                 .m = 2 * (n - j),
                                 .n = n - j < DELTA_PANEL ? n - j : DELTA_PANEL,
                                 .k = job->dk};
        job->kernels.product(&p, panel);
    }
}

static float element(const tn_tensor *t, int64_t row, int64_t token, int64_t head)
{
    return scalar_load(t->data, row * t->stride[0] + token * t->stride[1] + head, t->dtype);
}

/* g = -e^rate softplus(a + bias), no further down than what e^g makes 0 of; beta = rnd(sigmoid(b)). */
void delta_rule_load_gates(const delta_job *job, int64_t row, int64_t head, const delta_tokens *tokens,
                           delta_gates *gates)
{
    const float floor = -1e4f;
    float rate = expf(scalar_load(job->rate->data, head, job->rate->dtype));
    float bias = scalar_load(job->bias->data, head, job->bias->dtype);
    for (int64_t i = 0; i < tokens->n; i++) {
        float x = element(job->a, row, tokens->at[i], head) + bias, b = element(job->b, row, tokens->at[i], head);
        float g = -(rate * (x > 20.0f ? x : log1pf(expf(x))));
        gates->g[i] = g < floor ? floor : g;
        gates->slope[i] = -rate / (1.0f + expf(-x));
        gates->beta[i] = scalar_round(1.0f / (1.0f + expf(-b)), job->dtype);
    }
}

void delta_rule_sum_gates(const delta_job *job, int64_t n, delta_gates *gates)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)gates->g[i];
        gates->high[i] = (float)sum;
        gates->low[i] = (float)(sum - (double)gates->high[i]);
    }
    job->kernels.decays(0, 0, -1, gates->high, gates->low, n, gates->since);
    job->kernels.decays(gates->high[n - 1], gates->low[n - 1], 1, gates->high, gates->low, n, gates->until);
}

void delta_rule_weigh(const delta_job *job, int64_t n, const delta_pairs *pairs, const delta_gates *gates, float *m)
{
    for (int64_t i = 0; i < n; i++) {
        const float *dots = pairs->dots + 2 * i * DELTA_CHUNK;
        float between[DELTA_CHUNK], *corrects = m + 2 * i * DELTA_CHUNK, *sees = corrects + DELTA_CHUNK;
        job->kernels.decays(gates->high[i], gates->low[i], 1, gates->high, gates->low, i + 1, between);
        for (int64_t j = 0; j <= i; j++) {
            corrects[j] = -between[j] * dots[j] * gates->beta[j];
            sees[j] = between[j] * dots[DELTA_CHUNK + j];
        }
        for (int64_t j = i + 1; j < DELTA_CHUNK; j++)
            corrects[j] = sees[j] = 0;
        corrects[i] = 0;
    }
}

void delta_rule_solve(const delta_job *job, int64_t n, const float *m, int64_t m_row, float *x, int64_t x_row,
                      int64_t width, float *panel)
{
    for (int64_t i = 0; i < n; i += DELTA_SOLVE) {
        int64_t some = n - i < DELTA_SOLVE ? n - i : DELTA_SOLVE;
        const float *own = m + i * m_row;
        const delta_product before = {.a = own,
                                      .a_row = m_row,
                                      .a_k = 1,
                                      .b = x,
                                      .b_k = x_row,
                                      .b_col = 1,
                                      .from = x + i * x_row,
                                      .from_row = x_row,
                                      .c = x + i * x_row,
                                      .c_row = x_row,
                                      .m = some,
                                      .n = width,
                                      .k = i,
                                      .scale = 1};
        if (i > 0)
            job->kernels.product(&before, panel);
        job->kernels.solve(own + i, m_row, some, x + i * x_row, x_row, width);
    }
}

int64_t delta_rule_panel(int64_t dk, int64_t dv)
{
    int64_t most = dk > dv ? dk : dv;
    return DELTA_PANEL * (most > 2 * DELTA_CHUNK ? most : 2 * DELTA_CHUNK);
}

void delta_rule_clear_padding(const delta_job *job, const tn_tensor *t, int64_t row, int64_t head, int64_t column,
                              int64_t width)
{
    const int32_t *index = (const int32_t *)job->index->data + row * job->index->stride[0];
    size_t size = tn_dtype_size(t->dtype);
    for (int64_t token = 0; token < job->tokens; token++)
        if (index[token] < 0)
            memset(delta_rule_at(t, row, token, head) + (size_t)column * size, 0, (size_t)width * size);
}
