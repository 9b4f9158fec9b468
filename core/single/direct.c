/* One operation on its own: chooses who performs it, as planning does for the sites of a model, and gives it scratch.
 */
#include "single/direct.h"
#include "eager/eager.h"
#include "apply/plan.h"
#include "apply/rank.h"
#include "check/check.h"
#include "base/text.h"

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
    *choice = (graph_binding){.kernel = kernel, .impl = impl};
    choice->plan =
        (tn_plan){.size = sizeof choice->plan, .threads = tn_thread_count(), .max_tokens = tokens > 0 ? tokens : 1};
    tn_error why = TN_ERROR_INIT;
    if (impl->plan && impl->plan(call->site, &choice->plan, &why) != TN_OK)
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
    registry_probe(kernel);
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
        if (best->kernel &&
            rank_compare(&(rank_side){best->kernel, RANK_AUTO, 0}, &(rank_side){kernel, RANK_AUTO, 0}) < 0)
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
    registry_kernel *kernel = registry_find(eager_cpu.name, id);
    if (!kernel)
        return plan_unknown_id(eager_cpu.name, id, err);
    tn_error why = TN_ERROR_INIT;
    tn_status status = ask_kernel(kernel, call, choice, &why);
    if (status == TN_DECLINED)
        return tn_fail(err, TN_E_KERNEL, id, "does not perform this: %s; use auto or none", why.message);
    return status == TN_OK ? TN_OK : tn_fail(err, status, why.where, "%s", why.message);
}

tn_status direct_perform(const tn_call *call, const char *kernel, tn_error *err)
{
    graph_binding choice;
    tn_status status = choose(call, kernel, &choice, err);
    return status == TN_OK ? run_alone(&cpu_device, NULL, &choice, call, err) : status;
}
