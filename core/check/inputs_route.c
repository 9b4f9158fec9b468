/* Tokens for a router. Two implementations that round differently may pick different experts where the last chosen and
 * the first rejected one are nearly equal, and then nothing about the results can be compared. So tokens are drawn
 * again until that pair differs by two per cent of its score, less than what most tokens have, and by more than what
 * rounding does to two logits of that size. */
#include "base/convert.h"
#include "check/inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TRIES = 24 };
static const double MARGIN = 0.02;

typedef struct router {
    const tn_site *site;
    int64_t hidden, experts, top_k;
    double rounding, largest; /* of two logits in units of their size; 0: they stay f32. The largest logit */
    float *weight, *x;        /* [E,H], [H]                                                                */
    float *bias, *correction;
    double *logit, *score; /* [E] */
    double *rank, *sorted; /* [E], of which one for each group is used */
} router;

static tn_status open_vector(const tn_param *param, int64_t count, float **out)
{
    if (param->count == 0)
        return TN_OK;
    *out = malloc((size_t)count * sizeof **out);
    if (!*out)
        return TN_E_MEMORY;
    convert_to_f32(param->tensors[0].data, param->tensors[0].dtype, *out, count);
    return TN_OK;
}

static void router_close(router *r)
{
    free(r->weight);
    free(r->x);
    free(r->bias);
    free(r->correction);
    free(r->logit);
    free(r->score);
    free(r->rank);
    free(r->sorted);
}

/* Softmax keeps the order of logits, which are rounded to the site's type. */
static double rounding_of(const tn_site *site)
{
    bool wide = site->features & TN_HAS_F32_ROUTER || site->meaning[TN_AXIS_SCORE] == TN_SCORE_SIGMOID;
    int64_t dtype = site->meaning[TN_AXIS_DTYPE];
    return wide || dtype == TN_F32 ? 0 : dtype == TN_BF16 ? 0x1p-7 : 0x1p-10;
}

static tn_status router_open(router *r, const tn_site *site, tn_error *err)
{
    *r = (router){.site = site,
                  .hidden = site->dim[TN_DIM_HIDDEN],
                  .experts = site->dim[TN_DIM_EXPERTS],
                  .top_k = site->dim[TN_DIM_TOP_K],
                  .rounding = rounding_of(site)};
    r->x = malloc((size_t)r->hidden * sizeof *r->x);
    r->logit = malloc((size_t)r->experts * sizeof *r->logit);
    r->score = malloc((size_t)r->experts * sizeof *r->score);
    r->rank = malloc((size_t)r->experts * sizeof *r->rank);
    r->sorted = malloc((size_t)r->experts * sizeof *r->sorted);
    tn_status status = r->x && r->logit && r->score && r->rank && r->sorted ? TN_OK : TN_E_MEMORY;
    if (status == TN_OK)
        status = open_vector(&site->param[TN_ROLE_ROUTER], r->experts * r->hidden, &r->weight);
    if (status == TN_OK)
        status = open_vector(&site->param[TN_ROLE_ROUTER_BIAS], r->experts, &r->bias);
    if (status == TN_OK)
        status = open_vector(&site->param[TN_ROLE_CORRECTION_BIAS], r->experts, &r->correction);
    if (status == TN_OK && r->weight)
        return TN_OK;
    router_close(r);
    if (status == TN_OK)
        return tn_fail(err, TN_E_INTERNAL, site->path, "the site has no router weight");
    return tn_fail(err, status, site->path, "out of memory while checking a kernel; free some memory");
}

/* What experts are chosen by. Softmax keeps the order of logits, and a difference of logits is a ratio of scores. */
static void router_score(router *r)
{
    double largest = -INFINITY;
    for (int64_t e = 0; e < r->experts; e++) {
        const float *w = r->weight + e * r->hidden;
        float sum = r->bias ? r->bias[e] : 0;
        const float *x = r->x;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < r->hidden; i++)
            sum += w[i] * x[i];
        r->logit[e] = sum;
        largest = sum > largest ? sum : largest;
    }
    r->largest = largest;
    bool sigmoid = r->site->meaning[TN_AXIS_SCORE] == TN_SCORE_SIGMOID;
    for (int64_t e = 0; e < r->experts; e++) {
        double l = r->logit[e];
        r->score[e] = (sigmoid ? 1 / (1 + exp(-l)) : exp(l - largest)) + (r->correction ? r->correction[e] : 0);
    }
}

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

static bool is_clear(const router *r, double last, double next)
{
    double logit = r->rounding > 0 && last > 0 ? r->largest + log(last) : 0;
    return last - next >= fmax(MARGIN, r->rounding * fabs(logit)) * fabs(last);
}

/* Leaves the scores of experts in the best groups, and 0 or minus infinity of the others, as the router does. False:
 * which groups these are is not clear. */
static bool limit_groups(router *r)
{
    bool sigmoid = r->site->meaning[TN_AXIS_SCORE] == TN_SCORE_SIGMOID;
    int64_t groups = r->site->dim[TN_DIM_GROUPS], top = r->site->dim[TN_DIM_TOP_GROUPS], size = r->experts / groups;
    bool pairs = sigmoid || (r->site->features & TN_HAS_GROUP_PAIRS);
    for (int64_t g = 0; g < groups; g++) {
        double first = -INFINITY, second = -INFINITY;
        for (int64_t i = g * size; i < (g + 1) * size; i++) {
            // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): router_score has set them all
            second = r->score[i] > first ? first : r->score[i] > second ? r->score[i] : second;
            first = r->score[i] > first ? r->score[i] : first;
        }
        r->rank[g] = r->sorted[g] = pairs && size > 1 ? first + second : first;
    }
    if (top >= groups)
        return true;
    qsort(r->sorted, (size_t)groups, sizeof *r->sorted, descending);
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = g * size; r->rank[g] < r->sorted[top - 1] && i < (g + 1) * size; i++)
            r->score[i] = sigmoid ? -INFINITY : 0;
    return is_clear(r, r->sorted[top - 1], r->sorted[top]);
}

/* The weights of TN_SCORE_SPARSEMIXER depend on the order of the chosen ones, too, and on who is near them. */
static bool sparse_is_clear(router *r)
{
    double margin = r->site->num[TN_NUM_MARGIN];
    router_score(r);
    memcpy(r->rank, r->logit, (size_t)r->experts * sizeof *r->rank);
    qsort(r->rank, (size_t)r->experts, sizeof *r->rank, descending);
    for (int64_t j = 0; j < r->top_k; j++) {
        double m = r->rank[j];
        if (j + 1 < r->experts && m - r->rank[j + 1] < MARGIN)
            return false;
        for (int64_t e = 0; e < r->experts; e++) {
            double below = (m - r->logit[e]) / fmax(fabs(r->logit[e]), m);
            if (fabs(below - margin) < margin / 2)
                return false;
        }
    }
    return true;
}

static bool router_is_clear(router *r)
{
    bool limited = r->site->features & TN_HAS_GROUPS;
    if (r->site->meaning[TN_AXIS_SCORE] == TN_SCORE_SPARSEMIXER)
        return sparse_is_clear(r);
    if (r->top_k >= r->experts && !limited)
        return true;
    router_score(r);
    if (limited && !limit_groups(r))
        return false;
    if (r->top_k >= r->experts)
        return true;
    qsort(r->score, (size_t)r->experts, sizeof *r->score, descending);
    return is_clear(r, r->score[r->top_k - 1], r->score[r->top_k]);
}

tn_status inputs_find_unclear(const tn_site *site, const tn_tensor *x, bool *skip, tn_error *err)
{
    router r;
    tn_status status = router_open(&r, site, err);
    for (int64_t t = 0; t < x->shape[0] && status == TN_OK; t++) {
        const char *row = (const char *)x->data + t * x->stride[0] * (int64_t)tn_dtype_size(x->dtype);
        convert_to_f32(row, x->dtype, r.x, r.hidden);
        skip[t] = !router_is_clear(&r);
    }
    if (status == TN_OK)
        router_close(&r);
    return status;
}

/* A row around `base`, or anywhere where that is NULL; as the tensor's type has it. */
static void draw_row(router *r, const float *base, tn_dtype dtype, char *row, random_state *random)
{
    static const float AROUND = 0.05f;
    for (int64_t i = 0; i < r->hidden; i++)
        r->x[i] = base ? base[i] + AROUND * random_nearly_normal(random) : random_nearly_normal(random);
    convert_from_f32(r->x, dtype, row, r->hidden);
    convert_to_f32(row, dtype, r->x, r->hidden);
}

/* A row for which the choice is clear; false: none was found. */
static bool draw_clear(router *r, const float *base, tn_dtype dtype, char *row, random_state *random)
{
    for (int tries = 0; tries < TRIES; tries++) {
        draw_row(r, base, dtype, row, random);
        if (router_is_clear(r))
            return true;
    }
    return false;
}

/* All experts tie there. That is told by what was chosen; where experts follow, they make nothing of nothing. */
static bool clear_row(router *r, char *row, size_t bytes)
{
    memset(row, 0, bytes);
    memset(r->x, 0, (size_t)r->hidden * sizeof *r->x);
    return r->site->op == TN_OP_MOE_BLOCK || router_is_clear(r);
}

/* x as the profile has it; returns how many that should be are not clear. */
static int64_t draw_tokens(router *r, tn_tensor *x, inputs_profile profile, bool *skip, float *base,
                           random_state *random)
{
    enum { ZERO = 7 };
    size_t bytes = (size_t)r->hidden * tn_dtype_size(x->dtype);
    int64_t skipped = 0;
    for (int64_t t = 0; t < x->shape[0]; t++) {
        char *row = (char *)x->data + (size_t)t * bytes;
        if (profile == INPUTS_SCALED && t % ZERO == 2) {
            skip[t] = !clear_row(r, row, bytes);
            continue;
        }
        bool crowded = profile == INPUTS_CROWDED && t > 0 && t % 2 == 0 && !skip[0];
        skip[t] = !draw_clear(r, crowded ? base : NULL, x->dtype, row, random);
        skipped += skip[t];
        if (t == 0)
            memcpy(base, r->x, (size_t)r->hidden * sizeof *base);
    }
    return skipped;
}

tn_status inputs_draw_routed(const tn_site *site, tn_tensor *x, inputs_profile profile, bool *skip,
                             random_state *random, tn_error *err)
{
    router r;
    tn_status status = router_open(&r, site, err);
    if (status != TN_OK)
        return status;
    float *base = calloc((size_t)r.hidden + 1, sizeof *base);
    int64_t skipped = base ? draw_tokens(&r, x, profile, skip, base, random) : 0;
    router_close(&r);
    if (!base)
        return tn_fail(err, TN_E_MEMORY, site->path, "out of memory while checking a kernel; free some memory");
    free(base);
    if (2 * skipped > x->shape[0])
        return tn_fail(
            err, TN_DECLINED, site->path,
            "cannot be checked: its router scores nearly the same for the last chosen and the first rejected expert");
    return TN_OK;
}
