/* Rounding or error? docs/numerics.md derives the rule. The yardstick is the model's own: how far its logits in 16 bits
 * are from those in f32, at each token, with no kernel. */
#include "op/op.h"
#include "verify/whole.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* In 16 bits: kernels round no more often than eager, so their distance is no larger but by chance; over all tokens,
 * and at one. */
static const double NARROW_ALL = 1.5, NARROW_ONE = 8;

/* In f32, units of rounding in a sum of n: about the root of n; so many times that for the worst token. */
static const double SPREAD = 4;

/* A kernel that grants itself more ulps than that does not compute in f32; it gets what it declares, at the largest of
 * a row, which is about three times the usual. */
static const double SHORT_ULPS = 4096, LARGEST_OF_ROW = 3;

/* The part of the tokens whose choice of experts rounding to 16 bits changes in a layer, at most. */
static const double CHANGED = 0.1;

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A sorted copy without NaN. Owned: free(). */
static double *sorted(const double *from, int64_t count, int64_t *left)
{
    double *to = malloc(((size_t)count + 1) * sizeof *to);
    *left = 0;
    for (int64_t i = 0; to && i < count; i++)
        if (!isnan(from[i]))
            to[(*left)++] = from[i];
    if (to)
        qsort(to, (size_t)*left, sizeof *to, ascending);
    return to;
}

/* The longest sum in the model: a row of a matrix, or the positions of attention. */
static int64_t longest_sum(const graph *g, int64_t window)
{
    int64_t longest = window;
    for (size_t i = 0; i < g->site_count; i++)
        for (int role = 0; role < TN_ROLE_MAX; role++) {
            const tn_param *p = &g->sites[i]->site.param[role];
            if (p->count > 0 && p->tensors[0].ndim == 2 && p->tensors[0].shape[1] > longest)
                longest = p->tensors[0].shape[1];
        }
    return longest;
}

static int64_t picking_sites(const graph *g)
{
    int64_t count = 0;
    for (size_t i = 0; i < g->site_count; i++)
        count += op_find(g->sites[i]->site.op)->picks;
    return count;
}

tn_status whole_rule_init(whole_rule *r, const tn_model *model, const whole_text *text, const double *yard,
                          tn_dtype narrow_dtype, double ulps, tn_error *err)
{
    const graph *g = model->target.graph;
    int64_t count, tokens = whole_run_count(text), layers = picking_sites(g);
    *r = (whole_rule){.narrow = model->dtype != TN_F32, .picks = layers > 0};
    double *all = sorted(yard, tokens, &count);
    if (!all)
        return whole_no_memory(err);
    bool usable = count > 0 && isfinite(all[count / 2]) && all[count / 2] > 0;
    if (usable) {
        r->median = all[count / 2];
        r->p90 = all[count * 9 / 10];
        r->largest = all[count - 1];
        while (!isfinite(r->largest))
            r->largest = all[--count - 1];
        r->p90 = fmin(r->p90, r->largest);
    }
    free(all);
    if (!usable)
        return tn_fail(err, TN_E_INPUT, model->folder,
                       "the model's logits in %s say nothing: they are not finite, or all the same without rounding",
                       tn_dtype_name(narrow_dtype));
    double scale = narrow_dtype == TN_BF16 ? 0x1p-16 : 0x1p-13; /* from the units of 16 bits to those of f32 */
    r->factor = scale * SPREAD * sqrt((double)longest_sum(g, text->window));
    if (ulps > SHORT_ULPS)
        r->factor = fmax(r->factor, scale * LARGEST_OF_ROW * ulps);
    r->changes = 2 + (int64_t)(2 * CHANGED * (double)(tokens * layers) * r->factor);
    return TN_OK;
}

/* ---- judging --------------------------------------------------------------------------------------------------- */

/* The worst token of those that can be compared, by its distance in units of its own yardstick. */
static double worst_token(const whole_rule *r, const double *yard, const double *each, int64_t count, int64_t *token)
{
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        double ratio = each[i] / (isfinite(yard[i]) ? fmax(yard[i], r->median) : r->largest);
        if (!isnan(ratio) && ratio > worst) {
            worst = ratio;
            *token = i;
        }
    }
    return worst;
}

static double rms_of(const double *each, const double *where, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(where[i]) && !isnan(each[i]))
            sum += each[i] * each[i];
    return sqrt(sum);
}

/* Few tokens may differ much where choices change: what most do counts. */
static double judge_picks(const whole_rule *r, const double *each, int64_t count)
{
    int64_t left;
    double *all = sorted(each, count, &left), worst = 0;
    if (!all)
        return NAN;
    if (left > 0 && r->narrow) {
        worst = all[left / 2] / (NARROW_ALL * r->median);
        if (left >= 64)
            worst = fmax(worst, all[left * 9 / 10] / (2 * NARROW_ALL * r->p90));
    } else if (left > 0) {
        int64_t at = left - 1 - (r->changes < left / 2 ? r->changes : left / 2);
        worst = fmax(all[left / 2] / (r->factor * r->median), all[at] / (r->factor * r->largest));
    }
    if (left > 0 && isinf(all[left - 1]))
        worst = INFINITY;
    free(all);
    return worst;
}

double whole_rule_worst(const whole_rule *r, const double *yard, const double *each, int64_t count, int64_t *token)
{
    *token = 0;
    double one = worst_token(r, yard, each, count, token);
    if (r->picks)
        return judge_picks(r, each, count);
    if (!r->narrow)
        return one / r->factor;
    double all = rms_of(each, yard, count), own = rms_of(yard, each, count);
    return fmax(one / NARROW_ONE, own > 0 ? all / (NARROW_ALL * own) : 0);
}
