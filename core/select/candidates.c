/* Which kernels a SPEC lets take part. */
#include "select/candidates.h"

#include "base/text.h"
#include "plugin/kernels_config.h"
#include "plugin/registry.h"
#include "plugin/spec.h"
#include "select/plan.h"
#include "select/rank.h"

#include <stdlib.h>
#include <string.h>

/* "a, b, c" or "none: ..." */
static void list_ids(const char *device, char *text, size_t size)
{
    size_t used = 0;
    text_cut(text, size, "none");
    for (size_t i = 0; i < registry_count(device) && used < size; i++)
        used += text_cut(text + used, size - used, "%s%s", i ? ", " : "", registry_at(device, i)->kernel.id);
}

/* A device other than this one that has a kernel of this name, or NULL. */
static const char *other_device(const char *device, const char *id)
{
    const registry_kernel *k;
    for (size_t i = 0; (k = registry_any(i)); i++)
        if (spec_stands_for(id, k) && strcmp(k->kernel.device, device) != 0)
            return k->kernel.device;
    return NULL;
}

tn_status plan_unknown_id(const char *device, const char *id, tn_error *err)
{
    char ids[400];
    tn_op op;
    list_ids(device, ids, sizeof ids);
    const char *other = other_device(device, id), *nearest = spec_nearest(id);
    if (other)
        return tn_fail(err, TN_E_KERNEL, "kernels", "kernel '%s' is for device %s, and this is %s; there are: %s", id,
                       other, device, ids);
    if (spec_declined(id))
        return tn_fail(err, TN_E_KERNEL, "kernels", "%s %s; write auto or other ids; there are: %s", id,
                       spec_declined(id), ids);
    if (!registry_any(0))
        return tn_fail(err, TN_E_KERNEL, "kernels",
                       "kernel '%s' not found; no plugin brought a kernel for device %s, see --plugins", id, device);
    if (spec_shared_name(id, &op))
        return tn_fail(err, TN_E_KERNEL, "kernels", "'%s' stands for kernels of %s, and none is here; there are: %s",
                       id, tn_op_name(op), ids);
    if (nearest)
        return tn_fail(err, TN_E_KERNEL, "kernels", "kernel '%s' not found; did you mean '%s'? there are: %s", id,
                       nearest, ids);
    return tn_fail(err, TN_E_KERNEL, "kernels", "kernel '%s' not found; there are: %s", id, ids);
}

/* ---- the list -------------------------------------------------------------------------------------------------- */

static size_t place_in(char *const *names, size_t count, const registry_kernel *kernel)
{
    size_t i = 0;
    while (i < count && !spec_stands_for(names[i], kernel))
        i++;
    return i < count ? i : RANK_AUTO;
}

static void exclude(plan_candidate *c, const kernel_spec *spec, const tn_config *config)
{
    const char *id = c->kernel->kernel.id;
    size_t without = place_in(spec->without, spec->without_count, c->kernel);
    const char *disabled = config ? kernels_config_disabled(config, id) : NULL;
    if (spec->mode == SPEC_NONE)
        text_cut(c->excluded, sizeof c->excluded, "kernels: none are asked for");
    else if (spec->mode == SPEC_IDS && !c->named)
        text_cut(c->excluded, sizeof c->excluded, "kernels: not among those asked for");
    else if (without != RANK_AUTO)
        text_cut(c->excluded, sizeof c->excluded, "left out by -%s", spec->without[without]);
    else if (!c->named && disabled)
        text_cut(c->excluded, sizeof c->excluded, "disabled by the configuration");
    c->silent = spec->mode != SPEC_AUTO && !c->named;
}

static tn_status add_candidate(plan *p, registry_kernel *kernel, const kernel_spec *spec, const plan_request *request,
                               tn_error *err)
{
    plan_candidate *c = &p->candidates[p->candidate_count++];
    const char *id = kernel->kernel.id;
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): plan_no_memory is a failure
    c->kernel = kernel;
    c->place = place_in(spec->ids, spec->count, kernel);
    c->named = c->place != RANK_AUTO;
    c->asked = c->named ? spec_shared_name(spec->ids[c->place], NULL) : NULL;
    if (!c->asked)
        c->asked = id;
    c->modules = c->named && request->modules ? request->modules
                 : p->config                  ? kernels_config_modules(p->config, id)
                                              : NULL;
    exclude(c, spec, p->config);
    if (c->excluded[0])
        return TN_OK;
    tn_status status = registry_probe(kernel, err);
    if (status != TN_OK || kernel->available)
        return status;
    text_cut(c->excluded, sizeof c->excluded, "not available: %s", kernel->reason);
    if (!c->named || c->asked != id) /* another may be, which the name stands for as well */
        return TN_OK;
    return tn_fail(err, TN_E_KERNEL, id, "is not available: %s; leave it out or choose another device", kernel->reason);
}

/* Ids of a SPEC must exist. One that is for another device only, or of LLaMA-Factory's only, is told, so that one SPEC
 * can do for several. */
static tn_status check_ids(plan *p, char *const *ids, size_t count, const char *leaves, tn_error *err)
{
    const char *device = p->target->device->ops->name;
    tn_status status = TN_OK;
    for (size_t i = 0; i < count && status == TN_OK; i++) {
        const char *other = other_device(device, ids[i]);
        if (spec_first_kernel(device, ids[i]))
            continue;
        if (!other && spec_declined(ids[i]))
            status = plan_note(p, err, "kernels: %s %s%s", ids[i], spec_declined(ids[i]), leaves);
        else if (!other)
            status = plan_unknown_id(device, ids[i], err);
        else
            status = plan_note(p, err, "kernels: %s is for device %s, and this model is on %s%s", ids[i], other, device,
                               leaves);
    }
    return status;
}

static bool has_named(const plan *p, const kernel_spec *spec)
{
    for (size_t i = 0; i < spec->count; i++)
        if (spec_first_kernel(p->target->device->ops->name, spec->ids[i]))
            return true;
    return false;
}

/* Is nothing asked for but what can never be here? */
static bool has_only_declined(const kernel_spec *spec, const char *device)
{
    for (size_t i = 0; i < spec->count; i++)
        if (!spec_declined(spec->ids[i]) || other_device(device, spec->ids[i]))
            return false;
    return true;
}

static tn_status check_spec(plan *p, const kernel_spec *spec, tn_error *err)
{
    bool nothing = spec->mode == SPEC_IDS && !has_named(p, spec);
    const char *device = p->target->device->ops->name;
    if (nothing && has_only_declined(spec, device))
        return plan_unknown_id(device, spec->ids[0], err);
    tn_status status =
        check_ids(p, spec->ids, spec->count, nothing ? "; no kernel is left" : "; it takes no part", err);
    return status == TN_OK ? check_ids(p, spec->without, spec->without_count, "; it takes no part anyway", err)
                           : status;
}

tn_status plan_find_candidates(plan *p, const plan_request *request, tn_error *err)
{
    const char *device = p->target->device->ops->name;
    kernel_spec parsed = {.mode = SPEC_AUTO};
    const kernel_spec *spec = request->spec || !p->config ? &parsed : kernels_config_spec(p->config);
    tn_status status = request->spec ? spec_parse(request->spec, &parsed, err) : TN_OK;
    for (size_t i = 0; status == TN_OK && i < spec->notes.count; i++)
        status = plan_note(p, err, "%s", spec->notes.items[i]);
    if (status == TN_OK)
        status = check_spec(p, spec, err);
    if (status == TN_OK && spec->mode != SPEC_NONE)
        status = kernels_config_check(p->config, &p->notes, err);
    size_t count = registry_count(device);
    p->candidates = calloc(count + 1, sizeof *p->candidates);
    if (!p->candidates && status == TN_OK)
        status = plan_no_memory(err);
    for (size_t i = 0; status == TN_OK && i < count; i++)
        status = add_candidate(p, registry_at(device, i), spec, request, err);
    spec_free(&parsed);
    return status;
}
