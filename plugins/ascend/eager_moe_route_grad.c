/* Gradients of MOE_ROUTE, as core/eager/moe_route_grad.c derives them: with g those of the weights (times the factors),
 * v the chosen scores, D what they are divided by and w = v / D,
 *
 *     s = sum g w where D is a sum, else 0,  g' = (g - s) / D,
 *     softmax of all: dl = p (g' - sum g' v), g' = 0 for experts not chosen; of the chosen: dl = v (g' - sum g' v),
 *     sigmoid: dl = g' v (1 - v),
 *
 * and dx = dl router, drouter = dl^T x, dbias = the sum of dl. No operator scatters in an order of its own: a mask of
 * each choice says which expert it is, so that values go to and from their experts exactly. */
#include "eager_grad.h"
#include "eager_moe_route.h"
#include "operators.h"

#include <stdlib.h>

typedef struct route_job {
    const tn_site *site;
    tn_dtype dtype;
    tn_score score;
    int64_t tokens, experts, top_k;
    bool renorm, sum_only;    /* sum_only: what scores are divided by is their sum whatever it is       */
    float added, least;       /* to the sum of sigmoid scores; what that of others counts at least         */
    tn_tensor scores, chosen; /* [T,E] f32, [T,k] i32                                             */
    tn_tensor masks;          /* [k,T,E] TN_BOOL: whether the j-th choice of a token is this expert */
    tn_tensor zero;           /* [1] f32                                                          */
} route_job;

static route_job route_job_of(npu_run *r)
{
    const tn_site *site = r->call->site;
    route_choice choice = moe_route_choice(r);
    route_job job = {.site = site, .scores = choice.scores, .chosen = choice.experts};
    job.dtype = r->call->in[0].dtype;
    job.score = (tn_score)site->meaning[TN_AXIS_SCORE];
    job.tokens = job.scores.shape[0];
    job.experts = job.scores.shape[1];
    job.top_k = job.chosen.shape[1];
    job.renorm = site->features & TN_HAS_RENORM;
    float eps = (float)site->num[TN_NUM_EPS];
    job.added = eps > 0 ? eps : 1e-20f;
    job.least = eps;
    job.sum_only = eps <= 0 || job.score == TN_SCORE_SIGMOID;
    job.zero = npu_take(r, TN_F32, 1, (int64_t[]){1});
    npu_fill(r, job.zero, 0);
    return job;
}

/* ---- choices ------------------------------------------------------------------------------------------------ */

static void make_masks(npu_run *r, route_job *job)
{
    tn_tensor numbers = npu_take_2d(r, TN_F32, 1, job->experts);
    tn_tensor ids = npu_take_like(r, TN_F32, job->chosen), apart = npu_take_like(r, TN_F32, job->scores);
    job->masks = npu_take_3d(r, TN_BOOL, job->top_k, job->tokens, job->experts);
    if (r->measuring)
        return;
    npu_put_numbers(r, &numbers);
    npu_copy(r, job->chosen, ids);
    for (int64_t j = 0; j < job->top_k; j++) {
        tn_tensor id = npu_part(ids, j, 1, 1), mask = npu_member(&job->masks, j);
        npu_add(r, numbers, id, -1, apart);
        npu_multiply(r, apart, apart, apart);
        npu_below(r, apart, 0.25f, mask);
    }
}

/* [T,k] of [T,E]: what the chosen experts have. */
static tn_tensor gather(npu_run *r, const route_job *job, const tn_tensor *from)
{
    tn_tensor to = npu_take_like(r, TN_F32, job->chosen), one = npu_take_like(r, TN_F32, job->scores);
    tn_tensor sum = npu_take_2d(r, TN_F32, job->tokens, 1);
    for (int64_t j = 0; j < job->top_k && !r->measuring; j++) {
        tn_tensor mask = npu_member(&job->masks, j), column = npu_part(to, j, 1, 1);
        npu_choose(r, mask, *from, job->zero, one);
        npu_sums(r, one, sum);
        npu_copy(r, sum, column);
    }
    return to;
}

/* [T,E] of [T,k], zeros for experts not chosen. */
static tn_tensor scatter(npu_run *r, const route_job *job, const tn_tensor *from)
{
    tn_tensor to = npu_take_like(r, TN_F32, job->scores);
    npu_fill(r, to, 0);
    for (int64_t j = 0; j < job->top_k && !r->measuring; j++) {
        tn_tensor mask = npu_member(&job->masks, j), column = npu_part(*from, j, 1, 1);
        npu_choose(r, mask, column, to, to);
    }
    return to;
}

/* ---- weights ------------------------------------------------------------------------------------------------ */

/* The sum of a b over the choices, [T,1]. */
static tn_tensor share(npu_run *r, const tn_tensor *a, const tn_tensor *b)
{
    tn_tensor product = npu_take_like(r, TN_F32, *a), sum = npu_take_2d(r, TN_F32, a->shape[0], 1);
    npu_multiply(r, *a, *b, product);
    npu_sums(r, product, sum);
    return sum;
}

/* What weights are divided by, [T,1]; is_sum: 1, or 0 where it is no sum. */
static tn_tensor divisor_of(npu_run *r, const route_job *job, const tn_tensor *v, tn_tensor *is_sum)
{
    tn_tensor sum = npu_take_2d(r, TN_F32, job->tokens, 1), least = npu_take(r, TN_F32, 1, (int64_t[]){1});
    tn_tensor below = npu_take_like(r, TN_BOOL, sum);
    *is_sum = npu_take_like(r, TN_F32, sum);
    npu_sums(r, *v, sum);
    if (job->score == TN_SCORE_SIGMOID)
        npu_add_number(r, sum, job->added, sum);
    npu_fill(r, *is_sum, 1);
    if (job->sum_only)
        return sum;
    npu_fill(r, least, job->least);
    npu_below(r, sum, job->least, below);
    npu_choose(r, below, job->zero, *is_sum, *is_sum);
    npu_choose(r, below, least, sum, sum);
    return sum;
}

/* Through the factors of experts, whose gradient's terms [T,k] are returned: g times the weights w without them. */
static tn_tensor through_factors(npu_run *r, const route_job *job, const tn_tensor *w, const tn_tensor *g)
{
    const tn_tensor *factors = npu_param(job->site, TN_ROLE_EXPERT_SCALE);
    tn_tensor terms = npu_take_like(r, TN_F32, *g), wide = grad_wide(r, factors, factors);
    tn_tensor picked = npu_take(r, TN_F32, 1, (int64_t[]){job->tokens * job->top_k});
    tn_tensor index = npu_view(job->chosen.data, TN_I32, 1, picked.shape, NULL);
    npu_gather(r, wide, index, picked);
    tn_tensor by = npu_view(picked.data, TN_F32, 2, g->shape, NULL);
    npu_multiply(r, *g, *w, terms);
    npu_multiply(r, *g, by, *g);
    return terms;
}

/* Through the division: g becomes (g - s) / D. */
static void through_division(npu_run *r, const tn_tensor *w, const tn_tensor *divisor, const tn_tensor *is_sum,
                             const tn_tensor *g)
{
    tn_tensor s = share(r, g, w);
    npu_multiply(r, s, *is_sum, s);
    npu_add(r, *g, s, -1, *g);
    npu_divide(r, *g, *divisor, *g);
}

/* Of the logits [T,E], from g and v [T,k]. is_sum is NULL where weights are not divided. */
static tn_tensor logits_grad(npu_run *r, const route_job *job, const tn_tensor *g, const tn_tensor *v,
                             const tn_tensor *is_sum)
{
    if (job->score == TN_SCORE_SIGMOID || job->score == TN_SCORE_TOPK_SIGMOID) {
        tn_tensor slope = npu_take_like(r, TN_F32, *v);
        npu_multiply_number(r, *v, -1, slope);
        npu_add_number(r, slope, 1, slope);
        npu_multiply(r, slope, *v, slope);
        npu_multiply(r, *g, slope, *g);
        return scatter(r, job, g);
    }
    tn_tensor s = share(r, g, v);
    if (job->score == TN_SCORE_TOPK_SOFTMAX) {
        npu_add(r, *g, s, -1, *g);
        npu_multiply(r, *g, *v, *g);
        return scatter(r, job, g);
    }
    if (is_sum) { /* gradients of what was divided by its sum are orthogonal to it: s is 0 but for rounding */
        tn_tensor not_sum = npu_take_like(r, TN_F32, s);
        npu_multiply_number(r, *is_sum, -1, not_sum);
        npu_add_number(r, not_sum, 1, not_sum);
        npu_multiply(r, s, not_sum, s);
    }
    tn_tensor dl = scatter(r, job, g);
    npu_add(r, dl, s, -1, dl);
    npu_multiply(r, dl, job->scores, dl);
    return dl;
}

/* v: the chosen ones of the scores, which some routers make scores only now. */
static tn_tensor chosen_scores(npu_run *r, const route_job *job)
{
    tn_tensor v = gather(r, job, &job->scores), other = npu_take_like(r, TN_F32, v);
    if (job->score == TN_SCORE_TOPK_SOFTMAX) {
        npu_softmax(r, v, other);
        return other;
    }
    if (job->score == TN_SCORE_TOPK_SIGMOID)
        npu_sigmoid(r, v, v);
    return v;
}

/* ---- the operation ------------------------------------------------------------------------------------------ */

/* dx = dl router, drouter = dl^T x: products of the model's type where dl was rounded to it. */
static void products(npu_run *r, const route_job *job, const tn_tensor *dl)
{
    const tn_tensor *in = &r->call->in[0], *weight = npu_param(job->site, TN_ROLE_ROUTER);
    const tn_tensor *dx = &r->call->grads->in[0], *drouter = grad_param(r, TN_ROLE_ROUTER);
    bool narrow = !(job->site->features & TN_HAS_F32_ROUTER) && weight->dtype == job->dtype;
    tn_dtype type = narrow ? job->dtype : TN_F32;
    tn_tensor l = npu_take_like(r, type, *dl), x = npu_take_like(r, type, *in),
              router = npu_take_like(r, type, *weight);
    tn_tensor to_x = npu_take_like(r, type, *in), to_router = npu_take_like(r, type, *weight);
    tn_tensor turned = npu_transposed(l);
    npu_copy(r, *dl, l);
    if (dx->data) {
        npu_copy(r, *weight, router);
        npu_matmul(r, l, router, to_x);
    }
    if (drouter) {
        npu_copy(r, *in, x);
        npu_matmul(r, turned, x, to_router);
    }
    grad_store(r, &to_x, dx);
    grad_store(r, &to_router, drouter);
}

static void route(npu_run *r)
{
    const tn_call *call = r->call;
    route_job job = route_job_of(r);
    tn_tensor g = grad_wide(r, &call->grads->out[0], &job.chosen), divisor, is_sum, terms;
    const tn_tensor *factor = grad_param(r, TN_ROLE_EXPERT_SCALE), *correction = grad_param(r, TN_ROLE_CORRECTION_BIAS);
    make_masks(r, &job);
    if (job.site->features & TN_HAS_ROUTE_SCALE)
        npu_multiply_number(r, g, (float)job.site->num[TN_NUM_SCALE], g);
    tn_tensor v = chosen_scores(r, &job), w = npu_take_like(r, TN_F32, v);
    npu_copy(r, v, w);
    if (job.renorm) {
        divisor = divisor_of(r, &job, &v, &is_sum);
        npu_divide(r, v, divisor, w);
    }
    if (job.site->features & TN_HAS_EXPERT_SCALE) {
        tn_tensor each = through_factors(r, &job, &w, &g);
        terms = scatter(r, &job, &each);
        grad_sum_rows(r, &terms, factor);
    }
    if (job.renorm)
        through_division(r, &w, &divisor, &is_sum, &g);
    tn_tensor dl = logits_grad(r, &job, &g, &v, job.renorm ? &is_sum : NULL);
    if (!(job.site->features & TN_HAS_F32_ROUTER))
        grad_round(r, &dl, job.dtype);
    grad_sum_rows(r, &dl, grad_param(r, TN_ROLE_ROUTER_BIAS));
    products(r, &job, &dl);
    if (correction) /* the choice has no gradient                                                      */
        npu_fill(r, *correction, 0);
}

static tn_status route_declines(const tn_call *call, tn_error *err)
{
    if (call->site->meaning[TN_AXIS_SCORE] != TN_SCORE_SPARSEMIXER)
        return TN_OK;
    return tn_fail(err, TN_DECLINED, "npu", "score: the gradients of sparsemixer are not there yet");
}

const ascend_gradient ascend_moe_route_grad = {
    .op = TN_OP_MOE_ROUTE, .body = route, .needs = "aclnnLtScalar aclnnSWhere", .declines = route_declines};
