/* GATED_DELTA_RULE on the NPU, in f32 where core/eager is, and what SELECTIVE_SCAN does alike. A few tokens are taken
 * one by one, over all batch rows and heads at once; more of them in chunks (delta_chunks.c), but where each channel
 * has a decay of its own, as core/eager does.
 *
 * What aclnnSoftplus makes of numbers far below zero, where log(1 + e^x) is e^x, is not written down: zero would make
 * g differ by less than 1e-7 e^TN_ROLE_DECAY. */
#include "delta_rule.h"
#include "operators.h"
#include "real_tokens.h"

#include <math.h>

/* Tokens of a chunk; calls with fewer tokens than FEW take them one by one. */
enum { CHUNK = 64, FEW = 16 };

static void take_gates(npu_run *r, const delta_job *job, const real_tokens *tokens, const delta_tokens *to);

static delta_job delta_shape(const tn_call *call)
{
    const tn_tensor *in = call->in;
    return (delta_job){.take_gates = take_gates,
                       .v = &in[0],
                       .state = &in[1],
                       .q = &in[2],
                       .k = &in[3],
                       .a = &in[4],
                       .b = &in[5],
                       .index = &in[6],
                       .rate = npu_param(call->site, TN_ROLE_DECAY),
                       .bias = npu_param(call->site, TN_ROLE_BIAS),
                       .o = &call->out[0],
                       .next = &call->out[1],
                       .rows = in[0].shape[0],
                       .tokens = in[0].shape[1],
                       .qk_heads = in[3].shape[2],
                       .v_heads = in[0].shape[2],
                       .dk = in[3].shape[3],
                       .dv = in[0].shape[3],
                       .rates = call->site->features & TN_HAS_CHANNEL_DECAY ? in[3].shape[3] : 1};
}

/* ---- what goes in -------------------------------------------------------------------------------------------- */

tn_tensor delta_by_token(const delta_job *job, const tn_tensor *t)
{
    int64_t heads = t->shape[0] / (job->rows > 0 ? job->rows : 1), room = t->shape[1], width = t->shape[2];
    return npu_view(t->data, t->dtype, 4, (int64_t[]){job->rows, room, heads, width},
                    (int64_t[]){heads * room * width, width, room * width, 1});
}

void delta_take_tokens(npu_run *r, const delta_job *job, const real_tokens *tokens, const tn_tensor *x,
                       const tn_tensor *to)
{
    tn_tensor places = delta_by_token(job, to);
    if (r->measuring)
        return;
    if (!tokens->all || to->shape[1] > job->tokens)
        npu_fill(r, *to, 0);
    real_tokens_pack(r, tokens, x, &places);
}

/* x = x / sqrt(|x|^2 + 1e-6) factor, by rows. */
static void normalise(npu_run *r, const tn_tensor *x, float factor)
{
    tn_tensor squares = npu_take_like(r, TN_F32, *x), size = npu_take_3d(r, TN_F32, x->shape[0], x->shape[1], 1);
    npu_multiply(r, *x, *x, squares);
    npu_sums(r, squares, size);
    npu_add_number(r, size, 1e-6f, size);
    npu_rsqrt(r, size, size);
    npu_multiply(r, *x, size, *x);
    if (factor != 1)
        npu_multiply_number(r, *x, factor, *x);
}

/* Keys or queries: every key head's for each value head that it serves; normalised, and times factor, but in a scan. */
static void take_keys(npu_run *r, const delta_job *job, const real_tokens *tokens, const tn_tensor *x, float factor,
                      const tn_tensor *to)
{
    int64_t group = job->v_heads / job->qk_heads, h = job->rows * job->qk_heads, room = to->shape[1];
    tn_tensor own = group == 1 ? *to : npu_take_3d(r, TN_F32, h, room, job->dk);
    delta_take_tokens(r, job, tokens, x, &own);
    if (!job->adds)
        normalise(r, &own, factor);
    if (group > 1) {
        int64_t step = room * job->dk;
        tn_tensor places = npu_view(to->data, TN_F32, 3, (int64_t[]){h, group, step}, NULL), repeated = places;
        repeated.data = own.data;
        repeated.stride[0] = step;
        repeated.stride[1] = 0;
        npu_copy(r, repeated, places);
    }
}

tn_tensor delta_by_head(npu_run *r, const tn_tensor *param)
{
    tn_tensor wide = npu_dense(r, npu_widened(r, *param));
    int64_t width = wide.ndim > 1 ? wide.shape[1] : 1;
    return npu_view(wide.data, TN_F32, 4, (int64_t[]){1, 1, wide.shape[0], width}, NULL);
}

tn_tensor delta_each(const delta_job *job, const tn_tensor *t)
{
    bool channels = t->ndim > 3;
    return npu_view(t->data, t->dtype, 4, (int64_t[]){job->rows, job->tokens, job->v_heads, channels ? t->shape[3] : 1},
                    (int64_t[]){t->stride[0], t->stride[1], channels ? t->stride[2] : 1, 1});
}

void delta_clear_rest(npu_run *r, const delta_job *job, const real_tokens *tokens, const tn_tensor *t)
{
    int64_t heads = job->v_heads, room = t->shape[1], width = t->shape[2];
    if (tokens->all && room == job->tokens)
        return;
    for (int64_t row = 0; row < job->rows && !r->measuring; row++) {
        int64_t count = real_tokens_of(tokens, row);
        tn_tensor rest = npu_view((float *)t->data + (row * heads * room + count) * width, TN_F32, 3,
                                  (int64_t[]){heads, room - count, width}, (int64_t[]){room * width, width, 1});
        npu_fill(r, rest, 0);
    }
}

/* g = -e^rate softplus(a + bias), no further down than what e^g makes 0 of; beta = rnd(sigmoid(b)). */
static void take_gates(npu_run *r, const delta_job *job, const real_tokens *tokens, const delta_tokens *to)
{
    tn_tensor a = delta_each(job, job->a), b = delta_each(job, job->b), g = delta_by_token(job, &to->g);
    tn_tensor rate = npu_take(r, TN_F32, 4, (int64_t[]){1, 1, job->v_heads, 1}), bias = delta_by_head(r, job->bias);
    tn_tensor narrow = npu_take_like(r, job->b->dtype, to->beta);
    delta_take_tokens(r, job, tokens, &a, &to->g);
    delta_take_tokens(r, job, tokens, &b, &to->beta);
    npu_exp(r, delta_by_head(r, job->rate), rate);
    npu_multiply_number(r, rate, -1, rate);
    npu_add(r, g, bias, 1, g);
    npu_softplus(r, to->g, 20, to->g);
    npu_multiply(r, g, rate, g);
    npu_clamp(r, to->g, -1e4f, INFINITY, to->g);
    npu_sigmoid(r, to->beta, to->beta);
    npu_round(r, to->beta, narrow);
    delta_clear_rest(r, job, tokens, &to->g);
    delta_clear_rest(r, job, tokens, &to->beta);
}

static delta_tokens delta_take(npu_run *r, const delta_job *job)
{
    delta_tokens t = {.heads = job->rows * job->v_heads, .count = job->tokens, .room = job->tokens, .adds = job->adds};
    if (job->tokens >= FEW && job->rates == 1) {
        t.chunk = CHUNK;
        t.room = (job->tokens + CHUNK - 1) / CHUNK * CHUNK;
    }
    t.q = npu_take_3d(r, TN_F32, t.heads, t.room, job->dk);
    t.k = npu_take_like(r, TN_F32, t.q);
    t.v = npu_take_3d(r, TN_F32, t.heads, t.room, job->dv);
    t.o = npu_take_like(r, TN_F32, t.v);
    t.rest = npu_take_3d(r, TN_F32, job->adds ? t.heads : 0, t.room, job->dv);
    t.g = npu_take_3d(r, TN_F32, t.heads, t.room, job->rates);
    t.beta = npu_take_3d(r, TN_F32, t.heads, t.room, 1);
    t.state = npu_take_3d(r, TN_F32, t.heads, job->dk, job->dv);
    return t;
}

/* ---- one by one ---------------------------------------------------------------------------------------------- */

void delta_rule_one_by_one(npu_run *r, const delta_tokens *t)
{
    const tn_tensor *m = &t->state;
    tn_tensor seen = npu_take_3d(r, TN_F32, t->heads, 1, m->shape[2]), added = npu_take_like(r, TN_F32, *m);
    tn_tensor o = npu_take_like(r, TN_F32, seen);
    npu_exp(r, t->g, t->g);
    for (int64_t i = 0; i < t->count; i++) {
        tn_tensor q = npu_narrow(t->q, 1, i, 1), k = npu_narrow(t->k, 1, i, 1), to = npu_narrow(t->o, 1, i, 1);
        tn_tensor d = npu_narrow(t->v, 1, i, 1), decay = npu_narrow(t->g, 1, i, 1);
        tn_tensor beta = npu_narrow(t->beta, 1, i, 1), column = npu_transposed(k);
        npu_multiply(r, *m, npu_transposed(decay), *m);
        if (!t->adds) {
            npu_batch_matmul(r, k, *m, seen);
            npu_add(r, d, seen, -1, d);
            npu_multiply(r, d, beta, d);
        }
        npu_multiply(r, column, d, added);
        npu_add(r, *m, added, 1, *m);
        npu_batch_matmul(r, q, *m, o);
        npu_copy(r, o, to);
    }
}

/* ---- one call ------------------------------------------------------------------------------------------------ */

/* What is read of v and of the state is read before results are written, which may lie there. */
void delta_run(npu_run *r, const delta_job *job)
{
    real_tokens tokens = {0};
    delta_tokens t = delta_take(r, job);
    if (!r->measuring) {
        real_tokens_begin(r, job->index, &tokens);
        t.count = tokens.most;
    }
    tn_tensor state = npu_view(t.state.data, TN_F32, 4, job->state->shape, NULL), o = delta_by_token(job, &t.o);
    npu_copy(r, *job->state, state);
    delta_take_tokens(r, job, &tokens, job->v, &t.v);
    take_keys(r, job, &tokens, job->q, 1 / sqrtf((float)job->dk), &t.q);
    take_keys(r, job, &tokens, job->k, 1, &t.k);
    job->take_gates(r, job, &tokens, &t);
    if (t.chunk > 0)
        delta_rule_chunks(r, &t);
    else
        delta_rule_one_by_one(r, &t);
    if (job->adds)
        npu_add(r, t.o, t.rest, 1, t.o);
    if (!r->measuring)
        real_tokens_unpack(r, &tokens, &o, job->o);
    npu_copy(r, state, *job->next);
    real_tokens_end(&tokens);
}

static void delta(npu_run *r)
{
    delta_job job = delta_shape(r->call);
    delta_run(r, &job);
}

static tn_status delta_supports(const tn_site *site, tn_error *err)
{
    tn_status status = npu_supports_param(site, TN_ROLE_DECAY, err);
    status = status == TN_OK ? npu_supports_param(site, TN_ROLE_BIAS, err) : status;
    return status == TN_OK ? npu_needs("aclnnExp aclnnRsqrt aclnnSoftplus aclnnClamp", err) : status;
}

const ascend_operation ascend_gated_delta_rule = {
    .op = TN_OP_GATED_DELTA_RULE, .supports = delta_supports, .body = delta};
