/* MOE_ROUTE: the k experts of every token and their weights, and the logits where they are wanted. Scores are f32;
 * slots are ordered by falling score, ties by rising expert id. No choice is written when a token's scores are not
 * numbers. */
#include "eager/moe_route.h"

#include "eager/gemm.h"
#include "eager/rows.h"
#include "eager/vec.h"

#include <inttypes.h>
#include <math.h>

#define ROUTE_TILE 64 /* tokens of one product: the router's weights are packed anew for each      */

bool moe_route_shape(const tn_call *call, int64_t top_k, route_job *job)
{
    const tn_site *site = call->site;
    *job = (route_job){.site = site, .x = &call->in[0], .weights = &call->out[0], .experts = &call->out[1]};
    job->logits = call->out_count > 2 && call->out[2].data ? &call->out[2] : NULL;
    job->router = rows_param(site, TN_ROLE_ROUTER);
    if (!job->router)
        return false;
    job->bias = rows_param(site, TN_ROLE_ROUTER_BIAS);
    job->correction = site->features & TN_HAS_CORRECTION_BIAS ? rows_param(site, TN_ROLE_CORRECTION_BIAS) : NULL;
    job->expert_scale = site->features & TN_HAS_EXPERT_SCALE ? rows_param(site, TN_ROLE_EXPERT_SCALE) : NULL;
    job->score = (tn_score)site->meaning[TN_AXIS_SCORE];
    float eps = (float)site->num[TN_NUM_EPS];
    bool adds = job->score == TN_SCORE_SIGMOID;
    job->added = !adds ? 0.0f : eps > 0 ? eps : 1e-20f;
    job->least = adds ? 0.0f : eps;
    job->tokens = job->x->shape[0];
    job->hidden = job->x->shape[1];
    job->expert_count = job->router->shape[0];
    job->top_k = top_k;
    job->groups = site->features & TN_HAS_GROUPS ? site->dim[TN_DIM_GROUPS] : 1;
    job->top_groups = site->features & TN_HAS_GROUPS ? site->dim[TN_DIM_TOP_GROUPS] : 1;
    job->scale = site->features & TN_HAS_ROUTE_SCALE ? (float)site->num[TN_NUM_SCALE] : 1.0f;
    job->type = gemm_type(job->x->dtype, job->router->dtype);
    job->work_bytes = gemm_work_size(job->hidden);
    return true;
}

size_t moe_route_layout(route_job *job, char *base)
{
    size_t scores = (size_t)job->tokens * (size_t)job->expert_count * sizeof(float), used = 0;
    size_t converted = (size_t)job->tokens * (size_t)job->hidden * sizeof(float);
    job->scores = (float *)(void *)rows_take(base, &used, scores);
    job->choice = (float *)(void *)rows_take(base, &used, scores);
    job->converted = (float *)(void *)rows_take(base, &used, converted);
    job->work = rows_take(base, &used, job->work_bytes * (size_t)tn_thread_count());
    return used;
}

size_t moe_route_scratch(const tn_call *call)
{
    route_job job;
    return moe_route_shape(call, call->out[1].shape[1], &job) ? moe_route_layout(&job, NULL) : 0;
}

/* Logits become scores. False when they are not numbers. */
static bool route_score(const route_job *job, float *row)
{
    int64_t n = job->expert_count;
    /* An infinite logit is as good as none for a softmax: inf - inf. */
    float max = vec_max(row, n);
    if (job->score == TN_SCORE_TOPK_SIGMOID) /* the logits themselves                                  */
        return !isnan(max);
    if (job->score == TN_SCORE_SIGMOID) {
        vec_act(TN_ACT_SIGMOID, TN_F32, row, n);
        return !isnan(max);
    }
    if (!isfinite(max))
        return false;
    if (job->score == TN_SCORE_SOFTMAX)
        vec_div(row, n, vec_exp_sum(row, n, max));
    return true;
}

static void route_finish_row(route_job *job, int64_t token)
{
    float *row = job->scores + token * job->expert_count, bias[VEC_CHUNK];
    for (int64_t i = 0; job->bias && i < job->expert_count; i += VEC_CHUNK) {
        int64_t n = job->expert_count - i < VEC_CHUNK ? job->expert_count - i : VEC_CHUNK;
        convert_to_f32((const char *)job->bias->data + (size_t)i * tn_dtype_size(job->bias->dtype), job->bias->dtype,
                       bias, n);
        vec_add(row + i, bias, n);
    }
    if (!(job->site->features & TN_HAS_F32_ROUTER))
        vec_round(row, job->expert_count, job->x->dtype);
    if (job->logits)
        convert_from_f32(row, job->logits->dtype, rows_at(job->logits, token), job->expert_count);
    if (route_score(job, row))
        return;
    long long first = atomic_load(&job->bad);
    while (token < first && !atomic_compare_exchange_weak(&job->bad, &first, token))
        ;
}

static void route_products(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    route_job *job = ctx;
    gemm_context *context = gemm_acquire();
    for (int64_t tile = begin; tile < end; tile++) {
        int64_t first = tile * ROUTE_TILE, rows = job->tokens - first < ROUTE_TILE ? job->tokens - first : ROUTE_TILE;
        const char *a = rows_at(job->x, first);
        int64_t lda = job->x->stride[0];
        if (job->type != job->x->dtype) {
            for (int64_t i = 0; i < rows; i++)
                convert_to_f32(rows_at(job->x, first + i), job->x->dtype, job->converted + (first + i) * job->hidden,
                               job->hidden);
            a = (const char *)(job->converted + first * job->hidden);
            lda = job->hidden;
        }
        gemm_shape shape = {.type = job->type,
                            .w_type = job->router->dtype,
                            .form = GEMM_NT,
                            .m = rows,
                            .n = job->expert_count,
                            .k = job->hidden,
                            .lda = rows > 1 || lda >= job->hidden ? lda : job->hidden,
                            .ldw = job->router->stride[0],
                            .ldc = job->expert_count};
        gemm_run(context, &shape, a, job->router->data, job->scores + first * job->expert_count,
                 job->work + (size_t)thread * job->work_bytes);
        for (int64_t i = 0; i < rows; i++)
            route_finish_row(job, first + i);
    }
    gemm_release(context);
}

/* The best of n values that is not taken (NaN); the first of equals. -1: none. */
static int64_t route_best(const float *choice, int64_t n)
{
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++)
        if (!isnan(choice[i]) && (best < 0 || choice[i] > choice[best]))
            best = i;
    return best;
}

/* Takes experts outside the best groups out of the choice. A group is as good as its best score, or its best two
 * (sigmoid, TN_HAS_GROUP_PAIRS). rank: room for a value per group. */
static void route_limit_groups(const route_job *job, float *choice, float *rank)
{
    int64_t size = job->expert_count / job->groups;
    bool pairs = job->score == TN_SCORE_SIGMOID || (job->site->features & TN_HAS_GROUP_PAIRS);
    for (int64_t g = 0; g < job->groups; g++) {
        const float *in = choice + g * size;
        float first = -INFINITY, second = -INFINITY;
        for (int64_t i = 0; i < size; i++) {
            second = in[i] > first ? first : in[i] > second ? in[i] : second;
            first = in[i] > first ? in[i] : first;
        }
        rank[g] = pairs && size > 1 ? first + second : first;
    }
    for (int64_t i = 0; i < job->top_groups && i < job->groups; i++) {
        int64_t best = route_best(rank, job->groups);
        if (best < 0) /* the rest are no numbers already: infinite scores of both signs */
            break;
        rank[best] = NAN;
    }
    for (int64_t g = 0; g < job->groups; g++)
        for (int64_t i = 0; i < size && !isnan(rank[g]); i++)
            choice[g * size + i] = job->score == TN_SCORE_SIGMOID ? -INFINITY : 0.0f;
}

float moe_route_divisor(const route_job *job, const float *scores, bool *is_sum)
{
    float sum = 0.0f;
    for (int64_t j = 0; j < job->top_k; j++)
        sum += scores[j];
    sum += job->added;
    *is_sum = !(sum < job->least);
    return *is_sum ? sum : job->least;
}

float moe_route_expert_scale(const route_job *job, int32_t expert)
{
    float scale = 1.0f;
    const tn_tensor *t = job->expert_scale;
    if (t)
        convert_to_f32((const char *)t->data + (size_t)expert * tn_dtype_size(t->dtype), t->dtype, &scale, 1);
    return scale;
}

/* weights[k] of the chosen experts from their scores. */
static void route_weigh(const route_job *job, const int32_t *experts, float *weights)
{
    int64_t k = job->top_k;
    bool is_sum;
    if (job->score == TN_SCORE_TOPK_SOFTMAX)
        vec_div(weights, k, vec_exp_sum(weights, k, vec_max(weights, k)));
    if (job->score == TN_SCORE_TOPK_SIGMOID)
        vec_act(TN_ACT_SIGMOID, TN_F32, weights, k);
    if (job->site->features & TN_HAS_RENORM)
        vec_div(weights, k, moe_route_divisor(job, weights, &is_sum));
    for (int64_t j = 0; job->expert_scale && j < k; j++)
        weights[j] *= moe_route_expert_scale(job, experts[j]);
    if (job->site->features & TN_HAS_ROUTE_SCALE)
        vec_scale(weights, k, job->scale);
}

void moe_route_choose(const route_job *job, int64_t token, int32_t *experts, float *scores)
{
    int64_t n = job->expert_count;
    const float *score = job->scores + token * n;
    float *choice = job->choice + token * n, chunk[VEC_CHUNK];
    memcpy(choice, score, (size_t)n * sizeof *choice);
    /* The scores' own row may not hold the bias: the weights come from there. */
    for (int64_t i = 0; job->correction && i < n; i += VEC_CHUNK) {
        int64_t count = n - i < VEC_CHUNK ? n - i : VEC_CHUNK;
        convert_to_f32((const char *)job->correction->data + (size_t)i * tn_dtype_size(job->correction->dtype),
                       job->correction->dtype, chunk, count);
        vec_add(choice + i, chunk, count);
        for (int64_t c = i; c < i + count; c++) /* infinite ones of both signs: NaN says that it is taken */
            choice[c] = isnan(choice[c]) ? -INFINITY : choice[c];
    }
    if (job->groups > 1)
        route_limit_groups(job, choice, chunk);
    for (int64_t j = 0; j < job->top_k; j++) {
        int64_t best = route_best(choice, n);
        experts[j] = (int32_t)best;
        scores[j] = score[best];
        choice[best] = NAN;
    }
}

static void route_tokens(void *ctx, int64_t begin, int64_t end, int32_t thread)
{
    const route_job *job = ctx;
    (void)thread;
    float weights[VEC_CHUNK];
    int32_t experts[VEC_CHUNK];
    for (int64_t token = begin; token < end; token++) {
        moe_route_choose(job, token, experts, weights);
        memcpy(rows_at(job->experts, token), experts, (size_t)job->top_k * sizeof *experts); /* at any address */
        if (job->score == TN_SCORE_SPARSEMIXER)
            moe_route_sparse(job, token, experts, weights);
        route_weigh(job, experts, weights);
        convert_from_f32(weights, job->weights->dtype, rows_at(job->weights, token), job->top_k);
    }
}

static tn_status route_check(const route_job *job, tn_error *err)
{
    const char *path = job->site->path;
    if (job->score < TN_SCORE_SOFTMAX || job->score > TN_SCORE_SPARSEMIXER || job->top_k < 1 ||
        job->top_k > job->expert_count || job->top_k > VEC_CHUNK || job->groups < 1 || job->groups > VEC_CHUNK ||
        job->expert_count % job->groups || job->top_groups < 1 ||
        job->top_k > job->top_groups * (job->expert_count / job->groups))
        return tn_fail(err, TN_E_INTERNAL, path,
                       "cannot choose %" PRId64 " of %" PRId64 " experts in %" PRId64 " of %" PRId64
                       " groups; report this defect",
                       job->top_k, job->expert_count, job->top_groups, job->groups);
    for (int64_t e = 0; job->correction && e < job->expert_count; e++) {
        float bias;
        convert_to_f32((const char *)job->correction->data + (size_t)e * tn_dtype_size(job->correction->dtype),
                       job->correction->dtype, &bias, 1);
        if (isnan(bias))
            return tn_fail(err, TN_E_INPUT, path,
                           "the correction bias of expert %" PRId64 " is not a number; the checkpoint is damaged", e);
    }
    return TN_OK;
}

tn_status moe_route_scores(route_job *job, tn_error *err)
{
    tn_status status = route_check(job, err);
    if (status != TN_OK)
        return status;
    atomic_init(&job->bad, job->tokens);
    tn_parallel_for((job->tokens + ROUTE_TILE - 1) / ROUTE_TILE, gemm_grain(ROUTE_TILE, job->expert_count, job->hidden),
                    route_products, job);
    long long bad = atomic_load(&job->bad);
    if (bad < job->tokens)
        return tn_fail(err, TN_E_INPUT, job->site->path,
                       "the router's scores of token %lld are not numbers; check the weights, or use another dtype",
                       bad);
    return TN_OK;
}

tn_status moe_route_forward(const tn_call *call, tn_error *err)
{
    route_job job;
    if (!moe_route_shape(call, call->out[1].shape[1], &job))
        return tn_fail(err, TN_E_INTERNAL, call->site->path, "a router without its weight; report this defect");
    moe_route_layout(&job, call->scratch);
    tn_status status = moe_route_scores(&job, err);
    if (status == TN_OK)
        tn_parallel_for(job.tokens, rows_grain(job.expert_count * job.top_k), route_tokens, &job);
    return status;
}
