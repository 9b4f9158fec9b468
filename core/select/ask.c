/* Asking implementations whether they take a site: the declared match first, then plan(), in a child process so that
 * one that crashes or hangs is an answer too. One child asks all questions, each twice: this process will ask again
 * where a kernel is bound, and must hear the same. After a crash another child goes on with the next implementation. */
#include "select/ask.h"

#include "base/clock.h"
#include "base/text.h"
#include "device/confine.h"
#include "device/guard.h"
#include "device/hoststate.h"
#include "device/visit.h"
#include "plugin/kernels_config.h"
#include "plugin/patience.h"
#include "plugin/registry.h"
#include "run/guest.h"
#include "run/planning.h"
#include "select/choose.h"
#include "select/plan.h"
#include "select/rank.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const double SECONDS = 5; /* for one question                                              */

typedef struct answer {
    tn_status status;
    bool unsteady; /* the second answer was another                                                */
    tn_plan plan;
    double begun, seconds;   /* when it was asked; 0: never; and how long it took                      */
    char message[PLAN_TEXT]; /* why not                                                           */
} answer;

/* What one implementation says of one site. */
typedef struct question {
    const tn_impl *impl;
    const tn_site *site;
    plan_fit *fit;    /* of the site's shape                                                      */
    size_t at;        /* the site's index                                                         */
    const char *file; /* the plugin's                                                             */
    answer *answered; /* shared with the child                                                    */
} question;

static size_t most_scratch(const tn_plan *plan)
{
    return plan->scratch_bytes > plan->backward_scratch_bytes ? plan->scratch_bytes : plan->backward_scratch_bytes;
}

/* Did a plan() ask for the same twice? TN_E_KERNEL with both if not. What the kernel notes for itself may differ. */
static tn_status same_sizes(const tn_plan *now, const tn_plan *before, tn_error *err)
{
    if (now->scratch_bytes == before->scratch_bytes && now->packed_bytes == before->packed_bytes &&
        now->backward_scratch_bytes == before->backward_scratch_bytes && now->threads == before->threads &&
        now->max_tokens == before->max_tokens)
        return TN_OK;
    return tn_fail(err, TN_E_KERNEL, NULL,
                   "it answers in two ways: %zu bytes of scratch and %zu of packed weights for %lld tokens on %d "
                   "threads, and %zu and %zu for %lld on %d",
                   most_scratch(before), before->packed_bytes, (long long)before->max_tokens, (int)before->threads,
                   most_scratch(now), now->packed_bytes, (long long)now->max_tokens, (int)now->threads);
}

typedef struct asking {
    const question *questions;
    size_t count, first;
    int32_t threads;     /* of real calls; the child has one                                     */
    volatile size_t *at; /* shared with the child: the question that it is at                     */
} asking;

static tn_plan plan_question(int32_t threads)
{
    return (tn_plan){.size = sizeof(tn_plan), .threads = threads, .max_tokens = GRAPH_MAX_TOKENS};
}

/* Once; leaving anything of the process other than it was before, which is put back, is a failure. */
static tn_status ask_once(const hoststate *before, const question *q, tn_plan *plan, tn_error *err)
{
    char changed[192];
    visit outer = visit_begin("a kernel", NULL, "plan");
    tn_status status = planning_ask(q->impl, q->site, plan, err);
    visit_end(outer, err);
    if (!hoststate_differs(before, true, changed, sizeof changed))
        return status;
    tn_error_clear(err);
    return tn_fail(err, TN_E_KERNEL, NULL, "it left the %s changed", changed);
}

enum { NOT_ANSWERED = 1000 }; /* a status that no plan() gives                                    */

static void leave_unanswered(const question *q, const char *why)
{
    q->answered->status = (tn_status)NOT_ANSWERED;
    text_cut(q->answered->message, PLAN_TEXT, "plan %s", why);
}

/* Has the plugin taken all its time before this question? */
static bool is_out_of_time(const asking *a, size_t at)
{
    double spent = patience_spent(a->questions[at].file);
    for (size_t i = 0; i < at; i++)
        if (a->questions[i].file == a->questions[at].file)
            spent += a->questions[i].answered->seconds;
    return spent > patience_most();
}

static void ask_twice(const asking *a, const hoststate *before, const question *q)
{
    tn_error err = TN_ERROR_INIT, again = TN_ERROR_INIT;
    tn_plan plan = plan_question(a->threads), second = plan_question(a->threads);
    tn_status status = ask_once(before, q, &plan, &err);
    bool works = status == TN_OK;
    if (works && ask_once(before, q, &second, &again) != TN_OK)
        status = tn_fail(&err, TN_E_KERNEL, NULL, "when it is asked again: %s", again.message);
    else if (works)
        status = same_sizes(&second, &plan, &err);
    q->answered->unsteady = works && status != TN_OK;
    q->answered->plan = plan;
    text_cut(q->answered->message, sizeof q->answered->message, "%s", err.message);
    q->answered->status = status;
}

static int ask_all(void *ctx)
{
    const asking *a = ctx;
    confine_enter(CONFINE_CALLS);
    const hoststate *before = hoststate_save(); /* ends with the child                                   */
    for (size_t i = a->first; i < a->count; i++) {
        const question *q = &a->questions[i];
        *a->at = i;
        if (is_out_of_time(a, i)) {
            leave_unanswered(q, "was not asked: the plugin's answers used up the time that it has");
            continue;
        }
        q->answered->begun = clock_seconds();
        ask_twice(a, before, q);
        q->answered->seconds = clock_seconds() - q->answered->begun;
    }
    return 0;
}

/* The child ended at a question: it is the answer to it, and to the others to that implementation. Returns where the
 * questions to the next one begin. */
static size_t note_end(const asking *a, const char *how)
{
    size_t at = *a->at < a->count ? *a->at : a->first, next = at;
    answer *ended = a->questions[at].answered;
    ended->seconds = ended->begun > 0 ? clock_seconds() - ended->begun : 0;
    for (; next < a->count && a->questions[next].impl == a->questions[at].impl; next++)
        leave_unanswered(&a->questions[next], how);
    return next;
}

/* The time that plugins took is theirs. */
static void settle_time(const question *questions, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const answer *a = questions[i].answered;
        patience_spend(questions[i].file, a->seconds, a->seconds >= SECONDS && a->status != TN_OK ? a->message : NULL);
    }
}

static void forget_answers(answer *answers, size_t count)
{
    if (answers)
        munmap(answers, (count + 1) * sizeof *answers);
}

/* Questions to one implementation stand together. Answers are in memory that is the caller's: forget_answers. An error
 * is one that no kernel is to blame for. */
static tn_status ask_questions(question *questions, size_t count, answer **out, tn_error *err)
{
    char how[256];
    answer *answers =
        mmap(NULL, (count + 1) * sizeof *answers, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *out = NULL;
    if (answers == MAP_FAILED)
        return plan_no_memory(err);
    *out = answers;
    for (size_t i = 0; i < count; i++)
        questions[i].answered = &answers[i];
    asking a = {questions, count, 0, tn_thread_count(), (volatile size_t *)(void *)&answers[count]};
    tn_status status = TN_OK;
    while (a.first < count && status == TN_OK) {
        *a.at = a.first;
        status = guard_run_each(ask_all, &a, SECONDS, a.at, NULL, how, sizeof how);
        a.first = status == TN_OK ? count : note_end(&a, how);
        if (status == TN_E_KERNEL)
            status = TN_OK;
    }
    for (size_t i = 0; i < count; i++)
        answers[i].message[sizeof answers[i].message - 1] = '\0'; /* the plugin could write there         */
    settle_time(questions, count);
    return status == TN_OK ? TN_OK : tn_fail(err, status, "kernels", "plan %s", how);
}

/* ---- whether a shape is taken ----------------------------------------------------------------------------------- */

/* In words why the answer is none that a site can be given for; "": it is one. */
static void judge(const plan *p, const question *q, char *text, size_t size)
{
    const answer *a = q->answered;
    text[0] = '\0';
    if ((int)a->status == NOT_ANSWERED)
        text_cut(text, size, "%s", a->message);
    else if (a->status == TN_DECLINED)
        text_cut(text, size, "plan: %s", a->message);
    else if (a->status != TN_OK)
        text_cut(text, size, "plan failed: %s", a->message);
    else if (p->target->weights_change && a->plan.packed_bytes > 0)
        text_cut(text, size, "plan: it packs weights, and these may be written to at any time (weights_change)");
}

static void take_answer(const plan *p, const question *q)
{
    char text[PLAN_TEXT];
    judge(p, q, text, sizeof text);
    if (text[0] && q->answered->status != TN_DECLINED && q->answered->status != TN_OK) {
        plan_refuse(q->fit, text);
        return;
    }
    q->fit->takes = !text[0];
    q->fit->plan = q->answered->plan;
    text_cut(q->fit->reason, sizeof q->fit->reason, "%s", text);
}

/* What the configuration asks of every kernel and this one does not keep to; "": nothing. */
static const char *barred_by_trait(const tn_config *config, const tn_impl *impl)
{
    if (kernels_config_same_bits(config) && !(impl->traits & TN_SAME_BITS))
        return "it does not promise the same bits in any call (TN_SAME_BITS)";
    if (kernels_config_exact(config) && impl->traits & TN_ROUNDS_INPUTS)
        return "it rounds activations for its products (TN_ROUNDS_INPUTS), exact ones are asked for";
    return "";
}

/* Matches one implementation against one shape; adds what its plan() must still be asked. */
static void match_impl(const plan *p, plan_fit *fit, const tn_impl *impl, size_t shape, question *questions,
                       size_t *count)
{
    const graph_site *site = p->shapes[shape];
    fit->impl = impl;
    fit->plan = plan_question(tn_thread_count());
    if (impl->op == site->site.op && site->declined) {
        text_cut(fit->reason, sizeof fit->reason, "%s", site->declined);
        return;
    }
    if (rank_declared(&site->site, impl, p->target->training, fit->reason, sizeof fit->reason) != TN_OK)
        return;
    text_cut(fit->reason, sizeof fit->reason, "%s", barred_by_trait(p->config, impl));
    if (fit->reason[0])
        return;
    if (impl->plan)
        questions[(*count)++] = (question){.impl = impl, .site = &site->site, .fit = fit, .at = site->index};
    else
        fit->takes = true;
}

static void match_candidate(const plan *p, size_t candidate, question *questions, size_t *count)
{
    const plan_candidate *c = &p->candidates[candidate];
    size_t first = *count;
    for (uint32_t i = 0; !c->excluded[0] && i < c->kernel->kernel.impl_count; i++)
        for (size_t shape = 0; shape < p->shape_count; shape++)
            match_impl(p, plan_fit_at(p, candidate, shape, i), &c->kernel->kernel.impls[i], shape, questions, count);
    for (size_t i = first; i < *count; i++)
        questions[i].file = c->kernel->file;
}

tn_status plan_ask(plan *p, tn_error *err)
{
    size_t most = 0, count = 0;
    for (size_t i = 0; i < p->candidate_count; i++) {
        plan_candidate *c = &p->candidates[i];
        size_t fits = p->shape_count * c->kernel->kernel.impl_count;
        most += fits;
        if (!(c->fits = calloc(fits + 1, sizeof *c->fits)))
            return plan_no_memory(err);
    }
    question *questions = calloc(most + 1, sizeof *questions);
    if (!questions)
        return plan_no_memory(err);
    for (size_t i = 0; i < p->candidate_count; i++)
        match_candidate(p, i, questions, &count);
    answer *answers;
    tn_status status = ask_questions(questions, count, &answers, err);
    for (size_t i = 0; status == TN_OK && i < count; i++)
        take_answer(p, &questions[i]);
    /* Who answers in two ways at one shape is not believed at any. */
    for (size_t i = 0; status == TN_OK && i < count; i++)
        for (size_t j = 0; answers[i].unsteady && j < count; j++)
            if (questions[j].impl == questions[i].impl && !answers[j].unsteady)
                plan_refuse(questions[j].fit, questions[i].fit->reason);
    forget_answers(answers, count);
    free(questions);
    return status;
}

/* ---- at every site ---------------------------------------------------------------------------------------------- */

/* The sites that an implementation was given and not asked about yet, behind each other. */
static void collect(const plan *p, const registry_kernel *kernel, const tn_impl *impl, question *questions,
                    size_t *count)
{
    const graph *g = p->target->graph;
    for (size_t i = 0; i < g->site_count; i++) {
        plan_fit *fit = p->choices[i].fit;
        if (fit && fit->impl == impl && p->asked[i] != fit && !plan_keeps(p, i))
            questions[(*count)++] =
                (question){.impl = impl, .site = &g->sites[i]->site, .fit = fit, .at = i, .file = kernel->file};
    }
}

/* What was checked at the example of a shape has the sizes that are asked for at this site of it. */
static tn_status take_site(plan *p, const question *q, bool *again, tn_error *err)
{
    char text[PLAN_TEXT];
    tn_error why = TN_ERROR_INIT;
    judge(p, q, text, sizeof text);
    if (!text[0] && same_sizes(&q->answered->plan, &q->fit->plan, &why) != TN_OK)
        text_cut(text, sizeof text, "plan: %s", why.message);
    p->asked[q->at] = q->fit;
    if (!text[0])
        return TN_OK;
    *again = true;
    return plan_bar_site(p, q->at, text, err);
}

static tn_status ask_sites(plan *p, bool *again, tn_error *err)
{
    size_t sites = p->target->graph->site_count, count = 0;
    question *questions = calloc(sites + 1, sizeof *questions);
    if (!questions)
        return plan_no_memory(err);
    for (size_t i = 0; i < p->candidate_count; i++)
        for (uint32_t j = 0; j < p->candidates[i].kernel->kernel.impl_count; j++)
            if (p->candidates[i].kernel->kernel.impls[j].plan)
                collect(p, p->candidates[i].kernel, &p->candidates[i].kernel->kernel.impls[j], questions, &count);
    answer *answers;
    tn_status status = ask_questions(questions, count, &answers, err);
    for (size_t i = 0; i < count && status == TN_OK; i++)
        status = take_site(p, &questions[i], again, err);
    forget_answers(answers, count);
    free(questions);
    return status;
}

tn_status plan_settle(plan *p, bool *changed, tn_error *err)
{
    tn_status status = TN_OK;
    *changed = false;
    for (bool again = true; again && status == TN_OK;) {
        again = false;
        status = ask_sites(p, &again, err);
        *changed |= again;
        if (again && status == TN_OK)
            status = plan_choose_again(p, err);
    }
    return status;
}

tn_status plan_bind(const plan *p, size_t site, graph_binding *bound, tn_error *err)
{
    const plan_fit *fit = p->choices[site].fit;
    bound->plan = plan_question(tn_thread_count());
    tn_status status = TN_OK;
    if (fit->impl->plan)
        status = guest_plan(bound, &p->target->graph->sites[site]->site, &bound->plan, err);
    return status == TN_OK ? same_sizes(&bound->plan, &fit->plan, err) : status;
}
