/* Asking implementations whether they take a shape: the declared match first, then plan(), in a child process so that
 * one that crashes or hangs is an answer too. One child asks all; after a crash another goes on behind it. */
#include "device/guard.h"
#include "device/hoststate.h"
#include "apply/plan.h"
#include "apply/rank.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const double SECONDS = 5; /* for each question                                             */

/* Memory that no kernel of this kind needs; whoever asks for more has miscalculated. */
static const size_t MOST_SCRATCH = (size_t)4 << 30, MOST_PACKED = (size_t)64 << 20; /* beyond 16 times the weights */

typedef struct answer {
    tn_status status;
    size_t scratch_bytes, packed_bytes; /* the larger scratch of forward and backward              */
    char message[PLAN_TEXT];
} answer;

typedef struct question {
    plan_fit *fit;
    const tn_site *site;
} question;

typedef struct asking {
    const question *questions;
    size_t count, first;
    int32_t threads; /* of real calls; the child has one                                         */
    /* Shared with the child. */
    volatile size_t *at;
    answer *answers;
} asking;

static int ask_all(void *ctx)
{
    const asking *a = ctx;
    for (size_t i = a->first; i < a->count; i++) {
        tn_error err = TN_ERROR_INIT;
        tn_plan plan = {.size = sizeof plan, .threads = a->threads, .max_tokens = GRAPH_MAX_TOKENS};
        char changed[192];
        *a->at = i;
        if (a->questions[i].fit->refused)
            continue;
        hoststate *before = hoststate_save();
        a->answers[i].status = a->questions[i].fit->impl->plan(a->questions[i].site, &plan, &err);
        hoststate_restore(before, changed, sizeof changed);
        if (changed[0]) {
            tn_error_clear(&err);
            a->answers[i].status = tn_fail(&err, TN_E_KERNEL, NULL, "it left the %s changed", changed);
        }
        a->answers[i].scratch_bytes =
            plan.scratch_bytes > plan.backward_scratch_bytes ? plan.scratch_bytes : plan.backward_scratch_bytes;
        a->answers[i].packed_bytes = plan.packed_bytes;
        text_cut(a->answers[i].message, sizeof a->answers[i].message, "%s", err.message);
    }
    return 0;
}

static size_t weight_bytes(const tn_site *site)
{
    size_t bytes = 0;
    for (int role = 0; role < TN_ROLE_MAX; role++)
        for (int64_t i = 0; i < site->param[role].count; i++)
            bytes += (size_t)tn_tensor_count(&site->param[role].tensors[i]) *
                     tn_dtype_size(site->param[role].tensors[i].dtype);
    return bytes;
}

static void take_answer(const question *q, const answer *a)
{
    plan_fit *fit = q->fit;
    char text[PLAN_TEXT + 64];
    if (a->status == TN_OK && a->scratch_bytes <= MOST_SCRATCH &&
        a->packed_bytes <= MOST_PACKED + 16 * weight_bytes(q->site)) {
        fit->takes = true;
        fit->packed_bytes = a->packed_bytes;
    } else if (a->status == TN_OK) {
        text_cut(text, sizeof text, "plan: asks for %zu bytes of scratch and %zu of packed weights", a->scratch_bytes,
                 a->packed_bytes);
        plan_refuse(fit, text);
    } else if (a->status == TN_DECLINED) {
        text_cut(fit->reason, sizeof fit->reason, "plan: %s", a->message);
    } else {
        text_cut(text, sizeof text, "plan failed: %s", a->message);
        plan_refuse(fit, text);
    }
}

static tn_status ask_questions(question *questions, size_t count, tn_error *err)
{
    size_t bytes = sizeof(size_t) + count * sizeof(answer) + 64;
    char *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return plan_no_memory(err);
    asking a = {
        questions, count, 0, tn_thread_count(), (volatile size_t *)(void *)shared, (answer *)(void *)(shared + 64)};
    while (a.first < count) {
        char how[256], text[PLAN_TEXT];
        *a.at = a.first;
        bool all = guard_run_each(ask_all, &a, SECONDS, a.at, how, sizeof how) == TN_OK;
        size_t end = all ? count : *a.at < count ? *a.at : a.first;
        for (size_t i = a.first; i < end; i++)
            if (!questions[i].fit->refused)
                take_answer(&questions[i], &a.answers[i]);
        /* It is not asked about anything else. */
        for (size_t i = end; i < count; i++)
            if (questions[i].fit->impl == questions[end].fit->impl) {
                text_cut(text, sizeof text, "plan %s", how);
                plan_refuse(questions[i].fit, text);
            }
        a.first = end + 1;
    }
    munmap(shared, bytes);
    return TN_OK;
}

/* Matches one candidate against one shape; adds what its plan() must still be asked. */
static void match_candidate(const plan *p, size_t candidate, size_t shape, question *questions, size_t *count)
{
    const plan_candidate *c = &p->candidates[candidate];
    const tn_site *site = &p->shapes[shape]->site;
    for (uint32_t i = 0; i < c->kernel->kernel.impl_count; i++) {
        plan_fit *fit = plan_fit_at(p, candidate, shape, i);
        fit->impl = &c->kernel->kernel.impls[i];
        fit->asked = true;
        if (rank_declared(site, fit->impl, p->target->training, fit->reason, sizeof fit->reason) != TN_OK)
            continue;
        fit->reason[0] = '\0';
        if (fit->impl->plan)
            questions[(*count)++] = (question){fit, site};
        else
            fit->takes = true;
    }
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
        for (size_t shape = 0; shape < p->shape_count && !p->candidates[i].excluded[0]; shape++)
            match_candidate(p, i, shape, questions, &count);
    tn_status status = count > 0 ? ask_questions(questions, count, err) : TN_OK;
    free(questions);
    return status;
}
