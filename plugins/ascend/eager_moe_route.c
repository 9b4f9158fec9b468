/* MOE_ROUTE on the NPU: logits, scores in f32, the k best of each token by aclnnTopk, and their weights.
 *
 * With a correction bias the k best are those of score + bias, and a chosen expert's score is what was chosen less its
 * bias, since no operator gathers: off by a rounding of that sum. Nobody says which of equal scores aclnnTopk takes
 * first; core/eager takes the lowest expert. Scores that are not numbers are an error of core/eager and go unnoticed
 * here.
 *
 * Groups are taken by aclnnTopk too. The operators that every installation has compare nothing, so whether group g is
 * among the best b is the sum of sigmoid(2^60 (1/2 - (b - g)^2)), each 1 or 0. */
#include "eager_moe_route.h"

#include <stdlib.h>

typedef struct route_job {
    const tn_site *site;
    const tn_tensor *x, *router, *bias, *correction, *expert_scale;
    const tn_tensor *weights, *experts, *logits; /* logits NULL: not wanted                        */
    tn_dtype dtype;
    tn_score score;
    int64_t tokens, hidden, expert_count, top_k, groups, top_groups; /* groups 0: none             */
    bool wide; /* logits are summed, and added to, in f32                                          */
} route_job;

typedef struct route_work {
    tn_tensor x, router, bias;          /* f32                                                     */
    tn_tensor logits;                   /* [T,E] in the model's type                               */
    tn_tensor now, other;               /* [T,E] f32                                               */
    tn_tensor table;                    /* [E] f32: correction bias, or factors of experts         */
    tn_tensor picked;                   /* [T k] f32: of that table                                */
    tn_tensor best, next, sums, shared; /* [T,k], [T,k], [T,1], [T,1] f32                          */
    tn_tensor places, experts;          /* [T,k] i64, i32                                          */
    tn_tensor pairs, ranks, inside;     /* groups: [T G,2], [T G,1], [T,G,1] f32                   */
    tn_tensor top, spare;               /* [T,1,best groups] f32, room for their places, i64       */
    tn_tensor numbers, same, squares;   /* [1,G,1], [T,G,best groups] f32                          */
} route_work;

static route_job route_shape(const tn_call *call)
{
    const tn_site *site = call->site;
    route_job job = {.site = site, .x = &call->in[0], .weights = &call->out[0], .experts = &call->out[1]};
    job.logits = call->out_count > 2 && call->out[2].data ? &call->out[2] : NULL;
    job.router = npu_param(site, TN_ROLE_ROUTER);
    job.bias = npu_param(site, TN_ROLE_ROUTER_BIAS);
    job.correction = site->features & TN_HAS_CORRECTION_BIAS ? npu_param(site, TN_ROLE_CORRECTION_BIAS) : NULL;
    job.expert_scale = site->features & TN_HAS_EXPERT_SCALE ? npu_param(site, TN_ROLE_EXPERT_SCALE) : NULL;
    job.dtype = job.x->dtype;
    job.score = (tn_score)site->meaning[TN_AXIS_SCORE];
    job.tokens = job.x->shape[0];
    job.hidden = job.x->shape[1];
    job.expert_count = job.router->shape[0];
    job.top_k = job.experts->shape[1];
    if ((site->features & TN_HAS_GROUPS) && site->dim[TN_DIM_TOP_GROUPS] < site->dim[TN_DIM_GROUPS]) {
        job.groups = site->dim[TN_DIM_GROUPS];
        job.top_groups = site->dim[TN_DIM_TOP_GROUPS];
    }
    job.wide = (site->features & TN_HAS_F32_ROUTER) || job.router->dtype != job.dtype || job.bias;
    return job;
}

static void route_take(npu_run *r, const route_job *job, route_work *w)
{
    int64_t t = job->tokens, e = job->expert_count, k = job->top_k, wide = job->wide ? 1 : 0;
    w->x = npu_take_2d(r, TN_F32, t * wide, job->hidden);
    w->router = npu_take_2d(r, TN_F32, e * wide, job->hidden);
    w->bias = npu_take(r, TN_F32, 1, (int64_t[]){e});
    w->logits = npu_take_2d(r, job->dtype, t, e);
    w->now = npu_take_2d(r, TN_F32, t, e);
    w->other = npu_take_2d(r, TN_F32, t, e);
    w->table = npu_take(r, TN_F32, 1, (int64_t[]){e});
    w->picked = npu_take(r, TN_F32, 1, (int64_t[]){t * k});
    w->best = npu_take_2d(r, TN_F32, t, k);
    w->next = npu_take_2d(r, TN_F32, t, k);
    w->sums = npu_take_2d(r, TN_F32, t, 1);
    w->shared = npu_take_2d(r, TN_F32, t, 1);
    w->places = npu_take_2d(r, TN_I64, t, k);
    w->experts = npu_take_2d(r, TN_I32, t, k);
    w->pairs = npu_take_2d(r, TN_F32, t * job->groups, 2);
    w->ranks = npu_take_2d(r, TN_F32, t * job->groups, 1);
    w->inside = npu_take_3d(r, TN_F32, t, job->groups, 1);
    w->top = npu_take_3d(r, TN_F32, t, 1, job->top_groups);
    w->spare = npu_take_2d(r, TN_I64, t * job->groups, 2);
    w->numbers = npu_take_3d(r, TN_F32, 1, job->groups, 1);
    w->same = npu_take_3d(r, TN_F32, t, job->groups, job->top_groups);
    w->squares = npu_take_3d(r, TN_F32, t, job->groups, job->top_groups);
}

static void swap(tn_tensor *a, tn_tensor *b)
{
    tn_tensor t = *a;
    *a = *b;
    *b = t;
}

/* The tensor in f32: itself, or room. */
static tn_tensor widened(npu_run *r, const tn_tensor *t, const tn_tensor *room)
{
    if (t->dtype == TN_F32)
        return *t;
    npu_copy(r, *t, *room);
    return *room;
}

/* now: the logits, rounded unless the router is f32; and where they are wanted. */
static void route_logits(npu_run *r, const route_job *job, route_work *w)
{
    bool rounded = !(job->site->features & TN_HAS_F32_ROUTER) && job->dtype != TN_F32;
    if (!job->wide) {
        tn_tensor router = npu_transposed(*job->router), *out = job->dtype == TN_F32 ? &w->now : &w->logits;
        npu_matmul(r, *job->x, router, *out);
        if (rounded)
            npu_copy(r, w->logits, w->now);
    } else {
        tn_tensor x = widened(r, job->x, &w->x), weight = widened(r, job->router, &w->router);
        tn_tensor router = npu_transposed(weight);
        npu_matmul(r, x, router, w->now);
        if (job->bias) {
            tn_tensor bias = widened(r, job->bias, &w->bias);
            npu_add(r, w->now, bias, 1, w->other);
            swap(&w->now, &w->other);
        }
        if (rounded)
            npu_round(r, w->now, w->logits);
    }
    if (job->logits)
        npu_copy(r, rounded ? w->logits : w->now, *job->logits);
}

/* picked: of a table over the experts, the value of each chosen one, seen as [T,k]. */
static tn_tensor pick(npu_run *r, const route_job *job, const tn_tensor *table, const route_work *w)
{
    tn_tensor wide = widened(r, table, &w->table);
    tn_tensor index = npu_view(w->experts.data, TN_I32, 1, (int64_t[]){job->tokens * job->top_k}, NULL);
    npu_gather(r, wide, index, w->picked);
    return npu_view(w->picked.data, TN_F32, 2, w->best.shape, NULL);
}

/* The rank of each group, [T,G]: its best score, or the sum of its two best. */
static tn_tensor rank_groups(npu_run *r, const route_job *job, const route_work *w)
{
    int64_t size = job->expert_count / job->groups, rows = job->tokens * job->groups;
    bool pairs = job->score == TN_SCORE_SIGMOID || (job->site->features & TN_HAS_GROUP_PAIRS);
    int64_t count = pairs && size > 1 ? 2 : 1;
    tn_tensor scores = npu_view(w->now.data, TN_F32, 2, (int64_t[]){rows, size}, NULL);
    tn_tensor best = npu_view(count == 2 ? w->pairs.data : w->ranks.data, TN_F32, 2, (int64_t[]){rows, count}, NULL);
    tn_tensor places = npu_view(w->spare.data, TN_I64, 2, (int64_t[]){rows, count}, NULL);
    npu_largest(r, scores, count, best, places);
    if (count == 2)
        npu_sums(r, w->pairs, w->ranks);
    return npu_view(w->ranks.data, TN_F32, 2, (int64_t[]){job->tokens, job->groups}, NULL);
}

/* inside: 1 for each of the best groups, 0 for others. */
static void find_groups(npu_run *r, const route_job *job, route_work *w)
{
    const float step = 0x1p60f;
    int64_t shape[] = {job->tokens, job->top_groups};
    tn_tensor ranks = rank_groups(r, job, w);
    tn_tensor best = npu_view(w->top.data, TN_F32, 2, shape, NULL);
    tn_tensor places = npu_view(w->spare.data, TN_I64, 2, shape, NULL);
    npu_largest(r, ranks, job->top_groups, best, places);
    npu_copy(r, places, best);
    npu_put_numbers(r, &w->numbers);
    npu_add(r, w->top, w->numbers, -1, w->same);
    npu_multiply(r, w->same, w->same, w->squares);
    npu_multiply_number(r, w->squares, -step, w->same);
    npu_add_number(r, w->same, step / 2, w->squares);
    npu_sigmoid(r, w->squares, w->same);
    npu_sums(r, w->same, w->inside);
}

/* now: experts outside of the best groups out of reach. Sigmoid scores, which a bias may have made negative, go far
 * down; others are positive and become 0. */
static void limit_groups(npu_run *r, const route_job *job, route_work *w)
{
    const float far = 0x1p100f;
    int64_t shape[] = {job->tokens, job->groups, job->expert_count / job->groups};
    tn_tensor scores = npu_view(w->now.data, TN_F32, 3, shape, NULL);
    tn_tensor limited = npu_view(w->other.data, TN_F32, 3, shape, NULL);
    find_groups(r, job, w);
    if (job->score == TN_SCORE_SIGMOID) {
        npu_add_number(r, w->inside, -1, w->inside);
        npu_add(r, scores, w->inside, far, limited);
    } else {
        npu_multiply(r, scores, w->inside, limited);
    }
    swap(&w->now, &w->other);
}

/* best: the scores of the chosen experts, by falling score. */
static void route_choose(npu_run *r, const route_job *job, route_work *w)
{
    if (job->score == TN_SCORE_SOFTMAX || job->score == TN_SCORE_SIGMOID) {
        if (job->score == TN_SCORE_SOFTMAX)
            npu_softmax(r, w->now, w->other);
        else
            npu_sigmoid(r, w->now, w->other);
        swap(&w->now, &w->other);
    }
    if (job->correction) {
        tn_tensor correction = widened(r, job->correction, &w->table);
        npu_add(r, w->now, correction, 1, w->other);
        swap(&w->now, &w->other);
    }
    if (job->groups > 0)
        limit_groups(r, job, w);
    npu_largest(r, w->now, job->top_k, w->best, w->places);
    npu_copy(r, w->places, w->experts);
    if (job->correction) {
        tn_tensor bias = pick(r, job, job->correction, w);
        npu_add(r, w->best, bias, -1, w->next);
        swap(&w->best, &w->next);
    }
}

/* next: the weight of each chosen expert, its softmax over those that were not chosen before it and that are near it:
 * (m - l) / max(|l|, m), m its logit, rounded step by step, is not above the margin. What was chosen goes far down. */
static void weigh_sparse(npu_run *r, const route_job *job, const route_work *w)
{
    const float far_down = -1e30f;
    tn_tensor l = w->now, t = w->other, size = npu_take_like(r, TN_F32, l), choice = npu_take_like(r, TN_BOOL, l);
    tn_tensor numbers = npu_take_2d(r, TN_F32, 1, job->expert_count), one = npu_take(r, TN_F32, 1, (int64_t[]){1});
    tn_tensor constant = npu_take_like(r, TN_F32, one), place = npu_take_like(r, TN_F32, w->sums);
    tn_tensor narrow = w->logits;
    if (job->site->features & TN_HAS_F32_ROUTER)
        narrow.dtype = TN_F32;
    npu_put_numbers(r, &numbers);
    npu_fill(r, one, 1);
    for (int64_t j = 0; j < job->top_k && !r->measuring; j++) {
        tn_tensor m = npu_part(w->best, j, 1, 1);
        npu_multiply_number(r, l, -1, size);
        npu_above(r, l, 0, choice);
        npu_choose(r, choice, l, size, size);
        npu_add(r, size, m, -1, t);
        npu_above(r, t, 0, choice);
        npu_choose(r, choice, size, m, size);
        npu_add(r, m, l, -1, t);
        npu_round(r, t, narrow);
        npu_divide(r, t, size, t);
        npu_round(r, t, narrow);
        npu_above(r, t, (float)job->site->num[TN_NUM_MARGIN], choice);
        npu_add(r, l, m, -1, t);
        npu_exp(r, t, t);
        npu_fill(r, constant, 0);
        npu_choose(r, choice, constant, t, t);
        npu_sums(r, t, w->sums);
        npu_divide(r, one, w->sums, npu_part(w->next, j, 1, 1));
        npu_copy(r, npu_part(w->places, j, 1, 1), place);
        npu_add(r, numbers, place, -1, t);
        npu_multiply(r, t, t, t);
        npu_below(r, t, 0.25f, choice);
        npu_fill(r, constant, far_down);
        npu_choose(r, choice, constant, l, l);
    }
}

/* best: the weights. */
static void route_weigh(npu_run *r, const route_job *job, route_work *w)
{
    if (job->score >= TN_SCORE_TOPK_SOFTMAX) {
        if (job->score == TN_SCORE_TOPK_SOFTMAX)
            npu_softmax(r, w->best, w->next);
        else if (job->score == TN_SCORE_TOPK_SIGMOID)
            npu_sigmoid(r, w->best, w->next);
        else
            weigh_sparse(r, job, w);
        swap(&w->best, &w->next);
    }
    if (job->site->features & TN_HAS_RENORM) {
        npu_sums(r, w->best, w->sums);
        if (job->score == TN_SCORE_SIGMOID) {
            float eps = (float)job->site->num[TN_NUM_EPS];
            npu_add_number(r, w->sums, eps > 0 ? eps : 1e-20f, w->shared);
            swap(&w->sums, &w->shared);
        }
        npu_divide(r, w->best, w->sums, w->next);
        swap(&w->best, &w->next);
    }
    if (job->expert_scale) {
        tn_tensor factors = pick(r, job, job->expert_scale, w);
        npu_multiply(r, w->best, factors, w->next);
        swap(&w->best, &w->next);
    }
    if (job->site->features & TN_HAS_ROUTE_SCALE) {
        npu_multiply_number(r, w->best, (float)job->site->num[TN_NUM_SCALE], w->next);
        swap(&w->best, &w->next);
    }
}

static void route(npu_run *r)
{
    route_job job = route_shape(r->call);
    route_work w;
    route_take(r, &job, &w);
    route_logits(r, &job, &w);
    route_choose(r, &job, &w);
    route_weigh(r, &job, &w);
    npu_copy(r, w.best, *job.weights);
    npu_copy(r, w.experts, *job.experts);
}

/* In backward there are no results, whose shapes are known all the same. */
route_choice moe_route_choice(npu_run *r)
{
    tn_call call = *r->call;
    int64_t shape[] = {call.in[0].shape[0], call.site->dim[TN_DIM_TOP_K]};
    call.out_count = 2;
    call.out[0] = tn_tensor_dense(NULL, TN_F32, 2, shape);
    call.out[1] = tn_tensor_dense(NULL, TN_I32, 2, shape);
    route_job job = route_shape(&call);
    route_work w;
    route_take(r, &job, &w);
    route_logits(r, &job, &w);
    tn_tensor scores = npu_take_like(r, TN_F32, w.now);
    if (job.score == TN_SCORE_SOFTMAX)
        npu_softmax(r, w.now, scores);
    else if (job.score == TN_SCORE_SIGMOID)
        npu_sigmoid(r, w.now, scores);
    else
        npu_copy(r, w.now, scores);
    route_choose(r, &job, &w);
    return (route_choice){.scores = scores, .experts = w.experts};
}

/* Is the sum of the weights below what it counts at least? To sigmoid scores it is added; softmax scores: the k best of
 * E have at least k / E. */
static bool needs_least(const tn_site *site)
{
    tn_score score = (tn_score)site->meaning[TN_AXIS_SCORE];
    double least = site->num[TN_NUM_EPS];
    if (!(site->features & TN_HAS_RENORM) || least <= 0 || score == TN_SCORE_TOPK_SOFTMAX || score == TN_SCORE_SIGMOID)
        return false;
    return score != TN_SCORE_SOFTMAX ||
           least > 0.5 * (double)site->dim[TN_DIM_TOP_K] / (double)site->dim[TN_DIM_EXPERTS];
}

static tn_status route_supports(const tn_site *site, tn_error *err)
{
    tn_score score = (tn_score)site->meaning[TN_AXIS_SCORE];
    if (score == TN_SCORE_SPARSEMIXER) {
        tn_status status = npu_needs("aclnnExp aclnnGtScalar aclnnLtScalar aclnnSWhere", err);
        if (status != TN_OK)
            return status;
    }
    if ((site->features & TN_HAS_GROUPS) && score != TN_SCORE_SOFTMAX && score != TN_SCORE_SIGMOID)
        return tn_fail(err, TN_DECLINED, "npu",
                       "a router that chooses among the logits of its best %lld of %lld groups",
                       (long long)site->dim[TN_DIM_TOP_GROUPS], (long long)site->dim[TN_DIM_GROUPS]);
    if (needs_least(site))
        return tn_fail(err, TN_DECLINED, "npu",
                       "a router whose weights' sum counts at least %g: no operator takes the larger of two numbers",
                       site->num[TN_NUM_EPS]);
    return npu_supports_param(site, TN_ROLE_ROUTER, err);
}

const ascend_operation ascend_moe_route = {.op = TN_OP_MOE_ROUTE, .supports = route_supports, .body = route};
