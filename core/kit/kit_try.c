/* An implementation at one made-up site: forward. Eager computes here, the kernel in children. */
#include "kit/kit_try.h"

#include "base/text.h"
#include "op/op.h"

#include <stdlib.h>
#include <string.h>

/* Each case three times on one thread (at the end of its memory; at the start, rows apart and in place; the first
 * again) and once on every other team. */
enum { RUNS_ALONE = 3 };

/* Operations of the largest call: plain C under a sanitizer is done with them in a second. */
static const double MOST_WORK = 3e7, MOST_WORK_QUICK = 3e6;

/* By tokens: what fails is told with few. 600 rows are more than a team, or a block, takes at once. Those with outliers
 * come last, because gradients go without them: sums over tokens of one large column cancel to next to nothing. */
static const check_case all_cases[KIT_CASES] = {
    {.batch = 1, .tokens = 0},
    {.batch = 1, .tokens = 1},
    {.batch = 2, .tokens = 1},
    {.batch = 1, .tokens = 3},
    {.batch = 1, .tokens = 19, .profile = INPUTS_SCALED},
    {.batch = 2, .tokens = 33, .profile = INPUTS_SCALED},
    {.batch = 1, .tokens = 600},
    {.batch = 1, .tokens = 19, .profile = INPUTS_OUTLIERS, .seed = 1},
    {.batch = 3, .tokens = 50, .profile = INPUTS_OUTLIERS},
};

/* ---- what both directions share ------------------------------------------------------------------------------ */

tn_status kit_try_wrong(const kit_try *k, const fenced_run *run, int32_t team, const char *what, const char *detail,
                        tn_error *err)
{
    return tn_fail(err, TN_E_VERIFY, k->site->path, "%s: %s (%s), %lld tokens, %d thread%s",
                   run->wanted ? "backward" : "forward", what, detail, (long long)run->in->tokens, team,
                   team == 1 ? "" : "s");
}

const char *kit_try_why_bits(int32_t team, bool after_other)
{
    return team == 1     ? "other bits in the same call made again"
           : after_other ? "other bits on more threads, after a call with other weights, than on one"
                         : "other bits on more threads than on one";
}

void kit_try_note(kit_try *k, const compare_figures *figures, int64_t tokens)
{
    if (figures->worst <= k->figures.worst)
        return;
    k->figures = *figures;
    k->worst_tokens = tokens;
}

static double work_of(const fenced_run *runs, size_t count)
{
    double work = 0;
    for (size_t i = 0; i < count; i++)
        work += inputs_operations(runs[i].in->call.site, runs[i].in->tokens);
    return work;
}

tn_status kit_try_execute(const kit_try *k, fenced_run *runs, size_t run_count, fenced_run *first, int32_t team,
                          tn_error *err)
{
    enum { BACKWARD_WORK = 3 };
    tn_error why = TN_ERROR_INIT;
    fenced_trial before = {.device = k->device,
                           .site = k->other,
                           .impl = k->impl,
                           .max_tokens = GRAPH_MAX_TOKENS,
                           .threads = team,
                           .runs = first,
                           .run_count = 1};
    fenced_trial t = before;
    t.before = first ? &before : NULL;
    t.site = k->site;
    t.team = team;
    t.seconds = CHECK_LEAST_SECONDS + BACKWARD_WORK * work_of(runs, run_count) / CHECK_SLOWEST;
    t.runs = runs;
    t.run_count = run_count;
    tn_status status = fenced_execute(&t, &why);
    if (status == TN_OK)
        return TN_OK;
    if (status == TN_DECLINED)
        return tn_fail(err, status, k->site->path, "%s", why.message);
    if (status != TN_E_MEMORY)
        status = TN_E_KERNEL;
    return tn_fail(err, status, k->site->path, "%s, %d thread%s", why.message, team, team == 1 ? "" : "s");
}

/* ---- cases ------------------------------------------------------------------------------------------------------ */

static tn_status open_cases(kit_try *k, tn_error *err)
{
    tn_status status = TN_OK;
    double most = k->quick ? MOST_WORK_QUICK : MOST_WORK;
    for (size_t i = 0; i < KIT_CASES && status == TN_OK; i++) {
        kit_case *c = &k->cases[k->case_count];
        *c = (kit_case){.size = all_cases[i]};
        c->size.seed ^= k->seed;
        if (inputs_operations(k->site, c->size.batch * c->size.tokens) > most)
            continue;
        k->case_count++;
        k->gradient_cases += c->size.profile != INPUTS_OUTLIERS;
        k->most_tokens =
            c->size.batch * c->size.tokens > k->most_tokens ? c->size.batch * c->size.tokens : k->most_tokens;
        status = check_reference_open(&c->eager, k->device, k->site, k->impl->optional_outputs, c->size, err);
    }
    return status;
}

static void close_cases(kit_try *k)
{
    for (size_t i = 0; i < k->case_count; i++)
        check_reference_close(&k->cases[i].eager);
    k->case_count = 0;
}

/* ---- forward ------------------------------------------------------------------------------------------------------
 */

static tn_status open_run(fenced_run *run, const inputs *in, bool apart, tn_error *err)
{
    *run = (fenced_run){.in = in,
                        .side = apart ? FENCE_START : FENCE_END,
                        .padded = apart,
                        .in_place = apart ? op_find(in->call.op)->in_place : 0};
    return fenced_open_run(run, err);
}

static tn_status same_bits(const kit_try *k, const fenced_run *a, const fenced_run *b, int32_t team, const char *what,
                           tn_error *err)
{
    char where[120], detail[160];
    for (int i = 0; i < a->call.out_count; i++)
        if (!compare_bits(&a->call.out[i], &b->call.out[i], where, sizeof where)) {
            text_cut(detail, sizeof detail, "output %d, %s", i, where);
            return kit_try_wrong(k, b, team, what, detail, err);
        }
    return TN_OK;
}

static tn_status right_numbers(kit_try *k, const kit_case *c, const fenced_run *run, int32_t team, tn_error *err)
{
    double ulps = compare_ulps(&k->impl->tolerance, (tn_dtype)k->site->meaning[TN_AXIS_DTYPE]);
    compare_figures figures = {0};
    char what[96];
    compare_call(&c->eager.call, &run->call, ulps, c->eager.in.skip, &figures);
    if (figures.worst <= 1) {
        kit_try_note(k, &figures, run->in->tokens);
        return TN_OK;
    }
    text_cut(what, sizeof what, "wrong numbers, %.3g times the tolerance of %g ulps", figures.worst, ulps);
    return kit_try_wrong(k, run, team, what, figures.detail, err);
}

static tn_status compare_alone(kit_try *k, const fenced_run *runs, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < k->case_count && status == TN_OK; i++) {
        const fenced_run *r = &runs[RUNS_ALONE * i];
        for (int j = 0; j < RUNS_ALONE && status == TN_OK; j++)
            status = right_numbers(k, &k->cases[i], &r[j], 1, err);
        if (status == TN_OK)
            status = same_bits(k, &r[0], &r[2], 1, kit_try_why_bits(1, false), err);
        if (status == TN_OK)
            status = same_bits(k, &r[0], &r[1], 1, "other bits in memory elsewhere, rows apart and in place", err);
    }
    return status;
}

static tn_status forward_alone(kit_try *k, fenced_run *runs, tn_error *err)
{
    tn_status status = TN_OK;
    size_t count = 0;
    for (size_t i = 0; i < k->case_count && status == TN_OK; i++) {
        for (int j = 0; j < RUNS_ALONE && status == TN_OK; j++)
            status = open_run(&runs[count++], &k->cases[i].eager.in, j == 1, err);
        k->cases[i].forward = &runs[RUNS_ALONE * i];
    }
    if (status == TN_OK)
        status = kit_try_execute(k, runs, count, NULL, 1, err);
    return status == TN_OK ? compare_alone(k, runs, err) : status;
}

/* On a team; the last one works behind a call with other weights. */
static tn_status forward_team(kit_try *k, size_t team, fenced_run *runs, fenced_run *first, tn_error *err)
{
    tn_status status = TN_OK;
    bool after_other = team + 1 == k->team_count;
    int32_t threads = k->teams[team];
    inputs in = {0};
    if (after_other) {
        status = inputs_draw(&in, k->other, 1, 2, k->seed, err);
        if (status == TN_OK)
            status = open_run(first, &in, false, err);
    }
    for (size_t i = 0; i < k->case_count && status == TN_OK; i++)
        status = open_run(&runs[i], &k->cases[i].eager.in, team % 2 == 0, err);
    if (status == TN_OK)
        status = kit_try_execute(k, runs, k->case_count, after_other ? first : NULL, threads, err);
    for (size_t i = 0; i < k->case_count && status == TN_OK; i++) {
        status = right_numbers(k, &k->cases[i], &runs[i], threads, err);
        if (status == TN_OK)
            status = same_bits(k, k->cases[i].forward, &runs[i], threads, kit_try_why_bits(threads, after_other), err);
    }
    fenced_close_run(first);
    for (size_t i = 0; i < k->case_count; i++)
        fenced_close_run(&runs[i]);
    inputs_close(&in);
    return status;
}

tn_status kit_try_site(kit_try *k, tn_error *err)
{
    enum { ALONE = RUNS_ALONE * KIT_CASES };
    fenced_run *runs = calloc(ALONE + KIT_CASES + 1, sizeof *runs);
    if (!runs)
        return check_no_memory(err);
    tn_status status = open_cases(k, err);
    if (status == TN_OK)
        status = forward_alone(k, runs, err);
    for (size_t team = 1; team < k->team_count && status == TN_OK; team++)
        status = forward_team(k, team, runs + ALONE, runs + ALONE + KIT_CASES, err);
    /* The gradient of a norm over one element cancels but for eps: what is left is rounding. */
    if (status == TN_OK && k->impl->backward && k->site->dim[TN_DIM_WIDTH] != 1)
        status = kit_try_gradients(k, err);
    for (size_t i = 0; i < ALONE; i++)
        fenced_close_run(&runs[i]);
    close_cases(k);
    free(runs);
    return status;
}
