/* Giving sites to kernels and taking them back. A change is prepared completely, next to what is applied, and then
 * put in place by assignments that cannot fail. */
#include "apply/apply.h"

#include "apply/measure.h"
#include "apply/plan.h"
#include "apply/report.h"
#include "apply/shadow.h"
#include "base/structs.h"
#include "check/check.h"
#include "device/pages.h"
#include "run/guest.h"

#include <stdlib.h>
#include <string.h>

/* Packed weights, in the device's memory. uses counts the slots that hold it: sites with equal weights share one, and
 * while a change is prepared the old state and the new one do. */
typedef struct apply_block {
    pages memory;
    int64_t uses;
} apply_block;

/* What one site's kernel needs. */
typedef struct apply_slot {
    graph_binding bound;
    apply_block *block; /* or NULL                                                                */
} apply_slot;

/* Owned by the model: by site. */
struct apply_state {
    size_t count;
    apply_slot *slots;
};

static void block_drop(const device *device, apply_block *block)
{
    if (!block || --block->uses > 0)
        return;
    device_sync(device, NULL);
    pages_free(&block->memory, device);
    free(block);
}

static void state_free(const device *device, struct apply_state *state)
{
    if (!state)
        return;
    for (size_t i = 0; i < state->count; i++)
        block_drop(device, state->slots[i].block);
    free(state->slots);
    free(state);
}

/* Is this the first site of those that hold its block? */
static bool is_first(const struct apply_state *state, size_t site)
{
    for (size_t i = 0; i < site; i++)
        if (state->slots[i].block == state->slots[site].block)
            return false;
    return true;
}

static void count_packed(apply_target *target)
{
    const struct apply_state *state = target->applied;
    target->packed_bytes = 0;
    for (size_t i = 0; state && i < state->count; i++)
        if (state->slots[i].block && is_first(state, i))
            target->packed_bytes += (int64_t)state->slots[i].block->memory.bytes;
}

void apply_close(apply_target *target)
{
    shadow_close(target);
    state_free(target->device, target->applied);
    target->applied = NULL;
    target->packed_bytes = 0;
}

/* ---- preparing -------------------------------------------------------------------------------------------- */

/* The block of an earlier site, if the same implementation would pack the same again. */
static apply_block *find_block(const apply_target *target, const struct apply_state *next, size_t site)
{
    const graph_binding *bound = &next->slots[site].bound;
    const tn_site *own = &target->graph->sites[site]->site;
    for (size_t i = 0; i < site; i++) {
        const graph_binding *other = &next->slots[i].bound;
        const tn_site *with = &target->graph->sites[i]->site;
        if (next->slots[i].block && other->impl == bound->impl &&
            other->plan.packed_bytes == bound->plan.packed_bytes &&
            !memcmp(other->plan.user, bound->plan.user, sizeof bound->plan.user) && plan_same_shape(own, with) &&
            plan_same_weights(own, with, target->device->ops->host_memory))
            return next->slots[i].block;
    }
    return NULL;
}

static tn_status pack_slot(const apply_target *target, const tn_site *site, apply_slot *slot, tn_error *err)
{
    graph_binding *bound = &slot->bound;
    slot->block = calloc(1, sizeof *slot->block);
    if (!slot->block)
        return plan_no_memory(err);
    slot->block->uses = 1;
    tn_status status = pages_alloc(&slot->block->memory, target->device, bound->plan.packed_bytes, err);
    if (status == TN_OK && bound->impl->pack)
        status = guest_pack(bound, site, slot->block->memory.data, target->device->queue, err);
    if (status == TN_OK)
        status = device_sync(target->device, err);
    if (status == TN_OK)
        pages_protect(&slot->block->memory);
    return status;
}

static tn_status prepare_slot(const apply_target *target, struct apply_state *next, size_t i, tn_error *err)
{
    const tn_site *site = &target->graph->sites[i]->site;
    apply_slot *slot = &next->slots[i];
    graph_binding *bound = &slot->bound;
    bound->plan = (tn_plan){.size = sizeof bound->plan, .threads = tn_thread_count(), .max_tokens = GRAPH_MAX_TOKENS};
    tn_status status = bound->impl->plan ? guest_plan(bound, site, &bound->plan, err) : TN_OK;
    if (status != TN_OK || bound->plan.packed_bytes == 0)
        return status;
    slot->block = find_block(target, next, i);
    if (slot->block)
        slot->block->uses++;
    else
        status = pack_slot(target, site, slot, err);
    bound->packed = slot->block ? slot->block->memory.data : NULL;
    return status;
}

static tn_status prepare_site(const plan *p, struct apply_state *next, size_t i, tn_error *err)
{
    const graph_site *site = p->target->graph->sites[i];
    const plan_choice *choice = &p->choices[i];
    if (!choice->kernel)
        return TN_OK;
    bool keeps = choice->candidate < 0 || site->bound.impl == choice->fit->impl;
    if (keeps) {
        next->slots[i] = p->target->applied->slots[i];
        if (choice->fit)
            next->slots[i].bound.not_at = choice->fit->not_at;
        if (next->slots[i].block)
            next->slots[i].block->uses++;
        return TN_OK;
    }
    tn_error why = TN_ERROR_INIT;
    next->slots[i].bound = (graph_binding){.kernel = choice->kernel,
                                           .impl = choice->fit->impl,
                                           .id = choice->kernel->kernel.id,
                                           .file = choice->kernel->file,
                                           .not_at = choice->fit->not_at};
    tn_status status = prepare_slot(p->target, next, i, &why);
    if (status == TN_OK)
        return TN_OK;
    return tn_fail(err, status == TN_E_MEMORY ? status : TN_E_KERNEL, choice->kernel->kernel.id,
                   "cannot be applied at %s: %s", site->site.path, why.message);
}

/* ---- committing --------------------------------------------------------------------------------------------- */

static void commit(apply_target *target, struct apply_state *next)
{
    for (size_t i = 0; i < next->count; i++)
        target->graph->sites[i]->bound = next->slots[i].bound;
    shadow_bind(target);
    state_free(target->device, target->applied);
    target->applied = next;
    count_packed(target);
}

/* How far the checks went; without checks nothing is checked later. */
static void note_checked(const plan *p)
{
    bool never = p->config && kernels_config_verify(p->config) == CONFIG_VERIFY_NEVER;
    p->target->checked.tokens = never ? INT64_MAX : CHECK_CHUNK;
    p->target->checked.cached = never ? INT64_MAX : CHECK_CACHED;
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

tn_status apply_plan(plan *p, tn_error *err)
{
    struct apply_state *next = state_new(p->target->graph->site_count, err);
    if (!next)
        return TN_E_MEMORY;
    tn_status status = TN_OK;
    for (size_t i = 0; i < next->count && status == TN_OK; i++)
        status = prepare_site(p, next, i, err);
    if (status == TN_OK) {
        commit(p->target, next);
        note_checked(p);
    } else {
        state_free(p->target->device, next);
    }
    return status;
}

void apply_only(apply_target *target, const bool *keep)
{
    for (size_t i = 0; target->applied && i < target->applied->count; i++) {
        bool has = !keep || keep[i];
        target->graph->sites[i]->bound = has ? target->applied->slots[i].bound : (graph_binding){0};
    }
}

/* ---- the interface ------------------------------------------------------------------------------------------- */

static tn_status check_idle(const apply_target *target, tn_error *err)
{
    if (target->session_count == 0)
        return TN_OK;
    return tn_fail(err, TN_E_USAGE, "kernels",
                   "cannot change while %lld sessions of the model are open; free them first",
                   (long long)target->session_count);
}

/* Checks and measures until what is chosen is both. */
static tn_status plan_settle(plan *p, tn_error *err)
{
    bool again = true;
    tn_status status = TN_OK;
    while (again && status == TN_OK) {
        status = plan_check(p, err);
        if (status == TN_OK)
            status = plan_measure(p, &again, err);
    }
    return status;
}

static tn_status apply_request(apply_target *target, const tn_config *config, const plan_request *request,
                               tn_report **report, tn_error *err)
{
    plan p = {0};
    tn_report *made = NULL;
    tn_status status = check_idle(target, err);
    if (status == TN_OK)
        status = plan_make(&p, target, config, request, err);
    if (status == TN_OK)
        status = plan_check_named(&p, err);
    if (status == TN_OK)
        status = plan_settle(&p, err);
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

tn_report *apply_preview(apply_target *target, const tn_config *config, const char *spec, tn_error *err)
{
    plan p = {0};
    tn_report *report = NULL;
    if (plan_make(&p, target, config, &(plan_request){.spec = spec, .tells = true}, err) == TN_OK &&
        plan_check_named(&p, err) == TN_OK && plan_settle(&p, err) == TN_OK)
        report = report_of_plan(&p, err);
    plan_close(&p);
    return report;
}

tn_status apply_kernels(apply_target *target, const tn_config *config, const char *spec, tn_report **report,
                        tn_error *err)
{
    return apply_request(target, config, &(plan_request){.spec = spec}, report, err);
}

tn_status apply_kernel(apply_target *target, const tn_config *config, const char *id, const char *modules,
                       tn_error *err)
{
    /* "auto", "none" and lists are SPECs, not ids. */
    if (!id || !registry_find(target->device->ops->name, id))
        return plan_unknown_id(target->device->ops->name, id ? id : "", err);
    return apply_request(target, config, &(plan_request){.spec = id, .modules = modules, .adds = true}, NULL, err);
}

tn_status apply_revert(apply_target *target, const char *id, tn_error *err)
{
    tn_status status = check_idle(target, err);
    bool found = !id;
    if (status != TN_OK)
        return status;
    for (size_t i = 0; i < target->graph->site_count; i++) {
        graph_binding *bound = &target->graph->sites[i]->bound;
        if (!bound->impl || (id && strcmp(bound->kernel->kernel.id, id)))
            continue;
        found = true;
        apply_slot *slot = &target->applied->slots[i];
        block_drop(target->device, slot->block);
        *slot = (apply_slot){0};
        *bound = (graph_binding){0};
    }
    count_packed(target);
    if (!found)
        return tn_fail(err, TN_E_KERNEL, id, "is not applied to this model; nothing was reverted");
    return TN_OK;
}

tn_status apply_packed(const apply_target *target, tn_packed ***list, size_t *count, tn_error *err)
{
    const struct apply_state *state = target->applied;
    size_t sites = state ? state->count : 0;
    *count = 0;
    *list = structs_list(sites, sizeof ***list);
    if (!*list)
        return plan_no_memory(err);
    for (size_t i = 0; i < sites; i++) {
        const apply_slot *slot = &state->slots[i];
        if (!slot->block)
            continue;
        const char *id = slot->bound.kernel->kernel.id;
        size_t at = 0;
        while (at < *count && strcmp((*list)[at]->kernel, id))
            at++;
        *count += at == *count;
        tn_packed *p = (*list)[at];
        p->kernel = id;
        p->sites++;
        if (is_first(state, i)) {
            p->copies++;
            p->bytes += (int64_t)slot->block->memory.bytes;
        }
    }
    return TN_OK;
}
