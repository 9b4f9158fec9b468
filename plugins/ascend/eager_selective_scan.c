/* SELECTIVE_SCAN on the NPU: a delta rule that writes s x without a look at what the state holds, with g = -e^decay s,
 * and to whose results skip x is added. In f32, but for the steps s, which core/eager rounds. */
#include "delta_rule.h"

#include <math.h>

/* s, with the roundings of its sum and of softplus, in the place of beta. */
static void take_steps(npu_run *r, const delta_job *job, const real_tokens *tokens, const delta_tokens *to)
{
    const tn_site *site = r->call->site;
    tn_tensor raw = delta_each(job, job->a), bias = delta_by_head(r, job->bias), s = delta_by_token(job, &to->beta);
    tn_tensor narrow = npu_take_like(r, job->v->dtype, to->beta);
    delta_take_tokens(r, job, tokens, &raw, &to->beta);
    npu_add(r, s, bias, 1, s);
    npu_round(r, to->beta, narrow);
    npu_softplus(r, to->beta, 20, to->beta);
    npu_round(r, to->beta, narrow);
    if (site->features & TN_HAS_STEP_LIMITS)
        npu_clamp(r, to->beta, (float)site->num[TN_NUM_LEAST], (float)site->num[TN_NUM_LIMIT], to->beta);
    delta_clear_rest(r, job, tokens, &to->beta);
}

/* No further down than what e^g makes 0 of. */
static void take_gates(npu_run *r, const delta_job *job, const real_tokens *tokens, const delta_tokens *to)
{
    tn_tensor rate = npu_take(r, TN_F32, 4, (int64_t[]){1, 1, job->v_heads, 1}), g = delta_by_token(job, &to->g);
    tn_tensor s = delta_by_token(job, &to->beta), x = delta_by_token(job, &to->v),
              rest = delta_by_token(job, &to->rest);
    take_steps(r, job, tokens, to);
    npu_exp(r, delta_by_head(r, job->rate), rate);
    npu_multiply_number(r, rate, -1, rate);
    npu_multiply(r, s, rate, g);
    npu_clamp(r, to->g, -1e4f, INFINITY, to->g);
    npu_multiply(r, x, delta_by_head(r, job->b), rest);
    npu_multiply(r, to->v, to->beta, to->v);
}

static void scan(npu_run *r)
{
    const tn_tensor *in = r->call->in, *out = r->call->out;
    const delta_job job = {.take_gates = take_gates,
                           .v = &in[0],
                           .state = &in[1],
                           .q = &in[3],
                           .k = &in[2],
                           .a = &in[4],
                           .b = npu_param(r->call->site, TN_ROLE_WEIGHT),
                           .index = &in[5],
                           .rate = npu_param(r->call->site, TN_ROLE_DECAY),
                           .bias = npu_param(r->call->site, TN_ROLE_BIAS),
                           .o = &out[0],
                           .next = &out[1],
                           .rows = in[0].shape[0],
                           .tokens = in[0].shape[1],
                           .qk_heads = in[2].shape[2],
                           .v_heads = in[0].shape[2],
                           .dk = in[2].shape[3],
                           .dv = in[0].shape[3],
                           .rates = 1,
                           .adds = true};
    delta_run(r, &job);
}

static tn_status scan_supports(const tn_site *site, tn_error *err)
{
    tn_status status = npu_supports_param(site, TN_ROLE_DECAY, err);
    status = status == TN_OK ? npu_supports_weights(site, err) : status;
    return status == TN_OK ? npu_needs("aclnnExp aclnnSoftplus aclnnClamp", err) : status;
}

const ascend_operation ascend_selective_scan = {.op = TN_OP_SELECTIVE_SCAN, .supports = scan_supports, .body = scan};
