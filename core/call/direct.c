/* One operation on its own: chooses who performs it, as planning does for the sites of a model, and gives it scratch.
 */
#include "call/direct.h"

#include "bind/shadow.h"
#include "check/check.h"
#include "eager/eager.h"
#include "plugin/registry.h"
#include "plugin/spec.h"
#include "run/guest.h"
#include "select/alike.h"
#include "select/candidates.h"
#include "select/first_calls.h"
#include "select/plan.h"
#include "select/rank.h"

#include <pthread.h>
#include <string.h>

/* What was checked: which implementation at a site of which shape, and whether its gradients were. */
static uint64_t question_of(const tn_site *site, uint32_t impl, bool gradients)
{
    return (plan_shape_hash(site) ^ (uint64_t)impl << 1 ^ (uint64_t)gradients) * UINT64_C(0x100000001b3);
}

/* Checks an implementation at the site, or remembers that it was. TN_DECLINED with a reason: not trusted. */
static tn_status trust(registry_kernel *kernel, uint32_t index, const tn_site *site, bool gradients, tn_error *err)
{
    uint64_t shape = question_of(site, index, gradients);
    const registry_verdict *verdict = registry_recall(kernel, shape);
    if (!verdict) {
        check_case cases[CHECK_FIRST_USE];
        tn_error why = TN_ERROR_INIT;
        size_t count = check_first_use_cases(site, cases);
        check_subject subject = {
            .device = &cpu_device, .site = site, .impl = &kernel->kernel.impls[index], .gradients = gradients};
        tn_status status = check_site(&subject, cases, count, NULL, &why);
        if (status == TN_E_MEMORY || status == TN_E_INTERNAL)
            return tn_fail(err, status, why.where, "%s", why.message);
        verdict = registry_remember(kernel, shape, status == TN_OK ? NULL : why.message);
        if (!verdict)
            return plan_no_memory(err);
    }
    return verdict->trusted ? TN_OK : tn_fail(err, TN_DECLINED, kernel->kernel.id, "%s", verdict->reason);
}

/* Would this implementation perform the call? TN_DECLINED with a reason, or an error that is not the kernel's. */
static tn_status ask_impl(registry_kernel *kernel, uint32_t index, const tn_call *call, graph_binding *choice,
                          tn_error *err)
{
    const tn_impl *impl = &kernel->kernel.impls[index];
    const char *id = kernel->kernel.id;
    char reason[PLAN_TEXT];
    if (rank_declared(call->site, impl, call->grads != NULL, reason, sizeof reason) != TN_OK)
        return tn_fail(err, TN_DECLINED, id, "%s", reason);
    tn_status status = trust(kernel, index, call->site, call->grads != NULL, err);
    if (status != TN_OK)
        return status;
    int64_t tokens = call->in[0].shape[0];
    *choice = (graph_binding){.kernel = kernel, .impl = impl, .id = id, .file = kernel->file};
    choice->plan =
        (tn_plan){.size = sizeof choice->plan, .threads = tn_thread_count(), .max_tokens = tokens > 0 ? tokens : 1};
    tn_error why = TN_ERROR_INIT;
    if (impl->plan && guest_plan(choice, call->site, &choice->plan, &why) != TN_OK)
        return tn_fail(err, TN_DECLINED, id, "plan: %s", why.message);
    if (choice->plan.packed_bytes > 0)
        return tn_fail(err, TN_DECLINED, id, "it packs weights, which a single call does not keep");
    return TN_OK;
}

/* The first of a kernel's implementations that performs the call; else what the one nearest to it says. */
static tn_status ask_kernel(registry_kernel *kernel, const tn_call *call, graph_binding *choice, tn_error *err)
{
    const tn_kernel *k = &kernel->kernel;
    tn_error nearest = TN_ERROR_INIT;
    tn_status asked = registry_probe(kernel, err);
    if (asked != TN_OK)
        return asked;
    if (!kernel->available)
        return tn_fail(err, TN_DECLINED, k->id, "it is not available: %s", kernel->reason);
    for (uint32_t i = 0; i < k->impl_count; i++) {
        if (k->impls[i].op != call->op)
            continue;
        tn_error why = TN_ERROR_INIT;
        tn_status status = ask_impl(kernel, i, call, choice, &why);
        if (status == TN_OK)
            return TN_OK;
        if (status != TN_DECLINED)
            return tn_fail(err, status, why.where, "%s", why.message);
        nearest = why;
    }
    return tn_fail(err, TN_DECLINED, k->id, "%s", nearest.message[0] ? nearest.message : "it has no such operation");
}

static tn_status choose_best(const tn_call *call, graph_binding *best, tn_error *err)
{
    for (size_t i = 0; i < registry_count(eager_cpu.name); i++) {
        graph_binding choice;
        tn_error why = TN_ERROR_INIT;
        registry_kernel *kernel = registry_at(eager_cpu.name, i);
        if (best->kernel && rank_compare(&(rank_side){.kernel = best->kernel, .place = RANK_AUTO},
                                         &(rank_side){.kernel = kernel, .place = RANK_AUTO}) < 0)
            continue;
        tn_status status = ask_kernel(kernel, call, &choice, &why);
        if (status == TN_OK)
            *best = choice;
        else if (status != TN_DECLINED)
            return tn_fail(err, status, why.where, "%s", why.message);
    }
    return TN_OK;
}

static tn_status choose(const tn_call *call, const char *id, graph_binding *choice, tn_error *err)
{
    *choice = (graph_binding){0};
    if (!id || !strcmp(id, "none"))
        return TN_OK;
    if (!strcmp(id, "auto"))
        return choose_best(call, choice, err);
    registry_kernel *kernel = spec_first_kernel(eager_cpu.name, id);
    if (!kernel)
        return plan_unknown_id(eager_cpu.name, id, err);
    tn_error why = TN_ERROR_INIT;
    tn_status status = ask_kernel(kernel, call, choice, &why);
    if (status == TN_DECLINED)
        return tn_fail(err, TN_E_KERNEL, id, "does not perform this: %s; use auto or none", why.message);
    return status == TN_OK ? TN_OK : tn_fail(err, status, why.where, "%s", why.message);
}

/* ---- first calls ------------------------------------------------------------------------------------------- */

/* What no model has: the sizes of single calls, for the life of the process. The lock is held while one is compared. */
static struct {
    pthread_mutex_t lock;
    graph nothing;
    apply_target target;
} singles = {.lock = PTHREAD_MUTEX_INITIALIZER, .target = {.graph = &singles.nothing, .device = &cpu_device}};

/* Those of the implementation at sites of the call's shape. NULL: no memory. */
static first_calls *sizes_of(const graph_binding *choice, const tn_call *call, tn_error *err)
{
    if (shadow_open(&singles.target, err) != TN_OK)
        return NULL;
    char *key = first_calls_key(choice->impl, plan_shape_hash(call->site));
    return first_calls_open(&singles.target, choice->kernel, key, false, NULL, err);
}

/* By the kernel; the first call of its size is watched, and a kernel that is wrong there is not trusted any more. */
static tn_status perform_watched(registry_kernel *kernel, graph_binding *choice, const tn_call *call, tn_error *err)
{
    pthread_mutex_lock(&singles.lock);
    first_calls *sizes = sizes_of(choice, call, err);
    bool watched = sizes && first_calls_is_new(sizes, call);
    tn_status status = sizes ? TN_OK : TN_E_MEMORY;
    if (watched) {
        choice->first = sizes;
        choice->shadow = shadow_hook(&singles.target);
        sizes->failed = false;
        status = run_alone(&cpu_device, NULL, choice, call, err);
        uint32_t index = (uint32_t)(choice->impl - kernel->kernel.impls);
        if (sizes->failed &&
            !registry_remember(kernel, question_of(call->site, index, false), "a call of it was wrong in this process"))
            status = plan_no_memory(err);
    }
    pthread_mutex_unlock(&singles.lock);
    return status == TN_OK && !watched ? run_alone(&cpu_device, NULL, choice, call, err) : status;
}

tn_status direct_perform(const tn_call *call, const char *kernel, tn_error *err)
{
    graph_binding choice;
    tn_status status = choose(call, kernel, &choice, err);
    if (status != TN_OK || !choice.impl || call->grads)
        return status == TN_OK ? run_alone(&cpu_device, NULL, &choice, call, err) : status;
    return perform_watched(registry_find(eager_cpu.name, choice.id), &choice, call, err);
}
