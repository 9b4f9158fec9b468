/* An implementation at one made-up site: gradients. All of them in every case; in one case also each alone, and without
 * the gradient of each output. */
#include "kit/kit_try.h"

#include "base/text.h"
#include "op/op.h"

#include <stdlib.h>

/* Gradients go to one thread and one larger team: they cost the most, and forward has shown the others. */
enum {
    GRADIENT_TEAMS = 2,
    RUNS_ALONE = 2,
    VARIANTS = TN_CALL_TENSORS + TN_ROLE_MAX + TN_CALL_TENSORS + 1,
    VARIED_TOKENS = 3
};

/* Eager's gradients and what the kernel is asked for. */
typedef struct pair {
    gradients eager, wanted;
} pair;

static void close_pair(pair *p)
{
    gradients_close(&p->eager);
    gradients_close(&p->wanted);
}

/* Which gradients a call wants, and which output has none; -1: all, and each has one. */
typedef struct variant {
    int in, role, absent;
} variant;

enum { EVERY = -1, NO_OUTPUT = TN_CALL_TENSORS };

/* The gradients that the variant does not want are not there; absent NO_OUTPUT: no output has any. */
static void narrow(tn_grads *g, const variant *v)
{
    for (int i = 0; i < TN_CALL_TENSORS; i++) {
        if (v->role != EVERY || (v->in != EVERY && v->in != i))
            g->in[i] = (tn_tensor){0};
        if (v->absent == NO_OUTPUT || v->absent == i)
            g->out[i] = (tn_tensor){0};
    }
    for (int role = 0; role < TN_ROLE_MAX; role++)
        if (v->in != EVERY || (v->role != EVERY && v->role != role))
            g->param[role] = (tn_param){0};
}

static tn_status open_pair(const kit_try *k, const kit_case *c, const variant *v, pair *p, tn_error *err)
{
    *p = (pair){0};
    const inputs *in = &c->eager.in;
    tn_status status = gradients_draw(&p->eager, in, &c->eager.call.out[1], err);
    if (status == TN_OK)
        status = gradients_allocate(&p->eager, err);
    tn_call call = in->call;
    call.out_count = 0;
    call.grads = &p->eager.grads;
    /* Eager computes all of what is wanted together; only what it is computed from may be absent. */
    narrow(&p->eager.grads, &(variant){EVERY, EVERY, v->absent});
    if (status == TN_OK)
        status = run_alone(k->device, NULL, NULL, &call, err);
    narrow(&p->eager.grads, v);
    if (status == TN_OK)
        status = gradients_draw(&p->wanted, in, &c->forward->call.out[1], err);
    narrow(&p->wanted.grads, v);
    return status;
}

static tn_status open_run(fenced_run *run, const inputs *in, const gradients *wanted, bool apart, tn_error *err)
{
    *run = (fenced_run){.in = in,
                        .wanted = wanted,
                        .side = apart ? FENCE_START : FENCE_END,
                        .padded = apart,
                        .in_place = apart ? op_find(in->call.op)->in_place : 0};
    return fenced_open_run(run, err);
}

/* ---- comparing -------------------------------------------------------------------------------------------------- */

/* Can gradients be measured by the largest of theirs? Not those of sparse gates in narrow types: rounding chooses which
 * are open, and each that differs is a gradient that differs. And not those of the weights of experts where few tokens,
 * or few large ones, have a share in them: each is one sum, which may cancel to next to nothing. */
static bool is_measurable(const kit_try *k, const kit_case *c)
{
    enum { LEAST_TOKENS = 3 };
    const tn_site *site = k->site;
    if (site->features & TN_HAS_SPARSITY && site->meaning[TN_AXIS_DTYPE] != TN_F32)
        return false;
    return site->dim[TN_DIM_EXPERTS] == 0 || c->eager.in.tokens == 0 ||
           (c->eager.in.tokens >= LEAST_TOKENS && c->size.profile == INPUTS_PLAIN);
}

static tn_status right_numbers(kit_try *k, const kit_case *c, const gradients *eager, const fenced_run *run,
                               int32_t team, tn_error *err)
{
    double ulps = compare_ulps(compare_gradient_tolerance(k->impl), (tn_dtype)k->site->meaning[TN_AXIS_DTYPE]);
    compare_figures figures = {0};
    char what[96];
    if (!is_measurable(k, c))
        return TN_OK;
    compare_gradients(k->site, &eager->grads, &run->grads, ulps, run->in->skip, &figures, NULL);
    if (figures.worst <= 1) {
        kit_try_note(k, &figures, run->in->tokens);
        return TN_OK;
    }
    text_cut(what, sizeof what, "wrong gradients, %.3g times the tolerance of %g ulps", figures.worst, ulps);
    return kit_try_wrong(k, run, team, what, figures.detail, err);
}

static tn_status same_bits(const kit_try *k, const fenced_run *a, const fenced_run *b, int32_t team, const char *what,
                           tn_error *err)
{
    char where[120], detail[160];
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        if (a->grads.in[i].data && !compare_bits(&a->grads.in[i], &b->grads.in[i], where, sizeof where)) {
            text_cut(detail, sizeof detail, "gradient of input %d, %s", i, where);
            return kit_try_wrong(k, b, team, what, detail, err);
        }
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < a->grads.param[role].count; i++)
            if (!compare_bits(&a->grads.param[role].tensors[i], &b->grads.param[role].tensors[i], where,
                              sizeof where)) {
                text_cut(detail, sizeof detail, "gradient of %s %lld, %s", tn_role_name((tn_role)role), (long long)i,
                         where);
                return kit_try_wrong(k, b, team, what, detail, err);
            }
    return TN_OK;
}

/* ---- all gradients ----------------------------------------------------------------------------------------------- */

static const variant everything = {EVERY, EVERY, EVERY};

static tn_status compare_alone(kit_try *k, const pair *pairs, const fenced_run *runs, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < k->gradient_cases && status == TN_OK; i++) {
        const fenced_run *r = &runs[RUNS_ALONE * i];
        for (int j = 0; j < RUNS_ALONE && status == TN_OK; j++)
            status = right_numbers(k, &k->cases[i], &pairs[i].eager, &r[j], 1, err);
        if (status == TN_OK)
            status = same_bits(k, &r[0], &r[1], 1, "other bits in memory elsewhere, rows apart and in place", err);
    }
    return status;
}

static tn_status all_alone(kit_try *k, pair *pairs, fenced_run *runs, tn_error *err)
{
    tn_status status = TN_OK;
    size_t count = 0;
    for (size_t i = 0; i < k->gradient_cases && status == TN_OK; i++) {
        status = open_pair(k, &k->cases[i], &everything, &pairs[i], err);
        for (int j = 0; j < RUNS_ALONE && status == TN_OK; j++)
            status = open_run(&runs[count++], &k->cases[i].eager.in, &pairs[i].wanted, j == 1, err);
    }
    if (status == TN_OK)
        status = kit_try_execute(k, runs, count, NULL, 1, err);
    return status == TN_OK ? compare_alone(k, pairs, runs, err) : status;
}

static tn_status all_on_team(kit_try *k, int32_t threads, const pair *pairs, const fenced_run *alone, fenced_run *runs,
                             tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < k->gradient_cases && status == TN_OK; i++)
        status = open_run(&runs[i], &k->cases[i].eager.in, &pairs[i].wanted, false, err);
    if (status == TN_OK)
        status = kit_try_execute(k, runs, k->gradient_cases, NULL, threads, err);
    for (size_t i = 0; i < k->gradient_cases && status == TN_OK; i++) {
        status = right_numbers(k, &k->cases[i], &pairs[i].eager, &runs[i], threads, err);
        if (status == TN_OK)
            status = same_bits(k, &alone[RUNS_ALONE * i], &runs[i], threads, kit_try_why_bits(threads, false), err);
    }
    for (size_t i = 0; i < k->gradient_cases; i++)
        fenced_close_run(&runs[i]);
    return status;
}

static tn_status try_all(kit_try *k, tn_error *err)
{
    enum { ALONE = RUNS_ALONE * KIT_CASES };
    pair *pairs = calloc(KIT_CASES, sizeof *pairs);
    fenced_run *runs = calloc(ALONE + KIT_CASES, sizeof *runs);
    tn_status status = pairs && runs ? all_alone(k, pairs, runs, err) : check_no_memory(err);
    for (size_t team = 1; team < GRADIENT_TEAMS && status == TN_OK; team++)
        status = all_on_team(k, k->teams[team], pairs, runs, runs + ALONE, err);
    for (size_t i = 0; runs && i < ALONE; i++)
        fenced_close_run(&runs[i]);
    for (size_t i = 0; pairs && i < KIT_CASES; i++)
        close_pair(&pairs[i]);
    free(pairs);
    free(runs);
    return status;
}

/* ---- each alone ---------------------------------------------------------------------------------------------------
 */

/* What there is to vary at this call. */
static size_t list_variants(const gradients *all, variant list[VARIANTS])
{
    size_t count = 0, outputs = 0;
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        if (all->grads.in[i].dtype != TN_DTYPE_NONE)
            list[count++] = (variant){i, EVERY, EVERY};
    for (int role = 0; role < TN_ROLE_MAX; role++)
        if (all->grads.param[role].count > 0)
            list[count++] = (variant){EVERY, role, EVERY};
    for (int i = 0; i < TN_CALL_TENSORS; i++)
        outputs += all->grads.out[i].data != NULL;
    for (int i = 0; outputs > 1 && i < TN_CALL_TENSORS; i++)
        if (all->grads.out[i].data)
            list[count++] = (variant){EVERY, EVERY, i};
    list[count++] = (variant){EVERY, EVERY, NO_OUTPUT};
    return count;
}

static tn_status run_variants(kit_try *k, const kit_case *c, const variant *list, size_t count, pair *pairs,
                              fenced_run *runs, tn_error *err)
{
    tn_status status = TN_OK;
    for (size_t i = 0; i < count && status == TN_OK; i++) {
        status = open_pair(k, c, &list[i], &pairs[i], err);
        if (status == TN_OK)
            status = open_run(&runs[i], &c->eager.in, &pairs[i].wanted, false, err);
    }
    if (status == TN_OK)
        status = kit_try_execute(k, runs, count, NULL, 1, err);
    for (size_t i = 0; i < count && status == TN_OK; i++) {
        tn_error why = TN_ERROR_INIT;
        status = right_numbers(k, c, &pairs[i].eager, &runs[i], 1, &why);
        if (status == TN_OK)
            continue;
        const variant *v = &list[i];
        if (v->in != EVERY)
            tn_fail(err, status, k->site->path, "%s, only the gradient of input %d wanted", why.message, v->in);
        else if (v->role != EVERY)
            tn_fail(err, status, k->site->path, "%s, only the gradient of %s wanted", why.message,
                    tn_role_name((tn_role)v->role));
        else
            tn_fail(err, status, k->site->path, "%s, %s upstream gradient absent", why.message,
                    v->absent == NO_OUTPUT ? "every" : "one");
    }
    return status;
}

static tn_status try_variants(kit_try *k, const kit_case *c, tn_error *err)
{
    variant *list = calloc(VARIANTS, sizeof *list);
    pair *pairs = calloc(VARIANTS, sizeof *pairs), all = {0};
    fenced_run *runs = NULL;
    size_t count = 0;
    tn_status status = list && pairs ? open_pair(k, c, &everything, &all, err) : check_no_memory(err);
    if (status == TN_OK) {
        count = list_variants(&all.wanted, list);
        runs = calloc(count, sizeof *runs);
        status = runs ? run_variants(k, c, list, count, pairs, runs, err) : check_no_memory(err);
    }
    for (size_t i = 0; i < count; i++) {
        if (runs)
            fenced_close_run(&runs[i]);
        close_pair(&pairs[i]);
    }
    close_pair(&all);
    free(runs);
    free(pairs);
    free(list);
    return status;
}

tn_status kit_try_gradients(kit_try *k, tn_error *err)
{
    tn_status status = try_all(k, err);
    for (size_t i = 0; i < k->gradient_cases && status == TN_OK; i++)
        if (k->cases[i].eager.in.tokens == VARIED_TOKENS)
            status = try_variants(k, &k->cases[i], err);
    return status;
}
