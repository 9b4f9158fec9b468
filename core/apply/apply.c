/* Giving sites to kernels and taking them back. A change is prepared completely, next to what is applied, and then
 * put in place by assignments that cannot fail. */
#include "apply/apply.h"

#include "apply/first_calls.h"
#include "apply/measure.h"
#include "apply/plan.h"
#include "apply/report.h"
#include "apply/shadow.h"
#include "base/structs.h"
#include "base/text.h"
#include "check/check.h"
#include "device/pages.h"
#include "run/guest.h"
#include "run/planning.h"

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
            // NOLINTNEXTLINE(clang-analyzer-unix.Malloc): a block goes when the last slot has left it
            target->packed_bytes += (int64_t)state->slots[i].block->memory.bytes;
}

void apply_close(apply_target *target)
{
    shadow_close(target);
    first_calls_close(target);
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
    block_drop(p->target->device, slot->block);
    *slot = (apply_slot){0};
    return plan_bar_site(p, i, failed, err);
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

/* Everything that what is chosen needs. next is NULL when another choice had to be made, which is not checked yet. */
static tn_status prepare(plan *p, struct apply_state **next, tn_error *err)
{
    bool again = false;
    tn_status status = TN_OK;
    *next = shadow_open(p->target, err) == TN_OK ? state_new(p->target->graph->site_count, err) : NULL;
    if (!*next)
        return TN_E_MEMORY;
    for (size_t i = 0; i < (*next)->count && status == TN_OK; i++)
        status = prepare_site(p, *next, i, &again, err);
    if (status == TN_OK && !again)
        return TN_OK;
    state_free(p->target->device, *next);
    *next = NULL;
    if (status == TN_OK)
        status = plan_choose_again(p, err);
    return status;
}

/* Checks, asks and measures until what is chosen is all of that. */
static tn_status settle(plan *p, tn_error *err)
{
    bool again = true;
    tn_status status = TN_OK;
    plan_count_checks(p);
    while (again && status == TN_OK) {
        bool measured = false;
        status = plan_check(p, err);
        if (status == TN_OK)
            status = plan_settle(p, &again, err);
        if (status == TN_OK && !again)
            status = plan_measure(p, &measured, err);
        again |= measured;
    }
    return status == TN_OK ? plan_tell(p, &p->checks, p->checks.total, err) : status;
}

/* Until nothing that is chosen fails. */
static tn_status settle_and_prepare(plan *p, struct apply_state **next, tn_error *err)
{
    tn_status status = TN_OK;
    *next = NULL;
    while (!*next && status == TN_OK) {
        status = settle(p, err);
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

/* A kernel's sites (id NULL: those of all) are eager from now on. false: it has none. */
static bool clear_sites(apply_target *target, const char *id, bool alone)
{
    bool found = false;
    for (size_t i = 0; i < target->graph->site_count; i++) {
        graph_binding *bound = &target->graph->sites[i]->bound;
        if (!bound->impl || (id && strcmp(bound->kernel->kernel.id, id) != 0))
            continue;
        found = true;
        apply_slot *slot = &target->applied->slots[i];
        block_drop(target->device, slot->block);
        *slot = (apply_slot){.bound = {.alone = alone}};
        *bound = slot->bound;
    }
    count_packed(target);
    return found;
}

void apply_take_off(apply_target *target, const struct registry_kernel *kernel)
{
    clear_sites(target, kernel->kernel.id, target->session_count > 0);
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
        status = plan_make(&p, target, config, request, &why);
    if (status == TN_OK)
        status = plan_check_named(&p, &why);
    if (status == TN_OK)
        status = settle_and_prepare(&p, &next, &why);
    if (status == TN_OK && report && !(made = report_of_plan(&p, &why)))
        status = TN_E_MEMORY;
    if (status == TN_OK)
        put_in_place(&p, next);
    else
        state_free(target->device, next);
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
    tn_status status = plan_make(&p, target, config, &request, &why);
    if (status == TN_OK)
        status = plan_check_named(&p, &why);
    if (status == TN_OK)
        status = settle(&p, &why);
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
    if (status == TN_OK && !clear_sites(target, id, false) && id)
        return tn_fail(err, TN_E_KERNEL, id, "is not applied to this model; nothing was reverted");
    return status;
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
        while (at < *count && strcmp((*list)[at]->kernel, id) != 0)
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
