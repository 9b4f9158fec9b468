/* Checks that passed in this process. A program that applies kernels to a live model again, after it took them off or
 * wrote to the weights, does not wait for the same trials. The oldest of many are forgotten. */
#include "select/passed.h"

#include "base/hash.h"
#include "plugin/environment.h"
#include "select/alike.h"

#include <pthread.h>
#include <string.h>

enum { MOST = 1024 };

typedef struct entry {
    const tn_impl *impl; /* of a plugin, which stays loaded                                        */
    uint64_t shape, surroundings;
} entry;

static struct {
    pthread_mutex_t lock;
    entry entries[MOST];
    size_t noted;
} passed = {.lock = PTHREAD_MUTEX_INITIALIZER};

static entry entry_of(const plan *p, const plan_fit *fit, const tn_site *site)
{
    entry e = {.impl = fit->impl, .shape = plan_shape_hash(site)};
    const uint64_t with[] = {tn_cpu_flags(), (uint64_t)tn_thread_count(), environment_hash(), p->target->training};
    if (site->path)
        e.shape = hash_bytes(e.shape, site->path, strlen(site->path));
    e.surroundings = hash_bytes(HASH_START, with, sizeof with);
    return e;
}

static bool is_noted(const entry *e)
{
    size_t count = passed.noted < MOST ? passed.noted : MOST;
    for (size_t i = 0; i < count; i++)
        if (passed.entries[i].impl == e->impl && passed.entries[i].shape == e->shape &&
            passed.entries[i].surroundings == e->surroundings)
            return true;
    return false;
}

bool passed_before(const plan *p, const plan_fit *fit, const tn_site *site)
{
    if (!p->target->weights_change)
        return false;
    const entry e = entry_of(p, fit, site);
    pthread_mutex_lock(&passed.lock);
    bool found = is_noted(&e);
    pthread_mutex_unlock(&passed.lock);
    return found;
}

void passed_note(const plan *p, const plan_fit *fit, const tn_site *site)
{
    if (!p->target->weights_change)
        return;
    const entry e = entry_of(p, fit, site);
    pthread_mutex_lock(&passed.lock);
    if (!is_noted(&e))
        passed.entries[passed.noted++ % MOST] = e;
    pthread_mutex_unlock(&passed.lock);
}
