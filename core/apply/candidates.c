/* Which kernels a SPEC lets take part. */
#include "apply/plan.h"
#include "base/text.h"

#include <fnmatch.h>

#include <stdlib.h>
#include <string.h>

bool plan_modules_match(const char *patterns, const char *path)
{
    if (!patterns)
        return true;
    for (const char *at = patterns; *at;) {
        size_t n = strcspn(at, ",");
        char *pattern = strndup(at + strspn(at, " "), n - (strspn(at, " ") < n ? strspn(at, " ") : n));
        bool match = pattern && fnmatch(pattern, path, 0) == 0;
        free(pattern);
        if (match)
            return true;
        at += n + (at[n] == ',');
    }
    return false;
}

/* "a, b, c" or "none: ..." */
static void list_ids(const char *device, char *text, size_t size)
{
    size_t used = 0;
    text_cut(text, size, "none");
    for (size_t i = 0; i < registry_count(device) && used < size; i++)
        used += text_cut(text + used, size - used, "%s%s", i ? ", " : "", registry_at(device, i)->kernel.id);
}

tn_status plan_unknown_id(const char *device, const char *id, tn_error *err)
{
    char ids[400];
    list_ids(device, ids, sizeof ids);
    const char *nearest = registry_nearest(device, id);
    if (registry_count(device) == 0)
        return tn_fail(err, TN_E_KERNEL, "kernels",
                       "kernel '%s' not found; no plugin brought a kernel for device %s, see --plugins", id, device);
    if (nearest)
        return tn_fail(err, TN_E_KERNEL, "kernels", "kernel '%s' not found; did you mean '%s'? there are: %s", id,
                       nearest, ids);
    return tn_fail(err, TN_E_KERNEL, "kernels", "kernel '%s' not found; there are: %s", id, ids);
}

static bool is_named(const select_spec *spec, const char *id)
{
    for (size_t i = 0; spec->mode == SELECT_IDS && i < spec->count; i++)
        if (!strcmp(spec->ids[i], id))
            return true;
    return false;
}

static void exclude(plan_candidate *c, const char *text)
{
    text_cut(c->excluded, sizeof c->excluded, "%s", text);
}

static tn_status add_candidate(plan *p, registry_kernel *kernel, const select_spec *spec, const plan_request *request,
                               tn_error *err)
{
    plan_candidate *c = &p->candidates[p->candidate_count++];
    const char *id = kernel->kernel.id;
    c->kernel = kernel;
    c->named = is_named(spec, id);
    c->modules = c->named && request->modules ? request->modules
                 : p->config                  ? kernels_config_modules(p->config, id)
                                              : NULL;
    if (spec->mode == SELECT_NONE)
        exclude(c, "kernels: none are asked for");
    else if (spec->mode == SELECT_IDS && !c->named)
        exclude(c, "kernels: not among those asked for");
    else if (spec->mode == SELECT_AUTO && p->config && kernels_config_disabled(p->config, id))
        exclude(c, "disabled by the configuration");
    if (c->excluded[0])
        return TN_OK;
    registry_probe(kernel);
    if (kernel->available)
        return TN_OK;
    text_cut(c->excluded, sizeof c->excluded, "not available: %s", kernel->reason);
    if (!c->named)
        return TN_OK;
    return tn_fail(err, TN_E_KERNEL, id, "is not available: %s; leave it out or choose another device", kernel->reason);
}

tn_status plan_find_candidates(plan *p, const plan_request *request, tn_error *err)
{
    const char *device = p->target->device->ops->name;
    const char *text = request->spec ? request->spec : p->config ? tn_config_kernels(p->config) : "auto";
    select_spec spec = {0};
    tn_status status = spec_parse(text, &spec, err);
    if (status != TN_OK)
        return status;
    for (size_t i = 0; status == TN_OK && spec.mode == SELECT_IDS && i < spec.count; i++)
        if (!registry_find(device, spec.ids[i]))
            status = plan_unknown_id(device, spec.ids[i], err);
    size_t count = registry_count(device);
    p->candidates = calloc(count + 1, sizeof *p->candidates);
    if (!p->candidates && status == TN_OK)
        status = plan_no_memory(err);
    for (size_t i = 0; status == TN_OK && i < count; i++)
        status = add_candidate(p, registry_at(device, i), &spec, request, err);
    spec_free(&spec);
    return status;
}
