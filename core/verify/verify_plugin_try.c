/* An implementation at one made-up site: forward. Eager computes here, the kernel in children. */
#include "verify/verify_plugin_try.h"

#include "base/text.h"
#include "check/cut.h"
#include "op/op.h"

#include <stdlib.h>
#include <string.h>

/* Each case three times on one thread (at the end of its memory; at the start, rows apart and in place; the first
 * again) and once on every other team. */
enum { RUNS_ALONE = 3 };

/* Operations of the largest call: plain C under a sanitizer is done with them in a second. */
static const double MOST_WORK = 3e7, MOST_WORK_QUICK = 3e6;

/* By tokens: what fails is told with few. 600 rows are more than a team, or a block, takes at once; 1100 keys and half
 * of 140 tokens for one expert are more than a block, too. Those with outliers come last, because gradients go without
 * them: sums over tokens of one large column cancel to next to nothing. */
static const check_case all_cases[TRY_CASES] = {
    {.batch = 1, .tokens = 0},
    {.batch = 1, .tokens = 1},
    {.batch = 2, .tokens = 1},
    {.batch = 1, .tokens = 3},
    {.batch = 1, .tokens = 19, .profile = INPUTS_SCALED},
    {.batch = 2, .tokens = 33, .profile = INPUTS_SCALED},
    {.batch = 1, .tokens = 2, .profile = INPUTS_CROWDED, .past = 1100},
    {.batch = 1, .tokens = 140, .profile = INPUTS_CROWDED},
    {.batch = 1, .tokens = 600},
    {.batch = 1, .tokens = 19, .profile = INPUTS_OUTLIERS, .seed = 1},
    {.batch = 3, .tokens = 50, .profile = INPUTS_OUTLIERS},
};

/* ---- making calls, and telling what went wrong ------------------------------------------------------------------ */

/* "forward: wrong numbers, ... (element), 19 tokens, 2 threads" */
static tn_status wrong(const verify_plugin_try *k, const fenced_run *run, const char *what, const char *detail,
                       tn_error *err)
{
    return tn_fail(err, TN_E_VERIFY, k->site->path, "forward: %s (%s), %lld tokens, %d thread%s", what, detail,
                   (long long)run->in->tokens, (int)run->team, run->team == 1 ? "" : "s");
}

static const char *why_bits(int32_t team, bool after_other)
{
    return team == 1     ? "other bits in the same call made again"
           : after_other ? "other bits on more threads, after a call with other weights, than on one"
                         : "other bits on more threads than on one";
}

/* Remembers the worst of figures. */
static void note(verify_plugin_try *k, const compare_figures *figures, int64_t tokens)
{
    if (figures->worst <= k->figures.worst)
        return;
    k->figures = *figures;
    k->worst_tokens = tokens;
}

/* What is wrong with the kernel, or with this process. */
static tn_status blame(const verify_plugin_try *k, tn_status status, const tn_error *why, tn_error *err)
{
    if (status == TN_OK)
        return TN_OK;
    if (status != TN_DECLINED && status != TN_E_MEMORY && status != TN_E_INTERNAL && status != TN_E_VERIFY)
        status = TN_E_KERNEL;
    return tn_fail(err, status, k->site->path, "%s", why->message);
}

static tn_status execute(const verify_plugin_try *k, fenced_run *runs, size_t run_count, int32_t team, tn_error *err)
{
    tn_error why = TN_ERROR_INIT;
    fenced_trial t = {.device = k->device,
                      .site = k->site,
                      .impl = k->impl,
                      .max_tokens = GRAPH_MAX_TOKENS,
                      .threads = team,
                      .runs = runs,
                      .run_count = run_count};
    return blame(k, fenced_execute(&t, &why), &why, err);
}

/* ---- cases ------------------------------------------------------------------------------------------------------ */

static tn_status open_cases(verify_plugin_try *k, tn_error *err)
{
    tn_status status = TN_OK;
    double most = k->quick ? MOST_WORK_QUICK : MOST_WORK;
    for (size_t i = 0; i < TRY_CASES && status == TN_OK; i++) {
        verify_plugin_case *c = &k->cases[k->case_count];
        *c = (verify_plugin_case){.size = all_cases[i]};
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

static void close_cases(verify_plugin_try *k)
{
    for (size_t i = 0; i < k->case_count; i++)
        check_reference_close(&k->cases[i].eager);
    k->case_count = 0;
}

/* ---- forward ---------------------------------------------------------------------------------------------------- */

static tn_status same_bits(const verify_plugin_try *k, const fenced_run *a, const fenced_run *b, const char *what,
                           tn_error *err)
{
    char detail[160];
    return check_same_bits(a, b, detail, sizeof detail) ? TN_OK : wrong(k, b, what, detail, err);
}

static tn_status right_numbers(verify_plugin_try *k, const verify_plugin_case *c, const fenced_run *run, tn_error *err)
{
    double ulps = compare_ulps(&k->impl->tolerance, (tn_dtype)k->site->meaning[TN_AXIS_DTYPE]);
    compare_figures figures = {0};
    char what[96];
    compare_call(&c->eager.call, &run->call, ulps, c->eager.in.skip, &figures);
    if (figures.worst <= 1) {
        note(k, &figures, run->in->tokens);
        return TN_OK;
    }
    text_cut(what, sizeof what, "wrong numbers, %.3g times the tolerance of %g ulps", figures.worst, ulps);
    return wrong(k, run, what, figures.detail, err);
}

static tn_status compare_alone(verify_plugin_try *k, const fenced_run *runs, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < k->case_count && status == TN_OK; i++) {
        const fenced_run *r = &runs[RUNS_ALONE * i];
        for (int j = 0; j < RUNS_ALONE && status == TN_OK; j++)
            status = right_numbers(k, &k->cases[i], &r[j], err);
        if (status == TN_OK)
            status = same_bits(k, &r[0], &r[2], why_bits(1, false), err);
        if (status == TN_OK)
            status = same_bits(k, &r[0], &r[1], "other bits in memory elsewhere, rows apart and in place", err);
    }
    return status;
}

static tn_status forward_alone(verify_plugin_try *k, fenced_run *runs, tn_error *err)
{
    tn_status status = TN_OK;
    size_t count = 0;
    for (size_t i = 0; i < k->case_count && status == TN_OK; i++) {
        for (int j = 0; j < RUNS_ALONE && status == TN_OK; j++)
            status = check_open_run(&runs[count++], &k->cases[i].eager.in, NULL,
                                    (check_manner){.apart = j == 1, .team = 1}, err);
        k->cases[i].forward = &runs[RUNS_ALONE * i];
    }
    if (status == TN_OK)
        status = execute(k, runs, count, 1, err);
    return status == TN_OK ? compare_alone(k, runs, err) : status;
}

/* Every third case, at a part of the site. */
static tn_status compare_cut(verify_plugin_try *k, const cut *c, inputs *in, fenced_run *runs, tn_error *err)
{
    enum { STEP = 3 };
    char detail[120];
    tn_status status = TN_OK;
    size_t count = 0;
    for (size_t i = 1; i < k->case_count && status == TN_OK; i += STEP, count++) {
        status = cut_inputs(c, &k->cases[i].eager.in, &in[count], err);
        if (status == TN_OK)
            status = check_open_run(&runs[count], &in[count], NULL, (check_manner){.team = 1}, err);
    }
    if (status == TN_OK)
        status = execute(k, runs, count, 1, err);
    for (size_t i = 0; i < count && status == TN_OK; i++) {
        const tn_call whole = cut_call(c, &k->cases[1 + STEP * i].forward->call);
        for (int j = 0; j < whole.out_count; j++)
            k->apart |= !compare_bits(&whole.out[j], &runs[i].call.out[j], detail, sizeof detail);
    }
    return status;
}

/* What it gives for some rows or heads alone: no fault, but no kernel for ranks that have them. */
static tn_status forward_cut(verify_plugin_try *k, tn_error *err)
{
    inputs in[TRY_CASES] = {0};
    fenced_run *runs = calloc(TRY_CASES, sizeof *runs);
    cut c;
    tn_status status = runs ? TN_OK : check_no_memory(err);
    if (cut_open(&c, k->site, k->impl, CUT_PARTS - 1) && status == TN_OK)
        status = compare_cut(k, &c, in, runs, err);
    for (size_t i = 0; i < TRY_CASES; i++) {
        inputs_close(&in[i]);
        if (runs)
            fenced_close_run(&runs[i]);
    }
    cut_close(&c);
    free(runs);
    return status == TN_DECLINED ? TN_OK : status;
}

/* On a team; the last one works behind a call with other weights, which comes first. */
static tn_status forward_team(verify_plugin_try *k, size_t team, fenced_run *runs, tn_error *err)
{
    tn_status status = TN_OK;
    bool after_other = team + 1 == k->team_count;
    check_manner manner = {.apart = team % 2 == 0, .team = k->teams[team]};
    fenced_run *own = runs + after_other;
    inputs in = {0};
    if (after_other) {
        status = inputs_draw(&in, k->other, 1, 2, k->seed, err);
        if (status == TN_OK)
            status = check_open_run(runs, &in, NULL, (check_manner){.team = manner.team}, err);
    }
    for (size_t i = 0; i < k->case_count && status == TN_OK; i++)
        status = check_open_run(&own[i], &k->cases[i].eager.in, NULL, manner, err);
    if (status == TN_OK)
        status = execute(k, runs, k->case_count + after_other, manner.team, err);
    for (size_t i = 0; i < k->case_count && status == TN_OK; i++) {
        status = right_numbers(k, &k->cases[i], &own[i], err);
        if (status == TN_OK)
            status = same_bits(k, k->cases[i].forward, &own[i], why_bits(manner.team, after_other), err);
    }
    for (size_t i = 0; i < k->case_count + after_other; i++)
        fenced_close_run(&runs[i]);
    inputs_close(&in);
    return status;
}

/* Gradients go to one thread and one larger team: they cost the most, and forward has shown the others. */
static tn_status try_gradients(verify_plugin_try *k, tn_error *err)
{
    check_passed cases[TRY_CASES];
    check_subject subject = {.device = k->device, .site = k->site, .impl = k->impl, .gradients = true};
    check_backward b = {
        .subject = &subject, .cases = cases, .case_count = k->gradient_cases, .team = k->teams[1], .everywhere = true};
    tn_error why = TN_ERROR_INIT;
    for (size_t i = 0; i < k->gradient_cases; i++)
        cases[i] = (check_passed){k->cases[i].size.profile, &k->cases[i].eager, k->cases[i].forward};
    tn_status status = check_gradients(&b, &why);
    note(k, &b.figures, b.worst_tokens);
    return blame(k, status, &why, err);
}

tn_status verify_plugin_try_site(verify_plugin_try *k, tn_error *err)
{
    enum { ALONE = RUNS_ALONE * TRY_CASES };
    fenced_run *runs = calloc(ALONE + TRY_CASES + 1, sizeof *runs);
    if (!runs)
        return check_no_memory(err);
    tn_status status = open_cases(k, err);
    if (status == TN_OK)
        status = forward_alone(k, runs, err);
    if (status == TN_OK)
        status = forward_cut(k, err);
    for (size_t team = 1; team < k->team_count && status == TN_OK; team++)
        status = forward_team(k, team, runs + ALONE, err);
    /* The gradient of a norm over one element cancels but for eps: what is left is rounding. */
    if (status == TN_OK && k->impl->backward && k->site->dim[TN_DIM_WIDTH] != 1)
        status = try_gradients(k, err);
    for (size_t i = 0; i < ALONE; i++)
        fenced_close_run(&runs[i]);
    close_cases(k);
    free(runs);
    return status;
}
