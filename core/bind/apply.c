/* Giving sites to kernels and taking them back. A change is prepared completely, next to what is applied, and then
 * put in place by assignments that cannot fail. */
#include "bind/apply.h"

#include "base/text.h"
#include "bind/shadow.h"
#include "bind/slots.h"
#include "check/check.h"
#include "plugin/kernels_config.h"
#include "plugin/spec.h"
#include "report/report.h"
#include "run/guest.h"
#include "run/planning.h"
#include "select/alike.h"
#include "select/ask.h"
#include "select/candidates.h"
#include "select/choose.h"
#include "select/first_calls.h"
#include "select/plan.h"
#include "select/select.h"
#include "select/why.h"

#include <stdlib.h>
#include <string.h>

void apply_close(apply_target *target)
{
    shadow_close(target);
    first_calls_close(target);
    slots_free(target->device, target->applied);
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

static tn_status take_block(const apply_target *target, apply_slot *slot, tn_error *err)
{
    slot->block = calloc(1, sizeof *slot->block);
    if (!slot->block)
        return plan_no_memory(err);
    slot->block->uses = 1;
    return pages_alloc(&slot->block->memory, target->device, slot->bound.plan.packed_bytes, err);
}

static tn_status pack(const apply_target *target, const tn_site *site, apply_slot *slot, tn_error *err)
{
    tn_status status = TN_OK;
    if (slot->bound.impl->pack)
        status = guest_pack(&slot->bound, site, slot->block->memory.data, target->device->queue, err);
    if (status == TN_OK)
        status = device_sync(target->device, err);
    if (status == TN_OK)
        pages_protect(&slot->block->memory);
    return status;
}

/* Plans the kernel that was chosen for a site, and packs the site's weights for it. When the kernel itself declines or
 * fails, this still returns TN_OK and writes the reason into failed; any other status is a fault of the system, such as
 * a lack of memory. */
static tn_status prepare_slot(const plan *p, struct apply_state *next, size_t i, char *failed, tn_error *err)
{
    const apply_target *target = p->target;
    apply_slot *slot = &next->slots[i];
    graph_binding *bound = &slot->bound;
    tn_error why = TN_ERROR_INIT;
    tn_status status = plan_bind(p, i, bound, &why);
    if (status != TN_OK) {
        text_cut(failed, PLAN_TEXT, "%s%s", status == TN_DECLINED ? "plan declined: " : "", why.message);
        return TN_OK;
    }
    if (bound->plan.packed_bytes == 0)
        return TN_OK;
    slot->block = find_block(target, next, i);
    if (slot->block) {
        slot->block->uses++;
    } else {
        status = take_block(target, slot, &why);
        /* Without much memory it is the kernel that asks for too much: others need none. */
        if (status != TN_OK && (!slot->block || bound->plan.packed_bytes < PLANNING_LARGE))
            return tn_fail(err, status, why.where, "%s", why.message);
        if (status != TN_OK || pack(target, &target->graph->sites[i]->site, slot, &why) != TN_OK)
            text_cut(failed, PLAN_TEXT, "%s", why.message);
    }
    bound->packed = slot->block->memory.data;
    return TN_OK;
}

/* *again: the kernel fails here, so that another must be chosen. */
static tn_status prepare_site(plan *p, struct apply_state *next, size_t i, bool *again, tn_error *err)
{
    const plan_choice *choice = &p->choices[i];
    apply_slot *slot = &next->slots[i];
    tn_error why = TN_ERROR_INIT;
    char failed[PLAN_TEXT] = "";
    if (!choice->kernel)
        return TN_OK;
    if (plan_keeps(p, i)) {
        *slot = p->target->applied->slots[i];
        if (choice->fit)
            slot->bound.not_at = choice->fit->not_at;
        if (slot->block)
            slot->block->uses++;
        return TN_OK;
    }
    slot->bound = (graph_binding){.kernel = choice->kernel,
                                  .impl = choice->fit->impl,
                                  .id = choice->kernel->kernel.id,
                                  .file = choice->kernel->file,
                                  .not_at = choice->fit->not_at,
                                  .first = choice->fit->first};
    tn_status status = prepare_slot(p, next, i, failed, &why);
    if (status != TN_OK)
        return tn_fail(err, status, choice->kernel->kernel.id, "cannot be applied at %s: %s",
                       p->target->graph->sites[i]->site.path, why.message);
    if (!failed[0])
        return TN_OK;
    *again = true;
    slots_drop(p->target->device, slot->block);
    *slot = (apply_slot){0};
    return plan_bar_site(p, i, failed, err);
}

/* ---- committing --------------------------------------------------------------------------------------------- */

static void commit(apply_target *target, struct apply_state *next)
{
    for (size_t i = 0; i < next->count; i++)
        target->graph->sites[i]->bound = next->slots[i].bound;
    shadow_bind(target);
    slots_free(target->device, target->applied);
    target->applied = next;
    slots_count_packed(target);
}

/* How far the checks went; without checks nothing is checked later. */
static void note_checked(const plan *p)
{
    bool never = p->config && kernels_config_verify(p->config) == CONFIG_VERIFY_NEVER;
    p->target->checked.tokens = never ? INT64_MAX : CHECK_CHUNK;
    p->target->checked.cached = never ? INT64_MAX : CHECK_CACHED;
}

/* Everything that what is chosen needs. next is NULL when another choice had to be made, which is not checked yet. */
static tn_status prepare(plan *p, struct apply_state **next, tn_error *err)
{
    bool again = false;
    tn_status status = TN_OK;
    *next = shadow_open(p->target, err) == TN_OK ? slots_new(p->target->graph->site_count, err) : NULL;
    if (!*next)
        return TN_E_MEMORY;
    for (size_t i = 0; i < (*next)->count && status == TN_OK; i++)
        status = prepare_site(p, *next, i, &again, err);
    if (status == TN_OK && !again)
        return TN_OK;
    slots_free(p->target->device, *next);
    *next = NULL;
    if (status == TN_OK)
        status = plan_choose_again(p, err);
    return status;
}

/* Until nothing that is chosen fails. */
static tn_status settle_and_prepare(plan *p, struct apply_state **next, tn_error *err)
{
    tn_status status = TN_OK;
    *next = NULL;
    while (!*next && status == TN_OK) {
        status = select_settle(p, err);
        if (status == TN_OK)
            status = prepare(p, next, err);
    }
    return status;
}

static void put_in_place(const plan *p, struct apply_state *next)
{
    commit(p->target, next);
    note_checked(p);
}

tn_status apply_plan(plan *p, tn_error *err)
{
    struct apply_state *next = NULL;
    tn_status status = TN_OK;
    while (!next && status == TN_OK)
        status = prepare(p, &next, err);
    if (status == TN_OK)
        put_in_place(p, next);
    return status;
}

void apply_only(apply_target *target, const bool *keep)
{
    for (size_t i = 0; target->applied && i < target->applied->count; i++) {
        bool has = !keep || keep[i];
        target->graph->sites[i]->bound = has ? target->applied->slots[i].bound : (graph_binding){0};
    }
    if (!keep)
        shadow_bind(target);
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

/* Errors of what the file asks for name the file. */
static tn_status blame(const tn_config *config, const plan_request *request, tn_status status, const tn_error *why,
                       tn_error *err)
{
    const char *file = config && !request->spec ? kernels_config_source(config) : NULL;
    if (status == TN_OK)
        return TN_OK;
    if (!file || (status != TN_E_KERNEL && status != TN_E_VERIFY) || !strcmp(why->where, file))
        return tn_fail(err, status, why->where, "%s", why->message);
    bool named = !strcmp(why->where, "kernels");
    return tn_fail(err, status, file, "key '%s': %s%s%s", kernels_config_key(config), named ? "" : why->where,
                   named ? "" : ": ", why->message);
}

static tn_status apply_request(apply_target *target, const tn_config *config, const plan_request *request,
                               tn_report **report, tn_error *err)
{
    plan p = {0};
    tn_report *made = NULL;
    struct apply_state *next = NULL;
    tn_error why = TN_ERROR_INIT;
    tn_status status = check_idle(target, &why);
    if (status == TN_OK)
        status = select_plan(&p, target, config, request, &why);
    if (status == TN_OK)
        status = plan_check_named(&p, &why);
    if (status == TN_OK)
        status = settle_and_prepare(&p, &next, &why);
    if (status == TN_OK)
        status = plan_check_same_bits(&p, &why);
    if (status == TN_OK && report && !(made = report_of_plan(&p, &why)))
        status = TN_E_MEMORY;
    if (status == TN_OK)
        put_in_place(&p, next);
    else
        slots_free(target->device, next);
    plan_close(&p);
    if (report)
        *report = made;
    return blame(config, request, status, &why, err);
}

tn_report *apply_preview(apply_target *target, const tn_config *config, const char *spec, tn_error *err)
{
    plan p = {0};
    plan_request request = {.spec = spec, .tells = true};
    tn_report *report = NULL;
    tn_error why = TN_ERROR_INIT;
    tn_status status = select_plan(&p, target, config, &request, &why);
    if (status == TN_OK)
        status = plan_check_named(&p, &why);
    if (status == TN_OK)
        status = select_settle(&p, &why);
    if (status == TN_OK && !(report = report_of_plan(&p, &why)))
        status = TN_E_MEMORY;
    blame(config, &request, status, &why, err);
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
    if (!id || !spec_first_kernel(target->device->ops->name, id))
        return plan_unknown_id(target->device->ops->name, id ? id : "", err);
    return apply_request(target, config, &(plan_request){.spec = id, .modules = modules, .adds = true}, NULL, err);
}

tn_status apply_revert(apply_target *target, const char *id, tn_error *err)
{
    tn_status status = check_idle(target, err);
    if (status == TN_OK && !slots_clear(target, id, false) && id)
        return tn_fail(err, TN_E_KERNEL, id, "is not applied to this model; nothing was reverted");
    return status;
}
