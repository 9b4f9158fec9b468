/* GATED_DELTA_RULE on the NPU, in f32 where core/eager is. A few tokens are taken one by one, over all batch rows and
 * heads at once; more of them in chunks (delta_chunks.c).
 *
 * What aclnnSoftplus makes of numbers far below zero, where log(1 + e^x) is e^x, is not written down: zero would make
 * g differ by less than 1e-7 e^TN_ROLE_DECAY. */
#include "delta_rule.h"
#include "operators.h"
#include "real_tokens.h"

#include <math.h>

/* Tokens of a chunk; calls with fewer tokens than FEW take them one by one. */
enum { CHUNK = 64, FEW = 16 };

typedef struct delta_job {
    const tn_tensor *v, *state, *q, *k, *a, *b, *index, *rate, *bias, *o, *next;
    int64_t rows, tokens, qk_heads, v_heads, dk, dv;
} delta_job;

static delta_job delta_shape(const tn_call *call)
{
    const tn_tensor *in = call->in;
    return (delta_job){.v = &in[0],
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
                       .dv = in[0].shape[3]};
}

/* ---- what goes in -------------------------------------------------------------------------------------------- */

/* [h,P,W], dense, as [B,P,heads,W]. */
static tn_tensor by_token(const delta_job *job, const tn_tensor *t)
{
    int64_t heads = t->shape[0] / (job->rows > 0 ? job->rows : 1), room = t->shape[1], width = t->shape[2];
    return npu_view(t->data, t->dtype, 4, (int64_t[]){job->rows, room, heads, width},
                    (int64_t[]){heads * room * width, width, room * width, 1});
}

/* Of x [B,T,heads,W] the tokens that are no padding, in f32 and zeros behind them, to [B heads,P,W]. */
static void take_tokens(npu_run *r, const delta_job *job, const real_tokens *tokens, const tn_tensor *x,
                        const tn_tensor *to)
{
    tn_tensor places = by_token(job, to);
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

/* Keys or queries: every key head's for each value head that it serves. */
static void take_keys(npu_run *r, const delta_job *job, const real_tokens *tokens, const tn_tensor *x, float factor,
                      const tn_tensor *to)
{
    int64_t group = job->v_heads / job->qk_heads, h = job->rows * job->qk_heads, room = to->shape[1];
    tn_tensor own = group == 1 ? *to : npu_take_3d(r, TN_F32, h, room, job->dk);
    take_tokens(r, job, tokens, x, &own);
    normalise(r, &own, factor);
    for (int64_t j = 0; j < group && group > 1 && !r->measuring; j++) {
        int64_t step = room * job->dk;
        tn_tensor places =
            npu_view((float *)to->data + j * step, TN_F32, 3, own.shape, (int64_t[]){group * step, job->dk, 1});
        npu_copy(r, own, places);
    }
}

/* A parameter of each value head as [1,1,K,1] f32. */
static tn_tensor by_head(npu_run *r, const tn_tensor *param)
{
    tn_tensor wide = npu_wide_copy(r, *param);
    return npu_view(wide.data, TN_F32, 4, (int64_t[]){1, 1, wide.shape[0], 1}, NULL);
}

/* Zeros behind the tokens of each row. */
static void clear_rest(npu_run *r, const delta_job *job, const real_tokens *tokens, const tn_tensor *t)
{
    for (int64_t row = 0; row < job->rows && !r->measuring; row++) {
        int64_t count = real_tokens_of(tokens, row), heads = job->v_heads, room = t->shape[1];
        tn_tensor rest = npu_view((float *)t->data + row * heads * room + count, TN_F32, 2,
                                  (int64_t[]){heads, room - count}, (int64_t[]){room, 1});
        npu_fill(r, rest, 0);
    }
}

/* g = -e^rate softplus(a + bias), no further down than what e^g makes 0 of; beta = rnd(sigmoid(b)). */
static void take_gates(npu_run *r, const delta_job *job, const real_tokens *tokens, const delta_tokens *to)
{
    tn_tensor a = npu_view(job->a->data, job->a->dtype, 4, (int64_t[]){job->rows, job->tokens, job->v_heads, 1},
                           (int64_t[]){job->a->stride[0], job->a->stride[1], 1, 1});
    tn_tensor b =
        npu_view(job->b->data, job->b->dtype, 4, a.shape, (int64_t[]){job->b->stride[0], job->b->stride[1], 1, 1});
    tn_tensor rate = by_head(r, job->rate), bias = by_head(r, job->bias), g = by_token(job, &to->g);
    tn_tensor narrow = npu_take_like(r, job->b->dtype, to->beta);
    take_tokens(r, job, tokens, &a, &to->g);
    take_tokens(r, job, tokens, &b, &to->beta);
    npu_exp(r, rate, rate);
    npu_multiply_number(r, rate, -1, rate);
    npu_add(r, g, bias, 1, g);
    npu_softplus(r, to->g, 20, to->g);
    npu_multiply(r, g, rate, g);
    npu_clamp(r, to->g, -1e4f, INFINITY, to->g);
    npu_sigmoid(r, to->beta, to->beta);
    npu_round(r, to->beta, narrow);
    if (!tokens->all || to->room > job->tokens) {
        clear_rest(r, job, tokens, &to->g);
        clear_rest(r, job, tokens, &to->beta);
    }
}

static delta_tokens delta_take(npu_run *r, const delta_job *job)
{
    delta_tokens t = {.heads = job->rows * job->v_heads, .count = job->tokens, .room = job->tokens};
    if (job->tokens >= FEW) {
        t.chunk = CHUNK;
        t.room = (job->tokens + CHUNK - 1) / CHUNK * CHUNK;
    }
    t.q = npu_take_3d(r, TN_F32, t.heads, t.room, job->dk);
    t.k = npu_take_like(r, TN_F32, t.q);
    t.v = npu_take_3d(r, TN_F32, t.heads, t.room, job->dv);
    t.o = npu_take_like(r, TN_F32, t.v);
    t.g = npu_take_3d(r, TN_F32, t.heads, t.room, 1);
    t.beta = npu_take_like(r, TN_F32, t.g);
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
        npu_multiply(r, *m, decay, *m);
        npu_batch_matmul(r, k, *m, seen);
        npu_add(r, d, seen, -1, d);
        npu_multiply(r, d, beta, d);
        npu_multiply(r, column, d, added);
        npu_add(r, *m, added, 1, *m);
        npu_batch_matmul(r, q, *m, o);
        npu_copy(r, o, to);
    }
}

/* ---- one call ------------------------------------------------------------------------------------------------ */

/* What is read of v and of the state is read before results are written, which may lie there. */
static void delta(npu_run *r)
{
    delta_job job = delta_shape(r->call);
    real_tokens tokens = {0};
    delta_tokens t = delta_take(r, &job);
    if (!r->measuring) {
        real_tokens_begin(r, job.index, &tokens);
        t.count = tokens.most;
    }
    tn_tensor state = npu_view(t.state.data, TN_F32, 4, job.state->shape, NULL), o = by_token(&job, &t.o);
    npu_copy(r, *job.state, state);
    take_tokens(r, &job, &tokens, job.v, &t.v);
    take_keys(r, &job, &tokens, job.q, 1 / sqrtf((float)job.dk), &t.q);
    take_keys(r, &job, &tokens, job.k, 1, &t.k);
    take_gates(r, &job, &tokens, &t);
    if (t.chunk > 0)
        delta_rule_chunks(r, &t);
    else
        delta_rule_one_by_one(r, &t);
    if (!r->measuring)
        real_tokens_unpack(r, &tokens, &o, job.o);
    npu_copy(r, state, *job.next);
    real_tokens_end(&tokens);
}

static tn_status delta_supports(const tn_site *site, tn_error *err)
{
    if (site->features & TN_HAS_CHANNEL_DECAY)
        return tn_fail(err, TN_DECLINED, "npu", "a decay for each channel is not there yet");
    tn_status status = npu_supports_param(site, TN_ROLE_DECAY, err);
    status = status == TN_OK ? npu_supports_param(site, TN_ROLE_BIAS, err) : status;
    return status == TN_OK ? npu_needs("aclnnExp aclnnRsqrt aclnnSoftplus aclnnClamp", err) : status;
}

const ascend_operation ascend_gated_delta_rule = {
    .op = TN_OP_GATED_DELTA_RULE, .supports = delta_supports, .body = delta};
