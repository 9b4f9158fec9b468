/* The kernels and devices that plugins brought. Entries are added, never changed in place or removed, so pointers to
 * them stay valid. */
#include "device/guard.h"
#include "eager/eager.h"
#include "plugin/registry.h"

#include "device/device.h"
#include "plugin/nearest.h"
#include "plugin/plugins.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PROBE_SECONDS 10.0

typedef struct registry_machine { /* a device that a plugin brought                              */
    const tn_device *device;
    const char *file;
    bool probed, available;
    char reason[512];
} registry_machine;

static struct {
    pthread_mutex_t lock, probing;
    registry_kernel **kernels; /* ordered by device, then id                                      */
    size_t count, capacity;
    registry_machine machines[TN_DEVICE_NPU + 1]; /* by kind                                       */
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER, .probing = PTHREAD_MUTEX_INITIALIZER};

/* ---- adding ---------------------------------------------------------------------------------- */

static int compare(tn_device_kind device, const char *id, const registry_kernel *with)
{
    if (device != with->kernel.device)
        return device < with->kernel.device ? -1 : 1;
    return strcmp(id, with->kernel.id);
}

/* Where (device, id) is or would be; found says which. */
static size_t place_of(tn_device_kind device, const char *id, bool *found)
{
    size_t low = 0, high = registry.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int c = compare(device, id, registry.kernels[middle]);
        if (c == 0) {
            *found = true;
            return middle;
        }
        if (c < 0)
            high = middle;
        else
            low = middle + 1;
    }
    *found = false;
    return low;
}

static tn_status check_new(const descriptor *d, const char *file, tn_error *err)
{
    for (size_t i = 0; i < d->kernel_count; i++) {
        const tn_kernel *k = &d->kernels[i];
        bool found;
        size_t at = place_of(k->device, k->id, &found);
        if (found)
            return tn_fail(err, TN_E_KERNEL, file,
                           "kernel '%s' for %s is already registered by %s; remove one of the two files", k->id,
                           tn_device_name(k->device), registry.kernels[at]->file);
    }
    if (d->device && registry.machines[d->device->kind].device)
        return tn_fail(err, TN_E_KERNEL, file, "device '%s' is already registered by %s; remove one of the two files",
                       tn_device_name(d->device->kind), registry.machines[d->device->kind].file);
    return TN_OK;
}

static bool reserve(size_t more)
{
    if (registry.count + more <= registry.capacity)
        return true;
    size_t capacity = (registry.count + more) * 2;
    registry_kernel **kernels = realloc(registry.kernels, capacity * sizeof *kernels);
    if (!kernels)
        return false;
    registry.kernels = kernels;
    registry.capacity = capacity;
    return true;
}

static void insert(registry_kernel *entry)
{
    bool found;
    size_t at = place_of(entry->kernel.device, entry->kernel.id, &found);
    memmove(&registry.kernels[at + 1], &registry.kernels[at], (registry.count - at) * sizeof(registry_kernel *));
    registry.kernels[at] = entry;
    registry.count++;
}

/* Everything that can fail comes before the first insert. */
static tn_status add_locked(descriptor *d, const char *file, tn_error *err)
{
    tn_status status = check_new(d, file, err);
    if (status != TN_OK)
        return status;
    registry_kernel *entries = calloc(d->kernel_count ? d->kernel_count : 1, sizeof *entries);
    if (!entries || !reserve(d->kernel_count)) {
        free(entries);
        return tn_fail(err, TN_E_MEMORY, file, "out of memory");
    }
    for (size_t i = 0; i < d->kernel_count; i++) {
        entries[i].kernel = d->kernels[i];
        entries[i].file = file;
        insert(&entries[i]);
    }
    if (d->kernel_count > 0)
        d->impls = NULL; /* the entries point into them from now on */
    else
        free(entries);
    if (d->device)
        registry.machines[d->device->kind] = (registry_machine){.device = d->device, .file = file};
    d->device = NULL;
    return TN_OK;
}

tn_status registry_add(descriptor *d, const char *file, tn_error *err)
{
    const char *name = plugins_intern(file);
    if (!name)
        return tn_fail(err, TN_E_MEMORY, file, "out of memory");
    pthread_mutex_lock(&registry.lock);
    tn_status status = add_locked(d, name, err);
    pthread_mutex_unlock(&registry.lock);
    if (status == TN_OK)
        descriptor_free(d);
    return status;
}

/* ---- looking up --------------------------------------------------------------------------------- */

/* The kernels of one device lie side by side. */
static size_t range_of(tn_device_kind device, size_t *first)
{
    size_t count = 0;
    *first = 0;
    for (size_t i = 0; i < registry.count; i++)
        if (registry.kernels[i]->kernel.device == device && count++ == 0)
            *first = i;
    return count;
}

size_t registry_count(tn_device_kind device)
{
    size_t first;
    pthread_mutex_lock(&registry.lock);
    size_t count = range_of(device, &first);
    pthread_mutex_unlock(&registry.lock);
    return count;
}

registry_kernel *registry_at(tn_device_kind device, size_t index)
{
    size_t first;
    pthread_mutex_lock(&registry.lock);
    registry_kernel *kernel = index < range_of(device, &first) ? registry.kernels[first + index] : NULL;
    pthread_mutex_unlock(&registry.lock);
    return kernel;
}

registry_kernel *registry_find(tn_device_kind device, const char *id)
{
    bool found;
    pthread_mutex_lock(&registry.lock);
    size_t at = place_of(device, id, &found);
    registry_kernel *kernel = found ? registry.kernels[at] : NULL;
    pthread_mutex_unlock(&registry.lock);
    return kernel;
}

const char *registry_nearest(tn_device_kind device, const char *id)
{
    const char *best = NULL;
    size_t first;
    pthread_mutex_lock(&registry.lock);
    size_t count = range_of(device, &first);
    const char **ids = malloc((count ? count : 1) * sizeof *ids);
    for (size_t i = 0; ids && i < count; i++)
        ids[i] = registry.kernels[first + i]->kernel.id;
    if (ids)
        best = nearest_of(id, ids, count);
    free(ids);
    pthread_mutex_unlock(&registry.lock);
    return best;
}

/* ---- asking whether it is available ----------------------------------------------------------------- */

typedef struct probe {
    tn_status (*available)(tn_error *err);
    tn_error *err; /* shared with the child */
} probe;

static int probe_body(void *ctx)
{
    probe *p = ctx;
    tn_status status = p->available(p->err);
    if (status != TN_OK)
        tn_fail(p->err, status, NULL, "it gives no reason");
    return 0;
}

/* Whether available says yes, in a child and then here. */
static bool ask(tn_status (*available)(tn_error *err), char *reason, size_t size)
{
    reason[0] = '\0';
    if (!available)
        return true;
    tn_error *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        snprintf(reason, size, "could not be asked: out of memory");
        return false;
    }
    char how[256];
    probe p = {.available = available, .err = shared};
    bool yes = guard_run(probe_body, &p, PROBE_SECONDS, how, sizeof how) == TN_OK;
    if (!yes)
        snprintf(reason, size, "when asked whether it is available it %s", how);
    if (yes && shared->code == TN_OK) {
        tn_error_clear(shared);
        probe_body(&p);
    }
    if (yes && shared->code != TN_OK) {
        yes = false;
        shared->message[sizeof shared->message - 1] = '\0';
        snprintf(reason, size, "%.500s", shared->message);
    }
    munmap(shared, sizeof *shared);
    return yes;
}

void registry_probe(registry_kernel *kernel)
{
    pthread_mutex_lock(&registry.probing);
    if (!kernel->probed) {
        kernel->available = ask(kernel->kernel.available, kernel->reason, sizeof kernel->reason);
        kernel->probed = true;
    }
    pthread_mutex_unlock(&registry.probing);
}

const registry_verdict *registry_recall(registry_kernel *kernel, uint64_t shape)
{
    pthread_mutex_lock(&registry.lock);
    const registry_verdict *v = kernel->verdicts;
    while (v && v->shape != shape)
        v = v->next;
    pthread_mutex_unlock(&registry.lock);
    return v;
}

const registry_verdict *registry_remember(registry_kernel *kernel, uint64_t shape, const char *reason)
{
    registry_verdict *v = calloc(1, sizeof *v);
    if (!v)
        return NULL;
    v->shape = shape;
    v->trusted = !reason;
    snprintf(v->reason, sizeof v->reason, "%s", reason ? reason : "");
    pthread_mutex_lock(&registry.lock);
    v->next = kernel->verdicts;
    kernel->verdicts = v;
    pthread_mutex_unlock(&registry.lock);
    return v;
}

/* ---- devices ------------------------------------------------------------------------------------------ */

/* Is the plugins' device of this kind here? Otherwise says in reason what is missing. */
static const tn_device *machine_of(tn_device_kind kind, char *reason, size_t size)
{
    registry_machine *m = &registry.machines[kind];
    pthread_mutex_lock(&registry.lock);
    const tn_device *device = m->device;
    pthread_mutex_unlock(&registry.lock);
    snprintf(reason, size, "no plugin brings device '%s'", tn_device_name(kind));
    if (!device)
        return NULL;
    pthread_mutex_lock(&registry.probing);
    if (!m->probed) {
        m->available = ask(device->available, m->reason, sizeof m->reason);
        m->probed = true;
    }
    snprintf(reason, size, "%s", m->reason);
    device = m->available ? device : NULL;
    pthread_mutex_unlock(&registry.probing);
    return device;
}

const tn_device *registry_device(const char *name, tn_error *err)
{
    char reason[512];
    const tn_device *device;
    if (!name || strcmp(name, "auto") == 0) {
        device = machine_of(TN_DEVICE_NPU, reason, sizeof reason);
        return device ? device : &device_cpu;
    }
    if (strcmp(name, "cpu") == 0)
        return &device_cpu;
    if (strcmp(name, "npu") != 0) {
        tn_fail(err, TN_E_KERNEL, "device", "'%s' is not a device; known: auto, cpu, npu", name);
        return NULL;
    }
    device = machine_of(TN_DEVICE_NPU, reason, sizeof reason);
    if (!device)
        tn_fail(err, TN_E_KERNEL, "device", "'%s' is not available: %s; use cpu or auto", name, reason);
    return device;
}

/* ---- the public list ------------------------------------------------------------------------------------ */

tn_status tn_kernels_available(const char *device, tn_kernel_info **list, size_t *count, tn_error *err)
{
    *list = NULL;
    *count = 0;
    tn_error missing = TN_ERROR_INIT;
    const tn_device *machine = registry_device(device, &missing);
    /* A known device that is absent still has kernels to list, none of them available. */
    if (!machine && strcmp(device, "npu") != 0)
        return tn_fail(err, missing.code, missing.where, "%s", missing.message);
    tn_device_kind kind = machine ? machine->kind : TN_DEVICE_NPU;
    size_t n = registry_count(kind);
    tn_kernel_info *infos = calloc(n ? n : 1, sizeof *infos);
    const char *absent = machine ? "" : plugins_intern(missing.message);
    if (!infos || !absent) {
        free(infos);
        return tn_fail(err, TN_E_MEMORY, "kernels", "out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        registry_kernel *k = registry_at(kind, i);
        if (machine)
            registry_probe(k);
        infos[i] = (tn_kernel_info){.id = k->kernel.id,
                                    .version = k->kernel.version,
                                    .summary = k->kernel.summary,
                                    .file = k->file,
                                    .device = k->kernel.device,
                                    .available = machine && k->available,
                                    .reason = machine ? k->reason : absent};
    }
    *list = infos;
    *count = n;
    return TN_OK;
}

void tn_kernels_free(tn_kernel_info *list, size_t count)
{
    (void)count; /* the strings belong to the process */
    free(list);
}
