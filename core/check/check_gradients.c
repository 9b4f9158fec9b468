/* Are a kernel's gradients right? Eager computes them in this process, the kernel in a child: all of them in every
 * case; in one case also each alone, and without the gradients of the outputs. What is written is full of NaN
 * beforehand, so that what adds to it shows. */
#include "check/check.h"

#include "base/text.h"
#include "op/op.h"

#include <stdlib.h>

enum {
    RUNS_PER_CASE = 3,
    VARIANTS = TN_CALL_TENSORS + TN_ROLE_MAX + TN_CALL_TENSORS + 1,
    VARIED_TOKENS = 3,
    MOST_PAIRS = CHECK_MOST_CASES + VARIANTS,
    MOST_RUNS = RUNS_PER_CASE * CHECK_MOST_CASES + VARIANTS
};

/* Gradients of parameters that are computed in one case only, and once: a check holds copies of all of them. */
static const size_t MOST_PARAM_BYTES = (size_t)256 << 20, MANY_PARAM_BYTES = (size_t)64 << 20;

/* Which gradients a call wants, and which output has none; -1: all, and each has one. */
typedef struct variant {
    int in, role, absent;
} variant;

enum { EVERY = -1, NO_OUTPUT = TN_CALL_TENSORS };

static const variant everything = {EVERY, EVERY, EVERY};

/* Eager's gradients of a case, and what the kernel is asked for. */
typedef struct pair {
    const check_passed *of;
    variant what;
    gradients eager, wanted;
} pair;

typedef struct backward_check {
    check_backward *b;
    pair pairs[MOST_PAIRS];
    size_t pair_count;
    fenced_run runs[MOST_RUNS];
    size_t run_count;
    const pair *pair_of[MOST_RUNS];
} backward_check;

/* ---- eager ------------------------------------------------------------------------------------------------------ */

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

static tn_status open_pair(backward_check *c, const check_passed *of, variant v, pair **out, tn_error *err)
{
    pair *p = *out = &c->pairs[c->pair_count++];
    p->of = of;
    p->what = v;
    const inputs *in = &of->eager->in;
    tn_status status = gradients_draw(&p->eager, in, &of->eager->call.out[1], err);
    if (status == TN_OK)
        status = gradients_allocate(&p->eager, err);
    tn_call call = in->call;
    call.out_count = 0;
    call.grads = &p->eager.grads;
    /* Eager computes all of what is wanted together; only what it is computed from may be absent. */
    narrow(&p->eager.grads, &(variant){EVERY, EVERY, v.absent});
    if (status == TN_OK)
        status = run_alone(c->b->subject->device, NULL, NULL, &call, err);
    narrow(&p->eager.grads, &v);
    if (status == TN_OK)
        status = gradients_draw(&p->wanted, in, &of->forward->call.out[1], err);
    narrow(&p->wanted.grads, &v);
    return status;
}

static tn_status open_run(backward_check *c, const pair *p, check_manner manner, tn_error *err)
{
    c->pair_of[c->run_count] = p;
    return check_open_run(&c->runs[c->run_count++], &p->of->eager->in, &p->wanted, manner, err);
}

/* ---- what is tried ---------------------------------------------------------------------------------------------- */

/* Everything that can be varied at this call. */
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

static tn_status open_variants(backward_check *c, const pair *all, tn_error *err)
{
    variant list[VARIANTS];
    tn_status status = TN_OK;
    size_t count = list_variants(&all->wanted, list);
    for (size_t i = 0; i < count && status == TN_OK; i++) {
        pair *p;
        status = open_pair(c, all->of, list[i], &p, err);
        if (status == TN_OK)
            status = open_run(c, p, (check_manner){.team = 1}, err);
    }
    return status;
}

/* All gradients: at the end of their memory, at the start with rows apart and in place, and on the team. */
static tn_status open_case(backward_check *c, const check_passed *of, bool once, bool varied, tn_error *err)
{
    int32_t team = c->b->team;
    pair *p;
    tn_status status = open_pair(c, of, everything, &p, err);
    if (status == TN_OK)
        status = open_run(c, p, (check_manner){.team = once ? team : 1}, err);
    if (status == TN_OK && !once)
        status = open_run(c, p, (check_manner){.apart = true, .team = 1}, err);
    if (status == TN_OK && !once && team > 1)
        status = open_run(c, p, (check_manner){.team = team}, err);
    return status == TN_OK && varied ? open_variants(c, p, err) : status;
}

static tn_status open_all(backward_check *c, tn_error *err)
{
    const check_backward *b = c->b;
    size_t bytes = gradients_param_bytes(b->subject->site);
    bool varied = false;
    tn_status status = TN_OK;
    for (size_t i = 0; i < b->case_count && status == TN_OK; i++) {
        if (i + 1 < b->case_count && bytes > MOST_PARAM_BYTES)
            continue;
        bool vary = !varied && bytes <= MANY_PARAM_BYTES && b->cases[i].eager->in.tokens == VARIED_TOKENS;
        varied |= vary;
        status = open_case(c, &b->cases[i], bytes > MANY_PARAM_BYTES, vary, err);
    }
    return status;
}

/* ---- comparing -------------------------------------------------------------------------------------------------- */

/* Can gradients be measured by the largest of theirs? Not those of sparse gates in narrow types: rounding chooses which
 * are open, and each that differs is a gradient that differs. And not those of the weights of experts where few tokens,
 * or few large ones, have a share in them: each is one sum, which may cancel to next to nothing. */
static bool is_measurable(const tn_site *site, const check_passed *c)
{
    enum { LEAST_TOKENS = 3 };
    int64_t tokens = c->eager->in.tokens;
    if (site->features & TN_HAS_SPARSITY && site->meaning[TN_AXIS_DTYPE] != TN_F32)
        return false;
    return site->dim[TN_DIM_EXPERTS] == 0 || tokens == 0 || (tokens >= LEAST_TOKENS && c->profile == INPUTS_PLAIN);
}

/* ", only the gradient of input 1 wanted" */
static void describe_variant(const variant *v, char *text, size_t size)
{
    text[0] = '\0';
    if (v->in != EVERY)
        text_cut(text, size, ", only the gradient of input %d wanted", v->in);
    else if (v->role != EVERY)
        text_cut(text, size, ", only the gradient of %s wanted", tn_role_name((tn_role)v->role));
    else if (v->absent != EVERY)
        text_cut(text, size, ", %s upstream gradient absent", v->absent == NO_OUTPUT ? "every" : "one");
}

static tn_status compare_numbers(backward_check *c, const pair *p, const fenced_run *run, tn_error *err)
{
    check_backward *b = c->b;
    const check_subject *s = b->subject;
    double ulps = compare_ulps(compare_gradient_tolerance(s->impl), (tn_dtype)s->site->meaning[TN_AXIS_DTYPE]);
    compare_figures figures = {0};
    char variant[64];
    if (!is_measurable(s->site, p->of))
        return TN_OK;
    tn_call eager = run->in->call;
    eager.out_count = 0;
    eager.grads = &p->eager.grads;
    compare_gradients(&eager, &run->grads, ulps, run->in->skip, &figures, s->gradient_figures);
    if (figures.worst > b->figures.worst) {
        b->figures = figures;
        b->worst_tokens = run->in->tokens;
    }
    if (figures.worst <= 1)
        return TN_OK;
    describe_variant(&p->what, variant, sizeof variant);
    return tn_fail(
        err, TN_E_VERIFY, s->site->path,
        "backward: wrong gradients with %lld tokens, %.3g times the tolerance of %g ulps (%s), %d thread%s%s",
        (long long)run->in->tokens, figures.worst, ulps, figures.detail, (int)run->team, run->team == 1 ? "" : "s",
        variant);
}

static tn_status compare_all(backward_check *c, tn_error *err)
{
    tn_status status = TN_OK;
    const fenced_run *first = NULL;
    char detail[160];
    for (size_t i = 0; i < c->run_count && status == TN_OK; i++) {
        const fenced_run *run = &c->runs[i];
        if (i == 0 || c->pair_of[i] != c->pair_of[i - 1])
            first = run;
        status = compare_numbers(c, c->pair_of[i], run, err);
        if (status == TN_OK && (run->team > 1 || c->b->everywhere) && first != run &&
            !check_same_bits(first, run, detail, sizeof detail))
            status = tn_fail(
                err, TN_E_VERIFY, c->b->subject->site->path, "backward: other bits %s (%s), %lld tokens, %d thread%s",
                run->team > 1 ? "on more threads than on one" : "in memory elsewhere, rows apart and in place", detail,
                (long long)run->in->tokens, (int)run->team, run->team == 1 ? "" : "s");
    }
    return status;
}

tn_status check_gradients(check_backward *b, tn_error *err)
{
    const check_subject *s = b->subject;
    backward_check *c = calloc(1, sizeof *c);
    if (!c)
        return check_no_memory(err);
    c->b = b;
    tn_status status = open_all(c, err);
    fenced_trial t = {.device = s->device,
                      .site = s->site,
                      .impl = s->impl,
                      .bound = s->bound,
                      .max_tokens = GRAPH_MAX_TOKENS,
                      .threads = b->team,
                      .runs = c->runs,
                      .run_count = c->run_count};
    if (status == TN_OK)
        status = check_execute(s, &t, err);
    if (status == TN_OK)
        status = compare_all(c, err);
    for (size_t i = 0; i < c->run_count; i++)
        fenced_close_run(&c->runs[i]);
    for (size_t i = 0; i < c->pair_count; i++) {
        gradients_close(&c->pairs[i].eager);
        gradients_close(&c->pairs[i].wanted);
    }
    free(c);
    return status;
}
