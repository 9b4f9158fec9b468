/* Routers the obvious way. */
#include "routing.h"

#include <math.h>

static double f32_eps(void)
{
    return unit_roundoff(TN_F32);
}

static estimate sum_of(estimate a, estimate b)
{
    return estimate_rounded(TN_F32, (estimate){a.value + b.value, a.error + b.error});
}

static estimate difference(estimate a, estimate b)
{
    return sum_of(a, (estimate){-b.value, b.error});
}

static estimate quotient(estimate a, estimate b)
{
    double least = fmax(fabs(b.value) - b.error, 0x1p-126);
    return estimate_rounded(TN_F32,
                            (estimate){a.value / b.value, (a.error + fabs(a.value / b.value) * b.error) / least});
}

static estimate times(estimate a, estimate b)
{
    return estimate_product(TN_F32, a, b);
}

/* softmax over n values, in place: each may be off, in its own exponential and in the sum. */
static void softmax(estimate *x, int64_t n)
{
    double largest = x[0].value, error = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, x[i].value);
        error = fmax(error, x[i].error);
    }
    for (int64_t i = 0; i < n; i++)
        sum += exp(x[i].value - largest);
    for (int64_t i = 0; i < n; i++) {
        double p = exp(x[i].value - largest) / sum;
        /* The difference from the largest is rounded, too. */
        double off = 2 * error + f32_eps() * fabs(x[i].value - largest);
        x[i] = (estimate){p, p * (expm1(off) + (8 + (double)n) * f32_eps()) + 0x1p-120};
    }
}

static void scores(const reference_router *r, const double *x, estimate *score)
{
    estimate exact[4096];
    for (int64_t i = 0; i < r->hidden; i++)
        exact[i] = estimate_exact(x[i]);
    for (int64_t e = 0; e < r->experts; e++) {
        score[e] = estimate_dot(TN_F32, exact, r->weight + e * r->hidden, 1, r->hidden, r->bias ? r->bias[e] : 0);
        if (!r->f32_logits)
            score[e] = estimate_rounded(r->dtype, score[e]);
        if (r->score == TN_SCORE_SIGMOID) {
            double s = 1 / (1 + exp(-score[e].value));
            double off = fmin(score[e].error / 4, s * expm1(score[e].error));
            score[e] = (estimate){s, off + 8 * f32_eps() * s};
        }
    }
    if (r->score == TN_SCORE_SOFTMAX)
        softmax(score, r->experts);
}

static bool clear_gap(estimate better, estimate worse)
{
    return better.value == worse.value || better.value - worse.value > better.error + worse.error;
}

/* The best n of count values, the first of equals, to `best`; false when another could be. */
static bool best_of(const estimate *values, int64_t count, int64_t n, int64_t *best)
{
    bool taken[ROUTING_EXPERTS] = {false}, clear = true;
    for (int64_t j = 0; j <= n && j < count; j++) {
        int64_t at = -1;
        for (int64_t i = 0; i < count; i++)
            if (!taken[i] && (at < 0 || values[i].value > values[at].value))
                at = i;
        taken[at] = true;
        if (j > 0)
            clear = clear && clear_gap(values[best[j - 1]], values[at]);
        if (j < n)
            best[j] = at;
    }
    return clear;
}

/* A group is as good as its best, with sigmoid its two best; the others' experts do not take part. */
static bool limit_groups(const reference_router *r, estimate *choice)
{
    int64_t size = r->experts / r->groups, best[ROUTING_EXPERTS];
    estimate rank[ROUTING_EXPERTS];
    bool kept[ROUTING_EXPERTS] = {false};
    for (int64_t g = 0; g < r->groups; g++) {
        const estimate *in = choice + g * size;
        int64_t first = 0, second = -1;
        double error = 0;
        for (int64_t i = 0; i < size; i++) {
            error = fmax(error, in[i].error);
            first = in[i].value > in[first].value ? i : first;
        }
        for (int64_t i = 0; i < size; i++)
            if (i != first && (second < 0 || in[i].value > in[second].value))
                second = i;
        rank[g] = (estimate){in[first].value, error};
        if (r->score == TN_SCORE_SIGMOID && size > 1)
            rank[g] = sum_of(rank[g], (estimate){in[second].value, error});
    }
    bool clear = best_of(rank, r->groups, r->top_groups, best);
    for (int64_t i = 0; i < r->top_groups; i++)
        kept[best[i]] = true;
    for (int64_t e = 0; e < r->experts; e++)
        if (!kept[e / size])
            choice[e] = (estimate){r->score == TN_SCORE_SIGMOID ? -INFINITY : 0, 0};
    return clear;
}

/* The sum that weights are divided by, or 1. */
static estimate divisor(const reference_router *r, const estimate *v)
{
    estimate sum = estimate_exact(0);
    for (int64_t j = 0; j < r->top_k; j++)
        sum = sum_of(sum, v[j]);
    if (r->score == TN_SCORE_SIGMOID)
        sum = sum_of(sum, estimate_exact(1e-20));
    return r->renormalise ? sum : estimate_exact(1);
}

/* The chosen scores, or their softmax. */
static void chosen(const reference_router *r, const reference_routes *to, estimate *v)
{
    for (int64_t j = 0; j < r->top_k; j++)
        v[j] = to->score[to->id[j]];
    if (r->score == TN_SCORE_TOPK_SOFTMAX)
        softmax(v, r->top_k);
}

bool reference_route(const reference_router *r, const double *x, reference_routes *to)
{
    estimate choice[ROUTING_EXPERTS];
    bool clear = true;
    scores(r, x, to->score);
    for (int64_t e = 0; e < r->experts; e++) {
        choice[e] = to->score[e];
        if (r->correction)
            choice[e] = sum_of(choice[e], estimate_exact(r->correction[e]));
    }
    if (r->groups > 1)
        clear = limit_groups(r, choice);
    clear = best_of(choice, r->experts, r->top_k, to->id) && clear;
    chosen(r, to, to->weight);
    estimate sum = divisor(r, to->weight);
    for (int64_t j = 0; j < r->top_k; j++) {
        to->weight[j] = quotient(to->weight[j], sum);
        if (r->scale != 0)
            to->weight[j] = times(to->weight[j], estimate_exact((double)(float)r->scale));
    }
    return clear;
}

void reference_route_grad(const reference_router *r, const reference_routes *to, const estimate *upstream,
                          estimate *dlogits)
{
    estimate v[ROUTING_TOP_K], dv[ROUTING_TOP_K], mean = estimate_exact(0), through = estimate_exact(0);
    estimate scale = estimate_exact(r->scale != 0 ? (double)(float)r->scale : 1);
    chosen(r, to, v);
    estimate sum = divisor(r, v), factor = quotient(scale, sum);
    for (int64_t j = 0; j < r->top_k && r->renormalise; j++)
        mean = sum_of(mean, times(upstream[j], quotient(v[j], sum)));
    for (int64_t j = 0; j < r->top_k; j++) {
        dv[j] = times(factor, difference(upstream[j], mean));
        through = sum_of(through, times(dv[j], v[j]));
    }
    if (r->renormalise) /* by its value; what a kernel may compute instead is within the error */
        through.value = 0;
    for (int64_t e = 0; e < r->experts; e++)
        dlogits[e] = r->score == TN_SCORE_SOFTMAX && !r->renormalise
                         ? times(to->score[e], (estimate){-through.value, through.error})
                         : estimate_exact(0);
    for (int64_t j = 0; j < r->top_k; j++) {
        estimate *dl = &dlogits[to->id[j]];
        if (r->score == TN_SCORE_SIGMOID)
            *dl = times(times(dv[j], v[j]), difference(estimate_exact(1), v[j]));
        else
            *dl = times(v[j], difference(dv[j], through));
    }
}
