/* What measured times say: pure functions of them, so that what is remembered decides as it did when it was measured.
 * A kernel must gain clearly: the middle halves of its times and of those without it do not overlap. Where they do,
 * nothing is gained that anybody would notice, and what is there without plugins stays. */
#include "base/text.h"
#include "select/measure.h"
#include "select/plan.h"

#include <stdlib.h>
#include <string.h>

/* Of a wall clock's seconds, those that a processor's queue may cost before the machine counts as busy. */
static const double BUSY_SHARE = 0.05;

enum { ALL_SIZES = (1 << GRAPH_SIZES) - 1 };

bool measure_is_busy(double waited, double seconds)
{
    return waited > BUSY_SHARE * seconds;
}

/* ---- one kernel at one shape --------------------------------------------------------------------------------- */

/* Clearly slower at every size? */
static bool is_slower(const plan_times *t)
{
    bool slower = true;
    for (int size = 0; size < GRAPH_SIZES && slower; size++)
        slower = timing_compare(&t->kernel[size], &t->without[size]) > 0;
    return slower;
}

static void settle_fit(plan_fit *fit)
{
    char times[PLAN_TEXT];
    fit->not_at = fit->idle_at;
    for (int size = 0; fit->times.known && size < GRAPH_SIZES; size++)
        if (timing_compare(&fit->times.kernel[size], &fit->times.without[size]) >= 0)
            fit->not_at |= 1u << size;
    if (fit->not_at != ALL_SIZES)
        return;
    plan_times_text(fit, times);
    fit->takes = false;
    text_cut(fit->reason, sizeof fit->reason, "measured: %s: %s",
             is_slower(&fit->times) ? "slower than what it would replace"
             : fit->idle_at         ? "no clear gain in a whole step"
                                    : "no clear gain over what it would replace",
             times);
}

void measure_settle(measure_entry *entry)
{
    for (size_t i = 0; i < entry->fit_count; i++)
        settle_fit(entry->fits[i].fit);
}

void measure_idle(plan_fit *fit, int size)
{
    fit->idle_at |= 1u << size;
    settle_fit(fit);
}

/* Where the second look does not find the kernel faster either, a third will not find it clearly faster. */
bool measure_is_open(const timing_spread *kernel, const timing_spread *without, int looks)
{
    return timing_compare(kernel, without) == 0 && (looks < 2 || kernel->median < without->median);
}

/* A run computes as many tokens one by one as in prompts of either size: what a token costs at each is added up. */
timing_spread plan_share(const plan_fit *fit)
{
    const plan_times *t = &fit->times;
    timing_spread sum = {0};
    double without = 0;
    for (int size = 0; t->known && size < GRAPH_SIZES; size++) {
        double middle = t->without[size].median, tokens = (double)t->tokens[size];
        bool used = !(fit->not_at >> size & 1);
        without += middle / tokens;
        sum.low += (used ? t->kernel[size].low : middle) / tokens;
        sum.median += (used ? t->kernel[size].median : middle) / tokens;
        sum.high += (used ? t->kernel[size].high : middle) / tokens;
    }
    return without > 0 ? (timing_spread){sum.low / without, sum.median / without, sum.high / without}
                       : (timing_spread){0};
}

/* ---- all kernels in a whole step ----------------------------------------------------------------------------- */

/* Of the rounds, which stay in their order. */
static timing_spread spread_of(const double *seconds, int rounds)
{
    double sorted[MEASURE_ROUNDS];
    memcpy(sorted, seconds, sizeof sorted);
    return timing_spread_of(sorted, rounds);
}

bool measure_step_gains(const measure_step *step, const measure_turns *turns, size_t shapes, bool *keeps)
{
    double whole[2][MEASURE_ROUNDS] = {0};
    for (size_t i = 0; i < shapes; i++) {
        timing_spread without = spread_of(turns[i].seconds[0], step->rounds),
                      with = spread_of(turns[i].seconds[1], step->rounds);
        keeps[i] = turns[i].contested && with.median < without.median;
        for (int r = 0; r < step->rounds; r++) {
            whole[0][r] += turns[i].scale * turns[i].seconds[0][r];
            whole[1][r] += turns[i].scale * turns[i].seconds[keeps[i]][r];
        }
    }
    timing_spread without = spread_of(whole[0], step->rounds), with = spread_of(whole[1], step->rounds);
    with.low += step->look.low;
    with.high += step->look.high;
    return timing_compare(&with, &without) < 0;
}

/* ---- in words ------------------------------------------------------------------------------------------------- */

/* "35.3 us" */
static void duration(double seconds, char out[24])
{
    bool micro = seconds < 1e-3;
    text_cut(out, 24, "%.3g %s", seconds * (micro ? 1e6 : 1e3), micro ? "us" : "ms");
}

/* Why a size is left to what is there without the kernel. */
static const char *why_not(const plan_fit *fit, int size)
{
    if (!(fit->not_at >> size & 1))
        return "";
    if (timing_compare(&fit->times.kernel[size], &fit->times.without[size]) > 0)
        return ", which is used";
    return fit->idle_at >> size & 1 ? ", used: no gain in a step" : ", used: no clear gain";
}

void plan_times_text(const plan_fit *fit, char *text)
{
    const plan_times *t = &fit->times;
    size_t used = 0;
    text[0] = '\0';
    for (int size = 0; t->known && size < GRAPH_SIZES; size++) {
        char with[24], without[24];
        duration(t->kernel[size].median, with);
        duration(t->without[size].median, without);
        used +=
            text_cut(text + used, PLAN_TEXT - used, "%s%lld token%s %s (without %s%s)", used ? ", " : "",
                     (long long)t->tokens[size], t->tokens[size] == 1 ? "" : "s", with, without, why_not(fit, size));
    }
    if (t->known && t->busy)
        text_cut(text + used, PLAN_TEXT - used, "; on a busy machine, not kept");
}
