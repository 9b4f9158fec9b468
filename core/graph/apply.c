/* Giving sites to kernels and taking them back. A change is prepared completely, next to what is applied, and then
 * put in place by assignments that cannot fail. */
#include "graph/check.h"
#include "graph/report.h"

#include <stdlib.h>
#include <string.h>

/* What one site's kernel needs. Memory is the device's. */
typedef struct apply_slot {
    graph_binding bound;
    void *packed;
    size_t packed_bytes;
    bool fresh; /* prepared by this change, not taken over from what is applied                  */
} apply_slot;

/* Owned by the model: packed memory by site. One owner per site now; weights that several sites share would be counted
 * here. */
struct apply_state {
    size_t count;
    apply_slot *slots;
};

static void slots_free(const tn_device *device, apply_slot *slots, size_t count, bool only_fresh)
{
    for (size_t i = 0; slots && i < count; i++)
        if (slots[i].packed && (slots[i].fresh || !only_fresh))
            device->free(slots[i].packed, slots[i].packed_bytes);
    free(slots);
}

void apply_state_free(tn_model *model)
{
    struct apply_state *state = model->applied;
    if (!state)
        return;
    slots_free(model->device, state->slots, state->count, false);
    free(state);
    model->applied = NULL;
    model->packed_bytes = 0;
}

/* ---- preparing -------------------------------------------------------------------------------------------- */

static tn_status prepare_slot(const tn_model *model, const tn_site *site, apply_slot *slot, tn_error *err)
{
    graph_binding *bound = &slot->bound;
    slot->fresh = true;
    bound->plan = (tn_plan){.size = sizeof bound->plan, .threads = tn_thread_count(), .max_tokens = PLAN_MAX_TOKENS};
    tn_status status = bound->impl->plan ? bound->impl->plan(site, &bound->plan, err) : TN_OK;
    slot->packed_bytes = bound->plan.packed_bytes;
    if (status != TN_OK || slot->packed_bytes == 0)
        return status;
    if ((status = model->device->alloc(slot->packed_bytes, &slot->packed, err)) != TN_OK)
        return status;
    bound->packed = slot->packed;
    return bound->impl->pack ? bound->impl->pack(site, &bound->plan, slot->packed, err) : TN_OK;
}

static tn_status prepare_site(const plan *p, size_t i, apply_slot *slot, tn_error *err)
{
    const graph_site *site = p->model->graph->sites[i];
    const plan_choice *choice = &p->choices[i];
    if (!choice->kernel)
        return TN_OK;
    bool keeps = choice->candidate < 0 || site->bound.impl == choice->fit->impl;
    if (keeps) {
        *slot = p->model->applied->slots[i];
        slot->fresh = false;
        return TN_OK;
    }
    tn_error why = TN_ERROR_INIT;
    slot->bound = (graph_binding){.kernel = choice->kernel, .impl = choice->fit->impl};
    tn_status status = prepare_slot(p->model, &site->site, slot, &why);
    if (status == TN_OK)
        return TN_OK;
    return tn_fail(err, status == TN_E_MEMORY ? status : TN_E_KERNEL, choice->kernel->kernel.id,
                   "cannot be applied at %s: %s", site->site.path, why.message);
}

/* ---- committing --------------------------------------------------------------------------------------------- */

static void commit(tn_model *model, struct apply_state *next)
{
    struct apply_state *old = model->applied;
    graph *g = model->graph;
    model->packed_bytes = 0;
    for (size_t i = 0; i < next->count; i++) {
        if (old && old->slots[i].packed && old->slots[i].packed != next->slots[i].packed)
            model->device->free(old->slots[i].packed, old->slots[i].packed_bytes);
        next->slots[i].fresh = false;
        g->sites[i]->bound = next->slots[i].bound;
        model->packed_bytes += (int64_t)next->slots[i].packed_bytes;
    }
    if (old) {
        free(old->slots);
        free(old);
    }
    model->applied = next;
}

static struct apply_state *state_new(size_t count, tn_error *err)
{
    struct apply_state *state = calloc(1, sizeof *state);
    apply_slot *slots = calloc(count + 1, sizeof *slots);
    if (!state || !slots) {
        free(state);
        free(slots);
        plan_no_memory(err);
        return NULL;
    }
    *state = (struct apply_state){count, slots};
    return state;
}

static tn_status apply_plan(plan *p, tn_error *err)
{
    struct apply_state *next = state_new(p->model->graph->site_count, err);
    if (!next)
        return TN_E_MEMORY;
    tn_status status = TN_OK;
    for (size_t i = 0; i < next->count && status == TN_OK; i++)
        status = prepare_site(p, i, &next->slots[i], err);
    if (status == TN_OK) {
        commit(p->model, next);
        return TN_OK;
    }
    slots_free(p->model->device, next->slots, next->count, true);
    free(next);
    return status;
}

/* ---- the interface ------------------------------------------------------------------------------------------- */

static tn_status check_idle(const tn_model *model, tn_error *err)
{
    if (model->session_count == 0)
        return TN_OK;
    return tn_fail(err, TN_E_USAGE, "kernels",
                   "cannot change while %lld sessions of the model are open; free them first",
                   (long long)model->session_count);
}

static tn_status apply_request(tn_model *model, const tn_config *config, const plan_request *request,
                               tn_report **report, tn_error *err)
{
    plan p = {0};
    tn_report *made = NULL;
    tn_status status = check_idle(model, err);
    if (status == TN_OK)
        status = plan_make(&p, model, config, request, err);
    if (status == TN_OK)
        status = plan_check_named(&p, err);
    if (status == TN_OK)
        status = check_plan(&p, err);
    if (status == TN_OK && report && !(made = report_of_plan(&p, err)))
        status = TN_E_MEMORY;
    if (status == TN_OK)
        status = apply_plan(&p, err);
    plan_close(&p);
    if (status == TN_OK && report)
        *report = made;
    else
        tn_report_free(made);
    return status;
}

tn_report *tn_model_plan(tn_model *model, const tn_config *config, const char *spec, tn_error *err)
{
    plan p = {0};
    tn_report *report = NULL;
    if (plan_make(&p, model, config, &(plan_request){.spec = spec}, err) == TN_OK && plan_check_named(&p, err) == TN_OK)
        report = report_of_plan(&p, err);
    plan_close(&p);
    return report;
}

tn_status tn_apply_kernels(tn_model *model, const tn_config *config, const char *spec, tn_report **report,
                           tn_error *err)
{
    if (report)
        *report = NULL;
    return apply_request(model, config, &(plan_request){.spec = spec}, report, err);
}

tn_status tn_apply_kernel(tn_model *model, const tn_config *config, const char *id, const char *modules, tn_error *err)
{
    /* "auto", "none" and lists are SPECs, not ids. */
    if (!id || !registry_find(model->device->kind, id))
        return plan_unknown_id(model->device->kind, id ? id : "", err);
    return apply_request(model, config, &(plan_request){.spec = id, .modules = modules, .adds = true}, NULL, err);
}

tn_status tn_revert_kernel(tn_model *model, const char *id, tn_error *err)
{
    tn_status status = check_idle(model, err);
    bool found = !id;
    if (status != TN_OK)
        return status;
    for (size_t i = 0; i < model->graph->site_count; i++) {
        graph_binding *bound = &model->graph->sites[i]->bound;
        if (!bound->impl || (id && strcmp(bound->kernel->kernel.id, id)))
            continue;
        found = true;
        apply_slot *slot = &model->applied->slots[i];
        if (slot->packed)
            model->device->free(slot->packed, slot->packed_bytes);
        model->packed_bytes -= (int64_t)slot->packed_bytes;
        *slot = (apply_slot){0};
        *bound = (graph_binding){0};
    }
    if (!found)
        return tn_fail(err, TN_E_KERNEL, id, "is not applied to this model; nothing was reverted");
    return TN_OK;
}
