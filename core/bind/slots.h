/* Inside core/bind: what applied kernels hold, site by site. */
#ifndef TENON_CORE_SLOTS_H
#define TENON_CORE_SLOTS_H

#include "device/pages.h"
#include "select/target.h"

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

/* So many empty slots; NULL: no memory. */
struct apply_state *slots_new(size_t count, tn_error *err);

/* All that they hold; state may be NULL. */
void slots_free(const device *device, struct apply_state *state);

/* One slot less holds the block, which may be NULL. */
void slots_drop(const device *device, apply_block *block);

/* Sets packed_bytes. */
void slots_count_packed(apply_target *target);

/* A kernel's sites (id NULL: those of all) are eager from now on. false: it has none. */
bool slots_clear(apply_target *target, const char *id, bool alone);

#endif
