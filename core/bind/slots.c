/* What applied kernels hold. */
#include "bind/slots.h"

#include "base/structs.h"
#include "bind/apply.h"
#include "select/plan.h"

#include <stdlib.h>
#include <string.h>

struct apply_state *slots_new(size_t count, tn_error *err)
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

void slots_drop(const device *device, apply_block *block)
{
    if (!block || --block->uses > 0)
        return;
    device_sync(device, NULL);
    pages_free(&block->memory, device);
    free(block);
}

void slots_free(const device *device, struct apply_state *state)
{
    if (!state)
        return;
    for (size_t i = 0; i < state->count; i++)
        slots_drop(device, state->slots[i].block);
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

void slots_count_packed(apply_target *target)
{
    const struct apply_state *state = target->applied;
    target->packed_bytes = 0;
    for (size_t i = 0; state && i < state->count; i++)
        if (state->slots[i].block && is_first(state, i))
            // NOLINTNEXTLINE(clang-analyzer-unix.Malloc): a block goes when the last slot has left it
            target->packed_bytes += (int64_t)state->slots[i].block->memory.bytes;
}

bool slots_clear(apply_target *target, const char *id, bool alone)
{
    bool found = false;
    for (size_t i = 0; i < target->graph->site_count; i++) {
        graph_binding *bound = &target->graph->sites[i]->bound;
        if (!bound->impl || (id && strcmp(bound->kernel->kernel.id, id) != 0))
            continue;
        found = true;
        apply_slot *slot = &target->applied->slots[i];
        slots_drop(target->device, slot->block);
        *slot = (apply_slot){.bound = {.alone = alone}};
        *bound = slot->bound;
    }
    slots_count_packed(target);
    return found;
}

void apply_take_off(apply_target *target, const struct registry_kernel *kernel)
{
    slots_clear(target, kernel->kernel.id, target->session_count > 0);
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
